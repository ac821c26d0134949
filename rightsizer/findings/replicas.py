"""Too many or too few replicas: how many are at work in the same minute, and headroom. Pure.

Replicas take turns, so a pod's own idleness says nothing. What we took is grown back as soon as demand comes near what
is left, and never beyond what there was.
"""

import dataclasses
import datetime
import math
from collections.abc import Iterator, Sequence

from rightsizer.findings.data_quality import INCOMPLETE, first_doubt
from rightsizer.findings.evidence import Case, Evidence, levels
from rightsizer.findings.kind_traits import GROUPED, has_replicas
from rightsizer.kinds import kind_of
from rightsizer.kinds.patches import original_replicas
from rightsizer.model import (
    Action,
    Concurrency,
    Confidence,
    Finding,
    FindingName,
    Proposal,
    Verdict,
    Workload,
)
from rightsizer.policy.schema import TooManyReplicas
from rightsizer.text import gpus, span

_DAY = datetime.timedelta(days=1)


@dataclasses.dataclass(frozen=True, slots=True)
class Demand:
    """How many replicas were at work at the same time.

    Attributes:
        peak: The most of what is known.
        unknown: Minutes, and hours of earlier days, of which that is not known.
        days: On how many days before the coming hour was looked at.
    """

    peak: int
    unknown: int
    days: int


def demand(
    concurrency: Concurrency, part: TooManyReplicas, workload: Workload, at: datetime.datetime
) -> Demand:
    """The busiest minute of the trailing window, and of the coming hour on the days before on which it existed."""
    age = at - workload.created if workload.created is not None else _DAY * part.days
    days = max(0, min(part.days, age // _DAY))
    earlier = concurrency.earlier[:days]
    minutes = (*concurrency.busy, *earlier)
    missing = (
        days
        - len(earlier)
        + max(0, round(part.window / datetime.timedelta(minutes=1)) - len(concurrency.busy))
    )
    return Demand(
        peak=max((most for most in minutes if most is not None), default=0),
        unknown=minutes.count(None) + missing,
        days=days,
    )


def with_headroom(busy: int, part: TooManyReplicas) -> int:
    """Replicas that suffice for so many at work."""
    return busy + max(math.ceil(busy * part.headroomPercent / 100), part.minHeadroom)


def find_too_many_replicas(case: Case) -> Finding | None:
    """How many replicas would do; advice only where that is not proven."""
    workload = case.workload
    if len(workload.pods) < 2 or not has_replicas(workload):  # noqa: PLR2004 - the last one stays
        return None
    concurrency = case.measured.concurrency.get(workload.ref.uid)
    part = case.criteria.too_many_replicas
    evidence = case.over(part, part.busyPercent, window=window_of(case))
    replicas = replicas_of(case)
    if concurrency is None or replicas is None:
        return _turns(case)
    known = demand(concurrency, part, workload, case.at)
    # A pod that drew power or moved memory while no kernel was seen counts as at work all the time.
    unseen = sum(_is_unseen(evidence, number) for number in range(len(evidence.held)))
    busy = min(known.peak + unseen, replicas)
    needed = max(1, with_headroom(busy, part))
    if needed >= replicas:
        return None
    words = f"at most {busy} of {replicas} replicas were at work in the same minute{_when(part, known)}"
    hindrances = tuple(_hindrances(evidence, known))
    if hindrances:
        if not evidence.is_in_use:
            return None
        return evidence.finding(
            FindingName.TOO_MANY_REPLICAS, Verdict.KEEP, (words, *hindrances, levels(evidence))
        )
    proposal = _shrink(evidence, replicas, needed, busy)
    finding = evidence.finding(
        FindingName.TOO_MANY_REPLICAS, Verdict.ACT, (words, proposal.words, levels(evidence))
    )
    confidence = Confidence.HIGH if known.days else Confidence.MEDIUM
    finding = dataclasses.replace(finding, proposal=proposal, confidence=confidence)
    return finding if proposal.replicas != replicas else None


def find_too_few_replicas(case: Case) -> Finding | None:
    """How many of the replicas that we took are needed again."""
    original = original_replicas(case.workload.annotations)
    concurrency = case.measured.concurrency.get(case.workload.ref.uid)
    size = case.workload.size
    if original is None or concurrency is None or isinstance(size, bool) or not size:
        return None
    part = case.criteria.too_many_replicas
    known = demand(concurrency, part, case.workload, case.at)
    target = min(original, with_headroom(known.peak, part))
    if target <= size:
        return None
    evidence = case.over(part, part.busyPercent, window=window_of(case))
    takes = (target - size) * _gpus_each(case, size)
    words = f"at most {known.peak} of {size} replicas were at work in the same minute{_when(part, known)}"
    proposal = Proposal(
        Action.SCALE_UP,
        -takes,
        f"{target} of its original {original} replicas, for demand and headroom: {gpus(takes)} taken back",
        replicas=target,
    )
    finding = evidence.finding(
        FindingName.TOO_FEW_REPLICAS, Verdict.ACT, (words, proposal.words, levels(evidence))
    )
    return dataclasses.replace(finding, proposal=proposal)


def replicas_of(case: Case) -> int | None:
    """How many replicas there are; of groups of pods only their own object says so."""
    size = case.workload.size
    if size is None or isinstance(size, bool):
        return None if case.workload.ref.kind in GROUPED else len(case.held)
    return size


def is_in_question(case: Case) -> bool:
    """Whether more or fewer replicas may be called for, by how many were at work at the same time."""
    concurrency = case.measured.concurrency.get(case.workload.ref.uid)
    replicas = replicas_of(case)
    if concurrency is None:
        return False
    if original_replicas(case.workload.annotations) is not None:
        return True
    part = case.criteria.too_many_replicas
    known = demand(concurrency, part, case.workload, case.at)
    return replicas is not None and max(1, with_headroom(min(known.peak, replicas), part)) < replicas


def window_of(case: Case) -> datetime.timedelta:
    """The shortest window that was measured and holds the one in which replicas are counted: the second signal's."""
    least = case.criteria.too_many_replicas.window
    return min((span for span in case.criteria.windows if span >= least), default=case.criteria.idle.window)


def _is_unseen(evidence: Evidence, number: int) -> bool:
    _, devices = evidence.held[number]
    return any(seen.is_used for seen in devices) and not any(seen.ran for seen in devices)


def _hindrances(evidence: Evidence, known: Demand) -> Iterator[str]:
    """Why it is not proven that fewer suffice."""
    workload = evidence.case.workload
    if known.unknown:
        yield f"how many worked at the same time is not known for {known.unknown} of the minutes and hours looked at"
    if workload.ref.kind not in GROUPED and workload.size not in {None, len(workload.pods)}:
        yield f"{workload.size} replicas are asked for, {len(workload.pods)} pods are there: it is changing"
    if len({(pod.devices, tuple(sorted(pod.resources.items()))) for pod, _ in evidence.held}) > 1:
        yield "its pods hold different GPUs: which of them stand in for each other is not known"
    doubt = first_doubt(evidence, INCOMPLETE)
    if doubt is not None:
        yield from doubt[1]


def _shrink(evidence: Evidence, replicas: int, needed: int, busy: int) -> Proposal:
    quiet = sorted(
        (max((seen.usage.activity_mean or 0.0 for seen in devices), default=0.0), pod.ref.name)
        for pod, devices in evidence.held
        if not any(seen.is_used for seen in devices)
    )
    pods, is_whole = _leaving(evidence.case.workload, [name for _, name in quiet], replicas - needed)
    needed = needed if is_whole else replicas - len(pods)
    frees = (replicas - needed) * _gpus_each(evidence.case, replicas)
    suffice = "1 replica suffices" if needed == 1 else f"{needed} replicas suffice"
    words = f"{suffice}, {needed - busy} of them headroom: {gpus(frees)} less"
    return Proposal(Action.SCALE_DOWN, frees, words, replicas=needed, pods=pods)


def _leaving(workload: Workload, quiet: Sequence[str], most: int) -> tuple[tuple[str, ...], bool]:
    """Names of so many pods at most that can go, and whether each is a replica: those of one go together or stay."""
    row = kind_of(workload.ref)
    label = row.groups.replica if row is not None and row.groups is not None else ""
    replica = {pod.ref.name: pod.labels.get(label) or pod.ref.name for pod in workload.pods}
    going: list[str] = []
    for one in dict.fromkeys(replica[name] for name in quiet):
        pods = [name for name, of in replica.items() if of == one]
        if set(pods) <= set(quiet) and len(going) + len(pods) <= most:
            going += pods
    return tuple(going), len(set(replica.values())) == len(replica)


def _gpus_each(case: Case, replicas: int) -> float:
    return case.workload.gpus / max(replicas, 1)


def _when(part: TooManyReplicas, known: Demand) -> str:
    words = f" of the last {span(part.window)}"
    days = "the day" if known.days == 1 else f"{known.days} days"
    return f"{words} and of the coming hour on {days} before" if known.days else words


def _turns(case: Case) -> Finding | None:
    """What the window tells where nobody counted minutes: that some pods worked, and others did not."""
    evidence = case.over_idle()
    if not evidence.is_in_use or first_doubt(evidence, INCOMPLETE) is not None:
        return None
    busy = sum(any(seen.is_used for seen in devices) for _, devices in evidence.held)
    if busy == len(evidence.held):
        return None
    words = (
        f"{busy} of {len(evidence.held)} pods worked in the last {span(evidence.window)}; "
        "how many at the same time is not known"
    )
    return evidence.finding(FindingName.TOO_MANY_REPLICAS, Verdict.KEEP, (words, levels(evidence)))
