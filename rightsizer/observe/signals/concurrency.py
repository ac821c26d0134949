"""How many of a workload's replicas were at work in the same minute: lately, and in the coming hour of earlier days.

Replicas are counted by Prometheus (`minutes.py`), under the stem of their pods' names, so that pods of earlier days
count for their workload though their names are gone. A minute in which some replica's samples are missing is unknown.
"""

import collections
import dataclasses
import datetime
import itertools
import re
from collections.abc import Mapping, Sequence

from rightsizer.model import Concurrency
from rightsizer.observe.signals.asking import Asker
from rightsizer.observe.signals.complete import DAY, MINUTE, Rounds, Stretch
from rightsizer.observe.signals.minutes import Minutes, minutes_of
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
    stems = request.stems()
    minutes = [counted.get((request.namespace, stem), Minutes()) for stem, _ in stems]
    starts = _starts(request)
    found: list[int | None] = []
    for place in range(count):
        instant = at - (count - 1 - place) * MINUTE
        expected = sum(start + reach + MINUTE <= instant for start in starts)
        seen = sum(one.seen.get(place, 0) for one in minutes)
        is_known = seen >= expected and not any(place in one.gaps for one in minutes)
        found.append(sum(one.busy.get(place, 0) for one in minutes) if is_known else None)
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
    stems = [(request.namespace, stem) for stem, _ in request.stems()]
    for day, counted in zip(itertools.count(1), days, strict=False):
        if request.created is not None and request.created > at - day * DAY:
            break
        minutes = [counted.get(stem, Minutes()) for stem in stems]
        is_known = all(
            any(one.seen.get(place) for one in minutes) and not any(place in one.gaps for one in minutes)
            for place in range(60)
        )
        most = max(sum(one.busy.get(place, 0) for one in minutes) for place in range(60))
        found.append(most if is_known else None)
    return tuple(found)
