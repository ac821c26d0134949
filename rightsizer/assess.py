"""Usage of each device → what is wrong with a workload, with the evidence. Pure; policy has no say here.

A workload is judged as a whole: one busy device of one replica keeps it. Whatever is missing, stale or cannot be makes
the finding unknown, unless something was measured busy: data can only be missing in the dangerous direction.
"""

import dataclasses
import datetime
import math
from collections.abc import Callable, Iterator

from rightsizer.config import format_duration
from rightsizer.model import Finding, FindingName, Pod, Usage, Usages, Verdict, Workload
from rightsizer.policy.document import Thresholds

CONTEXT_BYTES = 1 << 30
"""More framebuffer than this is held by a loaded model or data set; a bare CUDA context takes about half of it."""

GIB = 1 << 30

FEWEST_SAMPLES = 18
"""Fewer in the window, and one more or less decides about the coverage. 5m at the usual 15 s holds 19 to 21."""
AIMED_SAMPLES = 20
"""What a window is proposed for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """A workload's usages beside the thresholds that judge them."""

    workload: Workload
    held: tuple[tuple[Pod, tuple[Usage, ...]], ...]
    thresholds: Thresholds
    at: datetime.datetime

    @property
    def devices(self) -> list[Usage]:
        """Every usage of every pod."""
        return [usage for _, usages in self.held for usage in usages]

    def is_busy(self, usage: Usage) -> bool:
        """Whether activity was measured above the threshold; unknown activity is neither busy nor idle."""
        peak = usage.activity_peak
        return peak is not None and peak * 100 > self.thresholds.maxUtilizationPercent

    def draws_power(self, usage: Usage) -> bool | None:
        """Whether the board drew more than an idle one; None where that cannot be said."""
        limit = self.thresholds.idle_power_w(usage.device.model)
        if limit is None or usage.power_peak_w is None:
            return None
        return usage.power_peak_w > limit

    def moves_memory(self, usage: Usage) -> bool | None:
        """Whether the memory bus was active; None where that cannot be said."""
        if usage.traffic_peak is None:
            return None
        return usage.traffic_peak * 100 > self.thresholds.maxMemoryTrafficPercent


def assess(workload: Workload, usages: Usages, thresholds: Thresholds, at: datetime.datetime) -> Finding:
    """Judge one workload by what was measured in the window that ends at `at`."""
    held = tuple(
        (pod, tuple(usages.get((pod.ref.namespace, pod.ref.name), ()))) for pod in workload.pods if pod.holds
    )
    evidence = Evidence(workload, held, thresholds, at)
    busy = [usage for usage in evidence.devices if evidence.is_busy(usage)]
    if busy and not all(evidence.draws_power(usage) is False for usage in busy):
        return _in_use(evidence)
    for name, doubt in DOUBTS:
        words = tuple(dict.fromkeys(doubt(evidence)))
        if words:
            return _finding(evidence, name, Verdict.UNKNOWN, words)
    return _idle(evidence)


def _uncountable(evidence: Evidence) -> Iterator[str]:
    for pod in evidence.workload.pods:
        for amount in pod.unreadable:
            yield f"pod {pod.ref.name} asks for {amount}, which is not a whole number of devices"


def _not_running(evidence: Evidence) -> Iterator[str]:
    if not evidence.held:
        yield "none of its pods holds a GPU now"
    for pod, _ in evidence.held:
        if pod.phase != "Running" or pod.started is None:
            yield f"pod {pod.ref.name} is {pod.phase}, not running"
        elif pod.is_terminating:
            yield f"pod {pod.ref.name} is being deleted"
        elif not pod.is_ready:
            yield f"pod {pod.ref.name} runs, but is not ready"


def _too_young(evidence: Evidence) -> Iterator[str]:
    needed = evidence.thresholds.window + evidence.thresholds.grace
    for pod, _ in evidence.held:
        age = evidence.at - (pod.started or evidence.at)
        if age < needed:
            yield (
                f"pod {pod.ref.name} has run for {_time(age)}; "
                f"nothing younger than {_time(needed)} (window and grace) is judged idle"
            )


def _invalid(evidence: Evidence) -> Iterator[str]:
    for pod, usages in evidence.held:
        for usage in usages:
            if usage.invalid:
                yield f"pod {pod.ref.name}: impossible values of {', '.join(usage.invalid)} on {_device(usage)}"


def _ambiguous(evidence: Evidence) -> Iterator[str]:
    """A pod keeps its devices for life, so more of them are another pod's of that name, here or in another cluster."""
    for pod, usages in evidence.held:
        if len(usages) > pod.devices:
            yield (
                f"pod {pod.ref.name} holds {pod.devices} GPUs, but series name it on {len(usages)}: "
                "some are another pod's of that name"
            )


def _missing(evidence: Evidence) -> Iterator[str]:
    for pod, usages in evidence.held:
        if not usages:
            yield f"no GPU series names pod {pod.ref.name}"
        elif len(usages) < pod.devices and pod.is_shared:
            yield (
                f"pod {pod.ref.name} holds {pod.devices} shares, of one GPU or of several; "
                f"series name it on {len(usages)}, and whether one is missing cannot be told"
            )
        elif len(usages) < pod.devices:
            yield f"pod {pod.ref.name} holds {pod.devices} GPUs, but series name it on {len(usages)} only"


def _unmeasurable(evidence: Evidence) -> Iterator[str]:
    for pod, usages in evidence.held:
        for usage in usages:
            if usage.activity_peak is None:
                yield f"pod {pod.ref.name}: no activity is measured on {_device(usage)}; memory held is not activity"
            elif evidence.draws_power(usage) is None and evidence.moves_memory(usage) is None:
                yield f"pod {pod.ref.name}: neither power nor memory traffic can be judged on {_device(usage)}"


def _too_short(evidence: Evidence) -> Iterator[str]:
    window_s = evidence.thresholds.window.total_seconds()
    for usage in evidence.devices:
        samples = usage.samples_expected
        if samples is not None and samples < FEWEST_SAMPLES:
            interval_s = window_s / max(samples - 1, 1)
            needed = format_duration(math.ceil(interval_s * AIMED_SAMPLES / 60) * 60)
            yield (
                f"the window of {_time(evidence.thresholds.window)} holds {samples} samples, too few to judge by: "
                f"make it {needed} or longer, or scrape more often"
            )


def _stale(evidence: Evidence) -> Iterator[str]:
    for pod, usages in evidence.held:
        if any(not usage.is_fresh for usage in usages):
            yield f"pod {pod.ref.name}: samples have stopped arriving"


def _partial(evidence: Evidence) -> Iterator[str]:
    needed = evidence.thresholds.minCoverage
    for pod, usages in evidence.held:
        lowest = min(usage.coverage for usage in usages)
        if lowest < needed:
            yield (
                f"pod {pod.ref.name}: samples cover {lowest:.0%} of the last {_time(evidence.thresholds.window)}, "
                f"{needed:.0%} are needed"
            )


def _conflicting(evidence: Evidence) -> Iterator[str]:
    for pod, usages in evidence.held:
        for usage in usages:
            if evidence.is_busy(usage):
                yield (
                    f"pod {pod.ref.name}: {_percent(usage.activity_peak)} busy on {_device(usage)} "
                    f"at no more than {usage.power_peak_w:.0f} W, an idle board's power: perhaps a hung collective"
                )
            elif evidence.draws_power(usage):
                yield f"pod {pod.ref.name}: no activity on {_device(usage)}, but {usage.power_peak_w:.0f} W were drawn"
            elif evidence.moves_memory(usage):
                yield (
                    f"pod {pod.ref.name}: no activity on {_device(usage)}, "
                    f"but memory traffic reached {_percent(usage.traffic_peak)}"
                )


DOUBTS: tuple[tuple[FindingName, Callable[[Evidence], Iterator[str]]], ...] = (
    # In this order a person would ask: can its GPUs be counted, is it there, is it old enough, can the numbers be,
    # whose are they, are they all there, do they say what is asked, are they enough, current, complete, do they agree?
    # Later ones rely on earlier ones.
    (FindingName.INVALID_DATA, _uncountable),
    (FindingName.NOT_RUNNING, _not_running),
    (FindingName.TOO_YOUNG, _too_young),
    (FindingName.INVALID_DATA, _invalid),
    (FindingName.AMBIGUOUS_DATA, _ambiguous),
    (FindingName.NO_DATA, _missing),
    (FindingName.UNMEASURABLE, _unmeasurable),
    (FindingName.WINDOW_TOO_SHORT, _too_short),
    (FindingName.STALE_DATA, _stale),
    (FindingName.PARTIAL_DATA, _partial),
    (FindingName.CONFLICTING_SIGNALS, _conflicting),
)


def _in_use(evidence: Evidence) -> Finding:
    """At least one device worked: the workload stays, whatever is not known about the rest."""
    busy_pods = sum(any(map(evidence.is_busy, usages)) for _, usages in evidence.held)
    busy = sum(map(evidence.is_busy, evidence.devices))
    if busy_pods < len(evidence.held):
        name = FindingName.TOO_MANY_REPLICAS
        words = (
            f"{busy_pods} of {len(evidence.held)} pods worked in the last {_time(evidence.thresholds.window)}"
        )
    elif busy < evidence.workload.gpus and not _is_shared(evidence):
        name = FindingName.TOO_MANY_GPUS
        words = (
            f"{busy} of {evidence.workload.gpus} GPUs worked in the last {_time(evidence.thresholds.window)}"
        )
    else:
        name = FindingName.BUSY
        words = f"{_all_of(evidence.workload.gpus)} worked in the last {_time(evidence.thresholds.window)}"
    shared = ("it shares its GPU, whose activity counts for everyone on it",) if _is_shared(evidence) else ()
    return _finding(evidence, name, Verdict.KEEP, (words, *shared, _levels(evidence)))


def _idle(evidence: Evidence) -> Finding:
    memory = max((usage.memory_peak_bytes or 0.0 for usage in evidence.devices), default=0.0)
    name = FindingName.PARKED if memory > CONTEXT_BYTES else FindingName.IDLE
    limit = f"{evidence.thresholds.maxUtilizationPercent:g}%"
    span = _time(evidence.thresholds.window)
    words = f"{_none_of(evidence.workload.gpus)} above {limit} at any time in the last {span}"
    return _finding(evidence, name, Verdict.ACT, (words, _levels(evidence)))


def _is_shared(evidence: Evidence) -> bool:
    return any(pod.is_shared for pod, _ in evidence.held)


def _none_of(gpus: int) -> str:
    return "its GPU was not" if gpus == 1 else f"none of its {gpus} GPUs was"


def _all_of(gpus: int) -> str:
    return "its GPU" if gpus == 1 else f"all its {gpus} GPUs"


def _levels(evidence: Evidence) -> str:
    finding = _finding(evidence, FindingName.BUSY, Verdict.KEEP, ())
    parts = [f"activity mean {_percent(finding.activity_mean)}, peak {_percent(finding.activity_peak)}"]
    if finding.power_peak_w is not None:
        parts.append(f"power peak {finding.power_peak_w:.0f} W")
    if finding.memory_peak_bytes is not None:
        parts.append(f"memory peak {finding.memory_peak_bytes / GIB:.1f} GiB")
    parts.append(f"coverage {finding.coverage:.0%}")
    return ", ".join(parts)


def _finding(evidence: Evidence, name: FindingName, verdict: Verdict, words: tuple[str, ...]) -> Finding:
    devices = evidence.devices
    is_measured = bool(devices) and all(usage.activity_peak is not None for usage in devices)
    return Finding(
        name=name,
        verdict=verdict,
        words=words,
        coverage=min((usage.coverage for usage in devices), default=0.0),
        busy_gpus=sum(map(evidence.is_busy, devices)) if is_measured else None,
        activity_mean=_mean(usage.activity_mean for usage in devices),
        activity_peak=_highest(usage.activity_peak for usage in devices),
        memory_peak_bytes=_highest(usage.memory_peak_bytes for usage in devices),
        power_mean_w=_mean(usage.power_mean_w for usage in devices),
        power_peak_w=_highest(usage.power_peak_w for usage in devices),
    )


def _highest(values: Iterator[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _mean(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _percent(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{ratio * 100:.3g}%"


def _time(span: datetime.timedelta) -> str:
    return format_duration(span.total_seconds())


def _device(usage: Usage) -> str:
    return f"{usage.device.uuid}/{usage.device.instance}" if usage.device.instance else usage.device.uuid
