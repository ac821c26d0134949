"""The chart on a real control plane: installed by helm, its CronJob run with its own account, undone, uninstalled."""

import functools
import json
import operator
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from tests.controlplane.contract.server import Object
from tests.controlplane.release import Release
from tests.controlplane.world import RealWorld
from tests.deploy.chart import find_one, render
from tests.rightsizer.receiver import Receiver, receiving

pytestmark = [pytest.mark.controlplane, pytest.mark.helm, pytest.mark.prometheus]

_OURS = "gpu-rightsizer.io/"
_REMEMBERED = ("history", "resumed-at", "came-back-after")


def _values(world: RealWorld, prometheus_url: str) -> Object:
    """A policy about the team only, whose GPU model has the team's name; everything else as it comes."""
    here = {"namespaces": [world.team]}
    low, medium, high = (f"{level}-priority-{world.team}" for level in ("low", "medium", "high"))
    policy = {
        "apiVersion": "gpu-rightsizer.io/v1alpha1",
        "kind": "Policy",
        "classAnnotations": "off",
        "defaults": {"idle": {"window": "24h", "grace": "30m"}, "kinds": []},
        "budgets": [{"scope": scope, "per": per, "workloads": 100} for scope, per in _BUDGETS],
        "rules": [
            {"name": "production", "match": {"priorityClasses": [high]}, "mode": "protect"},
            {
                "name": "research",
                "match": {**here, "priorityClasses": [medium], "kinds": ["Deployment", "Job"]},
                "mode": "enforce",
                "actions": ["scale-to-zero", "suspend"],
            },
            {
                "name": "scavengers",
                "match": {**here, "priorityClasses": [low], "kinds": ["Pod", "Deployment"]},
                "mode": "enforce",
                "actions": ["scale-to-zero", "evict"],
            },
        ],
    }
    return {
        "rightsizer": {
            "act": True,
            "output": "json",
            "verifyFor": "20s",
            "policy": policy,
            "prometheus": {"url": prometheus_url},
        },
        "exporter": {"podUid": True, "attribution": {"enabled": True}},
        "priorityClasses": {"gpus": [{"name": world.team}]},
        "resourceQuotas": [
            {"namespace": world.team, "gpu": world.team, "high": {"requests.nvidia.com/gpu": 4}}
        ],
        "networkPolicy": {"enabled": True},
    }


_BUDGETS = (("cluster", "run"), ("cluster", "hour"), ("namespace", "run"), ("owner", "day"))


@pytest.fixture
def release(world: RealWorld, tmp_path: Path) -> Iterator[Release]:
    """The chart, installed for the world's team."""
    with Release(world, tmp_path, _values(world, world.prometheus_url)) as made:
        yield made


def _given(world: RealWorld) -> None:
    """Five workloads on one node: idle ones of each class, one at work."""
    world.node()
    low, medium, high = (f"{level}-priority-{world.team}" for level in ("low", "medium", "high"))
    world.add("Deployment", "precious", priorityClass=high)
    world.add("Deployment", "eval", replicas=2, priorityClass=medium)
    world.add("Job", "batch", priorityClass=medium)
    world.add("Deployment", "at-work", "busy", priorityClass=low)
    world.add("Pod", "shell", priorityClass=low)


def _spec(world: RealWorld, kind: str, name: str) -> Any:
    found = world.get(kind, name)
    return found["spec"]


def test_chart_installed_acts_by_class_until_uninstalled(world: RealWorld, release: Release) -> None:
    """The CronJob's pod acts upon each workload as its class says, by its own account; then its classes are left."""
    _given(world)
    low, medium, high = (f"{level}-priority-{world.team}" for level in ("low", "medium", "high"))
    kinds = (("Deployment", "eval"), ("Job", "batch"), ("Deployment", "precious"), ("Deployment", "at-work"))
    before = {name: _spec(world, kind, name) for kind, name in kinds}
    done = release.run()
    assert done.returncode == 0, done.stderr
    results = {item["name"]: item["result"] for item in json.loads(done.stdout)["items"]}
    assert results == {"eval": "done", "batch": "done", "shell": "done"}
    world.gone("eval")
    world.gone("batch")
    assert world.pods("shell") == []
    for name in ("precious", "at-work"):
        assert _spec(world, "Deployment", name) == before[name]
    assert any("shell" in name for name in release.secrets())

    undone = world.run("undo", "--all", "--yes", "-o", "json", "--state-namespace", release.namespace)
    assert {name: item["result"] for name, item in undone.items.items() if name in results} == results
    world.running("eval", 2)
    world.running("shell", 1)
    assert {name: _spec(world, kind, name) for kind, name in kinds} == before
    for kind, name in kinds:
        notes = world.get(kind, name)["metadata"].get("annotations", {})
        # What it remembers, so that it does not do it again at once.
        assert {key for key in notes if key.startswith(_OURS)} <= {f"{_OURS}{word}" for word in _REMEMBERED}
    release.uninstall()
    assert release.left() == [f"priorityclasses/{name}" for name in sorted((low, medium, high))]
    assert release.secrets() == []


@pytest.fixture
def watching(world: RealWorld, tmp_path: Path) -> Iterator[Release]:
    """The exporter alone, on the world's nodes."""
    values = {"rightsizer": {"enabled": False}, "exporter": {"nodeSelector": world.labels}}
    with Release(world, tmp_path, values) as made:
        yield made


def test_exporter_leaves_node_that_operator_drains(world: RealWorld, watching: Release) -> None:
    """By a label of the operator's driver manager, as the DaemonSet's own controller reads it; and comes back."""
    deploy = "nvidia.com/gpu.deploy.dcgm-exporter"
    world.node(labels={deploy: "true"})
    world.node()
    selector = ",".join(f"{key}={value}" for key, value in {**world.labels, deploy: "true"}.items())
    (cleared,) = world.api.items("/api/v1/nodes", labelSelector=selector)
    for value, wanted in (("true", 2), ("paused-for-driver-upgrade", 1), ("true", 2)):
        patched = {"metadata": {"labels": {deploy: value}}}
        world.api.patch(f"/api/v1/nodes/{cleared['metadata']['name']}", patched)
        world.api.eventually(watching.wanted_exporters, functools.partial(operator.eq, wanted))


@pytest.fixture
def by_class(world: RealWorld, tmp_path: Path) -> Iterator[Release]:
    """The chart with PriorityClasses and the policy that it makes of them, and budgets for what other tests do."""
    values = _values(world, world.prometheus_url)
    given = {part: values[part] for part in ("rightsizer", "priorityClasses")}
    objects = render({**given, "rightsizer": {**given["rightsizer"], "policy": {}}}, only=["rightsizer"])
    text = find_one(objects, "ConfigMap", "gpu-rightsizer-policy")["data"]["policy.yaml"]
    budgets = values["rightsizer"]["policy"]["budgets"]
    values["rightsizer"]["policy"] = {**yaml.safe_load(text), "budgets": budgets}
    with Release(world, tmp_path, values) as made:
        yield made


def test_chart_without_rules_follows_class_annotations(world: RealWorld, by_class: Release) -> None:
    """Without rules: low is stopped, medium is told first, high is left alone, by the CronJob and its account."""
    world.node()
    low, medium, high = (f"{level}-priority-{world.team}" for level in ("low", "medium", "high"))
    world.add("Deployment", "precious", priorityClass=high)
    world.add("Deployment", "eval", priorityClass=medium)
    world.add("Deployment", "scratch", priorityClass=low)
    done = by_class.run()
    assert done.returncode == 0, done.stderr
    items = [item for item in json.loads(done.stdout)["items"] if item["namespace"] == world.team]
    assert {item["name"]: item["result"] for item in items} == {"eval": "done", "scratch": "done"}
    replicas = {
        name: _spec(world, "Deployment", name)["replicas"] for name in ("precious", "eval", "scratch")
    }
    assert replicas == {"precious": 1, "eval": 1, "scratch": 0}
    assert any("notice" in key for key in world.get("Deployment", "eval")["metadata"]["annotations"])


def test_service_account_can_do_no_more_than_policy(world: RealWorld, release: Release) -> None:
    """Asked as the service account: its own changes are let through, others are refused, by RBAC or by admission."""
    world.node()
    low = f"low-priority-{world.team}"
    high = f"high-priority-{world.team}"
    world.create("Deployment", "idle", priorityClass=low)
    world.create("Deployment", "precious", priorityClass=high)
    account = f"system:serviceaccount:{release.namespace}:{release.name}"
    deployments = world.collection("Deployment")

    def tried(path: str, body: Object) -> int:
        answer = world.api.patch(path, body, params={"dryRun": "All"}, user=account)
        return int(answer.status_code)

    zero: Object = {"spec": {"replicas": 0}}
    other: Object = {"spec": {"paused": True}}
    world.api.eventually(lambda: tried(f"{deployments}/idle", other), lambda found: found == 403)
    assert tried(f"{deployments}/idle", zero) == 200
    assert tried(f"{deployments}/precious", zero) == 422  # of its template, which its owner writes
    assert (
        tried(f"/apis/apps/v1/namespaces/{release.namespace}/daemonsets/{release.name}-exporter", zero) == 403
    )


def test_pod_security_restricted_admits_rightsizer_not_exporter(world: RealWorld, release: Release) -> None:
    """In a namespace that enforces restricted; what it has against the exporter is what README.md states."""
    pods = f"/api/v1/namespaces/{release.namespace}/pods"

    def tried(template: Object) -> Any:
        body = {
            "metadata": {"name": "tried", "labels": template["metadata"]["labels"]},
            "spec": template["spec"],
        }
        return world.api("POST", pods, body, params={"dryRun": "All"})

    let_in = tried(release.template())
    assert let_in.status_code == 201, let_in.text
    refused = tried(release.daemon())
    assert refused.status_code == 403
    words = refused.json()["message"].partition("violates PodSecurity")[2]
    found = [part.split(" (")[0].strip() for part in words.partition(": ")[2].split("), ")]
    assert found == ["host namespaces", "restricted volume types", "runAsNonRoot != true", "runAsUser=0"]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Of the messages of a release."""
    with receiving() as made:
        yield made


@pytest.fixture
def replaying(world: RealWorld, receiver: Receiver, tmp_path: Path) -> Iterator[Release]:
    """The chart as a Deployment that advises, with a backtest of a day."""
    idle = {"window": "4h", "unusedWindow": "4h", "idleFactor": 0}
    policy: Object = {
        "apiVersion": "gpu-rightsizer.io/v1alpha1",
        "kind": "Policy",
        "notifications": [{"type": "webhook", "url": f"{receiver.url}/weekly"}],
        "rules": [{"name": "all", "match": {"everything": True}, "mode": "advise", "idle": idle}],
    }
    never = {**policy, "rules": [{"name": "all", "match": {"everything": True}, "mode": "protect"}]}
    values = {
        "rightsizer": {
            "mode": "deployment",
            "policy": policy,
            "prometheus": {"url": world.prometheus_url, "labels": {"exported_namespace": world.team}},
        },
        "exporter": {"enabled": False},
        "backtest": {
            "enabled": True,
            "from": "1d",
            "policies": {"never": never},
            "report": {"existingClaim": "reports"},
        },
        "networkPolicy": {"enabled": True},
    }
    with Release(world, tmp_path, values) as made:
        yield made


def test_chart_backtest_reaches_receivers_and_metrics_and_changes_nothing(
    world: RealWorld, replaying: Release, receiver: Receiver, tmp_path: Path
) -> None:
    """Each pod by its own account: the backtest's publishes what the Deployment's serves, also after an upgrade."""
    world.node()
    world.add("Deployment", "eval", replicas=2)
    before = _spec(world, "Deployment", "eval")
    command, environment = replaying.command_of(replaying.template("-backtest"))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    ((path, _, message),) = receiver.got
    assert (path, message["kind"]) == ("/weekly", "Notification")
    freed = {item["name"]: item["freedGpuHours"]["value"] for item in message["items"]}
    assert freed["policy.yaml"] > 1
    assert freed["never.yaml"] == 0
    page = tmp_path / "root/var/lib/gpu-rightsizer/backtest.html"
    assert "policy.yaml" in page.read_text()
    assert message["report"].startswith(str(page))

    account = f"system:serviceaccount:{replaying.namespace}:{replaying.name}-backtest"
    maps = f"/api/v1/namespaces/{replaying.namespace}/configmaps"
    edit: Object = {"data": {"a": "b"}}
    for collection, name, body, code in (
        (maps, "gpu-rightsizer-backtest", edit, 200),
        (maps, f"{replaying.name}-policy", edit, 403),
        (world.collection("Deployment"), "eval", {"spec": {"replicas": 0}}, 403),
    ):
        answer = world.api.patch(f"{collection}/{name}", body, params={"dryRun": "All"}, user=account)
        assert answer.status_code == code, answer.text
    assert world.api("GET", "/api/v1/pods", user=account).status_code == 200
    for path in (f"{maps}/gpu-rightsizer-state", "/api/v1/secrets", world.collection("Deployment")):
        assert world.api("GET", path, user=account).status_code == 403

    replaying.upgrade("--set", "backtest.from=2d")
    command, environment = replaying.command_of(replaying.deployed(), "--listen", "127.0.0.1:0")
    with (
        (tmp_path / "run.log").open("w") as log,
        subprocess.Popen(
            command, env={**environment, "PYTHONUNBUFFERED": "1"}, stdout=log, stderr=log
        ) as process,
    ):
        try:
            text = world.api.eventually(
                lambda: _scraped(tmp_path / "run.log"), lambda found: "backtest_stops{" in found
            )
        finally:
            process.terminate()
    series = dict(
        re.findall(r'^gpu_rightsizer_backtest_(\w+)\{policy="policy.yaml"\} (.+)$', text, re.MULTILINE)
    )
    assert float(series["freed_gpus"]) == pytest.approx(freed["policy.yaml"] / 16)
    assert float(series["replayed_seconds"]) == 16 * 3600
    assert _spec(world, "Deployment", "eval") == before


def _scraped(log: Path) -> str:
    """The metrics of `run`; nothing before it serves."""
    port = re.search(r"metrics on port (\d+)", log.read_text())
    return requests.get(f"http://127.0.0.1:{port[1]}/metrics", timeout=60).text if port else ""
