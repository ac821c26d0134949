"""PromQL over raw samples, and over the series of the recording rules. Pure.

The rules (deploy/prometheus/recording-rules.yaml, which `rule_groups` generates) record the peak, mean and number of
samples of each pod's use of each device every five minutes: 288 values a day instead of 5,760.

Every scraped target can expose series with the names of the rules. So they are used only if the server evaluates
exactly these rules (`rules_problem`), and never for peaks lower than those of samples.
"""

import dataclasses
import datetime
import enum
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rightsizer.evidence.slot_table import SLOT
from rightsizer.prometheus import promql
from rightsizer.usage.source_metrics import (
    DCGM,
    DCGM_49,
    JOB,
    STATISTICS,
    TARGET,
    LabelNames,
    Metric,
    MetricKind,
    Statistic,
)

RULE_INTERVAL = SLOT

NODE_LABELS = ("Hostname", "hostname", "node")
"""Labels of nodes that recorded series keep, so that queries can be split by node."""

METRIC = "metric"
"""The label of recorded series that names the metric."""

COUNT = "count"
"""Suffix of the recorded number of samples."""

_OVER = {
    Statistic.MEAN: "avg_over_time",
    Statistic.PEAK: "max_over_time",
    Statistic.NEGATIVE: "min_over_time",
}


class RecordingRules(enum.StrEnum):
    """When recorded series are used."""

    AUTO = "auto"
    """If the server says that it evaluates exactly the rules of deploy/prometheus/recording-rules.yaml."""
    TRUSTED = "trusted"
    """Without that check, for servers that do not tell their rules."""
    OFF = "off"
    """Never."""


@dataclasses.dataclass(frozen=True, slots=True)
class QueryForm:
    """Builds queries over raw samples, or over recorded series."""

    is_recorded: bool

    def together(self, metrics: Sequence[Metric]) -> list[list[Metric]]:
        """The metrics in groups that one query reads: recorded ones of a kind have one name, and a label each."""
        if not self.is_recorded:
            return [[one] for one in metrics]
        return [found for kind in MetricKind if (found := [one for one in metrics if one.kind is kind])]

    def statistic(
        self,
        metric: Metric,
        statistic: Statistic,
        matchers: Sequence[str],
        window: datetime.timedelta,
        *,
        more: Sequence[Metric] = (),
    ) -> str:
        """A statistic of each series, also of `more` metrics that are read together with it."""
        if self.is_recorded:
            selected = recorded_selector([metric, *more], statistic, matchers)
            return promql.over(_OVER[statistic], selected, window)
        query = promql.over(_OVER[statistic], raw_selector(metric, matchers), window)
        return f"{query} < 0" if statistic is Statistic.NEGATIVE else query

    def count(
        self,
        metric: Metric,
        matchers: Sequence[str],
        window: datetime.timedelta,
        *,
        more: Sequence[Metric] = (),
    ) -> str:
        """The number of samples of each series, likewise."""
        if self.is_recorded:
            return promql.over("sum_over_time", recorded_selector([metric, *more], COUNT, matchers), window)
        return promql.over("count_over_time", raw_selector(metric, matchers), window)

    def largest(self, labels: Iterable[str], expression: str) -> str:
        """The highest value of the series that differ in other labels; of recorded ones, which have few, each value.

        Grouping those would take most of the time.
        """
        return expression if self.is_recorded else promql.by("max", labels, expression)

    def scale(self, metric: Metric) -> float:
        """Factor to shares, bytes or watts; the rules have scaled the values."""
        return 1.0 if self.is_recorded else metric.scale


RAW, RECORDED = QueryForm(is_recorded=False), QueryForm(is_recorded=True)


def raw_selector(metric: Metric, matchers: Sequence[str]) -> str:
    """The series of a metric."""
    return promql.selector(metric.name, [*metric.matchers, *matchers])


def recorded_selector(metrics: Sequence[Metric], statistic: str, matchers: Sequence[str]) -> str:
    """The recorded series of metrics of one kind."""
    names = [metric.name for metric in metrics]
    return promql.selector(
        _record_name(metrics[0].kind, statistic), [promql.one_of(METRIC, names), *matchers]
    )


def _record_name(kind: MetricKind, statistic: str) -> str:
    return f"gpu_rightsizer:{kind}:{statistic}5m"


def rule_groups() -> list[dict[str, Any]]:
    """The groups of the rule file: one for each kind, so that Prometheus evaluates them in parallel."""
    return [
        {"name": f"gpu-rightsizer-{kind}", "interval": "5m", "rules": list(_rules(kind))}
        for kind in MetricKind
        if DCGM.of(kind)
    ]


def _rules(kind: MetricKind) -> list[Mapping[str, Any]]:
    rules = []
    matchers = [LabelNames().has_pod]
    for metric in (*DCGM.of(kind), *DCGM_49.of(kind)):
        for statistic in STATISTICS[kind]:
            query = RAW.statistic(metric, statistic, matchers, RULE_INTERVAL)
            rules.append(_rule(metric, statistic, _scaled(query, metric.scale, statistic)))
        if kind is MetricKind.ACTIVITY:
            rules.append(_rule(metric, COUNT, RAW.count(metric, matchers, RULE_INTERVAL)))
    return rules


def _rule(metric: Metric, statistic: str, expression: str) -> Mapping[str, Any]:
    aggregation = "min" if statistic == Statistic.NEGATIVE else "max"
    names = LabelNames()
    labels = (*names.use, *names.profile, *names.model, *NODE_LABELS, JOB, TARGET)
    return {
        "record": _record_name(metric.kind, statistic),
        "labels": {METRIC: metric.name},
        "expr": promql.by(aggregation, labels, expression),
    }


def _scaled(expression: str, scale: float, statistic: str) -> str:
    """The scaled value; a comparison needs parentheses, since it binds less than a product."""
    if scale == 1.0:
        return expression
    return f"({expression}) * {scale!r}" if statistic == Statistic.NEGATIVE else f"{expression} * {scale!r}"


class _ServerRule(msgspec.Struct):
    name: str
    type: str = ""
    query: str = ""
    labels: dict[str, str] = {}
    health: str = ""


class _ServerGroup(msgspec.Struct):
    name: str
    rules: list[_ServerRule]
    interval: float = 0.0


class _ServerGroups(msgspec.Struct):
    groups: list[_ServerGroup]


def rules_problem(found: Mapping[str, Any]) -> str:
    """Why the rules that a server evaluates (`/api/v1/rules`) are not exactly these; empty if they are.

    Another rule with such a name could record anything, so there must be none.
    """
    try:
        groups = msgspec.convert(found, _ServerGroups).groups
    except msgspec.ValidationError as error:
        return f"the server's list of rules cannot be read: {error}"
    records = {(group.name, *_identity(rule)): rule for group, rule in _recording(groups)}
    interval_s = RULE_INTERVAL.total_seconds()
    expected = {
        (group["name"], rule["record"], rule["labels"]["metric"], _plain(rule["expr"]))
        for group in rule_groups()
        for rule in group["rules"]
    }
    if not records:
        return "the server evaluates none of the recording rules"
    if differing := sorted(expected ^ records.keys()):
        return f"rules are missing or differ from the shipped file, such as those of {differing[0][1]}"
    if any(group.interval != interval_s for group, _ in _recording(groups)):
        return f"a group of rules is not evaluated every {interval_s:g} s"
    if any(rule.health != "ok" for rule in records.values()):
        return "a rule fails, or was not evaluated yet"
    return ""


def _recording(groups: Sequence[_ServerGroup]) -> Iterator[tuple[_ServerGroup, _ServerRule]]:
    """The rules that record series of these names."""
    for group in groups:
        for rule in group.rules:
            if _RECORD.fullmatch(rule.name) and rule.type != "alerting":
                yield group, rule


def _identity(rule: _ServerRule) -> tuple[str, str, str]:
    """The record, its metric and its expression; a rule with other labels has no metric."""
    metric = rule.labels.get("metric", "") if rule.labels.keys() == {"metric"} else ""
    return rule.name, metric, _plain(rule.query)


_RECORD = re.compile("gpu_rightsizer:.*5m")
_NUMBER = re.compile(r"(?<![\w.])\d[\d.]*(?:e[+-]?\d+)?(?![\w.])")


def _plain(expression: str) -> str:
    """An expression in one form: servers print blanks, quotes and numbers in different ways."""
    text = "".join(expression.split()).replace("'", '"')
    return _NUMBER.sub(lambda number: repr(float(number[0])), text)
