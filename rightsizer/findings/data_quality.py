"""Data-quality checks, and the confidence of findings. Pure.

Each check yields messages about missing, stale or impossible data: a lack of data could always hide work.
"""

import contextlib
import dataclasses
import datetime
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from rightsizer.changes.record_codec import RESUMED_ANNOTATION
from rightsizer.config import format_duration
from rightsizer.findings.evidence import Candidate, DeviceEvidence, Evidence, pod_key
from rightsizer.findings.idle_history import ActivityHistory, covers_pauses
from rightsizer.findings.second_signals import silent_of
from rightsizer.kinds.patches import resumed_at
from rightsizer.kube.object_names import INVALID_OWNER
from rightsizer.model import (
    Confidence,
    DataIssue,
    Finding,
    FindingName,
    Fleet,
    Measured,
    Pod,
    SecondSignal,
    Usage,
)
from rightsizer.model.gpu_fractions import gpus_of_node
from rightsizer.text import count, device, gpus, instant, percent, span
from rightsizer.usage.sample_coverage import slot_length

MIN_SAMPLES = 18
"""Least samples of a window: with fewer, one decides about the coverage. 5m at the usual 15 s holds 19 to 21."""
TARGET_SAMPLES = 20
"""Number of samples in the window that a message proposes."""

SETTLING_TIME = datetime.timedelta(minutes=10)
"""A younger pod may not be in the series of its node yet."""

DataQualityCheck = Callable[[Evidence], Iterator[str]]


def first_issues(
    evidence: Evidence, checks: Sequence[tuple[FindingName, DataQualityCheck]]
) -> tuple[DataIssue, ...]:
    """The issues that the first failing check found; none if all checks pass."""
    for code, check in checks:
        messages = dict.fromkeys(check(evidence))
        if messages:
            return tuple(DataIssue(code, message) for message in messages)
    return ()


def _uncountable(evidence: Evidence) -> Iterator[str]:
    pods = [pod for pod in evidence.candidate.workload.pods if pod.unreadable]
    for pod in sorted(pods, key=lambda pod: pod.ref.name):
        for words in pod.unreadable:
            yield f"pod {pod.ref.name} {words}"


def _invalid_owner(evidence: Evidence) -> Iterator[str]:
    if evidence.candidate.workload.ref.kind == INVALID_OWNER:
        yield "the owner reference of its pods names no possible object, so their workload is unknown"


def _not_running(evidence: Evidence) -> Iterator[str]:
    if not evidence.held:
        yield "none of its pods holds a GPU"
    for pod, _ in evidence.held:
        if pod.phase != "Running":
            yield f"pod {pod.ref.name} is {pod.phase}, not running"
        elif pod.started is None:
            yield f"a container of pod {pod.ref.name} is not running"
        elif pod.is_terminating:
            yield f"pod {pod.ref.name} is terminating"
        elif not pod.is_ready:
            yield f"pod {pod.ref.name} is running, but not ready"


def _too_young(evidence: Evidence) -> Iterator[str]:
    needed = evidence.window + evidence.grace
    unused = min(evidence.candidate.criteria.idle.unusedWindow, evidence.window) + evidence.grace
    sooner = f"; {span(unused)} if it never worked" if unused < needed else ""
    for pod, _ in evidence.held:
        age = evidence.candidate.at - (pod.started or evidence.candidate.at)
        if age < needed:
            yield (
                f"pod {pod.ref.name} is {span(age)} old; a verdict needs pods of at least {span(needed)} "
                f"(window {span(evidence.window)} + grace {span(evidence.grace)}{sooner})"
            )


def _new(evidence: Evidence) -> Iterator[str]:
    for pod, _ in evidence.held:
        if evidence.candidate.at - (pod.started or evidence.candidate.at) < evidence.grace:
            yield f"pod {pod.ref.name} is younger than {span(evidence.grace)}"


def _resumed(evidence: Evidence) -> Iterator[str]:
    needed = evidence.window + evidence.grace
    try:
        instant = resumed_at(evidence.candidate.workload.annotations)
    except ValueError:
        yield f"its annotation {RESUMED_ANNOTATION} is invalid, so it counts as just resumed"
        return
    if instant is not None and evidence.candidate.at - instant < needed:
        since = max(evidence.candidate.at - instant, datetime.timedelta(0))
        yield (
            f"it was resumed {span(since)} ago; a verdict needs at least {span(needed)} "
            f"(window {span(evidence.window)} + grace {span(evidence.grace)})"
        )


def old_enough_from(evidence: Evidence) -> datetime.datetime | None:
    """The time from which its pods are old enough for a verdict; None if that is not known."""
    starts = [pod.started for pod, _ in evidence.held if pod.started is not None]
    with contextlib.suppress(ValueError):  # `_resumed` reports it
        starts += filter(None, [resumed_at(evidence.candidate.workload.annotations)])
    return max(starts) + evidence.window + evidence.grace if starts else None


def _invalid(evidence: Evidence) -> Iterator[str]:
    for pod, devices in evidence.held:
        for usage in (gpu.usage for gpu in devices):
            if usage.invalid:
                yield f"pod {pod.ref.name}: impossible values of {', '.join(usage.invalid)} on {device(usage)}"


def _ambiguous(evidence: Evidence) -> Iterator[str]:
    """A pod never changes devices, so additional ones belong to another pod of that name, perhaps elsewhere."""
    for pod, devices in evidence.held:
        if len(devices) > pod.devices:
            yield (
                f"pod {pod.ref.name} holds {gpus(pod.devices)}, but its series cover {len(devices)}: "
                "some belong to another pod of the same name"
            )


def _missing(evidence: Evidence) -> Iterator[str]:
    for pod, devices in evidence.held:
        if not devices:
            yield from [f"no GPU series for pod {pod.ref.name}"] if pod.usable else ()
        elif pod.is_shared:
            named = evidence.candidate.measured.shares.get(pod_key(pod), 0)
            if named < pod.usable and len(devices) < _most_gpus(evidence, pod, devices):
                yield (
                    f"pod {pod.ref.name} holds {pod.usable} shares, but its series cover {gpus(len(devices))}: "
                    "unknown whether a GPU is missing"
                )
        elif len(devices) < pod.usable:
            yield f"pod {pod.ref.name} holds {gpus(pod.usable)}, but its series cover only {len(devices)}"


def _most_gpus(evidence: Evidence, pod: Pod, devices: Sequence[DeviceEvidence]) -> int:
    """Most GPUs that its shares may be of: no more than its node has, where that is known."""
    node = evidence.candidate.fleet.nodes.get(pod.node)
    coverage = evidence.candidate.measured.nodes.get(pod.node)
    is_sliced = any("/mig-" in name for name in pod.resources) or any(
        gpu.usage.device.instance for gpu in devices
    )
    if node is None or not node.gpus or is_sliced:
        return pod.usable
    return min(pod.usable, max(node.gpus, coverage.devices if coverage else 0))


def _disputed(evidence: Evidence) -> Iterator[str]:
    """Conflicts of gauges and counters; with fewer samples a counter may miss what the gauges' mean extrapolates."""
    for pod, devices in evidence.held:
        for usage in (gpu.usage for gpu in devices):
            if usage.disputed and usage.coverage >= evidence.coverage:
                gauge, counted = usage.disputed
                yield (
                    f"pod {pod.ref.name}: gauges show a mean activity of {percent(gauge)} on {device(usage)}, "
                    f"counters of GPU time {percent(counted)}: one of them is wrong"
                )


def _elsewhere(evidence: Evidence) -> Iterator[str]:
    """Work may be on a GPU that the pod does not hold, if counters do not tell it from that of others."""
    for pod, gpu in evidence.elsewhere:
        usage, why = gpu.usage, pod.reach or "a process of it is there"
        is_complete = usage.is_fresh and usage.coverage >= evidence.coverage and not usage.holes
        if gpu.ran is None or not (usage.is_own or is_complete):
            lacks = (
                f"{span(usage.unattributed_s)} of work there belong to no known pod"
                if usage.is_own
                else f"no counters of gpu-exporter over the whole {span(evidence.window)} tell which pod works there"
            )
            yield f"pod {pod.ref.name} may have worked on {device(usage)}, which it does not hold: {why}; {lacks}"
    for pod, devices in evidence.held:
        node = evidence.candidate.fleet.nodes.get(pod.node)
        others = evidence.others.get(pod_key(pod), ())
        seen = {gpu.usage.device.uuid for gpu in (*devices, *others)}
        total = gpus_of_node(node) if node is not None else math.inf
        if pod.reach and len(seen) < total:
            yield (
                f"pod {pod.ref.name} may have worked on a GPU that it does not hold: {pod.reach}, and only "
                f"{len(seen)} of {total:g} GPUs of node {pod.node} have series"
            )


def _works_elsewhere(evidence: Evidence) -> Iterator[str]:
    for pod, gpu in evidence.elsewhere:
        if gpu.is_used:
            yield f"pod {pod.ref.name} works on {device(gpu.usage)}, which it does not hold"


def _unmeasurable(evidence: Evidence) -> Iterator[str]:
    for pod, devices in evidence.held:
        for gpu in devices:
            where = device(gpu.usage)
            if gpu.ran is None and gpu.usage.unattributed_s:
                yield (
                    f"pod {pod.ref.name}: {gpu.usage.unattributed_s:.1f} s of work on shared {where} in the last "
                    f"{span(evidence.window)} belong to no known pod; some may be the pod's"
                )
            elif gpu.usage.activity_peak is None and not gpu.usage.unattributed_s:
                is_mig = gpu.usage.device.instance
                where += ": before Hopper only dcgm-exporter has one of MIG instances" if is_mig else ""
                yield (
                    f"pod {pod.ref.name}: no activity metric for {where}; "
                    "allocated memory does not show whether it is used"
                )
            elif not gpu.ran and gpu.draws_power is None and gpu.moves_memory is None:
                is_shared = gpu.usage.is_own and (pod.is_shared or gpu.usage.is_visited)
                has = f"shared {where} has no per-pod" if is_shared else f"{where} has no"
                why = f"{has} power or memory-traffic data"
                if silent := " and ".join(silent_of(gpu.usage, evidence.candidate.measured.silent)):
                    still = silent.replace("traffic", "memory traffic")
                    why = f"no second signal: {still} of {where} never moved, as far as is recorded"
                yield f"pod {pod.ref.name}: {why}; cannot confirm that the pod is idle"


def _silenced(evidence: Evidence) -> Iterator[str]:
    """An exporter reports the same metrics for all devices of a node: a metric missing for only one was lost."""
    for pod, devices in evidence.held:
        if not any(getattr(gpu.usage, field) is None for gpu in devices for field, *_ in _SECOND_SIGNALS):
            continue
        others = evidence.candidate.fleet.pods_on.get(pod.node, ())
        neighbours = [usage for _, usage in _usages_of(evidence, others)]
        for usage in (gpu.usage for gpu in devices):
            alike = [other for other in neighbours if _same_metrics(other) == _same_metrics(usage)]
            dropped = silent_of(usage, evidence.candidate.measured.silent)
            for field, words, signal in _SECOND_SIGNALS:
                is_elsewhere = any(getattr(other, field) is not None for other in alike)
                if is_elsewhere and getattr(usage, field) is None and signal not in dropped:
                    yield (
                        f"pod {pod.ref.name}: no {words} data for {device(usage)}, "
                        f"unlike similar GPUs on node {pod.node}"
                    )


def _usages_of(evidence: Evidence, pods: Iterable[Pod]) -> Iterator[tuple[Pod, Usage]]:
    """The usage of each of these pods, which may be of other workloads."""
    measured = evidence.candidate.measured.usages
    usages = measured.get(evidence.window, {})
    widest = measured.get(max(measured, default=evidence.window), {})
    for pod in pods:
        # Short windows are only measured for few pods.
        for usage in usages.get(pod_key(pod)) or widest.get(pod_key(pod), ()):
            yield pod, usage


_SECOND_SIGNALS = (
    ("power_peak_w", "power", SecondSignal.POWER),
    ("traffic_peak", "memory-traffic", SecondSignal.TRAFFIC),
)


def _same_metrics(usage: Usage) -> tuple[str, bool, bool]:
    """Equal for devices of which an exporter reports the same metrics."""
    return usage.device.model, bool(usage.device.instance), usage.is_own


def _too_short(evidence: Evidence) -> Iterator[str]:
    window_s = evidence.window.total_seconds()
    for _, devices in evidence.held:
        for samples in (gpu.usage.samples_expected for gpu in devices):
            if samples is not None and samples < MIN_SAMPLES:
                interval_s = window_s / max(samples - 1, 1)
                needed = format_duration(math.ceil(interval_s * TARGET_SAMPLES / 60) * 60)
                yield (
                    f"the window of {span(evidence.window)} holds only {samples} samples: "
                    f"set it to {needed} or longer, or scrape more often"
                )


def _stale(evidence: Evidence) -> Iterator[str]:
    for pod, devices in evidence.held:
        if any(not gpu.usage.is_fresh for gpu in devices):
            yield f"pod {pod.ref.name}: its series ended"


def _partial(evidence: Evidence) -> Iterator[str]:
    for pod, devices in evidence.held:
        lowest = min((gpu.usage.coverage for gpu in devices), default=math.inf)
        if lowest < evidence.coverage:
            yield (
                f"pod {pod.ref.name}: samples cover {lowest:.0%} of the last {span(evidence.window)}, "
                f"less than the required {evidence.coverage:.0%}"
            )


def _holes(evidence: Evidence) -> Iterator[str]:
    for pod, devices in evidence.held:
        holes = max((gpu.usage.holes for gpu in devices), default=0)
        if holes:
            gaps = "1 gap" if holes == 1 else f"{holes} gaps"
            yield (
                f"pod {pod.ref.name}: {gaps} without samples in the last {span(evidence.window)}"
                f"{_length(devices[0].usage.samples_expected, evidence.window)}: it may have been active then"
            )


def _length(samples: int | None, window: datetime.timedelta) -> str:
    """The length of a gap, in words: 15 minutes in a window of a day."""
    if samples is None:
        return ""
    return f", {span(slot_length(window, samples))} each"


def _half_covered(evidence: Evidence) -> Iterator[str]:
    """A second signal has to cover the window as activity does: work may only have shown where it is missing."""
    names = {signal: words for _, words, signal in _SECOND_SIGNALS}
    for pod, devices in evidence.held:
        for held in devices:
            agrees = {SecondSignal.POWER: held.draws_power, SecondSignal.TRAFFIC: held.moves_memory}
            for part in held.usage.lacking:
                if agrees[part.signal] is False and (part.holes or part.share < evidence.coverage):
                    is_late = part.since > evidence.candidate.at - evidence.window
                    where = f"from {instant(part.since)} on" if is_late else "with gaps"
                    what = f"{names[part.signal]} data for {device(held.usage)}"
                    length = f"{part.share:.0%} of the last {span(evidence.window)}"
                    yield (
                        f"pod {pod.ref.name}: {what} cover {length}, {where}; it may have worked where they are missing"
                    )


def _unattributed(evidence: Evidence) -> Iterator[str]:
    """A whole GPU has one pod. If series name it for two, one of them may have a GPU without a pod label."""
    candidate = evidence.candidate
    for pod, devices in evidence.held:
        coverage = candidate.measured.nodes.get(pod.node)
        others = [
            other for other in candidate.fleet.pods_on.get(pod.node, ()) if is_settled(other, candidate.at)
        ]
        if (
            pod.is_shared
            or coverage is None
            or coverage.owned >= sum(other.usable for other in others if not other.is_shared)
        ):
            continue
        own = {(gpu.usage.device.uuid, gpu.usage.device.instance) for gpu in devices}
        for other, usage in _usages_of(evidence, others):
            is_named = usage.is_fresh and (usage.device.uuid, usage.device.instance) in own
            if other.ref != pod.ref and is_named:
                yield (
                    f"series name {device(usage)} for pods {pod.ref.name} and {other.ref.name}, but node {pod.node} "
                    "does not share GPUs: one of them may have a GPU without a pod label"
                )


def is_settled(pod: Pod, at: datetime.datetime) -> bool:
    """Whether a pod has run for long enough to appear in its node's series."""
    return pod.phase == "Running" and pod.started is not None and at - pod.started >= SETTLING_TIME


def _conflicting(evidence: Evidence) -> Iterator[str]:
    for pod, devices in evidence.held:
        for gpu in devices:
            usage = gpu.usage
            if gpu.ran:
                yield (
                    f"pod {pod.ref.name}: {percent(usage.activity_peak)} activity on {device(usage)} "
                    f"at idle power (at most {usage.power_peak_w:.0f} W): {evidence.spin_cause}"
                )
            elif gpu.draws_power:
                yield (
                    f"pod {pod.ref.name}: no activity on {device(usage)}, but it drew {usage.power_peak_w:.0f} W"
                )
            elif gpu.moves_memory:
                yield (
                    f"pod {pod.ref.name}: no activity on {device(usage)}, "
                    f"but memory traffic reached {percent(usage.traffic_peak)}"
                )


COMPLETENESS_CHECKS: tuple[tuple[FindingName, DataQualityCheck], ...] = (
    # Later checks rely on earlier ones: countable, running, old enough, valid, attributed, present, undisputed,
    # measurable, enough samples, current, without gaps.
    (FindingName.INVALID_DATA, _invalid_owner),
    (FindingName.INVALID_DATA, _uncountable),
    (FindingName.NOT_RUNNING, _not_running),
    (FindingName.TOO_YOUNG, _too_young),
    (FindingName.TOO_YOUNG, _resumed),
    (FindingName.INVALID_DATA, _invalid),
    (FindingName.INVALID_DATA, _ambiguous),
    (FindingName.NO_DATA, _missing),
    (FindingName.CONFLICTING_SIGNALS, _disputed),
    (FindingName.CONFLICTING_SIGNALS, _works_elsewhere),
    (FindingName.NO_DATA, _elsewhere),
    (FindingName.NO_DATA, _unmeasurable),
    (FindingName.PARTIAL_DATA, _silenced),
    (FindingName.PARTIAL_DATA, _too_short),
    (FindingName.STALE_DATA, _stale),
    (FindingName.PARTIAL_DATA, _partial),
    (FindingName.PARTIAL_DATA, _holes),
    (FindingName.PARTIAL_DATA, _half_covered),
    (FindingName.PARTIAL_DATA, _unattributed),
)
"""A finding that something is unused requires all of them."""

WORKLOAD_CHECKS: tuple[tuple[FindingName, DataQualityCheck], ...] = (
    (FindingName.INVALID_DATA, _invalid_owner),
    (FindingName.INVALID_DATA, _uncountable),
    (FindingName.TOO_YOUNG, _resumed),
)
"""Fewer replicas require them of the workload. Samples that are missing in a minute count as activity in it."""

REPLICA_CHECKS: tuple[tuple[FindingName, DataQualityCheck], ...] = (
    (FindingName.NOT_RUNNING, _not_running),
    (FindingName.TOO_YOUNG, _new),
    (FindingName.INVALID_DATA, _invalid),
    (FindingName.INVALID_DATA, _ambiguous),
    (FindingName.NO_DATA, _missing),
    (FindingName.CONFLICTING_SIGNALS, _disputed),
    (FindingName.NO_DATA, _elsewhere),
    (FindingName.NO_DATA, _unmeasurable),
    (FindingName.PARTIAL_DATA, _silenced),
    (FindingName.PARTIAL_DATA, _too_short),
    (FindingName.STALE_DATA, _stale),
    (FindingName.PARTIAL_DATA, _partial),
    (FindingName.PARTIAL_DATA, _unattributed),
)
"""A replica that fails one of them counts as active in every minute."""

IDLENESS_CHECKS = (*COMPLETENESS_CHECKS, (FindingName.CONFLICTING_SIGNALS, _conflicting))
"""A finding of idleness also requires that the signals agree."""


def unknown_resources(fleet: Fleet, measured: Measured) -> tuple[str, ...]:
    """A remark about resources that are GPUs, by GPU series or by their names on nodes, but are not known; or none."""
    named = {
        key
        for found in measured.usages.values()
        for key, usages in found.items()
        if any(usage.is_fresh for usage in usages)
    }
    pods: dict[str, list[str]] = {name: [] for name in fleet.unknown_gpus}
    for (namespace, name), resources in fleet.other_resources.items():
        # Pods with such a GPU may have network cards, too.
        likely = [name for name in resources if name in fleet.unknown_gpus] or resources
        for resource in likely if (namespace, name) in named else ():
            pods.setdefault(resource, []).append(f"{namespace}/{name}")
    if not pods:
        return ()
    words = [_unknown_resource(name, pods[name], fleet.unknown_gpus.get(name, ())) for name in sorted(pods)]
    more = [f"and {len(words) - _SHOWN} more"] if words[_SHOWN:] else []
    flag = ",".join(sorted(pods)[:_SHOWN])
    text = f"no known GPU resources, so their pods are not judged: {'; '.join([*words[:_SHOWN], *more])}"
    return (f"{text}; make them known with --gpu-resource {flag} (NAME=shares if pods share GPUs)",)


_SHOWN = 5


def _unknown_resource(name: str, pods: Sequence[str], nodes: Sequence[str]) -> str:
    """The resource, with one of the pods that series name, else one of the nodes that offer it."""
    if pods:
        return f"{name} (series name {count(len(pods), 'pod')}, such as {min(pods)})"
    return f"{name} ({count(len(nodes), 'node')}, such as {min(nodes)})"


# --- Confidence


def missing_proof(evidence: Evidence, history: ActivityHistory | None) -> Iterator[str]:
    """Reasons why each pod may need what it has; none if it is proven that less suffices."""
    yield from (issue.message for issue in first_issues(evidence, COMPLETENESS_CHECKS))
    candidate = evidence.candidate
    if not covers_pauses(history, candidate.criteria.idle, evidence.window, candidate.stretch):
        pause = f"up to {span(history.longest_return_s)}" if history else "an unknown time"
        window = span(evidence.window)
        yield f"it is idle for {pause} between runs: a window of {window} is too short to know what it needs"
    if candidate.original_replicas is not None:
        yield "gpu-rightsizer scaled it down; the next verdict needs all replicas back"


def wait_reason(candidate: Candidate) -> str:
    """Causes for which its pods wait, in words; empty for short waits and without measurements."""
    found: dict[str, float] = {}
    for pod in candidate.held if candidate.measured.waits else ():
        waits = candidate.measured.waits.get(pod_key(pod))
        for field, words in _WAITS if waits else ():
            share = getattr(waits, field)
            if share is not None and share * 100 >= candidate.criteria.inputBound.minWaitPercent:
                found[words] = max(share, found.get(words, 0.0))
    return " and ".join(f"{words} {percent(share)} of the time" for words, share in found.items())


_WAITS = (
    ("cpu_throttled", "its CPU limit"),
    ("cpu_pressure", "CPU"),
    ("io_pressure", "disk or network"),
)


def with_confidence(finding: Finding, evidence: Evidence, history: ActivityHistory | None) -> Finding:
    """The finding with its confidence, and the reason as its last sentence.

    High requires that counters, activity, a second signal and a history without gaps agree.
    """
    confidence, reason = _confidence(evidence, history)
    return dataclasses.replace(
        finding, confidence=confidence, words=(*finding.words, f"confidence {confidence}: {reason}")
    )


def _confidence(evidence: Evidence, history: ActivityHistory | None) -> tuple[Confidence, str]:
    waits = wait_reason(evidence.candidate)
    if waits:
        return Confidence.LOW, f"it waits for {waits} and might use more without that wait"
    if history is None:
        return Confidence.LOW, "its earlier idle periods are unknown"
    if history.unknown_s:
        return Confidence.LOW, "its history has gaps"
    if any(gpu.usage.busy_s is None for gpu in evidence.devices):
        return Confidence.MEDIUM, "samples and history agree, but no counters of GPU time are measured"
    counted_s = max((gpu.usage.busy_s or 0.0 for gpu in evidence.devices), default=0.0)
    if round(counted_s, 1):
        return Confidence.MEDIUM, f"counters of GPU time show {counted_s:.1f} s of work between the samples"
    return Confidence.HIGH, "samples, counters of GPU time and history agree"
