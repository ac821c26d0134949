"""What really runs on the GPUs of a random cluster, and what the metrics say of it: whole and true, unless told to lie.

Stands in place of everything that is asked of Prometheus, its clock included. A lie is always one that can be seen:
something is missing, stale, not a number, or cannot be read.
"""

import dataclasses
import datetime
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from rightsizer.errors import EvidenceIncomplete
from rightsizer.model import (
    Concurrency,
    Device,
    History,
    PodKey,
    Slot,
    Usage,
    Usages,
)
from rightsizer.planning.usage_signal import Signal
from rightsizer.prometheus.query_api import Sample
from rightsizer.usage.active_replicas import ReplicaQuery
from simulator.kube import ApiServer
from tests.rightsizer.given import H100
from tests.rightsizer.wire.amounts import WHOLE, Holding, Share, held

LIES = ("missing", "stale", "nan", "partial", "one-device")
MINUTE = datetime.timedelta(minutes=1)
SLOT = datetime.timedelta(minutes=5)
_MODES: Mapping[str, Mapping[str, Any]] = {
    "stale": {"is_fresh": False},
    "nan": {"invalid": ("activity",)},
    "partial": {"coverage": 0.6, "holes": 2},
}


@dataclasses.dataclass(slots=True)
class Work:
    """A span in which so many pods of a workload, the first by name, were at work; without an end it goes on."""

    begin: datetime.datetime
    end: datetime.datetime | None
    pods: int

    def overlaps(self, begin: datetime.datetime, end: datetime.datetime) -> bool:
        """Whether any of it lies in a span."""
        return self.begin < end and (self.end is None or self.end > begin)


Workloads = dict[tuple[str, str], list[Work]]
"""By namespace and name."""


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """What runs on a device: bytes, watts, and shares of a whole GPU.

    Attributes:
        activity: Mean and peak; and so for power.
        traffic: Peak.
    """

    activity: tuple[float, float]
    traffic: float
    memory_bytes: float
    power_w: tuple[float, float]


LIGHT = Load((0.05, 0.1), 0.05, 4e9, (150.0, 250.0))
LARGE = dataclasses.replace(LIGHT, memory_bytes=30e9)
HEAVY = Load((0.5, 0.9), 0.5, 40e9, (400.0, 640.0))
IDLE_POWER_W = (118.0, 122.0)


@dataclasses.dataclass(slots=True)
class Habit:
    """What a workload never uses, whenever it is at work, until it has outgrown that.

    Attributes:
        devices: Only so many GPUs of each pod work, the first ones; 0: all of them.
        load: What it needs of each at most, where that is little.
    """

    devices: int = 0
    load: Load | None = None
    until: datetime.datetime | None = None

    def holds(self, end: datetime.datetime) -> bool:
        """Whether it is as it was until then."""
        return self.until is None or end <= self.until


class Truth(Signal):
    """A Signal, and Prometheus's clock.

    Attributes:
        work: What really happened.
        habits: What some workloads never use.
        lies: By workload, what is wrong with its series.
        errors: How many of the next questions cannot be answered.
        before: Called before each question about recent activity.
        told: When that was last answered: what begins later cannot be known.
    """

    where = "truth"

    def __init__(self, api: ApiServer, clock: Callable[[], datetime.datetime]) -> None:
        self._api = api
        self.now = clock
        self.work: Workloads = {}
        self.habits: dict[tuple[str, str], Habit] = {}
        self.lies: dict[tuple[str, str], str] = {}
        self.errors = 0
        self.before: Callable[[], None] = lambda: None
        self.told = clock()

    # --- what really happens

    def begin(self, key: tuple[str, str], pods: int) -> None:
        """Let so many pods work from now on."""
        self.end(key)
        self.work.setdefault(key, []).append(Work(self.now(), None, pods))

    def end(self, key: tuple[str, str]) -> None:
        """Let them rest."""
        for one in self.work.get(key, ()):
            one.end = one.end or self.now()

    def busiest(self, key: tuple[str, str], begin: datetime.datetime, end: datetime.datetime) -> int:
        """How many pods worked at most at one time in a span."""
        return max((one.pods for one in self.work.get(key, ()) if one.overlaps(begin, end)), default=0)

    def outgrow(self, key: tuple[str, str]) -> None:
        """From now on a workload needs whatever it can get, whenever it is at work."""
        habit = self.habits.get(key, Habit())
        habit.until = habit.until or self.now()

    def needed(self, key: tuple[str, str], begin: datetime.datetime, has: Holding) -> tuple[int, Load]:
        """How many of its devices each pod of a workload needed since then, and what of each at most."""
        habit = self.habits.get(key, Habit())
        is_kept = habit.holds(self.told)
        devices = habit.devices if is_kept and habit.devices else has.devices
        works = self.busiest(key, begin, self.told) > 0
        return (devices if works else 0), ((habit.load if is_kept else None) or HEAVY)

    # --- what is said of it

    def query(self, promql: str, at: datetime.datetime) -> Sequence[Sample]:
        """Nobody publishes what any node costs."""
        del promql, at
        return ()

    def usages(
        self, window: datetime.timedelta, at: datetime.datetime, *, of: Collection[PodKey] | None = None
    ) -> Usages:
        """Of every pod."""
        self._answer()
        found: dict[PodKey, Sequence[Usage]] = {}
        for key, workload, place, pod in self.running():
            lie = self.lies.get(workload, "")
            if (of is not None and key not in of) or (lie == "missing" and place == 0):
                continue
            has = held(pod)
            devices = [
                self._usage(workload, place, pod, (at - window, at), (index, has.share))
                for index in range(has.devices)
            ]
            found[key] = devices[1:] if lie == "one-device" and place == 0 else devices
        return found

    def recent(self, at: datetime.datetime) -> Usages:
        """Of the last ten minutes."""
        return self.usages(10 * MINUTE, at)

    def activity(
        self, window: datetime.timedelta, at: datetime.datetime, *, with_coverage: bool = False
    ) -> Usages:
        """The same over any window; this is what is asked last before a write."""
        del with_coverage  # it always is
        self.before()
        self.told = self.now()
        return self.usages(window, at)

    def histories(
        self,
        pods: Mapping[PodKey, datetime.datetime],
        span: datetime.timedelta,
        at: datetime.datetime,
        *,
        threshold: float,  # noqa: ARG002 - the protocol's
    ) -> Mapping[PodKey, History]:
        """In slots of five minutes."""
        self._answer()
        found = {}
        for key, workload, place, _ in self.running():
            if key in pods:
                begin = max(pods[key], at - span)
                count = max(1, int((at - begin) / SLOT))
                slots = bytearray([Slot.IDLE]) * count
                for one in self.work.get(workload, ()):
                    if place < one.pods:
                        first = max(0, int((one.begin - at) / SLOT) + count - 1)
                        last = count if one.end is None else int((one.end - at) / SLOT) + count
                        slots[first:last] = bytes([Slot.BUSY]) * max(0, min(last, count) - first)
                found[key] = History(at, SLOT.total_seconds(), bytes(slots[:count]))
        return found

    def begins(self, span: datetime.timedelta, at: datetime.datetime) -> datetime.datetime | None:  # noqa: ARG002 - the protocol's
        """The record is older than anything."""
        return None

    def concurrency(
        self, workloads: Sequence[ReplicaQuery], at: datetime.datetime
    ) -> Mapping[str, Concurrency]:
        """Minute by minute."""
        self._answer()
        by_pod = {key: workload for key, workload, _, _ in self.running()}
        found = {}
        for one in workloads:
            key = by_pod.get((one.namespace, next(iter(one.pods), "")))
            if key is None:
                continue
            minutes = int(one.window / MINUTE)
            busy = [
                0 if key in self.lies else self.busiest(key, at - (left + 1) * MINUTE, at - left * MINUTE)
                for left in reversed(range(minutes))
            ]
            unseen = len(one.pods) if key in self.lies else 0
            found[one.uid] = Concurrency(tuple(busy), (unseen,) * minutes)
        return found

    def _answer(self) -> None:
        if self.errors:
            self.errors -= 1
            raise EvidenceIncomplete("Prometheus: the answer is not whole")

    def running(self) -> Iterator[tuple[PodKey, tuple[str, str], int, Mapping[str, Any]]]:
        """Name, workload, place among its pods, and the pod itself."""
        places: dict[tuple[str, str], int] = {}
        pods = sorted(self._api.list("Pod"), key=lambda pod: str(pod["metadata"]["name"]))
        for pod in pods:
            meta = pod["metadata"]
            workload = meta["namespace"], meta.get("labels", {}).get("app", "")
            if pod["status"].get("phase") == "Running" and held(pod).devices:
                place = places.get(workload, 0)
                places[workload] = place + 1
                yield (meta["namespace"], meta["name"]), workload, place, pod

    def _usage(
        self,
        workload: tuple[str, str],
        place: int,
        pod: Mapping[str, Any],
        span: tuple[datetime.datetime, datetime.datetime],
        device: tuple[int, Share],
    ) -> Usage:
        index, share = device
        began = datetime.datetime.fromisoformat(pod["status"]["startTime"])
        begin, end = max(span[0], began), span[1]
        habit = self.habits.get(workload, Habit())
        load = (habit.load if habit.holds(end) else None) or HEAVY
        is_used = not habit.devices or index < habit.devices or not habit.holds(end)
        works = is_used and any(
            one.overlaps(begin, end) and place < one.pods for one in self.work.get(workload, ())
        )
        length = max((span[1] - span[0]).total_seconds(), 1.0)
        usage = Usage(
            device=Device(
                f"GPU-{pod['metadata']['uid']}-{index}",
                instance="1" if share.profile else "",
                model=H100,
                instance_profile=share.profile,
            ),
            memory_peak_bytes=min(load.memory_bytes, share.memory_bytes),
            power_mean_w=None if share.profile else (load.power_w if works else IDLE_POWER_W)[0],
            power_peak_w=None if share.profile else (load.power_w if works else IDLE_POWER_W)[1],
            coverage=min(1.0, max((end - begin).total_seconds(), 0.0) / length),
            is_fresh=True,
            **_seen(load, share, works=works),
        )
        return dataclasses.replace(usage, **_MODES.get(self.lies.get(workload, ""), {}))


def _seen(load: Load, share: Share, *, works: bool) -> dict[str, Any]:
    """As metrics tell it: of an instance relative to what that has."""
    whole = share if share.profile else WHOLE
    mean, peak = (min(1.0, one / whole.compute) for one in load.activity)
    return {
        "activity_mean": mean if works else 0.0,
        "activity_peak": peak if works else 0.0,
        "traffic_peak": min(1.0, load.traffic / whole.bandwidth) if works else 0.0,
    }
