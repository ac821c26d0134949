"""Follow-up queries: what else must be measured before workloads can be judged. Pure.

Histories and counts of active replicas load days of samples from Prometheus. They are only queried for
workloads with a finding that depends on them.
"""

import dataclasses
import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence

from rightsizer.findings.evidence import Candidate, DeviceEvidence, has_replicas, pod_key
from rightsizer.findings.idle import could_be_idle
from rightsizer.findings.idle_history import observed_since
from rightsizer.findings.oversized_gpu import find_oversized_gpu
from rightsizer.findings.replicas import replicas_in_question, window_of
from rightsizer.findings.stuck import could_be_stuck, needs_work_level
from rightsizer.findings.too_many_gpus import find_too_many_gpus
from rightsizer.model import Fleet, Measured, PodKey, Usages, Verdict, Workload
from rightsizer.policy.effective import Criteria
from rightsizer.policy.thresholds import TooManyReplicas

Pods = Mapping[datetime.timedelta, frozenset[PodKey]]


def short_window_queries(
    fleet: Fleet,
    measured: Measured,
    recent: Callable[[], Usages],
    criteria_of: Callable[[Workload], Sequence[Criteria]],
) -> Pods:
    """Windows that must still be measured, with the pods to query for each.

    `measured` holds the windows that all pods are queried for, and counts of active replicas. `recent` returns the
    highest values of the last minutes, and is only called if needed. `criteria_of` returns all criteria of a workload.
    """
    found: dict[datetime.timedelta, set[PodKey]] = {}
    for workload in fleet.workloads:
        for criteria in criteria_of(workload):
            candidate = Candidate(workload, measured, criteria, fleet)
            for window in _windows(candidate, recent):
                found.setdefault(window, set()).update(map(pod_key, candidate.held))
    return {window: frozenset(pods) for window, pods in found.items()}


def _windows(candidate: Candidate, recent: Callable[[], Usages]) -> Iterator[datetime.timedelta]:
    missing = candidate.criteria.windows - candidate.wide_windows
    if not missing:
        return
    if candidate.criteria.stuck.window in missing and could_be_stuck(candidate, recent):
        yield candidate.criteria.stuck.window
    if window_of(candidate) in missing and replicas_in_question(candidate):
        yield window_of(candidate)


_ALWAYS_BUSY = 0.95
"""Mean activity above which a replica is never idle while others work."""


@dataclasses.dataclass(frozen=True, slots=True)
class HistoryRequest:
    """Pods whose history is queried in the same way."""

    span: datetime.timedelta  # how far back
    percent: float  # utilization above which a slot is busy
    # The pods, each with the start of its data; None if unknown
    pods: Mapping[PodKey, datetime.datetime | None]


@dataclasses.dataclass(frozen=True, slots=True)
class ConcurrencyRequest:
    """Workloads whose active replicas are counted in the same way."""

    criteria: TooManyReplicas
    workloads: tuple[Workload, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class FollowupQueries:
    """The second round of queries, in a fixed order."""

    histories: tuple[HistoryRequest, ...]
    concurrency: tuple[ConcurrencyRequest, ...]
    waits: bool  # whether CPU and I/O waits matter for any workload


def followup_queries(
    fleet: Fleet, measured: Measured, criteria_of: Callable[[Workload], Sequence[Criteria]]
) -> FollowupQueries:
    """The queries that the first round of measurements calls for: usage over every window."""
    histories: dict[tuple[datetime.timedelta, float], dict[PodKey, datetime.datetime | None]] = {}
    replicas: dict[TooManyReplicas, list[Workload]] = {}
    is_waiting = False
    without_history = _WithoutHistory()
    for workload in fleet.workloads:
        every = criteria_of(workload)
        candidates = [Candidate(workload, measured, without_history(criteria), fleet) for criteria in every]
        if any(map(_would_act, candidates)):
            reach = max(criteria.idle.history for criteria in every)
            percent = min(criteria.idle.maxUtilizationPercent for criteria in every)
            pods = histories.setdefault((reach, percent), {})
            pods.update((pod_key(pod), observed_since(pod)) for pod in candidates[0].held)
        if has_replicas(workload) and any(map(_may_alternate, candidates)):
            parts = [part.workload for part in candidates[0].roles.values()] or [workload]
            replicas.setdefault(every[0].tooManyReplicas, []).extend(parts)
        is_waiting = is_waiting or any(map(_uses_little, candidates))
    return FollowupQueries(
        histories=tuple(HistoryRequest(*key, histories[key]) for key in sorted(histories)),
        concurrency=tuple(ConcurrencyRequest(part, tuple(found)) for part, found in replicas.items()),
        waits=is_waiting,
    )


def last_queries(
    fleet: Fleet, measured: Measured, criteria_of: Callable[[Workload], Sequence[Criteria]]
) -> tuple[tuple[HistoryRequest, ...], frozenset[PodKey]]:
    """Pods whose GPUs spin, and pods with a finding that calls for fewer or smaller GPUs, with every window measured.

    Power and memory traffic at work is queried of the former, and NVLink, which may connect what they hold, of these.
    """
    found: dict[tuple[datetime.timedelta, float], dict[PodKey, datetime.datetime | None]] = {}
    resized: set[PodKey] = set()
    for workload in fleet.workloads:
        for criteria in criteria_of(workload):
            candidate = Candidate(workload, measured, criteria, fleet)
            if needs_work_level(candidate):
                key = (criteria.idle.history, criteria.idle.maxMemoryTrafficPercent)
                pods = found.setdefault(key, {})
                pods.update((pod_key(pod), observed_since(pod)) for pod in candidate.held)
            if _would_be_resized(candidate):
                resized.update(map(pod_key, candidate.held))
    return tuple(HistoryRequest(*key, found[key]) for key in sorted(found)), frozenset(resized)


class _WithoutHistory:
    """Criteria as if earlier idle periods did not matter, cached: few criteria serve all workloads."""

    def __init__(self) -> None:
        # keeps the keys alive, so that no id is reused
        self._known: dict[int, tuple[Criteria, Criteria]] = {}

    def __call__(self, criteria: Criteria) -> Criteria:
        """The criteria without idleFactor."""
        if id(criteria) not in self._known:
            idle = criteria.idle.model_copy(update={"idleFactor": 0.0})
            self._known[id(criteria)] = (criteria, criteria.model_copy(update={"idle": idle}))
        return self._known[id(criteria)][1]


def _would_act(candidate: Candidate) -> bool:
    """Whether a finding would call for a change, unless the history prevents it."""
    return could_be_idle(candidate) or _would_be_resized(candidate)


def _would_be_resized(candidate: Candidate) -> bool:
    found = (find(candidate) for find in (find_too_many_gpus, find_oversized_gpu))
    return any(finding is not None and finding.verdict is Verdict.ACT for finding in found)


def _may_alternate(candidate: Candidate) -> bool:
    """Whether some replicas could be idle while others work, or the workload is scaled down."""
    if candidate.original_replicas is not None:
        return True
    held = candidate.over_idle().held
    return len(held) > 1 and not all(any(map(_is_always_busy, devices)) for _, devices in held)


def _is_always_busy(device: DeviceEvidence) -> bool:
    mean = device.usage.activity_mean
    return mean is not None and mean >= _ALWAYS_BUSY


def _uses_little(candidate: Candidate) -> bool:
    part = candidate.criteria.inputBound
    means = [gpu.usage.activity_mean for gpu in candidate.over(part).devices]
    return any(mean is not None and mean * 100 <= part.maxMeanPercent for mean in means)
