"""The rounds of queries of a plan."""

import dataclasses
import datetime
from collections.abc import Collection, Mapping, Sequence

from rightsizer.model import (
    ActivitySeries,
    Concurrency,
    History,
    Ignored,
    NodeCoverage,
    ObjectRef,
    PodKey,
    ServingLoads,
    Usages,
    Waits,
    Whereabouts,
    WorkLevel,
    Workload,
)
from rightsizer.planning.decide import decide
from rightsizer.planning.measure import Signal, measure
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.usage.active_replicas import ReplicaQuery
from tests.rightsizer import build


class _Recorded(Signal):
    """Records in which a workload is idle, and the samples beside them."""

    def __init__(self, item: Workload, samples: Usages) -> None:
        self.records, self.samples = build.all_idle(item), samples
        self.counted: list[ReplicaQuery] = []

    def expect(
        self,
        pods: Collection[PodKey],
        settled: Collection[PodKey],
        whereabouts: Whereabouts | None = None,
    ) -> None:
        """Nothing to prepare."""

    def ignored(self, at: datetime.datetime) -> Ignored:
        """None."""
        del at
        return Ignored()

    def usages(
        self,
        window: datetime.timedelta,
        at: datetime.datetime,
        *,
        of: Collection[PodKey] | None = None,
    ) -> Usages:
        """By the records."""
        del window, at, of
        return self.records

    def sampled(self, window: datetime.timedelta, at: datetime.datetime, *, of: Collection[PodKey]) -> Usages:
        """By the samples."""
        del window, at
        return {pod: self.samples[pod] for pod in of if pod in self.samples}

    def histories(
        self,
        pods: Mapping[PodKey, datetime.datetime],
        span: datetime.timedelta,
        at: datetime.datetime,
        *,
        threshold: float,
    ) -> Mapping[PodKey, History]:
        """Idle throughout, by the records."""
        del span, at, threshold
        return dict.fromkeys(pods, build.history())

    def work_levels(
        self,
        pods: Mapping[PodKey, datetime.datetime],
        span: datetime.timedelta,
        at: datetime.datetime,
        *,
        threshold: float,
    ) -> Mapping[PodKey, WorkLevel]:
        """Unknown."""
        del pods, span, at, threshold
        return {}

    def recent(self, at: datetime.datetime) -> Usages:
        """None."""
        del at
        return {}

    def begins(self, span: datetime.timedelta, at: datetime.datetime) -> datetime.datetime | None:
        """Before everything."""
        del span, at
        return None

    def activity(
        self, window: datetime.timedelta, at: datetime.datetime, *, with_coverage: bool = False
    ) -> Usages:
        """By the records, too: it is only asked before a write."""
        del with_coverage
        return self.usages(window, at)

    def concurrency(
        self, workloads: Sequence[ReplicaQuery], at: datetime.datetime
    ) -> Mapping[str, Concurrency]:
        """Unknown."""
        del at
        self.counted += workloads
        return {}

    def series(self, at: datetime.datetime) -> ActivitySeries | None:
        """None for autoscalers."""
        del at
        return None

    def waits(
        self, pods: Collection[PodKey], window: datetime.timedelta, at: datetime.datetime
    ) -> Mapping[PodKey, Waits]:
        """Unknown."""
        del pods, window, at
        return {}

    def serving(
        self, pods: Collection[PodKey], window: datetime.timedelta, at: datetime.datetime
    ) -> ServingLoads:
        """No inference servers."""
        del pods, window, at
        return {}

    def nodes(self, at: datetime.datetime) -> Mapping[str, NodeCoverage]:
        """Unknown."""
        del at
        return {}


def _enforced(item: Workload, samples: Usages) -> bool:
    fleet = build.fleet(item)
    book = PolicyEvaluator(build.policy(build.rule("all")), fleet, at=build.AT)
    (decision,) = decide(measure(fleet, _Recorded(item, samples), book, build.AT), book)
    return decision.is_enforced


def test_measure_idle_records_are_compared_with_samples() -> None:
    """A workload that worked by its samples is not stopped, whatever the records say."""
    pod = build.pod()
    item = build.workload(pod)
    assert _enforced(item, {})
    assert not _enforced(item, build.usages((pod, (build.busy_usage(),))))


def test_measure_unread_owner_with_the_uid_of_another_is_not_counted() -> None:
    """Replicas are counted by UID: whoever names another's as the owner of a pod replaces nothing of the other."""
    item = build.workload(build.pod("w-0"), build.pod("w-1"))
    claimed = build.workload(
        *(build.pod(ref=ObjectRef("v1", "Pod", "evil", name, f"uid-{name}")) for name in ("e-0", "e-1")),
        ref=dataclasses.replace(item.ref, namespace="evil"),
        resource_version="",
    )
    signal = _Recorded(item, {})
    signal.records = {**signal.records, **build.all_idle(claimed)}
    fleet = build.fleet(item, claimed)
    book = PolicyEvaluator(build.policy(build.rule("all")), fleet, at=build.AT)
    measure(fleet, signal, book, build.AT)
    assert [(one.uid, one.namespace) for one in signal.counted] == [("uid-w", "research")]
