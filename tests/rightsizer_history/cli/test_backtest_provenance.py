"""`backtest` and `tune` believe exporters only: a pod that Prometheus scrapes changes neither figures nor policies."""

import datetime
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from simulator.kube import Fault
from simulator.prometheus import Prometheus
from tests.rightsizer.commands import Run, run_command
from tests.rightsizer.metrics import DAY, HOUR, MEMORY, POWER, UTIL, Metrics, Value, within
from tests.rightsizer.world import World

pytestmark = [pytest.mark.prometheus, pytest.mark.xdist_group("backtest")]

UNKNOWN = "the provenance of GPU series"
GIVEN = ("--exporter-namespace", "monitoring")
NODES = ("n1", "n2", "n3")
LEFT: dict[str, Value] = {UTIL: within(1440, 1200, 90), MEMORY: 1, POWER: 60}


class Scraped:
    """A cluster with three nodes, an exporter and a service on each, and a tenant's pod that is scraped, too.

    Args:
        world: The cluster.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.metrics = Metrics(world.prometheus)
        for node in NODES[1:]:
            world.node(node)
        self.exporters = {
            node: {
                "job": "exporter",
                "instance": self.add("monitoring", f"exporter-{node}", node),
                "Hostname": node,
            }
            for node in NODES
        }
        self.tenant = {"job": "pods", "instance": self.add("tenant", "forger", "n1")}
        for node in NODES:
            self.add(self.metrics.space, f"left-{node}", node, gpus="1")

    def add(self, namespace: str, name: str, node: str, **gpus: str) -> str:
        """The address at which a new pod is scraped."""
        self.world.namespace(namespace)
        resources = {"limits": {"nvidia.com/gpu": gpus["gpus"]}} if gpus else {}
        containers = [{"name": "main", "image": "main", "resources": resources}]
        metadata = {"name": name, "namespace": namespace}
        spec = {"nodeName": node, "containers": containers}
        self.world.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        self.world.api.settle()
        made = self.world.api.get("Pod", namespace, name)
        assert made is not None
        return f"{made['status']['podIP']}:9400"

    def work(self, since: datetime.timedelta = DAY) -> None:
        """Let the exporters tell of services that were left behind hours ago."""
        for node, exporter in self.exporters.items():
            self.metrics.write(LEFT, exporter, pod=f"left-{node}", since=since)

    def invent(self, **labels: str) -> None:
        """Let the tenant's pod tell of ten pods that nobody has."""
        for number in range(10):
            invented = {**self.tenant, "UUID": f"GPU-invented-{number}", **labels}
            self.metrics.write(LEFT, invented, pod=f"invented-{number}", namespace="nobody")

    def run(self, command: str, *arguments: str, has_cluster: bool = True) -> Run:
        """One of the commands over the last 20 hours."""
        asked = ("--prometheus-url", self.metrics.prometheus.url, "--from", "20h")
        ours = ("--prometheus-label", f"test={self.metrics.space}", "--at", self.metrics.at.isoformat())
        here = ("--kubeconfig", str(self.world.directory / "kubeconfig")) if has_cluster else ()
        return run_command(command, *asked, *ours, *here, *arguments)

    def backtest(self, *arguments: str, has_cluster: bool = True) -> dict[str, Any]:
        """The report."""
        done = self.run("backtest", "-o", "json", *arguments, has_cluster=has_cluster)
        assert done.code == 0, done.err
        return json.loads(done.out)  # type: ignore[no-any-return]


@pytest.fixture
def scraped(tmp_path: pathlib.Path, prometheus: Prometheus) -> Iterator[Scraped]:
    """The cluster, before anything is recorded."""
    with World(tmp_path, prometheus) as world:
        yield Scraped(world)


@pytest.mark.parametrize("given", [(), GIVEN], ids=["found", "given"])
@pytest.mark.parametrize(
    "labels",
    [
        pytest.param({}, id="own-job"),
        pytest.param({"job": "exporter"}, id="exporters-job"),
        pytest.param({"cluster": "elsewhere"}, id="another-cluster"),
    ],
)
def test_backtest_series_of_a_tenants_pod_change_nothing(
    scraped: Scraped, labels: dict[str, str], given: tuple[str, ...]
) -> None:
    """Neither GPUs nor workloads, nor does another cluster's label end it."""
    scraped.work()
    before = scraped.backtest(*given)
    assert before["gpus"] == len(NODES)
    assert not any(UNKNOWN in words for words in before["unknown"])
    scraped.invent(**labels)
    assert scraped.backtest(*given) == before
    assert "1 target ignored: not from an exporter" in scraped.run("backtest", *given).err


def test_backtest_series_of_a_tenants_many_targets_change_nothing(scraped: Scraped) -> None:
    """More of them in the exporters' job than the queries of plans exclude by name."""
    scraped.work()
    before = scraped.backtest(*GIVEN)
    for port in range(100):
        instance = scraped.tenant["instance"].replace(":9400", f":{8000 + port}")
        target = {"job": "exporter", "instance": instance, "UUID": f"GPU-invented-{port}"}
        scraped.metrics.write({UTIL: 0}, target, pod=f"invented-{port}", namespace="nobody", step_s=240)
    assert scraped.backtest(*GIVEN) == before


def test_tune_series_of_a_tenants_pod_change_nothing(scraped: Scraped) -> None:
    """It is not tuned to pauses that somebody invents."""
    asked = ("--from", "16d", "--step", "30m", "--price-of-a-mistake", "24")

    def daily(left: float) -> float:
        return 60.0 if (left / 60) % 24 < 9 else 0.0

    real: dict[str, Value] = {UTIL: daily, MEMORY: 1, POWER: lambda left: 60 + 4 * daily(left)}
    for number in range(12):
        pod = f"web{number}-6d4cf56db6-bcdf{'bcdfghjklmnp'[number]}"
        scraped.metrics.write(real, scraped.exporters[NODES[number % 3]], pod=pod, since=16 * DAY, step_s=600)
    before = scraped.run("tune", *asked)
    assert (before.code, UNKNOWN in before.err) == (0, False), before.err
    assert "gaps ended" in before.out
    for number in range(100):
        begin = (0.05 + 0.15 * number) * DAY
        ended: dict[str, Value] = {
            UTIL: lambda left, begin=begin: 60.0 if left * 60 > begin.total_seconds() + 72_000 else 0.0,  # type: ignore[misc]
            MEMORY: 1,
            POWER: 60,
        }
        for gpu in range(4):
            invented = {
                **scraped.tenant,
                "UUID": f"GPU-{number}-{gpu}",
                "pod": f"job{number}-6d4cf56db6-bcdfz",
            }
            since, until = min(16 * DAY, begin + 21 * HOUR), begin
            scraped.metrics.write(ended, invented, namespace="nobody", since=since, until=until, step_s=600)
    assert scraped.run("tune", *asked).out == before.out


def test_backtest_series_of_a_restarted_exporter_count(scraped: Scraped) -> None:
    """Its address of then may be another pod's now."""
    scraped.work(since=DAY / 2)
    then = {**scraped.exporters["n1"], "instance": scraped.tenant["instance"].replace(":9400", ":9401")}
    scraped.metrics.write(LEFT, then, pod="left-n1", until=DAY / 2)
    known, unknown = (scraped.backtest(has_cluster=has_cluster) for has_cluster in (True, False))
    assert known["judges"] == unknown["judges"]


def test_history_with_rival_exporters_says_that_its_provenance_is_unknown(scraped: Scraped) -> None:
    """Targets of two namespaces on most nodes both count, until the exporters' is given."""
    for node, exporter in scraped.exporters.items():
        rival = {**exporter, "instance": scraped.add("other", f"other-{node}", node)}
        scraped.metrics.write(LEFT, rival, pod=f"left-{node}")
    scraped.work()
    assert any(f"{UNKNOWN} in 1 day" in words for words in scraped.backtest()["unknown"])
    assert not any(UNKNOWN in words for words in scraped.backtest(*GIVEN)["unknown"])


@pytest.mark.parametrize("command", ["backtest", "tune"])
def test_history_without_a_cluster_says_that_its_provenance_is_unknown(
    scraped: Scraped, command: str
) -> None:
    """On stderr with the reason, and in the report with the flags that help."""
    scraped.work()
    price = ("--price-of-a-mistake", "24") if command == "tune" else ()
    for has_cluster in (True, False):
        done = scraped.run(command, *price, has_cluster=has_cluster)
        assert done.code == 0, done.err
        text = " ".join(done.out.replace("#", " ").split())
        assert (f"{UNKNOWN} in 1 day" in text) is not has_cluster
        assert ("--exporter-namespace" in text) is not has_cluster
        assert (
            f"{UNKNOWN} is unknown, so every scraped target counts: which cluster?" in done.err
        ) is not has_cluster


def test_history_of_a_cluster_that_lists_no_pods_is_read_all_the_same(scraped: Scraped) -> None:
    """An account without the permission, as before; a kubeconfig that is named and wrong is an error."""
    scraped.work()
    scraped.world.api.inject(Fault("pods", "*", None, status=403))
    assert any(f"{UNKNOWN} in 1 day" in words for words in scraped.backtest()["unknown"])
    done = scraped.run("backtest", "--kubeconfig", "/dev/null")
    assert (done.code, done.out) == (2, "")


def test_history_that_ended_days_ago_is_not_compared_with_addresses_of_now(scraped: Scraped) -> None:
    """They were others' then."""
    scraped.work(since=5 * DAY)
    at = (scraped.metrics.at - 3 * DAY).isoformat()
    assert any(f"{UNKNOWN} in 1 day" in words for words in scraped.backtest("--at", at)["unknown"])
    assert not any(UNKNOWN in words for words in scraped.backtest()["unknown"])


def test_kept_history_remembers_whether_its_provenance_was_known(
    scraped: Scraped, tmp_path: pathlib.Path
) -> None:
    """Days that were read without the cluster stay as they are, and the report says how many."""
    scraped.work(since=4 * DAY)
    midnight = datetime.datetime.combine(scraped.metrics.at, datetime.time(), datetime.UTC).isoformat()
    kept = ("--at", midnight, "--history", str(tmp_path / "kept"), "--from")
    scraped.backtest(*kept, "1d", has_cluster=False)
    assert any(f"{UNKNOWN} in 1 day," in words for words in scraped.backtest(*kept, "3d")["unknown"])
    (latest,) = (tmp_path / "kept").glob(f"usage-{scraped.metrics.at.date() - DAY}-*")
    latest.unlink()
    assert not any(UNKNOWN in words for words in scraped.backtest(*kept, "3d")["unknown"])
