"""Work that a queue holds back, on a real control plane: real Jobs and scheduler, a played Kueue."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.controlplane.contract.server import Object
from tests.controlplane.world import RealWorld, uids
from tests.rightsizer.given import manifest

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.prometheus,
    pytest.mark.slow,
    pytest.mark.xdist_group("controlplane"),
]

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
GPU = "nvidia.com/gpu"
QUEUED = {"kueue.x-k8s.io/queue-name": "research"}


class _Kueue:
    """Kueue's objects for a team, as its controllers would write them: four GPUs, all of them reserved."""

    def __init__(self, world: RealWorld) -> None:
        self._api = world.api
        self._name = f"gpus-{world.team}"
        self._scope = f"/namespaces/{world.team}"
        self._workloads = f"{KUEUE}{self._scope}/workloads"
        self._make("ResourceFlavor", {"name": self._name}, {"nodeLabels": world.labels})
        quota = {"name": self._name, "resources": [{"name": GPU, "nominalQuota": "4"}]}
        groups = [{"coveredResources": [GPU], "flavors": [quota]}]
        self._make("ClusterQueue", {"name": self._name}, {"resourceGroups": groups})
        used = [{"name": self._name, "resources": [{"name": GPU, "total": "4"}]}]
        status = {"status": {"flavorsReservation": used}}
        self._api.patch(f"{KUEUE}/clusterqueues/{self._name}/status", status)
        self._make("LocalQueue", {"name": "research"}, {"clusterQueue": self._name}, scope=self._scope)

    def _make(self, kind: str, metadata: Object, spec: Object, *, scope: str = "") -> None:
        body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, "spec": spec}
        self._api.create(f"{KUEUE}{scope}/{kind.lower()}s", body)

    def workload(self, job: Object, *, is_admitted: bool) -> None:
        """The Workload of a Job."""
        name, template = job["metadata"]["name"], job["spec"]["template"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
        metadata = {"name": name, "ownerReferences": [{**owner, "controller": True}]}
        sets = [{"name": "main", "count": 1, "template": {"spec": template["spec"]}}]
        spec = {"active": True, "queueName": "research", "podSets": sets}
        self._make("Workload", metadata, spec, scope=self._scope)
        reserved = {
            "type": "QuotaReserved",
            "status": "True" if is_admitted else "False",
            "reason": "Pending",
        }
        status: Object = {"conditions": [reserved]}
        if is_admitted:
            one = {"name": "main", "flavors": {GPU: self._name}, "resourceUsage": {GPU: "2"}}
            status["admission"] = {"clusterQueue": self._name, "podSetAssignments": [one]}
        self._api.patch(f"{self._workloads}/{name}/status", {"status": status})

    def is_active(self, name: str) -> bool:
        """Whether it may run."""
        return bool(self._api.get(f"{self._workloads}/{name}")["spec"]["active"])


@pytest.mark.usefixtures("third_parties", "plane")
def test_run_gives_a_queued_workload_the_gpus_and_quota_of_an_idle_one(
    world: RealWorld, tmp_path: Path
) -> None:
    """An hour between cycles, but the watch of Kueue's Workloads begins one. The busy job stays, the idle one goes."""
    world.node(gpus=4)
    patient = world.priority_class("patient-high", 100_000, preemptionPolicy="Never")
    granted = {"scopeName": "PriorityClass", "operator": "In", "values": [patient]}
    quota = {"hard": {"pods": "5"}, "scopeSelector": {"matchExpressions": [granted]}}
    world.api.create(f"{world.api.core}/resourcequotas", {"metadata": {"name": "urgent"}, "spec": quota})
    of: Object = {"gpus": 2, "priorityClass": "medium-priority", "labels": QUEUED}
    busy, _ = world.add("Job", "busy", "busy", **of), world.add("Job", "idle", **of)
    kueue = _Kueue(world)
    for name in ("busy", "idle"):
        kueue.workload(world.get("Job", name), is_admitted=True)
    body = manifest(
        "Job", world.team, "urgent", {**of, "priorityClass": patient, "nodeSelector": world.labels}
    )
    body["spec"]["suspend"] = True
    policy, log = world.on_demand_policy("suspend"), tmp_path / "run.log"
    command = [sys.executable, "-m", "rightsizer", "run", "--every", "1h", "--yes", "--listen", "127.0.0.1:0"]
    command += ["--kubeconfig", str(world.kubeconfig), "--policy", str(policy)]
    command += ["--prometheus-url", world.prometheus_url, "--verify-for", "0"]
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            world.api.eventually(log.read_text, lambda said: "0 to be changed" in said)
            world.api.create(world.collection("Job"), body)
            kueue.workload(world.get("Job", "urgent"), is_admitted=False)
            world.api.eventually(lambda: kueue.is_active("idle"), lambda active: not active)
        except AssertionError as error:
            raise AssertionError(log.read_text()) from error
        finally:
            process.terminate()
    # Now Kueue does its part.
    for name, is_suspended in (("idle", True), ("urgent", False)):
        world.api.patch(f"{world.collection('Job')}/{name}", {"spec": {"suspend": is_suspended}})
    world.gone("idle")
    world.running("urgent", 1)
    assert kueue.is_active("busy")
    assert uids(world.running("busy", 1)) == uids(busy)
