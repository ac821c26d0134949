"""How many of a workload's replicas were at work in the same minute: lately, and in the coming hour of earlier days.

Replicas are counted by Prometheus (`minutes.py`), under the stem of their pods' names, so that pods of earlier days
count for their workload though their names are gone. A minute in which some replica's samples are missing is unknown.
"""

import bisect
import collections
import dataclasses
import datetime
import itertools
import re
from collections.abc import Collection, Mapping, Sequence

from rightsizer.model import Concurrency
from rightsizer.observe.signals.asking import Asker
from rightsizer.observe.signals.complete import DAY, MINUTE, Rounds, Stretch
from rightsizer.observe.signals.minutes import Column, Minutes, minutes_of
from rightsizer.observe.signals.stems import OTHERS, SUFFIXES, Stem

HOUR = datetime.timedelta(hours=1)
JITTER = 1.1

NEAR = datetime.timedelta(minutes=5)
"""A device that has samples so shortly before and after a minute was there in it. Lately, where the pods that are there
now must have samples anyhow, more would only keep more of the last minutes from being looked at."""


@dataclasses.dataclass(frozen=True, slots=True)
class Replicas:
    """A workload whose replicas take each other's place.

    Attributes:
        pods: Its pods that hold GPUs now, with the instant from which on each should have samples.
        created: When the workload came; of days before there is nothing to say.
        window: The trailing window.
        days: How many earlier days to look at.
        threshold: Activity above this (0 to 1) counts as work.
    """

    uid: str
    namespace: str
    kind: str
    pods: Mapping[str, datetime.datetime]
    created: datetime.datetime | None = None
    window: datetime.timedelta = HOUR
    days: int = 7
    threshold: float = 0.01

    def stems(self) -> dict[tuple[str, str], set[str]]:
        """Stem and suffix's pattern → the replicas of its present pods; empty where a name fits no pattern."""
        found: dict[tuple[str, str], set[str]] = {}
        for name in self.pods:
            for suffix in SUFFIXES.get(self.kind, OTHERS):
                match = re.fullmatch(f"(.+?)-({suffix})", name)
                if match:
                    found.setdefault((match[1], suffix), set()).add(match.groups()[-1])
                    break
            else:
                return {}
        return found


def concurrency(asker: Asker, requests: Sequence[Replicas], at: datetime.datetime) -> dict[str, Concurrency]:
    """How many replicas of each of these workloads were at work at the same time, by UID.

    Workloads whose pods' names fit no pattern are left out.

    Raises:
        PrometheusError: Something could not be read whole.
    """
    alike = collections.defaultdict(list)
    for request in sorted(requests, key=lambda one: one.uid):
        if request.stems():
            alike[request.window, request.days, request.threshold].append(request)
    found: dict[str, Concurrency] = {}
    # Where samples are taken once a minute, a little more than a minute surely holds one.
    reach = max(MINUTE, datetime.timedelta(seconds=round(JITTER * asker.interval_s(at))))
    for (window, days, threshold), group in sorted(alike.items()):
        lately = Stretch(at, max(1, int(window / MINUTE)), NEAR)
        before = [Stretch(at - day * DAY + HOUR, 60, HOUR) for day in range(1, days + 1)]
        rounds = [Rounds(tuple(each), at) for each in ([lately], before) if each]
        trailing, *earlier = minutes_of(asker, _stems(group), rounds, threshold=threshold, reach=reach)
        for request in group:
            found[request.uid] = Concurrency(
                _trailing(request, trailing, at, max(1, int(window / MINUTE)), reach),
                _earlier(request, earlier, at),
            )
    return found


def _stems(requests: Sequence[Replicas]) -> dict[str, set[Stem]]:
    found: dict[str, set[Stem]] = {}
    for request in requests:
        for stem, suffix in request.stems():
            found.setdefault(suffix, set()).add((request.namespace, stem))
    return found


def _trailing(
    request: Replicas,
    counted: Mapping[Stem, Minutes],
    at: datetime.datetime,
    count: int,
    reach: datetime.timedelta,
) -> tuple[int | None, ...]:
    """For each minute how many were at work; unknown where samples are missing of a pod that is there now."""
    busy, seen, gaps = _together([counted[stem] for stem in _own(request) if stem in counted])
    starts = sorted(start + reach + MINUTE for start in _starts(request))
    found: list[int | None] = []
    for place in range(count):
        expected = bisect.bisect_right(starts, at - (count - 1 - place) * MINUTE)
        is_known = seen.get(place, 0) >= expected and place not in gaps
        found.append(busy.get(place, 0) if is_known else None)
    return tuple(found)


def _starts(request: Replicas) -> list[datetime.datetime]:
    """When each present replica began: its latest pod, where it is several."""
    starts: dict[tuple[str, str], datetime.datetime] = {}
    for name, start in request.pods.items():
        alone = dataclasses.replace(request, pods={name: start})
        for (stem, _), replicas in alone.stems().items():
            for replica in replicas:
                starts[stem, replica] = max(start, starts.get((stem, replica), start))
    return list(starts.values())


def _earlier(
    request: Replicas, days: Sequence[Mapping[Stem, Minutes]], at: datetime.datetime
) -> tuple[int | None, ...]:
    """Of each earlier day the most at work in a minute of that hour; unknown where somebody's samples are missing."""
    found: list[int | None] = []
    stems = _own(request)
    for day, counted in zip(itertools.count(1), days, strict=False):
        if request.created is not None and request.created > at - day * DAY:
            break
        busy, seen, gaps = _together([counted[stem] for stem in stems if stem in counted])
        is_known = not gaps and all(map(seen.get, range(60)))
        found.append(max(busy.values(), default=0) if is_known else None)
    return tuple(found)


def _own(request: Replicas) -> list[Stem]:
    return [(request.namespace, stem) for stem, _ in request.stems()]


def _together(minutes: Sequence[Minutes]) -> tuple[Column, Column, Collection[int]]:
    """Replicas at work, replicas with samples, and minutes with gaps, of several stems."""
    if len(minutes) == 1:
        return minutes[0].busy, minutes[0].seen, minutes[0].gaps
    busy, seen = collections.Counter[int](), collections.Counter[int]()
    for one in minutes:
        busy.update(one.busy)
        seen.update(one.seen)
    return busy, seen, {place for one in minutes for place in one.gaps}
