"""Pending pods of a high priority on a real kube-scheduler: bound after somebody went, or nobody goes for them."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.controlplane.contract.server import Object
from tests.controlplane.world import RealWorld, uids

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.prometheus,
    pytest.mark.slow,
    pytest.mark.xdist_group("controlplane"),
]

GPU = "nvidia.com/gpu"
HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
PORT = {"ports": [{"containerPort": 80, "hostPort": 8080}]}
SIDECAR = {"name": "side", "image": "x", "restartPolicy": "Always"}


def _repelling(**term: Any) -> Object:
    one = {
        "topologyKey": HOST,
        "labelSelector": {"matchLabels": {"app": "urgent"}},
        **term,
    }
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": [one]}
    return {"podSpec": {"affinity": {"podAntiAffinity": terms}}}


def _init(name: str, **requests: str) -> Object:
    return {"name": name, "image": "x", "resources": {"requests": requests, "limits": requests}}


def _volume(world: RealWorld, zone: str) -> Object:
    """A volume of a zone that is bound to a claim; what a pod has it by."""
    name = f"data-{world.team}"
    terms = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}]
    spec: Object = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "none",
        "csi": {"driver": "example.com", "volumeHandle": name},
        "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
    }
    world.api.create("/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": spec})
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "none",
        "volumeName": name,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    claims = f"{world.api.core}/persistentvolumeclaims"
    world.api.create(claims, {"metadata": {"name": "data"}, "spec": claim})
    world.api.eventually(
        lambda: world.api.get(f"{claims}/data"), lambda found: found["status"].get("phase") == "Bound"
    )
    return {"podSpec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}}


def _unbound(world: RealWorld) -> Object:
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "none"}
    claim["resources"] = {"requests": {"storage": "1Gi"}}  # type: ignore[assignment]
    world.api.create(
        f"{world.api.core}/persistentvolumeclaims", {"metadata": {"name": "data"}, "spec": claim}
    )
    return {"podSpec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}}


@dataclasses.dataclass(frozen=True)
class Case:
    """A node, what stays on it, and the pod that waits.

    Attributes:
        stays: The fields of a busy workload without GPUs; None without one.
        urgent: Those of the pod that waits, or what makes them.
        extra: Allocatable of the node.
        said: In what the plan says where nobody is stopped.
    """

    urgent: Object | Callable[[RealWorld], Object] = dataclasses.field(default_factory=dict)
    stays: Object | None = None
    idle: Object = dataclasses.field(default_factory=dict)
    extra: dict[str, str] = dataclasses.field(default_factory=dict)
    said: str = ""


def _limits(**amounts: str) -> Object:
    return {"limits": amounts}


CASES = {
    "plain": Case(),
    "others-anti-affinity": Case(stays=_repelling()),
    "idle-anti-affinity": Case(idle=_repelling()),
    "zone-of-a-volume": Case(lambda world: _volume(world, "elsewhere")),
    "volume-of-its-zone": Case(lambda world: _volume(world, "here")),
    "volume-not-bound": Case(_unbound, said="kube-scheduler names no resource that is missing"),
    "rdma": Case(
        _limits(**{"rdma/hca": "1"}),
        _limits(**{"rdma/hca": "1"}),
        extra={"rdma/hca": "1"},
        said="lack rdma/hca",
    ),
    "hugepages": Case(
        _limits(**{"hugepages-2Mi": "2Gi", "cpu": "1", "memory": "1Gi"}),
        _limits(**{"hugepages-2Mi": "3Gi", "cpu": "1", "memory": "1Gi"}),
        extra={"hugepages-2Mi": "4Gi"},
    ),
    "ephemeral-storage": Case(
        _limits(**{"ephemeral-storage": "50Gi"}),
        _limits(**{"ephemeral-storage": "60Gi"}),
        extra={"ephemeral-storage": "100Gi"},
    ),
    "host-port": Case(PORT, PORT),
    "host-port-of-the-idle": Case(PORT, idle=PORT),
    "sidecar-and-init": Case(
        {"podSpec": {"initContainers": [{**_init("side", **{"example.com/nic": "2"}), "restartPolicy": "Always"},
                                        _init("setup", **{"example.com/nic": "3"})]}},
        extra={"example.com/nic": "4"},
    ),
    "topology-spread": Case(
        {"podSpec": {"topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule",
             "labelSelector": {"matchLabels": {"app": "urgent"}}}]}},
        said="its topology spread constraints are not checked",
    ),
    "own-anti-affinity": Case(_repelling(labelSelector={}), said="its affinity to other pods is not checked"),
    "cpu-that-stays": Case({"cpu": "300"}, {"cpu": "300"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_pending_pod_is_bound_or_nobody_is_stopped_for_it(world: RealWorld, name: str) -> None:
    """Zero stopped in vain; where it cannot be decided, the plan says why."""
    case = CASES[name]
    world.node(gpus=4, labels={ZONE: "here", HOST: f"host-{world.team}"}, extra=case.extra)
    if case.stays is not None:
        world.create("Deployment", "stays", gpus=0, priorityClass="medium-priority", **case.stays)
        world.running("stays", 1)
    world.add("Job", "idle", gpus=4, priorityClass="medium-priority", **case.idle)
    before = uids(world.pods("idle"))
    patient = world.priority_class("patient-high", 100_000, preemptionPolicy="Never")
    urgent = case.urgent(world) if callable(case.urgent) else case.urgent
    world.create("Job", "urgent", gpus=4, priorityClass=patient, **urgent)
    world.unschedulable("urgent")
    policy = str(world.on_demand_policy("suspend"))
    problems = json.loads(world.run("plan", "-o", "json", "--policy", policy).out)["problems"]
    said = [one for one in problems if "no GPUs are freed for it" in one]
    outcomes = world.apply("--policy", policy)
    done = {item for item, found in outcomes.items() if found["result"] == "done"}
    if done:
        assert done == {"idle"}
        world.running("urgent", 1)
        assert not [one for one in said if f"{world.team}/" in one]
    else:
        assert uids(world.pods("idle")) == before
        # Pods of earlier tests that are not gone yet may be named in its place.
        assert [one for one in said if case.said in one and (f"{world.team}/" in one or " more: " in one)]
        assert name not in {"plain", "idle-anti-affinity", "volume-of-its-zone", "host-port-of-the-idle"}


def test_pending_pod_that_kube_scheduler_preempts_for_is_left_to_it(world: RealWorld) -> None:
    """It found that no victim helps: others' anti-affinity keeps the pod off."""
    world.node(gpus=4, labels={HOST: f"host-{world.team}"})
    busy = {**_repelling(), "gpus": 0, "priorityClass": "high-priority"}
    world.create("Deployment", "stays", **busy)
    world.running("stays", 1)
    idle = world.add("Job", "idle", gpus=4, priorityClass="medium-priority")
    world.create("Job", "urgent", gpus=4, priorityClass="high-priority")
    world.unschedulable("urgent")
    policy = str(world.on_demand_policy("suspend"))
    assert world.apply("--policy", policy) == {}
    assert uids(world.pods("idle")) == uids(idle)
