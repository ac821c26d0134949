"""Any valid ResourceClaims, DeviceClasses and ResourceSlices of any driver: no plan ends, and others see no change."""

from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st

from rightsizer.inventory.device_allocation import Tries, allocate
from rightsizer.model import Fleet
from tests.rightsizer.kubectl import (
    Object,
    claim,
    device_class,
    dra_gpu,
    fleet_of,
    node,
    obj,
    pod,
    resource_slice,
    using,
)

NAMES = ("a", "b", "gpu-0")
DRIVERS = ("nic.example.com", "compute-domain.nvidia.com")
CLASSES = ("any", "nic", "odd", "missing")
EXPRESSIONS = (
    "true",
    'device.driver == "nic.example.com"',
    'device.driver == "gpu.nvidia.com"',
    'device.attributes["nic.example.com"].a > 1',
    'device.attributes["gpu.nvidia.com"].type == "gpu"',
    "device.allowMultipleAllocations",
    'device.capacity["nic.example.com"].b.isGreaterThan(quantity("1"))',
    "device.nonsense()",
    "[1].all(one, one > 0)",
)


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Object]:
    """An object with any of these fields: each of them is optional in the API."""
    return st.fixed_dictionaries({}, optional=fields)


def _lists(one: st.SearchStrategy[Any], most: int = 2) -> st.SearchStrategy[list[Any]]:
    return st.lists(one, max_size=most)


_quantities = st.sampled_from(["0", "1", "1500m", "10Gi", "1e3", "5E"])
_names = st.sampled_from(NAMES)
_qualified = st.sampled_from([*NAMES, "nic.example.com/a", "resource.kubernetes.io/pcieRoot"])
_selectors = _lists(
    st.one_of(
        st.sampled_from(EXPRESSIONS).map(lambda text: {"cel": {"expression": text}}),
        st.just({"future": {}}),
    )
)
_tolerations = _lists(
    _some(
        key=_names,
        operator=st.sampled_from(["Exists", "Equal"]),
        value=_names,
        effect=st.sampled_from(["NoSchedule", "NoExecute"]),
        tolerationSeconds=st.integers(0, 9),
    )
)
_taints = _lists(
    st.builds(
        lambda key, effect: {"key": key, "effect": effect, "timeAdded": "2026-11-01T00:00:00Z"},
        _names,
        st.sampled_from(["None", "NoSchedule", "NoExecute", "Future"]),
    )
)
_attributes = st.dictionaries(
    _qualified,
    st.one_of(
        st.integers(-(2**63), 2**63 - 1).map(lambda number: {"int": number}),
        st.booleans().map(lambda truth: {"bool": truth}),
        st.text(max_size=9).map(lambda text: {"string": text}),
        st.sampled_from(["1.2.3", "1.2.3-rc.1+b"]).map(lambda text: {"version": text}),
        st.just({"ints": [1, 2]}),
        st.just({"strings": ["x"]}),
        st.just({"future": {}}),
    ),
    max_size=3,
)
_policies = st.one_of(
    st.builds(
        lambda least, step: {"default": "1", "validRange": {"min": least, "step": step}},
        _quantities,
        st.just("1"),
    ),
    st.just({"default": "1", "validValues": ["1", "2"]}),
)
_capacity = st.dictionaries(
    _qualified,
    st.builds(lambda value, policy: {"value": value, **policy}, _quantities, _some(requestPolicy=_policies)),
    max_size=2,
)
_counters = st.dictionaries(_names, _quantities.map(lambda value: {"value": value}), max_size=2)
_device_fields = _some(
    attributes=_attributes,
    capacity=_capacity,
    taints=_taints,
    allowMultipleAllocations=st.booleans(),
    consumesCounters=_lists(
        st.builds(lambda name, counters: {"counterSet": name, "counters": counters}, _names, _counters)
    ),
    nodeName=st.sampled_from(["n1", "n2"]),
    allNodes=st.just(value=True),
    bindsToNode=st.booleans(),
    bindingConditions=st.just(["ready"]),
    future=st.just({"x": 1}),
)
_devices = _lists(st.builds(lambda name, fields: {"name": name, **fields}, _names, _device_fields), most=3)


@st.composite
def _slices(draw: st.DrawFn) -> Object:
    made = resource_slice(
        draw(st.sampled_from(["x", "y", "z"])),
        *draw(_devices),
        driver=draw(st.sampled_from(DRIVERS)),
        node=draw(st.sampled_from(["n1", "n2"])),
        of=draw(st.integers(1, 2)),
        generation=draw(st.integers(0, 2)),
    )
    if draw(st.booleans()):
        made["spec"]["devices"] = []
        made["spec"]["sharedCounters"] = [{"name": draw(_names), "counters": draw(_counters)}]
    if draw(st.booleans()):
        del made["spec"]["nodeName"]
        made["spec"].update(
            draw(
                st.sampled_from([{"allNodes": True}, {"perDeviceNodeSelection": True}, {"nodeSelector": {}}])
            )
        )
    return made


_fields = {
    "selectors": _selectors,
    "allocationMode": st.sampled_from(["ExactCount", "All", "Future"]),
    "count": st.integers(1, 2**63 - 1),
    "tolerations": _tolerations,
    "capacity": _some(requests=st.dictionaries(_qualified, _quantities, max_size=2)),
}
_exactly: st.SearchStrategy[Object] = st.builds(
    lambda name, fields: {"deviceClassName": name, **fields},
    st.sampled_from(CLASSES),
    _some(**_fields, adminAccess=st.booleans()),
)
_alternatives = st.lists(
    st.builds(
        lambda name, of, fields: {"name": name, "deviceClassName": of, **fields},
        _names,
        st.sampled_from(CLASSES),
        _some(**_fields),
    ),
    min_size=1,
    max_size=3,
)
_requests = st.one_of(
    st.builds(lambda name, one: {"name": name, "exactly": one}, _names, _exactly),
    st.builds(lambda name, some: {"name": name, "firstAvailable": some}, _names, _alternatives),
    st.builds(lambda name, one: {"name": name, **one}, _names, _exactly),
    _names.map(lambda name: {"name": name, "future": {}}),
)
_constraints = _some(
    requests=_lists(st.sampled_from([*NAMES, "a/b"])),
    matchAttribute=st.just("nic.example.com/a"),
    distinctAttribute=st.just("resource.kubernetes.io/pcieRoot"),
)
_results = _lists(
    st.builds(
        lambda request, driver, device, more: {
            "request": request,
            "driver": driver,
            "pool": "n1",
            "device": device,
            **more,
        },
        st.sampled_from([*NAMES, "a/b", "gone"]),
        st.sampled_from(DRIVERS),
        _names,
        _some(
            adminAccess=st.booleans(),
            shareID=_names,
            consumedCapacity=st.dictionaries(_qualified, _quantities, max_size=2),
            bindingConditions=st.just(["ready"]),
        ),
    )
)


@st.composite
def _claims(draw: st.DrawFn) -> Object:
    made = claim(f"claim-{draw(_names)}", devices=None)
    made["spec"]["devices"] = {
        "requests": draw(_lists(_requests, most=3)),
        "constraints": draw(_lists(_constraints)),
        "config": [{"opaque": {"driver": "x", "parameters": {"any": [1]}}}],
    }
    if draw(st.booleans()):
        made["status"] = {
            "allocation": {"devices": {"results": draw(_results)}, "nodeSelector": {}},
            "reservedFor": [{"resource": "pods", "name": "of-anybody", "uid": "uid-Pod-of-anybody"}],
            "devices": [{"driver": "x", "pool": "y", "device": "z", "data": {"a": 1}}],
        }
    return made


@st.composite
def _classes(draw: st.DrawFn) -> Object:
    made = device_class(draw(st.sampled_from(CLASSES[:3])))
    made["spec"] = draw(
        _some(selectors=_selectors, extendedResourceName=st.just("example.com/nic"), future=st.just(1))
    )
    return made


def _template(made: Object) -> Object:
    spec = {"spec": made["spec"]}
    return obj("ResourceClaimTemplate", "t", api_version="resource.k8s.io/v1", spec=spec)


_foreign = st.lists(st.one_of(_slices(), _classes(), _claims(), _claims().map(_template)), max_size=8)
BARE = node()
del BARE["status"]["allocatable"]["nvidia.com/gpu"]


def _waiting(name: str, **fields: Any) -> Object:
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    made = pod(name, **fields)
    made["spec"].update(nodeName="", priority=100)
    made["status"].update(phase="Pending", conditions=conditions)
    return made


OURS: tuple[Object, ...] = (
    BARE,
    device_class(),
    resource_slice("gpus", dra_gpu(0), dra_gpu(1)),
    claim("held", devices=1, users=["worker"]),
    claim("wanted", devices=None),
    pod("worker", **using("held")),
    pod("shell"),
    _waiting("next", **using("wanted")),
)
USERS = (
    pod("of-anybody", **using(*(f"claim-{name}" for name in NAMES))),
    _waiting("for-anybody", **using("claim-a", "claim-b")),
    _waiting("from-template", **using(made={"x": None})),
    _waiting("by-resource", limits={"example.com/nic": "1", "nvidia.com/gpu": "1"}, spec={}),
)


ALONE = fleet_of(*OURS)


def _once(items: list[Object]) -> list[Object]:
    return list({(one["kind"], one["metadata"]["name"]): one for one in items}.values())


def _of(fleet: Fleet, is_ours: Callable[[str], bool]) -> tuple[object, ...]:
    """What is said of these pods, and of all GPUs."""
    return (
        [one for one in fleet.workloads if is_ours(one.ref.name)],
        [(one.ref, one.resources, one.claims, one.nodes) for one in fleet.waiting if is_ours(one.ref.name)],
        fleet.devices.nodes,
        dict(fleet.devices.held),
        fleet.nodes,
        fleet.free,
    )


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(_foreign)
def test_objects_of_other_drivers_change_nothing_for_pods_that_do_not_use_them(foreign: list[Object]) -> None:
    """Neither who holds GPUs, nor which nodes have them, nor who waits; and who waits can be placed, or not."""
    ours = {one["metadata"]["name"] for one in OURS if one["kind"] == "Pod"}
    others = _once(foreign)
    fleet = fleet_of(*OURS, *others, *USERS)
    assert _of(fleet, ours.__contains__) == _of(ALONE, ours.__contains__)
    for one in fleet.waiting:
        allocate(one.claims, fleet.devices, "n1", fleet.devices.held, Tries())
