"""Nodes, GPUs and their parts from ResourceSlices, ResourceClaims and DeviceTaintRules in a file of objects."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rightsizer.inventory import resource_claims
from rightsizer.inventory.device_allocation import Tries, allocate
from rightsizer.inventory.device_selectors import matches
from rightsizer.model import Fleet, Node, claims_on
from tests.rightsizer.kubectl import (
    GPU,
    MIG,
    WHOLE,
    Object,
    claim,
    device_class,
    dra_gpu,
    fleet_of,
    node,
    pod,
    resource_slice,
    using,
    workloads_of,
)

MEMORY = 81559 << 20
H100 = "NVIDIA-H100-80GB-HBM3"


def _bare(name: str = "n1", **changes: Any) -> Object:
    """A node without a device plugin."""
    made = node(name, **changes)
    del made["status"]["allocatable"][GPU]
    return made


def _node(*items: Object, of: str = "n1") -> Node:
    return fleet_of(*items, pod("p")).nodes[of]


def _shown(found: Node) -> tuple[str, int | None, int | None, dict[str, int]]:
    return found.model, found.gpus, found.memory_bytes, dict(found.allocatable)


def test_node_without_labels_has_what_its_slices_publish() -> None:
    """Also one without pods; devices of other drivers are none of it."""
    nic = resource_slice("nic", {"name": "nic-0"}, driver="nic.example.com", node="n3")
    items = (
        _bare("n1"),
        _bare("n2"),
        _bare("n3"),
        resource_slice("a", dra_gpu(0), dra_gpu(1), node="n2"),
        nic,
    )
    fleet = fleet_of(*items, pod("p", spec={"nodeName": "n1"}))
    assert _shown(fleet.nodes["n2"]) == (H100, 2, MEMORY, {"deviceclass:gpu.nvidia.com": 2})
    assert "n3" not in fleet.nodes


def test_labels_and_the_device_plugin_come_first() -> None:
    """A node that has both counts each GPU once."""
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-L4",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.memory": "23034",
    }
    found = _node(node(labels=labels), resource_slice("a", dra_gpu(0)))
    assert _shown(found) == ("NVIDIA-L4", 8, 23034 << 20, {GPU: 8})


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_slices_of_each_api_version_are_read(version: str) -> None:
    """Before v1beta2 the fields of a device are in `basic`."""
    device = dra_gpu(0)
    if version == "v1beta1":
        device = {"name": device.pop("name"), "basic": device}
    assert _node(_bare(), resource_slice("a", device, version=version)).gpus == 1


def test_slices_of_an_older_generation_are_left_out() -> None:
    """The driver replaces a pool one slice after the other."""
    old = resource_slice("old", dra_gpu(0), dra_gpu(7), generation=1)
    new = [resource_slice(f"new-{at}", dra_gpu(at), generation=2, of=2) for at in range(2)]
    for items in ((old, *new), (*new, old)):
        assert _node(_bare(), *items).gpus == 2


@pytest.mark.parametrize(
    ("slices", "words"),
    [
        ([resource_slice("a", dra_gpu(0), of=2)], "1 of 2 are there"),
        (
            [resource_slice("a", dra_gpu(0), of=2), resource_slice("b", dra_gpu(0), of=2)],
            "two devices have one name",
        ),
        (
            [resource_slice("a", dra_gpu(0), counters=[{"name": "s", "counters": {"m": {"value": "x"}}}])],
            "its counters cannot be read: 'x' is not a quantity",
        ),
    ],
    ids=["a-slice-is-missing", "one-name-twice", "counters-that-are-no-numbers"],
)
def test_gpus_of_an_incomplete_pool_are_unknown(slices: list[Object], words: str) -> None:
    """The allocator leaves such pools out; how many GPUs the node has is not guessed."""
    fleet = fleet_of(_bare(), *slices, pod("p"))
    assert _shown(fleet.nodes["n1"]) == ("", None, None, {})
    assert [one for one in fleet.problems if "ResourceSlices" in one] == [
        f"ResourceSlices of gpu.nvidia.com, pool n1: {words}; its GPUs are not known"
    ]


def test_gpu_with_its_possible_mig_devices_counts_once() -> None:
    """Dynamic MIG publishes the GPU and each device that could be made of it."""
    parts = [dra_gpu(0, profile="1g.10gb", start=at) for at in range(7)]
    assert _shown(_node(_bare(), resource_slice("a", *parts, dra_gpu(0), dra_gpu(1)))) == (
        H100,
        2,
        MEMORY,
        {"deviceclass:gpu.nvidia.com": 2},
    )


def test_memory_of_a_gpu_is_unknown_where_only_mig_devices_are_published() -> None:
    """Their memory is not the GPU's; their model is."""
    parts = [dra_gpu(0, profile="3g.40gb", start=at) for at in (0, 4)]
    found = _node(_bare(), resource_slice("a", *parts))
    assert (found.model, found.gpus, found.memory_bytes) == (H100, 1, None)


def test_node_with_different_models_has_none() -> None:
    """A rule about models does not match it by chance."""
    other = dra_gpu(1, attributes={"productName": {"string": "NVIDIA L4"}})
    found = _node(_bare(), resource_slice("a", dra_gpu(0), other))
    assert (found.model, found.gpus) == ("", 2)


def test_device_of_another_form_is_reported_and_not_counted() -> None:
    """The others of its pool are."""
    odd = dra_gpu(1, attributes={"productName": {"string": 7}})
    fleet = fleet_of(_bare(), resource_slice("a", dra_gpu(0), odd), pod("p"))
    assert fleet.nodes["n1"].gpus == 1
    (problem,) = [one for one in fleet.problems if one.startswith("device ")]
    assert problem.startswith("device gpu.nvidia.com/n1/gpu-1: ")
    assert problem.endswith("it is not counted")


# --- Parts of GPUs that claims hold


def _gpus(*items: Object) -> dict[str, float]:
    return {name: float(one.gpus) for name, one in workloads_of(_bare(), *items).items()}


def test_claim_for_a_mig_device_holds_its_part() -> None:
    """By the profile that the driver publishes."""
    part = claim("c", devices=1, result={"device": "gpu-0-mig-3g40gb-19-0"}, users=["p"])
    part["status"]["allocation"]["devices"]["results"][0]["device"] = "gpu-0-mig-3g40gb-19-0"
    parts = resource_slice("a", dra_gpu(0, profile="3g.40gb"))
    assert _gpus(parts, part, pod("p", **using("c"))) == {"Pod/p": pytest.approx(3 / 7, abs=1e-6)}


def test_claim_of_several_pods_counts_once() -> None:
    """Each of them holds an equal part."""
    items = (claim("c", devices=2, users=["p", "q"]), resource_slice("a", dra_gpu(0), dra_gpu(1)))
    assert _gpus(*items, pod("p", **using("c")), pod("q", **using("c"))) == {"Pod/p": 1.0, "Pod/q": 1.0}


@pytest.mark.parametrize(
    ("consumed", "part"),
    [
        ({"memory": "20389.75Mi"}, 0.25),
        ({"memory": "0", "shares": "1"}, 0.5),
        ({"memory": "0"}, 0.5),
        ({}, 0.5),
    ],
    ids=["memory", "shares", "nothing", "not-told"],
)
def test_claim_for_a_share_holds_what_it_consumes(consumed: dict[str, str], part: float) -> None:
    """Of the largest capacity; a device without limits is divided by those who have it."""
    capacity = {
        "memory": {"value": "81559Mi"},
        **({"shares": {"value": "2"}} if "shares" in consumed else {}),
    }
    shared = resource_slice("a", dra_gpu(0, allowMultipleAllocations=True, capacity=capacity))
    claims = [
        claim(name, devices=1, result={"shareID": name, "consumedCapacity": consumed}, users=[name])
        for name in ("p", "q")
    ]
    found = _gpus(shared, *claims, pod("p", **using("p")), pod("q", **using("q")))
    assert found == {"Pod/p": pytest.approx(part, abs=1e-6), "Pod/q": pytest.approx(part, abs=1e-6)}


def test_extended_resource_that_became_a_claim_counts_once() -> None:
    """KEP-5004: the claim only tells which devices it is."""
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "made"}, "phase": "Running"}
    made = claim("made", devices=1, users=["p"])
    fleet = fleet_of(_bare(), resource_slice("a", dra_gpu(0), dra_gpu(1)), made, pod("p", status=status))
    (one,) = fleet.workloads
    assert (one.gpus, one.pods[0].claims) == (1, ("made",))
    assert fleet.devices.free_gpus("n1") == 1


@pytest.mark.parametrize(
    ("limits", "gpus"),
    [
        ({"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "2"}, 2),
        ({"example.com/fast": "2"}, 2),
        ({"example.com/nic": "1"}, 0),
    ],
    ids=["implicit-name", "name-of-a-class", "no-gpu"],
)
def test_resource_of_any_name_that_became_a_claim_for_gpus_counts(limits: dict[str, str], gpus: int) -> None:
    """By the devices of the claim, where the name says nothing."""
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "made"}, "phase": "Running"}
    driver = "gpu.nvidia.com" if gpus else "nic.example.com"
    made = claim("made", devices=2, driver=driver, users=["p"])
    items = (_bare(), resource_slice("a", dra_gpu(0), dra_gpu(1)), made)
    found = fleet_of(*items, pod("p", limits=limits, status=status)).workloads
    assert [(one.gpus, one.pods[0].claims) for one in found] == [(gpus, ("made",))][: bool(gpus)]


# --- Claims that wait


def _waiting(name: str = "w", **changes: Any) -> Object:
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    made = pod(name, **{**using("c"), **changes})
    made["spec"].update(nodeName="", priority=100)
    made["status"].update(phase="Pending", conditions=conditions)
    return made


def _request(*expressions: str, **fields: Any) -> Object:
    selectors = [{"cel": {"expression": one}} for one in expressions]
    return claim("c", devices=None, request={"selectors": selectors, **fields})


def _accepted(request: Object, *items: Object) -> set[str] | None:
    """Names of the devices that the waiting pod's claim accepts; None if no node would take the pod."""
    fleet = fleet_of(_bare(), device_class(), *items, request, _waiting())
    if not fleet.waiting:
        return None
    ((claimed,),) = [one.claims for one in fleet.waiting]
    return {one.name for each in claimed.requests for choice in each.choices for one in choice.eligible}


def _why(fleet: Fleet) -> str:
    (one,) = fleet.unserved
    assert one.what == "team/Pod/w"
    return one.why


GPUS = resource_slice("a", dra_gpu(0), dra_gpu(1), dra_gpu(2, profile="1g.10gb"))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0', {"gpu-0", "gpu-1"}),
        ('device.capacity["gpu.nvidia.com"].memory.isGreaterThan(quantity("1Ti"))', None),
        ('device.attributes["gpu.nvidia.com"].uuid == "GPU-1"', {"gpu-1"}),
        ('device.attributes["gpu.nvidia.com"].productName.lowerAscii().matches("h100")', {"gpu-0", "gpu-1"}),
        (
            'device.attributes["gpu.nvidia.com"].cudaComputeCapability.isLessThan(semver("9.1.0"))',
            {"gpu-0", "gpu-1"},
        ),
        ('device.attributes["gpu.nvidia.com"].cudaComputeCapability.major() > 9', None),
        ('cel.bind(a, device.attributes["gpu.nvidia.com"], a.uuid != "GPU-1")', {"gpu-0"}),
        ('device.attributes["gpu.nvidia.com"].?profile.orValue("") == ""', {"gpu-0", "gpu-1"}),
        ('device.attributes["gpu.nvidia.com"].nothing == "x"', None),
        ('device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:00"', {"gpu-0", "gpu-1"}),
        ("device.allowMultipleAllocations", None),
        ('device.attributes["gpu.nvidia.com"].uuid.nonsense()', None),
        ("&&", None),
        ('[1, 2].all(a, [1, 2].all(b, a + b > 0)) || device.driver != ""', None),
        ("device.driver != '' || '" + "x" * 2000 + "' == ''", None),
        (
            'device.attributes["gpu.nvidia.com"].uuid == "GPU-1" || device.attributes["gpu.nvidia.com"].x > 1',
            None,
        ),
        (
            '"x" in device.attributes["gpu.nvidia.com"] || device.attributes["gpu.nvidia.com"].uuid == "GPU-1"',
            {"gpu-1"},
        ),
        ("device.driver", None),
    ],
)
def test_waiting_claim_accepts_what_its_selectors_match(expression: str, expected: set[str] | None) -> None:
    """Beside those of its class; what cannot be evaluated accepts nothing."""
    assert _accepted(_request(expression), GPUS) == expected


def test_claim_that_cannot_be_evaluated_is_reported() -> None:
    """With the pod, the claim, the expression and the reason; its pod is no demand."""
    fleet = fleet_of(_bare(), device_class(), GPUS, _request("device.nonsense()"), _waiting())
    assert _why(fleet).startswith("ResourceClaim c: selector 'device.nonsense()' cannot be evaluated: ")
    assert fleet.waiting == ()


@pytest.mark.parametrize(
    ("limits", "backing", "accepted"),
    [
        ({GPU: "2"}, device_class(resource=GPU), {"gpu-0", "gpu-1"}),
        ({GPU: "2"}, device_class(), None),
        ({GPU: "3"}, device_class(resource=GPU), None),
        (
            {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1"},
            device_class(),
            {"gpu-0", "gpu-1"},
        ),
        ({GPU: "1"}, device_class("gpu.nvidia.com", 'device.attributes["x"].y == 1', resource=GPU), None),
    ],
    ids=["class", "no-class", "more-than-there-are", "implicit", "cannot-be-evaluated"],
)
def test_resource_that_a_class_stands_for_is_demand_for_its_devices(
    limits: dict[str, str], backing: Object, accepted: set[str] | None
) -> None:
    """On nodes of a DRA driver alone; nothing is freed there for a resource that no class stands for."""
    fleet = fleet_of(_bare(), backing, GPUS, _waiting(limits=limits, spec={}))
    found = {
        name.name
        for one in fleet.waiting
        for each in claims_on(one, fleet.nodes["n1"])
        for name in each.requests[0].choices[0].eligible
    }
    assert (found or None) == accepted


def test_device_plugin_of_a_node_comes_before_the_class() -> None:
    """As for the scheduler, node by node."""
    items = (node("n2"), device_class(resource=GPU), GPUS)
    fleet = fleet_of(_bare(), *items, _waiting(limits={GPU: "2"}, spec={}))
    (waiting,) = fleet.waiting
    assert waiting.nodes == {"n1", "n2"}
    assert [len(claims_on(waiting, fleet.nodes[name])) for name in ("n1", "n2")] == [1, 0]


def test_attribute_of_no_type_is_named_and_frees_nothing() -> None:
    """A selector may be about it."""
    odd = resource_slice("a", dra_gpu(0, attributes={"x": {"int": "y"}}))
    fleet = fleet_of(_bare(), device_class(), odd, _request(), _waiting())
    assert fleet.waiting == ()
    assert _why(fleet).startswith(
        "ResourceClaim c: device gpu.nvidia.com/n1/gpu-0 cannot be read: Expected `int | null`"
    )


def test_selectors_are_evaluated_once_for_devices_in_which_they_see_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Claims for NICs cost next to nothing, however many GPUs there are; a UUID is another for each GPU."""
    evaluated: list[str] = []

    def counted(expression: str, seen: Mapping[str, Any]) -> bool:
        evaluated.append(expression)
        return matches(expression, seen)

    monkeypatch.setattr(resource_claims, "matches", counted)
    by_driver = 'device.driver == "nic.example.com"'
    nics = resource_slice("nics", *({"name": f"nic-{n}"} for n in range(50)), driver="nic.example.com")
    gpus = resource_slice("gpus", *map(dra_gpu, range(200)))
    classes = device_class("nic", by_driver), device_class()
    claims = [claim(f"n{n}", devices=None, request={"deviceClassName": "nic"}) for n in range(100)]
    waiting = [_waiting(f"w{n}", **using(f"n{n}")) for n in range(100)]
    by_uuid = 'device.attributes["gpu.nvidia.com"].uuid != ""'
    fleet_of(_bare(), *classes, nics, gpus, *claims, *waiting, _request(by_uuid), _waiting())
    assert collections.Counter(evaluated) == {by_driver: 2, WHOLE: 2, by_uuid: 200}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('has(device.attributes["gpu.nvidia.com"].a)', {"gpu-1", "gpu-2"}),
        ('device.attributes["gpu.nvidia.com"].?a.orValue(1) == true', {"gpu-1"}),
        ('device.attributes["gpu.nvidia.com"].size() > 4 && device.driver != ""', {"gpu-1", "gpu-2"}),
        ('"a" in device["attri" + "butes"]["gpu.nvidia.com"] && device.driver != ""', {"gpu-1", "gpu-2"}),
        (
            """size('device.attributes["') + device.attributes['gpu.nvidia.com'].size() + size('"].x') > 27""",
            {"gpu-1", "gpu-2"},
        ),
        ("device.attributes['gpu.nvidia.com'].uuid != 'GPU-1' && device.driver != ''", {"gpu-0", "gpu-2"}),
    ],
)
def test_selectors_see_what_tells_devices_apart(expression: str, expected: set[str]) -> None:
    """Devices count as alike only in fields that an expression provably reads."""
    others = dra_gpu(1, attributes={"a": {"bool": True}}), dra_gpu(2, attributes={"a": {"int": 1}})
    assert _accepted(_request(expression), resource_slice("a", dra_gpu(0), *others)) == expected


_UUID = 'device.attributes["gpu.nvidia.com"].uuid'


def _of_namespaces(**expressions: Sequence[str]) -> list[Object]:
    """Pods that wait for a claim with each expression, by namespace."""
    items: list[Object] = []
    for namespace, texts in expressions.items():
        for number, text in enumerate(texts):
            request = {"selectors": [{"cel": {"expression": text}}]}
            made = claim(f"c{number:03}", devices=None, request=request)
            waiting = _waiting(f"w{number:03}", **using(f"c{number:03}"))
            for one in (made, waiting):
                one["metadata"]["namespace"] = namespace
            items += [made, waiting]
    return items


def test_requests_of_a_namespace_are_compared_up_to_a_number_of_steps() -> None:
    """Each is compared with all GPUs of the cluster, and tenants write as many as they like; others see no change."""
    many = [f'{_UUID} != "{number}"' for number in range(100)]
    gpus = resource_slice("a", *map(dra_gpu, range(200)))
    fleet = fleet_of(_bare(), device_class(), gpus, *_of_namespaces(team=many, zeta=[f'{_UUID} != "z"']))
    assert {one.ref.namespace: one.ref.name for one in fleet.waiting} == {"team": "w049", "zeta": "w000"}
    assert len(fleet.unserved) == 50
    words = "the requests of namespace team take more than 50000 steps to compare with devices"
    assert {one.why.partition(": ")[2] for one in fleet.unserved} == {words}


@pytest.mark.parametrize(
    "costly",
    [
        _UUID + r'.matches("\\pL{99}\\pL{99}")',
        _UUID + ".matches('" + r"\\pL" * 38 + "')",
        _UUID + r'.matches("\\" + "pL\x7b99}\\" + "pL\u007b99}")',
        '"aaaaaaaaaaaaaaaa"' + '.replace("a", "aaaaaaaaaaaaaaaa")' * 5 + f" != {_UUID}",
        "cel.bind(a, 'aaaa', " + "cel.bind(a, a + a + a + a, " * 7 + f"a != {_UUID}" + ")" * 8,
        '"a,b,c,d"' + '.split(",").join("a,b,c,d")' * 5 + f" != {_UUID}",
    ],
    ids=["repetition", "large-classes", "as-escapes", "replace", "bind", "join"],
)
def test_selectors_that_may_take_long_are_not_evaluated(costly: str) -> None:
    """Valid ones within the limits of the API server: nobody is stopped for them, and others are compared."""
    items = _of_namespaces(team=[costly], zeta=[_UUID + '.matches("^GPU-[0-9]{1,3}$")'])
    fleet = fleet_of(_bare(), device_class(), GPUS, *items)
    assert [one.ref.namespace for one in fleet.waiting] == ["zeta"]
    assert "take more than 50000 steps" in fleet.unserved[0].why


@pytest.mark.parametrize(
    "request_fields",
    [
        {"deviceClassName": "other"},
        {"capacity": {"requests": {"memory": "a lot"}}},
        {"capacity": {"requests": {"memory": "100Gi"}}},
        {"capacity": {"requests": {"bandwidth": "1"}}},
    ],
    ids=["unknown-class", "unreadable-amount", "more-than-there-is", "unknown-capacity"],
)
def test_claim_of_unknown_demand_is_no_demand(request_fields: Object) -> None:
    """Nobody is stopped for what might not fit."""
    assert _accepted(_request(**request_fields), GPUS) is None


@pytest.mark.parametrize("published", ["memory", "gpu.nvidia.com/memory"])
@pytest.mark.parametrize("asked", ["memory", "gpu.nvidia.com/memory"])
def test_claim_for_an_amount_accepts_gpus_that_publish_it_by_the_same_name(
    published: str, asked: str
) -> None:
    """The scheduler's allocator compares names of capacities as they are written; selectors see both alike."""
    request = _request(
        'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("1Gi")) > 0',
        capacity={"requests": {asked: "70Gi"}},
    )
    gpus = resource_slice("a", dra_gpu(0, capacity={published: {"value": "80Gi"}}))
    assert _accepted(request, gpus) == ({"gpu-0"} if asked == published else None)
    assert _node(_bare(), gpus).memory_bytes == 80 << 30


_SHAREABLE: Object = {"allowMultipleAllocations": True}
_EIGHTS = {"default": "10Gi", "validRange": {"min": "10Gi", "max": "40Gi", "step": "10Gi"}}


@pytest.mark.parametrize(
    ("policy", "asked", "taken"),
    [
        (None, "15Gi", 15),
        (None, None, 80),
        (_EIGHTS, None, 10),
        (_EIGHTS, "1Gi", 10),
        (_EIGHTS, "15Gi", 20),
        (_EIGHTS, "41Gi", None),
        ({"validValues": ["20Gi", "40Gi"], "default": "20Gi"}, "25Gi", 40),
        ({"validValues": ["20Gi", "40Gi"], "default": "20Gi"}, "50Gi", None),
        ({"validValues": ["20Gi", "90Gi"], "default": "20Gi"}, "50Gi", None),
    ],
)
def test_part_that_a_claim_takes_follows_the_request_policy(
    policy: Object | None, asked: str | None, taken: int | None
) -> None:
    """Of a device that allows several allocations, as the scheduler's allocator rounds it; here in GiB of 80."""
    memory: Object = {"value": "80Gi", **({"requestPolicy": policy} if policy else {})}
    slices = resource_slice("a", dra_gpu(0, capacity={"memory": memory}, **_SHAREABLE))
    request = _request(**({"capacity": {"requests": {"memory": asked}}} if asked else {}))
    fleet = fleet_of(_bare(), device_class(), slices, request, _waiting())
    found = [
        amounts["memory"] // 2**30
        for one in fleet.waiting
        for choice in one.claims[0].requests[0].choices
        for amounts in choice.consumes.values()
    ]
    assert found == ([] if taken is None else [taken])


def test_parts_that_claims_hold_are_known_with_what_they_consume() -> None:
    """Two claims of one device are two parts of it."""
    slices = resource_slice("a", dra_gpu(0, capacity={"memory": {"value": "80Gi"}}, **_SHAREABLE))
    claims = [
        claim(name, devices=1, result={"shareID": name, "consumedCapacity": {"memory": f"{amount}Gi"}})
        for name, amount in (("x", 20), ("y", 40))
    ]
    fleet = fleet_of(_bare(), pod("p"), slices, *claims)
    ((device, parts),) = fleet.devices.held.items()
    assert device.name == "gpu-0"
    assert {(one.share, one.consumed) for one in parts} == {
        ("x", (("memory", 20 * 2**30),)),
        ("y", (("memory", 40 * 2**30),)),
    }


def test_claim_that_is_reserved_for_a_podgroup_is_used_by_the_pods_that_name_it() -> None:
    """Kubernetes 1.37: their parts are equal, and its devices are free only when all of them have gone."""
    shared = claim("all", devices=2)
    shared["status"]["reservedFor"] = [
        {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "uid-g"}
    ]
    pods = [pod(name, **using("all")) for name in ("p", "q")]
    fleet = fleet_of(_bare(), resource_slice("a", dra_gpu(0), dra_gpu(1)), shared, *pods)
    assert [one.gpus for one in fleet.workloads] == [1, 1]
    (allocation,) = fleet.devices.allocations.values()
    assert allocation.users == {"uid-Pod-p", "uid-Pod-q"}
    (alone,) = fleet_of(
        _bare(), pod("p"), resource_slice("a", dra_gpu(0)), shared
    ).devices.allocations.values()
    assert alone.users == {"uid-g"}


@pytest.mark.parametrize(
    ("constraint", "is_served"),
    [
        ({"distinctAttribute": "resource.kubernetes.io/pcieRoot"}, True),
        ({"distinctAttribute": "gpu.nvidia.com/productName"}, False),
        ({"matchAttribute": "resource.kubernetes.io/pcieRoot"}, False),
        ({}, False),
    ],
    ids=["different", "alike", "must-be-alike", "unknown"],
)
def test_constraint_of_a_claim_says_which_devices_go_together(constraint: Object, *, is_served: bool) -> None:
    """GPU 0 is on another PCIe root than GPU 2."""
    request = _request(count=2)
    request["spec"]["devices"]["constraints"] = [{"requests": ["r"], **constraint}]
    assert (_accepted(request, resource_slice("a", dra_gpu(0), dra_gpu(2))) is not None) == is_served


def test_pod_with_a_claim_that_is_not_made_yet_is_no_demand() -> None:
    """The controller makes it in a moment."""
    waiting = _waiting(**using(made={"gpus": None}))
    del waiting["status"]["resourceClaimStatuses"]
    fleet = fleet_of(_bare(), device_class(), GPUS, waiting)
    assert fleet.waiting == ()


def test_class_of_any_name_is_of_gpus_if_it_selects_some() -> None:
    """Its pods are demand, and its allocated claims hold GPUs."""
    fast = device_class("fast", MIG)
    waiting = claim("c", devices=None, driver="fast")
    fleet = fleet_of(_bare(), fast, GPUS, waiting, _waiting())
    (one,) = fleet.waiting
    assert one.resources == {"deviceclass:fast": 1}


@pytest.mark.parametrize("is_rule", [True, False], ids=["DeviceTaintRule", "published"])
@pytest.mark.parametrize(
    ("effect", "tolerations", "expected"),
    [
        ("NoSchedule", [], {"gpu-1"}),
        ("NoExecute", [], {"gpu-1"}),
        ("None", [], {"gpu-0", "gpu-1"}),
        ("NoSchedule", [{"key": "broken", "operator": "Exists"}], {"gpu-0", "gpu-1"}),
        ("NoSchedule", [{"key": "other", "operator": "Exists"}], {"gpu-1"}),
    ],
)
def test_tainted_device_is_for_claims_that_tolerate_it(
    effect: str, tolerations: list[Object], expected: set[str], *, is_rule: bool
) -> None:
    """Whether the driver publishes the taint or an administrator adds it."""
    taint = {"key": "broken", "value": "yes", "effect": effect}
    rule = {"deviceSelector": {"driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"}, "taint": taint}
    made = {
        "apiVersion": "resource.k8s.io/v1beta2",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "r"},
        "spec": rule,
    }
    first = dra_gpu(0) if is_rule else dra_gpu(0, taints=[taint])
    items = [resource_slice("a", first, dra_gpu(1)), *([made] if is_rule else [])]
    assert _accepted(_request(tolerations=tolerations), *items) == expected


def test_free_gpus_that_a_claim_cannot_take_are_named() -> None:
    """Two are free, the claim needs three."""
    held = claim("h", devices=1, users=["p"])
    items = (resource_slice("a", *(dra_gpu(at) for at in range(3))), held, pod("p", **using("h")))
    fleet = fleet_of(_bare(), device_class(), *items, _request(count=3), _waiting())
    (one,) = fleet.stranded
    assert (one.node, one.resource, one.free) == ("n1", "deviceclass:gpu.nvidia.com", 2)
    assert one.reasons == ("team/w: needs 3 of deviceclass:gpu.nvidia.com, 2 free",)


def test_missing_library_is_named_and_frees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra `dra` installs it; nothing else needs it."""
    from rightsizer.inventory import device_selectors  # noqa: PLC0415

    monkeypatch.setitem(__import__("sys").modules, "cel_expr_python", None)
    device_selectors._environment.cache_clear()  # noqa: SLF001
    device_selectors._compiled.cache_clear()  # noqa: SLF001
    fleet = fleet_of(_bare(), device_class(), GPUS, _request(), _waiting())
    device_selectors._environment.cache_clear()  # noqa: SLF001
    assert fleet.waiting == ()
    assert "the library cel-expr-python is missing" in _why(fleet)
    assert fleet.nodes["n1"].gpus == 3


# --- As the scheduler's allocator decides (k8s.io/dynamic-resource-allocation 0.36.3)


NIC = resource_slice(
    "nic", {"name": "nic-0", "attributes": {"speed": {"int": 400}}}, driver="nic.example.com"
)
TAINT = {"key": "broken", "value": "", "effect": "NoSchedule"}


def _asking(*requests: Object, constraints: Sequence[Object] = ()) -> Object:
    made = claim("c", devices=None)
    made["spec"]["devices"] = {"requests": list(requests), "constraints": list(constraints)}
    return made


def _exactly(name: str = "r", **fields: Any) -> Object:
    return {"name": name, "exactly": {"deviceClassName": "gpu.nvidia.com", **fields}}


def _first(*alternatives: Object, name: str = "r") -> Object:
    made = [
        {"name": f"a{at}", "deviceClassName": "gpu.nvidia.com", **one} for at, one in enumerate(alternatives)
    ]
    return {"name": name, "firstAvailable": made}


def _selecting(*expressions: str) -> list[Object]:
    return [{"cel": {"expression": one}} for one in expressions]


NUMBER = 'device.attributes["gpu.nvidia.com"].uuid == "GPU-{}"'
FOUR = [dra_gpu(at) for at in range(4)]
ROOT = "resource.kubernetes.io/pcieRoot"


@pytest.mark.parametrize(
    ("request_of_claim", "devices", "why"),
    [
        pytest.param(_asking(_exactly(allocationMode="All")), FOUR, "", id="all"),
        pytest.param(
            _asking(_exactly(allocationMode="All")),
            [dra_gpu(0), dra_gpu(1, taints=[TAINT])],
            "no GPU matches",
            id="all-with-a-tainted-one",
        ),
        pytest.param(
            _asking(_exactly(allocationMode="All", tolerations=[{"key": "broken", "operator": "Exists"}])),
            [dra_gpu(0), dra_gpu(1, taints=[TAINT])],
            "",
            id="all-with-a-tolerated-taint",
        ),
        pytest.param(
            _asking(_exactly(allocationMode="All")),
            [dra_gpu(at) for at in range(33)],
            "asks for all",
            id="all-of-33",
        ),
        pytest.param(
            _asking(_exactly(allocationMode="All"), constraints=[{"matchAttribute": ROOT}]),
            FOUR,
            "a constraint on all devices",
            id="all-alike",
        ),
        pytest.param(
            _asking(_exactly(allocationMode="Some")), FOUR, "asks for all", id="a-mode-of-the-future"
        ),
        pytest.param(_asking(_exactly(adminAccess=True)), FOUR, "", id="admin-access-alone-is-no-demand"),
        pytest.param(
            _asking(_exactly(), _exactly("monitor", adminAccess=True)),
            FOUR,
            "admin access",
            id="admin-access-beside",
        ),
        pytest.param(
            _asking(_first({"selectors": _selecting(NUMBER.format(9))}, {"count": 2})),
            FOUR,
            "",
            id="no-first-choice",
        ),
        pytest.param(
            _asking(_first(*({"selectors": _selecting(NUMBER.format(at))} for at in (8, 9)))),
            FOUR,
            "no GPU matches",
            id="no-choice",
        ),
        pytest.param(
            _asking(_first({"deviceClassName": "gone"}, {})),
            FOUR,
            "DeviceClass gone is not known",
            id="class-is-gone",
        ),
        pytest.param(_asking({"name": "r"}), FOUR, None, id="a-request-of-the-future"),
        pytest.param(
            _asking(_exactly(), {"name": "x"}),
            FOUR,
            "DeviceClass  is not known",
            id="beside-one-of-the-future",
        ),
        pytest.param(
            _asking(_exactly(), constraints=[{"matchAttribute": "gpu.nvidia.com/list"}]),
            [dra_gpu(0, attributes={"list": {"ints": [1, 2]}})],
            "several values",
            id="attribute-of-several-values",
        ),
    ],
)
def test_claim_is_served_only_where_the_allocator_would(
    request_of_claim: Object, devices: list[Object], why: str | None
) -> None:
    """What cannot be decided leaves the pod unserved, with the reason."""
    items = (_bare(), device_class(), resource_slice("a", *devices), request_of_claim, _waiting())
    fleet = fleet_of(*items)
    if not why:
        assert fleet.unserved == ()
    else:
        assert why in _why(fleet)
        assert fleet.waiting == ()


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["r"], ("gpu-2", "gpu-3")),
        (["r/a0"], ("gpu-0", "gpu-2")),
        (["r/a1"], ("gpu-2", "gpu-3")),
        ([], ("gpu-2", "gpu-3")),
    ],
    ids=["request", "other-alternative", "alternative", "all"],
)
def test_constraint_applies_to_the_alternative_that_it_names(
    names: list[str], expected: tuple[str, ...]
) -> None:
    """As request/alternative; a constraint of the request holds for all of them."""
    roots = ("x", "y", "z", "z")
    devices = [dra_gpu(at, attributes={ROOT: {"string": root}}) for at, root in enumerate(roots)]
    none = {"selectors": _selecting(NUMBER.format(9))}
    kept = {"selectors": _selecting(NUMBER.format(1).replace("==", "!=")), "count": 2}
    request = _asking(_first(none, kept), constraints=[{"requests": names, "matchAttribute": ROOT}])
    fleet = fleet_of(_bare(), device_class(), resource_slice("a", *devices), request, _waiting())
    (waiting,) = fleet.waiting
    found = allocate(waiting.claims, fleet.devices, "n1", {}, Tries())
    assert tuple(one.id.name for one in found or ()) == expected


@pytest.mark.parametrize(
    ("values", "is_alike"),
    [
        (({"int": 1}, {"int": 1}), True),
        (({"int": 1}, {"bool": True}), False),
        (({"string": "1.0.0"}, {"version": "1.0.0"}), False),
        (({"version": "1.0.0"}, {"version": "1.0.0"}), True),
    ],
)
def test_values_of_different_types_are_not_alike(values: tuple[Object, Object], *, is_alike: bool) -> None:
    """The allocator compares strings with strings only."""
    devices = [dra_gpu(at, attributes={"x": value}) for at, value in enumerate(values)]
    request = _asking(_exactly(count=2), constraints=[{"matchAttribute": "gpu.nvidia.com/x"}])
    fleet = fleet_of(_bare(), device_class(), resource_slice("a", *devices), request, _waiting())
    assert bool(fleet.waiting) is is_alike


@pytest.mark.parametrize(
    ("counters", "consumed"),
    [
        ([], "one"),
        ([{"name": "two", "counters": {"slices": {"value": "7"}}}], "one"),
        ([{"name": "one", "counters": {"memory": {"value": "7"}}}], "one"),
    ],
    ids=["no-set", "other-set", "other-counter"],
)
def test_pool_whose_devices_consume_what_it_has_not_is_unknown(counters: list[Object], consumed: str) -> None:
    """The allocator takes nothing of it, not even the other devices."""
    consumes = [{"counterSet": consumed, "counters": {"slices": {"value": "0"}}}]
    slices = [
        resource_slice("a", dra_gpu(0, consumesCounters=consumes), dra_gpu(1), of=2),
        resource_slice("b", counters=counters, of=2),
    ]
    fleet = fleet_of(_bare(), device_class(), *slices, pod("p"))
    assert fleet.nodes["n1"].gpus is None
    assert any("counters of one are missing" in one for one in fleet.problems)


# --- What other drivers and tenants publish and claim


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ('device.driver == "nic.example.com"', None),
        ('device.attributes["nic.example.com"].speed > 100', None),
        ('device.driver == "gone.example.com"', None),
        ("device.nonsense()", "cannot be evaluated"),
        ("true", "also accepts device nic.example.com/n1/nic-0"),
        ('device.attributes["gpu.nvidia.com"].type == "gpu"', "cannot be evaluated"),
    ],
    ids=["nic", "nic-by-attribute", "no-device", "cannot-be-evaluated", "any-device", "fails-on-a-nic"],
)
@pytest.mark.parametrize("is_used", [True, False], ids=["used", "unused"])
def test_claim_of_another_class_changes_nothing_for_others(
    expression: str, why: str | None, *, is_used: bool
) -> None:
    """A class that is no GPU's is none; an answer that cannot be given is unknown for its claims alone."""
    others = (device_class("other", expression), NIC, claim("c", devices=None, driver="other"))
    held = (claim("h", devices=1, users=["p"]), pod("p", **using("h")))
    items = (_bare(), device_class(), GPUS, *held)
    alone, fleet = fleet_of(*items), fleet_of(*items, *others, *([_waiting()] if is_used else []))
    assert [one for one in fleet.workloads if one.ref.name == "p"] == list(alone.workloads)
    assert (fleet.nodes, fleet.devices.held, fleet.waiting) == (alone.nodes, alone.devices.held, ())
    assert len(fleet.problems) == len(alone.problems)
    assert fleet.unserved == () if why is None or not is_used else why in _why(fleet)


def test_allocated_device_of_another_driver_is_no_gpu() -> None:
    """Also by a class that selects GPUs too."""
    nic = claim("c", devices=1, driver="nic.example.com", users=["p"], request={"deviceClassName": "any"})
    items = (_bare(), device_class("any", "true"), GPUS, NIC, nic, pod("p", **using("c")))
    assert fleet_of(*items).workloads == ()


def test_gpu_pod_that_also_claims_another_device_is_not_served() -> None:
    """Whether the network card is free is not known."""
    nic = claim("nic", devices=None, driver="other")
    items = (_bare(), device_class(), device_class("other", 'device.driver == "nic.example.com"'), GPUS, NIC)
    fleet = fleet_of(*items, nic, _request(), _waiting(**using("c", "nic")))
    assert _why(fleet) == "ResourceClaim nic: it requests other devices than GPUs"
