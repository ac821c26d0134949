"""Plans and outcomes as documents for programs: plain values in a fixed order, written as JSON or YAML. Pure.

The schema is docs/plan.schema.json; a test holds the two together.
"""

import dataclasses
import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import yaml

from rightsizer.config import FIELD_MANAGER
from rightsizer.errors import ConfigurationError
from rightsizer.model import Decision, Finding, ObjectRef, Outcome, Plan, Verdict
from rightsizer.workloads.changes import Undoable

API_VERSION = "gpu-rightsizer.io/v1alpha1"


def plan_document(plan: Plan) -> dict[str, Any]:
    """A plan, with every GPU workload under `items`."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Plan",
        "metadata": {
            "run": plan.run,
            "at": _stamp(plan.at),
            "policy": {"source": plan.policy_source, "sha256": plan.policy_hash},
            "generator": FIELD_MANAGER,
        },
        "totals": _totals(plan.decisions),
        "items": [_item(decision) for decision in plan.decisions],
    }


def _totals(decisions: Sequence[Decision]) -> dict[str, Any]:
    by_verdict = {
        verdict.value: {
            "workloads": sum(decision.verdict is verdict for decision in decisions),
            "gpus": sum(decision.workload.gpus for decision in decisions if decision.verdict is verdict),
        }
        for verdict in Verdict
    }
    enforced = [decision for decision in decisions if decision.is_enforced]
    return {
        "workloads": len(decisions),
        "gpus": sum(decision.workload.gpus for decision in decisions),
        "verdicts": by_verdict,
        "enforced": {
            "workloads": len(enforced),
            "gpus": sum(decision.workload.gpus for decision in enforced),
        },
    }


def _item(decision: Decision) -> dict[str, Any]:
    workload, finding = decision.workload, decision.finding
    return {
        "namespace": workload.ref.namespace,
        "kind": workload.ref.kind,
        "name": workload.ref.name,
        "apiVersion": workload.ref.api_version,
        "uid": workload.ref.uid,
        "generation": workload.generation,
        "pods": {pod.ref.name: pod.ref.uid for pod in workload.pods},
        "priorityClass": workload.priority_class,
        "priority": workload.priority,
        "gpus": workload.gpus,
        "verdict": decision.verdict.value,
        "finding": finding.name.value,
        "rule": decision.rule,
        "mode": decision.mode.value,
        "action": decision.action.value if decision.action else None,
        "reasons": [veto.reason for veto in decision.vetoes],
        "evidence": _evidence(finding),
        "coverage": round(finding.coverage, 4),
    }


def _evidence(finding: Finding) -> dict[str, Any]:
    """Numbers in base units; null is unknown, never zero."""
    return {
        "words": list(finding.words),
        "busyGpus": finding.busy_gpus,
        "activityMean": _rounded(finding.activity_mean),
        "activityPeak": _rounded(finding.activity_peak),
        "memoryPeakBytes": None if finding.memory_peak_bytes is None else round(finding.memory_peak_bytes),
        "powerMeanWatts": None if finding.power_mean_w is None else round(finding.power_mean_w, 1),
        "powerPeakWatts": None if finding.power_peak_w is None else round(finding.power_peak_w, 1),
    }


def outcome_document(
    run: str | None, outcomes: Iterable[Outcome], *, at: datetime.datetime
) -> dict[str, Any]:
    """What became of each decision of a run; `run` is null where an undo spans several."""
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
            "at": _stamp(outcome.at),
        }
        for outcome in outcomes
    ]
    return {
        "apiVersion": API_VERSION,
        "kind": "Outcome",
        "metadata": {"run": run, "at": _stamp(at), "generator": FIELD_MANAGER},
        "items": items,
    }


def undoable_document(items: Iterable[Undoable]) -> dict[str, Any]:
    """What can be put back; `record` is null where it cannot be read, and `problem` says why."""
    listed = [
        {
            "namespace": item.ref.namespace,
            "kind": item.ref.kind,
            "name": item.ref.name,
            "record": msgspec.to_builtins(item.record) if item.record else None,
            "problem": item.problem or None,
        }
        for item in items
    ]
    return {"apiVersion": API_VERSION, "kind": "UndoList", "items": listed}


def render(document: Mapping[str, Any], form: str) -> str:
    """The document's text, in "json" or "yaml"; what a terminal could obey stands escaped in it."""
    if form == "json":
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        return "".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)
    dumped: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
    return dumped


@dataclasses.dataclass(frozen=True, slots=True)
class Approval:
    """One change of a reviewed plan, as far as it must still be the same."""

    ref: ObjectRef
    generation: int
    action: str | None
    pods: Mapping[str, str]

    @classmethod
    def of(cls, decision: Decision) -> "Approval":
        """The approval that this decision would need."""
        workload = decision.workload
        action = decision.action.value if decision.action else None
        pods = {pod.ref.name: pod.ref.uid for pod in workload.pods}
        return cls(workload.ref, workload.generation, action, pods)


# What YAML's constructors, a document of another shape, and values of other types come to.
_NO_PLAN = (
    yaml.YAMLError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
    msgspec.ValidationError,
)


def read_approvals(text: str, *, source: str) -> tuple[Approval, ...]:
    """What a plan document, JSON or YAML, has approved: its enforced changes.

    Raises:
        ConfigurationError: It is not a plan of ours.
    """
    try:
        document = yaml.safe_load(text)
        if (document["apiVersion"], document["kind"]) != (API_VERSION, "Plan"):
            raise ConfigurationError(
                f"plan file {source}: is of kind {document['kind']} ({document['apiVersion']}), "
                f"not of kind Plan ({API_VERSION})"
            )
        approvals = {
            _ref(item): _approval(item)
            for item in document["items"]
            if (item["verdict"], item["mode"]) == ("act", "enforce") and item["action"]
        }
    except _NO_PLAN as error:
        words = "it is not a plan; make one with: gpu-rightsizer plan -o json"
        raise ConfigurationError(f"plan file {source}: cannot be read: {words}") from error
    return tuple(approvals.values())


def _approval(item: Mapping[str, Any]) -> Approval:
    pods = msgspec.convert(item["pods"], dict[str, str])
    return Approval(_ref(item), msgspec.convert(item["generation"], int), str(item["action"]), pods)


def _ref(item: Mapping[str, Any]) -> ObjectRef:
    fields = ("apiVersion", "kind", "namespace", "name", "uid")
    return ObjectRef(*(msgspec.convert(item[field], str) for field in fields))


def _stamp(at: datetime.datetime) -> str:
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
