"""Changes one object, by one patch that also writes its undo record.

A command object is created once the record is there. A CronJob or the like is suspended after the workload that it
started, with its own record.
"""

import dataclasses
import http
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rightsizer.errors import ClusterError, RequestRefused
from rightsizer.execute.rollback import create_command
from rightsizer.execute.run_context import (
    ApplySession,
    WriteResultUnknown,
    log_cluster_error,
    mutating_request,
)
from rightsizer.execute.template_creation import create_template
from rightsizer.kinds import kind_of, path_of, stopped_by
from rightsizer.kinds.change_edits import proposal_edits, stop_edits
from rightsizer.kinds.claim_templates import object_for
from rightsizer.kinds.health import pods_after
from rightsizer.kinds.kind import Kind
from rightsizer.kinds.patches import (
    change_patch,
    edit_text,
    merged_with_earlier,
    read_record,
    record_of,
    require_recordable,
    undo_patch,
)
from rightsizer.kinds.pause_for_change import is_stopped, needs_pause
from rightsizer.model import ChangeRecord, Decision, Edit, ObjectRef, Workload

_Object = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Target:
    """An object that a decision changes, as it was read."""

    ref: ObjectRef
    row: Kind
    obj: _Object

    @property
    def path(self) -> str:
        return path_of(self.ref, self.row)


def change(decision: Decision, row: Kind, fresh: Workload, session: ApplySession) -> str:
    """Change a workload as preflight read it; what was done, for people.

    Raises:
        ClusterError: The API server refuses, or does not answer; nothing was changed.
        WriteResultUnknown: It is unknown whether it was changed.
        ValueError: The object lacks a field for the change.
    """
    own = _Target(fresh.ref, row, _unchanged(fresh, row, session))
    there = _target(decision, own, fresh, session)
    edits, then = _steps(there, _edits(decision, there, fresh, session), session)
    record = _record(decision, there, edits, session, of=fresh.ref)
    record = msgspec.structs.replace(record, pending_edits=then)
    patch = change_patch(there.obj, edits, record, came_back=fresh.came_back_after)
    command = there.row.stop.command if there.row.stop and decision.finding.proposal is None else None
    if command is not None:
        verb = str(edits[0].after)
        create_command(session.cluster, command, there.ref, verb=verb, run=session.run, dry_run=True)
    template = object_for(edits, fresh, decision.finding.proposal)
    if template is not None:
        create_template(session.cluster, template, fresh.ref, dry_run=True)
    session.cluster.patch(there.path, patch, dry_run=True)
    if session.is_dry_run:
        return ""
    if template is not None:
        create_template(session.cluster, template, fresh.ref)
    kept = session.priced(record, decision)
    with session.memory.kept(fresh, kept, session.clock()), mutating_request():
        session.cluster.patch(there.path, patch)
    if command is not None:
        send_stop_command(there.ref, there.row, session)
    where = "" if there.ref == fresh.ref else f"{there.ref.kind} {there.ref.name}: "
    words = where + ", ".join(map(edit_text, edits))
    words += f"; once its pods are gone: {', '.join(map(edit_text, then))}" if then else ""
    return "; ".join([words, *(_stopped_along(decision, ref, session) for ref in decision.along)])


def recorded_on(decision: Decision, row: Kind) -> tuple[ObjectRef, Kind]:
    """The object that carries the record of a decision, and its row."""
    by = stopped_by(decision.workload) if decision.finding.proposal is None else None
    return by or (decision.workload.ref, row)


def send_stop_command(ref: ObjectRef, row: Kind, session: ApplySession) -> None:
    """Create the command that the record of a workload names; if that is refused, remove the record.

    Raises:
        RequestRefused: The command was not created.
        WriteResultUnknown: It is unknown whether it was created.
    """
    assert row.stop is not None  # noqa: S101 - it has a command
    assert row.stop.command is not None  # noqa: S101
    try:
        with mutating_request():
            create_command(session.cluster, row.stop.command, ref, verb=str(row.stop.to), run=session.run)
    except RequestRefused:
        with log_cluster_error(f"the record on {ref} is not removed"):
            obj = session.cluster.get_object(path_of(ref, row))
            record = read_record(obj["metadata"].get("annotations") or {}, row)
            if record is not None and record.run == session.run:
                session.cluster.patch(path_of(ref, row), undo_patch(obj, record, at=session.clock()))
        raise


def _unchanged(fresh: Workload, row: Kind, session: ApplySession) -> _Object:
    """The workload's own object, still of the version that preflight read."""
    path = path_of(fresh.ref, row)
    obj = session.cluster.get_object(path)
    metadata = obj["metadata"]
    if (metadata["uid"], metadata["resourceVersion"]) != (fresh.ref.uid, fresh.resource_version):
        raise _conflict(path)
    return obj


def _conflict(path: str) -> RequestRefused:
    return RequestRefused(
        f"reading {path}",
        code=http.HTTPStatus.CONFLICT,
        reason="Conflict",
        detail="it changed between two reads",
    )


def _target(decision: Decision, own: _Target, fresh: Workload, session: ApplySession) -> _Target:
    """The object to change: the workload itself, or the control object that stops it."""
    by = stopped_by(fresh) if decision.finding.proposal is None else None
    if by is None or by[0] == own.ref:
        return own
    control = _Target(*by, session.cluster.get_object(path_of(*by)))
    if control.obj["metadata"]["uid"] != by[0].uid:
        raise _conflict(control.path)
    return control


def _edits(decision: Decision, there: _Target, fresh: Workload, session: ApplySession) -> list[Edit]:
    proposal = decision.finding.proposal
    if proposal is None:
        edits = stop_edits(there.row, there.obj, session.clock())
    else:
        resources = sorted({name for pod in fresh.pods for name in pod.resources})
        edits = proposal_edits(
            there.row,
            there.obj,
            proposal,
            resources=resources,
            pods=fresh.pods,
            templates=fresh.claim_templates,
        )
    require_recordable(there.row, edits)
    return edits


def _steps(there: _Target, edits: list[Edit], session: ApplySession) -> tuple[list[Edit], tuple[Edit, ...]]:
    """The edits to make now, and those to make once its pods are gone.

    Raises:
        ValueError: Somebody else suspended it already.
    """
    if not needs_pause(there.row, edits):
        return edits, ()
    if is_stopped(there.row, there.obj):
        message = "somebody else suspended it already"
        raise ValueError(message)
    return stop_edits(there.row, there.obj, session.clock()), tuple(edits)


def _record(
    decision: Decision, there: _Target, edits: Sequence[Edit], session: ApplySession, *, of: ObjectRef
) -> ChangeRecord:
    """The record of a change, which also undoes an earlier one that is still in effect."""
    annotations: Mapping[str, str] = there.obj["metadata"].get("annotations") or {}
    earlier = read_record(annotations, there.row)
    if earlier is not None and earlier.is_unfinished:
        message = f"the change of run {earlier.run} is not completed yet"
        raise ValueError(message)
    record = record_of(
        decision,
        edits,
        run=session.run,
        at=session.clock(),
        by=session.instance,
        healthy_within=decision.healthy_within,
    )
    pods = pods_after(decision, there.row)
    record = msgspec.structs.replace(record, workload=None if there.ref == of else of, pods=pods)
    return merged_with_earlier(record, earlier, there.obj)


def _stopped_along(decision: Decision, ref: ObjectRef, session: ApplySession) -> str:
    """Suspend the CronJob or the like; the workload itself is stopped already."""
    row = kind_of(ref)
    assert row is not None  # noqa: S101 - decided so
    try:
        there = _Target(ref, row, session.cluster.get_object(path_of(ref, row)))
        if there.obj["metadata"]["uid"] != ref.uid:
            return f"{ref.kind} {ref.name} is not suspended: it is not the one that created the workload"
        edits = [edit for edit in stop_edits(row, there.obj, session.clock()) if edit.before != edit.after]
        if not edits:
            return f"{ref.kind} {ref.name} is suspended already"
        record = _record(decision, there, edits, session, of=decision.workload.ref)
        patch = change_patch(there.obj, edits, msgspec.structs.replace(record, gpus=0), came_back=None)
        session.cluster.patch(there.path, patch, dry_run=True)
        with mutating_request():
            session.cluster.patch(there.path, patch)
    except (ClusterError, ValueError) as error:
        return f"{ref.kind} {ref.name} is not suspended: {error}"
    except WriteResultUnknown as lost:
        return f"it is unknown whether {ref.kind} {ref.name} is suspended: {lost}"
    return f"{ref.kind} {ref.name}: {', '.join(map(edit_text, edits))}"
