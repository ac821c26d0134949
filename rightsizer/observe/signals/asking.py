"""How a source is asked: which series are meant, how many fit into one query, and by which way of reading.

Knows the source's names of labels and metrics, not what is made of the answers.
"""

import dataclasses
import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rightsizer.config import MAX_SAMPLES
from rightsizer.errors import EvidenceIncomplete
from rightsizer.model import PodKey
from rightsizer.observe import promql
from rightsizer.observe.prometheus import Prometheus, Sample
from rightsizer.observe.sharding import Shard, Territory
from rightsizer.observe.signals.labels import CLUSTER
from rightsizer.observe.signals.quantities import Kind, Quantity, Source
from rightsizer.observe.signals.rules import TILE, Raw, Reading, Recorded, recorded

DENSITY_SPAN = datetime.timedelta(minutes=10)
USUAL_INTERVAL_S = 15.0
LEAST_RECORDED = datetime.timedelta(hours=1)
"""In a shorter window the samples themselves are as few as recorded values are in a day."""

NEARLY_ALL = 0.98
"""So many of the series must be on record for the records to be used instead of them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Asker:
    """A source in one Prometheus.

    Attributes:
        source: What its metrics are called; those that are not there cost nothing.
        given: Matchers that every series must meet, such as the cluster's.
        max_samples: What Prometheus loads at most for one query; we ask for half of it.
        known: Pods that are known to hold GPUs; empty where that is not known.
    """

    prometheus: Prometheus
    source: Source
    given: tuple[str, ...] = ()
    max_samples: int = MAX_SAMPLES
    known: frozenset[PodKey] = frozenset()

    @property
    def owned(self) -> tuple[str, ...]:
        """Matchers of the series that name a pod and are ours."""
        return (self.source.labels.has_pod, *self.given)

    def markers(self) -> tuple[Quantity, ...]:
        """Metrics of which every device has one: of MIG instances memory may be all there is."""
        return (*self.source.of(Kind.MEMORY), *self.source.of(Kind.ACTIVITY))

    def selected(self, quantities: Iterable[Quantity], matchers: Sequence[str]) -> str:
        """The series of several metrics, of those with the same labels one only."""
        return " or ".join(
            promql.selector(quantity.metric, [*quantity.matchers, *matchers]) for quantity in quantities
        )

    def reading(self, window: datetime.timedelta, at: datetime.datetime) -> Reading:
        """Of the recorded values where they reach back over the window for (nearly) all series."""
        if not self.source.has_rules or window < LEAST_RECORDED:
            return Raw()
        use = self.source.labels.use
        activity = self.source.of(Kind.ACTIVITY)
        for instant in (at, at - window / 2, at - window + 2 * TILE):
            kept = " or ".join(
                promql.over("last_over_time", recorded(quantity, "count", self.owned), 2 * TILE)
                for quantity in activity
            )
            held = self._number(f"count({promql.by('max', use, kept)})", instant) if kept else 0.0
            if not held:
                return Raw()
            raw = promql.by("max", use, self.selected(activity, self.owned))
            if held < NEARLY_ALL * self._number(f"count({raw})", instant):
                return Raw()
        return Recorded()

    def samples_per_series(
        self, reading: Reading, window: datetime.timedelta, at: datetime.datetime
    ) -> float:
        """How many samples the densest series has in the window, by the last minutes of it."""
        if isinstance(reading, Recorded):
            return window / TILE + 1
        return window.total_seconds() / self.interval_s(at) + 1

    def interval_s(self, at: datetime.datetime) -> float:
        """Seconds between two samples of the densest series, lately."""
        densest = max(
            (
                self._number(
                    f"max({Raw().count(quantity, self.given, DENSITY_SPAN)})",
                    at,
                )
                for quantity in self.markers()
            ),
            default=0.0,
        )
        return DENSITY_SPAN.total_seconds() / (densest - 1) if densest > 1 else USUAL_INTERVAL_S

    def territory(
        self, window: datetime.timedelta, at: datetime.datetime, *, of_devices: bool = False
    ) -> Territory:
        """The fleet's series, by namespaces; those of devices, which name no pod, by nodes."""
        labels = self.source.labels
        base = self.given if of_devices else self.owned

        def count(by: Sequence[str], matchers: Sequence[str]) -> str:
            return promql.by("count", by, self.selected(self.markers(), (*base, *matchers)))

        lookback = datetime.timedelta(minutes=5)
        spread = (
            (at, at - window / 2, at - window + lookback) if window > 2 * lookback else (at, at - window / 2)
        )
        return Territory(
            self.prometheus,
            count=count,
            namespaces=labels.node if of_devices else labels.namespace,
            nodes=() if of_devices else labels.node,
            instants=spread,
        )

    def most(self, per_series: float) -> float:
        """How many series of so many samples may be asked for at once."""
        return max(1.0, self.max_samples / 2 / max(per_series, 1.0))

    def samples(
        self,
        territory: Territory,
        shards: list[Shard],
        build: Callable[[Sequence[str]], str],
        at: datetime.datetime,
    ) -> Iterator[Sample]:
        """What an instant query gives, shard by shard.

        Raises:
            EvidenceIncomplete: The series are of several clusters.
        """
        for answer in territory.ask(shards, lambda matchers: self.prometheus.query(build(matchers), at)):
            require_one_cluster(sample.labels for sample in answer)
            yield from answer

    def _number(self, expression: str, at: datetime.datetime) -> float:
        return max((sample.value for sample in self.prometheus.query(expression, at)), default=0.0)


def require_one_cluster(series: Iterable[Mapping[str, str]]) -> None:
    """Two clusters may have a pod of the same name: its idleness there must not count here.

    Raises:
        EvidenceIncomplete: The series are of several clusters.
    """
    clusters = sorted({labels.get(CLUSTER, "") for labels in series})
    if len(clusters) > 1:
        names = ", ".join(name or "(none)" for name in clusters[:5])
        raise EvidenceIncomplete(
            f"Prometheus holds GPU series of several clusters ({names}); "
            f"name yours: --prometheus-label {CLUSTER}={clusters[-1]}"
        )
