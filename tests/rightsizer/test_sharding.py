"""A question that is too large is asked in parts, and the parts' answers are the whole's."""

import pathlib
import re
import threading
from collections.abc import Iterator, Sequence

import pytest

from rightsizer.config import PrometheusSettings
from rightsizer.errors import QueryTooLarge
from rightsizer.model import Usages
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import Prometheus as Client
from rightsizer.prometheus.sharding import SeriesGroup, Shard, ShardPlan, pack
from simulator.prometheus import Prometheus
from tests.rightsizer.metrics import HOUR, Metrics, idle
from tests.rightsizer.relay import Relay

SPACES = ("team-a", "team-b", 'a|b".*', "täam\\d")
"""Kubernetes allows the first two only; Prometheus stores any."""


def _fleet(metrics: Metrics) -> None:
    """Pods in both forms, in namespaces of all sizes, one of them large, on several nodes."""
    for number in range(24):
        space = "large" if number % 2 else SPACES[number // 2 % len(SPACES)]
        owner = {"pod": f"p-{number}", "namespace": space, "Hostname": f"n{number % 5}"}
        if number % 3 == 0:
            owner = {"pod": "exporter", "namespace": "monitoring", "hostname": f"n{number % 5}"} | {
                "exported_pod": f"p-{number}",
                "exported_namespace": space,
            }
        metrics.write(idle(), owner, UUID=f"GPU-{number}", since=4 * HOUR)


@pytest.mark.slow
@pytest.mark.prometheus
@pytest.mark.parametrize("most", [4_000, 1_000, 1])
def test_parts_together_are_the_whole(prometheus: Prometheus, most: int) -> None:
    """However little is allowed at once, everybody's usage is the same; no query selects more than that."""
    metrics = Metrics(prometheus)
    _fleet(metrics)
    whole = metrics.usages(4 * HOUR)
    assert len(whole) == 24
    with Relay(prometheus.url) as relay:
        parts = metrics.signal(url=relay.url, max_samples=most).usages(4 * HOUR, metrics.at)
        asked = [query for query in relay.asked if re.search(r"avg_over_time.*240m", query)]
    assert parts == whole
    assert len(asked) > 24
    allowed = max(most / 2 / 241, 1)
    for query in {_selected(query) for query in asked}:
        held = metrics.prometheus.query(f"count({query})", at_s=metrics.at.timestamp())
        assert not held or float(held[0]["value"][1]) <= max(allowed, 3), query


def _selected(query: str) -> str:
    found = re.search(r"avg_over_time\((.*?\})\[", query)
    assert found is not None
    return found[1]


def test_parts_are_asked_as_many_at_once_as_allowed() -> None:
    """Two, where two are: each waits for the other. The answers come in the parts' order."""
    both = threading.Barrier(2)

    def ask(matchers: Sequence[str]) -> list[str]:
        both.wait(60)
        return list(matchers)

    client = Client(PrometheusSettings(url="http://127.0.0.1:9", parallel=2))
    territory = ShardPlan(
        client,
        size=lambda: 0,
        count=lambda _labels, _matchers: "",
        namespaces=(),
        nodes=(),
        instants=(),
    )
    shards = [Shard((SeriesGroup("namespace", name, 1),)) for name in "abcd"]
    assert list(territory.ask(shards, ask)) == [list(shard.matchers) for shard in shards]


@pytest.fixture
def narrow(tmp_path: pathlib.Path) -> Iterator[Prometheus]:
    """A Prometheus that answers little at once, and does not say so beforehand."""
    with Prometheus(tmp_path / "narrow", flags={"query.max-samples": "280"}) as running:
        yield running


@pytest.mark.covers("P2")
@pytest.mark.prometheus
def test_what_is_refused_is_split_and_asked_again(prometheus: Prometheus, narrow: Prometheus) -> None:
    """Until it is small enough; what comes of it is what one answer would have said."""
    usages: list[Usages] = []
    asked: list[list[str]] = []
    for one in (prometheus, narrow):
        metrics = Metrics(one)
        _fleet(metrics)
        with Relay(one.url) as relay:
            usages.append(metrics.signal(url=relay.url).usages(4 * HOUR, metrics.at))
            asked.append([query for query in relay.asked if re.search("namespace=~|Hostname=~", query)])
    assert usages[0] == usages[1]
    assert (asked[0], bool(asked[1])) == ([], True)


@pytest.mark.covers("P2")
@pytest.mark.prometheus
def test_what_cannot_be_split_is_an_error(tmp_path: pathlib.Path) -> None:
    """Never a plan without what could not be asked."""
    with Prometheus(tmp_path / "own", flags={"query.max-samples": "100"}) as own:
        metrics = Metrics(own)
        metrics.write(idle(), pod="a", Hostname="n1", since=4 * HOUR)
        with pytest.raises(QueryTooLarge, match="too many samples"):
            metrics.usages(4 * HOUR)


def test_parts_are_packed_in_order() -> None:
    """As many as fit, of one label and form at a time; a part that alone is too large stands alone."""
    parts = [
        SeriesGroup("namespace", name, series) for name, series in zip("dabce", (9, 2, 2, 2, 50), strict=True)
    ]
    parts.append(SeriesGroup("exported_namespace", "a", 1))
    shards = pack(parts, 6)
    assert [[part.value for part in shard.parts] for shard in shards] == [
        ["a"],
        ["a", "b", "c"],
        ["d"],
        ["e"],
    ]
    assert shards[1].matchers == ('namespace=~"a|b|c"',)
    assert (Shard().matchers, shards[1].series) == ((), 6)


def test_names_fill_a_matcher_no_further_than_servers_take() -> None:
    """VictoriaMetrics refuses queries of over 16 KiB."""
    names = [f"pod-{number:060d}" for number in range(500)]
    batches = list(promql.batches(names))
    assert [name for batch in batches for name in batch] == names
    assert max(len(promql.one_of("pod", batch)) for batch in batches) < 8_500
