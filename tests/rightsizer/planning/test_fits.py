"""Nobody is stopped for a pending pod that would still not fit: cause by cause, from API objects to decisions."""

import dataclasses
from typing import Any

import pytest

from rightsizer.model import Action, BlockerCode, Decision, FindingName, Fleet, Mode, Verdict, Workload
from rightsizer.planning.budget import BudgetAccount
from rightsizer.planning.pending_demand import limit_to_pending_demand, unserved_demand
from rightsizer.policy.effective import PolicyEvaluator
from tests.rightsizer.build import AT, judged, policy, rule
from tests.rightsizer.kubectl import GPU, TEAM, Object, fleet_of, node, obj, pod

POLICY = policy(rule("r", actions=[Action.EVICT], onlyForPendingPods=[Action.EVICT]))
HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
LACKS = f"0/1 nodes are available: 1 Insufficient {GPU}."
NEVER = "no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never."
NO_CLAIMS = "preemption: 0/1 nodes are available: 1 cannot allocate all claims."
IN_VAIN = "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."


def _decision(item: Workload) -> Decision:
    plain = judged(item, {}, policy())
    finding = dataclasses.replace(plain.finding, name=FindingName.IDLE, verdict=Verdict.ACT, proposal=None)
    return dataclasses.replace(
        plain,
        finding=finding,
        frees=float(item.gpus),
        verdict=Verdict.ACT,
        mode=Mode.ENFORCE,
        action=Action.EVICT,
    )


def _waiting(name: str = "waits", *, message: str = f"{LACKS} {NEVER}", **spec: Any) -> Object:
    """A pending pod of a higher priority that asks for 4 GPUs, unless its containers say otherwise."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    status = {"phase": "Pending", "conditions": [condition]}
    labels = spec.pop("labels", {})
    limits = {GPU: "4", **spec.pop("limits", {})}
    return pod(
        name,
        limits=limits,
        spec={"nodeName": "", "priority": 5_000, **spec},
        status=status,
        labels=labels,
    )


def _idle(**changes: Any) -> Object:
    """An idle pod with all 4 GPUs of the node."""
    return pod("idle", limits={GPU: "4", **changes.pop("limits", {})}, **changes)


def _stays(name: str = "stays", **changes: Any) -> Object:
    """A pod without GPUs on the node."""
    return pod(name, limits=changes.pop("limits", {}), **changes)


def _node(name: str = "n1", **allocatable: str) -> Object:
    return node(name, gpus=4, labels={HOST: name, ZONE: "a"}, allocatable=allocatable)


def _stopped(*objects: Object) -> tuple[set[str], tuple[str, ...]]:
    """The names of the pods that go for those that wait, and what is said of those that nobody goes for."""
    fleet: Fleet = fleet_of(*objects)
    idle = [_decision(one) for one in fleet.workloads if any(item.holds for item in one.pods)]
    evaluator = PolicyEvaluator(POLICY, fleet, at=AT)
    limited = limit_to_pending_demand(idle, evaluator, BudgetAccount(evaluator))
    gone = {one.workload.ref.name for one in limited.decisions if not one.blockers}
    codes = {block.code for one in limited.decisions for block in one.blockers}
    assert codes <= {BlockerCode.ONLY_FOR_PENDING_PODS}
    return gone, tuple(unserved_demand(evaluator, limited.cut_short, limited.unserved))


def _repelling(key: str = HOST, selector: Any = None, **term: Any) -> Object:
    one = {"topologyKey": key, "labelSelector": {} if selector is None else selector, **term}
    return {
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [one]}},
    }


def _ports(*ports: Object, gpus: int = 0, name: str = "main") -> list[Object]:
    limits = {GPU: str(gpus)} if gpus else {}
    return [{"name": name, "resources": {"limits": limits, "requests": limits}, "ports": list(ports)}]


def _claim(volume: str = "pv", name: str = "data", **spec: Any) -> Object:
    return obj("PersistentVolumeClaim", name, api_version="v1", spec={"volumeName": volume, **spec})


def _volume(
    zone: str = "", labels: dict[str, str] | None = None, source: Object | None = None, name: str = "pv"
) -> Object:
    terms = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}]
    affinity = {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}} if zone else {}
    metadata = {"namespace": "", "labels": labels or {}}
    spec = {**affinity, **(source or {})}
    return obj("PersistentVolume", name, api_version="v1", metadata=metadata, spec=spec)


def _attaching(driver: str, count: int | None, node_name: str = "n1") -> Object:
    """The CSINode of a node whose driver limits the number of volumes."""
    of = {"name": driver, "nodeID": node_name, **({} if count is None else {"allocatable": {"count": count}})}
    return obj(
        "CSINode",
        node_name,
        api_version="storage.k8s.io/v1",
        metadata={"namespace": ""},
        spec={"drivers": [of]},
    )


def _with_data(name: str, claim: str, **changes: Any) -> Object:
    """A pod without GPUs on the node, with a volume."""
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]
    return _stays(name, spec={"volumes": volumes}, **changes)


def _resized(spec: str, actual: str, **status: Any) -> Object:
    """A pod whose CPU was resized in place."""
    has = {"requests": {"cpu": actual}}
    containers = [{"name": "main", "state": {}, "resources": has, "allocatedResources": {"cpu": actual}}]
    return _stays(limits={"cpu": spec}, status={"containerStatuses": containers, **status})


DATA: Object = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}
EBS = "ebs.csi.aws.com"
ON_EBS: Object = {"csi": {"driver": EBS, "volumeHandle": "vol-1"}}
ATTACHED = [{"name": f"kubernetes.io/csi/{EBS}^vol-{number}", "devicePath": ""} for number in range(2)]
ON_80 = {"containerPort": 80, "hostPort": 80}
SIDECAR = {"name": "side", "restartPolicy": "Always", "resources": {"requests": {GPU: "1"}}}
SETUP = {"name": "setup", "resources": {"requests": {GPU: "4"}}}
NOTHING = "no GPUs are freed"


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        pytest.param(
            [
                _node(**{"rdma/hca": "1"}),
                _stays(limits={"rdma/hca": "1"}),
                _waiting(limits={"rdma/hca": "1"}),
            ],
            "it would still lack rdma/hca",
            id="another-extended-resource",
        ),
        pytest.param(
            [
                _node(**{"hugepages-2Mi": "4Gi"}),
                _stays(limits={"hugepages-2Mi": "3Gi"}),
                _waiting(limits={"hugepages-2Mi": "2Gi"}),
            ],
            "it would still lack hugepages-2Mi",
            id="hugepages",
        ),
        pytest.param(
            [
                _node(**{"ephemeral-storage": "100Gi"}),
                _stays(limits={"ephemeral-storage": "60Gi"}),
                _waiting(limits={"ephemeral-storage": "50Gi"}),
            ],
            "it would still lack ephemeral-storage",
            id="ephemeral-storage",
        ),
        pytest.param(
            [_node(), _waiting(limits={"vendor.com/fpga": "1"})],
            "it needs more vendor.com/fpga than the node has",
            id="resource-of-no-node",
        ),
        pytest.param(
            [_node(), _resized("1", "20"), _waiting(limits={"cpu": "50"})],
            "it would still lack cpu",
            id="shrink-not-made",
        ),
        pytest.param(
            [_node(), _resized("20", "1"), _waiting(limits={"cpu": "50"})], "", id="growth-that-is-promised"
        ),
        pytest.param(
            [
                _node(**{"example.com/nic": "4"}),
                _waiting(
                    initContainers=[
                        {**SIDECAR, "resources": {"requests": {"example.com/nic": "1"}}},
                        {**SETUP, "resources": {"requests": {"example.com/nic": "4"}}},
                    ]
                ),
            ],
            "",
            id="init-container-beside-a-sidecar",
        ),
        pytest.param(
            [_node(), _waiting(limits={GPU: "3"}, initContainers=[SIDECAR, SETUP])],
            "",
            id="gpus-beside-a-sidecar",
        ),
        pytest.param(
            [_node(), _stays(spec={"containers": _ports(ON_80)}), _waiting(containers=_ports(ON_80, gpus=4))],
            "repel it or have its host ports",
            id="host-port",
        ),
        pytest.param(
            [
                _node(),
                _stays(spec={"containers": _ports({**ON_80, "hostIP": "10.0.0.1"})}),
                _waiting(containers=_ports(ON_80, gpus=4)),
            ],
            "",
            id="host-port-of-one-address",
        ),
        pytest.param(
            [_node(), _stays(spec=_repelling()), _waiting()],
            "repel it or have its host ports",
            id="others-anti-affinity",
        ),
        pytest.param(
            [
                _node(),
                _node("cpu", **{GPU: "0"}),
                _stays(spec={"nodeName": "cpu", **_repelling(ZONE)}),
                _waiting(),
            ],
            "",
            id="anti-affinity-of-a-zone",
        ),
        pytest.param(
            [
                _node(),
                _stays(namespace="other", spec=_repelling(namespaceSelector={})),
                _waiting(),
            ],
            "",
            id="anti-affinity-to-all-namespaces",
        ),
        pytest.param(
            [
                _node(),
                _stays(
                    namespace="other",
                    spec=_repelling(namespaces=[TEAM], selector={"matchLabels": {"a": "b"}}),
                ),
                _waiting(labels={"a": "b"}),
            ],
            "",
            id="anti-affinity-to-a-named-namespace",
        ),
        pytest.param(
            [_node(), _claim(), _volume("b"), _waiting(**DATA)],
            "its PersistentVolumeClaim data requires other nodes",
            id="volume-of-another-zone",
        ),
        pytest.param(
            [_node(), _claim(), _volume(labels={ZONE: "b__c"}), _waiting(**DATA)],
            "",
            id="zone-label-of-a-volume",
        ),
        pytest.param(
            [_node(), _claim(""), _waiting(**DATA)],
            "PersistentVolumeClaim data: it is not bound to a volume",
            id="volume-not-bound",
        ),
        pytest.param(
            [_node(), _waiting(**DATA)],
            "PersistentVolumeClaim data: which nodes can mount it is not known",
            id="volume-not-read",
        ),
        pytest.param(
            [_node(), _claim(accessModes=["ReadWriteOncePod"]), _volume(), _waiting(**DATA)],
            "PersistentVolumeClaim data: which pod has it is not known",
            id="volume-of-one-pod",
        ),
        pytest.param(
            [
                _node(),
                _attaching(EBS, 1),
                _claim(),
                _volume(source=ON_EBS),
                _with_data("a", "other"),
                _waiting(**DATA),
            ],
            f"it would still lack attachable-volumes-csi-{EBS}",
            id="volumes-of-pods-that-stay",
        ),
        pytest.param(
            [
                {**_node(), "status": {**_node()["status"], "volumesAttached": ATTACHED}},
                _attaching(EBS, 2),
                _claim(),
                _volume(source=ON_EBS),
                _waiting(**DATA),
            ],
            f"it would still lack attachable-volumes-csi-{EBS}",
            id="volumes-that-are-attached-still",
        ),
        pytest.param(
            [
                _node(),
                _attaching(EBS, 0),
                _claim(),
                _volume(source={"awsElasticBlockStore": {"volumeID": "vol-1"}}),
                _waiting(**DATA),
            ],
            f"it needs more attachable-volumes-csi-{EBS} than the node has",
            id="volume-of-a-former-plugin-on-a-node-that-attaches-none",
        ),
        pytest.param(
            [_node(), _attaching("other", 9), _claim(), _volume(source=ON_EBS), _waiting(**DATA)],
            "",
            id="driver-of-no-node",
        ),
        pytest.param(
            [
                _node(),
                _node("n2", cpu="1"),
                _attaching("other", 9),
                _attaching(EBS, 9, "n2"),
                _claim(),
                _volume(source=ON_EBS),
                _waiting(limits={"cpu": "2"}, **DATA),
            ],
            f"it needs more attachable-volumes-csi-{EBS} than the node has",
            id="driver-of-another-node",
        ),
        pytest.param(
            [_node(), _claim(), _volume(source=ON_EBS), _waiting(**DATA)],
            "PersistentVolumeClaim data: how many volumes nodes can attach is not known",
            id="volume-limits-not-read",
        ),
        pytest.param(
            [
                _node(),
                _claim(),
                _volume(source=ON_EBS),
                obj(
                    "StorageClass",
                    "standard",
                    api_version="storage.k8s.io/v1",
                    metadata={"namespace": ""},
                    provisioner=EBS,
                ),
                _waiting(**DATA),
            ],
            "PersistentVolumeClaim data: how many volumes nodes can attach is not known",
            id="volume-limits-not-in-the-file",
        ),
        pytest.param(
            [
                _node(),
                _node("n2", cpu="1"),
                _attaching(EBS, 9, "n2"),
                _claim(),
                _volume(source=ON_EBS),
                _waiting(limits={"cpu": "2"}, **DATA),
            ],
            f"it needs more attachable-volumes-csi-{EBS} than the node has",
            id="volume-limits-of-another-node-only",
        ),
        pytest.param(
            [_node(**{GPU: "0"}), _waiting(message="0/1 nodes are available: 1 cannot allocate all claims.")],
            "no node would take it if it were empty",
            id="devices-of-a-node-that-are-not-known",
        ),
        pytest.param(
            [_node(), _waiting(volumes=[{"name": "disk", "rbd": {}}])],
            "which nodes can mount its volume of type rbd is not known",
            id="volume-of-an-old-type",
        ),
        pytest.param(
            [_node(), _waiting(schedulerName="own")],
            "where the scheduler own places pods is not known",
            id="unknown-scheduler",
        ),
        pytest.param(
            [
                _node(),
                _waiting(message=f"0/2 nodes are available: 1 Insufficient {GPU}, 1 node(s) of a bad rack."),
            ],
            "kube-scheduler has a reason that is not checked: node(s) of a bad rack",
            id="unknown-plugin",
        ),
        pytest.param(
            [_node(), _waiting(message="0/1 nodes are available: 1 node(s) exceed max volume count.")],
            "kube-scheduler names no resource that is missing",
            id="volumes-of-a-node",
        ),
        pytest.param(
            [_node(), _waiting(message=f"{LACKS} {IN_VAIN}")],
            "kube-scheduler preempts for it, and found that this does not help",
            id="preempted-in-vain",
        ),
        pytest.param(
            [
                _node(),
                pod(
                    "nominee",
                    limits={"cpu": "20"},
                    spec={"nodeName": "", "priority": 9_000},
                    status={"phase": "Pending", "nominatedNodeName": "n1"},
                ),
                _waiting(limits={"cpu": "50"}),
            ],
            "it would still lack cpu",
            id="room-of-a-nominated-pod",
        ),
    ],
)
def test_pending_pod_that_would_not_fit_stops_nobody(objects: list[Object], said: str) -> None:
    """And where that cannot be decided, the reason is said."""
    gone, words = _stopped(_idle(), *objects)
    assert gone == set()
    assert [one for one in words if one.startswith(f"{TEAM}/Pod/waits: {NOTHING} for it: ") and said in one]


@pytest.mark.parametrize(
    "objects",
    [
        pytest.param([_node(), _idle(), _waiting()], id="gpus-alone"),
        pytest.param(
            [
                _node(**{"rdma/hca": "1"}),
                _idle(limits={"rdma/hca": "1"}),
                _waiting(limits={"rdma/hca": "1"}),
            ],
            id="it-holds-the-other-resource-too",
        ),
        pytest.param([_node(), _idle(spec=_repelling()), _waiting()], id="it-repels"),
        pytest.param(
            [_node(), _idle(), _waiting(message=f"{LACKS} {NO_CLAIMS}")], id="claims-stop-preemption"
        ),
        pytest.param(
            [
                _node(),
                _idle(spec={"containers": _ports(ON_80, gpus=4)}),
                _waiting(containers=_ports(ON_80, gpus=4)),
            ],
            id="it-has-the-host-port",
        ),
        pytest.param(
            [
                _node(),
                _idle(),
                _stays(spec={"containers": _ports({**ON_80, "protocol": "UDP"})}),
                _waiting(containers=_ports(ON_80, gpus=4)),
            ],
            id="port-of-another-protocol",
        ),
        pytest.param(
            [_node(), _idle(), _stays(spec=_repelling(selector={"matchLabels": {"a": "b"}})), _waiting()],
            id="anti-affinity-to-others",
        ),
        pytest.param(
            [_node(), _idle(), _stays(namespace="other", spec=_repelling()), _waiting()],
            id="anti-affinity-within-another-namespace",
        ),
        pytest.param(
            [_node(), _idle(), _claim(), _volume("a"), _waiting(**DATA)], id="volume-of-the-same-zone"
        ),
        pytest.param([_node(), _idle(), _claim(), _volume(), _waiting(**DATA)], id="volume-of-all-nodes"),
        pytest.param(
            [
                _node(),
                _idle(),
                _attaching(EBS, 2),
                _claim(),
                _volume(source=ON_EBS),
                _with_data("a", "other"),
                _waiting(**DATA),
            ],
            id="node-that-can-attach-one-more-volume",
        ),
        pytest.param(
            [_node(), _idle(), _attaching(EBS, None), _claim(), _volume(source=ON_EBS), _waiting(**DATA)],
            id="driver-without-a-limit",
        ),
        pytest.param(
            [
                _node(),
                _idle(),
                _claim(),
                _volume(source={"nfs": {"server": "s", "path": "/"}}),
                _waiting(**DATA),
            ],
            id="volume-of-no-driver",
        ),
        pytest.param(
            [
                _node(),
                _idle(),
                _waiting(
                    message="0/1 nodes are available: 1 cannot allocate all claims. preemption: 0/1 nodes are "
                    "available: 1 Preemption is not helpful for scheduling."
                ),
            ],
            id="devices-for-which-kube-scheduler-never-preempts",
        ),
        pytest.param(
            [
                _node(),
                _idle(),
                _resized(
                    "20",
                    "1",
                    conditions=[{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}],
                ),
                _waiting(limits={"cpu": "50"}),
            ],
            id="growth-that-never-comes",
        ),
        pytest.param(
            [
                _node(),
                _idle(),
                pod(
                    "nominee",
                    limits={"cpu": "20"},
                    spec={"nodeName": "", "priority": 1_000},
                    status={"phase": "Pending", "nominatedNodeName": "n1"},
                ),
                _waiting(limits={"cpu": "50"}),
            ],
            id="nominated-pod-of-a-lower-priority",
        ),
    ],
)
def test_pending_pod_that_would_fit_is_served(objects: list[Object]) -> None:
    """By the one idle pod that holds the GPUs."""
    assert _stopped(*objects)[0] == {"idle"}


def test_two_pending_pods_with_volumes_do_not_share_a_node_that_attaches_one() -> None:
    """The second would still wait: only one idle pod goes."""
    halves = [pod(f"idle-{number}", limits={GPU: "2"}) for number in range(2)]
    made: list[Object] = []
    for name in ("a", "b"):
        volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]
        made += [_claim(name, name), _volume(source=ON_EBS, name=name)]
        made.append(_waiting(f"waits-{name}", limits={GPU: "2"}, volumes=volumes))
    gone, _ = _stopped(_node(), _attaching(EBS, 1), *halves, *made)
    assert len(gone) == 1


def test_two_pending_pods_with_one_host_port_do_not_share_a_node() -> None:
    """The second would still wait: only one idle pod goes."""
    halves = [pod(f"idle-{number}", limits={GPU: "2"}) for number in range(2)]
    wait = [_waiting(f"waits-{number}", containers=_ports(ON_80, gpus=2)) for number in range(2)]
    gone, _ = _stopped(_node(), *halves, *wait)
    assert len(gone) == 1
