"""Too many or too few replicas: the number that is active in the same minute, plus headroom. Pure.

Replicas take turns, so the idleness of one pod proves nothing. Scale-up follows as soon as demand comes near the
remaining replicas, and never exceeds the original number.
"""

import dataclasses
import datetime
import math
from collections.abc import Iterator, Sequence

from rightsizer.findings.data_quality import COMPLETENESS_CHECKS, first_issues
from rightsizer.findings.evidence import GROUPED, Candidate, Evidence, has_replicas
from rightsizer.kinds import kind_of
from rightsizer.model import Action, Confidence, Finding, FindingName, Proposal, Workload
from rightsizer.policy.thresholds import TooManyReplicas
from rightsizer.text import count, gpus, span

_DAY = datetime.timedelta(days=1)


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaDemand:
    """How many replicas were active at the same time."""

    part: TooManyReplicas
    minutes: tuple[int, ...]  # the most in each minute, and in the coming hour on earlier days, where known
    unknown: int  # number of minutes, and hours of earlier days, without data
    days: int  # number of earlier days, of which the coming hour was included

    @property
    def peak(self) -> int:
        """The known maximum."""
        return max(self.minutes, default=0)

    def with_headroom(self, busy: int) -> int:
        """Required replicas for a number of active ones."""
        return busy + max(math.ceil(busy * self.part.headroomPercent / 100), self.part.minHeadroom)

    def words(self, busy: int, replicas: int) -> str:
        """The number of active replicas, and the time in which they were counted."""
        words = f"at most {busy} of {replicas} replicas were active in the same minute"
        words += f" of the last {span(self.part.window)}"
        days = "the day" if self.days == 1 else f"{self.days} days"
        return f"{words} and, for the coming hour, of the same hour on {days} before" if self.days else words


def demand(candidate: Candidate) -> ReplicaDemand | None:
    """The busiest minute of the window, and of the coming hour on earlier days of its life; None without counts."""
    workload, part = candidate.workload, candidate.criteria.too_many_replicas
    concurrency = candidate.measured.concurrency.get(workload.ref.uid)
    if concurrency is None:
        return None
    age = candidate.at - workload.created if workload.created is not None else _DAY * part.days
    days = max(0, min(part.days, age // _DAY))
    earlier = concurrency.earlier[:days]
    minutes = (*concurrency.busy, *earlier)
    uncounted = max(0, round(part.window / datetime.timedelta(minutes=1)) - len(concurrency.busy))
    missing = days - len(earlier) + uncounted
    known = tuple(most for most in minutes if most is not None)
    return ReplicaDemand(part, known, minutes.count(None) + missing, days)


def find_too_many_replicas(candidate: Candidate) -> Finding | None:
    """More replicas than required; only advice if that is not proven."""
    workload = candidate.workload
    if len(workload.pods) < 2 or not has_replicas(workload):  # noqa: PLR2004 - the last one stays
        return None
    known, replicas = demand(candidate), replicas_of(candidate)
    if known is None or replicas is None:
        return _without_counts(candidate)
    evidence = _evidence(candidate)
    # A pod with power or memory traffic, but without a kernel, counts as always active.
    unseen = sum(
        any(each.is_used for each in devices) and not any(each.ran for each in devices)
        for _, devices in evidence.held
    )
    busy = min(known.peak + unseen, replicas)
    needed = max(1, known.with_headroom(busy))
    if needed >= replicas:
        return None
    words = known.words(busy, replicas)
    missing = tuple(_missing_proof(evidence, known))
    if missing:
        return evidence.advice(FindingName.TOO_MANY_REPLICAS, words, missing)
    proposal = _scale_down(evidence, replicas, needed, busy)
    if proposal.replicas == replicas:
        return None
    confidence = Confidence.HIGH if known.days else Confidence.MEDIUM
    finding = evidence.call(FindingName.TOO_MANY_REPLICAS, words, proposal)
    return dataclasses.replace(finding, confidence=confidence)


def find_too_few_replicas(candidate: Candidate) -> Finding | None:
    """Fewer replicas than required after a scale-down."""
    original, size, known = candidate.original_replicas, candidate.workload.size, demand(candidate)
    if original is None or known is None or isinstance(size, bool) or not size:
        return None
    target = min(original, known.with_headroom(known.peak))
    if target <= size:
        return None
    adds = (target - size) * _gpus_each(candidate, size)
    words = f"{target} of its original {original} replicas needed, with headroom; adds {gpus(adds)}"
    proposal = Proposal(Action.SCALE_UP, -adds, words, replicas=target)
    evidence = _evidence(candidate)
    return evidence.call(FindingName.TOO_FEW_REPLICAS, known.words(known.peak, size), proposal)


def _evidence(candidate: Candidate) -> Evidence:
    part = candidate.criteria.too_many_replicas
    return candidate.over(part, part.busyPercent, window=window_of(candidate))


def replicas_of(candidate: Candidate) -> int | None:
    """The number of replicas; None if each is a group of pods and the object does not say it."""
    size = candidate.workload.size
    if size is None or isinstance(size, bool):
        return None if candidate.workload.ref.kind in GROUPED else len(candidate.held)
    return size


def replicas_in_question(candidate: Candidate) -> bool:
    """Whether counts of active replicas may call for more or fewer."""
    known, replicas = demand(candidate), replicas_of(candidate)
    if known is None or candidate.original_replicas is not None:
        return known is not None
    return replicas is not None and max(1, known.with_headroom(min(known.peak, replicas))) < replicas


def window_of(candidate: Candidate) -> datetime.timedelta:
    """The shortest measured window that contains the one in which replicas are counted."""
    least = candidate.criteria.too_many_replicas.window
    return min(
        (span for span in candidate.criteria.windows if span >= least), default=candidate.criteria.idle.window
    )


def _missing_proof(evidence: Evidence, known: ReplicaDemand) -> Iterator[str]:
    """Reasons why fewer replicas may not be enough."""
    workload = evidence.candidate.workload
    if known.unknown:
        yield f"no data about active replicas for {known.unknown} of the minutes and hours that were checked"
    if workload.ref.kind not in GROUPED and workload.size not in {None, len(workload.pods)}:
        yield f"it is being scaled: {workload.size} replicas, {len(workload.pods)} pods"
    if len({(pod.devices, tuple(sorted(pod.resources.items()))) for pod, _ in evidence.held}) > 1:
        yield "its pods hold different GPUs, so they may not be interchangeable"
    yield from (issue.message for issue in first_issues(evidence, COMPLETENESS_CHECKS))


def _scale_down(evidence: Evidence, replicas: int, needed: int, busy: int) -> Proposal:
    quiet = sorted(
        (max((each.usage.activity_mean or 0.0 for each in devices), default=0.0), pod.ref.name)
        for pod, devices in evidence.held
        if not any(each.is_used for each in devices)
    )
    pods, is_whole = _leaving(evidence.candidate.workload, [name for _, name in quiet], replicas - needed)
    needed = needed if is_whole else replicas - len(pods)
    frees = (replicas - needed) * _gpus_each(evidence.candidate, replicas)
    words = f"{count(needed, 'replica')} needed, including {needed - busy} as headroom; frees {gpus(frees)}"
    return Proposal(Action.SCALE_DOWN, frees, words, replicas=needed, pods=pods)


def _leaving(workload: Workload, quiet: Sequence[str], most: int) -> tuple[tuple[str, ...], bool]:
    """Pods to remove, at most `most`, and whether each pod is a replica; pods of one replica go together."""
    row = kind_of(workload.ref)
    label = row.groups.replica if row is not None and row.groups is not None else ""
    replica = {pod.ref.name: pod.labels.get(label) or pod.ref.name for pod in workload.pods}
    going: list[str] = []
    for one in dict.fromkeys(replica[name] for name in quiet):
        pods = [name for name, of in replica.items() if of == one]
        if set(pods) <= set(quiet) and len(going) + len(pods) <= most:
            going += pods
    return tuple(going), len(set(replica.values())) == len(replica)


def _gpus_each(candidate: Candidate, replicas: int) -> float:
    return candidate.workload.gpus / max(replicas, 1)


def _without_counts(candidate: Candidate) -> Finding | None:
    """Without counts per minute: advice if some pods worked and others did not."""
    evidence = candidate.over_idle()
    if not evidence.is_in_use or first_issues(evidence, COMPLETENESS_CHECKS):
        return None
    busy = sum(any(each.is_used for each in devices) for _, devices in evidence.held)
    if busy == len(evidence.held):
        return None
    words = (
        f"{busy} of {len(evidence.held)} pods were active in the last {span(evidence.window)}; "
        "unknown how many at the same time"
    )
    return evidence.advice(FindingName.TOO_MANY_REPLICAS, words, ())
