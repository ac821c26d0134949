"""What else has to be measured before the workloads can be judged: a second, narrow round of questions. Pure.

A pause on record, or replicas counted by the minute, cost Prometheus days of samples. They are worth that only where
they can decide: for workloads that would be found wanting otherwise.
"""

import dataclasses
import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence

from rightsizer.findings.evidence import Case, Seen, key_of
from rightsizer.findings.idle import find_idle
from rightsizer.findings.idle_history import began
from rightsizer.findings.kind_traits import has_replicas
from rightsizer.findings.oversized_gpu import find_oversized_gpu
from rightsizer.findings.replicas import is_in_question, window_of
from rightsizer.findings.stuck import could_be_stuck
from rightsizer.findings.too_many_gpus import find_too_many_gpus
from rightsizer.kinds.patches import original_replicas
from rightsizer.model import Fleet, Measured, PodKey, Usages, Verdict, Workload
from rightsizer.policy.criteria import Criteria
from rightsizer.policy.schema import TooManyReplicas

Pods = Mapping[datetime.timedelta, frozenset[PodKey]]


def narrow(
    fleet: Fleet,
    measured: Measured,
    recent: Callable[[], Usages],
    criteria_of: Callable[[Workload], Sequence[Criteria]],
) -> Pods:
    """The windows that are still to be asked for, and the pods that are to be asked about in each.

    Args:
        fleet: All workloads and nodes.
        measured: Usage over the windows that everybody is asked about over, and how many replicas worked at once.
        recent: The highest of everything in the last minutes; asked for where it can matter.
        criteria_of: Everything by which a workload is judged.
    """
    wanted: dict[datetime.timedelta, set[PodKey]] = {}
    for workload in fleet.workloads:
        for criteria in criteria_of(workload):
            case = Case(workload, measured, criteria, fleet)
            for window in _windows(case, recent):
                wanted.setdefault(window, set()).update(map(key_of, case.held))
    return {window: frozenset(pods) for window, pods in wanted.items()}


def _windows(case: Case, recent: Callable[[], Usages]) -> Iterator[datetime.timedelta]:
    missing = case.criteria.windows - case.measured.usages.keys()
    if not missing:
        return
    if case.criteria.stuck.window in missing and could_be_stuck(case, recent):
        yield case.criteria.stuck.window
    if window_of(case) in missing and is_in_question(case):
        yield window_of(case)


ALWAYS_BUSY = 0.95
"""A pod whose mean activity is above this has no turns to take."""


@dataclasses.dataclass(frozen=True, slots=True)
class HistoryRequest:
    """Pods whose history is asked for in the same way.

    Attributes:
        span: How far back.
        percent: Utilization above which a slot is busy.
        pods: From when on there is something to know about each; None where that is not known.
    """

    span: datetime.timedelta
    percent: float
    pods: Mapping[PodKey, datetime.datetime | None]


@dataclasses.dataclass(frozen=True, slots=True)
class ConcurrencyRequest:
    """Workloads whose replicas are counted in the same way."""

    criteria: TooManyReplicas
    workloads: tuple[Workload, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """The second round of questions; each in a fixed order.

    Attributes:
        waits: Whether what pods wait for can matter to anyone.
    """

    histories: tuple[HistoryRequest, ...]
    concurrency: tuple[ConcurrencyRequest, ...]
    waits: bool


def wanted(fleet: Fleet, measured: Measured, criteria_of: Callable[[Workload], Sequence[Criteria]]) -> Wanted:
    """What to ask next, by what the first round said.

    Args:
        fleet: All workloads and nodes.
        measured: The first round: usage over every window.
        criteria_of: Everything by which a workload is judged; one at least.
    """
    histories: dict[tuple[datetime.timedelta, float], dict[PodKey, datetime.datetime | None]] = {}
    replicas: dict[TooManyReplicas, list[Workload]] = {}
    is_waiting = False
    patience = _Patience()
    for workload in fleet.workloads:
        criteria = criteria_of(workload)
        cases = [Case(workload, measured, patience.without(each), fleet) for each in criteria]
        if any(map(_would_act, cases)):
            reach = max(each.idle.history for each in criteria)
            percent = min(each.idle.maxUtilizationPercent for each in criteria)
            pods = histories.setdefault((reach, percent), {})
            pods.update((key_of(pod), began(pod)) for pod in cases[0].held)
        if has_replicas(workload) and any(map(_takes_turns, cases)):
            replicas.setdefault(criteria[0].too_many_replicas, []).append(workload)
        is_waiting = is_waiting or any(map(_uses_little, cases))
    return Wanted(
        histories=tuple(HistoryRequest(*key, histories[key]) for key in sorted(histories)),
        concurrency=tuple(ConcurrencyRequest(part, tuple(found)) for part, found in replicas.items()),
        waits=is_waiting,
    )


class _Patience:
    """The criteria as they would be if pauses of the past did not matter."""

    def __init__(self) -> None:
        # Criteria are the rulebook's own objects, a few for all workloads; kept, so that no id comes round again.
        self._known: dict[int, tuple[Criteria, Criteria]] = {}

    def without(self, criteria: Criteria) -> Criteria:
        """The criteria without idleFactor."""
        if id(criteria) not in self._known:
            idle = criteria.idle.model_copy(update={"idleFactor": 0.0})
            self._known[id(criteria)] = (criteria, dataclasses.replace(criteria, idle=idle))
        return self._known[id(criteria)][1]


def _would_act(case: Case) -> bool:
    """Whether a finding calls for something but for what the history may say."""
    found = (find(case) for find in (find_idle, find_too_many_gpus, find_oversized_gpu))
    return any(finding is not None and finding.verdict is Verdict.ACT for finding in found)


def _takes_turns(case: Case) -> bool:
    """Whether some of its replicas could be idle while others work, or we took some that are missed now."""
    if original_replicas(case.workload.annotations) is not None:
        return True
    held = case.over_idle().held
    return len(held) > 1 and not all(any(map(_is_always_busy, devices)) for _, devices in held)


def _is_always_busy(seen: Seen) -> bool:
    mean = seen.usage.activity_mean
    return mean is not None and mean >= ALWAYS_BUSY


def _uses_little(case: Case) -> bool:
    part = case.criteria.input_bound
    evidence = case.over(part, case.criteria.idle.maxUtilizationPercent)
    means = [seen.usage.activity_mean for seen in evidence.seen]
    return any(mean is not None and mean * 100 <= part.maxMeanPercent for mean in means)
