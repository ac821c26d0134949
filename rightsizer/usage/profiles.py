"""How busy each pod was in the course of a window, for drawing: coarse, and judged by nobody.

A shared GPU's gauge is everybody's who is on it: there a pod is drawn by its own counter, or not at all.
"""

import datetime
import math
from collections.abc import Callable, Collection, Sequence

from rightsizer.model import PodKey, Usages
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import QueryRange, RangeSeries
from rightsizer.prometheus.sharding import ShardPlan
from rightsizer.usage import counter_meaning
from rightsizer.usage.exporter_counters import CONTAINER
from rightsizer.usage.quantities import Metric, MetricKind, Statistic
from rightsizer.usage.querier import SourceQuerier, require_one_cluster

STEPS = 48

Profiles = dict[PodKey, list[float | None]]


def profiles(
    asker: SourceQuerier,
    window: datetime.timedelta,
    at: datetime.datetime,
    *,
    usages: Usages,
    shared: Collection[PodKey],
) -> Profiles:
    """Mean activity of each pod's devices in equal steps of the window, oldest first, 0 to 1; None where unknown.

    Args:
        asker: What is asked.
        window: How far back.
        at: Its end.
        usages: What was measured over the window: it says of whom activity is known apart from the device's.
        shared: Pods that may share their GPUs with others; those whose own activity is not known have no line.

    Raises:
        PrometheusError: Something could not be read whole.
    """
    drawing = _Drawing(asker, window, at)
    alone = {pod for pod in shared if usages.get(pod) and all(usage.is_own for usage in usages[pod])}
    found = {pod: line for pod, line in drawing.of_devices().items() if pod not in shared}
    if alone:
        found |= {pod: line for pod, line in drawing.of_pods().items() if pod in alone}
    return dict(sorted(found.items()))


class _Drawing:
    """The questions over one window, and where their answers belong."""

    def __init__(self, asker: SourceQuerier, window: datetime.timedelta, at: datetime.datetime) -> None:
        self._asker, self._at, self._step = asker, at, window / STEPS
        self._reading = asker.reading(window, at)
        self._territory: ShardPlan = asker.territory(window, at)
        each = asker.samples_per_series(self._reading, self._step, at)
        self._shards = self._territory.shards(asker.most(max(each, STEPS)))

    def of_devices(self) -> Profiles:
        """By the gauges of the devices that each pod is on."""
        asker, found = self._asker, Profiles()
        for quantity in asker.source.of(MetricKind.ACTIVITY):

            def build(matchers: Sequence[str], quantity: Metric = quantity) -> str:
                every = (*asker.owned, *matchers)
                return self._reading.statistic(quantity, Statistic.MEAN, every, self._step)

            self._fill(found, build, self._reading.scale(quantity))
        return found

    def of_pods(self) -> Profiles:
        """By the counters of what each pod itself did. An increase is extrapolated, so it can exceed its step."""
        asker, use, found = self._asker, self._asker.source.labels.use, Profiles()

        def build(matchers: Sequence[str]) -> str:
            selected = promql.selector(counter_meaning.POD_BUSY, (*asker.owned, *matchers))
            risen = promql.by("max", (*use, *CONTAINER), promql.over("increase", selected, self._step))
            return f"clamp_max({promql.by('sum', use, risen)}, {self._step.total_seconds()!r})"

        self._fill(found, build, 1 / self._step.total_seconds())
        return found

    def _fill(self, found: Profiles, build: Callable[[Sequence[str]], str], scale: float) -> None:
        """Ask, shard by shard, for the mean of each pod's devices; of several answers the highest holds."""
        asker = self._asker
        for answer in self._territory.ask(
            self._shards,
            lambda matchers: asker.prometheus.query_range(
                promql.by("avg", asker.source.labels.owner, build(matchers)),
                QueryRange(self._at - (STEPS - 1) * self._step, self._at, self._step.total_seconds()),
            ),
        ):
            require_one_cluster(track.labels for track in answer)
            for track in answer:
                self._place(found, track, scale)

    def _place(self, found: Profiles, track: RangeSeries, scale: float) -> None:
        pod = self._asker.source.labels.pod_of(track.labels)
        if pod is None:
            return
        row = found.setdefault(pod, [None] * STEPS)
        for instant, value in track.points.items():
            place = STEPS - 1 - round((self._at.timestamp() - instant) / self._step.total_seconds())
            share = value * scale
            if 0 <= place < STEPS and math.isfinite(share) and 0 <= share <= 1:
                row[place] = max(share, row[place] or 0.0)
