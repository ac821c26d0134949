"""Whether a workload that goes on with less than it had is well. Pure."""

import datetime
import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rightsizer.config import format_duration
from rightsizer.inventory.pods import OOM_KILLED
from rightsizer.kinds.edits import value_at
from rightsizer.kinds.kind import Kind
from rightsizer.model import ChangeRecord, Decision, Pod

_CRASHING = "CrashLoopBackOff"
_COMPLETED = "Completed"


class Health(enum.StrEnum):
    """How a workload bears a change."""

    HEALTHY = "healthy"
    WAITING = "waiting"
    FAILED = "failed"
    ENDED = "ended"
    """It came to its own end, as work does."""


def pods_after(decision: Decision, row: Kind) -> int:
    """How many pods its record says that it should have, once a decision is carried out."""
    return decision.pods_left if row.replicas is None else decision.pods_each


def expected_pods(record: ChangeRecord, obj: Mapping[str, Any], row: Kind) -> int:
    """How many pods it should have now: as its record says, and for as many replicas as it has by now."""
    replicas = value_at(obj, row.replicas.path) if row.replicas else None
    each = max(record.pods, 1)
    return each * replicas if isinstance(replicas, int) else each


def health_of(
    record: ChangeRecord, pods: Sequence[Pod], expected_pods: int, at: datetime.datetime
) -> tuple[Health, str]:
    """How it is since its change, and in words why.

    Args:
        record: Of the change.
        pods: All that it has now and that ask for GPUs.
        expected_pods: How many of them there should be.
        at: Now.
    """
    living = [pod for pod in pods if not pod.is_terminating]
    # A change of the number leaves pods as they are; one of the template makes them anew.
    is_anew = any(edit.path[-1] != "replicas" for edit in record.edits)
    failures = "; ".join(word for pod in living for word in _failures(pod, record.at, is_anew=is_anew))
    if failures:
        return Health.FAILED, failures
    fresh = [pod for pod in living if not is_anew or _began_since(pod, record.at)]
    ready = len([pod for pod in fresh if pod.is_ready])
    told = f"{ready} of {expected_pods} pods are ready"
    if ready >= expected_pods and ready == len(living):
        return Health.HEALTHY, told
    if at - record.at >= datetime.timedelta(seconds=record.healthy_within_seconds):
        return Health.FAILED, f"only {told} after {format_duration((at - record.at).total_seconds())}"
    return Health.WAITING, told


def _failures(pod: Pod, since: datetime.datetime, *, is_anew: bool) -> Iterator[str]:
    ended_since = pod.ended_at is not None and pod.ended_at > since
    if pod.ended == OOM_KILLED and ended_since:
        yield f"pod {pod.ref.name} ran out of memory ({OOM_KILLED})"
    elif pod.waiting == _CRASHING and (ended_since or _began_since(pod, since)):
        yield f"pod {pod.ref.name} ends again and again ({_CRASHING})"
    elif is_anew and _began_since(pod, since) and pod.ended != _COMPLETED and (pod.ended or pod.restarts):
        # What runs out of GPU memory is not killed for it: it ends by an error of its own, maybe after it was ready.
        times = f", {pod.restarts} restarts" if pod.restarts else ""
        yield f"pod {pod.ref.name} ended by an error ({pod.ended or 'not known'}{times})"


def _began_since(pod: Pod, since: datetime.datetime) -> bool:
    return pod.created is not None and pod.created >= since
