"""Watched pods and nodes are as the API server lists them, whatever happens to them or to the watch."""

import contextlib
import itertools
import logging
import pathlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import strategies as st

from rightsizer.config import ClusterSettings
from rightsizer.errors import ClusterUnreachable
from rightsizer.inventory.cluster_reader import KEPT
from rightsizer.inventory.gpu_requests import ResourceTable
from rightsizer.inventory.pods import PodReader
from rightsizer.kube import kept_objects, watched
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.kept_objects import KeptObjects, Parsing
from simulator.kube import ApiServer, Fault, Rule
from tests.simulator.kube.manifests import node, pod
from tests.waiting import wait_until

PODS = "/api/v1/pods"
VERBS = ("create", "label", "adopt", "delete", "other", "expire", "drop", "fail")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "LENGTH_S", 1.0)
    monkeypatch.setattr(watched, "SHORTEST_PAUSE_S", 0.02)
    monkeypatch.setattr(kept_objects, "SETTLES_S", 0.5)


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """A server with two nodes."""
    with ApiServer(termination_delay_s=0.02) as server:
        for name in ("node-0", "node-1"):
            server.create(node(name))
        yield server


def _settings(api: ApiServer, directory: pathlib.Path) -> ClusterSettings:
    path = directory / f"kubeconfig-{api.url.rpartition(':')[2]}"
    path.write_text(yaml.safe_dump(api.kubeconfig()))
    return ClusterSettings(path)


@contextlib.contextmanager
def _keeping(
    settings: ClusterSettings, differed: Callable[[int], None] = lambda _: None, **more: int
) -> Iterator[tuple[KeptObjects, Cluster]]:
    with (
        contextlib.closing(Cluster(settings)) as cluster,
        KeptObjects(KEPT, lambda: Cluster(settings), differed, **more) as kept,
    ):
        yield kept, cluster


def _read(reduce: Callable[..., list[Any]], path: str = PODS) -> list[Any]:
    return reduce(path, KEPT[path], list[Any], add=list[Any].extend)


def _kept(kept: KeptObjects, cluster: Any, path: str = PODS) -> list[Any]:
    return kept.reduce(cluster, path, KEPT[path], list[Any], add=list[Any].extend)


def _parsed(kept: KeptObjects, cluster: Any, read: PodReader) -> list[Any]:
    return kept.reduce(cluster, PODS, KEPT[PODS], list[Any], add=Parsing(read, list[Any].extend))


def _lists(api: ApiServer, path: str = PODS) -> int:
    """How often it was listed."""
    return sum(
        one.method == "GET" and one.path == path and "watch=true" not in one.query
        for one in api.requests.all()
    )


def _do(api: ApiServer, verb: str, name: str) -> None:
    there = api.get("Pod", "default", name) is not None
    if verb == "create" and not there:
        api.create(pod(name, nodeName=random.choice(["node-0", "node-1"])))
    elif verb == "label" and there:
        api.patch("Pod", "default", name, {"metadata": {"labels": {"at": str(time.monotonic())}}})
    elif verb == "adopt" and there:
        owner = {
            "apiVersion": "v1",
            "kind": "Set",
            "name": str(time.monotonic()),
            "uid": "u",
            "controller": True,
        }
        api.patch("Pod", "default", name, {"metadata": {"ownerReferences": [owner]}})
    elif verb == "delete" and there:
        api.delete("Pod", "default", name)
    elif verb == "other":
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "n-"}})
    elif verb == "expire":
        api.expire_history()
    elif verb == "drop":
        api.inject(Fault("/pods$", "GET", drop=True))
    elif verb == "fail":
        api.inject(Fault("/pods$", "GET", status=503))


@hypothesis.given(
    st.lists(st.tuples(st.sampled_from(VERBS), st.sampled_from("abcd"), st.booleans()), max_size=12)
)
@hypothesis.settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
def test_kept_objects_are_as_listed_after_any_changes(
    tmp_path: pathlib.Path, changes: list[tuple[str, str, bool]]
) -> None:
    """Pods that come, change and go, expired versions, lost connections and errors; in the order of a list."""
    with ApiServer(termination_delay_s=0.02) as api:
        api.create(node("node-0"))
        with _keeping(_settings(api, tmp_path)) as (kept, cluster):
            for verb, name, waits in changes:
                _do(api, verb, name)
                if waits:
                    time.sleep(0.03)
            api.settle()
            api.clear_faults()
            listed = _read(cluster.reduce)
            wait_until(lambda: _kept(kept, _Silent(cluster.host)) == listed)


@hypothesis.example(
    [("label", "a", False), ("adopt", "a", True), ("delete", "b", False), ("create", "b", True)]
)
@hypothesis.given(
    st.lists(st.tuples(st.sampled_from(VERBS), st.sampled_from("abcd"), st.booleans()), max_size=12)
)
@hypothesis.settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
def test_kept_entries_are_as_parsed_from_a_list_after_any_changes(
    tmp_path: pathlib.Path, changes: list[tuple[str, str, bool]]
) -> None:
    """Read after each change, also with another label of gangs; a pod may return under its name as another."""
    readers = [PodReader(ResourceTable()), PodReader(ResourceTable(), gang_labels=frozenset({"at"}))]
    with ApiServer(termination_delay_s=0.02) as api:
        api.create(node("node-0"))
        for name in "abcd":
            api.create(pod(name))
        with _keeping(_settings(api, tmp_path)) as (kept, cluster):
            for verb, name, is_other in changes:
                _do(api, verb, name)
                _parsed(kept, _Silent(cluster.host), readers[is_other])
            api.settle()
            api.clear_faults()
            listed = _read(cluster.reduce)
            for read in (*readers, readers[0]):
                entries = list(map(read, listed))
                wait_until(lambda: _parsed(kept, _Silent(cluster.host), read) == entries)  # noqa: B023


def test_kept_entry_of_an_unchanged_pod_is_the_same(api: ApiServer, tmp_path: pathlib.Path) -> None:
    """Only the pod that has changed is parsed again."""
    for name in ("a", "b"):
        api.create(pod(name))
    api.settle()
    with _keeping(_settings(api, tmp_path)) as (kept, cluster):
        before = _parsed(kept, cluster, PodReader(ResourceTable()))
        api.patch("Pod", "default", "a", {"metadata": {"labels": {"at": "1"}}})
        wait_until(lambda: _parsed(kept, cluster, PodReader(ResourceTable()))[0] != before[0])
        assert _parsed(kept, cluster, PodReader(ResourceTable()))[1] is before[1]


def test_watch_that_cannot_connect_tries_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the longest pause, and no more often after that."""
    monkeypatch.setattr(watched, "LONGEST_PAUSE_S", 0.3)
    tries: list[float] = []

    def connect() -> Cluster:
        tries.append(time.monotonic())
        raise ClusterUnreachable("no answer")

    with KeptObjects({PODS: KEPT[PODS]}, connect, lambda _: None):
        wait_until(lambda: len(tries) >= 9)
    pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert min(pauses[5:]) >= 0.3


class _Silent:
    """A server that lists nothing: what is kept must be enough."""

    def __init__(self, host: str) -> None:
        self.host = host

    def reduce(self, *_: object, **__: object) -> None:
        """Nothing, which is not even an empty list."""


def test_kept_objects_are_listed_once(api: ApiServer, tmp_path: pathlib.Path) -> None:
    """The first read waits for that; later ones ask nothing, also after watches have ended and begun again."""
    apart: dict[str, Any] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    api.create(pod("a", tolerations=[{"key": "gpu", "operator": "Exists"}], affinity=apart))
    api.settle()
    with _keeping(_settings(api, tmp_path)) as (kept, cluster):
        for path in KEPT:
            assert _kept(kept, _Silent(cluster.host), path) == _read(cluster.reduce, path)
        api.requests.clear()
        assert [one.metadata.name for one in _kept(kept, cluster)] == ["a"]
        assert [one.metadata.name for one in _kept(kept, cluster, "/api/v1/nodes")] == ["node-0", "node-1"]
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
        time.sleep(1.2)
        api.expire_history()  # a watch goes on from its last bookmark
        time.sleep(1.2)
        api.create(pod("b"))
        wait_until(lambda: [one.metadata.name for one in _kept(kept, cluster)] == ["a", "b"])
        assert (_lists(api), _lists(api, "/api/v1/nodes")) == (0, 0)


def test_kept_objects_that_went_while_nobody_watched_are_dropped(
    api: ApiServer, tmp_path: pathlib.Path
) -> None:
    """The versions since have expired, so everything is listed again."""
    for name in ("a", "b"):
        api.create(pod(name))
    api.settle()
    with _keeping(_settings(api, tmp_path)) as (kept, cluster):
        assert len(_kept(kept, _Silent(cluster.host))) == 2
        api.inject(Fault("/pods$", "GET", times=None, drop=True))
        refused = len(api.requests.all()) + 2
        wait_until(lambda: len(api.requests.all()) > refused)
        api.delete("Pod", "default", "a")
        wait_until(lambda: api.get("Pod", "default", "a") is None)
        api.expire_history()
        api.clear_faults()
        wait_until(lambda: len(_kept(kept, _Silent(cluster.host)) or "  ") == 1)


def test_kept_objects_of_a_watch_that_is_refused_are_listed(
    api: ApiServer, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As before there were any; it is said once."""
    api.deny(Rule("*", ("watch",), ("pods",)))
    api.create(pod("a"))
    with _keeping(_settings(api, tmp_path)) as (kept, cluster):
        for _ in range(3):
            wait_until(lambda: [one.metadata.name for one in _kept(kept, cluster)] == ["a"])
            time.sleep(0.2)
    told = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(told) == 1
    assert told[0].startswith("/api/v1/pods is listed in each cycle: ")


def test_kept_objects_of_another_server_are_not_believed(api: ApiServer, tmp_path: pathlib.Path) -> None:
    """A kubeconfig that changes names another cluster: its pods are read there."""
    api.create(pod("ours"))
    with (
        ApiServer() as other,
        _keeping(_settings(api, tmp_path)) as (kept, cluster),
        contextlib.closing(Cluster(_settings(other, tmp_path))) as elsewhere,
    ):
        other.create(pod("theirs"))
        assert [one.metadata.name for one in _kept(kept, cluster)] == ["ours"]
        assert [one.metadata.name for one in _kept(kept, elsewhere)] == ["theirs"]


def test_kept_objects_that_take_too_much_memory_are_listed(
    api: ApiServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever may annotate a pod chooses how much that is."""
    monkeypatch.setattr(kept_objects, "MOST_BYTES", 10_000)
    with _keeping(_settings(api, tmp_path)) as (kept, cluster):
        for name in ("a", "b"):
            api.create(pod(name))
            api.settle()
        wait_until(lambda: [one.metadata.name for one in _kept(kept, _Silent(cluster.host))] == ["a", "b"])
        noise = random.Random(1).randbytes(50_000).hex()
        api.patch("Pod", "default", "a", {"metadata": {"annotations": {"x": noise}}})
        wait_until(lambda: _kept(kept, _Silent(cluster.host)) is None)
        assert [one.metadata.annotations for one in _kept(kept, cluster)] == [{"x": noise}, None]
    told = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert told == ["/api/v1/pods is listed in each cycle: its objects take more than 0 MiB of memory"]


class _Deaf(Cluster):
    """A connection that loses each word of a deletion."""

    def watch(self, *args: Any, **more: Any) -> Iterator[Any]:
        """All others."""
        return (one for one in super().watch(*args, **more) if one[0] != "DELETED")


def test_kept_objects_that_differ_from_a_list_are_forgotten(
    api: ApiServer, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said and counted, the list is what counts, and everything is listed again."""
    for name in ("a", "b"):
        api.create(pod(name))
    api.settle()
    settings, found = _settings(api, tmp_path), list[int]()
    with (
        contextlib.closing(Cluster(settings)) as cluster,
        KeptObjects(KEPT, lambda: _Deaf(settings), found.append, verified_every=2) as kept,
    ):
        assert (len(_kept(kept, cluster)), len(_kept(kept, cluster)), found) == (2, 2, [])
        api.delete("Pod", "default", "a")
        wait_until(lambda: api.get("Pod", "default", "a") is None)
        assert (len(_kept(kept, cluster)), found) == (2, [])
        assert (len(_kept(kept, cluster)), found) == (1, [1])
        told = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
        assert told == ["/api/v1/pods: 1 kept objects differ from the API server's, such as default/a"]
        wait_until(lambda: len(_kept(kept, _Silent(cluster.host)) or "  ") == 1)
