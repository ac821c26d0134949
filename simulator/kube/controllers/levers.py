"""Stands in for Kueue and KEDA, which hold others' workloads to what their own objects say."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from simulator.kube.controllers.context import Context, Key, is_kind
from simulator.kube.objects import Object, annotations_of, controller_of, uid_of
from simulator.kube.resources import by_kind
from simulator.kube.store import Event, Record

_PAUSED = "autoscaling.keda.sh/paused-replicas"


class Levers:
    """Kueue suspends and resumes the jobs of its Workloads; KEDA scales the targets of its ScaledObjects."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def keys(self, event: Event) -> Iterator[Key]:
        """Their objects, and what they hold whenever it changes."""
        record = event.record
        if is_kind(event, "Workload") or is_kind(event, "ScaledObject"):
            yield (record.namespace, record.name, uid_of(record.obj))
            return
        for row in self._context.registry.store.dependents(uid_of(record.obj)):
            if row.resource is by_kind("Workload"):
                yield (row.namespace, row.name, uid_of(row.obj))
        for row in self._context.rows("ScaledObject", record.namespace) if record.namespace else ():
            target = row.obj.get("spec", {}).get("scaleTargetRef", {})
            if (target.get("kind", "Deployment"), target.get("name")) == (record.resource.kind, record.name):
                yield (row.namespace, row.name, uid_of(row.obj))

    def reconcile(self, key: Key) -> None:
        """Put back what differs."""
        record = self._context.registry.store.by_uid(key[2])
        if record is None:
            return
        if record.resource is by_kind("Workload"):
            self._admit(record)
        else:
            self._scale(record)

    def _admit(self, workload: Record) -> None:
        owner = controller_of(workload.obj)
        job = self._context.registry.store.by_uid(owner["uid"]) if owner else None
        if job is None:
            return
        wanted = workload.obj.get("spec", {}).get("active") is False
        holder = "runPolicy" if "runPolicy" in job.obj["spec"] else ""
        spec: Mapping[str, Any] = job.obj["spec"][holder] if holder else job.obj["spec"]
        if bool(spec.get("suspend")) != wanted:
            self._context.change(job, functools.partial(_suspend, holder, suspend=wanted))

    def _scale(self, scaler: Record) -> None:
        spec = scaler.obj.get("spec", {})
        target = spec.get("scaleTargetRef", {})
        found = self._context.find(target.get("kind", "Deployment"), scaler.namespace, target.get("name", ""))
        if found is None or "replicas" not in found.obj.get("spec", {}):
            return
        now = found.obj["spec"]["replicas"]
        paused = annotations_of(scaler.obj).get(_PAUSED)
        wanted = max(now, spec.get("minReplicaCount", 0)) if paused is None else int(paused)
        if wanted != now:
            self._context.change(found, functools.partial(_replicate, wanted))


def _suspend(holder: str, obj: Object, *, suspend: bool) -> None:
    spec = obj["spec"][holder] if holder else obj["spec"]
    spec["suspend"] = suspend


def _replicate(replicas: int, obj: Object) -> None:
    obj["spec"]["replicas"] = replicas
