"""Scrape intervals of a job's targets, by the samples of each use in each slot, and the samples to expect. Pure."""

import array
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from rightsizer.model import Device
from rightsizer.usage.slot_grid import COUNT, Counts
from rightsizer.usage.source_metrics import SeriesLabels, UseKey

HALF = 0.5

_STEADY_CELLS = 12
"""With as many samples in each of these, a series was scraped at one interval; losses are more here and fewer there."""
_STEADY = 0.2
"""Share of its samples by which a cell may have fewer than another one all the same; one fewer is always chance."""
_MOST_CHANGE = 12
"""Times that one scrape interval is longer than another: from 5 s to a minute, or from 15 s to three."""

CountsByUse = dict[UseKey, Counts]

Scrapes = Callable[[str, Collection[str]], Iterable[tuple[str, Counts]]]
"""Scrapes of a job's targets in each slot, failed ones, too; nothing of targets of which the store does not tell."""

_Key = TypeVar("_Key")


def add_highest(counts: dict[_Key, Counts], key: _Key, row: Counts) -> None:
    """Set the counts of a use; of several rows, the highest count of each slot."""
    before = counts.get(key)
    if before is None or before == row:
        counts[key] = row
    else:
        counts[key] = array.array(COUNT, map(max, before, row))


def by_interval(series: Iterable[tuple[SeriesLabels, Counts]], scrapes: Scrapes) -> list[CountsByUse]:
    """The highest count of each use by each job, apart for targets of a job that are scraped at another interval."""
    jobs: dict[str, list[tuple[SeriesLabels, Counts]]] = {}
    for labels, row in series:
        jobs.setdefault(labels.job, []).append((labels, row))
    return [counts for job, own in jobs.items() for counts in _of_job(own, functools.partial(scrapes, job))]


def _of_job(
    series: Sequence[tuple[SeriesLabels, Counts]],
    scrapes: Callable[[Collection[str]], Iterable[tuple[str, Counts]]],
) -> Collection[CountsByUse]:
    """Those of one job; where it seems to have several intervals, each target's scrapes are beside its uses.

    They are as a use that lost no sample, so lost samples are no longer interval.
    Where the job has no sample at all, the store may lack those of everything.
    """
    found = _by_interval(series)
    densest = highest_counts(row for _, row in series)
    if len(found) > 1 or _has_longer_interval(densest):
        job = series[0][0].job
        attempts = [
            (of_target(job, target), array.array(COUNT, map(_if_any, row, densest)))
            for target, row in scrapes({labels.target for labels, _ in series})
        ]
        found = _by_interval([*series, *attempts]) if attempts else found
    return found


def of_target(job: str, target: str) -> SeriesLabels:
    """The labels of a use by no pod, which loses no sample of its target."""
    return SeriesLabels(("", "", target, ""), Device(""), "", job, "", target)


def _by_interval(series: Iterable[tuple[SeriesLabels, Counts]]) -> Collection[CountsByUse]:
    """Those of one job.

    Targets have an interval of their own if most of their cells are alike. Others lost samples, and are compared with
    those that have the most. Targets of one use are copies, or an exporter that moved, and taken together.
    """
    uses: CountsByUse = {}
    targets: dict[UseKey, str] = {}
    linked: dict[str, str] = {}
    for labels, row in series:
        if (key := labels.key) is not None:
            add_highest(uses, key, row)
            linked[_last(linked, labels.target)] = _last(linked, targets.setdefault(key, labels.target))
    rows: dict[str, dict[int, Counts]] = {}
    for key, row in uses.items():
        rows.setdefault(_last(linked, targets[key]), {})[id(row)] = row  # most are one
    densest = {target: highest_counts(some.values()) for target, some in rows.items()}
    most = max(map(max, densest.values()), default=0)
    own = {
        target: most if _are_alike(max(row), most) or not _is_steady(row) else max(row)
        for target, row in densest.items()
    }
    intervals: dict[int, int] = {}
    for count in sorted(set(own.values()), reverse=True):
        most = intervals[count] = most if _are_alike(count, most) else count
    found: dict[int, CountsByUse] = {}
    for key, row in uses.items():
        found.setdefault(intervals[own[_last(linked, targets[key])]], {})[key] = row
    return found.values()


def _last(linked: Mapping[str, str], target: str) -> str:
    """The end of a chain of targets."""
    while (after := linked.get(target, target)) != target:
        target = after
    return target


def _is_steady(row: Sequence[int]) -> bool:
    """Whether most of the cells with samples have as many, or one fewer by chance."""
    counts, most = list(filter(None, row)), max(row)
    return sum(count >= most - 1 for count in counts) > HALF * len(counts)


def highest_counts(rows: Iterable[Sequence[int]]) -> list[int]:
    """The highest count of each slot."""
    highest: list[int] = []
    for row in rows:
        highest = list(map(max, highest, row)) if highest else list(row)
    return highest


def expected_samples(highest: Sequence[int]) -> list[float]:
    """The samples of each cell that lacks none, by the highest count in it, and half of the highest of all.

    Where everything has fewer, but as many in each of a dozen cells, the scrape interval is longer there; only no
    change of it leaves next to nothing.
    """
    most, steady = max(highest, default=0), _steady(highest)
    least = min(1.0, most / _MOST_CHANGE)
    return [
        max(count, least if is_steady else HALF * most)
        for count, is_steady in zip(highest, steady, strict=True)
    ]


def _steady(highest: Sequence[int]) -> list[bool]:
    """Whether each cell is one of a dozen with as many samples, which may be a scrape interval."""
    most, steady = max(highest, default=0), [False] * len(highest)
    for first in range(len(highest) - _STEADY_CELLS + 1):
        some = highest[first : first + _STEADY_CELLS]
        if _are_alike(min(some), max(some)) and max(some) * _MOST_CHANGE >= most:
            steady[first : first + _STEADY_CELLS] = [True] * _STEADY_CELLS
    return steady


def _if_any(count: int, there: int) -> int:
    return count if there else 0


def _has_longer_interval(highest: Sequence[int]) -> bool:
    """Whether some cells have fewer samples than the others, and lack none by themselves."""
    most = max(highest, default=0)
    some = zip(highest, _steady(highest), strict=True)
    return any(is_steady and not _are_alike(count, most) for count, is_steady in some)


def _are_alike(count: int, most: int) -> bool:
    """Whether a cell has as many samples as another one, but for chance."""
    return most - count <= max(1.0, _STEADY * most)
