"""Events on the objects that we change, so that whoever owns one finds out with kubectl describe. Pure.

https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/
"""

import datetime
import hashlib
from typing import Any

from rightsizer.config import FIELD_MANAGER
from rightsizer.model import Decision, ObjectRef, WorkloadKind
from rightsizer.report.words import count

MAX_MESSAGE = 1000
"""The API server refuses more than 1024 characters."""


def event_of(
    decision: Decision, row: WorkloadKind, *, run: str, at: datetime.datetime
) -> tuple[str, dict[str, Any]]:
    """Collection path and Event for a change that was made."""
    ref, words = decision.workload.ref, "; ".join(decision.finding.words)
    why = f"({decision.finding.name}; rule {decision.rule}): {words}"
    if decision.announced and decision.due:
        when = decision.due.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        message = (
            f"{count(decision.workload.gpus)} will be given back by {decision.announced} from {when} on {why}"
        )
        return _event(ref, "Notice", message, run=run, at=at)
    message = f"{count(decision.workload.gpus)} given back {why}. Undo: gpu-rightsizer undo {ref}"
    return _event(ref, row.stopped_reason, message, run=run, at=at)


def restored_event(
    ref: ObjectRef, what: str, *, run: str, at: datetime.datetime
) -> tuple[str, dict[str, Any]]:
    """Collection path and Event for a change that was taken back."""
    return _event(ref, "Restored", f"What run {run} had changed is as before: {what}", run=run, at=at)


def _event(
    ref: ObjectRef, reason: str, message: str, *, run: str, at: datetime.datetime
) -> tuple[str, dict[str, Any]]:
    stamp = at.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
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
        "type": "Normal",
        "reason": reason,
        "message": message[:MAX_MESSAGE],
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
    return f"/api/v1/namespaces/{ref.namespace}/events", event
