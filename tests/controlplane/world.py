"""The rightsizer's world on a real control plane: a team with a node of its own, and series in a real Prometheus."""

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from simulator.controlplane.certificates import ClientIdentity
from simulator.controlplane.plane import ControlPlane
from simulator.kubeclient import KubeClient, KubeClientError
from simulator.placement import report_start
from simulator.prometheus import Prometheus
from tests.controlplane.contract.server import Api, Object, Real
from tests.rightsizer.commands import Run, run_command
from tests.rightsizer.given import CLASSES, day_of, manifest, priority_class

STATE_NAMESPACE = "gpu-rightsizer"
POLICY = """\
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
defaults:
  idle: {window: 24h, grace: 30m}
  kinds: []
budgets:
  - {per: run, workloads: 100}
  - {per: hour, workloads: 100}
  - {scope: namespace, per: run, workloads: 100}
  - {scope: owner, per: day, workloads: 100}
rules:
  - name: production
    match: {namespaces: [TEAM], priorityClasses: [high-priority]}
    mode: protect
  - name: the-rest
    match: {namespaces: [TEAM]}
    mode: enforce
    actions: [scale-to-zero, suspend, evict]
"""
"""Speaks of the team's own namespace only: other tests' workloads are advised on, never touched."""

_PLURALS = {"Deployment": "deployments", "StatefulSet": "statefulsets", "Job": "jobs", "Pod": "pods"}
_CONFLICT = 409


class RealWorld:
    """A namespace on the control plane, a node that only its pods can run on, and a policy about it.

    Attributes:
        api: HTTP to the API server, as an administrator.
        team: The namespace.
        labels: Of the node; they select it.
        kubeconfig: The administrator's.
        prometheus_url: Where the series are.
    """

    def __init__(self, plane: ControlPlane, prometheus: Prometheus, directory: Path) -> None:
        self._plane = plane
        self._prometheus = prometheus
        self._directory = directory
        self._kubeconfig = plane.kubeconfig
        self.kubeconfig = plane.kubeconfig
        self.prometheus_url = prometheus.url
        self.client = KubeClient(plane.endpoint)
        self.api = Api(Real(plane.kubeconfig, directory))
        self.team = self.api.namespace
        self.labels = {"team": self.team}
        (directory / "policy.yaml").write_text(POLICY.replace("TEAM", self.team))

    def __enter__(self) -> Self:
        for name, value in CLASSES.items():
            self._ensure("/apis/scheduling.k8s.io/v1/priorityclasses", priority_class(name, value))
        self._ensure("/api/v1/namespaces", {"metadata": {"name": STATE_NAMESPACE}})
        # What another team's policy was accepted to be about is not this one's scope, nor is its breaker.
        self.api("DELETE", f"/api/v1/namespaces/{STATE_NAMESPACE}/configmaps/gpu-rightsizer-state")
        return self

    def __exit__(self, *_: object) -> None:
        self.api("DELETE", f"/api/v1/namespaces/{self.team}")
        self.api("DELETE", "/api/v1/nodes", params={"labelSelector": f"team={self.team}"})
        self.api.session.close()

    # --- given

    def node(self, *, gpus: int = 64, labels: Mapping[str, str] | None = None) -> None:
        """A node for this team's pods."""
        amounts = {"cpu": "512", "memory": "4Ti", "pods": "500", "nvidia.com/gpu": str(gpus)}
        body = {
            "metadata": {"name": f"node-{uuid.uuid4().hex[:8]}", "labels": {**self.labels, **(labels or {})}},
            "status": {"capacity": amounts, "allocatable": amounts},
        }
        self.api.create("/api/v1/nodes", body)

    def priority_class(self, name: str, value: int, **fields: str) -> str:
        """A PriorityClass of this team's own; its full name."""
        whole = f"{name}-{self.team}"
        self.api.create(
            "/apis/scheduling.k8s.io/v1/priorityclasses", {**priority_class(whole, value), **fields}
        )
        return whole

    def create(self, kind: str, name: str, **given: Any) -> None:
        """A workload on the team's nodes."""
        given["nodeSelector"] = {**self.labels, **given.get("nodeSelector", {})}
        self.api.create(self.collection(kind), manifest(kind, self.team, name, given))

    def add(self, kind: str, name: str, usage: str | Sequence[str] = "idle", **given: Any) -> list[Object]:
        """A workload whose pods started more than a day ago and whose devices look like `usage`; its pods."""
        self.create(kind, name, **given)
        return self.seen(name, usage, **given)

    def seen(self, name: str, usage: str | Sequence[str] = "idle", **given: Any) -> list[Object]:
        """A workload's pods, once they run: since more than a day, and their devices look like `usage`."""
        pods = self.running(name, given.get("replicas", 1))
        for pod in pods:
            report_start(self.client, pod, at_s=time.time() - 24.8 * 3600)
            looks = [usage] * given.get("gpus", 1) if isinstance(usage, str) else usage
            self._prometheus.write(day_of(self.team, pod["metadata"]["name"], looks))
        return pods

    def become(self, user: ClientIdentity) -> None:
        """Run commands as somebody else from now on."""
        self._kubeconfig = self._directory / f"{user.name}.kubeconfig"
        self._plane.write_kubeconfig(self._kubeconfig, user)

    # --- when

    def run(self, *arguments: str) -> Run:
        """Run a command with this world's kubeconfig, Prometheus and policy."""
        flags = ["--kubeconfig", str(self._kubeconfig)]
        if arguments[0] in {"plan", "apply"}:
            flags += ["--prometheus-url", self._prometheus.url]
            flags += ["--policy", str(self._directory / "policy.yaml")]
        return run_command(*arguments, *flags)

    def plan(self, *flags: str) -> dict[str, Any]:
        """The team's items of a plan, by name."""
        run = self.run("plan", "-o", "json", *flags)
        assert run.code == 0, run.err
        items = json.loads(run.out)["items"]
        return {item["name"]: item for item in items if item["namespace"] == self.team}

    def apply(self, *flags: str) -> dict[str, Any]:
        """What became of each of the team's enforced items, by name; others' changes may be confirmed, too."""
        items = self.run("apply", "--yes", "-o", "json", *flags).items
        return {name: item for name, item in items.items() if item["namespace"] == self.team}

    def undo(self, kind: str, name: str) -> dict[str, Any]:
        """What became of putting a workload back."""
        item: dict[str, Any] = self.run("undo", f"{self.team}/{kind}/{name}", "--yes", "-o", "json").items[
            name
        ]
        return item

    # --- then

    def collection(self, kind: str) -> str:
        """The path of a kind in the namespace."""
        scope = {"Job": self.api.batch, "Pod": self.api.core}.get(kind, self.api.apps)
        return f"{scope}/{_PLURALS[kind]}"

    def get(self, kind: str, name: str) -> Object:
        """An object that must be there."""
        return self.api.get(f"{self.collection(kind)}/{name}")

    def pods(self, name: str) -> list[Object]:
        """The pods of a workload."""
        return self.api.items(f"{self.api.core}/pods", labelSelector=f"app={name}")

    def running(self, name: str, count: int) -> list[Object]:
        """The pods of a workload, once exactly `count` of them run and there are no others."""
        return self.api.eventually(
            lambda: self.pods(name),
            lambda found: [pod["status"]["phase"] for pod in found] == ["Running"] * count,
        )

    def unschedulable(self, name: str) -> None:
        """Wait until the scheduler has found no room for a workload's pods."""

        def reasons() -> set[str | None]:
            conditions = [entry for pod in self.pods(name) for entry in pod["status"].get("conditions", ())]
            return {entry.get("reason") for entry in conditions if entry["type"] == "PodScheduled"}

        self.api.eventually(reasons, lambda found: found == {"Unschedulable"})

    def gone(self, name: str) -> None:
        """Wait until a workload has no pods."""
        self.api.eventually(lambda: self.pods(name), lambda found: not found)

    def _ensure(self, path: str, body: Mapping[str, Any]) -> None:
        try:
            self.client.create(path, dict(body))
        except KubeClientError as error:
            if error.status != _CONFLICT:
                raise


def uids(pods: Sequence[Object]) -> set[str]:
    """Which pods they are."""
    return {pod["metadata"]["uid"] for pod in pods}
