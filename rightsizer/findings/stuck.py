"""Stuck: its GPUs spin at full utilization without power or memory traffic, as a hung collective does. Pure.

The one finding in which activity speaks for work, and two other signals against it.
"""

import datetime
from collections.abc import Callable

from rightsizer.findings.data_quality import INCOMPLETE, first_doubt
from rightsizer.findings.evidence import Case, Seen, key_of, levels
from rightsizer.findings.kind_traits import has_replicas
from rightsizer.model import Finding, FindingName, Usage, Usages, Verdict
from rightsizer.text import span

RECENT = datetime.timedelta(minutes=10)
"""The last minutes: what was at work in them was so in every longer window."""


def find_stuck(case: Case) -> Finding | None:
    """A workload none of whose devices works, while one of them at least spins; None where one signal is missing.

    Ranks wait for each other, so one that spins speaks for all; replicas do not, so the others may be well.
    """
    part = case.criteria.stuck
    evidence = case.over(part, case.criteria.idle.maxUtilizationPercent)
    seen = evidence.seen
    spinning = sum(_spins(each, part.minMeanPercent) for each in seen)
    if not spinning or evidence.is_shared:
        return None
    if any(each.draws_power is not False or each.moves_memory is not False for each in seen):
        return None
    if first_doubt(evidence, INCOMPLETE) is not None:
        return None
    whose = "its GPU" if len(seen) == 1 else f"{spinning} of its {len(seen)} GPUs"
    spun = f"{whose} spun at {part.minMeanPercent:g}% or more"
    pods = [
        pod for pod, devices in evidence.held if any(_spins(each, part.minMeanPercent) for each in devices)
    ]
    is_whole = len(pods) == len(evidence.held) or not has_replicas(case.workload)
    names = () if is_whole else (f"the others may be well: delete {', '.join(pod.ref.name for pod in pods)}",)
    words = (
        f"{spun} for {span(evidence.window)} at an idle board's power and without memory traffic",
        "perhaps a hung collective: only a restart helps",
        *names,
        levels(evidence),
    )
    return evidence.finding(FindingName.STUCK, Verdict.ACT if is_whole else Verdict.KEEP, words)


def could_be_stuck(case: Case, recent: Callable[[], Usages]) -> bool:
    """Whether it could be found stuck over a window that was not measured, by a longer one that was.

    What never came near full utilization did not spin, and what drew power or moved memory in the last minutes works.

    Args:
        case: The workload.
        recent: The highest of everything in the last minutes.
    """
    part = case.criteria.stuck
    longer = min((span for span in case.measured.usages if span >= part.window), default=None)
    if longer is None:
        return True
    known = case.measured.usages[longer]
    if not any(
        _may_spin(usage, part.minMeanPercent) for pod in case.held for usage in known.get(key_of(pod), ())
    ):
        return False
    if part.window < RECENT:
        return True
    return not any(seen.draws_power or seen.moves_memory for seen in case.glimpsed(recent()))


def _may_spin(usage: Usage, min_mean_percent: float) -> bool:
    peak = usage.activity_peak
    return bool(usage.invalid) or peak is None or peak * 100 >= min_mean_percent


def _spins(seen: Seen, min_mean_percent: float) -> bool:
    mean = seen.usage.activity_mean
    return bool(seen.ran) and mean is not None and mean * 100 >= min_mean_percent
