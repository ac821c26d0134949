"""Compares who is stopped for pending pods with kube-scheduler: the pod must fit once its victims are gone."""

import dataclasses
import datetime
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from rightsizer.inventory.gpu_requests import ResourceTable, amount_of
from rightsizer.inventory.objects_file import read_file
from rightsizer.inventory.workload_builder import build_fleet
from rightsizer.kinds import RECORDABLE_KINDS
from rightsizer.kube.api_objects import DisruptionBudget, PodObject
from rightsizer.model import Action, Decision, Fleet, Plan
from rightsizer.planning.budget import BudgetAccount
from rightsizer.planning.pending_demand import limit_to_pending_demand, unserved_demand
from rightsizer.planning.victims import whole_victim
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.limits import Budget, BudgetScope, Per
from rightsizer.policy.protections import OWN_NAMESPACE
from rightsizer.policy.rule import ACTIONS
from rightsizer_extender.preemption import (
    Answer,
    PreemptionTable,
    Victims,
    bound_pod,
    candidates_of,
    choose,
    preemptor_of,
)
from tests.controlplane.fit import scheduler
from tests.controlplane.fit.clusters import Cluster, cluster_of
from tests.controlplane.fit.scheduler import Question, Scheduler
from tests.rightsizer.build import AT, all_idle, judged, policy, rule

Object = dict[str, Any]
_BATCH = 200
_NO_LIMITS = [Budget(scope=scope, per=per, workloads=10**6) for scope in BudgetScope for per in Per]
_RULES = policy(
    rule("demand", actions=ACTIONS, onlyForPendingPods=[Action.SCALE_TO_ZERO, Action.SCALE_DOWN]),
    budgets=_NO_LIMITS,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One cluster, and what both sides say.

    Attributes:
        stopped: UIDs of the pods that are stopped for the pending one.
        why_not: Why none are.
        fits: Whether the pod fits somewhere without these, or without all idle pods if none are stopped.
        reasons: Why it does not, by node of what is stopped.
        message: What the scheduler said before.
        named: Whether the extender names victims of its own.
        against: Why the pod does not fit on the node of these once they are gone.
    """

    seed: int
    features: tuple[str, ...]
    stopped: frozenset[str]
    why_not: str
    fits: bool
    reasons: Mapping[str, Sequence[str]]
    message: str
    named: bool
    against: Sequence[str]

    @property
    def is_in_vain(self) -> bool:
        """Whether pods are stopped for one that does not fit then."""
        return bool(self.stopped) and not self.fits

    @property
    def is_named_in_vain(self) -> bool:
        """Whether the same is so of what the extender names."""
        return bool(self.against)

    @property
    def is_missed(self) -> bool:
        """Whether none are stopped for a pod that would fit, but for budgets and what ends anyway."""
        return not self.stopped and self.fits and {"budget", "terminating"}.isdisjoint(self.features)


# --- gpu-rightsizer's side


def _fleet(objects: Sequence[Object]) -> Fleet:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": objects}))
        file.flush()
        return build_fleet(read_file(Path(file.name), RECORDABLE_KINDS))


def _decisions(fleet: Fleet) -> tuple[Decision, ...]:
    """All pods of the Deployments named idle-… are idle."""
    idle = [one for one in fleet.workloads if one.ref.name.startswith("idle-")]
    return tuple(judged(one, all_idle(one), _RULES) for one in idle)


def victims_of(fleet: Fleet) -> tuple[frozenset[str], str]:
    """UIDs of the pods that a plan stops for what waits; else why none are."""
    evaluator = PolicyEvaluator(_RULES, fleet, at=AT)
    limited = limit_to_pending_demand(_decisions(fleet), evaluator, BudgetAccount(evaluator))
    stopped = frozenset(
        pod.ref.uid
        for decision in limited.decisions
        if decision.wanted_by and not decision.blockers
        for pods in [pods for _, pods, _ in decision.going] or [whole_victim(decision).pods]
        for pod in pods
    )
    return stopped, "" if stopped else _why_not(fleet, evaluator, limited.cut_short)


def named_by_extender(
    fleet: Fleet, objects: Sequence[Object], pod: str, offered: Mapping[str, Object]
) -> tuple[str, frozenset[str]] | None:
    """The node and the UIDs that the extender names in place of the offered victims; None if it names none."""
    table = PreemptionTable()
    pending: PodObject | None = None
    for item in objects:
        if item["kind"] == "Node":
            amounts = item["status"]["allocatable"]
            table.set_node(
                item["metadata"]["name"], {name: amount_of(name, amounts[name]) for name in amounts}
            )
        elif item["kind"] == "PodDisruptionBudget":
            table.set_budget(msgspec.convert(item, DisruptionBudget, strict=False))
        elif item["kind"] == "Pod":
            one = msgspec.json.decode(msgspec.json.encode(item), type=PodObject)
            if f"{one.metadata.namespace}/{one.metadata.name}" == pod:
                pending = one
            elif (bound := bound_pod(one, ResourceTable())) is not None:
                table.set_pod(bound)
            elif one.status.nominated_node_name:
                asked = preemptor_of(one)
                table.nominate(asked.uid, one.status.nominated_node_name, asked.priority, asked.requests)
    plan = Plan(AT, "run", "", "", _decisions(fleet), fleet=fleet)
    table.set_candidates(candidates_of(plan, _RULES, own=OWN_NAMESPACE, instance="i"))
    assert pending is not None
    victims = {node: Victims(tuple(one["pods"]), one["violations"]) for node, one in offered.items()}
    choice = choose(preemptor_of(pending), victims, table)
    if choice.answer is not Answer.REPLACED:
        return None
    ((node, named),) = choice.victims.items()
    return node, frozenset(named.uids)


def _why_not(fleet: Fleet, evaluator: PolicyEvaluator, cut_short: Mapping[str, Any]) -> str:
    told = [line.partition("no GPUs are freed for it: ")[2] for line in unserved_demand(evaluator, cut_short)]
    if told:
        return told[0]
    if not fleet.waiting:
        return next((one for one in fleet.problems if "urgent" in one), "not known to wait")
    return "no victims found"


# --- The cluster after


def without(objects: Sequence[Object], gone: Collection[str]) -> list[Object]:
    """The objects once these pods are gone, and their claims are released, as controllers do."""
    left: list[Object] = []
    for item in objects:
        metadata = item["metadata"]
        owners = {owner["uid"] for owner in metadata.get("ownerReferences") or ()}
        if metadata.get("uid") in gone or not owners.isdisjoint(gone):
            continue
        users = (item.get("status") or {}).get("reservedFor") if item["kind"] == "ResourceClaim" else None
        if users and any(one["uid"] in gone for one in users):
            staying = [one for one in users if one["uid"] not in gone]
            status = {**item["status"], "reservedFor": staying} if staying else {}
            item = {**item, "status": status}  # noqa: PLW2901 - the same object, later
        left.append(item)
    return left


def idle_pods(objects: Sequence[Object]) -> frozenset[str]:
    """UIDs of all pods that may be stopped."""
    return frozenset(
        item["metadata"]["uid"]
        for item in objects
        if item["kind"] == "Pod" and item["metadata"]["name"].startswith("idle-")
    )


def _pending(objects: Sequence[Object], pod: str, verdict: scheduler.Verdict) -> list[Object]:
    """The objects with the condition that the scheduler writes."""
    found = []
    for item in objects:
        if item["kind"] == "Pod" and f"{item['metadata']['namespace']}/{item['metadata']['name']}" == pod:
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": verdict.reason,
                "message": verdict.message,
            }
            item = {**item, "status": {**item["status"], "conditions": [condition]}}  # noqa: PLW2901 - the same, later
        found.append(item)
    return found


def ending_pods(objects: Sequence[Object]) -> frozenset[str]:
    """UIDs of pods that terminate and end soon: who is stopped counts on that."""
    ends = {item["metadata"].get("uid"): item["metadata"].get("deletionTimestamp") for item in objects}
    return frozenset(
        uid
        for uid, text in ends.items()
        if text and abs(datetime.datetime.fromisoformat(text) - AT) < datetime.timedelta(minutes=2)
    )


def _nodes_of(objects: Sequence[Object], uids: Collection[str]) -> set[str]:
    """The nodes of pods."""
    return {item["spec"]["nodeName"] for item in objects if item["metadata"].get("uid") in uids}


# --- The comparison


def compare(plugins: Scheduler, seeds: Sequence[int]) -> Iterator[Case]:
    """What both sides say of the clusters in which a pod waits."""
    for begin in range(0, len(seeds), _BATCH):
        batch = seeds[begin : begin + _BATCH]
        clusters = [cluster_of(seed) for seed in batch]
        before = plugins.ask(Question(one.objects, one.pod, is_first=True) for one in clusters)
        waiting = [
            _Waiting.of(seed, cluster, verdict)
            for seed, cluster, verdict in zip(batch, clusters, before, strict=True)
            if verdict.message
        ]
        questions = [question for one in waiting for question in one.questions]
        answers = iter(plugins.ask(questions))
        for one in waiting:
            yield one.case([next(answers) for _ in one.questions])


@dataclasses.dataclass(frozen=True, slots=True)
class _Waiting:
    """A cluster in which a pod waits, and what gpu-rightsizer does about it.

    Attributes:
        objects: As they are then.
    """

    seed: int
    cluster: Cluster
    objects: Sequence[Object]
    message: str
    stopped: frozenset[str]
    why_not: str
    named: tuple[str, frozenset[str]] | None

    @classmethod
    def of(cls, seed: int, cluster: Cluster, verdict: scheduler.Verdict) -> Self:
        """What gpu-rightsizer does about a pod that waits by this verdict."""
        objects = _pending(verdict.objects, cluster.pod, verdict)
        fleet = _fleet(objects)
        stopped, why_not = victims_of(fleet)
        named = named_by_extender(fleet, objects, cluster.pod, verdict.victims) if verdict.victims else None
        return cls(seed, cluster, objects, verdict.message, stopped, why_not, named)

    @property
    def questions(self) -> list[Question]:
        """Whether the pod fits without who is stopped, and without who is named."""
        gone = (self.stopped or idle_pods(self.objects)) | ending_pods(self.objects)
        found = [Question(without(self.objects, gone), self.cluster.pod)]
        if self.named is not None:
            found.append(Question(without(self.objects, self.named[1]), self.cluster.pod))
        return found

    def case(self, verdicts: Sequence[scheduler.Verdict]) -> Case:
        """Both sides."""
        after = verdicts[0]
        reasons = {node: after.nodes[node] for node in _nodes_of(self.objects, self.stopped)}
        against = verdicts[1].nodes[self.named[0]] if self.named is not None else ()
        return Case(
            self.seed,
            self.cluster.features,
            self.stopped,
            self.why_not,
            not after.message,
            reasons,
            self.message,
            self.named is not None,
            against,
        )
