"""From records to the structures that a board's file holds. Pure."""

import ctypes
import itertools
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence

from simulator.gpus import layout, library
from simulator.gpus.cards import Card
from simulator.gpus.records import BusyCounter, Gpu, Instance, Process, ProcessSample
from simulator.spec import NodeSpec

# Of an HGX board, then their neighbours: what matters is that no two GPUs of a node share one.
_PCI_BUSES = bytes.fromhex("1b 43 52 61 9d c3 d1 df 1c 44 53 62 9e c4 d2 e0")
_SERIAL_DIGITS = 13
NO_INSTANCE = 2**32 - 1
"""The instance of what happens on a whole GPU."""


def header(node: NodeSpec) -> layout.Header:
    """What all GPUs of a node share."""
    return layout.Header(
        magic=layout.MAGIC,
        layout_version=library.layout_version(),
        gpu_count=len(node.gpus),
        cuda_version=node.cuda_version,
        driver_version=node.driver_version.encode(),
    )


def identity(card: Card, gpu_uuid: str, index: int) -> layout.Identity:
    """What never changes of the GPU at `index`."""
    major, minor = card.compute_capability
    return layout.Identity(
        name=card.name.encode(),
        uuid=gpu_uuid.encode(),
        serial=_serial(gpu_uuid).encode(),
        vbios=card.vbios.encode(),
        memory_bytes=card.memory_bytes,
        reserved_bytes=card.reserved_bytes,
        architecture=card.architecture,
        compute_major=major,
        compute_minor=minor,
        pci_bus=_PCI_BUSES[index],
        pci_device_id=card.pci_device_id,
        pci_subsystem_id=card.pci_subsystem_id,
        min_power_mw=_milli(card.min_power_w),
        max_power_mw=_milli(card.max_power_w),
        max_sm_clock_mhz=card.max_sm_clock_mhz,
        max_mem_clock_mhz=card.max_mem_clock_mhz,
        memory_temperature=card.memory_temperature,
        mig_capable=bool(card.mig_profiles),
    )


def state(gpu: Gpu) -> layout.State:
    """What a GPU shows now."""
    reading = gpu.reading
    return layout.State(
        memory_used_bytes=reading.memory_used_bytes,
        energy_mj=_milli(reading.energy_j),
        gpu_util_percent=reading.gpu_util_percent,
        memory_util_percent=reading.memory_util_percent,
        power_mw=_milli(reading.power_w),
        sm_clock_mhz=reading.sm_clock_mhz,
        mem_clock_mhz=reading.mem_clock_mhz,
        temperature_c=reading.temperature_c,
        memory_temperature_c=reading.memory_temperature_c,
        mig_generation=gpu.generation,
        mig_count=len(gpu.instances),
        busy=_counter(gpu.busy),
        mig=(layout.MigInstance * layout.MAX_INSTANCES)(*map(_instance, gpu.instances)),
    )


def process_list(processes: Sequence[Process]) -> layout.ProcessList:
    """The processes on a GPU."""
    rows = [
        layout.GpuProcess(
            memory_used_bytes=process.memory_used_bytes,
            pid=process.pid,
            kind=process.kind.value,
            instance=layout.WHOLE_GPU if process.instance is None else process.instance,
        )
        for process in processes
    ]
    return layout.ProcessList(count=len(rows), process=(layout.GpuProcess * layout.MAX_PROCESSES)(*rows))


def utilization_buffer(samples: Sequence[tuple[int, int]]) -> layout.UtilizationBuffer:
    """A GPU's utilization samples, (at_us, percent) each, of a card that keeps such."""
    rows = [layout.UtilizationSample(at_us, percent) for at_us, percent in samples]
    return layout.UtilizationBuffer(
        supported=1, count=len(rows), sample=(layout.UtilizationSample * layout.MAX_SAMPLES)(*rows)
    )


def process_buffer(samples: Sequence[ProcessSample]) -> layout.ProcessBuffer:
    """The samples of a GPU's processes."""
    rows = (layout.ProcessUtilization * layout.MAX_PROCESS_SAMPLES)()
    for row, sample in zip(rows, samples, strict=False):
        row.at_us = sample.at_us
        row.pid = sample.pid
        row.sm_percent = sample.sm_percent
        row.memory_percent = sample.memory_percent
        row.encoder_percent = sample.encoder_percent
        row.decoder_percent = sample.decoder_percent
    return layout.ProcessBuffer(count=len(samples), sample=rows)


def answer_list(answers: Mapping[tuple[str, int], Sequence[int]]) -> layout.AnswerList:
    """What functions return, by function and selector."""
    rows = [
        layout.Answer(
            function=function.encode(),
            selector=selector,
            value=(ctypes.c_uint64 * layout.MAX_VALUES)(*values),
        )
        for (function, selector), values in answers.items()
    ]
    return layout.AnswerList(count=len(rows), answer=(layout.Answer * layout.MAX_ANSWERS)(*rows))


def event_log(events: Sequence[layout.GpuEvent]) -> layout.EventLog:
    """The last events, each where its number says."""
    log = layout.EventLog(count=len(events))
    for number in range(max(0, len(events) - layout.MAX_EVENTS), len(events)):
        log.event[number % layout.MAX_EVENTS] = events[number]
    return log


def fault_list(faults: Collection[layout.DriverFault]) -> layout.FaultList:
    """What fails on a node; the first that applies to a call counts."""
    return layout.FaultList(count=len(faults), fault=(layout.DriverFault * layout.MAX_FAULTS)(*faults))


def _instance(instance: Instance) -> layout.MigInstance:
    profile = instance.profile
    return layout.MigInstance(
        uuid=instance.uuid.encode(),
        profile=profile.name.encode(),
        memory_bytes=profile.memory_bytes,
        memory_used_bytes=instance.memory_used_bytes,
        gpu_instance_id=instance.gpu_instance_id,
        slices=profile.slices,
        multiprocessors=profile.multiprocessors,
        copy_engines=profile.copy_engines,
        decoders=profile.decoders,
        jpegs=profile.jpegs,
        ofas=profile.ofas,
        activity_percent=instance.activity_percent,
        profile_id=profile.profile_id,
        start=instance.start,
        size=profile.memory_slices,
        busy=_counter(instance.busy),
    )


def _counter(counter: BusyCounter | None) -> layout.BusyCount:
    return layout.BusyCount() if counter is None else layout.BusyCount(counter.busy_us, counter.at_us)


def _serial(gpu_uuid: str) -> str:
    number = uuid.UUID(gpu_uuid.removeprefix("GPU-")).int % 10**_SERIAL_DIGITS
    return f"{number:0{_SERIAL_DIGITS}}"


def _milli(amount: float) -> int:
    return round(amount * 1000)


_WHOLE_PERCENT = 100


def sample_problems(utilization: Sequence[tuple[int, int]], processes: Sequence[ProcessSample]) -> list[str]:
    """Why no GPU keeps these samples, (at_us, percent) and those of its processes, in words; nothing if one could."""
    return [*_of_the_gpu(utilization), *_of_processes(processes)]


def _of_the_gpu(samples: Sequence[tuple[int, int]]) -> Iterator[str]:
    if len(samples) > layout.MAX_SAMPLES:
        yield f"{len(samples)} utilization samples; a board holds {layout.MAX_SAMPLES}"
    for (before, _), (at_us, _) in itertools.pairwise(samples):
        if at_us <= before:
            yield f"the utilization sample at {at_us} us comes after that at {before} us"
    for at_us, percent in samples:
        if not 0 <= percent <= _WHOLE_PERCENT:
            yield f"the utilization at {at_us} us is {percent}, not within 0 and {_WHOLE_PERCENT}"


def _of_processes(samples: Sequence[ProcessSample]) -> Iterator[str]:
    if len(samples) > layout.MAX_PROCESS_SAMPLES:
        yield f"{len(samples)} samples of processes; a board holds {layout.MAX_PROCESS_SAMPLES}"
    for before, sample in itertools.pairwise(samples):
        if sample.at_us < before.at_us:
            yield (
                f"the sample of process {sample.pid} at {sample.at_us} us comes after that of process {before.pid} "
                f"at {before.at_us} us"
            )
    for sample in samples:
        shares = (
            sample.sm_percent,
            sample.memory_percent,
            sample.encoder_percent,
            sample.decoder_percent,
        )
        if min(shares) < 0 or max(shares) > _WHOLE_PERCENT:
            yield f"{sample}: percentages are not all within 0 and {_WHOLE_PERCENT}"
