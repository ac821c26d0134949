"""What a person types to do by hand what is advised: kubectl commands, made from the rows of the kinds. Pure."""

import dataclasses
import json
import shlex
from collections.abc import Sequence
from typing import Any

from rightsizer.kinds import kind_of, pause_for, row_of, stopped_by
from rightsizer.kinds.command_objects import command_body
from rightsizer.kinds.edits import Path
from rightsizer.kinds.fields import NOW
from rightsizer.kinds.kind import Kind, Stop
from rightsizer.model import Action, Decision, Fleet, ObjectRef, Proposal, Workload

_CLUSTERS_OWN = frozenset({"DaemonSet", "Node"})
_ANNOTATIONS = ("metadata", "annotations")
_BY_HAND = "by-hand"


def stop_command(workload: Workload) -> str:
    """What gives all of a workload's GPUs back.

    Of a kind whose stop is not known, what opens the object; empty for the cluster's own and for gangs, which no one
    object stands for.
    """
    if workload.ref.kind in _CLUSTERS_OWN or workload.gang:
        return ""
    by = stopped_by(workload)
    if by is not None and by[1].stop is not None:
        return _stopping(*by, by[1].stop)
    if workload.scalable is not None:
        return _scale(workload.ref, 0)
    return _kubectl("edit", workload.ref)


def _stopping(ref: ObjectRef, row: Kind, stop: Stop) -> str:
    if stop.field is None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": ref.name, "namespace": ref.namespace},
        }
        path = f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}/eviction"
        return f"echo {shlex.quote(json.dumps(body))} | kubectl create --raw {shlex.quote(path)} -f -"
    if stop.orders is not None:
        _, body = command_body(stop.orders, ref, str(stop.to), run=_BY_HAND)
        return f"echo {shlex.quote(json.dumps(body))} | kubectl create -f -"
    if row.has_scale and row.replicas == stop.field:
        return _scale(ref, 0)
    if stop.field.path[:-1] == _ANNOTATIONS:
        value = '"$(date -u +%FT%TZ)"' if stop.to == NOW else shlex.quote(str(stop.to))
        return f"{_kubectl('annotate --overwrite', ref)} {stop.field.path[-1]}={value}"
    return _patch(ref, stop.field.path, stop.to)


def stop_commands(workload: Workload, along: Sequence[tuple[ObjectRef, Kind]]) -> str:
    """The same, with what is stopped along with it."""
    others = [_stopping(ref, row, row.stop) for ref, row in along if row.stop is not None]
    return " && ".join([stop_command(workload), *others])


def command_for(workload: Workload, action: Action, proposal: Proposal | None) -> str:
    """What does by hand what is advised; empty where that takes more than one command."""
    if proposal is None:
        return stop_command(workload)
    row, ref = row_of(workload), workload.ref
    if proposal.replicas is None or action not in {Action.SCALE_DOWN, Action.SCALE_UP}:
        return ""
    if row is None or row.replicas is None:
        return _scale(ref, proposal.replicas) if row is None and workload.scalable else ""
    return (
        _scale(ref, proposal.replicas) if row.has_scale else _patch(ref, row.replicas.path, proposal.replicas)
    )


def _patch(ref: ObjectRef, path: Path, value: Any) -> str:  # noqa: ANN401 - JSON
    for step in reversed(path):
        value = {step: value}
    return f"{_kubectl('patch', ref)} --type merge -p {shlex.quote(json.dumps(value))}"


def _scale(ref: ObjectRef, replicas: int) -> str:
    return f"{_kubectl('scale', ref)} --replicas {replicas}"


def _kubectl(verb: str, ref: ObjectRef) -> str:
    """A command about one object, whatever its name: names come from the cluster."""
    kind, dot, group = ref.full_kind.partition(".")
    resource, namespace, name = map(shlex.quote, (kind.lower() + dot + group, ref.namespace, ref.name))
    return f"kubectl -n {namespace} {verb} {resource} {name}"


def stopping(decision: Decision, fleet: Fleet) -> Decision:
    """A decision with what it destroys, where it stops a workload: for good, or to let it go on with less."""
    workload = decision.workload
    if decision.finding.proposal is not None:
        of = row_of(workload) if pause_for(workload, decision.finding.proposal) else None
        return (
            dataclasses.replace(decision, lost=f"it is stopped and restarted: {of.lost}") if of else decision
        )
    along = along_with(workload, fleet)
    rows = [(ref, row) for ref in along if (row := kind_of(ref)) is not None]
    by, row = stopped_by(workload), row_of(workload)
    words = [row.lost] if row is not None else []
    if by is not None and workload.lever is not None:
        words.append(f"by {by[0].kind} {by[0].name}: {by[1].lost}")
    words += [f"{ref.kind} {ref.name}: {row.lost}" for ref, row in rows]
    return dataclasses.replace(
        decision,
        along=along,
        lost="; ".join(words),
        command=stop_commands(workload, rows) if rows else decision.command,
    )


def along_with(workload: Workload, fleet: Fleet) -> tuple[ObjectRef, ...]:
    """What made a workload when the time had come, where another one that it made is stopped already.

    One Job that does nothing may be an accident of that run; of two, the next one will be the same. A Job that was put
    back carries no record any more, so it does not count.
    """
    starter = workload.starter
    if starter is None or kind_of(starter) is None:
        return ()
    before = [
        change
        for change in fleet.changes
        if change.is_in_effect and change.starter == starter and change.ref.name != workload.ref.name
    ]
    return (starter,) if before else ()
