"""StatefulSets: numbered pods, one after another up, one after another down."""

import dataclasses
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
from simulator.kube.controllers.deployments import template_hash
from simulator.kube.errors import ApiError
from simulator.kube.objects import Object, is_finished, is_ready, is_terminating, labels_of, without_zeroes
from simulator.kube.resources import by_kind
from simulator.kube.store import Event, Record

_REVISION_LABEL = "controller-revision-hash"
_ALWAYS_SHOWN = ("replicas", "availableReplicas", "collisionCount")


@dataclasses.dataclass(frozen=True, slots=True)
class _Members:
    """The pods of a StatefulSet by ordinal, and the ordinals that there should be."""

    pods: Mapping[int, Record]
    wanted: range

    @property
    def surplus(self) -> list[Record]:
        """Pods beyond the wanted ones, highest first."""
        return [
            self.pods[ordinal] for ordinal in sorted(self.pods, reverse=True) if ordinal not in self.wanted
        ]


class StatefulSets:
    """The StatefulSet controller."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def keys(self, event: Event) -> Iterator[Key]:
        """StatefulSets, their pods and pods that they could adopt."""
        if is_kind(event, "StatefulSet"):
            yield own_key(event.record.obj)
        elif is_kind(event, "Pod"):
            yield from owner_keys(event, "StatefulSet")
            yield from matching_keys(event, self._context.rows("StatefulSet", event.record.namespace))
        elif event.record.resource.kind in {"PriorityClass", "ResourceQuota"}:
            yield from (own_key(row.obj) for row in self._context.rows("StatefulSet"))

    def reconcile(self, key: Key) -> None:
        """Make the next step, then say how far it is."""
        owner = self._context.find("StatefulSet", key[0], key[1])
        if owner is None:
            return
        if not is_terminating(owner.obj):
            self._step(owner, self._members(owner))
        self._context.set_status(owner, self._status(owner, self._members(owner)))

    def _members(self, owner: Record) -> _Members:
        spec = owner.obj["spec"]
        first = spec.get("ordinals", {}).get("start", 0)
        pods = {}
        for row in self._context.children(owner, "Pod"):
            name, _, ordinal = row.name.rpartition("-")
            if name == owner.name and ordinal.isdecimal():
                pods[int(ordinal)] = row
        return _Members(pods, range(first, first + spec["replicas"]))

    def _step(self, owner: Record, members: _Members) -> None:
        ordered = owner.obj["spec"]["podManagementPolicy"] == "OrderedReady"
        for row in members.pods.values():
            if is_finished(row.obj) and not is_terminating(row.obj):
                self._context.delete(row)
        if not self._grow(owner, members, ordered=ordered) and ordered:
            return
        if members.surplus:
            self._shrink(members, ordered=ordered)
        else:
            self._roll(owner, members)

    def _grow(self, owner: Record, members: _Members, *, ordered: bool) -> bool:
        """Create what is missing; whether all that is wanted is there and, where that counts, ready."""
        complete = True
        for ordinal in members.wanted:
            row = members.pods.get(ordinal)
            if row is None:
                complete = False
                if not self._create(owner, ordinal):
                    return False
            else:
                complete = complete and is_ready(row.obj) and not is_terminating(row.obj)
            if ordered and not complete:
                return False
        return complete

    def _create(self, owner: Record, ordinal: int) -> bool:
        spec = owner.obj["spec"]
        pod = child_pod(owner, spec["template"], by_kind("StatefulSet"))
        name = f"{owner.name}-{ordinal}"
        pod["metadata"]["name"] = name
        pod["metadata"]["labels"] |= {
            "apps.kubernetes.io/pod-index": str(ordinal),
            _REVISION_LABEL: _revision(owner),
            "statefulset.kubernetes.io/pod-name": name,
        }
        pod["spec"] = {**pod["spec"], "hostname": name, "subdomain": spec.get("serviceName", "")}
        try:
            self._context.create("Pod", owner.namespace, pod)
        except ApiError as error:  # retried when the StatefulSet, its pods, PriorityClasses or quotas change
            words = f"Create Pod {name} in StatefulSet {owner.name} failed error: {error.message}"
            self._context.record_event(
                owner, "Warning", "FailedCreate", words, component="statefulset-controller"
            )
            return False
        return True

    def _shrink(self, members: _Members, *, ordered: bool) -> None:
        leaving = [row for row in members.surplus if is_terminating(row.obj)]
        if ordered and leaving:
            return
        going = [row for row in members.surplus if not is_terminating(row.obj)]
        for row in going[:1] if ordered else going:
            self._context.delete(row)

    def _roll(self, owner: Record, members: _Members) -> None:
        """Replace the highest pod of an older template, once all others are ready."""
        strategy = owner.obj["spec"]["updateStrategy"]
        if strategy["type"] != "RollingUpdate":
            return
        partition = strategy.get("rollingUpdate", {}).get("partition", 0)
        for ordinal in reversed(members.wanted):
            row = members.pods.get(ordinal)
            if row is None or ordinal < partition:
                return
            if labels_of(row.obj).get(_REVISION_LABEL) != _revision(owner):
                if not is_terminating(row.obj):
                    self._context.delete(row)
                return
            if not is_ready(row.obj) or is_terminating(row.obj):
                return

    def _status(self, owner: Record, members: _Members) -> Object:
        pods = [row for row in members.pods.values() if not is_finished(row.obj)]
        ready = sum(is_ready(row.obj) and not is_terminating(row.obj) for row in pods)
        update = _revision(owner)
        updated = sum(labels_of(row.obj).get(_REVISION_LABEL) == update for row in pods)
        current = owner.obj.get("status", {}).get("currentRevision", update)
        if updated == len(pods):
            current = update
        status = {
            **owner.obj.get("status", {}),
            "observedGeneration": owner.obj["metadata"]["generation"],
            "replicas": len(pods),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "updatedReplicas": updated,
            "currentReplicas": sum(labels_of(row.obj).get(_REVISION_LABEL) == current for row in pods),
            "currentRevision": current,
            "updateRevision": update,
            "collisionCount": 0,
        }
        return without_zeroes(status, keep=_ALWAYS_SHOWN)


def _revision(owner: Record) -> str:
    template: Mapping[str, Any] = owner.obj["spec"]["template"]
    return f"{owner.name}-{template_hash(template)}"
