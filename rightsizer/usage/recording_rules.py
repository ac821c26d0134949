"""Two ways of asking for the same: of the samples themselves, or of what our recording rules made of them. Pure.

The rules (deploy/prometheus/recording-rules.yaml, which `groups` describes) keep of every five minutes the highest, the
mean and the number of samples for each pod's use of each device, in our units: a day is 288 values instead of 5,760.
"""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rightsizer.prometheus import promql
from rightsizer.usage.dcgm_names import DCGM, DCGM_49
from rightsizer.usage.quantities import STATISTICS, Metric, MetricKind, Statistic
from rightsizer.usage.series_labels import JOB, LabelNames

RULE_INTERVAL = datetime.timedelta(minutes=5)

NODE_LABELS = ("Hostname", "hostname", "node")
"""Labels of nodes that recorded series keep, so that they can be asked by node."""

COUNT = "count"
"""What the number of samples is recorded as."""

_OVER = {
    Statistic.MEAN: "avg_over_time",
    Statistic.PEAK: "max_over_time",
    Statistic.NEGATIVE: "min_over_time",
}


class QueryForm(Protocol):
    """A way of asking."""

    def statistic(
        self, quantity: Metric, statistic: Statistic, matchers: Sequence[str], window: datetime.timedelta
    ) -> str:
        """One value for each series."""
        ...

    def count(self, quantity: Metric, matchers: Sequence[str], window: datetime.timedelta) -> str:
        """How many samples of each series there are."""
        ...

    def scale(self, quantity: Metric) -> float:
        """Factor to our unit."""
        ...


class RawQueries:
    """Of the samples."""

    def statistic(
        self, quantity: Metric, statistic: Statistic, matchers: Sequence[str], window: datetime.timedelta
    ) -> str:
        """See Reading."""
        asked = promql.over(_OVER[statistic], _selector(quantity, matchers), window)
        return f"{asked} < 0" if statistic is Statistic.NEGATIVE else asked

    def count(self, quantity: Metric, matchers: Sequence[str], window: datetime.timedelta) -> str:
        """See Reading."""
        return promql.over("count_over_time", _selector(quantity, matchers), window)

    def scale(self, quantity: Metric) -> float:
        """See Reading."""
        return quantity.scale


class RecordedQueries:
    """Of the recorded values."""

    def statistic(
        self, quantity: Metric, statistic: Statistic, matchers: Sequence[str], window: datetime.timedelta
    ) -> str:
        """See Reading."""
        return promql.over(_OVER[statistic], recorded(quantity, statistic, matchers), window)

    def count(self, quantity: Metric, matchers: Sequence[str], window: datetime.timedelta) -> str:
        """See Reading."""
        return promql.over("sum_over_time", recorded(quantity, COUNT, matchers), window)

    def scale(self, quantity: Metric) -> float:  # noqa: ARG002 - recorded in our units
        """See Reading."""
        return 1.0


def recorded(quantity: Metric, statistic: str, matchers: Sequence[str]) -> str:
    """Recorded series of a metric."""
    return promql.selector(
        _name(quantity.kind, statistic), [promql.equals("metric", quantity.metric), *matchers]
    )


def _selector(quantity: Metric, matchers: Sequence[str]) -> str:
    return promql.selector(quantity.metric, [*quantity.matchers, *matchers])


def _name(kind: MetricKind, statistic: str) -> str:
    return f"gpu_rightsizer:{kind}:{statistic}5m"


def groups() -> list[dict[str, Any]]:
    """The groups of the rule file: one for each kind, so that Prometheus evaluates them beside each other."""
    return [
        {"name": f"gpu-rightsizer-{kind}", "interval": "5m", "rules": list(_rules(kind))}
        for kind in MetricKind
    ]


def _rules(kind: MetricKind) -> list[Mapping[str, Any]]:
    found = []
    for quantity in (*DCGM.of(kind), *DCGM_49.of(kind)):
        for statistic in STATISTICS[kind]:
            asked = RawQueries().statistic(quantity, statistic, [LabelNames().has_pod], RULE_INTERVAL)
            found.append(_rule(quantity, statistic, _scaled(asked, quantity.scale, statistic)))
        if kind is MetricKind.ACTIVITY:
            counted = RawQueries().count(quantity, [LabelNames().has_pod], RULE_INTERVAL)
            found.append(_rule(quantity, COUNT, counted))
    return found


def _rule(quantity: Metric, statistic: str, expression: str) -> Mapping[str, Any]:
    aggregation = "min" if statistic == Statistic.NEGATIVE else "max"
    labels = (*LabelNames().use, *LabelNames().profile, *LabelNames().model, *NODE_LABELS, JOB)
    return {
        "record": _name(quantity.kind, statistic),
        "labels": {"metric": quantity.metric},
        "expr": promql.by(aggregation, labels, expression),
    }


def _scaled(expression: str, scale: float, statistic: str) -> str:
    """In our unit; a comparison binds less than a factor."""
    if scale == 1.0:
        return expression
    return f"({expression}) * {scale!r}" if statistic == Statistic.NEGATIVE else f"{expression} * {scale!r}"
