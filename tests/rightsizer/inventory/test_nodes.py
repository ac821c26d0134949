"""Nodes by their labels and annotations, and reasons for stranded GPUs."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rightsizer.inventory.stranded_gpus import find_stranded_gpus
from rightsizer.inventory.unschedulable_pods import UnschedulablePod
from rightsizer.model import DeviceInventory, Node, ObjectRef, Stranded
from tests.rightsizer.kubectl import GPU, Object, fleet_of, node, pod

H100 = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.sharing-strategy": "none",
}


def _node(**changes: Any) -> Node:
    return fleet_of(node(**changes), pod("p")).nodes["n1"]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        pytest.param(H100, ("NVIDIA-H100-80GB-HBM3", 8, 81559 << 20, ""), id="whole"),
        pytest.param({}, ("", None, None, ""), id="unlabelled"),
        pytest.param(
            {
                **H100,
                "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED",
                "nvidia.com/gpu.replicas": "4",
                "nvidia.com/gpu.sharing-strategy": "time-slicing",
            },
            ("NVIDIA-H100-80GB-HBM3", 8, 81559 << 20, "time-slicing"),
            id="time-slicing",
        ),
        pytest.param(
            {**H100, "nvidia.com/gpu.replicas": "2", "nvidia.com/gpu.sharing-strategy": "mps"},
            ("NVIDIA-H100-80GB-HBM3", 8, 81559 << 20, "mps"),
            id="mps",
        ),
        pytest.param(
            {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.replicas": "4"},
            ("Tesla-T4", None, None, "time-slicing"),
            id="before-the-strategy-was-told",
        ),
        pytest.param(
            {
                "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED",
                "nvidia.com/gpu.count": "14",
                "nvidia.com/gpu.memory": "4864",
                "nvidia.com/mig.strategy": "single",
            },
            ("NVIDIA-A100-SXM4-40GB", None, None, "time-slicing"),
            id="single-strategy-tells-of-slices",
        ),
        pytest.param(
            {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.me"},
            ("NVIDIA-H100-80GB-HBM3", None, None, ""),
            id="slice-with-media-engine",
        ),
        pytest.param(
            {
                "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing",
                "cloud.google.com/gke-max-shared-clients-per-gpu": "4",
                "cloud.google.com/gke-accelerator-count": "2",
            },
            ("", 2, None, "time-slicing"),
            id="gke-time-sharing",
        ),
        pytest.param(
            {"cloud.google.com/gke-gpu-sharing-strategy": "mps"}, ("", None, None, "mps"), id="gke-mps"
        ),
        pytest.param({"gpushare": "true"}, ("", None, None, "gpushare"), id="gpushare"),
        pytest.param(
            {"karpenter.k8s.aws/instance-gpu-count": "4"}, ("", 4, None, ""), id="count-by-karpenter"
        ),
        pytest.param({"nvidia.com/gpu.count": "eight"}, ("", None, None, ""), id="a-number-that-is-none"),
    ],
)
def test_node_details_come_from_labels(labels: Object, expected: tuple[Any, ...]) -> None:
    """Model, number, memory and sharing; without a label they are unknown."""
    found = _node(labels=labels)
    assert (found.model, found.gpus, found.memory_bytes, found.sharing) == expected


def test_hami_annotation_makes_a_node_shared() -> None:
    """And every pod on it."""
    marked = node(annotations={"hami.io/node-nvidia-register": "[]"})
    fleet = fleet_of(marked, pod("p"))
    assert (fleet.nodes["n1"].sharing, fleet.workloads[0].pods[0].is_shared) == ("hami", True)


T4 = {"count": 10, "devmem": 15360, "devcore": 100, "type": "NVIDIA-Tesla T4", "health": True}
REGISTERED = {
    "now": (json.dumps([T4, {**T4, "mode": "hami-core"}]), ("Tesla T4", 2, 15360 << 20, 2)),
    "before": (
        "GPU-1,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:GPU-2,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:",
        ("Tesla V100-PCIE-32GB", 2, 32768 << 20, 2),
    ),
    "before-with-modes": (
        "GPU-1,10,15360,100,NVIDIA-Tesla T4,0,true,0,hami-core:GPU-2,10,15360,100,NVIDIA-Tesla T4,0,true,1,mig:",
        ("Tesla T4", 1, 15360 << 20, 1),
    ),
    "one-is-sick": (json.dumps([T4, {**T4, "health": False}]), ("Tesla T4", 1, 15360 << 20, 1)),
    "health-left-out": (json.dumps([{"devmem": 1, "type": "x"}]), ("", None, None, 0)),
    "cut-by-mig": (json.dumps([{**T4, "mode": "mig"}]), ("", None, None, 0)),
    "of-two-kinds": (json.dumps([T4, {**T4, "devmem": 24576}]), ("", None, None, 0)),
    "none": ("[]", ("", None, None, 0)),
    "no-json": ("[{", ("", None, None, 0)),
    "another-form": ("GPU-1,10", ("", None, None, 0)),
    "no-number": ("GPU-1,10,much,100,NVIDIA-Tesla T4,0,true:", ("", None, None, 0)),
}


@pytest.mark.parametrize(("text", "expected"), REGISTERED.values(), ids=REGISTERED.keys())
def test_hami_annotation_gives_model_number_and_memory(text: str, expected: tuple[Any, ...]) -> None:
    """If no label does; also the number of GPUs that it allocates by amounts."""
    found = _node(annotations={"hami.io/node-nvidia-register": text})
    assert (found.model, found.gpus, found.memory_bytes, found.pooled) == expected
    assert found.sharing == "hami"


def test_labels_take_precedence_over_hami() -> None:
    """HAMi may scale memory."""
    text = json.dumps([{**T4, "devmem": 30720}])
    labels = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360"}
    found = _node(labels=labels, annotations={"hami.io/node-nvidia-register": text})
    assert (found.model, found.memory_bytes, found.pooled) == ("Tesla-T4", 15360 << 20, 1)


def test_gpushare_resource_gives_the_number_of_gpus() -> None:
    """Without it none is known."""
    amounts = {"aliyun.com/gpu-mem": "60", "aliyun.com/gpu-count": "4"}
    assert _node(allocatable=amounts).pooled == 4
    assert _node(allocatable={"aliyun.com/gpu-mem": "60"}).pooled == 0


@pytest.mark.parametrize(
    ("labels", "pool"),
    [
        ({"oke.oraclecloud.com/pool.name": "gpu"}, "gpu"),
        ({"eks.amazonaws.com/nodegroup": "gpu"}, "gpu"),
        ({"alpha.eksctl.io/nodegroup-name": "gpu"}, "gpu"),
        ({"kubernetes.azure.com/agentpool": "gpu", "agentpool": "gpu"}, "gpu"),
        ({"cloud.google.com/gke-nodepool": "gpu"}, "gpu"),
        ({"karpenter.sh/nodepool": "gpu", "eks.amazonaws.com/nodegroup": "system"}, "gpu"),
        ({"karpenter.sh/provisioner-name": "gpu"}, "gpu"),
        ({}, ""),
    ],
)
def test_node_pool_comes_from_the_clouds_label(labels: Object, pool: str) -> None:
    """Each cloud has its own."""
    assert _node(labels=labels).pool == pool


@pytest.mark.parametrize(
    ("provider_id", "cloud"),
    [
        ("aws:///us-east-1a/i-0123456789abcdef0", "aws"),
        ("azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/v", "azure"),
        ("gce://project/us-central1-a/gke-h100-1", "gcp"),
        ("ocid1.instance.oc1.phx.anyhqljt", "oci"),
        ("oci://ocid1.instance.oc1.phx.anyhqljt", "oci"),
        ("eks-hybrid:///us-west-2/cluster/mi-1", ""),
        ("kind://docker/kind/kind-control-plane", ""),
        ("", ""),
    ],
)
def test_node_cloud_comes_from_provider_id(provider_id: str, cloud: str) -> None:
    """Of the four clouds whose prices are shipped; an EKS Hybrid node is one's own machine."""
    assert _node(spec={"providerID": provider_id}).cloud == cloud


@pytest.mark.parametrize(
    ("key", "value", "other"),
    [
        ("karpenter.sh/capacity-type", "spot", "on-demand"),
        ("eks.amazonaws.com/capacityType", "SPOT", "ON_DEMAND"),
        ("cloud.google.com/gke-spot", "true", "false"),
        ("cloud.google.com/gke-preemptible", "true", "false"),
        ("kubernetes.azure.com/scalesetpriority", "spot", "regular"),
        ("oci.oraclecloud.com/oke-is-preemptible", "true", "false"),
    ],
)
def test_region_and_spot_come_from_labels(key: str, value: str, other: str) -> None:
    """Of Karpenter and of each cloud."""
    region = {"topology.kubernetes.io/region": "eu-west-1"}
    assert (_node(labels={**region, key: value}).region, _node(labels={key: value}).region) == (
        "eu-west-1",
        "",
    )
    assert [_node(labels={key: text}).is_spot for text in (value, other)] == [True, False]


def test_zone_and_instance_type_come_from_labels() -> None:
    """Current or deprecated ones; OKE pools also from an annotation."""
    old = {"failure-domain.beta.kubernetes.io/zone": "a", "beta.kubernetes.io/instance-type": "big"}
    new = {"topology.kubernetes.io/zone": "b", "node.kubernetes.io/instance-type": "bigger"}
    assert (_node(labels=old).zone, _node(labels=old).instance_type) == ("a", "big")
    assert (_node(labels={**old, **new}).zone, _node(labels={**old, **new}).instance_type) == ("b", "bigger")
    assert _node(annotations={"oci.oraclecloud.com/node-pool-id": "ocid1"}).pool == "ocid1"


@pytest.mark.parametrize(
    ("changes", "is_open", "taints"),
    [
        ({}, True, ()),
        ({"ready": "False"}, False, ()),
        ({"ready": "Unknown"}, False, ()),
        ({"spec": {"unschedulable": True}}, False, ()),
        (
            {"spec": {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]}},
            True,
            ("nvidia.com/gpu=present:NoSchedule",),
        ),
        ({"spec": {"taints": [{"key": "spot", "effect": "PreferNoSchedule"}]}}, True, ()),
        (
            {"spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}},
            False,
            ("karpenter.sh/disrupted=:NoSchedule",),
        ),
        (
            {
                "spec": {
                    "taints": [
                        {"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"}
                    ]
                }
            },
            False,
            ("ToBeDeletedByClusterAutoscaler=1:NoSchedule",),
        ),
    ],
)
def test_node_is_open_if_ready_and_not_cordoned(
    changes: Object, is_open: bool, taints: tuple[str, ...]
) -> None:
    """Nor about to be removed."""
    found = _node(**changes)
    assert (found.is_open, found.taints) == (is_open, taints)


def test_node_without_gpus_is_left_out() -> None:
    """Unless it runs a GPU pod, or its device plugin is down."""
    bare = [node(name) for name in ("a", "n1", "b")]
    for one in bare:
        for place in ("allocatable", "capacity"):
            one["status"][place] = {"cpu": "4"}
    bare[2]["metadata"]["labels"]["nvidia.com/gpu.present"] = "true"
    assert set(fleet_of(*bare, pod("p")).nodes) == {"n1", "b"}


# --- stranded

UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
}


def _waiting(name: str = "w", gpus: int = 1, **spec: Any) -> Object:
    limits = spec.pop("limits", {GPU: str(gpus)})
    status = spec.pop("status", UNSCHEDULABLE)
    return pod(name, limits=limits, spec={"nodeName": "", **spec}, status=status)


def _busy(name: str, **requests: str) -> Object:
    containers = [{"name": "main", "resources": {"requests": requests}}]
    return pod(name, limits={}, spec={"containers": containers})


def _stranded(*objects: Object) -> tuple[Stranded, ...]:
    return fleet_of(*objects).stranded


def _affinity(*expressions: Object) -> Object:
    terms = [{"matchExpressions": [one]} for one in expressions]
    required = {"nodeSelectorTerms": terms}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


EMPTY_TERM: Object = {
    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}
}


@pytest.mark.parametrize(
    ("objects", "reasons"),
    [
        pytest.param(
            [node(gpus=4), _waiting(gpus=8)],
            ("team/w: needs 8 of nvidia.com/gpu, 4 free",),
            id="too-few-gpus",
        ),
        pytest.param(
            [node(gpus=4), _waiting(limits={GPU: "1", "cpu": "8"}), _busy("web", cpu="60500m")],
            ("team/w: needs 8 CPU cores, 3.5 free",),
            id="cpu-taken-by-pods-without-gpus",
        ),
        pytest.param(
            [node(gpus=4), _waiting(limits={GPU: "1", "memory": "600Gi"})],
            ("team/w: needs 600 GiB of memory, 512 free",),
            id="memory",
        ),
        pytest.param(
            [node(gpus=4, allocatable={"pods": "1"}), _waiting(), _busy("web")],
            ("team/w: needs 1 places for pods, 0 free",),
            id="places",
        ),
        pytest.param(
            [
                node(gpus=4, spec={"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]}),
                _waiting("v", tolerations=[{"key": "team", "operator": "Equal", "value": "a"}], gpus=8),
                _waiting("w", tolerations=[{"key": "team", "value": "b"}]),
                _waiting("x", tolerations=[{"operator": "Exists", "effect": "NoExecute"}]),
            ],
            (
                "team/v: needs 8 of nvidia.com/gpu, 4 free",
                "team/w and 1 more: does not tolerate the taint team=a:NoSchedule",
            ),
            id="taints",
        ),
        pytest.param(
            [node(gpus=4, labels={"pool": "a"}), _waiting(nodeSelector={"pool": "b"})],
            ("team/w: its node selector requires pool=b",),
            id="selector",
        ),
        pytest.param(
            [
                node(gpus=4, labels={"pool": "a"}),
                _waiting(affinity=_affinity({"key": "pool", "operator": "NotIn", "values": ["a"]})),
            ],
            ("team/w: its node affinity requires other nodes",),
            id="affinity",
        ),
        pytest.param(
            [
                node(gpus=4, labels={"pool": "a"}),
                _waiting(
                    affinity=_affinity(
                        {"key": "pool", "operator": "In", "values": ["b"]},
                        {"key": "pool", "operator": "Exists"},
                    )
                ),
            ],
            ("team/w: unknown: everything that gpu-rightsizer checks would allow it",),
            id="one-term-of-the-affinity-holds",
        ),
        pytest.param(
            [
                node(gpus=4),
                _waiting(affinity=_affinity({"key": "feature.node.kubernetes.io/x", "operator": "Exists"})),
            ],
            ("team/w: unknown: its node affinity",),
            id="a-label-that-is-not-kept",
        ),
        pytest.param(
            [node(gpus=4), _waiting(affinity=_affinity())],
            ("team/w: its node affinity requires other nodes",),
            id="an-affinity-without-terms",
        ),
        pytest.param(
            [node(gpus=4), _waiting(affinity=EMPTY_TERM)],
            ("team/w: its node affinity requires other nodes",),
            id="a-term-that-asks-for-nothing-never-holds",
        ),
        pytest.param(
            [node(gpus=4, spec={"unschedulable": True}), _waiting()],
            ("the node accepts no new pods: it is cordoned, not ready or about to be removed",),
            id="closed",
        ),
        pytest.param(
            [node(gpus=4), _waiting(tolerations={"key": "no list"})],
            (),
            id="what-cannot-be-read-is-left-out",
        ),
    ],
)
def test_stranded_gpus_have_reasons(objects: list[Object], reasons: tuple[str, ...]) -> None:
    """What cannot be checked is called unknown."""
    found = _stranded(*objects)
    assert [one.reasons for one in found] == ([reasons] if reasons else [])
    assert all((one.node, one.resource, one.free) == ("n1", GPU, 4) for one in found)


@pytest.mark.parametrize(
    "objects",
    [
        pytest.param([node(gpus=4)], id="nothing-waits"),
        pytest.param([node(gpus=1), pod("p"), _waiting()], id="nothing-is-free"),
        pytest.param([node(gpus=4), _waiting(status={"phase": "Pending"})], id="not-tried-yet"),
        pytest.param(
            [node(gpus=4), _waiting(schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])], id="held-back"
        ),
        pytest.param(
            [node(gpus=4), _waiting(status={**UNSCHEDULABLE, "nominatedNodeName": "n1"})],
            id="promised-a-node",
        ),
        pytest.param(
            [node(gpus=4), _waiting(limits={"nvidia.com/mig-1g.10gb": "1"})], id="waits-for-another"
        ),
    ],
)
def test_free_gpus_without_unschedulable_pods_are_not_stranded(objects: list[Object]) -> None:
    """Only pods that the scheduler could not place count."""
    assert _stranded(*objects, pod("done", status={"phase": "Succeeded"})) == ()


def test_unschedulable_pods_are_grouped_by_request() -> None:
    """Most frequent first; after twenty groups the rest is not checked."""
    alike = [_waiting(f"a{number}", gpus=8) for number in range(5)]
    each = [_waiting(f"b{number:02}", gpus=9 + number) for number in range(22)]
    (found,) = _stranded(node(gpus=4), *alike, *each)
    assert found.reasons[0] == "team/a0 and 4 more: needs 8 of nvidia.com/gpu, 4 free"
    assert found.reasons[-1] == "3 more: not checked"
    assert [one.name for one in found.waiting] == ["a0", "a1", "a2"]


def test_unschedulable_pods_of_namespaces_are_compared_in_turn() -> None:
    """However often another namespace asks for different things; what asks alike is named together."""
    flood = [_waiting(f"{gpus}-{copy}", gpus=gpus) for gpus in range(9, 40) for copy in "ab"]
    for one in flood:
        one["metadata"]["namespace"] = "flood"
    (found,) = _stranded(node(gpus=4), *flood, _waiting("w", gpus=8), _waiting("x", gpus=9))
    assert "flood/9-a and 2 more: needs 9 of nvidia.com/gpu, 4 free" in found.reasons
    assert "team/w: needs 8 of nvidia.com/gpu, 4 free" in found.reasons
    assert (len(found.reasons), found.reasons[-1]) == (21, "24 more: not checked")


def test_few_unschedulable_pods_with_long_rules_are_compared() -> None:
    """As much work for a namespace as for pods to be placed; others have their own."""
    nodes = [node(f"n{number}", gpus=4) for number in range(1_000)]
    terms = [
        _affinity({"key": "x" * 50_000, "operator": "Exists"}, {"key": str(n), "operator": "Exists"})
        for n in range(8)
    ]
    flood = [_waiting(f"f{number}", affinity=one) for number, one in enumerate(terms)]
    flood += [_waiting("longer", affinity=_affinity({"key": "x" * 100_000, "operator": "Exists"}))]
    for one in flood:
        one["metadata"]["namespace"] = "flood"
    found = _stranded(*nodes, *flood, _waiting("w", gpus=8))
    assert len(found) == 1_000
    assert {one.reasons for one in found} == {
        (
            "flood/f0 and 3 more: its node affinity requires other nodes",
            "team/w: needs 8 of nvidia.com/gpu, 4 free",
            "5 more: not checked",
        )
    }


def test_unschedulable_pods_are_compared_before_those_that_cost_more() -> None:
    """However many namespaces have one with long rules, and whatever they are called."""
    flood = [_waiting(nodeSelector={f"{number}": "x" * 60_000}) for number in range(25)]
    for number, one in enumerate(flood):
        one["metadata"]["namespace"] = f"flood-{number:02}"
    found = _stranded(*(node(f"n{one}", gpus=4) for one in range(50)), *flood, _waiting("w", gpus=8))
    assert len(found) == 50
    assert all("team/w: needs 8 of nvidia.com/gpu, 4 free" in one.reasons for one in found)


class _CountedNames(dict[str, int]):
    """Amounts by resource name, with how many names were looked at of all of them together."""

    looked_at = 0

    def __iter__(self) -> Iterator[str]:
        _CountedNames.looked_at += len(self)
        return super().__iter__()

    def __contains__(self, name: object) -> bool:
        _CountedNames.looked_at += 1
        return super().__contains__(name)

    def items(self) -> Any:
        _CountedNames.looked_at += len(self)
        return super().items()

    def get(self, name: str, otherwise: Any = None) -> Any:
        _CountedNames.looked_at += 1
        return super().get(name, otherwise)


def test_stranded_gpus_cost_no_more_for_invented_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a tenant's pods may request many names; only those that nodes offer are compared with pods and nodes."""
    monkeypatch.setattr(_CountedNames, "looked_at", 0)
    nodes = {f"n{one}": Node(f"n{one}", allocatable=_CountedNames({GPU: 8})) for one in range(50)}
    pods = [
        UnschedulablePod(
            ObjectRef("v1", "Pod", "flood", f"p{number}", f"u{number}"),
            _CountedNames({GPU: 16, **{f"nvidia.com/mig-{number}-{one}": 1 for one in range(20)}}),
            *({}, {}, (), ()),
        )
        for number in range(60)
    ]
    found = find_stranded_gpus(nodes, {}, pods, DeviceInventory())
    assert {(one.resource, one.free) for one in found} == {(GPU, 8)}
    assert len(found) == len(nodes)
    assert _CountedNames.looked_at < 5 * (len(pods) * 21 + len(nodes))


def test_stranded_gpus_name_few_reasons_of_a_pod() -> None:
    """A node selector may have thousands of labels, and each node its own words."""
    (found,) = _stranded(node(gpus=4), _waiting(gpus=8, nodeSelector={str(n): "x" for n in range(5_000)}))
    first = "; ".join(f"its node selector requires {number}=x" for number in (0, 1, 10, 100))
    assert found.reasons == (f"team/w: needs 8 of nvidia.com/gpu, 4 free; {first}; 4996 more",)


@pytest.mark.parametrize(
    ("limits", "fits"),
    [
        pytest.param({"cpu": "64"}, True, id="an-empty-node-would-do"),
        pytest.param({"cpu": "65"}, False, id="no-node-has-as-many-cores"),
        pytest.param({"memory": "600Gi"}, False, id="nor-as-much-memory"),
    ],
)
def test_pod_that_fits_on_no_node_is_not_placeable(limits: Object, fits: bool) -> None:
    """However many GPUs become free."""
    fleet = fleet_of(node(), _busy("web", cpu="60"), _waiting(limits={GPU: "1", **limits}))
    assert [one.nodes for one in fleet.waiting] == ([{"n1"}] if fits else [])
    assert fleet.spare["n1"]["cpu"] == 4_000


@pytest.mark.parametrize(
    "mark",
    [
        {"labels": {"scheduling.x-k8s.io/pod-group": "train"}},
        {"annotations": {"scheduling.k8s.io/group-name": "train"}},
    ],
    ids=["scheduler-plugins", "volcano"],
)
def test_pending_pods_of_a_gang_know_how_many_wait(mark: Object) -> None:
    """Also for those that fit on no node; others start alone."""
    members = [_waiting("m-0"), _waiting("m-1"), _waiting("m-2", nodeSelector={"pool": "nowhere"})]
    members = [{**one, "metadata": {**one["metadata"], **mark}} for one in members]
    fleet = fleet_of(node(), *members, _waiting("solo"))
    found = {
        one.ref.name: (one.gang and one.gang.ref.name, one.gang and one.gang.needs) for one in fleet.waiting
    }
    assert found == {"m-0": ("train", 3), "m-1": ("train", 3), "solo": (None, None)}


def _container(name: str, cpu: str, **more: Any) -> Object:
    return {"name": name, "resources": {"requests": {"cpu": cpu}}, **more}


@pytest.mark.parametrize(
    ("spec", "left"),
    [
        pytest.param(
            {"containers": [_container("a", "1"), _container("b", "500m")]}, "62.5", id="containers-add-up"
        ),
        pytest.param(
            {
                "containers": [_container("a", "1")],
                "initContainers": [_container("i", "10"), _container("j", "3")],
            },
            "54",
            id="init-containers-come-one-by-one",
        ),
        pytest.param(
            {
                "containers": [_container("a", "1")],
                "initContainers": [_container("s", "2", restartPolicy="Always"), _container("i", "10")],
            },
            "52",
            id="an-init-container-beside-a-sidecar",
        ),
        pytest.param(
            {
                "containers": [_container("a", "1")],
                "initContainers": [_container("s", "2", restartPolicy="Always")],
            },
            "61",
            id="sidecars-stay",
        ),
        pytest.param({"containers": [_container("a", "1")], "overhead": {"cpu": "4"}}, "59", id="overhead"),
        pytest.param(
            {"containers": [_container("a", "1")], "resources": {"requests": {"cpu": "20"}}},
            "44",
            id="pod-level",
        ),
    ],
)
def test_needs_of_a_pod_are_those_of_the_scheduler(spec: Object, left: str) -> None:
    """KEP-753 and KEP-2837."""
    (found,) = _stranded(node(), _waiting(limits={GPU: "1", "cpu": "64"}), pod("web", limits={}, spec=spec))
    assert found.reasons == (f"team/w: needs 64 CPU cores, {left} free",)
