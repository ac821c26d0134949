"""The rounds of queries of a plan."""

import datetime
from collections.abc import Collection, Mapping, Sequence

from rightsizer.model import (
    ActivitySeries,
    Concurrency,
    History,
    Ignored,
    NodeCoverage,
    PodKey,
    Usages,
    Waits,
    Whereabouts,
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
        del workloads, at
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
