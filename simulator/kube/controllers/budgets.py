"""PodDisruptionBudgets: how many disruptions each allows right now."""

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

from simulator.kube.controllers.context import Context, Key, is_kind, own_key, share_of
from simulator.kube.objects import (
    Object,
    controller_of,
    is_ready,
    is_terminating,
    labels_of,
    parse_time,
    set_condition,
)
from simulator.kube.selectors import from_object
from simulator.kube.store import Event, Record

_UNCONFIRMED_S = 120.0  # after this long an eviction that did not come about no longer counts
_SCALABLE = {"ReplicaSet", "StatefulSet"}


class _NoScaleError(Exception):
    """A pod without a controller that has a scale."""


class Budgets:
    """The disruption controller."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def keys(self, event: Event) -> Iterator[Key]:
        """Budgets, and those over pods or workloads that change."""
        if is_kind(event, "PodDisruptionBudget"):
            yield own_key(event.record.obj)
        elif is_kind(event, "Pod"):
            for row in self._context.rows("PodDisruptionBudget", event.record.namespace):
                versions = filter(None, (event.record, event.previous))
                if any(_covers(row, version) for version in versions):
                    yield own_key(row.obj)
        elif event.record.resource.kind in {"Deployment", *_SCALABLE}:
            for row in self._context.rows("PodDisruptionBudget", event.record.namespace):
                yield own_key(row.obj)

    def reconcile(self, key: Key) -> None:
        """Recompute a budget's status."""
        budget = self._context.find("PodDisruptionBudget", key[0], key[1])
        if budget is None or is_terminating(budget.obj):
            return
        pods = [row for row in self._context.rows("Pod", budget.namespace) if _covers(budget, row)]
        try:
            expected, desired = self._expected(budget, pods)
        except _NoScaleError as error:
            self._context.set_status(budget, self._failed(budget, str(error)))
            return
        self._context.set_status(budget, self._status(budget, pods, expected, desired))

    def _expected(self, budget: Record, pods: list[Record]) -> tuple[int, int]:
        """How many pods there should be, and how many of them must be healthy."""
        spec = budget.obj.get("spec", {})
        if "maxUnavailable" in spec:
            expected = self._scale_of(pods)
            return expected, max(expected - share_of(spec["maxUnavailable"], expected, round_up=True), 0)
        minimum = spec.get("minAvailable")
        if minimum is None:
            return 0, 0
        expected = len(pods) if isinstance(minimum, int) else self._scale_of(pods)
        return expected, share_of(minimum, expected, round_up=True)

    def _scale_of(self, pods: list[Record]) -> int:
        """The replicas that the pods' controllers ask for, each controller once."""
        replicas: dict[str, int] = {}
        for pod in pods:
            owner = self._scalable(pod)
            replicas[owner.obj["metadata"]["uid"]] = owner.obj["spec"]["replicas"]
        return sum(replicas.values())

    def _scalable(self, pod: Record) -> Record:
        owner = controller_of(pod.obj)
        if owner is None:
            raise _NoScaleError(f'found no controller ref for pod "{pod.name}"')
        record = self._context.registry.store.by_uid(owner["uid"])
        if record is None or record.resource.kind not in _SCALABLE:
            group = owner["apiVersion"].rpartition("/")[0]
            raise _NoScaleError(f"{owner['kind'].lower()}s.{group} does not implement the scale subresource")
        above = controller_of(record.obj)
        top = self._context.registry.store.by_uid(above["uid"]) if above else None
        return top if top is not None and "replicas" in top.obj.get("spec", {}) else record

    def _status(self, budget: Record, pods: list[Record], expected: int, desired: int) -> Object:
        disrupted = self._disrupted(budget, pods)
        healthy = sum(
            is_ready(row.obj) and not is_terminating(row.obj) and row.name not in disrupted for row in pods
        )
        allowed = max(healthy - desired, 0) if expected > 0 else 0
        reason = "SufficientPods" if allowed else "InsufficientPods"
        status = self._begun(budget, allowed=allowed, reason=reason)
        status |= {
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": expected,
            "disruptedPods": disrupted,
        }
        if not disrupted:
            del status["disruptedPods"]
        return status

    def _failed(self, budget: Record, message: str) -> Object:
        status = self._begun(budget, allowed=0, reason="SyncFailed", message=message)
        return {"currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0, **status}

    def _begun(self, budget: Record, *, allowed: int, reason: str, message: str = "") -> Object:
        status: Object = {**budget.obj.get("status", {}), "disruptionsAllowed": allowed}
        status["observedGeneration"] = budget.obj["metadata"]["generation"]
        status["conditions"] = [dict(entry) for entry in status.get("conditions", ())]
        entry = {
            "type": "DisruptionAllowed",
            "status": "True" if allowed else "False",
            "reason": reason,
            "message": message,
            "observedGeneration": status["observedGeneration"],
        }
        set_condition(status, entry, self._context.registry.now())
        return status

    def _disrupted(self, budget: Record, pods: list[Record]) -> dict[str, str]:
        """Evictions that were granted and have yet to show."""
        known: Mapping[str, Any] = budget.obj.get("status", {}).get("disruptedPods", {})
        waiting = {row.name for row in pods if not is_terminating(row.obj)}
        oldest = parse_time(self._context.registry.now()) - datetime.timedelta(seconds=_UNCONFIRMED_S)
        return {
            name: since for name, since in known.items() if name in waiting and parse_time(since) >= oldest
        }


def _covers(budget: Record, pod: Record) -> bool:
    selector = from_object(budget.obj.get("spec", {}).get("selector"))
    return selector is not None and selector.matches(labels_of(pod.obj))
