"""Checks of the cluster: objects, permissions, and series of its nodes. Pure."""

import datetime
import functools
from collections.abc import Iterable, Iterator, Mapping

from rightsizer.doctor.diagnosis import Check, Diagnosis, Facts, Failure, Message, Status, check, known, some
from rightsizer.doctor.rights import Purpose, Right, needed
from rightsizer.inventory.dra_state import WHOLE as WHOLE_BY_DRA
from rightsizer.inventory.gpu_requests import WHOLE_GPU_RESOURCES
from rightsizer.model import Fleet, Node, NodeCoverage, Pod
from rightsizer.text import count

READ = Message(Status.OK, "{host}: {workloads} with {gpus}, {nodes} with GPUs")
UNREADABLE = Message(
    Status.ERROR,
    "{why}",
    "compare with what kubectl can read; if Forbidden, see permissions:",
    "kubectl get pods -A",
)
NO_WORKLOADS = Message(
    Status.WARNING,
    "{host}: no workload holds or waits for GPUs",
    "use another --context NAME, or name other GPU resources: --gpu-resource NAMES (docs/inventory.md)",
)


@check("inventory", "cluster", "Objects can be read from the API server.")
def _cluster(facts: Facts) -> Iterator[Diagnosis]:
    fleet = facts.fleet
    if isinstance(fleet, Failure):
        yield UNREADABLE(why=fleet.words)
        return
    host = known(facts.host)
    gpus = sum(workload.gpus for workload in fleet.workloads)
    if fleet.workloads:
        workloads, nodes = count(len(fleet.workloads), "workload"), count(len(fleet.nodes), "node")
        yield READ(host=host, workloads=workloads, gpus=count(gpus), nodes=nodes)
    else:
        yield NO_WORKLOADS(host=host)


WHOLE = Message(Status.OK, "all objects were read")
LEFT_OUT = Message(
    Status.WARNING,
    "{why}",
    "if Forbidden, see permissions; otherwise fix the named object: its workloads are judged without it",
)


@check("inventory", "objects", "Objects that could not be read or parsed.")
def _problems(facts: Facts) -> Iterator[Diagnosis]:
    problems = known(facts.fleet).problems
    for why in problems:
        yield LEFT_OUT(why=why)
    if not problems:
        yield WHOLE()


ENOUGH_COVERAGE = 0.9
"""Required coverage of the last ten minutes; equals the policy's default."""
SETTLED = datetime.timedelta(minutes=5)
"""Younger pods may not have been scraped yet."""
_MIG = "nvidia.com/mig-"


def offered(node: Node) -> int | None:
    """The number of devices that should have series: GPUs and MIG instances; None if unknown.

    On a node with shared GPUs, allocatable counts shares.
    """
    if node.sharing:
        return node.gpus
    counts = [
        count
        for name, count in node.allocatable.items()
        if name in WHOLE_GPU_RESOURCES or name == WHOLE_BY_DRA or name.startswith(_MIG)
    ]
    return sum(counts) if counts else None


def _pairs(facts: Facts) -> Iterator[tuple[Node, NodeCoverage]]:
    """Nodes that have series."""
    node_coverage = known(facts.node_coverage)
    for name, node in sorted(known(facts.fleet).nodes.items()):
        if name in node_coverage:
            yield node, node_coverage[name]


def _gpu_nodes(fleet: Fleet) -> list[str]:
    """Nodes that offer GPUs, or have pods that hold some."""
    return sorted(
        name for name, node in fleet.nodes.items() if any(node.allocatable.values()) or name in fleet.pods_on
    )


def _is_foreign(facts: Facts) -> bool:
    """Whether series and API server have no node name in common."""
    node_coverage, nodes = known(facts.node_coverage), known(facts.fleet).nodes
    return bool(node_coverage) and bool(nodes) and not node_coverage.keys() & nodes.keys()


SEEN = Message(Status.OK, "every node with GPUs has series ({nodes})")
UNSEEN = Message(
    Status.ERROR,
    "{count} of {nodes} GPU nodes have no GPU series: {names}",
    "run an exporter there, and scrape it; pods on the first:",
    "kubectl get pods -A --field-selector spec.nodeName={first}",
)
NAMELESS = Message(
    Status.WARNING,
    "series and API server name nodes differently ({theirs}; {ours}), so nodes cannot be checked",
    "set the exporter's NODE_NAME by the downward API, or attach the node's name when scraping (attachMetadata: node)",
)
NO_NODES = Message(Status.OK, "the cluster has no node with GPUs")


@check("coverage", "nodes", "Nodes with GPUs but without series.")
def _nodes(facts: Facts) -> Iterator[Diagnosis]:
    fleet = known(facts.fleet)
    nodes, node_coverage = _gpu_nodes(fleet), known(facts.node_coverage)
    unseen = [name for name in nodes if name not in node_coverage]
    if not nodes:
        yield NO_NODES()
    elif _is_foreign(facts):
        yield NAMELESS(theirs=some(sorted(node_coverage), 2), ours=some(nodes, 2))
    elif unseen:
        yield UNSEEN(count=len(unseen), nodes=len(nodes), names=some(unseen), first=unseen[0])
    else:
        yield SEEN(nodes=len(nodes))


COMPLETE = Message(Status.OK, "all devices that nodes offer have series")
FEWER = Message(
    Status.WARNING,
    "fewer devices than the node offers: {names}",
    "a GPU may have failed (on {first}: nvidia-smi -L; dmesg | grep -i xid), or the exporter is "
    "restricted (--devices, NVIDIA_VISIBLE_DEVICES)",
)


@check("coverage", "devices", "Devices that nodes offer but series lack.")
def _devices(facts: Facts) -> Iterator[Diagnosis]:
    fewer = {}
    for node, coverage in _pairs(facts):
        expected = offered(node)
        if expected is not None and coverage.devices < expected:
            fewer[node.name] = f"{coverage.devices} of {expected}"
    yield from _each(fewer, FEWER, COMPLETE)


OWNED = Message(Status.OK, "series name a pod for every held device")
UNOWNED = Message(
    Status.ERROR,
    "some GPUs are held by pods, but their series name no pod: {names}",
    "the exporter there cannot read the kubelet's allocations: mount /var/lib/kubelet/pod-resources, and "
    "check its log; pods there:",
    "kubectl get pods -A --field-selector spec.nodeName={first}",
)


@check("coverage", "owners", "GPUs that pods hold, but whose series name no pod.")
def _owners(facts: Facts) -> Iterator[Diagnosis]:
    fleet, fewer = known(facts.fleet), {}
    for node, coverage in _pairs(facts):
        pods = [pod for pod in fleet.pods_on.get(node.name, ()) if _is_settled(pod, facts.at)]
        held = sum(pod.usable for pod in pods)
        # Several pods may share one GPU, so there only the absence of all of them is a problem.
        if pods and coverage.owned < (1 if node.sharing or any(pod.is_shared for pod in pods) else held):
            fewer[node.name] = f"{coverage.owned} of {held}"
    yield from _each(fewer, UNOWNED, OWNED)


def _is_settled(pod: Pod, at: datetime.datetime) -> bool:
    return pod.phase == "Running" and pod.is_ready and pod.started is not None and at - pod.started > SETTLED


STEADY = Message(Status.OK, "no gaps in the last ten minutes")
GAPS = Message(
    Status.WARNING,
    "gaps in the last ten minutes: {names}",
    "check Prometheus's /targets for failing or slow scrapes",
)


@check("coverage", "gaps", "Missing samples of the last ten minutes.")
def _gaps(facts: Facts) -> Iterator[Diagnosis]:
    found = {
        node.name: f"{coverage.coverage:.0%}"
        for node, coverage in _pairs(facts)
        if coverage.coverage < ENOUGH_COVERAGE
    }
    yield from _each(found, GAPS, STEADY)


def _each(found: Mapping[str, str], message: Message, otherwise: Message) -> Iterator[Diagnosis]:
    if found:
        names = some(f"{name} ({words})" for name, words in found.items())
        yield message(names=names, first=next(iter(found)))
    else:
        yield otherwise()


NO_FOREIGN_NODES = Message(Status.OK, "all series are from nodes of this cluster")
FOREIGN_NODES = Message(
    Status.WARNING,
    "series of nodes outside this cluster: {names}",
    "if Prometheus holds several clusters: --prometheus-label cluster=NAME; removed nodes disappear by themselves",
)


@check("coverage", "foreign-nodes", "Series of nodes outside the cluster.")
def _foreign_nodes(facts: Facts) -> Iterator[Diagnosis]:
    nodes = known(facts.fleet).nodes
    names = sorted(name for name in known(facts.node_coverage) if name not in nodes)
    if names and not _is_foreign(facts):
        yield FOREIGN_NODES(names=some(names))
    else:
        yield NO_FOREIGN_NODES()


_BIND = (
    "grant ClusterRole gpu-rightsizer-{command} and bind it: kubectl create clusterrolebinding "
    "gpu-rightsizer-{command} "
    "--clusterrole gpu-rightsizer-{command} --user NAME"
)
_ROLE = "; also bind the Role of that name in namespace {own}"
_GRANT = "gpu-rightsizer doctor --roles | kubectl apply -f -"
ALLOWED = Message(Status.OK, "all {count} required rights are granted")
PLAN_FORBIDDEN = Message(Status.ERROR, "plan fails: not allowed to {missing}", _BIND, _GRANT)
DISCOVERY_FORBIDDEN = Message(
    Status.WARNING,
    "plan cannot find Prometheus by itself: not allowed to {missing}",
    "set --prometheus-url, or " + _BIND,
    _GRANT,
)
APPLY_FORBIDDEN = Message(
    Status.WARNING, "apply fails: not allowed to {missing}; plan is not affected", _BIND + _ROLE, _GRANT
)
UNDO_FORBIDDEN = Message(
    Status.WARNING, "undo fails: not allowed to {missing}; plan is not affected", _BIND + _ROLE, _GRANT
)
RIGHTS_UNKNOWN = Message(
    Status.UNKNOWN,
    "unknown: {why}",
    "if Forbidden: grant the account create on selfsubjectaccessreviews, as the ClusterRole system:basic-user does",
    "kubectl auth can-i create selfsubjectaccessreviews.authorization.k8s.io",
)
LIMITED = Message(
    Status.WARNING, "{command} is limited, because it is not allowed to {missing}: {cost}", _BIND, _GRANT
)
"""Message about rights without which a command still runs."""


def _may(facts: Facts, *, command: Purpose, refusal: Message) -> Iterator[Diagnosis]:
    allowed = facts.allowed
    if isinstance(allowed, Failure) and not allowed.summary:
        yield RIGHTS_UNKNOWN(why=allowed.words)
        return
    allowed = known(allowed)
    is_spared = (
        command is Purpose.PLAN and not facts.evicts
    )  # without evictions there are no manifests to read
    rights = [right for right in needed(allowed, command) if not (is_spared and right.resource == "secrets")]
    missing = [right for right in rights if not allowed[right]]
    named = {"command": command.value, "own": facts.own}
    if required := [right for right in missing if not right.cost]:
        yield refusal(**named, missing=_rights_text(required))
    if optional := [right for right in missing if right.cost]:
        costs = dict.fromkeys(right.cost for right in optional)
        yield LIMITED(**named, missing=_rights_text(optional), cost=some(costs, 2))
    if not missing:
        yield ALLOWED(**named, count=len(rights))


def _rights_text(rights: Iterable[Right]) -> str:
    """Verbs and resources, such as "list pods, nodes; get jobs.batch"."""
    by_verb: dict[str, list[str]] = {}
    for right in rights:
        by_verb.setdefault(right.verb, []).append(right.named)
    return "; ".join(f"{verb} {some(names, 4)}" for verb, names in by_verb.items())


def _permissions(command: Purpose, about: str, refusal: Message) -> Check:
    judge = functools.partial(_may, command=command, refusal=refusal)
    return check("permissions", command.value, about)(judge)


PLAN = _permissions(Purpose.PLAN, "What `plan` reads.", PLAN_FORBIDDEN)
DISCOVERY = _permissions(Purpose.DISCOVERY, "What it reads to find a Prometheus.", DISCOVERY_FORBIDDEN)
APPLY = _permissions(Purpose.APPLY, "What `apply` reads and writes.", APPLY_FORBIDDEN)
UNDO = _permissions(Purpose.UNDO, "What `undo` reads and writes.", UNDO_FORBIDDEN)
