"""What is shared without a common compiler lies where all sides think it lies."""

import ctypes
import dataclasses
from collections.abc import Mapping

import pynvml
import pytest

from simulator.gpus import layout, library

pytestmark = pytest.mark.driver


class _Row(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("offset", ctypes.c_uint64), ("size", ctypes.c_uint64))


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    offset: int
    size: int


BOARD = {
    "board_header": layout.Header,
    "gpu_identity": layout.Identity,
    "mig_instance": layout.MigInstance,
    "gpu_state": layout.State,
    "gpu_process": layout.GpuProcess,
    "process_list": layout.ProcessList,
    "busy_counter": layout.BusyCount,
    "utilization_sample": layout.UtilizationSample,
    "utilization_buffer": layout.UtilizationBuffer,
    "process_sample": layout.ProcessUtilization,
    "process_buffer": layout.ProcessBuffer,
    "gpu_event": layout.GpuEvent,
    "event_log": layout.EventLog,
    "fault": layout.DriverFault,
    "fault_list": layout.FaultList,
    "board": layout.Layout,
}
NVML = {
    "nvmlUtilization_t": pynvml.c_nvmlUtilization_t,
    "nvmlMemory_t": pynvml.c_nvmlMemory_t,
    "nvmlMemory_v2_t": pynvml.c_nvmlMemory_v2_t,
    "nvmlTemperature_v1_t": pynvml.c_nvmlTemperature_v1_t,
    "nvmlPciInfo_t": pynvml.nvmlPciInfo_t,
    "nvmlFieldValue_t": pynvml.c_nvmlFieldValue_t,
    "nvmlDeviceAttributes_t": pynvml.c_nvmlDeviceAttributes,
    "nvmlProcessInfo_t": pynvml.c_nvmlProcessInfo_v3_t,
    "nvmlGpmSupport_t": pynvml.c_nvmlGpmSupport_t,
    "nvmlSample_t": pynvml.c_nvmlSample_t,
    "nvmlProcessUtilizationSample_t": pynvml.c_nvmlProcessUtilizationSample_t,
    "nvmlProcessUtilizationInfo_t": pynvml.c_nvmlProcessUtilizationInfo_v1_t,
    "nvmlProcessesUtilizationInfo_t": pynvml.c_nvmlProcessesUtilizationInfo_v1_t,
    "nvmlEventData_t": pynvml.c_nvmlEventData_t,
    "nvmlGpuInstanceInfo_t": pynvml.c_nvmlGpuInstanceInfo_t,
}


@pytest.fixture(scope="module")
def compiled() -> Mapping[str, _Place]:
    """Where the C compiler put everything."""
    table = library.load().simulator_layout
    table.restype = ctypes.POINTER(_Row)
    count = ctypes.c_uint64()
    rows = table(ctypes.byref(count))
    return {rows[i].name.decode(): _Place(rows[i].offset, rows[i].size) for i in range(count.value)}


@pytest.mark.parametrize(("name", "structure"), [*BOARD.items(), *NVML.items()])
def test_structures_match_c_and_pynvml_layouts(
    compiled: Mapping[str, _Place], name: str, structure: type[ctypes.Structure]
) -> None:
    """A structure has the same size, members and offsets for C, for the board's writer and for pynvml."""
    assert compiled[name].size == ctypes.sizeof(structure)
    members = {
        row.removeprefix(f"{name}."): place
        for row, place in compiled.items()
        if row.startswith(f"{name}.") and row.count(".") == 1
    }
    mirrored = {field[0]: getattr(structure, field[0]) for field in structure._fields_}
    assert members == {member: _Place(place.offset, place.size) for member, place in mirrored.items()}


def test_cells_are_at_offsets_that_readers_use(compiled: Mapping[str, _Place]) -> None:
    """The cells that the writer publishes to lie where the readers read."""
    faults, gpu = layout.Layout.faults, layout.Layout.gpu
    state, processes = layout.GpuCells.state, layout.GpuCells.processes
    utilization, samples = layout.GpuCells.utilization, layout.GpuCells.process_samples
    assert compiled["board.faults.sequence"].offset == faults.offset
    assert compiled["board.faults.copy"].offset == faults.offset + layout.FaultCell.copy.offset
    assert compiled["board.events.sequence"].offset == layout.Layout.events.offset
    assert compiled["board.events.copy"].offset == layout.Layout.events.offset + layout.EventCell.copy.offset
    assert compiled["board.gpu[0].state.sequence"].offset == gpu.offset + state.offset
    assert compiled["board.gpu[0].processes.sequence"].offset == gpu.offset + processes.offset
    assert compiled["board.gpu[0].utilization.sequence"].offset == gpu.offset + utilization.offset
    assert compiled["board.gpu[0].process_samples.sequence"].offset == gpu.offset + samples.offset
    assert (
        compiled["board.gpu[0].process_samples.copy"].offset
        == gpu.offset + samples.offset + layout.ProcessSampleCell.copy.offset
    )
    assert compiled["board.gpu[1].state.sequence"].offset == gpu.offset + ctypes.sizeof(layout.GpuCells)
