"""Results of recording rules for past minutes, so that nobody waits for time to pass."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from simulator.history import STALE
from simulator.prometheus import Prometheus
from simulator.series_store import Series

RULES = Path(__file__).parents[1] / "deploy" / "prometheus" / "dashboard-rules.yaml"


def record(prometheus: Prometheus, seconds: range) -> set[str]:
    """Evaluate the rules at each of `seconds` and store the results; the names of rules with any result."""
    found = set()
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            tracks = prometheus.query_range(rule["expr"], seconds)
            if tracks:
                found.add(rule["record"])
            prometheus.write(_recorded(rule, tracks, seconds))
    return found


def _recorded(
    rule: Mapping[str, Any], tracks: Iterable[Mapping[str, Any]], seconds: range
) -> Iterator[Series]:
    """Writes each run of values by itself, because series may have gaps, which a marker of staleness begins."""
    for track in tracks:
        labels = {**track["metric"], **rule.get("labels", {}), "__name__": rule["record"]}
        values = {int(instant): float(value) for instant, value in track["values"]}
        for is_there, run in itertools.groupby(seconds, key=values.__contains__):
            if is_there:
                instants = list(run)
                stretch = range(instants[0], instants[-1] + 1, seconds.step)
                yield Series(labels, stretch, [values[instant] for instant in instants])
                if (after := stretch.stop - 1 + seconds.step) < seconds.stop:
                    yield Series(labels, range(after, after + 1), [STALE])
