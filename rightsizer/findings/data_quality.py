"""Why the evidence does not suffice: each doubt is a function that yields its reasons. Pure.

Data can only be missing in the dangerous direction, so whatever is missing, stale or cannot be is a doubt.
"""

import datetime
import math
from collections.abc import Callable, Iterator, Sequence

from rightsizer.changes.records import RESUMED_ANNOTATION
from rightsizer.config import format_duration
from rightsizer.findings.evidence import Evidence, key_of
from rightsizer.kinds.patches import resumed_at
from rightsizer.model import FindingName, Pod, Usage
from rightsizer.text import device, gpus, percent, span

FEWEST_SAMPLES = 18
"""Fewer in the window, and one more or less decides about the coverage. 5m at the usual 15 s holds 19 to 21."""
AIMED_SAMPLES = 20
"""What a window is proposed for."""

SETTLING = datetime.timedelta(minutes=10)
"""A pod that runs for less may not be in the series of its node yet."""

Doubt = Callable[[Evidence], Iterator[str]]


def first_doubt(
    evidence: Evidence, doubts: Sequence[tuple[FindingName, Doubt]]
) -> tuple[FindingName, tuple[str, ...]] | None:
    """The first doubt that there is, with all its reasons."""
    for name, doubt in doubts:
        words = tuple(dict.fromkeys(doubt(evidence)))
        if words:
            return name, words
    return None


def _uncountable(evidence: Evidence) -> Iterator[str]:
    pods = [pod for pod in evidence.case.workload.pods if pod.unreadable]
    for pod in sorted(pods, key=lambda pod: pod.ref.name):
        for amount in pod.unreadable:
            yield f"pod {pod.ref.name} asks for {amount}, which is not a whole number of devices"


def _not_running(evidence: Evidence) -> Iterator[str]:
    if not evidence.held:
        yield "none of its pods holds a GPU now"
    for pod, _ in evidence.held:
        if pod.phase != "Running":
            yield f"pod {pod.ref.name} is {pod.phase}, not running"
        elif pod.started is None:
            yield f"a container of pod {pod.ref.name} does not run"
        elif pod.is_terminating:
            yield f"pod {pod.ref.name} is being deleted"
        elif not pod.is_ready:
            yield f"pod {pod.ref.name} runs, but is not ready"


def _too_young(evidence: Evidence) -> Iterator[str]:
    needed = evidence.window + evidence.grace
    for pod, _ in evidence.held:
        age = evidence.case.at - (pod.started or evidence.case.at)
        if age < needed:
            yield (
                f"pod {pod.ref.name} has run for {span(age)}; "
                f"nothing younger than {span(needed)} (window and grace) is judged idle"
            )


def _resumed(evidence: Evidence) -> Iterator[str]:
    needed = evidence.window + evidence.grace
    try:
        instant = resumed_at(evidence.case.workload.annotations)
    except ValueError:
        yield f"its annotation {RESUMED_ANNOTATION} cannot be read; taken as put back just now"
        return
    if instant is not None and evidence.case.at - instant < needed:
        since = max(evidence.case.at - instant, datetime.timedelta(0))
        yield f"it was put back {span(since)} ago; nothing put back less than {span(needed)} ago is judged idle"


def _invalid(evidence: Evidence) -> Iterator[str]:
    for pod, devices in evidence.held:
        for usage in (seen.usage for seen in devices):
            if usage.invalid:
                yield f"pod {pod.ref.name}: impossible values of {', '.join(usage.invalid)} on {device(usage)}"


def _ambiguous(evidence: Evidence) -> Iterator[str]:
    """A pod keeps its devices for life, so more of them are another pod's of that name, here or in another cluster."""
    for pod, devices in evidence.held:
        if len(devices) > pod.devices:
            yield (
                f"pod {pod.ref.name} holds {gpus(pod.devices)}, but series name it on {len(devices)}: "
                "some are another pod's of that name"
            )


def _missing(evidence: Evidence) -> Iterator[str]:
    for pod, devices in evidence.held:
        if not devices:
            yield f"no GPU series names pod {pod.ref.name}"
        elif len(devices) < pod.devices and pod.is_shared:
            yield (
                f"pod {pod.ref.name} holds {pod.devices} shares, of one GPU or of several; "
                f"series name it on {len(devices)}, and whether one is missing cannot be told"
            )
        elif len(devices) < pod.devices:
            yield f"pod {pod.ref.name} holds {gpus(pod.devices)}, but series name it on {len(devices)} only"


def _unmeasurable(evidence: Evidence) -> Iterator[str]:
    for pod, devices in evidence.held:
        for seen in devices:
            where = f"pod {pod.ref.name}: "
            if seen.usage.activity_peak is None:
                yield f"{where}no activity is measured on {device(seen.usage)}; memory held is not activity"
            elif seen.draws_power is None and seen.moves_memory is None:
                whose = ": they are everybody's who shares it" if seen.usage.is_own and pod.is_shared else ""
                yield f"{where}neither power nor memory traffic can be judged on {device(seen.usage)}{whose}"


def _silenced(evidence: Evidence) -> Iterator[str]:
    """One exporter tells the same of all devices of its node: what is missing of one alone was lost."""
    measured = evidence.case.measured.usages
    usages = measured.get(evidence.window, {})
    widest = measured.get(max(measured, default=evidence.window), {})
    for pod, devices in evidence.held:
        if not any(getattr(seen.usage, field) is None for seen in devices for field, _ in _TOLD):
            continue
        neighbours = [
            usage
            for other in evidence.case.fleet.pods_on.get(pod.node, ())
            # Over some windows only few are asked about.
            for usage in usages.get(key_of(other)) or widest.get(key_of(other), ())
        ]
        for usage in (seen.usage for seen in devices):
            alike = [other for other in neighbours if _kind(other) == _kind(usage)]
            for field, words in _TOLD:
                if getattr(usage, field) is None and any(
                    getattr(other, field) is not None for other in alike
                ):
                    yield (
                        f"pod {pod.ref.name}: no {words} is on record for {device(usage)}, "
                        f"but it is for others like it on node {pod.node}"
                    )


_TOLD = (("power_peak_w", "power"), ("traffic_peak", "memory traffic"))


def _kind(usage: Usage) -> tuple[str, bool, bool]:
    """Devices of which an exporter tells the same."""
    return usage.device.model, bool(usage.device.instance), usage.is_own


def _too_short(evidence: Evidence) -> Iterator[str]:
    window_s = evidence.window.total_seconds()
    for _, devices in evidence.held:
        for samples in (seen.usage.samples_expected for seen in devices):
            if samples is not None and samples < FEWEST_SAMPLES:
                interval_s = window_s / max(samples - 1, 1)
                needed = format_duration(math.ceil(interval_s * AIMED_SAMPLES / 60) * 60)
                yield (
                    f"the window of {span(evidence.window)} holds {samples} samples, too few to judge by: "
                    f"make it {needed} or longer, or scrape more often"
                )


def _stale(evidence: Evidence) -> Iterator[str]:
    for pod, devices in evidence.held:
        if any(not seen.usage.is_fresh for seen in devices):
            yield f"pod {pod.ref.name}: samples have stopped arriving"


def _partial(evidence: Evidence) -> Iterator[str]:
    for pod, devices in evidence.held:
        lowest = min(seen.usage.coverage for seen in devices)
        if lowest < evidence.coverage:
            yield (
                f"pod {pod.ref.name}: samples cover {lowest:.0%} of the last {span(evidence.window)}, "
                f"{evidence.coverage:.0%} are needed"
            )


def _holes(evidence: Evidence) -> Iterator[str]:
    for pod, devices in evidence.held:
        holes = max(seen.usage.holes for seen in devices)
        if holes:
            parts = "1 part" if holes == 1 else f"{holes} parts"
            yield (
                f"pod {pod.ref.name}: {parts} of the last {span(evidence.window)}"
                f"{_length(devices[0].usage.samples_expected, evidence.window)} without any sample: "
                "it may have worked then"
            )


def _blind_nodes(evidence: Evidence) -> Iterator[str]:
    """Where a device's owner is not known, it could be any pod of that node."""
    case = evidence.case
    for node in sorted({pod.node for pod, _ in evidence.held}):
        coverage = case.measured.nodes.get(node)
        held = sum(
            pod.devices
            for pod in case.fleet.pods_on.get(node, ())
            if is_settled(pod, case.at) and not pod.is_shared
        )
        if coverage is not None and coverage.owned < held:
            yield (
                f"on node {node} pods hold {held} GPUs, but series name a pod on {coverage.owned} only: "
                "whose the others are is not known"
            )


def is_settled(pod: Pod, at: datetime.datetime) -> bool:
    """Whether a pod has run for long enough that its node's series should name it."""
    return pod.phase == "Running" and pod.started is not None and at - pod.started >= SETTLING


def _conflicting(evidence: Evidence) -> Iterator[str]:
    for pod, devices in evidence.held:
        for seen in devices:
            usage = seen.usage
            if seen.ran:
                yield (
                    f"pod {pod.ref.name}: {percent(usage.activity_peak)} busy on {device(usage)} "
                    f"at no more than {usage.power_peak_w:.0f} W, an idle board's power: perhaps a hung collective"
                )
            elif seen.draws_power:
                yield (
                    f"pod {pod.ref.name}: no activity on {device(usage)}, but {usage.power_peak_w:.0f} W were drawn"
                )
            elif seen.moves_memory:
                yield (
                    f"pod {pod.ref.name}: no activity on {device(usage)}, "
                    f"but memory traffic reached {percent(usage.traffic_peak)}"
                )


INCOMPLETE: tuple[tuple[FindingName, Doubt], ...] = (
    # In this order a person would ask: can its GPUs be counted, is it there, is it old enough, can the numbers be,
    # whose are they, are they all there, do they say what is asked, are they enough, current, complete?
    # Later ones rely on earlier ones.
    (FindingName.INVALID_DATA, _uncountable),
    (FindingName.NOT_RUNNING, _not_running),
    (FindingName.TOO_YOUNG, _too_young),
    (FindingName.TOO_YOUNG, _resumed),
    (FindingName.INVALID_DATA, _invalid),
    (FindingName.AMBIGUOUS_DATA, _ambiguous),
    (FindingName.NO_DATA, _missing),
    (FindingName.UNMEASURABLE, _unmeasurable),
    (FindingName.PARTIAL_DATA, _silenced),
    (FindingName.WINDOW_TOO_SHORT, _too_short),
    (FindingName.STALE_DATA, _stale),
    (FindingName.PARTIAL_DATA, _partial),
    (FindingName.PARTIAL_DATA, _holes),
    (FindingName.PARTIAL_DATA, _blind_nodes),
)
"""What stands against any finding that something is not used."""

DOUBTS = (*INCOMPLETE, (FindingName.CONFLICTING_SIGNALS, _conflicting))
"""What stands against idleness: beyond the former, that the signals do not agree."""

MOST_SLOTS = 96
SAMPLES_PER_SLOT = 20
"""Sources of usage look for holes in slots of so many samples, and cut no window into more slots."""


def _length(samples: int | None, window: datetime.timedelta) -> str:
    """How long a part is, in words; a quarter of an hour where a day is looked at."""
    if samples is None:
        return ""
    slots = max(1, min(MOST_SLOTS, samples // SAMPLES_PER_SLOT))
    return f", {span(window / slots)} each,"
