"""Whose use over a short window is worth a question: where it could be stuck, or its number of replicas is in question.

Everybody is asked about over the windows that every finding looks at. A shorter one that only few findings look at
matters to few workloads, which the longer ones and the last minutes tell. Pure.
"""

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence

from rightsizer.assess.evidence import Case, key_of
from rightsizer.assess.replicas import is_in_question, window_of
from rightsizer.assess.stuck import could_be_stuck
from rightsizer.model import Fleet, Measured, PodKey, Usages, Workload
from rightsizer.policy.criteria import Criteria

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
