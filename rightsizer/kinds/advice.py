"""Instructions for people: kubectl commands, and the fields that Argo CD or Flux must ignore. Pure."""

import dataclasses
import datetime
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rightsizer.kinds import CLUSTERS, kind_of, pause_for, row_of, stopped_by
from rightsizer.kinds.change_edits import as_read
from rightsizer.kinds.edits import ANY, ITEM, Path, places
from rightsizer.kinds.kind import NOW, START_S, Kind, Stop
from rightsizer.kinds.work_at_risk import HOUR_S, progress_words, work_at_risk
from rightsizer.kube.object_names import Output, api_path, is_possible, kubectl, shell_command
from rightsizer.model import (
    Action,
    Decision,
    FindingName,
    Fleet,
    Manager,
    ObjectRef,
    Proposal,
    Verdict,
    Workload,
)
from rightsizer.policy.recognition import server_of

_CLUSTERS_OWN = frozenset({"DaemonSet", "Node"})
_ANNOTATIONS = ("metadata", "annotations")
_BY_HAND = "by-hand"
_NO_WAKING = "no request wakes it: its owner or gpu-rightsizer undo starts it again"
_LOWER_BOUNDS = {
    "KEDA": ("keda.sh/v1alpha1", "ScaledObject", "minReplicaCount"),
    "HorizontalPodAutoscaler": ("autoscaling/v2", "HorizontalPodAutoscaler", "minReplicas"),
}
"""API version, kind and field of each autoscaler's minimum of replicas; KEDA makes an HPA of its own."""
_ARGO = re.compile(r"(?:jsonPointers|managedFieldsManagers): \[.*\]")
_FLUX = re.compile(r"(?<=paths: )\[.*\]")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def stop_command(workload: Workload) -> str:
    """The command that frees all GPUs of a workload.

    For a kind without a known stop, it opens the object in an editor. It is empty for the cluster's own workloads, and
    for gangs of which something else makes pods again.
    """
    if workload.ref.kind in _CLUSTERS_OWN:
        return ""
    if workload.gang:
        return "" if workload.owned or workload.ref.kind in CLUSTERS else _deletion(workload)
    by, row = stopped_by(workload), row_of(workload)
    if row is not None and row.state is not None and row.stop is None:
        return _deletion(workload) if row.state.names else ""
    if by is not None and by[1].stop is not None:
        return _stopping(*by, by[1].stop, as_read(workload) or {})
    if workload.scalable is not None:
        return _scale(workload.ref, 0)
    return kubectl(workload.ref, "edit")


def _deletion(workload: Workload) -> str:
    first, *others = [pod.ref for pod in workload.holding]
    return kubectl(first, "delete", *(ref.name for ref in others)) if all(map(is_possible, others)) else ""


def _stopping(ref: ObjectRef, row: Kind, stop: Stop, obj: Mapping[str, Any]) -> str:
    if not is_possible(ref):
        return ""
    if stop.field is None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": ref.name, "namespace": ref.namespace},
        }
        path = api_path("v1", ref.namespace, "pods", ref.name, "eviction")
        return shell_command("kubectl", "create", "--raw", path, "-f", "-", fed=json.dumps(body))
    if stop.command is not None:
        _, body = stop.command.body(ref, str(stop.to), run=_BY_HAND)
        return shell_command("kubectl", "create", "-f", "-", fed=json.dumps(body))
    if row.has_scale and row.replicas == stop.field:
        return _scale(ref, 0)
    if stop.field.path[:-1] == _ANNOTATIONS:
        key = f"{stop.field.path[-1]}="
        now = Output(shell_command("date", "-u", "+%FT%TZ"), prefix=key)
        value = now if stop.to == NOW else f"{key}{stop.to}"
        return kubectl(ref, "annotate", value, options=("--overwrite",))
    *above, last = stop.field.path
    where = places(obj, tuple(above)) if ANY in above else [tuple(above)]
    return _patch(ref, stop.to, *((*place, last) for place in where)) if where else kubectl(ref, "edit")


def stop_commands(workload: Workload, along: Sequence[tuple[ObjectRef, Kind]]) -> str:
    """The same, plus the commands for objects that are stopped with it."""
    others = [_stopping(ref, row, row.stop, {}) for ref, row in along if row.stop is not None]
    return " && ".join(filter(None, [stop_command(workload), *others]))


def command_for(workload: Workload, action: Action, proposal: Proposal | None) -> str:
    """The command that carries out an advice; empty if one command is not enough."""
    if proposal is None:
        return stop_command(workload)
    row, ref = row_of(workload), workload.ref
    if proposal.replicas is None or action not in {Action.SCALE_DOWN, Action.SCALE_UP}:
        return ""
    if action is Action.SCALE_DOWN and (bound := _lower_bound(workload, proposal.replicas)):
        return bound
    if row is None or row.replicas is None:
        return _scale(ref, proposal.replicas) if row is None and workload.scalable else ""
    return (
        _scale(ref, proposal.replicas) if row.has_scale else _patch(ref, proposal.replicas, row.replicas.path)
    )


def _lower_bound(workload: Workload, replicas: int) -> str:
    """The command that lets its autoscaler go down to so few replicas: it would revert a change of the workload."""
    found = {manager.kind: manager.name for manager in workload.managers if manager.scales}
    for kind, (api_version, name, field) in _LOWER_BOUNDS.items():
        if kind in found:
            patch = json.dumps({"spec": {field: replicas}})
            ref = ObjectRef(api_version, name, workload.ref.namespace, found[kind])
            return kubectl(ref, "patch", "--type", "merge", "-p", patch, resource=name.lower())
    return ""


def _patch(ref: ObjectRef, value: Any, *paths: Path) -> str:  # noqa: ANN401 - JSON
    patch: dict[str, Any] = {}
    for path in paths:
        parent = patch
        for step in path[:-1]:
            parent = parent.setdefault(step, {})
        parent[path[-1]] = value
    return kubectl(ref, "patch", "--type", "merge", "-p", json.dumps(patch))


def _scale(ref: ObjectRef, replicas: int) -> str:
    return kubectl(ref, "scale", "--replicas", str(replicas))


def stopping(
    decision: Decision, fleet: Fleet, at: datetime.datetime, restart_time: datetime.timedelta | None = None
) -> Decision:
    """A decision with its losses, if it stops or suspends the workload.

    Without a `restart_time`, its kind says how long a restart takes.
    """
    workload = decision.workload
    if decision.finding.proposal is not None:
        of = row_of(workload) if pause_for(workload, decision.finding.proposal) else None
        if of is None:
            return decision
        suspended = dataclasses.replace(decision, lost=f"it is suspended and resumed: {of.lost}")
        return _with_work(suspended, of, at, restart_time)
    along = along_with(workload, fleet)
    rows = [(ref, row) for ref in along if (row := kind_of(ref)) is not None]
    by, row = stopped_by(workload), row_of(workload)
    words = [row.lost] if row is not None else []
    wakers = [f"{manager.kind} {manager.name}" for manager in workload.managers if manager.wakes]
    words += [f"a request starts it again by {waker}" for waker in wakers]
    if by is not None and by[0] != workload.ref:
        words.append(f"by {by[0].kind} {by[0].name}: {by[1].lost}")
    elif _is_server(decision) and not _says_who_wakes(workload, row):
        words.append(_NO_WAKING)
    words += [f"{ref.kind} {ref.name}: {row.lost}" for ref, row in rows]
    made = dataclasses.replace(
        decision,
        along=along,
        lost="; ".join(words),
        command=stop_commands(workload, rows) if rows else decision.command,
    )
    return _with_work(made, row, at, restart_time)


def _with_work(
    decision: Decision, row: Kind | None, at: datetime.datetime, restart_time: datetime.timedelta | None
) -> Decision:
    """Add the work in no checkpoint, if a stop destroys it, and the GPU-hours that the restart takes."""
    workload = decision.workload
    by_kind_s = row.restart_s if row is not None else START_S
    restart = (
        workload.gpus * (restart_time.total_seconds() if restart_time is not None else by_kind_s) / HOUR_S
    )
    if row is None or not row.has_checkpoints:
        return dataclasses.replace(decision, gpu_hours_lost=round(restart, 3))
    is_at_rest = decision.finding.name in {FindingName.IDLE, FindingName.FINISHED}
    risk = work_at_risk(workload, at, idle_s=(decision.finding.idle_s or 0.0) if is_at_rest else 0.0)
    if risk is None:
        return dataclasses.replace(decision, gpu_hours_lost=None)
    progress = progress_words(workload.status)
    words = f"{risk.message}; its status: {progress}" if progress else risk.message
    return dataclasses.replace(
        decision,
        lost=f"{decision.lost} ({words})",
        gpu_hours_at_risk=round(risk.gpu_hours, 3),
        gpu_hours_lost=round(risk.gpu_hours + restart, 3),
    )


def _is_server(decision: Decision) -> bool:
    return decision.finding.name is FindingName.NO_REQUESTS or any(server_of(decision.workload))


def _says_who_wakes(workload: Workload, row: Kind | None) -> bool:
    """Whether an autoscaler may start it again, or its kind says already what a request does."""
    return any(manager.scales for manager in workload.managers) or (row is not None and row.wakes is not None)


def along_with(workload: Workload, fleet: Fleet) -> tuple[ObjectRef, ...]:
    """The CronJob or CronWorkflow that started a workload, if another workload of it is stopped already.

    One idle Job may be an accident; after two, the next one will be idle, too. A restored Job has no record, so it does
    not count.
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


def exception_for(manager: Manager, decision: Decision) -> str:
    """The setting that makes a manager ignore a decision's change; unchanged if there is no change."""
    row = row_of(decision.workload)
    paths = sorted(set(_paths(row, decision))) if row else []
    if decision.finding.verdict is not Verdict.ACT or not paths:
        return manager.exception
    if manager.kind == "Argo CD":
        fields = _argo(paths)
        return _ARGO.sub(lambda _: fields, manager.exception)
    pointers = json.dumps(sorted({_pointer(path) for path in paths}))
    return _FLUX.sub(lambda _: pointers, manager.exception)


def _paths(row: Kind, decision: Decision) -> Iterator[Path]:
    """The fields of the change; for containers all their resources, since their names change."""
    proposal = decision.finding.proposal
    if (proposal is None or pause_for(decision.workload, proposal)) and row.stop and row.stop.field:
        yield row.stop.field.path
    if proposal is None:
        return
    if proposal.replicas is None:
        yield from ((*pattern, "resources") for pattern in row.changeable)
    elif row.groups is not None:
        yield from (field.path for field in row.groups.fields())
    elif row.replicas is not None:
        yield row.replicas.path


def _argo(paths: list[Path]) -> str:
    """A JSON pointer cannot name an item of a list without its index."""
    if any(step.endswith(ITEM) or step == ANY for path in paths for step in path):
        return f"jqPathExpressions: {json.dumps([_jq(path) for path in paths])}"
    return f"jsonPointers: [{', '.join(map(_pointer, paths))}]"


def _jq(path: Path) -> str:
    return "".join("[]" if step.endswith(ITEM) or step == ANY else _key(step) for step in path)


def _key(step: str) -> str:
    return f".{step}" if _PLAIN.fullmatch(step) else f".[{json.dumps(step)}]"


def _pointer(path: Path) -> str:
    """RFC 6901; it ends at the first list, or map of any keys."""
    steps = []
    for step in path:
        if step.endswith(ITEM) or step == ANY:
            break
        steps.append("/" + step.replace("~", "~0").replace("/", "~1"))
    return "".join(steps)
