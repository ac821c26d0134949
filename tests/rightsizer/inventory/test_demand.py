"""Demand of each sort: what waits, of whom it is known what would start it, and what nobody can forge."""

import copy
import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest

from rightsizer.inventory.demand_kinds import NamedQueues
from rightsizer.inventory.placeable_pods import NOWHERE
from rightsizer.inventory.turns import in_turn
from rightsizer.inventory.unschedulable_pods import UnschedulablePod, cheapest_in_turn
from rightsizer.inventory.workload_builder import build_fleet
from rightsizer.model import Fleet, Gang, ObjectRef, Unserved, WaitingPod
from tests.rightsizer.kubectl import (
    GPU,
    TEAM,
    Object,
    device_class,
    dra_gpu,
    fleet_of,
    node,
    obj,
    objects_of,
    pod,
    resource_slice,
)

KUEUE = "kueue.x-k8s.io/v1beta2"
VOLCANO = "scheduling.volcano.sh/v1beta1"
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
PENDING = {"type": "QuotaReserved", "status": "False", "reason": "Pending"}


def _waiting(name: str, *, gpus: int = 1, reason: str = "Unschedulable", **metadata: Any) -> Object:
    status = {"phase": "Pending", "conditions": [{**UNSCHEDULABLE, "reason": reason}]}
    limits = {GPU: str(gpus)} if gpus else {}
    return pod(name, limits=limits, spec={"nodeName": "", "priority": 100}, status=status, **metadata)


def _template(gpus: int = 2, **spec: Any) -> Object:
    limits = {GPU: str(gpus)} if gpus else {"cpu": "1"}
    containers = [{"name": "main", "resources": {"limits": limits, "requests": limits}}]
    return {"spec": {"containers": containers, "priorityClassName": "high", **spec}}


def _cluster(
    name: str, kind: str, *, spec: Object, version: str = KUEUE, status: Object | None = None
) -> Object:
    metadata = {"namespace": ""}
    return obj(kind, name, api_version=version, metadata=metadata, spec=spec, status=status or {})


def _queue(name: str = "gpus", *, nominal: int = 8, used: int = 0, **changes: Any) -> Object:
    quota = {"name": GPU, "nominalQuota": nominal, **changes.pop("quota", {})}
    group = {
        "coveredResources": changes.pop("covered", [GPU]),
        "flavors": [{"name": each, "resources": [quota]} for each in changes.pop("flavors", ["h100"])],
    }
    usage = [{"name": "h100", "resources": [{"name": GPU, "total": used}]}]
    status = {"flavorsReservation": usage, **changes.pop("status", {})}
    return _cluster(name, "ClusterQueue", spec={"resourceGroups": [group], **changes}, status=status)


def _flavor(name: str = "h100", **spec: Any) -> Object:
    return _cluster(name, "ResourceFlavor", spec={"nodeLabels": {"card": name}, **spec})


LOCAL = obj("LocalQueue", "lq", api_version=KUEUE, spec={"clusterQueue": "gpus"})
CLASS: Object = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "high"},
    "value": 5000,
}
NODE = node(labels={"card": "h100"})
ADMITTED = pod("earlier", spec={"priorityClassName": "high", "priority": 5000}, status={"phase": "Succeeded"})
ALWAYS = (NODE, pod("p"), CLASS, LOCAL, _flavor())
SETTING = (*ALWAYS, ADMITTED, _queue())


def _workload(name: str = "train", *, conditions: Any = (PENDING,), count: int = 3, **changes: Any) -> Object:
    one = {"name": "main", "count": count, "template": changes.pop("template", _template())}
    one |= changes.pop("pod_set", {})
    status = {"conditions": list(conditions), **changes.pop("status", {})}
    metadata = changes.pop("metadata", {})
    spec = {"queueName": "lq", "podSets": [one, *changes.pop("more", ())], **changes}
    return obj("Workload", name, api_version=KUEUE, metadata=metadata, spec=spec, status=status)


def _found(fleet: Fleet) -> dict[str, list[WaitingPod]]:
    found: dict[str, list[WaitingPod]] = {}
    for one in fleet.waiting:
        found.setdefault(f"{one.ref.kind}/{one.ref.name}", []).append(one)
    return found


def _gang(fleet: Fleet) -> Gang | None:
    gangs = {one.gang.ref: one.gang for one in fleet.waiting if one.gang}
    return next(iter(gangs.values()), None)


def test_kueue_workload_without_quota_waits_as_its_pods_do() -> None:
    """As many as its podSets say, with the priority of their class, on nodes of a flavor of its queue, as one."""
    others = (_queue(flavors=["a100", "h100"]), _flavor("a100"), node("n2", labels={"card": "a100"}))
    fleet = fleet_of(*ALWAYS, ADMITTED, *others, _workload(priority=9_999_999))
    (waiting,) = _found(fleet).values()
    assert [(one.resources, one.priority, one.priority_class) for one in waiting] == [
        ({GPU: 2}, 5000, "high")
    ] * 3
    gang = _gang(fleet)
    assert gang is not None
    assert (gang.ref.kind, gang.ref.name, gang.needs) == ("Workload", "train", 3)
    assert [set(one.nodes or ()) for one in gang.options] == [{"n2"}, {"n1"}]
    assert [one.amounts for one in gang.options] == [
        {("ClusterQueue gpus", f"{flavor}/{GPU}"): 6} for flavor in ("a100", "h100")
    ]
    assert fleet.unserved == ()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"conditions": [{**PENDING, "status": "True"}]}, id="has-quota"),
        pytest.param({"conditions": []}, id="not-looked-at-yet"),
        pytest.param({"conditions": [PENDING, {"type": "Finished", "status": "True"}]}, id="finished"),
        pytest.param({"active": False}, id="deactivated"),
        pytest.param({"metadata": {"deletionTimestamp": "2026-11-01T00:00:00Z"}}, id="deleted"),
        pytest.param(
            {"conditions": [{**PENDING, "reason": "WaitingForPreemptedWorkloads"}]},
            id="kueue-preempts-others",
        ),
        pytest.param(
            {
                "conditions": [
                    {
                        **PENDING,
                        "message": "couldn't assign flavors to pod set main: insufficient unused quota for "
                        "nvidia.com/gpu in flavor h100, 4 more needed. Pending the preemption of 2 workload(s)",
                    }
                ]
            },
            id="kueue-preempts-others-by-its-message",
        ),
        pytest.param({"template": _template(gpus=0)}, id="no-gpus"),
    ],
)
def test_kueue_workload_that_waits_for_no_gpus_is_no_demand(changes: Mapping[str, Any]) -> None:
    """Nor is anything said about it."""
    fleet = fleet_of(*SETTING, _workload(**changes))
    assert (fleet.waiting, fleet.unserved) == ((), ())


@pytest.mark.parametrize(
    ("items", "why"),
    [
        pytest.param(
            [_queue(), _workload(conditions=[{**PENDING, "reason": "Inadmissible"}])],
            "Kueue calls it inadmissible",
            id="inadmissible",
        ),
        pytest.param(
            [_queue(), _workload(status={"admissionChecks": [{"name": "prov", "state": "Retry"}]})],
            "its admission checks fail: prov",
            id="admission-check",
        ),
        pytest.param([_workload()], "does not exist, or could not be read", id="no-queue"),
        pytest.param([_queue(stopPolicy="Hold"), _workload()], "is not active: Hold", id="stopped"),
        pytest.param(
            [
                _queue(
                    status={"conditions": [{"type": "Active", "status": "False", "reason": "FlavorNotFound"}]}
                ),
                _workload(),
            ],
            "is not active: FlavorNotFound",
            id="inactive",
        ),
        pytest.param([_queue(covered=["cpu"]), _workload()], "has no flavor for its GPUs", id="not-covered"),
        pytest.param(
            [_queue(cohortName="all"), _queue("b", cohortName="all", quota={"lendingLimit": 1}), _workload()],
            "lending limits",
            id="lending-limit",
        ),
        pytest.param(
            [_queue(cohortName="all"), _cluster("all", "Cohort", spec={"parentName": "root"}), _workload()],
            "is nested",
            id="nested-cohort",
        ),
        pytest.param(
            [
                _queue(),
                _workload(metadata={"annotations": {"kueue.x-k8s.io/workload-slice-replacement-for": "x"}}),
            ],
            "adds pods to a job that runs",
            id="elastic-slice",
        ),
        pytest.param(
            [_queue(), _workload(pod_set={"topologyRequest": {"podSetSliceRequiredTopology": "rack"}})],
            "several topologies",
            id="slices-of-a-topology",
        ),
        pytest.param(
            [
                _queue(),
                _workload(template=_template(resourceClaims=[{"name": "c", "resourceClaimName": "c"}])),
            ],
            "ResourceClaim c: it does not exist, or could not be read",
            id="claim-of-several-pods",
        ),
        pytest.param([_queue(), _workload(count=1025)], "more than 1024 pods", id="too-many-pods"),
        pytest.param([_queue(), _workload(count=True)], "podSets cannot be read", id="count-is-no-number"),
        pytest.param(
            [_queue(), _workload(more=[{"name": "less", "count": -1, "template": _template()}])],
            "a negative number of pods",
            id="negative-count",
        ),
        pytest.param(
            [_queue(), _workload(template=_template(tolerations=1))], "cannot be read", id="unreadable"
        ),
    ],
)
def test_kueue_workload_that_freed_gpus_do_not_start_is_named_with_the_reason(
    items: list[Object], why: str
) -> None:
    """Nobody is stopped for it."""
    fleet = fleet_of(*ALWAYS, ADMITTED, *items)
    assert fleet.waiting == ()
    (one,) = fleet.unserved
    assert "Workload" in one.what
    assert why in one.why


_CLAIMS = [{"name": "gpus", "resourceClaimTemplateName": "two"}]
_TOLD = {"resourceRequests": [{"name": "main", "resources": {"whole-gpus": "6", "cpu": "3"}}]}


def _claiming(*, device: str = "gpu.nvidia.com", told: Object | None = _TOLD, **exactly: Any) -> list[Object]:
    """A Workload of three pods with two devices each, on a cluster of DRA alone; `told` is what Kueue says of it."""
    request = {"name": "r", "exactly": {"deviceClassName": device, "count": 2, **exactly}}
    made = obj("ResourceClaimTemplate", "two", api_version="resource.k8s.io/v1")
    made["spec"] = {"spec": {"devices": {"requests": [request]}}}
    whole = {"name": "whole-gpus", "nominalQuota": 8}
    flavor = {"name": "h100", "resources": [whole, {"name": "cpu", "nominalQuota": 100}]}
    group = {"coveredResources": ["cpu", "whole-gpus"], "flavors": [flavor]}
    queue = _cluster("gpus", "ClusterQueue", spec={"resourceGroups": [group]})
    template = _template(gpus=0, resourceClaims=_CLAIMS)
    bare = node(labels={"card": "h100"}, allocatable={GPU: "0"})
    slices = resource_slice("a", *(dra_gpu(number) for number in range(6)))
    waiting = _workload(template=template, status=told or {})
    return [
        bare,
        pod("p", limits={}),
        CLASS,
        LOCAL,
        _flavor(),
        ADMITTED,
        queue,
        slices,
        device_class(),
        made,
        waiting,
    ]


def test_kueue_workload_of_claims_waits_for_the_devices_of_its_templates() -> None:
    """On a cluster of DRA alone: each pod would make a claim of its own, and Kueue tells what quota they take."""
    fleet = fleet_of(*_claiming())
    assert fleet.unserved == ()
    assert [(dict(one.resources), one.priority, set(one.nodes)) for one in fleet.waiting] == [
        ({"deviceclass:gpu.nvidia.com": 2}, 5000, {"n1"})
    ] * 3
    ((choice,),) = {each.choices for one in fleet.waiting for claim in one.claims for each in claim.requests}
    assert (choice.count, len(choice.eligible)) == (2, 6)
    gang = _gang(fleet)
    assert gang is not None
    assert [one.amounts for one in gang.options] == [
        {("ClusterQueue gpus", "h100/whole-gpus"): 6, ("ClusterQueue gpus", "h100/cpu"): 3000}
    ]


@pytest.mark.parametrize(
    ("items", "why"),
    [
        (_claiming(told=None), "Kueue has not told what quota its ResourceClaims take"),
        (_claiming(selectors=[{"cel": {"expression": "nonsense("}}]), "ResourceClaimTemplate two: selector"),
        (_claiming(allocationMode="All", count=1)[:-2] + _claiming()[-1:], "it does not exist"),
    ],
    ids=["quota-unknown", "selector", "no-template"],
)
def test_kueue_workload_of_claims_that_are_unknown_is_named_with_the_reason(
    items: list[Object], why: str
) -> None:
    """Nobody is stopped for it."""
    fleet = fleet_of(*items)
    assert fleet.waiting == ()
    (one,) = fleet.unserved
    assert why in one.why


def test_kueue_workload_of_claims_for_other_devices_is_no_demand() -> None:
    """It waits for no GPU, so nothing is said of it; with GPUs too it is unknown whether it would start."""
    nic = device_class("nic", 'device.driver == "nic.example.com"')
    assert fleet_of(*_claiming(device="nic"), nic).unserved == ()
    template = _template(gpus=1, resourceClaims=_CLAIMS)
    both = [*_claiming(device="nic")[:-1], nic, _workload(template=template, status=_TOLD)]
    (one,) = fleet_of(*both).unserved
    assert one.why == "ResourceClaimTemplate two: it requests other devices than GPUs"


def _quota(namespace: str = TEAM, hard: int = 100, **spec: Any) -> Object:
    metadata = {"namespace": namespace}
    status = {"hard": {f"requests.{GPU}": hard}, "used": {f"requests.{GPU}": 0}}
    return obj("ResourceQuota", "q", api_version="v1", metadata=metadata, spec=spec, status=status)


def _selected(*expressions: Object) -> dict[str, Any]:
    return {"scopeSelector": {"matchExpressions": list(expressions)}}


IN_HIGH: Object = {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}
ANY_CLASS: Object = {"scopeName": "PriorityClass", "operator": "Exists"}
GRANTS = _selected(IN_HIGH)


@pytest.mark.parametrize(
    ("granted", "is_served"),
    [
        pytest.param(ADMITTED, True, id="a-pod-had-it"),
        pytest.param(
            {**ADMITTED, "metadata": {**ADMITTED["metadata"], "namespace": "other"}}, False, id="elsewhere"
        ),
        pytest.param(_quota(**GRANTS), True, id="a-quota-grants-it"),
        pytest.param(_quota("other", **GRANTS), False, id="a-quota-elsewhere"),
        pytest.param(
            {**_quota(**GRANTS), "status": {"hard": {"pods": "9", "limits.cpu": "0"}}},
            False,
            id="a-quota-that-forbids-it",
        ),
        pytest.param(_quota(), False, id="a-quota-of-no-class"),
        pytest.param({**CLASS, "globalDefault": True}, True, id="everybodys"),
        pytest.param(
            obj("PodGroup", "g", api_version=VOLCANO, spec={"priorityClassName": "high"}), False, id="group"
        ),
    ],
)
def test_class_of_a_template_counts_only_where_it_was_granted(granted: Object, *, is_served: bool) -> None:
    """The API server admits a pod's class; that of a Workload anybody may write who may write Workloads."""
    items = [one for one in ALWAYS if one is not CLASS or granted["kind"] != "PriorityClass"]
    fleet = fleet_of(*items, _queue(), granted, _workload(priority=2_000_000_000))
    assert bool(fleet.waiting) is is_served
    if not is_served:
        assert any("PriorityClass high" in one.why for one in fleet.unserved)


@pytest.mark.parametrize(
    ("hard", "spec", "is_served"),
    [
        pytest.param({"limits.cpu": "0"}, GRANTS, False, id="of-the-class"),
        pytest.param({"pods": "0"}, {}, False, id="of-any-class"),
        pytest.param({"cpu": "0"}, _selected({**IN_HIGH, "values": ["low"]}), True, id="of-another-class"),
        pytest.param({"services.loadbalancers": "0", "requests.storage": "0"}, {}, True, id="of-no-pods"),
    ],
)
def test_class_is_not_granted_where_another_quota_forbids_it(
    hard: Object, spec: Object, *, is_served: bool
) -> None:
    """The API server counts a pod in every quota that selects it."""
    forbids = {**_quota(**spec), "status": {"hard": hard}}
    forbids["metadata"] = {**forbids["metadata"], "name": "second"}
    fleet = fleet_of(*ALWAYS, _queue(), _quota(**GRANTS), forbids, _workload())
    assert bool(fleet.waiting) is is_served, fleet.unserved
    words = [one.why for one in fleet.unserved]
    assert is_served or any("no ResourceQuota there grants it" in one for one in words), words


def test_waiting_oldest_first_then_namespaces_in_turn() -> None:
    """Within a priority, whatever their names; what waits behind a queue by the age of its object."""

    def waiting(namespace: str, name: str, created: str) -> Object:
        status = {"phase": "Pending", "conditions": [UNSCHEDULABLE]}
        spec = {"nodeName": "", "priority": 5000}
        return pod(name, namespace=namespace, creationTimestamp=created, spec=spec, status=status)

    job = _job(metadata={**QUEUED, "creationTimestamp": "2026-11-02T00:00:00Z"}, parallelism=1)
    third, first = "2026-11-03T00:00:00Z", "2026-11-01T00:00:00Z"
    alike = [waiting(place, f"{place}-{number}", third) for place in ("a", "b") for number in range(2)]
    fleet = fleet_of(NODE, *alike, CLASS, ADMITTED, waiting("z", "old", first), job, queues=JOBS)
    assert [one.ref.name for one in fleet.waiting] == ["old", "train", "a-0", "b-0", "a-1", "b-1"]


@pytest.mark.parametrize(
    "change",
    [{"status": "True"}, {"status": "Unknown"}, {"reason": "SchedulerError"}, {"type": "Initialized"}],
    ids=str,
)
def test_pod_that_the_scheduler_has_not_given_up_does_not_wait(change: Object) -> None:
    """Only for one that no node fits may another workload go."""
    status = {"phase": "Pending", "conditions": [{**UNSCHEDULABLE, **change}]}
    spec = {"nodeName": "", "priority": 5000}
    pods = [pod("fits-nowhere", spec=spec, status={**status, "conditions": [UNSCHEDULABLE]})]
    pods.append(pod("w", spec=spec, status=status))
    assert [one.ref.name for one in fleet_of(NODE, *pods, CLASS, ADMITTED).waiting] == ["fits-nowhere"]


def test_template_without_class_has_the_default_priority_whatever_its_object_says() -> None:
    """Kueue's own priority orders its queue; it is no PriorityClass."""
    item = _workload(template=_template(priorityClassName=""), priority=2_000_000_000)
    assert {one.priority for one in fleet_of(*SETTING, item).waiting} == {0}
    unknown = fleet_of(*SETTING, _workload(template=_template(priorityClassName="no-such")))
    assert unknown.waiting == ()
    assert unknown.unserved[0].why == "PriorityClass no-such does not exist"


def test_template_beyond_the_namespaces_quota_is_not_served() -> None:
    """Its pods would be refused: a forged Workload asks for no more GPUs than its namespace may have."""
    assert len(fleet_of(*SETTING, _quota(hard=6), _workload()).waiting) == 3
    fleet = fleet_of(*SETTING, _quota(hard=5), _workload())
    assert fleet.waiting == ()
    assert fleet.unserved[0].why == f"ResourceQuota q leaves 5 of {GPU}"


def test_claims_beyond_the_namespaces_quota_are_not_served() -> None:
    """A ResourceQuota may limit the devices of a DeviceClass; three pods want two each."""
    for hard, is_served in ((5, False), (6, True)):
        limit = {"gpu.nvidia.com.deviceclass.resource.k8s.io/devices": str(hard)}
        quota = obj("ResourceQuota", "q", api_version="v1", spec={}, status={"hard": limit, "used": {}})
        fleet = fleet_of(*_claiming(), quota)
        assert bool(fleet.waiting) == is_served
        assert any("leaves 5 of deviceclass:gpu.nvidia.com" in one.why for one in fleet.unserved) != is_served


def test_quota_of_queues_is_counted_by_cohort_and_returned_by_owner() -> None:
    """What a Workload holds counts for its owner in its own namespace: owner references reach no further."""
    job = obj("Job", "idle")
    admission = {
        "clusterQueue": "b",
        "podSetAssignments": [{"name": "main", "flavors": {GPU: "h100"}, "resourceUsage": {GPU: "4"}}],
    }
    holder = obj(
        "Workload", "idle", job, api_version=KUEUE, spec={"queueName": "lq"}, status={"admission": admission}
    )
    forged = {**holder, "metadata": {**holder["metadata"], "namespace": "other", "name": "forged"}}
    queues = (
        _queue(nominal=2, cohortName="all", quota={"borrowingLimit": 4}),
        _queue("b", nominal=6, used=4, cohortName="all"),
    )
    fleet = fleet_of(*ALWAYS, ADMITTED, *queues, job, holder, forged, _workload())
    key = f"h100/{GPU}"
    assert fleet.queues.free == {("Cohort all", key): 4, ("ClusterQueue gpus", key): 6}
    assert fleet.queues.held == {
        f"{TEAM}/uid-Job-idle": {("Cohort all", key): 4},
        "other/uid-Job-idle": {("Cohort all", key): 4},
    }
    gang = _gang(fleet)
    assert gang is not None
    assert gang.options[0].amounts == {("Cohort all", key): 6, ("ClusterQueue gpus", key): 6}


def test_required_topology_of_a_workload_is_kept() -> None:
    """Its pods need nodes with one value of that label."""
    gang = _gang(fleet_of(*SETTING, _workload(pod_set={"topologyRequest": {"required": "rack"}})))
    assert gang is not None
    assert gang.topology == "rack"


# --- Gates


def test_gate_of_an_unknown_controller_is_named_and_serves_nobody() -> None:
    """What it waits for is unknown; that of Kueue is known by the Workload."""
    gated = [
        pod(
            f"g{number}",
            spec={"nodeName": "", "schedulingGates": [{"name": name}]},
            status={"phase": "Pending"},
        )
        for number, name in enumerate(
            ["x.io/a", "x.io/a", "kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology"]
        )
    ]
    fleet = fleet_of(NODE, pod("p"), *gated)
    assert fleet.waiting == ()
    (one,) = fleet.unserved
    assert one.what == f"{TEAM}/Pod/g0 and 1 more pods"
    assert one.why == "what the scheduling gate x.io/a waits for is unknown"


def _gated(name: str, *gates: str, **changes: Any) -> Object:
    spec = {"nodeName": "", "schedulingGates": [{"name": each} for each in gates], "priority": 100}
    return pod(name, spec={**spec, **changes}, status={"phase": "Pending"})


@pytest.mark.parametrize(
    ("gates", "is_served"),
    [
        pytest.param(["x.io/queue"], True, id="named"),
        pytest.param(["x.io/queue", "x.io/other"], False, id="another-gate-stays"),
        pytest.param(["x.io/queue", "kueue.x-k8s.io/admission"], False, id="kueues-workload-tells"),
        pytest.param(["x.io/other"], False, id="not-named"),
    ],
)
def test_pod_behind_a_gate_that_the_policy_names_waits_as_if_it_had_no_node(
    gates: list[str], *, is_served: bool
) -> None:
    """With its own priority, which the API server admitted, and on the nodes that it accepts."""
    queues = NamedQueues(gates=frozenset({"x.io/queue"}))
    fleet = fleet_of(NODE, pod("p"), _gated("g", *gates), queues=queues)
    found = [(one.ref.name, one.priority, dict(one.resources), set(one.nodes)) for one in fleet.waiting]
    assert found == ([("g", 100, {GPU: 1}, {"n1"})] if is_served else [])
    unknown = [one.why for one in fleet.unserved]
    assert unknown == (
        ["what the scheduling gate x.io/other waits for is unknown"] if "x.io/other" in gates else []
    )


def test_gated_pod_with_a_node_or_an_end_does_not_wait() -> None:
    """A gate is removed before a pod is bound; an API server that says otherwise is not believed."""
    queues = NamedQueues(gates=frozenset({"x.io/queue"}))
    assert fleet_of(NODE, pod("p"), _gated("g", "x.io/queue", nodeName="n1"), queues=queues).waiting == ()


# --- Suspended Jobs


JOBS = NamedQueues(jobs=frozenset({"x.io/queue", "x.io/controller"}))
QUEUED = {"labels": {"x.io/queue": "research"}}
JOB_SET = obj("JobSet", "set", api_version="jobset.x-k8s.io/v1alpha2")


def _job(
    name: str = "train",
    *owners: Object,
    metadata: Object | None = None,
    status: Object | None = None,
    **spec: Any,
) -> Object:
    spec = {"suspend": True, "parallelism": 3, "completions": 8, "template": _template(), **spec}
    made = obj("Job", name, *owners, api_version="batch/v1", spec=spec, status=status or {})
    return {**made, "metadata": {**made["metadata"], **(QUEUED if metadata is None else metadata)}}


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(_job(), id="label"),
        pytest.param(_job(metadata={}, managedBy="x.io/controller"), id="managed-by"),
        pytest.param(_job("train", obj("CronJob", "nightly", api_version="batch/v1")), id="of-a-cron-job"),
    ],
)
def test_job_that_a_named_queue_suspends_waits_as_its_pods_would(job: Object) -> None:
    """As many as run at once, as one gang, with the priority of their class."""
    fleet = fleet_of(NODE, pod("p"), CLASS, ADMITTED, job, queues=JOBS)
    (waiting,) = _found(fleet).values()
    assert [(one.resources, one.priority) for one in waiting] == [({GPU: 2}, 5000)] * 3
    gang = _gang(fleet)
    assert gang is not None
    assert (gang.ref.kind, gang.ref.name, gang.needs) == ("Job", "train", 3)
    assert fleet.unserved == ()
    assert fleet_of(NODE, pod("p"), CLASS, ADMITTED, job).waiting == ()


@pytest.mark.parametrize(
    ("job", "why"),
    [
        pytest.param(_job(metadata={}), "whether a queue or a person suspended it is unknown", id="by-whom"),
        pytest.param(
            _job(parallelism=1025, completions=None), "it asks for more than 1024 pods", id="forged"
        ),
        pytest.param(
            _job(template=_template(priorityClassName="no-such")),
            "PriorityClass no-such does not exist",
            id="class",
        ),
        pytest.param(_job(template={"spec": 1}), "its template cannot be read", id="unreadable"),
    ],
)
def test_suspended_job_that_cannot_be_served_is_named(job: Object, why: str) -> None:
    """With the reason; nobody is stopped for it."""
    fleet = fleet_of(NODE, pod("p"), CLASS, ADMITTED, job, queues=JOBS)
    assert fleet.waiting == ()
    (one,) = fleet.unserved
    assert (one.what, one.why.startswith(why)) == (f"{TEAM}/Job/train", True)


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(_job(suspend=False), id="runs"),
        pytest.param(_job(parallelism=0), id="no-pods"),
        pytest.param(_job(template=_template(gpus=0)), id="no-gpus"),
        pytest.param(_job(status={"succeeded": 8}), id="all-done"),
        pytest.param(_job(status={"conditions": [{"type": "Complete", "status": "True"}]}), id="ended"),
        pytest.param(_job(metadata={**QUEUED, "deletionTimestamp": "2026-11-01T00:00:00Z"}), id="deleted"),
        pytest.param(
            _job(metadata={**QUEUED, "annotations": {"gpu-rightsizer.io/undo": "{}"}}), id="by-gpu-rightsizer"
        ),
        pytest.param(_job("train", JOB_SET), id="its-owner-decides"),
        pytest.param(_job("train", JOB_SET, metadata={}), id="its-owner-decides-without-label"),
        pytest.param(
            _job("train", JOB_SET, metadata={}, managedBy="x.io/controller"),
            id="its-owner-decides-managed-by",
        ),
    ],
)
def test_job_that_waits_in_no_queue_is_no_demand(job: Object) -> None:
    """What gpu-rightsizer suspends would else take back its own GPUs."""
    fleet = fleet_of(NODE, pod("p"), CLASS, ADMITTED, job, queues=JOBS)
    assert (fleet.waiting, fleet.unserved) == ((), ())


def test_suspended_job_of_kueue_waits_through_its_workload() -> None:
    """Once, and within the quota of its queue."""
    job = _job()
    workload = obj("Workload", "train", job, api_version=KUEUE, spec=_workload()["spec"])
    fleet = fleet_of(*SETTING, job, {**workload, "status": {"conditions": [PENDING]}}, queues=JOBS)
    assert {one.ref.kind for one in fleet.waiting} == {"Workload"}
    assert len(fleet.waiting) == 3


@pytest.mark.parametrize(
    ("owner", "metadata"),
    [
        pytest.param({}, {"namespace": "evil"}, id="of-another-namespace"),
        pytest.param({"name": "another"}, {}, id="of-another-name"),
        pytest.param({"kind": "ConfigMap", "apiVersion": "v1"}, {}, id="of-another-kind"),
        pytest.param({"uid": "another"}, {}, id="of-another-uid"),
        pytest.param({}, {"deletionTimestamp": "2026-11-01T00:00:00Z"}, id="deleted"),
    ],
)
def test_suspended_job_is_not_hidden_by_a_workload_that_is_not_its_own(
    owner: Object, metadata: Object
) -> None:
    """A tenant writes any owner into a Workload, and keeps it with a finalizer."""
    job = _job()
    forged = obj("Workload", "forged", job, api_version=KUEUE, spec={})
    forged["metadata"] |= metadata
    forged["metadata"]["ownerReferences"][0] |= owner
    fleet = fleet_of(NODE, pod("p"), CLASS, ADMITTED, job, forged, queues=JOBS)
    assert [one.ref.kind for one in fleet.waiting] == ["Job"] * 3


@pytest.mark.parametrize(
    "quota",
    [
        pytest.param({"hard": 8}, id="of-all"),
        pytest.param({"hard": 8, **GRANTS}, id="of-the-class"),
        *(
            pytest.param({"hard": 8, "scopes": [scope]}, id=scope)
            for scope in ("NotTerminating", "Terminating", "BestEffort", "CrossNamespacePodAffinity")
        ),
        pytest.param({"hard": 8, "scopes": ["NotTerminating"], **GRANTS}, id="of-the-class-with-scope"),
        pytest.param({"hard": 8, **_selected(IN_HIGH, ANY_CLASS)}, id="of-the-class-and-any"),
        pytest.param(
            {"hard": 8, **_selected({**IN_HIGH, "operator": "NotIn", "values": ["low"]})}, id="not-low"
        ),
    ],
)
def test_suspended_jobs_together_ask_for_no_more_than_the_quota(quota: dict[str, Any]) -> None:
    """Pods that wait count in a ResourceQuota, suspended Jobs do not: more of them are no more demand."""
    jobs = [_job(f"train-{number}", parallelism=1) for number in range(9)]
    fleet = fleet_of(NODE, pod("p"), CLASS, ADMITTED, _quota(**quota), *jobs, queues=JOBS)
    assert len(fleet.waiting) == 4
    assert {one.why for one in fleet.unserved} == {f"ResourceQuota q leaves 0 of {GPU}"}


@pytest.mark.parametrize(
    "selected",
    [
        pytest.param([{**IN_HIGH, "values": ["low"]}], id="another-class"),
        pytest.param([{**IN_HIGH, "values": ["low"]}, {"scopeName": "NotTerminating"}], id="with-a-scope"),
        pytest.param([{**IN_HIGH, "values": ["low"]}, IN_HIGH], id="both-classes-at-once"),
    ],
)
def test_quota_of_another_class_limits_no_suspended_job(selected: list[Object]) -> None:
    """Its pods have one class, and all scopes of a ResourceQuota must match."""
    quota = _quota(hard=0, **_selected(*selected))
    fleet = fleet_of(NODE, pod("p"), CLASS, ADMITTED, quota, _job(), queues=JOBS)
    assert len(fleet.waiting) == 3


@pytest.mark.parametrize(
    ("name", "hard", "used", "left"),
    [
        pytest.param("pods", "4", "2", "2 of pods", id="pods"),
        pytest.param("count/pods", "2", "0", "2 of pods", id="count"),
        pytest.param("pods", "0", "1", "0 of pods", id="no-pods"),
        pytest.param("requests.cpu", "2500m", "1", "1500m of cpu", id="cpu"),
        pytest.param("cpu", "2", "0", "2000m of cpu", id="cpu-by-its-plain-name"),
        pytest.param("requests.memory", "2Ki", "0", "2048 of memory", id="memory"),
    ],
)
def test_suspended_job_beyond_a_quota_of_pods_cpu_or_memory_is_named(
    name: str, hard: str, used: str, left: str
) -> None:
    """Its pods would be refused, so GPUs freed for them would stay free."""
    limits = {GPU: "2", "cpu": "1", "memory": "1Ki"}
    container = {"name": "main", "resources": {"limits": limits, "requests": limits}}
    job = _job(template=_template(containers=[container]))
    status = {"hard": {name: hard}, "used": {name: used}}
    quota = obj("ResourceQuota", "q", api_version="v1", spec={}, status=status)
    fleet = fleet_of(NODE, pod("p"), CLASS, ADMITTED, quota, job, queues=JOBS)
    assert fleet.waiting == ()
    assert [one.why for one in fleet.unserved] == [f"ResourceQuota q leaves {left}"]
    plenty = {**quota, "status": {"hard": {name: "1Mi"}, "used": {name: used}}}
    assert len(fleet_of(NODE, pod("p"), CLASS, ADMITTED, plenty, job, queues=JOBS).waiting) == 3


def test_suspended_jobs_of_a_namespace_beyond_4096_pods_are_named() -> None:
    """Those of the highest priority are served first; other namespaces as ever."""
    jobs = [_job(f"train-{number}", parallelism=1024, completions=None) for number in range(6)]
    low = _job("low", parallelism=1024, completions=None, template=_template(priorityClassName=""))
    other = _job("other", parallelism=2, completions=None, template=_template(priorityClassName=""))
    other["metadata"]["namespace"] = "other"
    fleet = fleet_of(NODE, pod("p"), CLASS, ADMITTED, low, *jobs, other, queues=JOBS)
    found = {name: len(pods) for name, pods in _found(fleet).items()}
    assert found == {"Job/other": 2, **{f"Job/train-{number}": 1024 for number in range(4)}}
    why = "its namespace asks for more than 4096 pods that do not exist yet"
    assert {(one.what, one.why) for one in fleet.unserved} == {
        (f"{TEAM}/Job/{name}", why) for name in ("low", "train-4", "train-5")
    }


# --- Gangs


LABEL = {"scheduling.x-k8s.io/pod-group": "g"}


def _group(version: str, *, status: Object | None = None, **spec: Any) -> Object:
    return obj("PodGroup", "g", api_version=version, spec=spec, status=status or {})


def _core(name: str) -> Object:
    made = _waiting(name)
    made["spec"]["schedulingGroup"] = {"podGroupName": "g"}
    return made


PLUGINS = "scheduling.x-k8s.io/v1alpha1"
KAI = "scheduling.run.ai/v2alpha2"
IN_KAI: dict[str, Any] = {"annotations": {"pod-group-name": "g"}}
IN_VOLCANO: dict[str, Any] = {"annotations": {"scheduling.k8s.io/group-name": "g"}}


@pytest.mark.parametrize(
    ("items", "needs", "topology"),
    [
        pytest.param([_waiting("a", labels=LABEL), _waiting("b", labels=LABEL)], 2, "", id="no-object"),
        pytest.param(
            [_group(PLUGINS, minMember=2), *(_waiting(name, labels=LABEL) for name in "abc")],
            2,
            "",
            id="elastic",
        ),
        pytest.param(
            [
                _group(PLUGINS, minMember=3),
                pod("bound", labels=LABEL),
                *(_waiting(name, labels=LABEL) for name in "ab"),
            ],
            2,
            "",
            id="one-is-placed",
        ),
        pytest.param(
            [
                _group(PLUGINS, minMember=2),
                _waiting("cpu", gpus=0, labels=LABEL),
                _waiting("a", labels=LABEL),
            ],
            1,
            "",
            id="one-needs-no-gpu",
        ),
        pytest.param(
            [
                _group(VOLCANO, minMember=2, status={"phase": "Inqueue"}),
                _waiting("a", **IN_VOLCANO),
                _waiting("b", reason="Undetermined", **IN_VOLCANO),
            ],
            2,
            "",
            id="volcano-tries-one",
        ),
        pytest.param(
            [
                _group(KAI, minMember=1, topologyConstraint={"requiredTopologyLevel": "rack"}),
                _waiting("a", **IN_KAI),
            ],
            1,
            "rack",
            id="kai",
        ),
        pytest.param(
            [
                _group(KAI, minMember=1, subGroups=[{"name": "s"}]),
                *(_waiting(name, **IN_KAI) for name in "ab"),
            ],
            2,
            "",
            id="kai-subgroups",
        ),
        pytest.param(
            [
                _group(
                    "scheduling.k8s.io/v1beta1",
                    schedulingPolicy={"gang": {"minCount": 2}},
                    schedulingConstraints={"topology": [{"key": "rack"}]},
                ),
                _core("a"),
                _core("b"),
            ],
            2,
            "rack",
            id="core",
        ),
        pytest.param(
            [_group("scheduling.k8s.io/v1alpha3", schedulingPolicy={"basic": {}}), _core("a"), _core("b")],
            1,
            "",
            id="core-basic",
        ),
    ],
)
def test_gang_needs_as_many_pods_as_its_scheduler_starts_together(
    items: list[Object], needs: int, topology: str
) -> None:
    """By its PodGroup; without one, all of them."""
    fleet = fleet_of(NODE, *items)
    gang = _gang(fleet)
    assert gang is not None
    assert (gang.needs, gang.topology) == (needs, topology)
    assert fleet.unserved == ()


@pytest.mark.parametrize(
    ("items", "why"),
    [
        pytest.param(
            [_group(PLUGINS, minMember=3), _waiting("a", labels=LABEL)],
            "1 of its 3 pods exist",
            id="lacks-pods",
        ),
        pytest.param(
            [
                _group(
                    KAI,
                    minMember=1,
                    status={"schedulingConditions": [{"reasons": [{"reason": "NonPreemptibleOverQuota"}]}]},
                ),
                _waiting("a", **IN_KAI),
            ],
            "its queue has no quota for it",
            id="kai-quota",
        ),
        pytest.param(
            [
                _group(VOLCANO, minMember=1, networkTopology={"mode": "hard"}, status={"phase": "Inqueue"}),
                _waiting("a", **IN_VOLCANO),
            ],
            "network topology",
            id="volcano-topology",
        ),
        pytest.param(
            [
                _group(
                    "scheduling.k8s.io/v1beta1",
                    schedulingPolicy={"gang": {"minCount": 1}},
                    schedulingConstraints={"topology": [{"key": "rack"}, {"key": "row"}]},
                ),
                _core("a"),
            ],
            "several topologies",
            id="core-topologies",
        ),
        pytest.param(
            [_group(PLUGINS, minMember="all"), _waiting("a", labels=LABEL)], "cannot be read", id="unreadable"
        ),
        pytest.param(
            [_group(VOLCANO, minMember=1)], "what pods its owner would create", id="volcano-no-owner"
        ),
    ],
)
def test_gang_that_free_gpus_do_not_start_is_named_with_the_reason(items: list[Object], why: str) -> None:
    """None of its pods is served."""
    fleet = fleet_of(NODE, pod("p"), *items)
    assert fleet.waiting == ()
    (one,) = fleet.unserved
    assert why in one.why


@pytest.mark.parametrize(
    ("version", "kind", "spec"),
    [
        ("batch.volcano.sh/v1alpha1", "Job", lambda parts: {"tasks": parts, "priorityClassName": "high"}),
        (
            "kubeflow.org/v1",
            "PyTorchJob",
            lambda parts: {"pytorchReplicaSpecs": dict(zip(["Master", "Worker"], parts, strict=True))},
        ),
    ],
)
def test_podgroup_that_volcano_holds_back_waits_by_its_owners_templates(
    version: str, kind: str, spec: Any
) -> None:
    """Volcano creates pods only once the group is in the queue; its Queue may limit it."""
    parts = [{"replicas": 1, "template": _template(gpus=1)}, {"replicas": 2, "template": _template(gpus=4)}]
    owner = obj(kind, "train", api_version=version, spec=spec(parts))
    group = obj(
        "PodGroup", "train", owner, api_version=VOLCANO, spec={"minMember": 3}, status={"phase": "Pending"}
    )
    fleet = fleet_of(NODE, pod("p"), CLASS, ADMITTED, owner, group)
    (waiting,) = _found(fleet).values()
    assert sorted(one.resources[GPU] for one in waiting) == [1, 4, 4]
    assert {one.ref.kind for one in waiting} == {"PodGroup"}
    newer = {**owner, "metadata": {**owner["metadata"], "uid": "of-a-newer-one"}}
    assert _found(fleet_of(NODE, pod("p"), CLASS, ADMITTED, newer, group)) == {}
    elsewhere = {**owner, "metadata": {**owner["metadata"], "namespace": "other"}}
    assert _found(fleet_of(NODE, pod("p"), CLASS, ADMITTED, elsewhere, group)) == {}
    queue = _cluster(
        "default",
        "Queue",
        version=VOLCANO,
        spec={"capability": {GPU: 10, "cpu": 5}},
        status={"allocated": {GPU: 4}, "state": "Open"},
    )
    limited = _gang(fleet_of(NODE, pod("p"), CLASS, ADMITTED, owner, group, queue))
    assert limited is not None
    assert [one.amounts for one in limited.options] == [{("Queue default", GPU): 9}]


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        pytest.param(
            [{"replicas": 3_000}, {"replicas": -2_999}],
            "it asks for a negative number of pods",
            id="replicas",
        ),
        pytest.param(
            [{"replicas": 1, "cpu": 50}, {"replicas": 1, "cpu": -49}],
            "it asks for a negative amount of CPU or memory",
            id="cpu",
        ),
    ],
)
def test_podgroup_whose_owner_asks_for_less_than_nothing_is_named(parts: list[Object], why: str) -> None:
    """What one part asks for beyond a limit, another would give back: no CRD forbids negative numbers."""
    specs = [
        {
            "replicas": one["replicas"],
            "template": _template(resources={"requests": {"cpu": one.get("cpu", 1)}}),
        }
        for one in parts
    ]
    spec = {"tfReplicaSpecs": dict(zip(["Worker", "PS"], specs, strict=True))}
    owner = obj("TFJob", "train", api_version="kubeflow.org/v1", spec=spec)
    group = obj("PodGroup", "train", owner, api_version=VOLCANO, status={"phase": "Pending"}, spec={})
    cpu = {"hard": {"requests.cpu": "2"}, "used": {"requests.cpu": "0"}}
    quota = obj("ResourceQuota", "q", api_version="v1", spec={}, status=cpu)
    fleet = fleet_of(NODE, pod("p"), CLASS, ADMITTED, quota, owner, group)
    assert fleet.waiting == ()
    assert [one.why for one in fleet.unserved] == [why]


def test_suspended_jobs_beyond_the_limit_take_no_memory() -> None:
    """A thousand of a thousand pods each are refused before a million pods are listed."""
    jobs = [_job(f"train-{number}", parallelism=1024, completions=None) for number in range(1_000)]
    state = objects_of(NODE, pod("p"), CLASS, ADMITTED, *jobs, queues=JOBS)
    tracemalloc.start()
    fleet = build_fleet(state)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(fleet.waiting), len(fleet.unserved)) == (4096, 996)
    assert most < 8_000_000


def test_pods_in_a_limited_queue_of_volcano_give_its_quota_back() -> None:
    """Those that hold GPUs, by their PodGroup."""
    queue = _cluster(
        "q", "Queue", version=VOLCANO, spec={"capability": {GPU: 1}}, status={"allocated": {GPU: 1}}
    )
    group = _group(VOLCANO, minMember=1, queue="q", status={"phase": "Running"})
    fleet = fleet_of(NODE, pod("p", **IN_VOLCANO), group, queue)
    assert fleet.queues.free == {("Queue q", GPU): 0}
    assert fleet.queues.held == {f"{TEAM}/uid-Pod-p": {("Queue q", GPU): 1}}


MANY = [node(f"n{number}") for number in range(1_000)]


def _odd(name: str, length: int, *, namespace: str = TEAM, priority: int = 100) -> Object:
    """A pod for no node; with a long selector it is as much work to compare as many pods."""
    made = _waiting(name, namespace=namespace)
    made["spec"] |= {"nodeSelector": {"odd": name + "x" * length}, "priority": priority}
    return made


def _left_out(fleet: Fleet) -> list[Unserved]:
    """What was not compared with all nodes."""
    return [one for one in fleet.unserved if not one.why.startswith(NOWHERE)]


@pytest.mark.parametrize(
    ("namespace", "priority"),
    [pytest.param("evil", 100, id="of-another-namespace"), pytest.param(TEAM, 99, id="less-urgent")],
)
def test_pods_are_placed_however_many_different_others_wait(namespace: str, priority: int) -> None:
    """Others of the same priority only if they are of another namespace; what is left out is named."""
    odd = [_odd(f"odd-{number}", 50_000, namespace=namespace, priority=priority) for number in range(8)]
    fleet = fleet_of(*MANY, pod("p"), *odd, *(_waiting(f"plain-{number}") for number in range(3)))
    assert [one.ref.name for one in fleet.waiting] == ["plain-0", "plain-1", "plain-2"]
    (one,) = _left_out(fleet)
    assert one.what == f"{namespace}/Pod/odd-4 and 3 more pods"
    assert one.why == (
        "its namespace asks for too many different things to compare all of them with all nodes"
    )
    told = [one for one in fleet.unserved if one.why.startswith(NOWHERE)]
    assert [one.what for one in told] == [f"{namespace}/Pod/odd-{number}" for number in range(4)]
    assert all(len(one.why) < 400 for one in told)


def test_pods_of_many_namespaces_are_placed_in_turn() -> None:
    """Several namespaces that use up all tries together leave the first ones to each."""
    odd = [
        _odd(f"odd-{namespace}-{number}", 50_000, namespace=f"evil-{namespace}")
        for namespace in range(7)
        for number in range(4)
    ]
    fleet = fleet_of(*MANY, pod("p"), *odd, _waiting("plain"))
    assert [one.ref.name for one in fleet.waiting] == ["plain"]
    assert {one.why for one in _left_out(fleet)} == {
        "all namespaces together ask for too many different things to compare all of them with all nodes"
    }


def test_pods_are_placed_before_those_of_other_namespaces_that_cost_more() -> None:
    """However many namespaces ask for one expensive thing each, and whatever they are called."""
    odd = [_odd("odd", 60_000, namespace=f"evil-{namespace:02}") for namespace in range(25)]
    own = [_waiting("plain"), _odd("longer", 1_000), *(_odd(f"odd-{number}", 5) for number in range(20))]
    fleet = fleet_of(*MANY, pod("p"), *odd, *own)
    assert [one.ref.name for one in fleet.waiting] == ["plain"]
    assert {one.what.partition("/")[0] for one in _left_out(fleet)} <= {f"evil-{one:02}" for one in range(25)}


def test_pods_with_some_rules_do_not_wait_for_those_that_have_none() -> None:
    """Few namespaces with some plain pods each would else take all tries first."""

    def group(namespace: str, length: int) -> list[UnschedulablePod]:
        ref = ObjectRef("v1", "Pod", namespace, f"w{length}")
        return [UnschedulablePod(ref, {GPU: 1}, {}, {"x": "x" * length}, (), ())]

    plain = [group(f"team-{place}", number) for place in range(7) for number in range(4)]
    order = cheapest_in_turn([*plain, group("team-z", 1_700)])
    assert "team-z" in [one.ref.namespace for (one,) in order[:8]]


def test_pods_are_placed_before_those_of_their_namespace_that_cost_more() -> None:
    """Also where more pods ask for the expensive things."""
    odd = [_odd(f"odd-{number}", 50_000) for number in range(8)]
    copies = copy.deepcopy(odd)
    for one in copies:
        one["metadata"]["name"] += "-copy"
    fleet = fleet_of(*MANY, pod("p"), *odd, *copies, _waiting("plain"))
    assert [one.ref.name for one in fleet.waiting] == ["plain"]


@pytest.mark.parametrize(
    ("items", "order"),
    [
        pytest.param("a1 a1 a1 b1 b1", "a1 b1 a1 b1 a1", id="alike"),
        pytest.param("a9 b1 b1", "b1 b1 a9", id="expensive-last"),
        pytest.param("a1 a1 a1 a1 b3", "a1 a1 a1 b3 a1", id="many-cheap-ones-do-not-all-precede"),
    ],
)
def test_turns_of_namespaces_follow_what_they_cost_together(items: str, order: str) -> None:
    """Neither one expensive item nor many cheap ones keep those of another namespace from their turn."""
    assert in_turn(items.split(), lambda one: one[0], lambda one: int(one[1])) == order.split()


def test_pods_left_out_by_their_own_namespace_are_not_called_those_of_all() -> None:
    """Also if all namespaces together ask for too many things after it."""
    own = [_odd(f"own-{number}", 50_000, namespace="own", priority=101) for number in range(8)]
    odd = [
        _odd(f"odd-{namespace}-{number}", 50_000, namespace=f"evil-{namespace}")
        for namespace in range(7)
        for number in range(4)
    ]
    unserved = {
        one.what: one.why.partition(" for ")[0] for one in _left_out(fleet_of(*MANY, pod("p"), *own, *odd))
    }
    assert unserved.pop("own/Pod/own-4 and 3 more pods") == "its namespace asks"
    assert set(unserved.values()) == {"all namespaces together ask"}


def test_pods_that_ask_for_hundreds_of_different_things_are_all_placed() -> None:
    """As in a namespace of many notebooks; what finds no node takes no room from the others."""
    different = [_waiting(f"pod-{number}") for number in range(150)]
    for number, one in enumerate(different):
        one["spec"]["containers"][0]["resources"]["requests"]["memory"] = str(number)
    odd = [_odd(f"odd-{number}-{copy}", 5) for number in range(150) for copy in range(2)]
    fleet = fleet_of(NODE, pod("p"), *odd, *different)
    assert (len(fleet.waiting), _left_out(fleet)) == (150, [])
    assert [one.what for one in fleet.unserved][-1] == "team/Pod/odd-1-1 and 296 more pods"


def test_pods_of_two_namespaces_that_ask_alike_have_tries_of_their_own() -> None:
    """One that has none left finds few nodes, the other all."""
    alike = {"nodeSelector": {"card": "h100" + "x" * 50_000}}
    nodes = [node(f"n{number}", labels=alike["nodeSelector"]) for number in range(1_000)]
    odd = [_odd(f"odd-{number}", 50_000, namespace="evil", priority=101) for number in range(4)]
    pods = [_waiting("last", namespace="evil"), _waiting("plain")]
    for one in pods:
        one["spec"] |= alike
    found = {one.ref.name: len(one.nodes) for one in fleet_of(*nodes, pod("p"), *odd, *pods).waiting}
    assert found["plain"] == 1_000


_TO_PODS = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname"}]}
_LACKS = f"0/2 nodes are available: 1 node(s) had untolerated taint, 1 Insufficient {GPU}."


@pytest.mark.parametrize(
    ("spec", "message", "why"),
    [
        pytest.param({}, _LACKS, "", id="gpus"),
        pytest.param({}, "", "", id="another-scheduler"),
        pytest.param(
            {},
            '0/2 nodes are available: persistentvolumeclaim "data" not found.',
            "kube-scheduler names no resource that is missing",
            id="volume",
        ),
        pytest.param(
            {"affinity": {"podAffinity": _TO_PODS}},
            _LACKS,
            "its affinity to other pods is not checked",
            id="affinity",
        ),
        pytest.param(
            {"affinity": {"podAntiAffinity": _TO_PODS}},
            _LACKS,
            "its affinity to other pods is not checked",
            id="anti-affinity",
        ),
        pytest.param(
            {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]},
            _LACKS,
            "its topology spread constraints are not checked",
            id="spread",
        ),
        pytest.param(
            {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}]},
            _LACKS,
            "",
            id="spread-if-possible",
        ),
    ],
)
def test_pod_that_waits_for_more_than_gpus_is_named_and_not_served(
    spec: Object, message: str, why: str
) -> None:
    """Nobody is stopped for a pod that may not start all the same; nor for the others of its gang."""
    status = {"phase": "Pending", "conditions": [{**UNSCHEDULABLE, "message": message}]}
    placed = {"nodeName": "", "priority": 100, **spec}
    for labels in ({}, {"scheduling.x-k8s.io/pod-group": "train"}):
        group = obj("PodGroup", "train", api_version="scheduling.x-k8s.io/v1alpha1", spec={"minMember": 2})
        fleet = fleet_of(
            NODE,
            group,
            pod("odd", limits={GPU: "1"}, spec=placed, status=status, labels=labels),
            _waiting("plain", labels=labels),
        )
        served = {one.ref.name for one in fleet.waiting}
        if not why:
            assert served == {"odd", "plain"}
        elif labels:
            assert (served, [one.why for one in fleet.unserved]) == (set(), [why])
        else:
            assert (served, [one.why for one in fleet.unserved]) == ({"plain"}, [why])
            assert fleet.unserved[0].what.endswith("/odd")
