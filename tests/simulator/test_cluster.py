"""A cluster from end to end: what its exporters serve, what Prometheus has of it, and that nothing stays behind."""

import contextlib
import dataclasses
import datetime
import functools
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator.cluster import Cluster
from simulator.history import Sample, parse
from simulator.kube import ApiServer
from simulator.processes import ProcessError
from simulator.prometheus import Prometheus
from simulator.spec import Archetype, ClusterSpec, GpuSpec, Kind, NodeSpec, WorkloadSpec
from simulator.specfile import preset
from simulator.workloads.draws import DAY_S, HOUR_S
from simulator.workloads.population import NAME_LABEL

pytestmark = pytest.mark.driver

UTIL = "DCGM_FI_DEV_GPU_UTIL"
POWER = "DCGM_FI_DEV_POWER_USAGE"
ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
HISTORY_H = 6
STEP_S = 15

PAST = ClusterSpec(
    nodes=(
        NodeSpec("whole", (GpuSpec("H100-SXM5-80GB"),) * 4),
        NodeSpec("cut", (GpuSpec("A100-SXM4-40GB", mig=("3g.20gb", "1g.5gb")),)),
    ),
    priority_classes=(),
    workloads=(
        WorkloadSpec(Kind.JOB, "ml", "steady", Archetype.TRAIN_STEADY, age_s=2 * DAY_S),
        WorkloadSpec(
            Kind.POD, "ml", "young", Archetype.ZOMBIE, age_s=2 * HOUR_S, works_s=HOUR_S, spins=False
        ),
        WorkloadSpec(Kind.POD, "ml", "half", Archetype.ABANDONED, age_s=2 * DAY_S, works_s=0.0, recorded=0.5),
        WorkloadSpec(
            Kind.POD, "ml", "slice", Archetype.TRAIN_STEADY, age_s=DAY_S, resource="nvidia.com/mig-1g.5gb"
        ),
    ),
)
"""A cluster for looking into the past: an old pod, a young one, one with half a record, one on an instance."""


def _samples(cluster: Cluster, node: str) -> list[Sample]:
    return list(parse(cluster.exporters[node].get("/metrics")[1]))


def _pods_on(cluster: Cluster, node: str, metric: str = "DCGM_FI_DEV_FB_USED") -> dict[str, set[str]]:
    """UUIDs by pod, as the node's exporter attributes them."""
    found: dict[str, set[str]] = {}
    for sample in _samples(cluster, node):
        labels = sample.labels
        if sample.name == metric and labels.get("pod"):
            found.setdefault(f"{labels['namespace']}/{labels['pod']}", set()).add(labels["UUID"])
    return found


def _eventually(get: Callable[[], Any], wanted: Callable[[Any], bool], timeout_s: float = 300.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not wanted(got := get()):
        assert time.monotonic() < deadline, got
        time.sleep(0.05)
    return got


def _alive(directory: Path) -> list[str]:
    """Processes that were started for the cluster in `directory`."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                environ = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if str(directory).encode() in environ and state not in {"Z", "X"}:
                    found.append(entry.name)
    return found


# --- end to end


def test_exporter_attributes_devices_to_pods(tmp_path: Path) -> None:
    """Each exporter attributes its node's devices to the pods that the API server has there."""
    with Cluster(preset("small"), tmp_path) as cluster:
        assert cluster.api is not None
        for node in preset("small").nodes:
            expected = {
                f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
                for pod in cluster.api.list("Pod")
                if pod["spec"]["nodeName"] == node.name
            }
            found = _eventually(functools.partial(_pods_on, cluster, node.name), bool)
            assert set(found) == expected
            assert {uuid for uuids in found.values() for uuid in uuids} <= {
                node.gpu_uuid(index) for index in range(len(node.gpus))
            }


def test_scaled_down_workload_loses_its_labels(tmp_path: Path) -> None:
    """Scaled to zero, a Deployment's pods end and their GPUs carry no pod any more; scaled up, they do again."""
    with Cluster(preset("small"), tmp_path) as cluster:
        assert cluster.api is not None

        def count() -> int:
            return sum("serving/forgotten" in pod for pod in _pods_on(cluster, "whole"))

        _eventually(count, lambda n: n == 2)
        cluster.api.patch("Deployment", "serving", "forgotten", {"spec": {"replicas": 0}})
        _eventually(count, lambda n: n == 0)
        used = [sample for sample in _samples(cluster, "whole") if sample.name == UTIL]
        assert sum("pod" not in sample.labels for sample in used) == 2
        cluster.api.patch("Deployment", "serving", "forgotten", {"spec": {"replicas": 2}})
        _eventually(count, lambda n: n == 2)


def _command_lines(directory: Path) -> list[list[str]]:
    return [
        Path("/proc", pid, "cmdline").read_bytes().decode().split("\0") for pid in sorted(_alive(directory))
    ]


def test_exporter_sees_processes_of_its_own_host(tmp_path: Path) -> None:
    """Its node's ones under --proc-root, their pods' logs under --pod-logs, and nothing of an earlier cluster's."""
    stale = tmp_path / "whole.host" / "proc" / "4711"
    stale.mkdir(parents=True)
    with Cluster(preset("small"), tmp_path) as cluster:
        assert cluster.api is not None
        for node in preset("small").nodes:
            proc = tmp_path / f"{node.name}.host" / "proc"
            flags = {f"--proc-root={proc}", f"--pod-logs={proc.parent / 'log'}"}
            assert any(flags <= set(line) for line in _command_lines(tmp_path))
            uids = {
                pod["metadata"]["uid"]
                for pod in cluster.api.list("Pod")
                if pod["spec"]["nodeName"] == node.name
            }
            cgroups = [(path / "cgroup").read_text() for path in proc.glob("[0-9]*")]
            in_pods = {text.partition("-pod")[2].partition(".slice")[0] for text in cgroups} - {""}
            assert in_pods
            assert {uid.replace("_", "-") for uid in in_pods} <= uids
        assert not stale.exists()


def _now() -> datetime.datetime:
    """In whole seconds, as the API server writes times."""
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def test_pod_age_matches_spec(tmp_path: Path) -> None:
    """Workloads were created, and their pods started, `age_s` before the cluster was started."""
    before = _now()
    with Cluster(preset("small"), tmp_path, exporters=False) as cluster:
        assert cluster.api is not None
        after = _now()
        for spec in preset("small").workloads:
            made = cluster.api.get(spec.kind.value, spec.namespace, spec.name)
            assert made is not None
            created = datetime.datetime.fromisoformat(made["metadata"]["creationTimestamp"])
            assert before <= created + datetime.timedelta(seconds=spec.age_s) <= after
        for pod in cluster.api.list("Pod"):
            assert pod["status"]["phase"] == "Running"
            assert pod["status"]["startTime"] == pod["metadata"]["creationTimestamp"]
        assert cluster.api.requests.mutating() == []


def test_busy_replicas_are_numbered_by_age_and_name(tmp_path: Path) -> None:
    """Pods are numbered by age and name: of four replicas with two busy ones, the first two work."""
    spec = WorkloadSpec(Kind.STATEFUL_SET, "ml", "app", Archetype.TRAIN_STEADY, replicas=4, busy_replicas=2)
    nodes = tuple(NodeSpec(f"n{number}", (GpuSpec("L4"),)) for number in range(4))
    with Cluster(ClusterSpec(nodes, (), (spec,)), tmp_path, exporters=False) as cluster:
        now_s = int(time.time())
        works = {
            held.pod.name: max(agent.machine.samples(0, range(now_s - 7200, now_s, 60)).utilization) > 0
            for agent in cluster.agents.values()
            for held in agent.holdings()
        }
    assert works == {"app-0": True, "app-1": True, "app-2": False, "app-3": False}


def test_cluster_on_given_api_server_creates_its_objects(tmp_path: Path) -> None:
    """Given a kubeconfig the cluster makes its objects there, and its nodes follow the pods there."""
    kubeconfig = tmp_path / "given"
    with ApiServer() as api:
        kubeconfig.write_text(yaml.safe_dump(api.kubeconfig()))
        with Cluster(preset("small"), tmp_path, kubeconfig=kubeconfig, exporters=False) as cluster:
            assert cluster.api is None
            assert {node["metadata"]["name"] for node in api.list("Node")} == {
                node.name for node in preset("small").nodes
            }
            _eventually(
                lambda: sum(len(agent.holdings()) for agent in cluster.agents.values()),
                lambda count: count == 6,
            )
        starts = {pod["metadata"]["name"]: pod["status"]["startTime"] for pod in api.list("Pod")}
        # A second time the objects are there already, and stay as old as they are.
        with Cluster(preset("small"), tmp_path, kubeconfig=kubeconfig, exporters=False) as cluster:
            assert sum(len(agent.holdings()) for agent in cluster.agents.values()) == 6
        assert {pod["metadata"]["name"]: pod["status"]["startTime"] for pod in api.list("Pod")} == starts


def test_pods_on_given_api_server_are_backdated(tmp_path: Path) -> None:
    """Its objects are new, but the kubelets report a start `age_s` ago, and the devices are used since then."""
    kubeconfig = tmp_path / "given"
    before = _now()
    with ApiServer() as api:
        kubeconfig.write_text(yaml.safe_dump(api.kubeconfig()))
        with Cluster(preset("small"), tmp_path, kubeconfig=kubeconfig, exporters=False) as cluster:
            ages = {(spec.namespace, spec.name): spec.age_s for spec in preset("small").workloads}
            starts = {
                held.pod.name: datetime.datetime.fromtimestamp(held.start_s or 0, datetime.UTC)
                for agent in cluster.agents.values()
                for held in agent.holdings()
            }
        after = _now()
        for pod in api.list("Pod"):
            age = datetime.timedelta(
                seconds=ages[pod["metadata"]["namespace"], pod["metadata"]["labels"][NAME_LABEL]]
            )
            (status,) = pod["status"]["containerStatuses"]
            for stamp in (pod["status"]["startTime"], status["state"]["running"]["startedAt"]):
                started = datetime.datetime.fromisoformat(stamp)
                assert before <= started + age <= after
            assert before <= starts[pod["metadata"]["name"]] + age <= after


def test_failing_exporter_fails_start_with_its_log(tmp_path: Path) -> None:
    """A failing exporter is an error that shows its log, and everything else is ended."""
    with pytest.raises(ProcessError, match="exporter on whole ended at start"):
        Cluster(preset("small"), tmp_path, exporter_options=["--no-such-flag"]).__enter__()
    _eventually(lambda: _alive(tmp_path), lambda pids: not pids)


# --- the past


@dataclasses.dataclass(frozen=True, slots=True)
class World:
    """A cluster whose past is in a Prometheus that scrapes it."""

    cluster: Cluster
    prometheus: Prometheus
    until_s: float


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bool], World]]:
    """The cluster `PAST` with some hours of history, in either label form. One for all tests, in whichever order."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def make(honor_labels: bool) -> World:
            directory = tmp_path_factory.mktemp("world")
            cluster = stack.enter_context(Cluster(PAST, directory))
            options: dict[str, Any] = {"scrape_interval_s": 1, "honor_labels": honor_labels}
            prometheus = stack.enter_context(
                Prometheus(directory / "prometheus", targets=cluster.targets, **options)
            )
            until_s = time.time()
            cluster.write_history(prometheus, hours=HISTORY_H, step_s=STEP_S)
            prometheus.wait_for(f'count(timestamp({UTIL}{{node="whole"}}) > {until_s}) > 3')
            return World(cluster, prometheus, until_s)

        yield make


_ONE_WORKER = pytest.mark.xdist_group("world")


@pytest.fixture(
    params=[
        pytest.param(False, id="exported_pod", marks=_ONE_WORKER),
        pytest.param(True, id="pod", marks=_ONE_WORKER),
    ]
)
def world(request: pytest.FixtureRequest, worlds: Callable[[bool], World]) -> World:
    """That cluster in both label forms."""
    return worlds(request.param)


def _label(world: World, name: str) -> str:
    return name if world.prometheus.honor_labels else f"exported_{name}"


def _one(world: World, expression: str) -> float:
    [found] = world.prometheus.query(expression, at_s=world.until_s)
    return float(found["value"][1])


@pytest.mark.slow
@pytest.mark.prometheus
def test_history_and_scrapes_have_the_same_labels(world: World) -> None:
    """No GPU has more series than its pods and the time without one account for: labels match to the letter."""
    found = world.prometheus.query(f'count by (UUID) (last_over_time({UTIL}{{node="whole"}}[{HISTORY_H}h]))')
    pod = _label(world, "pod")
    by_uuid = {one["metric"]["UUID"]: int(one["value"][1]) for one in found}
    with_two = world.prometheus.query(f'last_over_time({UTIL}{{{pod}=~"young|half"}}[1m])')
    for uuid, count in by_uuid.items():
        assert count == (2 if uuid in {one["metric"]["UUID"] for one in with_two} else 1)


@pytest.mark.prometheus
def test_history_of_old_pod_covers_every_step(world: World) -> None:
    """The whole window is covered, in all ten metrics, and by `up`."""
    pod = _label(world, "pod")
    steps = HISTORY_H * 3600 // STEP_S
    for metric in (UTIL, ENERGY, "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_SM_CLOCK"):
        counted = _one(world, f'count_over_time({metric}{{{pod}=~"steady.*"}}[{HISTORY_H}h])')
        assert counted == pytest.approx(steps, abs=3), metric
    assert _one(world, f'count_over_time(up{{node="cut"}}[{HISTORY_H}h])') == pytest.approx(steps, abs=3)


@pytest.mark.prometheus
def test_history_of_young_pod_begins_at_its_start(world: World) -> None:
    """Before its start its GPU has a series without a pod, and that one ends when the pod comes."""
    pod = _label(world, "pod")
    counted = _one(world, f'count_over_time({UTIL}{{{pod}="young"}}[{HISTORY_H}h])')
    assert counted == pytest.approx(2 * 3600 / STEP_S, abs=5)
    uuid = world.prometheus.query(f'{UTIL}{{{pod}="young"}}')[0]["metric"]["UUID"]
    alone = _one(world, f'count_over_time({UTIL}{{UUID="{uuid}",{pod}!="young"}}[{HISTORY_H}h])')
    assert alone == pytest.approx(4 * 3600 / STEP_S, abs=5)
    an_hour_ago = world.prometheus.query(f'{UTIL}{{UUID="{uuid}"}}', at_s=world.until_s - 3600)
    assert [one["metric"].get(pod) for one in an_hour_ago] == ["young"]
    just_after = world.prometheus.query(f'{UTIL}{{UUID="{uuid}"}}', at_s=world.until_s - 2 * 3600 + 60)
    assert [one["metric"].get(pod) for one in just_after] == ["young"]


@pytest.mark.slow
@pytest.mark.prometheus
def test_history_half_recorded_covers_newer_half(world: World) -> None:
    """`recorded` leaves the pod's labels out of the older part."""
    pod = _label(world, "pod")
    counted = _one(world, f'count_over_time({UTIL}{{{pod}="half"}}[{HISTORY_H}h])')
    assert counted == pytest.approx(HISTORY_H * 3600 / STEP_S / 2, abs=3)
    oldest = _one(world, f'min_over_time(timestamp({UTIL}{{{pod}="half"}})[{HISTORY_H}h:{STEP_S}s])')
    assert oldest == pytest.approx(world.until_s - HISTORY_H * 1800, abs=2 * STEP_S)


@pytest.mark.prometheus
def test_history_and_scrapes_join_without_gap(world: World) -> None:
    """No gap that Prometheus would show, no reset of the energy counter, and values as a busy H100 has them."""
    now_s = time.time()
    pod = _label(world, "pod")
    [found] = world.prometheus.query(f'{ENERGY}{{{pod}=~"steady.*"}}[10m]', at_s=now_s)
    times = [float(at) for at, _ in found["values"]]
    values = [float(value) for _, value in found["values"]]
    assert any(at > world.until_s for at in times)
    assert any(at < world.until_s for at in times)
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) < 300
    assert values == sorted(values)
    watts = [
        (later - earlier) / 1000 / (t1 - t0)
        for (t0, earlier), (t1, later) in itertools.pairwise(zip(times, values, strict=True))
        if t1 - t0 > 10
    ]
    assert all(100 < one <= 720 for one in watts)


@pytest.mark.prometheus
def test_history_counters_tell_what_gauges_show(world: World) -> None:
    """The mean of a pod's counter is that of its GPU's gauge; a pod that rests has used nothing."""
    pods = f'{{{_label(world, "pod")}=~"steady.*"}}'
    shown = _one(world, f"avg_over_time({UTIL}{pods}[5h]) / 100")
    assert shown > 0.8
    assert _one(world, f"rate(gpu_pod_busy_seconds_total{pods}[5h])") == pytest.approx(shown, rel=0.02)
    assert _one(world, "max(rate(gpu_busy_seconds_total[5h]))") == pytest.approx(shown, rel=0.02)
    energy = (
        f"(rate(gpu_pod_energy_joules_total{pods}[5h]) + on (UUID) rate(gpu_idle_energy_joules_total[5h]))"
    )
    assert _one(world, f"{energy} / on (UUID) rate(gpu_energy_joules_total[5h])") == pytest.approx(1)
    rests = pods.replace("steady.*", "half")
    assert _one(world, f"rate(gpu_pod_busy_seconds_total{rests}[1h])") == 0
    assert _one(world, f"min_over_time(gpu_pod_memory_used_bytes{pods}[5h])") > 2**29


@pytest.mark.prometheus
def test_history_of_instance_has_its_own_memory(world: World) -> None:
    """The MIG instance's series carry its id, its pod and its own memory, not the card's."""
    pod = _label(world, "pod")
    [used] = world.prometheus.query(f'DCGM_FI_DEV_FB_USED{{{pod}="slice"}}', at_s=world.until_s - 3600)
    assert used["metric"]["GPU_I_PROFILE"] == "1g.5gb"
    assert 500 < float(used["value"][1]) < 5 * 1024
    [live] = world.prometheus.query(f'DCGM_FI_DEV_FB_USED{{{pod}="slice"}}')
    assert live["metric"] == used["metric"]


# --- the end


@pytest.mark.slow
@pytest.mark.prometheus
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.deep),
        pytest.param(signal.SIGTERM, marks=pytest.mark.deep),
        signal.SIGKILL,
    ],
)
def test_simulator_ended_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    """However `python -m simulator` ends, none of its processes is left."""
    options = ["--cluster", "small", "--history", "0.1", "--directory", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-m", "simulator", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        output = []
        for line in process.stdout:
            output.append(line)
            if "Ctrl-C" in line:
                break
        text = "".join(output)
        assert "KUBECONFIG" in text, text
        assert len(_alive(tmp_path)) >= 3
        process.send_signal(number)
        process.wait(20)
    assert process.returncode == {signal.SIGKILL: -signal.SIGKILL}.get(number, 0)
    _eventually(lambda: _alive(tmp_path), lambda pids: not pids)


def _run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "simulator", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_help_shows_presets_and_example_spec() -> None:
    """--help names the ready-made clusters and shows a spec file and examples."""
    shown = _run("--help")
    assert shown.returncode == 0
    for expected in (
        "demo    5 nodes, 32 GPUs, 23 workloads",
        "archetype: abandoned",
        "examples:",
        "--honor-labels",
    ):
        assert expected in shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--spec", "/does/not/exist.yaml"], "reading /does/not/exist.yaml"),
        (["--history", "-1"], "-1 is not between 0 and 672 hours"),
        (["--step", "0"], "0 is not between 1 and 120 seconds"),
        (["--step", "often"], "invalid"),
        (["--cluster", "huge"], "invalid choice: 'huge'"),
    ],
    ids=["no-file", "negative-history", "no-step", "not-a-number", "unknown-cluster"],
)
def test_wrong_usage_exits_2_with_message(options: list[str], words: str) -> None:
    """Usage errors exit 2 with a message and without a traceback."""
    refused = _run(*options)
    assert refused.returncode == 2
    assert words in refused.stderr
    assert "Traceback" not in refused.stderr


def test_spec_with_unknown_card_exits_1_with_message(tmp_path: Path) -> None:
    """A spec with an unknown card ends with exit 1 and a message that names node and card."""
    path = tmp_path / "cluster.yaml"
    path.write_text("nodes: [{name: a, gpus: [{card: B900}]}]\npriority_classes: []\nworkloads: []\n")
    refused = _run("--spec", str(path), "--no-prometheus")
    assert refused.returncode == 1
    assert "B900" in refused.stderr
    assert "Traceback" not in refused.stderr
