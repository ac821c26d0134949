"""Every example on a real control plane: taken, run, and judged as its index says."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from rightsizer.config import FIELD_MANAGER
from rightsizer.policy.limits import DEFAULT_BUDGETS
from simulator.controlplane.plane import ControlPlane
from simulator.controlplane.programs import find
from simulator.kubeclient import KubeClient
from simulator.prometheus import Prometheus
from tests.controlplane.contract.server import Api, Real
from tests.controlplane.examples import Cluster
from tests.deploy.examples import EXAMPLES, all_objects, objects, said
from tests.rightsizer.commands import run_command

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.prometheus,
    pytest.mark.xdist_group("controlplane"),
    pytest.mark.timeout(300),  # of the first: all examples are applied, run, and planned for
]

SAID = said()
PODS = 40
"""How many the examples come to."""


WIDE: dict[str, Any] = {
    "budgets": [
        {"scope": scope, "per": per, "workloads": 100}
        for scope, per in sorted({(one.scope.value, one.per.value) for one in DEFAULT_BUDGETS})
    ],
    "breaker": {"maxNodesNotReady": "100%"},
}
"""In place of each of the defaults."""


class _Story:
    """All examples applied at once, idle for a day, and planned for."""

    def __init__(self, cluster: Cluster, kubeconfig: Path, prometheus: Prometheus, folder: Path) -> None:
        cluster.nodes()
        cluster.apply()
        cluster.play_operators()
        namespaces = [found["metadata"]["name"] for _, found in all_objects() if found["kind"] == "Namespace"]
        self.pods = cluster.grow_old(sorted(set(namespaces)), PODS)
        policy = ("--policy", str(EXAMPLES / "policy-by-class.yaml"))
        flags = ("--kubeconfig", str(kubeconfig), "--prometheus-url", prometheus.url, *policy)
        run = run_command("plan", "-o", "json", *flags)
        assert run.code == 0, run.err
        self.plan = json.loads(run.out)
        self.items: dict[str, dict[str, Any]] = {
            f"{item['namespace']}/{item['kind']}/{item['name']}": item
            for item in self.plan["items"]
            if item["namespace"] in namespaces
        }
        # What other tests changed on this control plane in the last hour, and nodes that they left, are not of these.
        wide = {**yaml.safe_load((EXAMPLES / "policy-by-class.yaml").read_text()), **WIDE}
        (folder / "policy.yaml").write_text(yaml.safe_dump(wide))
        # No operator is here that ends pods.
        state = ("--state-namespace", cluster.state, "--verify-for", "0")
        own = (*flags[:-1], str(folder / "policy.yaml"))
        run = run_command("apply", "--yes", "-o", "json", *own, *state)
        assert run.code == 0, run.err
        self.applied = run.items
        self.written: dict[tuple[str, str], set[str]] = {}
        for found in cluster.now():
            paths = set(_written(found["metadata"].get("managedFields", ())))
            if paths:
                group = found["apiVersion"].rpartition("/")[0]
                self.written.setdefault((found["kind"], group), set()).update(paths)


def _written(managed: Sequence[Any]) -> Iterator[str]:
    """The fields of an object that gpu-rightsizer wrote, as JSON pointers; annotations of its own are left out."""
    for entry in managed:
        if entry["manager"] == FIELD_MANAGER:
            for path in _leaves(entry["fieldsV1"]):
                if not path.startswith("/metadata/annotations/gpu-rightsizer.io~1"):
                    yield path


def _leaves(fields: dict[str, Any], above: str = "") -> Iterator[str]:
    for key, below in fields.items():
        path = f"{above}/{key.removeprefix('f:').replace('~', '~0').replace('/', '~1')}"
        if below:
            yield from _leaves(below, path)
        elif key != ".":
            yield path


@pytest.fixture(scope="module")
def story(
    third_parties: ControlPlane, prometheus: Prometheus, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[_Story]:
    """What became of all examples."""
    folder = tmp_path_factory.mktemp("examples")
    api = Api(Real(third_parties.kubeconfig, folder))
    cluster = Cluster(api, KubeClient(third_parties.endpoint), prometheus)
    try:
        yield _Story(cluster, third_parties.kubeconfig, prometheus, folder)
    finally:
        cluster.clear()
        api("DELETE", f"/api/v1/namespaces/{api.namespace}")
        api.session.close()


def test_examples_index_lists_every_workload(story: _Story) -> None:
    """There are as many workloads as the index has rows."""
    assert set(story.items) == set(SAID)


@pytest.mark.parametrize("ref", SAID)
def test_example_gets_verdict_of_index(story: _Story, ref: str) -> None:
    """Its class, what it holds, and what would be done after an idle day."""
    item, row = story.items[ref], SAID[ref]
    assert item["priorityClass"] == row.priority_class
    assert item["gpus"] == pytest.approx(float(row.whole), abs=0.01)
    assert item["migInstancesAndShares"] in {0, row.gpus}
    then = f", then {item['notice']['action']}" if item["notice"] else ""
    assert (item["verdict"], f"{item['action'] or ''}{then}") == (row.verdict, row.action), item["reasons"]


def test_examples_of_low_priority_are_stopped(story: _Story) -> None:
    """What the index says happens at once does happen, within the budgets; nothing of high priority is touched."""
    done = {name for name, item in story.applied.items() if item["result"] == "done"}
    at_once = {row.name for row in SAID.values() if row.action in {"scale-to-zero", "suspend"}}
    told = "\n".join(f"{name} {item['result']}: {item['detail']}" for name, item in story.applied.items())
    assert {"fuzzing", "preview"} <= done & at_once, told
    assert not done & {row.name for row in SAID.values() if row.verdict == "protected"}


def test_argo_cd_exception_names_exactly_the_written_fields(story: _Story) -> None:
    """What gpu-rightsizer wrote besides its own annotations is what the exception by fields names for that kind."""
    exceptions = {
        (one["kind"], one["group"]): set(one["jsonPointers"])
        for _, found in all_objects()
        if found["kind"] == "Application"
        for one in found["spec"]["ignoreDifferences"]
        if "jsonPointers" in one
    }
    assert {("Deployment", "apps"), ("InferenceService", "serving.kserve.io")} <= story.written.keys()
    for who, paths in story.written.items():
        assert paths <= exceptions[who]


def test_scheduler_accepts_example_configuration(third_parties: ControlPlane, tmp_path: Path) -> None:
    """The real kube-scheduler takes it with its extender; only where it finds the API server is this test's."""
    (config,) = objects("sharing/scheduler-extender.yaml")
    config["clientConnection"]["kubeconfig"] = str(third_parties.kubeconfig)
    (tmp_path / "in.yaml").write_text(yaml.safe_dump(config))
    flags = ["--config", str(tmp_path / "in.yaml"), "--write-config-to", str(tmp_path / "out.yaml")]
    scheduler = find()["kube-scheduler"]
    run = subprocess.run([scheduler, *flags], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    (extender,) = yaml.safe_load((tmp_path / "out.yaml").read_text())["extenders"]
    wanted = config["extenders"][0]
    for field in ("urlPrefix", "filterVerb", "bindVerb", "nodeCacheCapable"):
        assert extender[field] == wanted[field]
    assert [one["name"] for one in extender["managedResources"]] == ["aliyun.com/gpu-mem"]


@pytest.mark.parametrize("namespace", sorted({ref.partition("/")[0] for ref in SAID}))
def test_shared_gpus_count_as_fractions(story: _Story, namespace: str) -> None:
    """What a namespace holds in whole GPUs is what the index says of its workloads together."""
    whole = sum(float(row.whole) for ref, row in SAID.items() if ref.startswith(f"{namespace}/"))
    assert story.plan["totals"]["byNamespace"][namespace]["gpus"] == pytest.approx(whole, abs=0.01)
