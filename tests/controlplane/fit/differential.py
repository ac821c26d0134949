"""Compares who is stopped for pending pods with kube-scheduler: the pod must fit once its victims are gone."""

import dataclasses
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rightsizer.inventory.objects_file import read_file
from rightsizer.inventory.workload_builder import build_fleet
from rightsizer.model import Action, Decision, FindingName, Fleet, Mode, Verdict, Workload
from rightsizer.planning.budget import BudgetAccount
from rightsizer.planning.pending_demand import limit_to_pending_demand, unserved_demand
from rightsizer.planning.victims import gone_victims
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.limits import Budget, BudgetScope, Per
from rightsizer.policy.rule import ACTIONS
from tests.controlplane.fit import scheduler
from tests.controlplane.fit.clusters import cluster_of
from tests.controlplane.fit.scheduler import Question, Scheduler
from tests.rightsizer.build import AT, judged, policy, rule

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
        reasons: Why it does not, by node.
    """

    seed: int
    features: tuple[str, ...]
    stopped: frozenset[str]
    why_not: str
    fits: bool
    reasons: Mapping[str, Sequence[str]]
    message: str

    @property
    def is_in_vain(self) -> bool:
        """Whether pods are stopped for one that does not fit then."""
        return bool(self.stopped) and not self.fits

    @property
    def is_missed(self) -> bool:
        """Whether none are stopped for a pod that would fit."""
        return not self.stopped and self.fits


# --- gpu-rightsizer's side


def victims_of(objects: Sequence[Object]) -> tuple[frozenset[str], str]:
    """UIDs of the pods that are stopped if all pods of the Deployments named idle-… are idle; else why none are."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": objects}))
        file.flush()
        fleet = build_fleet(read_file(Path(file.name)))
    evaluator = PolicyEvaluator(_RULES, fleet, at=AT)
    decisions = [_idle(one) for one in fleet.workloads if one.ref.name.startswith("idle-")]
    limited = limit_to_pending_demand(decisions, evaluator, BudgetAccount(evaluator))
    stopped = frozenset(
        pod.ref.uid
        for decision in limited.decisions
        if decision.wanted_by and not decision.blockers
        for victim in gone_victims(decision)
        for pod in victim.pods
    )
    return stopped, "" if stopped else _why_not(fleet, evaluator, limited.cut_short)


def _why_not(fleet: Fleet, evaluator: PolicyEvaluator, cut_short: Mapping[str, Any]) -> str:
    told = [line.partition("no GPUs are freed for it: ")[2] for line in unserved_demand(evaluator, cut_short)]
    if told:
        return told[0]
    if not fleet.waiting:
        return "; ".join(fleet.problems[-1:]) or "does not wait"
    return "no victims found"


def _idle(item: Workload) -> Decision:
    """The decision to stop a workload of which all GPUs are idle."""
    plain = judged(item, {}, _RULES)
    finding = dataclasses.replace(
        plain.finding, name=FindingName.IDLE, verdict=Verdict.ACT, activity_mean=0.0, proposal=None
    )
    return dataclasses.replace(
        plain,
        finding=finding,
        verdict=Verdict.ACT,
        mode=Mode.ENFORCE,
        action=Action.SCALE_TO_ZERO,
        frees=float(item.gpus),
    )


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


# --- The comparison


def compare(plugins: Scheduler, seeds: Sequence[int]) -> Iterator[Case]:
    """What both sides say of the clusters in which a pod waits."""
    for begin in range(0, len(seeds), _BATCH):
        batch = seeds[begin : begin + _BATCH]
        clusters = [cluster_of(seed) for seed in batch]
        before = plugins.ask(Question(one.objects, one.pod, is_first=True) for one in clusters)
        waiting = [
            (seed, cluster, _pending(verdict.objects, cluster.pod, verdict), verdict.message)
            for seed, cluster, verdict in zip(batch, clusters, before, strict=True)
            if verdict.message
        ]
        ours = [victims_of(objects) for _, _, objects, _ in waiting]
        after = plugins.ask(
            Question(without(objects, stopped or idle_pods(objects)), cluster.pod)
            for (_, cluster, objects, _), (stopped, _) in zip(waiting, ours, strict=True)
        )
        for (seed, cluster, _, message), (stopped, why_not), verdict in zip(
            waiting, ours, after, strict=True
        ):
            reasons = verdict.nodes if verdict.message else {}
            yield Case(seed, cluster.features, stopped, why_not, not verdict.message, reasons, message)
