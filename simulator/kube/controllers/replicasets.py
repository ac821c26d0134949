"""ReplicaSets: as many pods as asked for; of too many, those go whose loss costs least."""

import collections
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
)
from simulator.kube.errors import ApiError
from simulator.kube.objects import (
    Object,
    annotations_of,
    condition,
    drop_condition,
    is_active,
    is_ready,
    is_terminating,
    labels_of,
    phase,
    set_condition,
    without_zeroes,
)
from simulator.kube.resources import by_kind
from simulator.kube.store import Event, Record

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
                self._context.tell(owner, "Warning", "FailedCreate", words, component="replicaset-controller")
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
