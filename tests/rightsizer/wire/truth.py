"""What really runs on the GPUs of a random cluster, and what the metrics say of it: whole and true, unless told to lie.

Stands in place of everything that is asked of Prometheus, its clock included. A lie is always one that can be seen:
something is missing, stale, not a number, or cannot be read.
"""

import dataclasses
import datetime
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from rightsizer.errors import EvidenceIncomplete
from rightsizer.measure import Signal
from rightsizer.model import (
    ActivitySeries,
    Concurrency,
    Device,
    History,
    NodeSight,
    PodKey,
    Slot,
    Usage,
    Usages,
    Waits,
)
from rightsizer.observe.signals.concurrency import Replicas
from simulator.kube import ApiServer
from tests.rightsizer.given import H100
from tests.rightsizer.world import gpus_of

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


class Truth(Signal):
    """A Signal, and Prometheus's clock.

    Attributes:
        work: What really happened.
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

    # --- what is said of it

    def expect(self, pods: Collection[PodKey], settled: Collection[PodKey]) -> None:
        """Nothing to prepare."""

    def usages(
        self, window: datetime.timedelta, at: datetime.datetime, *, of: Collection[PodKey] | None = None
    ) -> Usages:
        """Of every pod."""
        self._answer()
        found: dict[PodKey, Sequence[Usage]] = {}
        for key, workload, place, pod in self._pods():
            lie = self.lies.get(workload, "")
            if (of is not None and key not in of) or (lie == "missing" and place == 0):
                continue
            devices = [
                self._usage(workload, place, pod, (at - window, at), index) for index in range(gpus_of(pod))
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
        for key, workload, place, _ in self._pods():
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

    def concurrency(self, workloads: Sequence[Replicas], at: datetime.datetime) -> Mapping[str, Concurrency]:
        """Minute by minute."""
        self._answer()
        by_pod = {key: workload for key, workload, _, _ in self._pods()}
        found = {}
        for one in workloads:
            key = by_pod.get((one.namespace, next(iter(one.pods), "")))
            if key is None:
                continue
            minutes = int(one.window / MINUTE)
            busy = [
                None if key in self.lies else self.busiest(key, at - (left + 1) * MINUTE, at - left * MINUTE)
                for left in reversed(range(minutes))
            ]
            found[one.uid] = Concurrency(tuple(busy), (0,) * one.days)
        return found

    def series(self, at: datetime.datetime) -> ActivitySeries | None:  # noqa: ARG002 - the protocol's
        """Autoscalers find nothing here."""
        return None

    def waits(
        self,
        pods: Collection[PodKey],  # noqa: ARG002 - as above
        window: datetime.timedelta,  # noqa: ARG002 - as above
        at: datetime.datetime,  # noqa: ARG002 - as above
    ) -> Mapping[PodKey, Waits]:
        """Nobody waits."""
        return {}

    def nodes(self, at: datetime.datetime) -> Mapping[str, NodeSight]:  # noqa: ARG002 - the protocol's
        """Everything is seen."""
        return {}

    def _answer(self) -> None:
        if self.errors:
            self.errors -= 1
            raise EvidenceIncomplete("Prometheus: the answer is not whole")

    def _pods(self) -> Iterator[tuple[PodKey, tuple[str, str], int, Mapping[str, Any]]]:
        """Name, workload, place among its pods, and the pod itself."""
        places: dict[tuple[str, str], int] = {}
        pods = sorted(self._api.list("Pod"), key=lambda pod: str(pod["metadata"]["name"]))
        for pod in pods:
            meta = pod["metadata"]
            workload = meta["namespace"], meta.get("labels", {}).get("app", "")
            if pod["status"].get("phase") == "Running" and gpus_of(pod):
                place = places.get(workload, 0)
                places[workload] = place + 1
                yield (meta["namespace"], meta["name"]), workload, place, pod

    def _usage(
        self,
        workload: tuple[str, str],
        place: int,
        pod: Mapping[str, Any],
        span: tuple[datetime.datetime, datetime.datetime],
        index: int,
    ) -> Usage:
        began = datetime.datetime.fromisoformat(pod["status"]["startTime"])
        begin, end = max(span[0], began), span[1]
        works = any(one.overlaps(begin, end) and place < one.pods for one in self.work.get(workload, ()))
        length = max((span[1] - span[0]).total_seconds(), 1.0)
        usage = Usage(
            device=Device(f"GPU-{pod['metadata']['uid']}-{index}", model=H100),
            activity_mean=0.5 if works else 0.0,
            activity_peak=0.9 if works else 0.0,
            traffic_peak=0.5 if works else 0.0,
            memory_peak_bytes=40e9,
            power_mean_w=400.0 if works else 118.0,
            power_peak_w=640.0 if works else 122.0,
            coverage=min(1.0, max((end - begin).total_seconds(), 0.0) / length),
            is_fresh=True,
        )
        return dataclasses.replace(usage, **_MODES.get(self.lies.get(workload, ""), {}))
