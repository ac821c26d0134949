"""Too many or too few replicas: those of the busiest minute, plus the largest jump of the last hours. Pure.

Replicas take turns, so the idleness of one pod proves nothing. A replica whose use is unknown counts as busy for a
scale-down, and as idle for a scale-up: what is not known never leads to a change.
"""

import dataclasses
import datetime
import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from rightsizer.findings.data_quality import (
    COMPLETENESS_CHECKS,
    REPLICA_CHECKS,
    WORKLOAD_CHECKS,
    first_issues,
)
from rightsizer.findings.evidence import (
    Candidate,
    DeviceEvidence,
    Evidence,
    has_replicas,
    is_grouped,
    pod_key,
    roles_of,
)
from rightsizer.kinds import kind_of
from rightsizer.kinds.change_edits import group_name
from rightsizer.kinds.patches import lowered_replicas
from rightsizer.model import (
    Action,
    Confidence,
    Finding,
    FindingName,
    Pod,
    Proposal,
    Slot,
    Verdict,
    Workload,
)
from rightsizer.policy.thresholds import TooManyReplicas
from rightsizer.text import count, gpus, percent, span
from rightsizer.usage.active_replicas import NEAR

_MINUTE = datetime.timedelta(minutes=1)
_Minutes = npt.NDArray[np.int64]


def counted_window(part: TooManyReplicas) -> datetime.timedelta:
    """The window in which replicas are counted: the jumps of `jumpHistory`, and what each is compared with."""
    return part.window + part.leadTime + part.jumpHistory


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaNeed:
    """Replicas that are needed."""

    part: TooManyReplicas
    busy: int  # in the busiest minute of the window
    jump: int  # the most by which a minute exceeded the window that ended `leadTime` before, or a later one

    def replicas(self, busy: int | None = None) -> int:
        """The busy replicas with headroom; for another number of busy replicas on request."""
        busy = self.busy if busy is None else busy
        share = math.ceil(busy * self.part.headroomPercent / 100)
        return busy + max(share, self.jump, self.part.minHeadroom)


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaDemand:
    """Numbers of replicas that were active at the same time."""

    certain: ReplicaNeed  # without the replicas whose use is unknown
    possible: ReplicaNeed  # with them
    quietest: int  # active in the quietest minute, with the replicas whose use is unknown

    def words(self, replicas: int, unseen: int = 0) -> str:
        """The number of active replicas, and the time in which they were counted."""
        busy = min(self.possible.busy + unseen, replicas)
        words = f"at most {busy} of {replicas} replicas were active in the same minute"
        words += f" of the last {span(self.possible.part.window)}"
        without = busy - min(self.certain.busy, busy)
        return f"{words}, including {without} without complete data" if without else words


def demand(candidate: Candidate) -> ReplicaDemand | None:
    """The need by the minutes that were counted; None without counts."""
    workload, part = candidate.workload, candidate.criteria.tooManyReplicas
    concurrency = candidate.measured.concurrency.get(workload.ref.uid)
    if concurrency is None:
        return None
    length = max(1, counted_window(part) // _MINUTE)
    replicas = replicas_of(candidate) or len(workload.pods)
    certain = list(concurrency.busy[-length:])
    unseen = [*concurrency.unseen[-length:], *(0 for _ in certain)][: len(certain)]
    possible = [busy + most for busy, most in zip(certain, unseen, strict=True)]
    # A minute that was not counted may have had no demand, or demand for all.
    missing = length - len(certain)
    certain, possible = [0] * missing + certain, [replicas] * missing + possible
    most = replica_need(part, possible, certain)
    least = most if certain == possible else replica_need(part, certain, possible)
    return ReplicaDemand(certain=least, possible=most, quietest=min(possible))


def replica_need(part: TooManyReplicas, busy: Sequence[int], before: Sequence[int]) -> ReplicaNeed:
    """The need by the busy replicas of each minute; jumps are measured from those of `before`."""
    window, lead = max(1, part.window // _MINUTE), max(1, part.leadTime // _MINUTE)
    jump = max(0, *jumps(busy, before, window, lead))
    return ReplicaNeed(part, max(busy[-window:]), jump)


def jumps(busy: Sequence[int], before: Sequence[int], window: int, lead: int) -> list[int]:
    """Rises of each value above the highest of the window that ended `lead` before, or a later one."""
    peaks = _sliding(np.maximum, np.asarray(before[:-1], np.int64), window)
    found: list[int] = (np.asarray(busy[window + lead - 1 :]) - _sliding(np.minimum, peaks, lead)).tolist()
    return found


def _sliding(choose: np.ufunc, values: _Minutes, width: int) -> _Minutes:
    """The chosen one of each `width` values in a row: of ranges that overlap and double in length."""
    covered = 1
    while covered < width:
        step = min(covered, width - covered)
        values = choose(values[:-step], values[step:])
        covered += step
    return values


def find_too_many_replicas(candidate: Candidate) -> Finding | None:
    """More replicas than required, of one role if it has some; only advice if that is not proven."""
    if not roles_of(candidate.workload):
        return _too_many(candidate)
    found = [
        _in_role(candidate, role, part, finding)
        for role, part in candidate.roles.items()
        if (finding := _too_many(part)) is not None
    ]
    return max(found, key=lambda finding: finding.proposal.frees if finding.proposal else 0.0, default=None)


def _in_role(candidate: Candidate, role: str, part: Candidate, finding: Finding) -> Finding:
    """A finding about one role; only advice if replicas of the kind's roles are fields of other objects."""
    row, proposal = kind_of(candidate.workload.ref), finding.proposal
    words = (f"{role}: {finding.words[0]}", *finding.words[1:])
    if proposal is not None and (row is None or row.groups is None):
        words += ("replicas of a role are a field of another object, which its owner scales",)
        return dataclasses.replace(finding, verdict=Verdict.KEEP, words=words, proposal=None)
    if proposal is not None:
        others = len(candidate.workload.holding) - len(part.workload.holding)
        words_of_role = f"{role}: {proposal.words}"
        proposal = dataclasses.replace(proposal, role=role, of_other_roles=others, words=words_of_role)
    return dataclasses.replace(finding, words=words, proposal=proposal)


def _too_many(candidate: Candidate) -> Finding | None:
    workload = candidate.workload
    if len(workload.pods) < 2 or not has_replicas(workload):  # noqa: PLR2004 - the last one stays
        return None
    known, replicas = demand(candidate), replicas_of(candidate)
    if known is None or replicas is None:
        return _without_counts(candidate)
    evidence = _evidence(candidate)
    unproven = sum(_may_be_active(evidence, *held) for held in evidence.held)
    busy = min(known.possible.busy + unproven, replicas)
    needed = max(1, known.possible.replicas(busy))
    if not is_worth_it(candidate.criteria.tooManyReplicas, replicas, needed):
        return _by_load(evidence, replicas)
    words = known.words(replicas, unproven)
    missing = tuple(_missing_proof(evidence))
    if missing:
        return evidence.advice(FindingName.TOO_MANY_REPLICAS, words, missing)
    proposal = _scale_down(evidence, replicas, needed, known.possible)
    if proposal.replicas == replicas:
        return None
    finding = evidence.call(FindingName.TOO_MANY_REPLICAS, words, proposal)
    is_complete = not unproven and known.certain == known.possible
    return dataclasses.replace(finding, confidence=Confidence.HIGH if is_complete else Confidence.MEDIUM)


def is_worth_it(part: TooManyReplicas, replicas: int, needed: int) -> bool:
    """Whether a scale-down to the needed replicas removes the share that a change is worth."""
    return needed < replicas and (replicas - needed) * 100 >= part.minSavingPercent * replicas


def _may_be_active(evidence: Evidence, pod: Pod, devices: tuple[DeviceEvidence, ...]) -> bool:
    """Whether a pod may be active in every minute: it is not proven idle, or has something other than activity."""
    load = evidence.candidate.loads.get(pod_key(pod))
    every = (*devices, *evidence.others.get(pod_key(pod), ()))
    is_used = any(gpu.is_used for gpu in every) or (load is not None and load.has_requests)
    if is_used and not any(gpu.ran for gpu in every):
        return True
    if len(devices) > 1 and min(gpu.usage.coverage for gpu in devices) < 1 - 2 * NEAR / evidence.window:
        return True  # a replica is seen in a minute if one of its devices is, and longer gaps show only in its coverage
    return bool(first_issues(dataclasses.replace(evidence, held=((pod, devices),)), REPLICA_CHECKS))


def find_too_few_replicas(candidate: Candidate) -> Finding | None:
    """Fewer replicas than required after a scale-down, of the workload or of one of its roles."""
    row, size = kind_of(candidate.workload.ref), candidate.workload.size
    if row is None or row.groups is None:
        original = candidate.original_replicas
        return None if isinstance(size, bool) or not size else _too_few(candidate, original, size)
    lowered = {group_name(edit.path[:-1]): edit for edit in lowered_replicas(candidate.workload.annotations)}
    if not row.roles:
        taken = sum(edit.before - edit.after for edit in lowered.values())
        now = len(candidate.held)
        return _too_few(candidate, now + taken, now, gives_all=True) if taken else None
    found = [
        _in_role(candidate, role, part, finding)
        for role, part in candidate.roles.items()
        if role in lowered
        and (finding := _too_few(part, lowered[role].before, lowered[role].after)) is not None
    ]
    return min(found, key=lambda finding: finding.proposal.frees if finding.proposal else 0.0, default=None)


def _too_few(
    candidate: Candidate, original: int | None, size: int, *, gives_all: bool = False
) -> Finding | None:
    """Fewer replicas than required, of originally more; the proposal may give back all."""
    known = demand(candidate)
    if original is None or known is None:
        return None
    needed = min(original, known.certain.replicas())
    if needed <= size:
        return None
    target = original if gives_all else needed
    adds = (target - size) * _gpus_each(candidate, size)
    words = f"{needed} of its original {original} replicas needed, with headroom; adds {gpus(adds)}"
    proposal = Proposal(Action.SCALE_UP, -adds, words, replicas=target)
    words = f"{known.certain.busy} of {size} replicas were active in the same minute of the last "
    words += span(known.certain.part.window)
    return _evidence(candidate).call(FindingName.TOO_FEW_REPLICAS, words, proposal)


def _evidence(candidate: Candidate) -> Evidence:
    part = candidate.criteria.tooManyReplicas
    return candidate.over(part, part.busyPercent, window=window_of(candidate))


def replicas_of(candidate: Candidate) -> int | None:
    """The number of replicas; None if each is a group of pods and the object does not say it."""
    size = candidate.workload.size
    if size is None or isinstance(size, bool):
        return None if is_grouped(candidate.workload) else len(candidate.held)
    return size


def replicas_in_question(candidate: Candidate) -> bool:
    """Whether counts of active replicas may call for more or fewer."""
    if roles_of(candidate.workload):
        return any(_in_question(part) for part in candidate.roles.values())
    return _in_question(candidate)


def _in_question(candidate: Candidate) -> bool:
    known, replicas = demand(candidate), replicas_of(candidate)
    if known is None or candidate.original_replicas is not None:
        return known is not None
    part = candidate.criteria.tooManyReplicas
    return replicas is not None and is_worth_it(part, replicas, max(1, known.possible.replicas()))


def window_of(candidate: Candidate) -> datetime.timedelta:
    """The shortest measured window that contains the one in which replicas are counted."""
    least = candidate.criteria.tooManyReplicas.window
    return min(
        (span for span in candidate.criteria.windows if span >= least), default=candidate.criteria.idle.window
    )


def _missing_proof(evidence: Evidence) -> Iterator[str]:
    """Reasons why fewer replicas may not be enough."""
    workload = evidence.candidate.workload
    if not is_grouped(workload) and workload.size not in {None, len(workload.pods)}:
        yield f"it is being scaled: {workload.size} replicas, {len(workload.pods)} pods"
    if len({(pod.devices, tuple(sorted(pod.resources.items()))) for pod, _ in evidence.held}) > 1:
        yield "its pods hold different GPUs, so they may not be interchangeable"
    if any(not gpu.usage.is_own for _, gpu in evidence.elsewhere):
        yield "its pods can use GPUs that they do not hold, so it is unknown how many work at the same time"
    if queued := max((load.queued or 0 for load in evidence.candidate.loads.values()), default=0):
        window = evidence.candidate.criteria.tooManyReplicas.window
        yield f"{queued:g} requests waited at a time in the last {span(window)}"
    yield from (issue.message for issue in first_issues(evidence, WORKLOAD_CHECKS))


def _by_load(evidence: Evidence, replicas: int) -> Finding | None:
    """Advice, where all replicas work, but their KV caches are hardly used and no request waits."""
    part, loads = evidence.candidate.criteria.tooManyReplicas, evidence.candidate.loads
    caches = [load.cache for load in loads.values() if load.cache is not None and load.queued == 0]
    if len(caches) < len(evidence.held) or is_grouped(evidence.candidate.workload):
        return None
    needed = max(1, math.ceil(sum(caches) * 100 / part.maxCachePercent)) + part.minHeadroom
    if not is_worth_it(part, replicas, needed):
        return None
    words = f"KV caches were at most {percent(max(caches))} full and no request waited in the last "
    words += f"{span(part.window)}: {needed} of {replicas} replicas suffice"
    reason = "all of its replicas work, so only an autoscaler should scale it by its requests"
    return evidence.advice(FindingName.TOO_MANY_REPLICAS, words, (reason,))


def _scale_down(evidence: Evidence, replicas: int, needed: int, need: ReplicaNeed) -> Proposal:
    used = {pod.ref.name for pod, gpu in evidence.elsewhere if gpu.is_used}
    quiet = {pod.ref.name for pod, devices in evidence.held if not any(gpu.is_used for gpu in devices)} - used
    # What worked least goes first: the history of those that stay must show when the workload works.
    names = [name for name in _by_activity(evidence.candidate) if name in quiet]
    pods, is_whole = _leaving(evidence.candidate.workload, names, replicas - needed)
    needed = needed if is_whole else replicas - len(pods)
    frees = (replicas - needed) * _gpus_each(evidence.candidate, replicas)
    words = (
        f"{count(needed, 'replica')} needed, with headroom (largest jump in {span(need.part.jumpHistory)}: "
    )
    words += f"{need.jump}); frees {gpus(frees)}"
    return Proposal(Action.SCALE_DOWN, frees, words, replicas=needed, pods=pods)


def _by_activity(candidate: Candidate) -> Sequence[str]:
    """The pods by activity in their history, if it was read, and in the longest measured window, least first."""
    by_window = [usages for _, usages in sorted(candidate.measured.usages.items(), reverse=True)]

    def activity(pod: Pod) -> tuple[int, float]:
        history = candidate.measured.histories.get(pod_key(pod))
        known = next((usages[pod_key(pod)] for usages in by_window if pod_key(pod) in usages), ())
        mean = max((usage.activity_mean or 0.0 for usage in known), default=0.0)
        return history.slots.count(Slot.BUSY) if history else 0, mean

    return [pod.ref.name for pod in sorted(candidate.held, key=lambda pod: (activity(pod), pod.ref.name))]


def _leaving(workload: Workload, quiet: Sequence[str], most: int) -> tuple[tuple[str, ...], bool]:
    """Pods to remove, at most `most`, and whether each pod is a replica; pods of one replica go together."""
    row = kind_of(workload.ref)
    label = row.groups.replica if row is not None and row.groups is not None else ""
    replica = {pod.ref.name: pod.labels.get(label) or pod.ref.name for pod in workload.pods}
    going: list[str] = []
    for group in dict.fromkeys(replica[name] for name in quiet):
        pods = [name for name, of in replica.items() if of == group]
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
    busy = sum(any(gpu.is_used for gpu in devices) for _, devices in evidence.held)
    if busy == len(evidence.held):
        return _by_load(evidence, replicas_of(candidate) or busy)
    words = (
        f"{busy} of {len(evidence.held)} pods were active in the last {span(evidence.window)}; "
        "unknown how many at the same time"
    )
    return evidence.advice(FindingName.TOO_MANY_REPLICAS, words, ())
