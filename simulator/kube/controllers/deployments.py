"""Deployments: a ReplicaSet per template, and the way from one to the next."""

import collections
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from simulator.kube.controllers.context import (
    Context,
    Key,
    child_pod,
    is_kind,
    matching_keys,
    own_key,
    owner_keys,
    share_of,
)
from simulator.kube.errors import ApiError
from simulator.kube.objects import (
    Object,
    annotations_of,
    clone,
    condition,
    controller_of,
    controller_reference,
    drop_condition,
    is_active,
    is_finished,
    is_ready,
    is_terminating,
    labels_of,
    phase,
    set_condition,
    without_zeroes,
)
from simulator.kube.resources import by_kind
from simulator.kube.store import Event, Record

REVISION = "deployment.kubernetes.io/revision"
_HASH_LABEL = "pod-template-hash"
_SAFE_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_HASH_LENGTH = 10
_NOT_INHERITED = {REVISION, "kubectl.kubernetes.io/last-applied-configuration"}


def template_hash(template: Mapping[str, Any]) -> str:
    """A name for a pod template, the same for the same template."""
    digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).digest()
    return "".join(_SAFE_ALPHABET[byte % len(_SAFE_ALPHABET)] for byte in digest[:_HASH_LENGTH])


class Deployments:
    """The Deployment controller."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def keys(self, event: Event) -> Iterator[Key]:
        """Deployments, their ReplicaSets and, for Recreate, the last pods of those."""
        if is_kind(event, "Deployment"):
            yield own_key(event.record.obj)
        elif is_kind(event, "ReplicaSet"):
            yield from owner_keys(event, "Deployment")
            yield from matching_keys(event, self._context.rows("Deployment", event.record.namespace))
        elif is_kind(event, "Pod") and event.type == "DELETED":
            owner = controller_of(event.record.obj)
            record = self._context.registry.store.by_uid(owner["uid"]) if owner else None
            above = controller_of(record.obj) if record else None
            if above is not None:
                yield (event.record.namespace, above["name"], "")

    def reconcile(self, key: Key) -> None:
        """Move replicas towards the current template, then say how far it is."""
        owner = self._context.find("Deployment", key[0], key[1])
        if owner is None:
            return
        if not is_terminating(owner.obj):
            self._roll(owner)
        self._set_status(owner)

    def _sets(self, owner: Record) -> tuple[Record | None, list[Record]]:
        """The ReplicaSet of the current template, and the older ones, oldest first."""
        wanted = template_hash(owner.obj["spec"]["template"])
        sets = sorted(self._context.children(owner, "ReplicaSet"), key=_revision)
        current = [row for row in sets if row.obj["metadata"].get("labels", {}).get(_HASH_LABEL) == wanted]
        return (current[0] if current else None, [row for row in sets if row not in current])

    def _roll(self, owner: Record) -> None:
        spec = owner.obj["spec"]
        current, old = self._sets(owner)
        if spec["strategy"]["type"] == "Recreate" and not spec.get("paused"):
            for row in old:
                self._resize(row, 0)
            if any(self._pods_left(row) for row in old):
                return
        if spec.get("paused") and current is None:
            return
        current = current or self._create_set(owner, old)
        self._number(current, old)
        if not any(row.obj["spec"]["replicas"] for row in old):
            self._resize(current, spec["replicas"])
            self._forget(old, spec["revisionHistoryLimit"])
        elif not spec.get("paused"):
            self._shift(owner, current, old)

    def _pods_left(self, row: Record) -> bool:
        pods = self._context.children(row, "Pod")
        return any(not is_finished(pod.obj) for pod in pods)

    def _create_set(self, owner: Record, old: list[Record]) -> Record:
        spec = owner.obj["spec"]
        suffix = template_hash(spec["template"])
        template = clone(dict(spec["template"]))
        template.setdefault("metadata", {}).setdefault("labels", {})[_HASH_LABEL] = suffix
        selector = clone(dict(spec["selector"]))
        selector.setdefault("matchLabels", {})[_HASH_LABEL] = suffix
        inherited = {
            key: value for key, value in annotations_of(owner.obj).items() if key not in _NOT_INHERITED
        }
        body = {
            "metadata": {
                "name": f"{owner.name}-{suffix}",
                "labels": dict(template["metadata"]["labels"]),
                "annotations": {**inherited, REVISION: str(_next_revision(old))},
                "ownerReferences": [controller_reference(by_kind("Deployment"), owner.obj)],
            },
            "spec": {"replicas": 0, "selector": selector, "template": template},
        }
        made = self._context.create("ReplicaSet", owner.namespace, body)
        return self._context.registry.find(by_kind("ReplicaSet"), owner.namespace, made["metadata"]["name"])

    def _number(self, current: Record, old: list[Record]) -> None:
        """A ReplicaSet that becomes current again, as after a rollback, gets the newest number."""
        newest = max((_revision(row)[0] for row in old), default=0)
        if _revision(current)[0] <= newest:
            self._context.change(
                current,
                lambda obj: obj["metadata"].setdefault("annotations", {}).update({REVISION: str(newest + 1)}),
            )

    def _shift(self, owner: Record, current: Record, old: list[Record]) -> None:
        """One step of a rolling update within maxSurge and maxUnavailable."""
        wanted = owner.obj["spec"]["replicas"]
        surge, unavailable = _bounds(owner)
        room = max(wanted + surge - _total([current, *old]), 0)
        have = _size(current)
        current = self._resize(current, min(have + room, wanted))
        floor = wanted - unavailable
        spare = _total([current, *old]) - floor - max(_size(current) - _available_of(current), 0)
        cleaned = []
        for row in old:  # unavailable pods first
            less = max(min(_size(row) - _available_of(row), spare), 0)
            cleaned.append(self._resize(row, _size(row) - less))
            spare -= less
        spare = sum(_available_of(row) for row in [current, *old]) - floor
        for row in cleaned:
            less = max(min(_size(row), spare), 0)
            self._resize(row, _size(row) - less)
            spare -= less

    def _resize(self, row: Record, replicas: int) -> Record:
        if _size(row) == replicas:
            return row
        self._context.change(row, lambda obj: obj["spec"].update(replicas=replicas))
        return self._context.registry.find(row.resource, row.namespace, row.name)

    def _forget(self, old: list[Record], limit: int) -> None:
        for row in old[: max(len(old) - limit, 0)]:
            if not row.obj["status"].get("replicas") and not is_terminating(row.obj):
                self._context.delete(row)

    def _set_status(self, owner: Record) -> None:
        owner = self._context.find("Deployment", owner.namespace, owner.name) or owner
        current, old = self._sets(owner)
        known = self._status(owner, current, old)
        revision = annotations_of(current.obj).get(REVISION) if current else None

        def edit(obj: Object) -> None:
            obj["status"] = known
            if revision:  # through /status, so that it does not count as a new generation
                obj["metadata"].setdefault("annotations", {})[REVISION] = revision

        self._context.change(owner, edit, "status")

    def _status(self, owner: Record, current: Record | None, old: list[Record]) -> Object:
        rows = [row.obj.get("status", {}) for row in [*old, *([current] if current else [])]]
        wanted = owner.obj["spec"]["replicas"]
        counts = {
            field: sum(status.get(field, 0) for status in rows)
            for field in ("replicas", "readyReplicas", "availableReplicas")
        }
        status: Object = {
            **owner.obj.get("status", {}),
            **counts,
            "updatedReplicas": current.obj.get("status", {}).get("replicas", 0) if current else 0,
            "unavailableReplicas": max(wanted - counts["availableReplicas"], 0),
            "observedGeneration": owner.obj["metadata"]["generation"],
        }
        status["conditions"] = [dict(entry) for entry in status.get("conditions", ())]
        self._set_conditions(owner, status, current)
        return without_zeroes(status)

    def _set_conditions(self, owner: Record, status: Object, current: Record | None) -> None:
        now = self._context.registry.now()
        wanted = owner.obj["spec"]["replicas"]
        available = status["availableReplicas"] >= wanted - _bounds(owner)[1]
        complete = status["updatedReplicas"] == status["availableReplicas"] == status["replicas"] == wanted
        entries = [_available(available=available)]
        name = current.name if current else owner.name
        entries.append(_progressing(name, complete=complete))
        for entry in entries:
            set_condition(status, entry, now)
            status["conditions"][-1].setdefault("lastUpdateTime", now)
        failure = condition(current.obj, "ReplicaFailure") if current else None
        if failure:
            set_condition(status, {key: failure[key] for key in ("type", "status", "reason", "message")}, now)
        else:
            drop_condition(status, "ReplicaFailure")


def _size(row: Record) -> int:
    return int(row.obj["spec"]["replicas"])


def _total(rows: list[Record]) -> int:
    return sum(_size(row) for row in rows)


def _available_of(row: Record) -> int:
    """Its available pods, without those that a scale-down yet to be carried out will take."""
    return min(int(row.obj.get("status", {}).get("availableReplicas", 0)), _size(row))


def _available(*, available: bool) -> Object:
    return {
        "type": "Available",
        "status": "True" if available else "False",
        "reason": "MinimumReplicasAvailable" if available else "MinimumReplicasUnavailable",
        "message": f"Deployment {'has' if available else 'does not have'} minimum availability.",
    }


def _progressing(name: str, *, complete: bool) -> Object:
    return {
        "type": "Progressing",
        "status": "True",
        "reason": "NewReplicaSetAvailable" if complete else "ReplicaSetUpdated",
        "message": f'ReplicaSet "{name}" {"has successfully progressed" if complete else "is progressing"}.',
    }


def _bounds(owner: Record) -> tuple[int, int]:
    """How many pods more, and how many fewer, a rollout may have; never both zero."""
    spec = owner.obj["spec"]
    if spec["strategy"]["type"] == "Recreate":
        return 0, int(spec["replicas"])
    rolling = spec["strategy"].get("rollingUpdate", {})
    surge = share_of(rolling.get("maxSurge", "25%"), spec["replicas"], round_up=True)
    unavailable = share_of(rolling.get("maxUnavailable", "25%"), spec["replicas"], round_up=False)
    return surge, unavailable if surge or unavailable else 1


def _revision(row: Record) -> tuple[int, str]:
    return (int(annotations_of(row.obj).get(REVISION, "0")), row.name)


def _next_revision(old: list[Record]) -> int:
    return max((_revision(row)[0] for row in old), default=0) + 1


_COST = "controller.kubernetes.io/pod-deletion-cost"
_PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}


class ReplicaSets:
    """The ReplicaSet controller."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def keys(self, event: Event) -> Iterator[Key]:
        """ReplicaSets, their pods and pods that they could adopt; all, when what admission asks for changes."""
        if is_kind(event, "ReplicaSet"):
            yield own_key(event.record.obj)
        elif is_kind(event, "Pod"):
            yield from owner_keys(event, "ReplicaSet")
            yield from matching_keys(event, self._context.rows("ReplicaSet", event.record.namespace))
        elif event.record.resource.kind in {"PriorityClass", "ResourceQuota"}:
            yield from (own_key(row.obj) for row in self._context.rows("ReplicaSet"))

    def reconcile(self, key: Key) -> None:
        """Create or delete pods, then say how many there are."""
        owner = self._context.find("ReplicaSet", key[0], key[1])
        if owner is None:
            return
        failure: ApiError | None = None
        if not is_terminating(owner.obj):
            failure = self._scale(owner)
        pods = [row for row in self._context.children(owner, "Pod") if is_active(row.obj)]
        self._context.set_status(owner, self._status(owner, pods, failure))

    def _scale(self, owner: Record) -> ApiError | None:
        pods = [row for row in self._context.children(owner, "Pod") if is_active(row.obj)]
        wanted = owner.obj["spec"]["replicas"]
        resource = by_kind("ReplicaSet")
        for _ in range(wanted - len(pods)):
            pod = child_pod(owner, owner.obj["spec"]["template"], resource)
            pod["metadata"]["generateName"] = f"{owner.name}-"
            try:
                self._context.create("Pod", owner.namespace, pod)
            except ApiError as error:
                words = f"Error creating: {error.message}"
                self._context.record_event(
                    owner, "Warning", "FailedCreate", words, component="replicaset-controller"
                )
                return error
        sharing = collections.Counter(row.obj["spec"].get("nodeName") for row in pods)
        for row in sorted(pods, key=lambda row: _rank(row, sharing))[: max(len(pods) - wanted, 0)]:
            self._context.delete(row)
        return None

    def _status(self, owner: Record, pods: list[Record], failure: ApiError | None) -> Object:
        template_labels = owner.obj["spec"]["template"].get("metadata", {}).get("labels", {})
        labelled = [row for row in pods if template_labels.items() <= labels_of(row.obj).items()]
        ready = sum(is_ready(row.obj) for row in pods)
        status: Object = {
            **owner.obj.get("status", {}),
            "replicas": len(pods),
            "fullyLabeledReplicas": len(labelled),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "observedGeneration": owner.obj["metadata"]["generation"],
        }
        status["conditions"] = [dict(entry) for entry in status.get("conditions", ())]
        if failure and condition({"status": status}, "ReplicaFailure") is None:
            entry = {
                "type": "ReplicaFailure",
                "status": "True",
                "reason": "FailedCreate",
                "message": failure.message,
            }
            set_condition(status, entry, self._context.registry.now())
        elif not failure:
            drop_condition(status, "ReplicaFailure")
        return without_zeroes(status, keep=("replicas",))


def _rank(row: Record, sharing: Mapping[str | None, int]) -> tuple[Any, ...]:
    """The order in which pods go (kubernetes/pkg/controller: ActivePodsWithRanks)."""
    node = row.obj["spec"].get("nodeName")
    ready = condition(row.obj, "Ready")
    since = ready["lastTransitionTime"] if ready else ""
    return (
        node is not None,
        _PHASES.get(phase(row.obj), 0),
        is_ready(row.obj),
        _deletion_cost(row),
        -sharing[node],
        _Newest(since),
        _Newest(row.obj["metadata"]["creationTimestamp"]),
        row.name,
    )


def _deletion_cost(row: Record) -> int:
    try:
        return int(annotations_of(row.obj).get(_COST, "0"))
    except ValueError:
        return 0


class _Newest(str):
    """A timestamp that sorts the newest first."""

    __slots__ = ()

    def __lt__(self, other: str) -> bool:
        return str.__gt__(self, other)
