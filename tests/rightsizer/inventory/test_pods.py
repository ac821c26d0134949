"""Pods and their GPU requests, owner chains and disruption budgets, on objects and in whole plans."""

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from rightsizer.inventory.gpu_requests import LARGEST, ResourceTable
from rightsizer.inventory.pods import PodReader
from rightsizer.inventory.workload_builder import ClusterState, build_fleet
from rightsizer.kube.api_objects import LabelSelector, LabelSelectorRequirement, PodObject
from tests.rightsizer.kubectl import Object, fleet_of, node, pod
from tests.rightsizer.world import DEFAULT_POLICY, World, created, stamp


def _finding(world: World, name: str) -> tuple[str, str]:
    run = world.run("plan", "-o", "json", policy=DEFAULT_POLICY)
    assert run.code == 0, run.err
    item = run.items[name]
    return item["verdict"], item["finding"]


@pytest.mark.covers("P12")
@pytest.mark.prometheus
def test_restarted_container_makes_its_pod_too_young(world: World) -> None:
    """The window must not reach back beyond the running process."""
    world.add("Deployment", world.team, "idle", {})
    assert _finding(world, "idle") == ("act", "idle")
    (pod,) = world.pods_of(world.team, "idle")
    status = created(world.api, "Pod", world.team, pod["metadata"]["name"])["status"]
    started = stamp(datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=2))
    containers = [
        {**one, "state": {"running": {"startedAt": started}}} for one in status["containerStatuses"]
    ]
    patch = {"status": {"containerStatuses": containers}}
    world.api.patch("Pod", world.team, pod["metadata"]["name"], patch, subresource="status")
    assert _finding(world, "idle") == ("unknown", "too-young")


@pytest.mark.prometheus
def test_ended_pods_hold_no_gpus(world: World) -> None:
    """Finished pods of a Job are neither missing data nor holders of GPUs."""
    world.add("Job", world.team, "sweep", {"replicas": 2})
    first, _ = world.pods_of(world.team, "sweep")
    name = first["metadata"]["name"]
    world.api.patch("Pod", world.team, name, {"status": {"phase": "Succeeded"}}, subresource="status")
    run = world.run("plan", "-o", "json", policy=DEFAULT_POLICY)
    assert (run.items["sweep"]["gpus"], len(run.items["sweep"]["pods"])) == (1, 1)


@pytest.mark.prometheus
def test_disruption_budget_of_another_namespace_does_not_block(world: World) -> None:
    """A PodDisruptionBudget applies to its own namespace."""
    world.add("Deployment", world.team, "idle", {})
    other = f"{world.team}-other"
    world.namespace(other)
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "idle"}}}
    meta = {"name": "guard", "namespace": other}
    world.api.create(
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": spec}
    )
    assert _finding(world, "idle") == ("act", "idle")


@pytest.mark.prometheus
def test_deployment_below_an_unknown_owner_is_only_advised_on(world: World) -> None:
    """Under the name of that owner, without a command: only the pods say that there is one."""
    world.add("Deployment", world.team, "predictor", {})
    owner = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "name": "llm",
        "uid": "u1",
        "controller": True,
    }
    world.api.patch("Deployment", world.team, "predictor", {"metadata": {"ownerReferences": [owner]}})
    run = world.run("plan", "-o", "json", policy=DEFAULT_POLICY)
    assert set(run.items) == {"llm"}
    item = run.items["llm"]
    assert (item["kind"], item["verdict"], item["action"]) == ("InferenceService", "act", None)
    assert "does not exist with the UID that its pods name" in str(item)
    assert world.run("apply", "--yes", "-o", "json", policy=DEFAULT_POLICY).items == {}


def _pod(spec: dict[str, Any]) -> PodObject:
    document = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec}
    return msgspec.convert(document, PodObject)


def _container(name: str, **resources: Mapping[str, str | int]) -> dict[str, Any]:
    return {"name": name, "resources": resources}


GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"containers": [_container("a", limits={GPU: "2"})]}, {GPU: 2}, id="limit"),
        pytest.param({"containers": [_container("a", requests={GPU: "2"})]}, {GPU: 2}, id="request-only"),
        pytest.param(
            {"containers": [_container("a", limits={GPU: "2"}), _container("b", limits={GPU: "1"})]},
            {GPU: 3},
            id="containers-add-up",
        ),
        pytest.param(
            {
                "containers": [_container("a", limits={GPU: "2"})],
                "initContainers": [_container("i", limits={GPU: "1"})],
            },
            {GPU: 2},
            id="init-container-within",
        ),
        pytest.param(
            {
                "containers": [_container("a", limits={GPU: "2"})],
                "initContainers": [_container("i", limits={GPU: "4"})],
            },
            {GPU: 4},
            id="init-container-beyond",
        ),
        pytest.param(
            {"containers": [_container("a")], "initContainers": [_container("i", limits={GPU: "1"})]},
            {GPU: 1},
            id="init-container-alone",
        ),
        pytest.param(
            {
                "containers": [_container("a", limits={GPU: "2"})],
                "initContainers": [{**_container("i", limits={GPU: "1"}), "restartPolicy": "Always"}],
            },
            {GPU: 3},
            id="sidecar-adds",
        ),
        pytest.param(
            {
                "containers": [
                    _container("a", limits={"nvidia.com/mig-3g.40gb": "1", "nvidia.com/gpu.shared": "2"})
                ]
            },
            {"nvidia.com/mig-3g.40gb": 1, "nvidia.com/gpu.shared": 2},
            id="mig-and-shared",
        ),
        pytest.param(
            {
                "containers": [
                    _container("a", limits={"nvidia.com/hostdev": "1", "cpu": "2", "amd.com/gpu": "1"})
                ]
            },
            {},
            id="others-are-no-devices",
        ),
        pytest.param({"containers": [_container("a", limits={GPU: "0"})]}, {}, id="zero"),
    ],
)
def test_gpu_request_counts_devices_as_the_scheduler_does(
    spec: dict[str, Any], expected: dict[str, int]
) -> None:
    """Containers, sidecars and init containers; what only the last of these request, nothing else can use."""
    request = ResourceTable().request_of(_pod(spec))
    lasting = {
        **spec,
        "initContainers": [one for one in spec.get("initContainers", ()) if "restartPolicy" in one],
    }
    usable = sum(ResourceTable().request_of(_pod(lasting)).devices.values())
    assert (request.devices, request.unusable) == (expected, sum(expected.values()) - usable)


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        ("1k", 1000),
        ("2e0", 2),
        ("2E0", 2),
        ("4Ki", 4096),
        ("2000m", 2),
        ("0.5k", 500),
        ("1.", 1),
        ("+1", 1),
        ("1E", 10**18),
        (3, 3),
        (str(LARGEST - 1), LARGEST - 1),
    ],
)
def test_gpu_request_accepts_every_spelling_of_a_quantity(amount: str | int, expected: int) -> None:
    """An API server stores whole numbers in any of them (tests/controlplane/contract/test_limits.py)."""
    item = _pod({"containers": [_container("a", limits={GPU: amount})]})
    asked = ResourceTable().request_of(item)
    assert (asked.devices, asked.unreadable) == ({GPU: expected}, ())


@pytest.mark.parametrize(
    "amount",
    [
        *("500m", "1.5", "-1", "1e-1000", "", "x", "1q", "1kk", "\u0662", "1" * 5000, "1e" + "1" * 5000),
        *("1e99999", "1e999999999", "9" * 30),
    ],
)
def test_gpu_request_with_an_invalid_quantity_is_reported(amount: str) -> None:
    """It counts as nothing, and neither hangs nor ends the run."""
    item = _pod({"containers": [_container("a", limits={GPU: "2"}), _container("b", limits={GPU: amount})]})
    asked = ResourceTable().request_of(item)
    assert asked.devices == {GPU: 2}
    assert asked.unreadable == (f"requests {GPU}: {amount[:40]!r}, which is not a whole number of devices",)


@pytest.mark.slow
@pytest.mark.prometheus
@pytest.mark.parametrize("amount", ["1k", "2e0", "4Ki"])
def test_unusual_quantity_of_one_pod_does_not_stop_the_plan(world: World, amount: str) -> None:
    """Of a waiting or an ended pod."""
    world.add("Deployment", world.team, "idle", {})
    for name in ("waiting", "ended"):
        world.add("Pod", world.team, name, {"gpus": amount, "usage": [[]], "nodeSelector": {"no": "such"}})
    world.api.patch("Pod", world.team, "ended", {"status": {"phase": "Succeeded"}}, subresource="status")
    planned = world.run("plan", "-o", "json", policy=DEFAULT_POLICY)
    assert planned.code == 0, planned.err
    assert {name: item["verdict"] for name, item in planned.items.items()} == {
        "idle": "act",
        "waiting": "unknown",
    }
    assert world.run("apply", "--yes", "-o", "json", policy=DEFAULT_POLICY).items["idle"]["result"] == "done"


@pytest.mark.parametrize(
    ("selector", "labels", "expected"),
    [
        pytest.param(LabelSelector(), {"a": "b"}, True, id="empty-selects-all"),
        pytest.param(LabelSelector({"a": "b"}), {"a": "b", "c": "d"}, True, id="labels-match"),
        pytest.param(LabelSelector({"a": "b"}), {}, False, id="label-missing"),
        pytest.param(
            LabelSelector(None, [LabelSelectorRequirement("a", "In", ["b"])]), {"a": "b"}, True, id="in"
        ),
        pytest.param(
            LabelSelector(None, [LabelSelectorRequirement("a", "NotIn", ["b"])]), {}, True, id="not-in-absent"
        ),
        pytest.param(
            LabelSelector(None, [LabelSelectorRequirement("a", "NotIn", ["b"])]),
            {"a": "b"},
            False,
            id="not-in",
        ),
        pytest.param(LabelSelector(None, [LabelSelectorRequirement("a", "Exists")]), {}, False, id="exists"),
        pytest.param(
            LabelSelector(None, [LabelSelectorRequirement("a", "DoesNotExist")]), {}, True, id="absent"
        ),
        pytest.param(
            LabelSelector(None, [LabelSelectorRequirement("a", "Future")]), {}, True, id="unreadable-covers"
        ),
    ],
)
def test_disruption_budget_selects_pods_by_labels(
    selector: LabelSelector, labels: dict[str, str], expected: bool
) -> None:
    """As the API server does; an unknown operator covers the pod."""
    assert selector.selects(labels) is expected


def test_cyclic_owner_references_end() -> None:
    """The walk up the owner chain stops."""
    loop = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}]
    document = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "ownerReferences": loop},
        "spec": {"containers": [_container("a", limits={GPU: "1"})]},
    }
    pod = msgspec.convert(document, PodObject)
    read = PodReader(ResourceTable())(pod).gpu_pod
    assert read is not None
    assert [one.ref.kind for one in build_fleet(ClusterState(pods=(read,))).workloads] == ["ReplicaSet"]


@pytest.mark.parametrize("responders", [None, [], [{"name": "backup.example.com/saver", "priority": 1000}]])
def test_pod_with_eviction_responders_awaits_a_request(responders: list[Object] | None) -> None:
    """Since Kubernetes 1.37, where the feature gate is on."""
    fields = {} if responders is None else {"evictionResponders": responders}
    (item,) = fleet_of(node(), pod("p", spec=fields)).workloads
    assert item.pods[0].awaits_request == bool(responders)
