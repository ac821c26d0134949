"""The work that a stop destroys: GPU-hours since the last checkpoint, or since the pods started. Pure.

Tenants write annotations and what their trainers report. A checkpoint can only lower the loss of its own workload,
which then goes earlier; without one, all of its run time counts. What a status reports is shown, and decides nothing.
"""

import dataclasses
import datetime
from collections.abc import Iterator, Mapping

import msgspec

from rightsizer.changes.record_codec import CHECKPOINT_ANNOTATION
from rightsizer.model import Pod, Workload
from rightsizer.text import count, gpus_number, read_instant, span

CHECKPOINT_ANNOTATIONS = (CHECKPOINT_ANNOTATION, "volcano.sh/last-checkpoint-time")
"""The time of the last checkpoint, on a workload or each of its pods; Volcano's second."""

HOUR_S = 3600.0


@dataclasses.dataclass(frozen=True, slots=True)
class WorkAtRisk:
    """Work that is in no checkpoint.

    Attributes:
        gpu_hours: By all of its GPUs since then.
        gpus: How many they are.
        age: Since when at the longest.
        is_checkpointed: Whether all of its pods have a checkpoint; otherwise it is only a bound.
    """

    gpu_hours: float
    gpus: float
    age: datetime.timedelta
    is_checkpointed: bool

    @property
    def message(self) -> str:
        """State the work, and whether a checkpoint is known."""
        if not self.gpu_hours:
            return (
                "no work since its last checkpoint"
                if self.is_checkpointed
                else "no work of its pods is known"
            )
        work = f"{span(self.age)} of work on {count(self.gpus)} ({gpus_number(self.gpu_hours)} GPU-hours)"
        if self.is_checkpointed:
            return f"{work} since its last checkpoint"
        return f"at most {work}; no checkpoint is known"


def work_at_risk(workload: Workload, at: datetime.datetime, *, idle_s: float = 0.0) -> WorkAtRisk | None:
    """The work that a stop at this time would destroy; None if the start of a pod is unknown.

    The seconds for which it has been idle are no work; what its pods did before counts as such.
    """
    own = _checkpoint(workload.annotations, at)
    began: list[tuple[Pod, datetime.datetime]] = []
    saved = []
    for pod in workload.holding:
        start = pod.started or pod.created
        if start is None or start > at:
            return None
        checkpoint = max(filter(None, (own, _checkpoint(pod.annotations, at))), default=None)
        saved.append(checkpoint is not None and checkpoint >= start)
        began.append((pod, max(start, checkpoint or start)))
    if not began:
        return None
    until, none = at - datetime.timedelta(seconds=idle_s), datetime.timedelta()
    hours = sum(pod.gpus * max(until - since, none).total_seconds() / HOUR_S for pod, since in began)
    return WorkAtRisk(hours, workload.gpus, max(until - min(since for _, since in began), none), all(saved))


def _checkpoint(annotations: Mapping[str, str], at: datetime.datetime) -> datetime.datetime | None:
    """The latest checkpoint by annotation; one in the future does not count."""
    return max(_told(annotations, at), default=None)


def _told(annotations: Mapping[str, str], at: datetime.datetime) -> Iterator[datetime.datetime]:
    for key in CHECKPOINT_ANNOTATIONS:
        told = read_instant(annotations[key], zone=datetime.UTC) if key in annotations else None
        if told is not None and told <= at:
            yield told


class _Trainer(msgspec.Struct, rename="camel"):
    """trainer.kubeflow.org/v1alpha1 TrainerStatus, which the trainer in the pods reports."""

    progress_percentage: int | None = None
    estimated_remaining_seconds: int | None = None


class _Ended(msgspec.Struct):
    """JobSet's ReplicatedJobStatus and Kubeflow's ReplicaStatus."""

    succeeded: int = 0


class _Progress(msgspec.Struct, rename="camel"):
    """The progress in the status of a TrainJob, a Job, a JobSet and one of Kubeflow's jobs."""

    trainer_status: _Trainer | None = None
    succeeded: int = 0
    replicated_jobs_status: list[_Ended] | None = None
    replica_statuses: dict[str, _Ended] | None = None


def progress_words(status: bytes) -> str:
    """The progress that a status reports, for people; empty if none."""
    try:
        found = msgspec.json.decode(status or b"{}", type=_Progress | None) or _Progress()
    except msgspec.DecodeError:
        return ""
    trainer = found.trainer_status or _Trainer()
    parts = (*(found.replicated_jobs_status or ()), *(found.replica_statuses or {}).values())
    ended = found.succeeded + sum(part.succeeded for part in parts)
    left = trainer.estimated_remaining_seconds
    words = (
        f"{trainer.progress_percentage} % done" if trainer.progress_percentage is not None else "",
        f"{span(left)} left" if left is not None else "",
        f"{ended} succeeded" if ended else "",
    )
    return ", ".join(filter(None, words))
