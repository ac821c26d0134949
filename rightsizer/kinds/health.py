"""The health of a workload after a scale-down, resize or reslice. Pure."""

import datetime
import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rightsizer.config import format_duration
from rightsizer.inventory.pods import OOM_KILLED
from rightsizer.kinds.edits import value_at
from rightsizer.kinds.kind import Kind
from rightsizer.model import Action, ChangeRecord, Decision, Outcome, Pod
from rightsizer.text import count

_CRASHING = "CrashLoopBackOff"
_COMPLETED = "Completed"


class Health(enum.StrEnum):
    """The health of a workload after a change."""

    HEALTHY = "healthy"
    WAITING = "waiting"
    FAILED = "failed"
    ENDED = "ended"
    """The workload ended by itself, as a Job does."""


def is_verified(outcome: Outcome) -> bool:
    """Whether its pods were seen to be gone, and the rest of its workload not to be unhealthy."""
    effect = outcome.effect
    return effect is not None and not effect.left and effect.health != Health.FAILED


def pods_after(decision: Decision, row: Kind) -> int:
    """The number of pods that its record expects after a decision is carried out."""
    return decision.pods_left if row.replicas is None else decision.pods_each


def expected_pods(record: ChangeRecord, obj: Mapping[str, Any], row: Kind) -> int:
    """The number of pods that it should have now, by its record and its current replicas."""
    replicas = value_at(obj, row.replicas.path) if row.replicas else None
    pods_each = max(record.pods, 1)
    return pods_each * replicas if isinstance(replicas, int) else pods_each


def health_of(
    record: ChangeRecord, pods: Sequence[Pod], expected_pods: int, at: datetime.datetime
) -> tuple[Health, str]:
    """The health since the change, and the reason; `pods` are all current pods that request GPUs."""
    living = [pod for pod in pods if not pod.is_terminating]
    # A change of replicas leaves the other pods as they are; a change of the template replaces them.
    is_rollout = record.action not in {Action.SCALE_DOWN, Action.SCALE_UP}
    failures = "; ".join(word for pod in living for word in _failures(pod, record.at, is_rollout=is_rollout))
    if failures:
        return Health.FAILED, failures
    fresh = [pod for pod in living if not is_rollout or _began_since(pod, record.at)]
    ready = len([pod for pod in fresh if pod.is_ready])
    words = f"{ready} of {count(expected_pods, 'pod')} {'is' if expected_pods == 1 else 'are'} ready"
    before = len([pod for pod in living if not is_rollout and not _began_since(pod, record.at)])
    if before > expected_pods and record.pods:
        words = f"{expected_pods} of {count(before, 'pod')} should be left"
    elif ready >= expected_pods and ready == len(living):
        return Health.HEALTHY, words
    if at - record.at >= datetime.timedelta(seconds=record.healthy_within_seconds):
        return Health.FAILED, f"only {words} after {format_duration((at - record.at).total_seconds())}"
    return Health.WAITING, words


def _failures(pod: Pod, since: datetime.datetime, *, is_rollout: bool) -> Iterator[str]:
    ended_since = pod.ended_at is not None and pod.ended_at > since
    if pod.ended == OOM_KILLED and ended_since:
        yield f"pod {pod.ref.name} ran out of memory ({OOM_KILLED})"
    elif pod.waiting == _CRASHING and (ended_since or _began_since(pod, since)):
        yield f"pod {pod.ref.name} crashes repeatedly ({_CRASHING})"
    elif is_rollout and _began_since(pod, since) and pod.ended != _COMPLETED and (pod.ended or pod.restarts):
        # A process without enough GPU memory is not killed: it fails by itself, maybe after it was ready.
        times = f", {pod.restarts} restarts" if pod.restarts else ""
        yield f"pod {pod.ref.name} failed ({pod.ended or 'unknown'}{times})"


def _began_since(pod: Pod, since: datetime.datetime) -> bool:
    return pod.created is not None and pod.created >= since
