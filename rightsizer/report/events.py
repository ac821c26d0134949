"""Kubernetes Events and documents for webhooks about changes. Pure.

https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/
"""

import dataclasses
import datetime
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from rightsizer.config import FIELD_MANAGER
from rightsizer.kinds import CONTROL_OBJECT_KINDS, KINDS
from rightsizer.kinds.kind import Kind
from rightsizer.kinds.notices import answers
from rightsizer.kube.object_names import api_path, shell_command
from rightsizer.model import Action, Decision, FoundChange, ObjectRef, Outcome, Result
from rightsizer.report.documents import API_VERSION, outcome_document, stamp
from rightsizer.report.outcomes import history_document
from rightsizer.text import count

MAX_MESSAGE = 1000
"""The API server refuses more than 1024 characters."""


def event_of(decision: Decision, row: Kind, *, run: str, at: datetime.datetime) -> tuple[str, dict[str, Any]]:
    """Collection path and Event for a change that was made."""
    ref, words = decision.workload.ref, "; ".join(decision.finding.words)
    why = f"({decision.finding.name}; rule {decision.rule}): {words}"
    if decision.announced and decision.due:
        when = decision.due.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        told = answers(ref, decision.due)
        message = f"{count(decision.workload.gpus)} will be freed by {decision.announced} after {when}"
        message = f"{message}; {told} {why}" if told else f"{message} {why}"
        return _event(ref, _NOTICE, message, run=run, at=at)
    freed = decision.frees
    message = f"{f'frees {count(freed)}' if freed >= 0 else f'adds {count(-freed)}'} {why}"
    if decision.action is not Action.SCALE_UP:
        message += ". Undo: " + shell_command("gpu-rightsizer", "undo", str(ref))
    return _event(ref, _reason(decision, row), message, run=run, at=at)


_NOTICE = "Notice"
_REASONS = {
    Action.SCALE_DOWN: "ScaledDown",
    Action.SCALE_UP: "ScaledUp",
    Action.RESIZE: "Resized",
    Action.RESLICE: "Resliced",
}


def _reason(decision: Decision, row: Kind) -> str:
    of_stop = row.stop.reason if row.stop else ""
    return _REASONS.get(decision.action, of_stop) if decision.action else of_stop


@dataclasses.dataclass(frozen=True, slots=True)
class ChangeEvent:
    """An Event about an earlier change: its reason, and its message with `run` and `what` to fill in."""

    reason: str
    message: str
    is_warning: bool = False

    def of(self, ref: ObjectRef, what: str, *, run: str, at: datetime.datetime) -> tuple[str, dict[str, Any]]:
        """Collection path and Event."""
        message = self.message.format(run=run, what=what)
        return _event(ref, self.reason, message, run=run, at=at, is_warning=self.is_warning)


RESTORED = ChangeEvent("Restored", "The change of run {run} was undone: {what}")
REVERTED = ChangeEvent(
    "Reverted", "Someone reverted the change of run {run}, so it is not repeated soon: {what}"
)
CONFIRMED = ChangeEvent("Confirmed", "Healthy after the change by run {run}: {what}")
COMPLETED = ChangeEvent("Shrunk", "Run {run} suspended it to change it; it runs again: {what}")
ROLLED_BACK = ChangeEvent(
    "RolledBack",
    "The change of run {run} was rolled back, because the workload was unhealthy: {what}",
    is_warning=True,
)
NO_EFFECT = ChangeEvent("RolledBack", "The change of run {run} was rolled back: {what}", is_warning=True)
CANCELLED = ChangeEvent(
    "RolledBack", "Run {run} suspended it to change it, but did not change it: {what}", is_warning=True
)
NOT_FREED = ChangeEvent(
    "NotFreed", "The change of run {run} has not freed the GPUs yet: {what}", is_warning=True
)
NAMED = ChangeEvent("NamedForPreemption", "named to kube-scheduler as victim: {what}")
_CHANGE_EVENTS = (RESTORED, REVERTED, CONFIRMED, COMPLETED, ROLLED_BACK, CANCELLED, NOT_FREED, NAMED)
REASONS = frozenset(
    {
        _NOTICE,
        *_REASONS.values(),
        *(event.reason for event in _CHANGE_EVENTS),
        *(stop.reason for row in (*KINDS, *CONTROL_OBJECT_KINDS) for stop in row.stops),
    }
)
"""Reasons of all Events; the admission guardrails allow no other."""


def _event(
    ref: ObjectRef, reason: str, message: str, *, run: str, at: datetime.datetime, is_warning: bool = False
) -> tuple[str, dict[str, Any]]:
    suffix = hashlib.sha256(f"{run}/{reason}/{ref}/{at.isoformat()}".encode()).hexdigest()[:16]
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{ref.name[:230]}.{suffix}", "namespace": ref.namespace},
        "involvedObject": {
            "apiVersion": ref.api_version,
            "kind": ref.kind,
            "namespace": ref.namespace,
            "name": ref.name,
            "uid": ref.uid,
        },
        "type": "Warning" if is_warning else "Normal",
        "reason": reason,
        "message": message[:MAX_MESSAGE],
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "firstTimestamp": stamp(at),
        "lastTimestamp": stamp(at),
        "count": 1,
    }
    return api_path("v1", ref.namespace, "events"), event


_FAILED = frozenset({Result.REFUSED, Result.UNKNOWN})


def occasion_of(outcome: Outcome) -> str:
    """Name of an outcome's occasion: notice, change, rollback or failure; empty if it is none."""
    if outcome.result in _FAILED:
        return "failure"
    if outcome.result is not Result.DONE:
        return ""
    if outcome.action == Action.NOTICE:
        return "notice"
    return "rollback" if outcome.action in {"undo", "rollback"} else "change"


def webhook_message(cluster: str, run: str, outcomes: Sequence[Outcome]) -> Mapping[str, Any]:
    """A document of kind Notification, with the items of an Outcome document and the occasion of each."""
    document = outcome_document(run, outcomes, at=outcomes[-1].at)
    items = [
        {**item, "occasion": occasion_of(outcome)}
        for item, outcome in zip(document["items"], outcomes, strict=True)
    ]
    return {**document, "apiVersion": API_VERSION, "kind": "Notification", "cluster": cluster, "items": items}


def digest_webhook_message(
    cluster: str, changes: Sequence[FoundChange], since: datetime.datetime
) -> Mapping[str, Any]:
    """A document of kind Notification: the items of a History document since a time."""
    document = history_document(changes, ())
    items = [{**item, "occasion": "digest"} for item in document["items"]]
    head = {"apiVersion": API_VERSION, "kind": "Notification", "cluster": cluster}
    return {**head, "since": stamp(since), "items": items}
