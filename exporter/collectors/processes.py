"""Usage of a device: counters, so that the mean over any time is right at any scrape interval.

For the device, for each container that uses or holds it, and for unknown owners; the parts add up to the total.
The attributor collects it between the cycles.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from exporter.attribution.records import DeviceUsage, Usage, UsagePart
from exporter.collectors import Point, Row
from exporter.errors import Reason
from exporter.model import Kind, Metric, MetricName, MetricSet
from exporter.nvml.devices import OpenDevice

_BUSY = "nvmlDeviceGetSamples(1), else nvmlGpmMetricsGet(1), else nvmlDeviceGetUtilizationRates().gpu"
_BUSY_OF_PROCESSES = "nvmlDeviceGetProcessesUtilizationInfo, /proc"
_ENERGY = "nvmlDeviceGetTotalEnergyConsumption"
_PROCESSES = "nvmlDeviceGet{Compute,Graphics,MPSCompute}RunningProcesses, /proc"
_Value: TypeAlias = float | None
_Read: TypeAlias = Callable[[OpenDevice], Sequence[Point]]


def _row(name: str, unit: str, help_: str, source: str, read: _Read, *, kind: Kind = Kind.COUNTER) -> Row:
    spelling = MetricName(name, unit)
    metric = Metric(spelling, spelling, kind, help=help_, source=source, within=MetricSet.DEFAULT)
    return Row(metric, read, per_instance=True)


def _engine_rows(number: int, name: str, work: str) -> tuple[Row, Row]:
    """The time in which an engine worked, by container and without a known one."""

    def seconds(use: Usage) -> _Value:
        return None if use.engines_s is None else use.engines_s[number]

    def row(whose: str, words: str, read: _Read) -> Row:
        spelling = MetricName(f"gpu_{whose}_{name}_seconds_total", "s")
        within = MetricSet.FULL if number else MetricSet.DEFAULT
        metric = Metric(
            spelling, spelling, Kind.COUNTER, f"{work} {words}", _BUSY_OF_PROCESSES, within=within
        )
        return Row(metric, read, per_instance=True)

    return (
        row("pod", "for a container", _of_pods(UsagePart.BUSY, UsagePart.SHARES, get=seconds)),
        row("unattributed", "without a known pod, by reason", _of_rest(UsagePart.BUSY, get=seconds)),
    )


def _of_device(*parts: UsagePart, get: Callable[[DeviceUsage], _Value]) -> _Read:
    def points(entry: DeviceUsage) -> Iterable[Point]:
        value = get(entry)
        return [] if value is None else [Point(value, {})]

    return _reader(parts, points)


def _of_pods(*parts: UsagePart, get: Callable[[Usage], _Value]) -> _Read:
    def points(entry: DeviceUsage) -> Iterable[Point]:
        for holder in sorted(entry.containers, key=lambda key: (key.namespace, key.pod, key.container)):
            value = get(entry.containers[holder])
            if value is not None:
                yield Point(
                    value, {"namespace": holder.namespace, "pod": holder.pod, "container": holder.container}
                )

    return _reader(parts, points)


def _of_rest(*parts: UsagePart, get: Callable[[Usage], _Value]) -> _Read:
    def points(entry: DeviceUsage) -> Iterable[Point]:
        for reason, use in sorted(entry.unattributed.items()):
            if (value := get(use)) is not None:
                yield Point(value, {"reason": reason})

    return _reader(parts, points)


def _reader(parts: Sequence[UsagePart], points: Callable[[DeviceUsage], Iterable[Point]]) -> _Read:
    """Read `points` unless one of the parts failed; a part that the device does not support is only absent."""

    def read(device: OpenDevice) -> Sequence[Point]:
        entry = device.account()
        for part in parts:
            error = entry.errors.get(part)
            if error is not None and error.reason is not Reason.NOT_SUPPORTED:
                raise error.with_traceback(None)  # each row raises it once
        return list(points(entry))

    return read


def _source(device: OpenDevice) -> Sequence[Point]:
    entry = device.account()
    if entry.source is None:
        return []
    shares = {True: "exact", False: "proportional", None: "none"}[entry.is_exact]
    return [Point(1, {"source": entry.source.value, "shares": shares})]


ROWS = (
    _row(
        "gpu_busy_seconds_total",
        "s",
        "Busy time of the device",
        _BUSY,
        _of_device(UsagePart.BUSY, get=lambda entry: entry.total.busy_s),
    ),
    _row(
        "gpu_busy_source_info",
        "",
        "Source of busy time (samples, gpm, ticks), accuracy of shares (exact, proportional, none); always 1",
        _BUSY,
        _source,
        kind=Kind.GAUGE,
    ),
    _row(
        "gpu_busy_gaps_total",
        "",
        "Periods with lost samples, whose busy time is unknown",
        _BUSY,
        _of_device(UsagePart.BUSY, get=lambda entry: entry.gaps if entry.source else None),
    ),
    _row(
        "gpu_busy_gap_seconds_total",
        "s",
        "Total time of these periods",
        _BUSY,
        _of_device(UsagePart.BUSY, get=lambda entry: entry.gap_s if entry.source else None),
    ),
    _row(
        "gpu_pod_busy_seconds_total",
        "s",
        "Busy time of the device for a container",
        _BUSY_OF_PROCESSES,
        _of_pods(UsagePart.BUSY, UsagePart.SHARES, get=lambda use: use.busy_s),
    ),
    _row(
        "gpu_pod_last_active_timestamp_seconds",
        "s",
        "Time of the last work for a container since the exporter started, in Unix time",
        _BUSY_OF_PROCESSES,
        _of_pods(UsagePart.BUSY, UsagePart.SHARES, get=lambda use: use.last_active_s),
        kind=Kind.GAUGE,
    ),
    _row(
        "gpu_pod_energy_joules_total",
        "J",
        "Energy used during busy time for a container",
        _ENERGY,
        _of_pods(UsagePart.BUSY, UsagePart.SHARES, UsagePart.ENERGY, get=lambda use: use.energy_j),
    ),
    _row(
        "gpu_idle_energy_joules_total",
        "J",
        "Energy used during idle time",
        _ENERGY,
        _of_device(UsagePart.BUSY, UsagePart.ENERGY, get=lambda entry: entry.idle_energy_j),
    ),
    _row(
        "gpu_pod_memory_used_bytes",
        "bytes",
        "Device memory held by a container's processes",
        _PROCESSES,
        _of_pods(UsagePart.PROCESSES, get=lambda use: use.memory_bytes),
        kind=Kind.GAUGE,
    ),
    _row(
        "gpu_pod_memory_used_byte_seconds_total",
        "byte seconds",
        "Device memory held by a container's processes, integrated over time",
        _PROCESSES,
        _of_pods(UsagePart.PROCESSES, get=lambda use: use.memory_byte_s),
    ),
    _row(
        "gpu_pod_processes",
        "",
        "Number of a container's processes on the device",
        _PROCESSES,
        _of_pods(UsagePart.PROCESSES, get=lambda use: use.processes),
        kind=Kind.GAUGE,
    ),
    _row(
        "gpu_unattributed_busy_seconds_total",
        "s",
        "Busy time without a known pod, by reason",
        _BUSY_OF_PROCESSES,
        _of_rest(UsagePart.BUSY, get=lambda use: use.busy_s),
    ),
    *_engine_rows(0, "memory_busy", "Busy time of the memory bus"),
    *_engine_rows(1, "encoder_busy", "Busy time of encoders"),
    *_engine_rows(2, "decoder_busy", "Busy time of decoders"),
    _row(
        "gpu_unattributed_energy_joules_total",
        "J",
        "Energy used during busy time without a known pod, by reason",
        _ENERGY,
        _of_rest(UsagePart.BUSY, UsagePart.ENERGY, get=lambda use: use.energy_j),
    ),
    _row(
        "gpu_unattributed_memory_used_bytes",
        "bytes",
        "Device memory used without a known pod, by reason",
        _PROCESSES,
        _of_rest(UsagePart.PROCESSES, get=lambda use: use.memory_bytes),
        kind=Kind.GAUGE,
    ),
    _row(
        "gpu_unattributed_processes",
        "",
        "Number of processes without a known pod, by reason",
        _PROCESSES,
        _of_rest(UsagePart.PROCESSES, get=lambda use: use.processes),
        kind=Kind.GAUGE,
    ),
)
