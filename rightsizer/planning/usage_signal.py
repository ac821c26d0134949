"""Interface of a source of usage to a plan."""

import datetime
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from rightsizer.model import (
    ActivitySeries,
    BoardLevel,
    Boards,
    Concurrency,
    History,
    Ignored,
    NodeCoverage,
    PodKey,
    ServingLoads,
    Usage,
    Usages,
    Waits,
    Whereabouts,
    WorkLevel,
)
from rightsizer.usage.active_replicas import ReplicaQuery


class Signal(Protocol):
    """A source of usage; every method raises PrometheusError if an answer is incomplete.

    A source that inherits this class overrides what it knows; of the rest nothing is known.
    """

    def usages(
        self, window: datetime.timedelta, at: datetime.datetime, *, of: Collection[PodKey] | None = None
    ) -> Usages:
        """Usage per pod and device in the window that ends at `at`, for at least these pods."""
        ...

    def recent(self, at: datetime.datetime) -> Usages:
        """Peaks of the last minutes."""
        ...

    def activity(
        self, window: datetime.timedelta, at: datetime.datetime, *, with_coverage: bool = False
    ) -> Usages:
        """Peak activity per pod and device, with coverage on request."""
        ...

    def histories(
        self,
        pods: Mapping[PodKey, datetime.datetime],
        span: datetime.timedelta,
        at: datetime.datetime,
        *,
        threshold: float,
    ) -> Mapping[PodKey, History]:
        """Activity of each of these pods, slot by slot."""
        ...

    def begins(self, span: datetime.timedelta, at: datetime.datetime) -> datetime.datetime | None:
        """Time of the first sample; None if the record covers the whole span."""
        ...

    def concurrency(
        self, workloads: Sequence[ReplicaQuery], at: datetime.datetime
    ) -> Mapping[str, Concurrency]:
        """Replicas active at the same time, by UID."""
        ...

    # --- what a source need not know

    def expect(
        self,
        pods: Collection[PodKey],
        settled: Collection[PodKey],
        whereabouts: Whereabouts | None = None,
    ) -> None:
        """Set the pods that hold GPUs, those of them that series should name by now, and where pods run."""
        del pods, settled, whereabouts

    def ignored(self, at: datetime.datetime) -> Ignored:
        """The series that are no evidence."""
        return Ignored()

    def sampled(self, window: datetime.timedelta, at: datetime.datetime, *, of: Collection[PodKey]) -> Usages:
        """Peak activity of these pods by samples; nothing if `usages` already read samples."""
        return {}

    def boards(
        self,
        window: datetime.timedelta,
        at: datetime.datetime,
        *,
        nodes: Mapping[str, str],
        models: Collection[str],
    ) -> Boards:
        """Usage of the whole boards of these models, by UUID; `nodes` are those of the boards that pods use."""
        return {}

    def board_histories(
        self, nodes: Mapping[str, str], span: datetime.timedelta, at: datetime.datetime, level: BoardLevel
    ) -> Mapping[str, History]:
        """Slots in which these boards were above the level."""
        return {}

    def devices(
        self, window: datetime.timedelta, at: datetime.datetime, *, nodes: Mapping[str, str]
    ) -> Mapping[str, Sequence[Usage]]:
        """Usage of these GPUs or of their MIG instances, whoever works there, by UUID."""
        return {}

    def device_histories(
        self, nodes: Mapping[str, str], span: datetime.timedelta, at: datetime.datetime, *, threshold: float
    ) -> Mapping[str, History]:
        """Slots in which no unknown pod can have worked on these GPUs, by UUID: IDLE, else UNKNOWN."""
        return {}

    def work_levels(
        self,
        pods: Mapping[PodKey, datetime.datetime],
        span: datetime.timedelta,
        at: datetime.datetime,
        *,
        threshold: float,
    ) -> Mapping[PodKey, WorkLevel]:
        """Slots in which the GPUs of each of these pods moved memory, and their power then."""
        return {}

    def retention(self) -> datetime.timedelta | None:
        """Time for which samples are kept; None if unknown."""
        return None

    def series(self, at: datetime.datetime) -> ActivitySeries | None:
        """The series from which an autoscaler can read activity."""
        return None

    def waits(
        self, pods: Collection[PodKey], window: datetime.timedelta, at: datetime.datetime
    ) -> Mapping[PodKey, Waits]:
        """Waits of these pods for CPU, disk and network."""
        return {}

    def serving(
        self, pods: Collection[PodKey], window: datetime.timedelta, at: datetime.datetime
    ) -> ServingLoads:
        """Load of the inference servers in these pods."""
        return {}

    def nodes(self, at: datetime.datetime) -> Mapping[str, NodeCoverage]:
        """Devices per node."""
        return {}

    def shares(self, pods: Collection[PodKey], at: datetime.datetime) -> Mapping[PodKey, int]:
        """Number of shares of GPUs that series name for each of these pods."""
        return {}

    def nvlink(self, nodes: Mapping[str, str], at: datetime.datetime) -> Mapping[str, frozenset[str]]:
        """The GPUs that NVLink connects with each of the boards in `nodes`; none of a board if it is unknown."""
        return {}
