"""The board's structures as ctypes, as native/board.h declares them; a test compares offsets and sizes."""

import ctypes
from ctypes import c_char, c_int32, c_uint32, c_uint64

MAX_GPUS = 16
MAX_INSTANCES = 7
MAX_PROCESSES = 512
MAX_SAMPLES = 120
MAX_PROCESS_SAMPLES = 8192
MAX_FAULTS = 32
MAX_ANSWERS = 128
MAX_EVENTS = 64
MAX_VALUES = 4
ANY_GPU = -1
WHOLE_GPU = -1
MAGIC = int.from_bytes(b"NVMLSIM1", "little")


class Header(ctypes.Structure):
    """`struct board_header`."""

    _fields_ = (
        ("magic", c_uint64),
        ("layout_version", c_uint64),
        ("gpu_count", c_uint32),
        ("cuda_version", c_uint32),
        ("driver_version", c_char * 80),
    )


class Identity(ctypes.Structure):
    """`struct gpu_identity`."""

    _fields_ = (
        ("name", c_char * 64),
        ("uuid", c_char * 48),
        ("serial", c_char * 32),
        ("vbios", c_char * 32),
        ("memory_bytes", c_uint64),
        ("reserved_bytes", c_uint64),
        ("architecture", c_uint32),
        ("compute_major", c_uint32),
        ("compute_minor", c_uint32),
        ("pci_bus", c_uint32),
        ("pci_device_id", c_uint32),
        ("pci_subsystem_id", c_uint32),
        ("min_power_mw", c_uint32),
        ("max_power_mw", c_uint32),
        ("max_sm_clock_mhz", c_uint32),
        ("max_mem_clock_mhz", c_uint32),
        ("memory_temperature", c_uint32),
        ("mig_capable", c_uint32),
    )


class BusyCount(ctypes.Structure):
    """`struct busy_counter`."""

    _fields_ = (("busy_us", c_uint64), ("at_us", c_uint64))


class MigInstance(ctypes.Structure):
    """`struct mig_instance`."""

    _fields_ = (
        ("uuid", c_char * 48),
        ("profile", c_char * 16),
        ("memory_bytes", c_uint64),
        ("memory_used_bytes", c_uint64),
        ("gpu_instance_id", c_uint32),
        ("slices", c_uint32),
        ("multiprocessors", c_uint32),
        ("copy_engines", c_uint32),
        ("decoders", c_uint32),
        ("jpegs", c_uint32),
        ("ofas", c_uint32),
        ("activity_percent", c_uint32),
        ("profile_id", c_uint32),
        ("start", c_uint32),
        ("size", c_uint32),
        ("unused", c_uint32),
        ("busy", BusyCount),
    )


class State(ctypes.Structure):
    """`struct gpu_state`."""

    _fields_ = (
        ("memory_used_bytes", c_uint64),
        ("energy_mj", c_uint64),
        ("gpu_util_percent", c_uint32),
        ("memory_util_percent", c_uint32),
        ("power_mw", c_uint32),
        ("sm_clock_mhz", c_uint32),
        ("mem_clock_mhz", c_uint32),
        ("temperature_c", c_int32),
        ("memory_temperature_c", c_int32),
        ("mig_generation", c_uint32),
        ("mig_count", c_uint64),
        ("busy", BusyCount),
        ("mig", MigInstance * MAX_INSTANCES),
    )


class GpuProcess(ctypes.Structure):
    """`struct gpu_process`."""

    _fields_ = (
        ("memory_used_bytes", c_uint64),
        ("pid", c_uint32),
        ("kind", c_uint32),
        ("instance", c_int32),
        ("unused", c_uint32),
    )


class ProcessList(ctypes.Structure):
    """`struct process_list`."""

    _fields_ = (("count", c_uint64), ("process", GpuProcess * MAX_PROCESSES))


class UtilizationSample(ctypes.Structure):
    """`struct utilization_sample`."""

    _fields_ = (("at_us", c_uint64), ("percent", c_uint64))


class UtilizationBuffer(ctypes.Structure):
    """`struct utilization_buffer`."""

    _fields_ = (("supported", c_uint64), ("count", c_uint64), ("sample", UtilizationSample * MAX_SAMPLES))


class ProcessUtilization(ctypes.Structure):
    """`struct process_sample`."""

    _fields_ = (
        ("at_us", c_uint64),
        ("pid", c_uint32),
        ("sm_percent", c_uint32),
        ("memory_percent", c_uint32),
        ("encoder_percent", c_uint32),
        ("decoder_percent", c_uint32),
        ("unused", c_uint32),
    )


class ProcessBuffer(ctypes.Structure):
    """`struct process_buffer`."""

    _fields_ = (("count", c_uint64), ("sample", ProcessUtilization * MAX_PROCESS_SAMPLES))


class Answer(ctypes.Structure):
    """`struct answer`."""

    _fields_ = (
        ("function", c_char * 56),
        ("selector", c_uint32),
        ("unused", c_uint32),
        ("value", c_uint64 * MAX_VALUES),
    )


class AnswerList(ctypes.Structure):
    """`struct answer_list`."""

    _fields_ = (("count", c_uint64), ("answer", Answer * MAX_ANSWERS))


class GpuEvent(ctypes.Structure):
    """`struct gpu_event`."""

    _fields_ = (("gpu", c_uint32), ("xid", c_uint32), ("gpu_instance_id", c_uint32), ("unused", c_uint32))


class EventLog(ctypes.Structure):
    """`struct event_log`."""

    _fields_ = (("count", c_uint64), ("event", GpuEvent * MAX_EVENTS))


class DriverFault(ctypes.Structure):
    """`struct fault`."""

    _fields_ = (("function", c_char * 56), ("gpu", c_int32), ("code", c_int32), ("hang", c_uint64))


class FaultList(ctypes.Structure):
    """`struct fault_list`."""

    _fields_ = (("count", c_uint64), ("fault", DriverFault * MAX_FAULTS))


def _cell(value: type[ctypes.Structure]) -> type[ctypes.Structure]:
    """`CELL(value)`: two copies, and the number of the write."""
    fields = (("sequence", c_uint64), ("copy", value * 2))
    return type(f"{value.__name__}Cell", (ctypes.Structure,), {"_fields_": fields})


FaultCell = _cell(FaultList)
EventCell = _cell(EventLog)
StateCell = _cell(State)
ProcessCell = _cell(ProcessList)
AnswerCell = _cell(AnswerList)
UtilizationCell = _cell(UtilizationBuffer)
ProcessSampleCell = _cell(ProcessBuffer)


class GpuCells(ctypes.Structure):
    """An element of `board.gpu`."""

    _fields_ = (
        ("state", StateCell),
        ("processes", ProcessCell),
        ("answers", AnswerCell),
        ("utilization", UtilizationCell),
        ("process_samples", ProcessSampleCell),
    )


class Layout(ctypes.Structure):
    """`struct board`, the whole file."""

    _fields_ = (
        ("header", Header),
        ("identity", Identity * MAX_GPUS),
        ("faults", FaultCell),
        ("events", EventCell),
        ("gpu", GpuCells * MAX_GPUS),
    )
