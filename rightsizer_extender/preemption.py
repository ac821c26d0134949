"""Victims of kube-scheduler's preemption: pods that hold GPUs without using them, before busy ones. Pure.

kube-scheduler offers victims for each node that a pending pod would fit on. What an extender answers replaces them, so
everything that the scheduler checks of victims is checked here again: a lower priority, PodDisruptionBudgets, and
whether their end makes enough room. Where that cannot be known, the scheduler's choice stands.
https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/scheduler/framework/preemption/preemption.go
"""

import collections
import dataclasses
import datetime
import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from rightsizer.changes.record_codec import RECORDS, SNOOZE_ANNOTATION, STOPS
from rightsizer.config import PREFIX
from rightsizer.findings.evidence import is_batch
from rightsizer.inventory.gpu_requests import ResourceTable
from rightsizer.inventory.obstacles import occupant_of
from rightsizer.inventory.pods import gangs_of, needs_of, pod_of, requests_of
from rightsizer.inventory.unschedulable_pods import host_ports, placement_veto, volume_claims
from rightsizer.kinds import row_of
from rightsizer.kinds.change_edits import as_read
from rightsizer.kinds.core import POD
from rightsizer.kinds.kind import Steering
from rightsizer.kube.api_objects import DisruptionBudget, PodObject
from rightsizer.model import Decision, FoundChange, Plan, Pod, Workload
from rightsizer.planning.budget import within_budgets
from rightsizer.planning.pending_demand import without_demand
from rightsizer.planning.victims import needed
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.rule import UNUSED
from rightsizer.policy.schema import Policy

_ENDED = frozenset({"Succeeded", "Failed"})
_BEGINNING = datetime.datetime.min.replace(tzinfo=datetime.UTC)
HIGHEST_SCORE = 10
"""Highest score of a node (MaxExtenderPriority)."""
_BACKOFF_LIMIT = 6
"""Backoff limit of a Job that names none (batch/v1)."""
_MOST_BUDGETS = 16
"""PodDisruptionBudgets of one pod that are counted; one with more is never named."""
_MOST_SCORED = 32
"""Combinations of GPU resources whose scores are kept."""

Amounts = Mapping[str, int]
Standing = tuple[int, float, float, str]
"""Sort key: lowest priority, least work at risk, least utilization, UID."""


# --- Candidates: what a plan lets be preempted


@dataclasses.dataclass(frozen=True, slots=True)
class Preemptible:
    """Pods of one workload on one node that may be preempted, together.

    Attributes:
        labels: The labels by which rules of the policy match.
        may_opt_out: Whether the policy respects opt-outs.
    """

    decision: Decision
    pods: tuple[Pod, ...]
    labels: frozenset[str] = frozenset()
    may_opt_out: bool = True

    @property
    def standing(self) -> Standing:
        """Sort key: the workload with the lowest is taken first."""
        finding = self.decision.finding
        mean = 1.0 if finding.activity_mean is None else finding.activity_mean
        return self.decision.workload.priority, self.decision.gpu_hours_at_risk, mean, self.uid

    @property
    def uid(self) -> str:
        """The UID of its first pod."""
        return min(pod.ref.uid for pod in self.pods)


def candidates_of(
    plan: Plan, policy: Policy, *, own: str, instance: str, named: Iterable[FoundChange] = ()
) -> tuple[Preemptible, ...]:
    """Workloads that may be preempted: those that the plan's rules would stop now, within the budgets.

    `named` are earlier preemptions that the plan does not know of; they are charged to the budgets.
    """
    if plan.fleet is None:
        return ()
    fleet = dataclasses.replace(plan.fleet, changes=(*plan.fleet.changes, *named))
    evaluator = PolicyEvaluator(policy, fleet, at=plan.at, own=own, instance=instance)
    # The scheduler asks for one pod: what others would have needed, and budgets kept from them, is no concern of it.
    free = tuple(map(without_demand, plan.decisions))
    stored = {
        change.ref.uid for change in fleet.changes if change.ref.kind == POD.kind and change.is_in_effect
    }
    labels = frozenset(key for rule in policy.rules for key in rule.match.labels or ())
    return tuple(
        dataclasses.replace(candidate, labels=labels, may_opt_out=policy.respectOptOut)
        for decision in within_budgets(free, evaluator)
        if _frees_all(decision)
        for candidate in _units(decision, stored)
    )


def _frees_all(decision: Decision) -> bool:
    finding = decision.finding
    is_stopped = decision.is_enforced and decision.action in STOPS
    return is_stopped and finding.name in UNUSED and finding.proposal is None


def _units(decision: Decision, stored: Collection[str]) -> Iterator[Preemptible]:
    """Replicas of a ReplicaSet or Deployment singly; any other workload only whole, on one node."""
    workload = decision.workload
    holding, row = workload.holding, row_of(workload)
    if row is None or not holding:
        return
    if row is POD and workload.ref.uid not in stored:
        return  # nothing would bring it back
    if is_batch(workload) and row is not POD and not _may_lose_pods(workload):
        return
    if row.steering is Steering.DELETION_COST:
        for pod in holding:
            yield Preemptible(decision, (pod,))
    elif len({pod.node for pod in holding}) == 1:
        yield Preemptible(decision, holding)


def _may_lose_pods(workload: Workload) -> bool:
    """Whether a Job makes pods again in place of preempted ones: these count as failed, and may fail it for good."""
    obj = as_read(workload)
    if obj is None or (workload.ref.api_version, workload.ref.kind) != ("batch/v1", "Job"):
        return False
    spec = obj["spec"]
    limit = spec.get("backoffLimit", _BACKOFF_LIMIT)
    is_plain = not (spec.get("podFailurePolicy") or "backoffLimitPerIndex" in spec)
    return is_plain and type(limit) is int and limit > len(workload.holding)


# --- The cluster as it is now


@dataclasses.dataclass(frozen=True, slots=True)
class BoundPod:
    """A pod on a node.

    Attributes:
        requests: All resources, in the units of `requests_of`.
        repels: Whether its anti-affinity may keep other pods off the node.
        has_volumes: Whether its PersistentVolumeClaims may keep pods with some off.
        is_in_gang: Whether it belongs to a gang.
        gpu_pod: Its details; None without GPUs.
    """

    uid: str
    namespace: str
    name: str
    node: str
    priority: int
    requests: Amounts
    labels: Mapping[str, str]
    began: datetime.datetime
    repels: bool = False
    has_volumes: bool = False
    is_in_gang: bool = False
    gpu_pod: Pod | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Preemptor:
    """The pending pod.

    Attributes:
        is_plain: Whether free resources alone decide on which of the offered nodes it fits.
        has_volumes: Whether it has PersistentVolumeClaims.
    """

    uid: str
    namespace: str
    name: str
    priority: int
    requests: Amounts
    is_plain: bool
    has_volumes: bool = False

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def bound_pod(pod: PodObject, resources: ResourceTable) -> BoundPod | None:
    """A pod as it is watched; None if it takes nothing from a node."""
    spec, metadata = pod.spec, pod.metadata
    if not spec.node_name or pod.status.phase in _ENDED:
        return None
    request = resources.request_of(pod)
    return BoundPod(
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        node=spec.node_name,
        priority=spec.priority or 0,
        requests=requests_of(pod),
        labels=metadata.labels or {},
        began=metadata.creation_timestamp or _BEGINNING,
        repels=_has(_repulsion, pod),
        has_volumes=_has(volume_claims, pod),
        is_in_gang=bool(request) and bool(gangs_of(pod)),
        gpu_pod=pod_of(pod, request, needs_of(pod, resources)) if request else None,
    )


def _has(read: Callable[[PodObject], object], pod: PodObject) -> bool:
    """Whether a pod has any of these; true if that cannot be read."""
    try:
        return bool(read(pod))
    except msgspec.DecodeError:
        return True


def _repulsion(pod: PodObject) -> object:
    """The required anti-affinity."""
    found = occupant_of(pod, pod.spec.node_name)
    return found and found.terms


def _placement_rules(pod: PodObject) -> object:
    """Conditions other than free resources that decide where it fits."""
    return pod.spec.resource_claims or placement_veto(pod.spec) or host_ports(pod.spec)


def preemptor_of(pod: PodObject) -> Preemptor:
    """The pending pod."""
    spec, metadata = pod.spec, pod.metadata
    return Preemptor(
        metadata.uid,
        metadata.namespace,
        metadata.name,
        spec.priority or 0,
        requests_of(pod),
        is_plain=not _has(_placement_rules, pod),
        has_volumes=_has(volume_claims, pod),
    )


@dataclasses.dataclass(slots=True)
class _NodeState:
    """A node: what it offers, and what its pods request of it.

    Attributes:
        nominated: Pending pods that the scheduler keeps room for, by UID: priority and requests.
        candidates: In the order of their standing, of which `first` is the first.
    """

    allocatable: Amounts = dataclasses.field(default_factory=dict)
    pods: dict[str, BoundPod] = dataclasses.field(default_factory=dict)
    requested: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    nominated: dict[str, tuple[int, Amounts]] = dataclasses.field(default_factory=dict)
    candidates: list[Preemptible] = dataclasses.field(default_factory=list)
    first: Standing | None = None

    def left(self, preemptor: Preemptor) -> dict[str, int]:
        """Amounts left beside a pod of each resource that it requests; negative where it lacks some."""
        kept = [
            amounts
            for uid, (priority, amounts) in self.nominated.items()
            if priority >= preemptor.priority and uid != preemptor.uid
        ]
        return {
            name: self.allocatable.get(name, 0)
            - self.requested[name]
            - amount
            - sum(amounts.get(name, 0) for amounts in kept)
            for name, amount in preemptor.requests.items()
            if amount
        }


_UNKNOWN_NODE = _NodeState()


class PreemptionTable:
    """Nodes, their pods and the candidates of the last plan, kept up to date by watches."""

    def __init__(self) -> None:
        self._nodes: dict[str, _NodeState] = {}
        self._places: dict[str, str] = {}  # of bound and nominated pods, by UID
        self._pods = collections.defaultdict[str, dict[str, BoundPod]](dict)  # on nodes, by namespace and UID
        self._budgets = collections.defaultdict[str, dict[str, DisruptionBudget]](dict)
        self._budgets_of: dict[str, set[str]] = {}  # names of those that select a pod, by its UID
        self._scores: dict[tuple[str, ...], dict[str, int]] = {}  # by the GPUs asked for, and node

    def set_node(self, name: str, allocatable: Amounts) -> None:
        """Add or change a node."""
        self._changed(name).allocatable = allocatable

    def drop_node(self, name: str) -> None:
        """Remove a node."""
        self._changed(name).allocatable = {}

    def set_pod(self, pod: BoundPod) -> None:
        """Add or change a pod on a node."""
        before, selecting = self._pods[pod.namespace].get(pod.uid), self._budgets_of.get(pod.uid)
        self.drop_pod(pod.uid)
        if before is None or selecting is None or before.labels != pod.labels:
            budgets = self._budgets[pod.namespace].items()
            selecting = {name for name, budget in budgets if _selects(budget, pod)}
        self._pods[pod.namespace][pod.uid], self._budgets_of[pod.uid] = pod, selecting
        node = self._changed(pod.node)
        node.pods[pod.uid] = pod
        node.requested.update(pod.requests)
        self._places[pod.uid] = pod.node

    def nominate(self, uid: str, node: str, priority: int, requests: Amounts) -> None:
        """Keep room on a node for a pending pod."""
        self.drop_pod(uid)
        self._nodes.setdefault(node, _NodeState()).nominated[uid] = (priority, requests)
        self._places[uid] = node

    def drop_pod(self, uid: str) -> None:
        """Remove a pod."""
        name = self._places.pop(uid, None)
        if name is None:
            return
        node = self._changed(name)
        node.nominated.pop(uid, None)
        if (pod := node.pods.pop(uid, None)) is not None:
            node.requested.subtract(pod.requests)
            del self._pods[pod.namespace][uid], self._budgets_of[uid]

    def set_budget(self, budget: DisruptionBudget) -> None:
        """Add or change a PodDisruptionBudget; its selector is evaluated now, so that no question waits for it."""
        namespace, name = budget.metadata.namespace, budget.metadata.name
        before, self._budgets[namespace][name] = self._budgets[namespace].get(name), budget
        if before is not None and before.spec == budget.spec:
            return
        for pod in self._pods[namespace].values():
            (set.add if _selects(budget, pod) else set.discard)(self._budgets_of[pod.uid], name)

    def drop_budget(self, namespace: str, name: str) -> None:
        """Remove a PodDisruptionBudget."""
        self._budgets[namespace].pop(name, None)
        for uid in self._pods[namespace]:
            self._budgets_of[uid].discard(name)

    def set_candidates(self, candidates: Iterable[Preemptible]) -> None:
        """Replace the candidates by those of a new plan."""
        self._scores.clear()
        for node in self._nodes.values():
            node.candidates, node.first = [], None
        for unit in sorted(candidates, key=lambda unit: unit.standing):
            node = self._nodes.setdefault(unit.pods[0].node, _NodeState())
            node.candidates.append(unit)
            node.first = node.first or unit.standing

    def node(self, name: str) -> _NodeState:
        """A node; an empty one if it is unknown."""
        return self._nodes.get(name) or _UNKNOWN_NODE

    def violating(self, pods: Iterable[BoundPod]) -> set[str]:
        """Pods that a PodDisruptionBudget does not allow to end, taken one after another, by UID."""
        left: dict[tuple[str, str], int] = {}
        found = set()
        for pod in pods:
            names = self._budgets_of[pod.uid]
            if len(names) > _MOST_BUDGETS:
                found.add(pod.uid)
                continue
            for name in names:
                status = self._budgets[pod.namespace][name].status
                if pod.name in (status.disrupted_pods or ()):
                    continue  # the API server has counted it
                key = (pod.namespace, name)
                left[key] = left.get(key, status.disruptions_allowed) - 1
                if left[key] < 0:
                    found.add(pod.uid)
        return found

    def scores(self, preemptor: Preemptor, nodes: Iterable[str], resources: ResourceTable) -> list[int]:
        """Scores by use of the GPUs that a pod requests on each node, 0 to 10; GPUs held idle count by half.

        So pods are packed on nodes that are in use, and nodes with idle GPUs become empty.
        """
        gpus = tuple(sorted(name for name in preemptor.requests if resources.unit(name) is not None))
        if len(self._scores) >= _MOST_SCORED and gpus not in self._scores:
            self._scores.clear()
        known = self._scores.setdefault(gpus, {})
        return [
            score
            if (score := known.get(name)) is not None
            else known.setdefault(name, self._score(name, gpus))
            for name in nodes
        ]

    def _score(self, name: str, gpus: Sequence[str]) -> int:
        node = self.node(name)
        total = sum(node.allocatable.get(gpu, 0) for gpu in gpus)
        if not total:
            return 0
        held = sum(node.requested[gpu] for gpu in gpus)
        idle = sum(
            pod.requests.get(gpu, 0)
            for unit in node.candidates
            for planned in unit.pods
            if (pod := node.pods.get(planned.ref.uid)) is not None
            for gpu in gpus
        )
        return min(HIGHEST_SCORE, int(HIGHEST_SCORE * (held - idle / 2) / total))

    def _changed(self, name: str) -> _NodeState:
        """A node that is about to change."""
        for known in self._scores.values():
            known.pop(name, None)
        return self._nodes.setdefault(name, _NodeState())


def _selects(budget: DisruptionBudget, pod: BoundPod) -> bool:
    selector = budget.spec.selector
    return selector is not None and selector.selects(pod.labels)


# --- The answer


class Answer(enum.StrEnum):
    """Kind of the answer to a question about victims."""

    REPLACED = "replaced"
    """Idle pods are named."""
    UNCHANGED = "unchanged"
    """No idle pods would do."""
    UNKNOWN = "unknown"
    """Whether other victims would do cannot be known."""
    REPEATED = "repeated"
    """Pods were named for this one before, and it did not start."""


@dataclasses.dataclass(frozen=True, slots=True)
class Victims:
    """Victims on one node, by UID, those of the highest priority first."""

    uids: tuple[str, ...]
    violations: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class VictimChoice:
    """The victims by node that kube-scheduler is to choose from.

    Attributes:
        named: The candidates among them, if they were chosen here; then those that the plan's budgets were charged for.
    """

    answer: Answer
    victims: Mapping[str, Victims]
    named: tuple[Preemptible, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class _NodeVictims:
    """The least harmful victims on a node.

    Attributes:
        others: Those that are no candidates, of those that the scheduler chose.
    """

    node: str
    taken: tuple[Preemptible, ...]
    others: tuple[BoundPod, ...]
    victims: Victims

    @property
    def harm(self) -> tuple[int, list[Standing], int, str]:
        """Sort key: fewest busy pods, then the standing of the candidates, the worst first."""
        worst = sorted((unit.standing for unit in self.taken), reverse=True)
        return len(self.others), worst, len(self.victims.uids), self.node


def choose(preemptor: Preemptor, offered: Mapping[str, Victims], table: PreemptionTable) -> VictimChoice:
    """Name idle pods instead of the offered victims, on one node, if they make room; else return what was offered."""
    if not preemptor.is_plain:
        return VictimChoice(Answer.UNKNOWN, offered)
    best = _least_harmful(preemptor, offered, table)
    if best is None or not any(
        _busy(name, victims, table) > len(best.others) for name, victims in offered.items()
    ):
        return VictimChoice(Answer.UNCHANGED, offered)
    return VictimChoice(Answer.REPLACED, {best.node: best.victims}, best.taken)


def _least_harmful(
    preemptor: Preemptor, offered: Mapping[str, Victims], table: PreemptionTable
) -> _NodeVictims | None:
    """The best node; looks at those with the best candidates first, and only as long as a better one is possible."""
    nodes = sorted((first, name) for name in offered if (first := table.node(name).first) is not None)
    best: _NodeVictims | None = None
    for first, name in nodes:
        if best is not None and best.harm[:2] <= (0, [first]):
            break
        found = _on_node(preemptor, name, offered[name], table)
        if found is not None and (best is None or found.harm < best.harm):
            best = found
    return best


def _busy(name: str, victims: Victims, table: PreemptionTable) -> int:
    node = table.node(name)
    candidates = {pod.ref.uid for unit in node.candidates if _holds(unit, node) for pod in unit.pods}
    return len(set(victims.uids) - candidates)


def _holds(candidate: Preemptible, node: _NodeState) -> bool:
    """Whether its pods are on the node as they were at the plan."""
    return all(
        (pod := node.pods.get(planned.ref.uid)) is not None
        and not (pod.is_in_gang and len(candidate.decision.workload.holding) > len(candidate.pods))
        and _is_as_planned(planned, pod.gpu_pod, candidate)
        for planned in candidate.pods
    )


def _is_as_planned(planned: Pod, now: Pod | None, candidate: Preemptible) -> bool:
    """Whether nobody opted it out, restarted or deleted it since.

    Other labels and annotations count for nothing: a tenant could make a busy pod of another go by writing one.
    """
    return (
        now is not None
        and not now.is_terminating
        and now.priority == planned.priority
        and all(now.labels.get(key) == planned.labels.get(key) for key in candidate.labels)
        and (not candidate.may_opt_out or _wishes(now) == _wishes(planned))
        and (now.started, now.restarts) == (planned.started, planned.restarts)
    )


def _wishes(pod: Pod) -> Mapping[str, str]:
    """The annotations of a pod by which it may be opted out."""
    return {
        key: text
        for key, text in pod.annotations.items()
        if key[: len(PREFIX)].lower() == PREFIX and (key not in RECORDS or key == SNOOZE_ANNOTATION)
    }


def _on_node(
    preemptor: Preemptor, name: str, offered: Victims, table: PreemptionTable
) -> _NodeVictims | None:
    """Candidates on a node that make room, filled up with offered victims; None if none do, or that is unknown."""
    node = table.node(name)
    if not node.candidates or any(uid not in node.pods for uid in offered.uids):
        return None
    left, theirs = node.left(preemptor), [node.pods[uid] for uid in offered.uids]
    if not _lacking(left, ()) or _lacking(left, theirs):
        return None  # something else than these resources keeps it off
    taken, others = _enough(preemptor, node, left, theirs, table)
    if not taken:
        return None
    own = _pods_of(taken, node)
    named, pods = {pod.uid for pod in own}, [*own, *others]
    staying = (pod for pod in theirs if pod not in pods)
    if any(pod.repels or (pod.has_volumes and preemptor.has_volumes) for pod in staying):
        return None
    against = table.violating([*others, *own])
    if not named.isdisjoint(against):
        return None
    ordered = sorted(pods, key=lambda pod: (-pod.priority, pod.began, pod.uid))
    return _NodeVictims(name, taken, others, Victims(tuple(pod.uid for pod in ordered), len(against)))


def _enough(
    preemptor: Preemptor,
    node: _NodeState,
    left: Amounts,
    theirs: Sequence[BoundPod],
    table: PreemptionTable,
) -> tuple[tuple[Preemptible, ...], tuple[BoundPod, ...]]:
    """Candidates in their order, then the scheduler's own victims from the least important on, until the pod fits.

    Then those without which it also fits are left out: first the scheduler's own.
    """
    taken: list[Preemptible] = []
    pods: list[BoundPod] = []
    for unit in node.candidates:
        lacking, own = _lacking(left, pods), _pods_of([unit], node)
        if not lacking:
            break
        is_lower = all(pod.priority < preemptor.priority for pod in own) and _holds(unit, node)
        helps = any(pod.requests.get(name) for pod in own for name in lacking)
        if is_lower and helps and not table.violating([*pods, *own]):
            taken.append(unit)
            pods += own
    rest: list[BoundPod] = []
    for pod in reversed([pod for pod in theirs if pod not in pods]):
        if not _lacking(left, [*pods, *rest]):
            break
        rest.append(pod)
    rest = needed(rest, lambda fewer: not _lacking(left, [*pods, *fewer]))
    taken = needed(taken, lambda fewer: not _lacking(left, [*_pods_of(fewer, node), *rest]))
    return tuple(taken), tuple(rest)


def _pods_of(candidates: Iterable[Preemptible], node: _NodeState) -> list[BoundPod]:
    return [node.pods[pod.ref.uid] for unit in candidates for pod in unit.pods if pod.ref.uid in node.pods]


def _lacking(left: Amounts, gone: Collection[BoundPod]) -> list[str]:
    """The resources of which a pod still lacks some after these have gone."""
    return [
        name for name, amount in left.items() if amount + sum(pod.requests.get(name, 0) for pod in gone) < 0
    ]
