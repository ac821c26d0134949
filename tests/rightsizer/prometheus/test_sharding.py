"""A query that is too large is sent in shards, whose results together are the whole."""

import pathlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence

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
def test_usages_in_shards_equal_usages_at_once(prometheus: Prometheus, most: int) -> None:
    """However few samples are allowed, the usage is the same, and no query selects more."""
    metrics = Metrics(prometheus)
    _fleet(metrics)
    whole = metrics.usages(4 * HOUR)
    assert len(whole) == 24
    with Relay(prometheus.url) as relay:
        parts = metrics.signal(url=relay.url, max_samples=most).usages(4 * HOUR, metrics.at)
        asked = [query for query in relay.asked if re.search(r"avg_over_time.*239m59s", query)]
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


def test_shard_plan_ask_runs_parallel_shards_in_order() -> None:
    """Two shards wait for each other; the results come in the order of the shards."""
    both = threading.Barrier(2)

    def query(matchers: Sequence[str]) -> list[str]:
        both.wait(60)
        return list(matchers)

    client = Client(PrometheusSettings(url="http://127.0.0.1:9", parallel=2))
    plan = ShardPlan(
        client,
        size=lambda: 0,
        count=lambda _labels, _matchers: "",
        namespaces=(),
        nodes=(),
        instants=(),
    )
    shards = [Shard((SeriesGroup("namespace", name, 1),)) for name in "abcd"]
    assert list(plan.run(shards, query)) == [list(shard.matchers) for shard in shards]


def test_shard_plan_that_two_queries_split_at_once_loses_no_shard() -> None:
    """They share the shards: while one waits for its answer, the other one may put smaller ones before it."""
    client = Client(PrometheusSettings(url="http://127.0.0.1:9", parallel=1))
    plan = ShardPlan(
        client, size=lambda: 0, count=lambda _labels, _matchers: "", namespaces=(), nodes=(), instants=()
    )
    groups = [SeriesGroup("namespace", name, 1) for name in "abcde"]
    shards = [Shard(tuple(groups[:2])), Shard(tuple(groups[2:4])), Shard((groups[4],))]

    def refusing(refused: Shard, meanwhile: Callable[[], object]) -> Callable[[Sequence[str]], list[str]]:
        def query(matchers: Sequence[str]) -> list[str]:
            if list(matchers) == list(refused.matchers):
                meanwhile()
                raise QueryTooLarge("too many samples")
            return re.findall(r"\b[a-e]\b", " ".join(matchers))

        return query

    found: list[list[str]] = []
    first, second = shards[:2]
    other = refusing(first, lambda: None)
    query = refusing(second, lambda: found.extend(plan.run(shards, other)))
    found += plan.run(shards, query)
    assert sorted(name for names in found for name in names) == sorted("abcde" * 2)
    assert len(shards) > 3  # the next query is not refused


@pytest.fixture
def narrow(tmp_path: pathlib.Path) -> Iterator[Prometheus]:
    """A Prometheus that answers little at once, and does not say so beforehand."""
    with Prometheus(tmp_path / "narrow", flags={"query.max-samples": "280"}) as running:
        yield running


@pytest.mark.covers("P2")
@pytest.mark.prometheus
def test_usages_refused_query_is_split_and_repeated(prometheus: Prometheus, narrow: Prometheus) -> None:
    """The usage is what one response would have given."""
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
def test_usages_query_that_cannot_be_split_raises(tmp_path: pathlib.Path) -> None:
    """There is no plan without the series of that query."""
    with Prometheus(tmp_path / "own", flags={"query.max-samples": "100"}) as own:
        metrics = Metrics(own)
        metrics.write(idle(), pod="a", Hostname="n1", since=4 * HOUR)
        with pytest.raises(QueryTooLarge, match="too many samples"):
            metrics.usages(4 * HOUR)


def test_pack_groups_fill_shards_in_order() -> None:
    """Groups of one label share a shard; a group that is too large has its own."""
    parts = [
        SeriesGroup("namespace", name, series) for name, series in zip("dabce", (9, 2, 2, 2, 50), strict=True)
    ]
    parts.append(SeriesGroup("exported_namespace", "a", 1))
    shards = pack(parts, 6)
    assert [[group.value for group in shard.groups] for shard in shards] == [
        ["a"],
        ["a", "b", "c"],
        ["d"],
        ["e"],
    ]
    assert shards[1].matchers == ('namespace=~"a|b|c"',)
    assert (Shard().matchers, shards[1].series) == ((), 6)


def test_batches_stay_below_the_query_length_limit() -> None:
    """VictoriaMetrics refuses queries of over 16 KiB."""
    names = [f"pod-{number:060d}" for number in range(500)]
    batches = list(promql.batches(names))
    assert [name for batch in batches for name in batch] == names
    assert max(len(promql.one_of("pod", batch)) for batch in batches) < 8_500
