"""Reads a device's recent activity from NVML: its sample buffers and processes, without impossible values.

Drivers have returned process samples with shares above 100 % and wrong times, which nvtop filters too. Impossible
samples are dropped, or marked invalid if a period would be missing.
"""

import contextlib
import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pynvml

from exporter.attribution.records import DeviceProcess, ProcessSample
from exporter.nvml.codes import NO_VALUE

_MOST_PERCENT = 100
# nvmlProcessUtilizationInfo_t (timeStamp, pid, smUtil and five more), and nvmlProcessUtilizationSample_t (pid,
# timeStamp, smUtil and three more). A sample of a shared GPU has thousands of them, and reading one field by pynvml's
# name takes longer than this takes for all.
_PROCESS_INFO = struct.Struct("@QIIIII")
_PROCESS_SAMPLE = struct.Struct("@IQIIII")
_UNKNOWN = (_MOST_PERCENT + 1,) * 3

_ATTEMPTS = 3  # the list may grow between the calls for its length and for its content


class UtilizationSample(NamedTuple):
    """Busy time of a device in the sampling period that ended at `at_us`; None if the value is invalid."""

    at_us: int
    percent: int | None


def utilization_samples(handle: Any, since_us: int) -> list[UtilizationSample]:  # noqa: ANN401 - pynvml's handles have no type
    """The samples after `since_us` in ascending order."""
    try:
        _, samples = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, since_us)
    except pynvml.NVMLError_NotFound:
        return []
    found = {
        int(sample.timeStamp): int(sample.sampleValue.uiVal)
        for sample in samples
        if sample.timeStamp > since_us
    }
    return [
        UtilizationSample(at_us, percent if percent <= _MOST_PERCENT else None)
        for at_us, percent in sorted(found.items())
    ]


def process_samples(handle: Any, since_us: int) -> list[ProcessSample]:  # noqa: ANN401
    """The processes' samples after `since_us`.

    The call of driver 550 comes first: the older one is empty on Blackwell. Where the newer one fails or is empty, the
    older one decides.
    """
    found: list[tuple[int, ...]] = []
    with contextlib.suppress(pynvml.NVMLError):
        infos = _retry_until_it_fits(lambda: pynvml.nvmlDeviceGetProcessesUtilizationInfo(handle, since_us))
        found = [(pid, at_us, *percents) for at_us, pid, *percents in map(_PROCESS_INFO.unpack_from, infos)]
    if not found:
        found = _older_process_samples(handle, since_us)
    return [
        ProcessSample(at_us, pid, percent, (memory, encoder, decoder))
        if percent <= _MOST_PERCENT
        else ProcessSample(at_us, pid, 0, _UNKNOWN)
        for pid, at_us, percent, memory, encoder, decoder in found
        if at_us > since_us and pid
    ]


def _older_process_samples(handle: Any, since_us: int) -> list[tuple[int, ...]]:  # noqa: ANN401
    try:
        samples = _retry_until_it_fits(lambda: pynvml.nvmlDeviceGetProcessUtilization(handle, since_us))
    except pynvml.NVMLError as error:
        # pynvml raises NVML_SUCCESS if there is none
        if error.value in {pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND}:
            return []
        raise
    return list(map(_PROCESS_SAMPLE.unpack_from, samples))


def shows_work(samples: Iterable[ProcessSample]) -> bool:
    """Whether some process is said to have worked, or to have done what no process can."""
    return any(sample.percent or sample.engines == _UNKNOWN for sample in samples)


def energy_mj(handle: Any) -> int:  # noqa: ANN401
    """Energy used since the driver was loaded, in millijoules."""
    return _available(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))


def memory_used_bytes(handle: Any) -> int:  # noqa: ANN401
    """Memory in use in bytes, without the driver's own since 510."""
    try:
        return _available(pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used)
    except pynvml.NVMLError_FunctionNotFound:
        return _available(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def _available(value: int) -> int:
    if value in NO_VALUE:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_DATA)
    return int(value)


_LISTS: tuple[tuple[Callable[[Any], list[Any]], Callable[[Any], list[Any]]], ...] = (
    (pynvml.nvmlDeviceGetComputeRunningProcesses_v3, pynvml.nvmlDeviceGetComputeRunningProcesses_v2),
    (pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3, pynvml.nvmlDeviceGetGraphicsRunningProcesses_v2),
    (pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v2),
)
"""Each NVML function, and its name before driver 510."""


def processes(handle: Any) -> list[DeviceProcess]:  # noqa: ANN401
    """The processes with a compute, graphics or MPS context on the device, without duplicates."""
    found: dict[int, int | None] = {}
    for position, (newer, older) in enumerate(_LISTS):
        try:
            listed = _listed(newer, older, handle)
        except pynvml.NVMLError_NotSupported:
            if position == 0:
                raise
            continue  # a MIG instance has no graphics
        for process in listed:
            memory = None if process.usedGpuMemory is None else int(process.usedGpuMemory)
            before = found.get(process.pid, 0)
            found[process.pid] = None if memory is None or before is None else max(memory, before)
    return [DeviceProcess(pid, memory) for pid, memory in found.items()]


def _listed(newer: Callable[[Any], list[Any]], older: Callable[[Any], list[Any]], handle: Any) -> list[Any]:  # noqa: ANN401
    try:
        return _retry_until_it_fits(lambda: newer(handle))
    except pynvml.NVMLError_FunctionNotFound:
        return _retry_until_it_fits(lambda: older(handle))


def _retry_until_it_fits(call: Callable[[], list[Any]]) -> list[Any]:
    for _ in range(_ATTEMPTS - 1):
        try:
            return call()
        except pynvml.NVMLError_InsufficientSize:
            continue
    return call()
