"""The fleet of a file is the fleet of the API server that holds the same objects."""

import copy
import dataclasses
import json
import pathlib
from collections.abc import Iterator, Sequence

import hypothesis
import hypothesis.strategies as st
import pytest
import yaml

from rightsizer.config import PREFIX, ClusterSettings
from rightsizer.inventory.cluster_reader import read_cluster
from rightsizer.inventory.objects_file import read_file
from rightsizer.inventory.workload_builder import ClusterState, build_fleet
from rightsizer.kinds import RECORDABLE_KINDS
from rightsizer.kube.cluster import Cluster
from rightsizer.model import AddressTable
from simulator.kube import ApiServer
from simulator.kube.resources import RESOURCES
from tests.rightsizer.kubectl import (
    GPU,
    TEAM,
    Object,
    claim,
    device_class,
    dra_gpu,
    node,
    obj,
    pod,
    resource_slice,
    using,
)

FREE = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


def _waiting(name: str, **changes: object) -> Object:
    made = pod(name, **changes)
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": FREE}]
    made["spec"].update(nodeName="")
    made["status"].update(phase="Pending", conditions=conditions)
    return made


def _without_node(name: str, kind: str, api_version: str, **fields: object) -> Object:
    metadata = {"name": name}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


TEMPLATE: Object = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {"containers": [{"name": "main", "image": "x"}]},
}
SPEC: Object = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": TEMPLATE}
OF_JOB: Object = {
    "suspend": False,
    "template": {**TEMPLATE, "spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}},
}
TOP = obj("RayService", "web", api_version="ray.io/v1", spec={"suspend": False})
SET = obj("RayCluster", "web-1", TOP, api_version="ray.io/v1", spec={"suspend": False})
JOBSET = obj("JobSet", "train", api_version="jobset.x-k8s.io/v1alpha2", spec={"suspend": False})
JOB = obj("PyTorchJob", "train-0", JOBSET, api_version="kubeflow.org/v1", spec={})
CHANGED = obj(
    "StatefulSet", "changed", spec={**SPEC, "replicas": 0}, metadata={"annotations": {f"{PREFIX}undo": "{}"}}
)
WORKLOAD = obj(
    "Workload",
    "queued",
    api_version="kueue.x-k8s.io/v1beta2",
    spec={
        "queueName": "q",
        "podSets": [{"name": "main", "count": 1, "template": {"spec": {"containers": []}}}],
    },
)
SCALER = obj(
    "HorizontalPodAutoscaler",
    "web",
    api_version="autoscaling/v2",
    spec={"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}},
)
BUDGET = obj(
    "PodDisruptionBudget",
    "guard",
    api_version="policy/v1",
    spec={"selector": {"matchLabels": {"app": "web"}}},
    status={"disruptionsAllowed": 1},
)
OBJECTS: Sequence[Object] = (
    _without_node("low", "PriorityClass", "scheduling.k8s.io/v1", value=-5),
    _without_node("odd", "Namespace", "v1"),
    node("n1"),
    node("n2", labels={"nvidia.com/gpu.product": "NVIDIA-L4"}),
    TOP,
    SET,
    JOBSET,
    JOB,
    CHANGED,
    obj("StatefulSet", "unused", spec=SPEC),
    obj("CronJob", "nightly", spec={"schedule": "0 0 * * *", "jobTemplate": {"spec": OF_JOB}}),
    obj("ReplicaSet", "of-nobody", spec=SPEC),
    SCALER,
    BUDGET,
    WORKLOAD,
    pod("web-a", SET, labels={"app": "web"}),
    pod("web-b", SET, labels={"app": "web"}),
    pod("train-0-a", JOB),
    pod("train-0-b", JOB),
    pod("bare"),
    pod("orphan", obj("Deployment", "gone")),
    pod("no-gpu", limits={"cpu": "1"}),
    _waiting("pending", limits={GPU: "2"}),
    resource_slice("gpus", dra_gpu(0), dra_gpu(1), dra_gpu(2), node="n2"),
    resource_slice("nics", {"name": "nic-0"}, driver="nic.example.com", node="n2"),
    device_class(),
    device_class("fast", 'device.attributes["gpu.nvidia.com"].uuid == "GPU-1"'),
    device_class("nic", 'device.driver == "nic.example.com"'),
    device_class("odd", "device.nonsense()"),
    claim("held", devices=1, users=["dra-a"], result={"pool": "n2"}),
    claim("wanted", devices=None),
    claim("of-a-nic", devices=None, driver="nic"),
    claim("of-nobody", devices=None, driver="odd"),
    pod("dra-a", **using("held")),
    _waiting("dra-b", **using("wanted")),
    _waiting("dra-c", **using("of-a-nic")),
)


def _key(item: Object) -> tuple[str, str]:
    return item["kind"], item["metadata"]["name"]


def _served(items: Sequence[Object]) -> Iterator[Object]:
    """The objects, of which the file tells the namespaces too."""
    yield _without_node(TEAM, "Namespace", "v1")
    yield from items


class _Server:
    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory

    def both(self, items: Sequence[Object]) -> tuple[ClusterState, ClusterState]:
        """The state of a server with these objects, and of a file of all that it then lists."""
        with ApiServer() as api:
            uids: dict[str, str] = {}
            for one in _served(items):
                made = copy.deepcopy(one)
                for reference in made["metadata"].get("ownerReferences", ()):
                    reference["uid"] = uids.get(reference["uid"], reference["uid"])
                own = made["metadata"].pop("uid", "")
                made["metadata"].pop("resourceVersion", None)
                stored = api.create(made)
                uids[own] = stored["metadata"]["uid"]
                if "status" in made and made["kind"] != "Node":
                    place = stored["metadata"].get("namespace"), stored["metadata"]["name"]
                    api.patch(made["kind"], *place, {"status": made["status"]}, subresource="status")
            api.settle()
            path = self._directory / "kubeconfig"
            path.write_text(yaml.safe_dump(api.kubeconfig()))
            state = read_cluster(Cluster(ClusterSettings(kubeconfig=path)), RECORDABLE_KINDS)
            listed = [
                {**one, "apiVersion": row.api_version, "kind": row.kind}
                for row in RESOURCES
                if "list" in row.verbs
                for one in api.list(f"{row.kind}.{row.group}" if row.group else row.kind)
            ]
        file = self._directory / "objects.json"
        listing = {"apiVersion": "v1", "kind": "List", "items": listed}
        file.write_text(json.dumps(listing, separators=(",", ":")))
        return state, read_file(file, RECORDABLE_KINDS)


def _assert_equal(first: ClusterState, second: ClusterState) -> None:
    """All fields but what objects do not tell, and those compared by identity; and the fleets."""
    one, other = (dataclasses.replace(state, problems=(), minor=None) for state in (first, second))
    for name in {field.name for field in dataclasses.fields(ClusterState)} - {
        "addresses",
        "resources",
        "occupants",
    }:
        assert getattr(one, name) == getattr(other, name), name
    assert vars(one.occupants) == vars(other.occupants)
    fleets = (dataclasses.replace(build_fleet(state), addresses=AddressTable()) for state in (one, other))
    assert next(fleets) == next(fleets)


def test_file_of_all_objects_gives_the_state_of_the_server(tmp_path: pathlib.Path) -> None:
    """Owners, demand, devices, claims and quotas: what the one leaves out, the other does too."""
    state, read = _Server(tmp_path).both(OBJECTS)
    _assert_equal(state, read)
    assert {one.ref.name for one in state.owners.values()} >= {"web", "train", "changed"}
    assert "unused" not in {one.ref.name for one in read.owners.values()}
    assert len(read.dra.claims) == 3
    assert len(read.dra.devices.nodes["n2"]) == 3


@pytest.mark.slow
@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(kept=st.sets(st.sampled_from([_key(one) for one in OBJECTS]), min_size=1))
def test_file_of_some_objects_gives_the_state_of_the_server(
    tmp_path_factory: pytest.TempPathFactory, kept: set[tuple[str, str]]
) -> None:
    """Whichever are missing: owners, nodes, classes, slices, claims."""
    items = [one for one in OBJECTS if _key(one) in kept or _key(one) == ("Pod", "bare")]
    _assert_equal(*_Server(tmp_path_factory.mktemp("some")).both(items))
