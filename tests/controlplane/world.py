"""The rightsizer's world on a real control plane: a team with a node of its own, and series in a real Prometheus."""

import contextlib
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
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
DRA = "/apis/resource.k8s.io/v1"
_CONFLICT = 409
_START_S = 180.0
"""How long a program may take to start on a machine with much else to do."""


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
        mine = {"labelSelector": f"team={self.team}"}
        self.api("DELETE", "/api/v1/nodes", params=mine)
        self.api("DELETE", f"{DRA}/resourceslices", params=mine)
        for kind in ("gpu", "mig"):
            self.api("DELETE", f"{DRA}/deviceclasses/{self._class(kind)}")
        self.api.session.close()

    # --- given

    def node(
        self,
        *,
        gpus: int = 64,
        labels: Mapping[str, str] | None = None,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        """A node for this team's pods; `extra` is what else it offers."""
        amounts = {"cpu": "512", "memory": "4Ti", "pods": "500", "nvidia.com/gpu": str(gpus), **(extra or {})}
        body = {
            "metadata": {"name": f"node-{uuid.uuid4().hex[:8]}", "labels": {**self.labels, **(labels or {})}},
            "status": {"capacity": amounts, "allocatable": amounts},
        }
        self.api.create("/api/v1/nodes", body)

    def dra_node(self, *, gpus: int, profile: str = "", step: str = "", dynamic_mig: bool = False) -> str:
        """A node whose GPUs, or the MIG device of each of them, only ResourceSlices tell; its name.

        With `step` claims may have parts of a GPU, of so much memory or a multiple of it; with `dynamic_mig` each GPU
        can become seven MIG devices, or two larger ones.
        """
        name = f"node-{uuid.uuid4().hex[:8]}"
        amounts = {"cpu": "512", "memory": "4Ti", "pods": "500"}
        metadata = {"name": name, "labels": self.labels}
        status = {"capacity": amounts, "allocatable": amounts}
        self.api.create("/api/v1/nodes", {"metadata": metadata, "status": status})
        expression = 'device.driver == "gpu.nvidia.com" && device.attributes[device.driver].type == "{}"'
        for kind in ("gpu", "mig"):
            selector = {"cel": {"expression": expression.format(kind)}}
            body = {"metadata": {"name": self._class(kind)}, "spec": {"selectors": [selector]}}
            self._ensure(f"{DRA}/deviceclasses", body)
        devices = [_device(number, profile, step) for number in range(gpus)]
        slices: list[Object] = [{"devices": devices}]
        if dynamic_mig:
            counters = [{"name": f"gpu-{n}", "counters": {"slices": {"value": "7"}}} for n in range(gpus)]
            parts = [part for device in devices for part in _parts_of(device)]
            devices[:] = [*(_counted(device, device["name"], 7) for device in devices), *parts]
            slices.append({"sharedCounters": counters})
        pool = {"name": name, "generation": 1, "resourceSliceCount": len(slices)}
        for number, each in enumerate(slices):
            spec = {"driver": "gpu.nvidia.com", "nodeName": name, "pool": pool, **each}
            metadata = {"name": f"{name}-{number}", "labels": self.labels}
            self.api.create(f"{DRA}/resourceslices", {"metadata": metadata, "spec": spec})
        return name

    def nvidia_classes(self) -> None:
        """The DeviceClasses of NVIDIA's driver, which all teams share."""
        for kind in ("gpu", "mig"):
            selector = {"cel": {"expression": f'device.attributes["gpu.nvidia.com"].type == "{kind}"'}}
            body = {"metadata": {"name": f"{kind}.nvidia.com"}, "spec": {"selectors": [selector]}}
            self._ensure(f"{DRA}/deviceclasses", body)

    def _class(self, kind: str) -> str:
        return f"{kind}-{self.team}"

    def claim_template(
        self,
        name: str,
        *,
        count: int,
        kind: str = "gpu",
        selector: str = "",
        memory: str = "",
        device_class: str = "",
    ) -> None:
        """A ResourceClaimTemplate for so many devices of the team's nodes, or for a part of each."""
        exactly: Object = {"deviceClassName": self._class(kind), "count": count}
        if device_class:
            exactly["deviceClassName"] = device_class
        if selector:
            exactly["selectors"] = [{"cel": {"expression": selector}}]
        if memory:
            exactly["capacity"] = {"requests": {"memory": memory}}
        request = {"name": "gpus", "exactly": exactly}
        body = {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": [request]}}}}
        self.api.create(f"{DRA}/namespaces/{self.team}/resourceclaimtemplates", body)

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
        body = manifest(kind, self.team, name, given)
        self.api.create(self.collection(kind), body)

    def add(self, kind: str, name: str, usage: str | Sequence[str] = "idle", **given: Any) -> list[Object]:
        """A workload whose pods started more than a day ago and whose devices look like `usage`; its pods."""
        self.create(kind, name, **given)
        return self.seen(name, usage, **given)

    def seen(self, name: str, usage: str | Sequence[str] = "idle", **given: Any) -> list[Object]:
        """A workload's pods, once they run: since more than a day, and their devices look like `usage`."""
        pods = self.running(name, given.get("replicas", 1))
        for pod in pods:
            self.since_yesterday(pod, [usage] * given.get("gpus", 1) if isinstance(usage, str) else usage)
        return pods

    def since_yesterday(self, pod: Object, looks: Sequence[str]) -> None:
        """Let a pod have started more than a day ago, with devices that look like this."""
        report_start(self.client, pod, at_s=time.time() - 24.8 * 3600)
        self._prometheus.write(day_of(self.team, pod["metadata"]["name"], looks))

    def become(self, user: ClientIdentity) -> None:
        """Run commands as somebody else from now on."""
        self._kubeconfig = self._directory / f"{user.name}.kubeconfig"
        self._plane.write_kubeconfig(self._kubeconfig, user)

    def on_demand_policy(self, action: str) -> Path:
        """A policy file that allows an action of the team's workloads only for pending pods."""
        return self.policy_of(f"onlyForPendingPods: [{action}]")

    def policy_of(self, fields: str) -> Path:
        """A policy file with one rule that enforces on the team's workloads, with these fields."""
        rule = f"match: {{namespaces: [{self.team}]}}, mode: enforce, {fields}"
        budgets, _, _ = POLICY.partition("rules:")  # other tests have spent the default ones
        path = self._directory / "own.yaml"
        path.write_text(f"{budgets}rules:\n- {{name: own, {rule}}}\n")
        return path

    # --- when

    def run(self, *arguments: str) -> Run:
        """Run a command with this world's kubeconfig, Prometheus and policy."""
        flags = ["--kubeconfig", str(self._kubeconfig)]
        if arguments[0] in {"plan", "apply"}:
            flags += ["--prometheus-url", self._prometheus.url]
            if "--policy" not in arguments:
                flags += ["--policy", str(self._directory / "policy.yaml")]
        return run_command(*arguments, *flags)

    @contextlib.contextmanager
    def loop(self, policy: Path, *, said: str = " to be changed") -> Iterator[Path]:
        """The program, running with an hour between cycles, after its first one, or after other words; its log."""
        log = self._directory / "run.log"
        command = [sys.executable, "-m", "rightsizer", "run", "--every", "1h", "--yes"]
        command += ["--listen", "127.0.0.1:0", "--kubeconfig", str(self._kubeconfig), "--policy", str(policy)]
        command += ["--prometheus-url", self._prometheus.url, "--verify-for", "0"]
        with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
            try:
                self.api.eventually(log.read_text, lambda text: said in text, timeout_s=_START_S)
                yield log
            except AssertionError as error:
                raise AssertionError(log.read_text()) from error
            finally:
                process.terminate()

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


def _device(number: int, profile: str, step: str) -> Object:
    """As NVIDIA's DRA driver publishes a GPU, or a MIG device."""
    attributes = {
        "type": {"string": "mig" if profile else "gpu"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "uuid": {"string": f"GPU-{uuid.uuid4()}"},
        "resource.kubernetes.io/pciBusID": {"string": f"0000:{number:02x}:00.0"},
        **({"profile": {"string": profile}} if profile else {}),
    }
    memory: Object = {"value": "81559Mi"}
    if step:
        memory["requestPolicy"] = {"default": step, "validRange": {"min": step, "step": step}}
    device: Object = {"name": f"gpu-{number}", "attributes": attributes, "capacity": {"memory": memory}}
    return {**device, **({"allowMultipleAllocations": True} if step else {})}


def _parts_of(device: Object) -> Iterator[Object]:
    """The MIG devices of a GPU as NVIDIA's DRA driver publishes them where it makes them when they are claimed."""
    for profile, slices, number in (("1g.10gb", 1, 7), ("3g.40gb", 3, 2)):
        attributes = {**device["attributes"], "type": {"string": "mig"}, "profile": {"string": profile}}
        del attributes["uuid"]
        for place in range(number):
            name = f"{device['name']}-mig-{profile.replace('.', '')}-{place}"
            part = {"name": name, "attributes": attributes, "capacity": {}}
            yield _counted(part, device["name"], slices)


def _counted(device: Object, gpu: str, slices: int) -> Object:
    return {
        **device,
        "consumesCounters": [{"counterSet": gpu, "counters": {"slices": {"value": str(slices)}}}],
    }


def uids(pods: Sequence[Object]) -> set[str]:
    """Which pods they are."""
    return {pod["metadata"]["uid"] for pod in pods}
