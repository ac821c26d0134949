"""Workloads in the course of a replay, and as the API server would have told of them. Pure."""

import dataclasses
import datetime
from collections.abc import Mapping, Sequence

import msgspec

from rightsizer.model import ChangeRecord, ObjectRef, Pod, Workload
from rightsizer_history.backtest.recording import Group, Member, Recording

_SIZED = frozenset({"Deployment", "StatefulSet", "ReplicaSet"})


@dataclasses.dataclass(slots=True)
class Standing:
    """A workload in the course of a replay.

    Attributes:
        pods: Those that run in this cycle; none while it is stopped.
        since: The step from which on its samples count: after a return, its pods are new.
        resumes: The step in which a stopped one returns; None while it runs.
        annotations: What was written on it, as a notice.
        changes: What was done to it.
        came_back_after: The longest pause after which it returned.
        gpus: How many GPUs each pod keeps after a resize; None without one.
    """

    group: Group
    pods: tuple[Member, ...] = ()
    since: int = 0
    resumes: int | None = None
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    changes: tuple[ChangeRecord, ...] = ()
    came_back_after: datetime.timedelta | None = None
    gpus: int | None = None


def workload_of(group: Group, recording: Recording) -> Workload:
    """A group as a workload with all of its pods."""
    return present_workload(Standing(group), group.members, recording)


def present_workload(standing: Standing, members: Sequence[Member], recording: Recording) -> Workload:
    """Workload as the API server would have told of it; what it held beyond GPUs is not recorded."""
    pods = tuple(_pod(member, standing, recording) for member in members)
    ref = standing.group.ref
    return Workload(
        ref=ref,
        generation=1,
        resource_version="1",
        pods=pods,
        size=len(pods) if ref.kind in _SIZED else None,
        labels=pods[0].labels if pods else {},
        annotations=standing.annotations,
        namespace_annotations={},
        budgets={},
        created=recording.grid.time(standing.group.first),
        past=standing.changes,
        came_back_after=standing.came_back_after,
        spec=_spec(standing.group),
    )


def _spec(group: Group) -> bytes:
    """The images of its containers, which is all that is recorded of what a workload says of itself."""
    images = sorted({image for member in group.members for image in member.images})
    return msgspec.json.encode({"recorded": [{"image": image} for image in images]}) if images else b""


def _pod(member: Member, standing: Standing, recording: Recording) -> Pod:
    began = recording.grid.time(max(member.first, standing.since))
    gpus = member.devices if standing.gpus is None else min(standing.gpus, member.devices)
    return Pod(
        ref=ObjectRef("v1", "Pod", *member.key),
        node=member.place,
        phase="Running",
        devices=gpus,
        is_shared=any(track.is_own and track.holders > 1 for track in member.tracks),
        started=began,
        priority_class=member.priority_class,
        priority=0,
        is_ready=True,
        is_terminating=False,
        is_static=False,
        labels=member.labels,
        annotations={},
        resources={"nvidia.com/gpu": gpus},
        created=began,
    )
