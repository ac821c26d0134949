"""The edits that a decision makes to an object, and whether the object has the fields for them. Pure.

An unknown field does not block a plan: the dry run before the write checks it.
"""

import contextlib
import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rightsizer.inventory.gpu_requests import CLASS_PREFIX
from rightsizer.inventory.managers import QUEUE, QUEUED_PODS
from rightsizer.kinds import row_of, stopped_by
from rightsizer.kinds.claim_templates import claim_edit
from rightsizer.kinds.edits import (
    ANY,
    Path,
    edit_of,
    is_item,
    matches,
    patch_of,
    places,
    same,
    shown,
    value_at,
)
from rightsizer.kinds.kind import NOW, BlockingField, Kind, WorkerGroups
from rightsizer.kinds.patches import lowered_replicas, recorded_edits, require_recordable
from rightsizer.kube.owner_kinds import Queueing
from rightsizer.model import Action, ClaimTemplate, Edit, Pod, Proposal, Workload


def stop_edits(kind: Kind, obj: Mapping[str, Any], at: datetime.datetime) -> list[Edit]:
    """The edits that free all GPUs of an object; none if its pod is evicted.

    Raises:
        ValueError: It would stop nothing; the message says why.
    """
    stop = kind.stop
    if stop is None or stop.field is None:
        return []
    _require_none(obj, stop.unless)
    to = at.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if stop.to == NOW else stop.to
    path = stop.field.path
    within = places(obj, path[:-1]) if ANY in path else [path[:-1]]
    found = [edit_of(obj, (*place, path[-1]), to, absent=stop.field.absent) for place in within]
    if all(same(edit.before, to) for edit in found):
        message = f"its {shown(path)} is {to} already" if found else f"it has no {shown(path)}"
        raise ValueError(message)
    return [edit for edit in found if not same(edit.before, to)]


def _require_none(obj: Mapping[str, Any], guards: Sequence[BlockingField]) -> None:
    for guard in guards:
        if guard.holds(obj):
            raise ValueError(str(guard))


def proposal_edits(
    kind: Kind,
    obj: Mapping[str, Any],
    proposal: Proposal,
    *,
    resources: Sequence[str],
    pods: Sequence[Pod] = (),
    templates: Sequence[ClaimTemplate] = (),
) -> list[Edit]:
    """The edits of a scale-up, scale-down, resize or reslice of an object.

    Args:
        kind: Of the object.
        obj: As it was read, with all its fields.
        proposal: The wanted size.
        resources: Names of the GPU resources that its pods request.
        pods: Of the object.
        templates: The ResourceClaimTemplates that the pods' claims for GPUs were made from.

    Raises:
        ValueError: It is impossible for this object; the message says why.
    """
    if proposal.replicas is not None:
        _require_none(obj, kind.unless)
        if kind.groups is not None:
            grows = proposal.action is Action.SCALE_UP
            return (
                group_growth(kind.groups, obj, proposal)
                if grows
                else group_edits(kind.groups, obj, proposal, pods)
            )
        return [_replicas_edit(kind, obj, proposal.replicas)]
    if proposal.gpus_per_pod is not None:
        if len(resources) != 1:
            message = (
                f"its pods ask for {', '.join(resources) or 'no GPU resource'}, not for one GPU resource"
            )
            raise ValueError(message)
        _require_preconditions(kind, obj, for_slices=False)
        if resources[0].startswith(CLASS_PREFIX):
            return [claim_edit(kind, obj, templates, proposal)]
        return _amount_edits(kind, obj, resources, {resources[0]: proposal.gpus_per_pod})
    _require_preconditions(kind, obj, for_slices=True)
    if any(name.startswith(CLASS_PREFIX) for name in resources):
        return [claim_edit(kind, obj, templates, proposal)]
    return _amount_edits(kind, obj, resources, dict(proposal.asks))


def _require_preconditions(kind: Kind, obj: Mapping[str, Any], *, for_slices: bool) -> None:
    for need in kind.preconditions:
        value = value_at(obj, need.path)
        if (for_slices or not need.only_for_slices) and not any(same(value, text) for text in need.allowed):
            message = f"its {shown(need.path)} is {json.dumps(value)}: {need.why}"
            raise ValueError(message)


def _replicas_edit(kind: Kind, obj: Mapping[str, Any], replicas: int) -> Edit:
    if kind.replicas is None:
        message = f"a {kind.kind} has no number of replicas"
        raise ValueError(message)
    return edit_of(obj, kind.replicas.path, replicas)


def _amount_edits(
    kind: Kind, obj: Mapping[str, Any], resources: Sequence[str], amounts: Mapping[str, int]
) -> list[Edit]:
    """Replace these resources in the one container that requests them; requests and limits stay equal.

    If only the pods request a resource, admission added it and will add it again.
    """
    asking = [
        path
        for pattern in kind.changeable
        for path in places(obj, pattern)
        if set(resources) & set(value_at(obj, (*path, "resources", "limits")) or ())
    ]
    if len(asking) != 1:
        named = " or ".join(resources) or "a GPU resource"
        message = (
            f"{len(asking)} of its containers declare {named} in their limits, not one"
            if asking
            else f"none of its containers declares {named} in its limits"
        )
        raise ValueError(message)
    _require_no_init(obj, asking[0], resources)
    limits = value_at(obj, (*asking[0], "resources", "limits"))
    found = []
    for part in ("limits", "requests"):
        place = (*asking[0], "resources", part)
        declared = value_at(obj, place) or {}
        if not set(resources) & set(declared):
            continue
        if any(name in declared and str(declared[name]) != str(limits.get(name)) for name in resources):
            message = f"its {shown(asking[0])} requests another amount than its limits allow"
            raise ValueError(message)
        for name in dict.fromkeys((*resources, *amounts)):
            wanted = amounts.get(name)
            if str(declared.get(name)) != str(wanted):
                found.append(edit_of(obj, (*place, name), None if wanted is None else str(wanted)))
    return found


def _require_no_init(obj: Mapping[str, Any], container: Path, resources: Sequence[str]) -> None:
    """Refuse an init container that requests GPUs: a pod gets the maximum of all its containers, by resource."""
    initial = value_at(obj, (*container[:-2], "initContainers"))
    for init in initial if isinstance(initial, list) else ():
        asked = (init.get("resources") or {}).get("limits") or {} if isinstance(init, Mapping) else {}
        if named := sorted(set(resources) & set(asked)):
            message = f"its init container {init.get('name')} asks for {named[0]}, too"
            raise ValueError(message)


def group_edits(
    groups: WorkerGroups, obj: Mapping[str, Any], proposal: Proposal, pods: Sequence[Pod]
) -> list[Edit]:
    """Scale down each group with idle workers, and name these if that is possible, so that only they are deleted."""
    found: list[Edit] = []
    for place in places(obj, groups.pattern):
        name = group_name(place)
        own = [pod for pod in pods if pod.labels.get(groups.label) == name]
        going = sorted(pod.ref.name for pod in own if pod.ref.name in proposal.pods)
        if not going:
            continue
        replicas = _replicas_of(groups, value_at(obj, place), own, going)
        count = value_at(obj, (*place, "replicas"))
        kept = 1 if proposal.role else 0
        if type(count) is not int or count < replicas + kept:
            message = f"{shown(place)} asks for {count!r} replicas, of which {replicas} are to be deleted"
            raise ValueError(message)
        left = count - replicas
        found.append(edit_of(obj, (*place, "replicas"), left))
        least = value_at(obj, (*place, *groups.least)) if groups.least else None
        if type(least) is int and least > left:
            found.append(edit_of(obj, (*place, *groups.least), left))
        if groups.going:
            found.append(edit_of(obj, (*place, *groups.going), going))
    if not found:
        message = "none of its groups has the idle pods"
        raise ValueError(message)
    return found


def group_growth(groups: WorkerGroups, obj: Mapping[str, Any], proposal: Proposal) -> list[Edit]:
    """Give back replicas of the group of a role; without roles, all that was taken from each group.

    Raises:
        ValueError: Nothing was taken.
    """
    annotations = obj["metadata"].get("annotations") or {}
    found: list[Edit] = []
    for lowered in lowered_replicas(annotations):
        place = lowered.path[:-1]
        if not matches(place, groups.pattern):
            continue
        if proposal.role == group_name(place):
            found.append(edit_of(obj, lowered.path, proposal.replicas))
        elif not proposal.role:
            taken = (edit for edit in recorded_edits(annotations) if edit.path[: len(place)] == place)
            found += [edit_of(obj, edit.path, edit.before) for edit in taken]
    if not found:
        message = "gpu-rightsizer took no replicas from its groups"
        raise ValueError(message)
    return found


def group_name(place: Path) -> str:
    """The name of the group at a path."""
    return place[-1].partition("=")[2] if is_item(place[-1]) else place[-1]


def _replicas_of(
    groups: WorkerGroups, group: Mapping[str, Any], pods: Sequence[Pod], going: Sequence[str]
) -> int:
    """Number of replicas that the pods to delete form.

    Raises:
        ValueError: They are not whole replicas, or that is unknown.
    """
    hosts = value_at(group, groups.hosts) or 1
    if hosts == 1:
        return len(going)
    of: dict[str, list[str]] = {}
    for pod in pods:
        of.setdefault(pod.labels.get(groups.replica, ""), []).append(pod.ref.name)
    leaving = [names for names in of.values() if set(names) & set(going)]
    if "" in of:
        message = (
            f"{hosts!r} pods make a replica, and which ones is unknown: they have no label {groups.replica}"
        )
        raise ValueError(message)
    if any(len(names) != hosts or not set(names) <= set(going) for names in leaving):
        message = f"{hosts!r} pods make a replica, and not all of one are idle"
        raise ValueError(message)
    return len(leaving)


def missing_field_reason(workload: Workload, proposal: Proposal | None, at: datetime.datetime) -> str:
    """Why a proposal, or a stop without one, is impossible for a workload's own object; empty if it is possible."""
    row, obj = row_of(workload), as_read(workload)
    by = stopped_by(workload) if proposal is None else None
    if row is None or obj is None or (by is not None and by[0] != workload.ref):
        return ""
    resources = sorted({name for pod in workload.pods for name in pod.resources})
    if proposal is not None and (why := _queue_blocker(workload, row, proposal)):
        return why
    if proposal is None and row.unless_pod is not None:
        label, why = row.unless_pod
        if any(label in pod.labels for pod in workload.pods):
            return why
    try:
        edits = (
            stop_edits(row, obj, at)
            if proposal is None
            else proposal_edits(
                row,
                obj,
                proposal,
                resources=resources,
                pods=workload.pods,
                templates=workload.claim_templates,
            )
        )
        patch_of(obj, edits)
        require_recordable(row, edits)
    except ValueError as error:
        return str(error)
    return ""


def _queue_blocker(workload: Workload, row: Kind, proposal: Proposal) -> str:
    """Why its queue would not let another number of replicas, or other pods, start; empty if it would."""
    is_queued = any(manager.kind == "Kueue" for manager in workload.managers) or any(
        QUEUED_PODS in pod.annotations for pod in workload.pods
    )
    if proposal.replicas is None and (is_queued or any(QUEUE in pod.labels for pod in workload.pods)):
        return "Kueue admits it by the quota of what it asks for now"
    if proposal.replicas is not None and is_queued and row.of.queueing is Queueing.WHOLE:
        return f"Kueue lets a {row.kind} with a queue keep all replicas or none"
    return ""


def pod_spec_of(workload: Workload) -> dict[str, Any]:
    """The part of a workload's object with the nodeSelector, tolerations and affinity of its pods; empty if unknown.

    It is the template's spec or, without one, the nearest mapping around the containers that has such a field.
    """
    row, obj = row_of(workload), as_read(workload)
    if row is None or obj is None:
        return {}
    for pattern in row.changeable:
        for path in places(obj, pattern):
            for length in range(len(path), 0, -1):
                spec = value_at(obj, path[:length])
                if isinstance(spec, dict) and _PLACEMENT & spec.keys():
                    return spec
    return {}


_PLACEMENT = frozenset({"nodeSelector", "tolerations", "affinity"})


def as_read(workload: Workload) -> dict[str, Any] | None:
    """The annotations and the spec of a workload's own object; None if they were not read, or are unreadable."""
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        if workload.spec:
            spec = msgspec.json.decode(workload.spec)
            return {"metadata": {"annotations": dict(workload.annotations)}, "spec": spec}
    return None
