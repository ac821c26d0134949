"""Plans and outcomes as documents for programs: plain values in a fixed order, written as JSON or YAML. Pure.

The schema is docs/plan.schema.json; a test holds the two together.
"""

import datetime
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import yaml

from rightsizer.config import FIELD_MANAGER
from rightsizer.kinds.advice import exception_for
from rightsizer.kinds.patches import UndoItem
from rightsizer.model import (
    Autoscalers,
    Blocker,
    ClusterName,
    Decision,
    Effect,
    Finding,
    Outcome,
    Plan,
    Proposal,
    Stranded,
    Verdict,
)
from rightsizer.model.gpu_fractions import gpus_of_node
from rightsizer.planning.cost_summary import CostSummary, CostTotals
from rightsizer.planning.emptied_nodes import EmptiedNode, emptied_nodes
from rightsizer.prices import Prices
from rightsizer.report.rows import Row, node_cost, rows_of
from rightsizer.text import safe_lines

API_VERSION = "gpu-rightsizer.io/v1alpha1"


def plan_document(plan: Plan, accounts: CostSummary, prices: Prices) -> dict[str, Any]:
    """A plan, with every GPU workload under `items`."""
    return {**plan_frame(plan, accounts, prices), "items": list(map(_item, rows_of(plan, prices)))}


def plan_frame(plan: Plan, accounts: CostSummary, prices: Prices) -> dict[str, Any]:
    """Everything but the items, which come last."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Plan",
        "metadata": {
            "run": plan.run,
            "at": stamp(plan.at),
            "cluster": _cluster(plan.cluster),
            "filter": plan.filter or None,
            "policy": {"source": plan.policy_source, "sha256": plan.policy_hash},
            "generator": FIELD_MANAGER,
        },
        "hypothetical": plan.hypothetical or None,
        "problems": list(plan.problems),
        "totals": {**_totals(plan.decisions), **_costs(accounts), "prices": _prices(accounts, prices)},
        "nodes": {"emptied": [_emptied_node(emptied, prices) for emptied in emptied_nodes(plan)]},
        "stranded": [_stranded(stranded) for stranded in plan.fleet.stranded] if plan.fleet else [],
    }


def _emptied_node(emptied: EmptiedNode, prices: Prices) -> dict[str, Any]:
    return {
        "node": emptied.node.name,
        "gpus": _rounded(gpus_of_node(emptied.node)),
        "costPerHour": _rounded(node_cost(emptied.node, prices)),
        "autoscaler": emptied.node.autoscaler.value if emptied.node.autoscaler else None,
        "keptBy": emptied.kept_by or None,
        "otherPods": emptied.other_pods,
    }


def _cluster(cluster: ClusterName | None) -> dict[str, Any] | None:
    """Context and API server; null where the objects are from a file."""
    if cluster is None:
        return None
    return {"context": cluster.context or None, "server": cluster.server, "inCluster": cluster.is_inside}


def plan_json(plan: Plan, accounts: CostSummary, prices: Prices) -> str:
    """The plan's document as JSON."""
    return "".join(plan_pieces(plan, accounts, prices))


def plan_pieces(plan: Plan, accounts: CostSummary, prices: Prices) -> Iterator[str]:
    """The same item by item: all of a large fleet's at once are several times their text."""
    yield render(plan_frame(plan, accounts, prices), "json").removesuffix("\n}\n") + ',\n  "items": ['
    before = "\n    "
    for row in rows_of(plan, prices):
        yield before + render(_item(row), "json").rstrip("\n").replace("\n", "\n    ")
        before = ",\n    "
    yield "\n  ]\n}\n" if plan.decisions else "]\n}\n"


def plan_yaml(plan: Plan, accounts: CostSummary, prices: Prices) -> str:
    """The plan's document as YAML."""
    return render(plan_document(plan, accounts, prices), "yaml")


def _totals(decisions: Sequence[Decision]) -> dict[str, Any]:
    by_verdict = {
        verdict.value: {
            "workloads": sum(decision.verdict is verdict for decision in decisions),
            "gpus": _gpus(decision for decision in decisions if decision.verdict is verdict),
        }
        for verdict in Verdict
    }
    enforced = [decision for decision in decisions if decision.is_enforced]
    return {
        "workloads": len(decisions),
        "gpus": _gpus(decisions),
        "verdicts": by_verdict,
        "enforced": {
            "workloads": len(enforced),
            "gpus": _gpus(enforced),
        },
    }


def _gpus(decisions: Iterable[Decision]) -> float | None:
    return _rounded(sum(decision.workload.gpus for decision in decisions))


def _costs(accounts: CostSummary) -> dict[str, Any]:
    """GPU-hours over the window, money for one hour."""
    return {
        "windowSeconds": round(accounts.window.total_seconds()),
        "fleet": _fleet(accounts),
        "account": _cost_totals(accounts.total),
        "byClass": _each(accounts.by_class),
        "byNamespace": _each(accounts.by_namespace),
        "byModel": _each(accounts.by_model),
        "byVerdict": _each(accounts.by_verdict),
    }


def _fleet(accounts: CostSummary) -> dict[str, Any] | None:
    """Whole GPUs of all nodes, held or free; null where no node is known."""
    if accounts.fleet is None:
        return None
    return {
        "gpus": _rounded(accounts.fleet),
        "held": _rounded(accounts.held),
        "free": _rounded(accounts.free),
    }


def _each(parts: Mapping[str, CostTotals]) -> dict[str, Any]:
    return {name: _cost_totals(account) for name, account in parts.items()}


def _cost_totals(account: CostTotals) -> dict[str, Any]:
    return {
        "workloads": account.workloads,
        "gpus": _rounded(account.gpus),
        "migInstancesAndShares": account.parts,
        "gpusUsed": _rounded(account.used),
        "gpusUnused": _rounded(account.unused),
        "gpusUnknown": _rounded(account.unknown),
        "gpuHoursHeld": _rounded(account.gpu_hours_held),
        "gpuHoursUsed": _rounded(account.gpu_hours_used),
        "gpuHoursUnknown": _rounded(account.gpu_hours_unknown),
        "reclaimable": _rounded(account.reclaimable),
        "enforced": _rounded(account.enforced),
        "costPerHour": _rounded(account.cost_per_hour),
        "wastedPerHour": _rounded(account.wasted_per_hour),
        "reclaimablePerHour": _rounded(account.reclaimable_per_hour),
        "enforcedPerHour": _rounded(account.enforced_per_hour),
        "unpricedPods": account.unpriced,
    }


def _prices(accounts: CostSummary, prices: Prices) -> dict[str, Any]:
    return {
        "currency": prices.currency,
        "source": prices.source,
        "date": prices.date,
        "nodesByOpenCost": len(prices.nodes),
        "sources": [
            {
                "source": source.name,
                "region": source.region or None,
                "date": source.date or None,
                "nodes": nodes,
                "nodesInOtherRegionsOrSpot": len(accounts.nodes_that_differ.get(source, ())),
            }
            for source, nodes in accounts.nodes_by_source.items()
        ],
    }


def _blocker(blocker: Blocker) -> dict[str, Any]:
    return {
        "code": blocker.code.value,
        "message": blocker.message,
        "until": blocker.until.isoformat() if blocker.until else None,
    }


def _stranded(stranded: Stranded) -> dict[str, Any]:
    return {
        "node": stranded.node,
        "resource": stranded.resource,
        "free": stranded.free,
        "reasons": list(stranded.reasons),
        "waiting": list(map(str, stranded.waiting)),
    }


def _item(row: Row) -> dict[str, Any]:
    decision, finding = row.decision, row.decision.finding
    return {
        **_identity(row),
        "verdict": decision.verdict.value,
        "finding": finding.name.value,
        "confidence": finding.confidence.value,
        "rule": decision.rule,
        "mode": decision.mode.value,
        "action": row.action or None,
        "frees": _rounded(row.frees),
        "proposal": _proposal(finding.proposal),
        "command": decision.command or None,
        "lost": decision.lost or None,
        "gpuHoursAtRisk": _rounded(decision.gpu_hours_at_risk),
        "gpuHoursLost": _rounded(decision.gpu_hours_lost),
        "along": [str(ref) for ref in decision.along],
        "blockers": [_blocker(blocker) for blocker in decision.blockers],
        "reasons": [blocker.message for blocker in decision.restrictions],
        "evidence": _evidence(finding),
        "coverage": round(finding.coverage, 4),
        "idleSeconds": _seconds(finding.idle_s),
        "longestReturnSeconds": _seconds(finding.longest_return_s),
        "also": [_also(other) for other in decision.also],
        "autoscaling": _autoscaling(decision.autoscalers),
        "notice": _notice(decision),
        "wantedBy": list(map(str, decision.wanted_by)),
    }


def _notice(decision: Decision) -> dict[str, Any] | None:
    if decision.announced is None or decision.due is None:
        return None
    return {"action": decision.announced.value, "due": stamp(decision.due)}


def _autoscaling(autoscalers: Autoscalers | None) -> dict[str, Any] | None:
    """Ready to be applied; one of the two if both are there."""
    if autoscalers is None:
        return None
    return {
        "lowest": autoscalers.lowest,
        "highest": autoscalers.highest,
        "replaces": autoscalers.replaces or None,
        "scaledObject": autoscalers.scaled_object and dict(autoscalers.scaled_object),
        "horizontalPodAutoscaler": autoscalers.hpa and dict(autoscalers.hpa),
    }


def _identity(row: Row) -> dict[str, Any]:
    workload = row.decision.workload
    return {
        "namespace": workload.ref.namespace,
        "kind": workload.ref.kind,
        "name": workload.ref.name,
        "apiVersion": workload.ref.api_version,
        "uid": workload.ref.uid,
        "generation": workload.generation,
        "pods": {pod.ref.name: pod.ref.uid for pod in workload.pods},
        "gang": workload.gang or None,
        "managers": [
            {
                "kind": manager.kind,
                "name": manager.name,
                "reverts": manager.reverts,
                "exception": exception_for(manager, row.decision),
            }
            for manager in workload.managers
        ],
        "priorityClass": workload.priority_class,
        "priority": workload.priority,
        "gpus": _rounded(workload.gpus),
        "migInstancesAndShares": workload.parts,
        "model": row.model or None,
        "nodePool": row.pool or None,
        "nodes": list(row.nodes),
        "costPerHour": _rounded(row.cost_per_hour),
    }


def _proposal(proposal: Proposal | None) -> dict[str, Any] | None:
    if proposal is None:
        return None
    return {
        "action": proposal.action.value,
        "replicas": proposal.replicas,
        "gpusPerPod": proposal.gpus_per_pod,
        "requests": dict(proposal.asks) or None,
        "pods": list(proposal.pods),
        "frees": _rounded(proposal.frees),
        "message": proposal.words,
    }


def _also(finding: Finding) -> dict[str, Any]:
    return {
        "finding": finding.name.value,
        "confidence": finding.confidence.value,
        "reasons": list(finding.words),
        "proposal": _proposal(finding.proposal),
    }


def _evidence(finding: Finding) -> dict[str, Any]:
    """Numbers in base units; null is unknown, never zero."""
    return {
        "reasons": list(finding.words),
        "windowSeconds": _seconds(finding.window.total_seconds()) if finding.window else None,
        "busyGpus": finding.busy_gpus,
        "activityMean": _rounded(finding.activity_mean),
        "activityPeak": _rounded(finding.activity_peak),
        "memoryPeakBytes": None if finding.memory_peak_bytes is None else round(finding.memory_peak_bytes),
        "powerMeanWatts": None if finding.power_mean_w is None else round(finding.power_mean_w, 1),
        "powerPeakWatts": None if finding.power_peak_w is None else round(finding.power_peak_w, 1),
        "timeToFirstTokenSeconds": _rounded(finding.first_token_s),
    }


def outcome_document(
    run: str | None, outcomes: Iterable[Outcome], *, at: datetime.datetime, cluster: ClusterName | None = None
) -> dict[str, Any]:
    """Document of the outcomes of a run's decisions; `run` is null where an undo spans several."""
    where = {"cluster": _cluster(cluster)} if cluster else {}
    items = [
        {
            "namespace": outcome.ref.namespace,
            "kind": outcome.ref.kind,
            "name": outcome.ref.name,
            "uid": outcome.ref.uid,
            "action": outcome.action,
            "result": outcome.result.value,
            "detail": outcome.detail,
            "gpus": outcome.gpus,
            "at": stamp(outcome.at),
            "reconciliation": outcome.is_reconciliation,
            "effect": _effect(outcome.effect),
        }
        for outcome in outcomes
    ]
    return {
        "apiVersion": API_VERSION,
        "kind": "Outcome",
        "metadata": {"run": run, "at": stamp(at), **where, "generator": FIELD_MANAGER},
        "items": items,
    }


def _effect(effect: Effect | None) -> dict[str, Any] | None:
    """The verified effect; null if it was not checked, or nothing was changed."""
    if effect is None:
        return None
    return {
        "podsGone": effect.gone,
        "podsLeft": effect.left,
        "gpusFree": effect.free,
        "usedBy": list(map(str, effect.used_by)),
        "nodesGone": list(effect.nodes_gone),
        "health": effect.health or None,
        "message": effect.words,
    }


def undoable_document(items: Iterable[UndoItem]) -> dict[str, Any]:
    """List of undoable changes; `record` is null if it cannot be read, and `problem` says what prevents an undo.

    `isKnown` is false if the memory has no such change; `pod` is what the manifest of an evicted pod contains.
    """
    listed = [
        {
            "namespace": undo.ref.namespace,
            "kind": undo.ref.kind,
            "name": undo.ref.name,
            "record": msgspec.to_builtins(undo.record) if undo.record else None,
            "problem": undo.problem or None,
            "isKnown": undo.is_known,
            "pod": msgspec.to_builtins(undo.pod) if undo.pod else None,
        }
        for undo in items
    ]
    return {"apiVersion": API_VERSION, "kind": "UndoList", "items": listed}


def render(document: Mapping[str, Any] | Sequence[Any], form: str) -> str:
    """The document's text, in "json" or "yaml"; what a terminal could obey stands escaped in it."""
    if form == "json":
        text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
        return _escaped(text, lambda char: json.dumps(char)[1:-1])
    dumped: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return _escaped(dumped, lambda char: f"\\U{ord(char):08X}")


class _Dumper(yaml.SafeDumper):
    """Dumper that writes text in double quotes if characters must be escaped; PyYAML cannot read all that it writes."""

    def ignore_aliases(self, data: object) -> bool:
        """Write each value out: a plan with aliases is not read back."""
        del data
        return True


def _quoted(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = None if value.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _quoted)


def _escaped(text: str, escape: Callable[[str], str]) -> str:
    if text.replace("\n", "").isprintable():
        return text
    return "\n".join(
        line if line.isprintable() else "".join(char if char.isprintable() else escape(char) for char in line)
        for line in text.split("\n")
    )


def stamp(at: datetime.datetime) -> str:
    """A moment as documents write it."""
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _seconds(value: float | None) -> int | None:
    return None if value is None else round(value)


KEDA = "KEDA ScaledObject"
HPA = "HorizontalPodAutoscaler"


def manifests(decision: Decision) -> Iterator[tuple[str, list[str]]]:
    """Name and YAML lines of each advised autoscaler."""
    if decision.autoscalers is not None:
        for title, manifest in ((KEDA, decision.autoscalers.scaled_object), (HPA, decision.autoscalers.hpa)):
            if manifest is not None:
                yield title, safe_lines(render(dict(manifest), "yaml")).splitlines()


def on_one_line(decision: Decision, title: str) -> str:
    """One of them as JSON; empty where it is not advised."""
    if decision.autoscalers is None:
        return ""
    manifest = decision.autoscalers.scaled_object if title == KEDA else decision.autoscalers.hpa
    return json.dumps(dict(manifest), separators=(",", ":")) if manifest is not None else ""
