"""Deletion: preconditions, grace period, finalizers and propagation. Controllers do what follows."""

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any

from simulator.kube import admission, errors
from simulator.kube.decoding import Target
from simulator.kube.errors import FieldError
from simulator.kube.objects import Object, is_finished, parse_time, rfc3339
from simulator.kube.registry import Registry
from simulator.kube.store import Record

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
_POLICIES = {"Foreground": FOREGROUND, "Background": None, "Orphan": ORPHAN}


@dataclasses.dataclass(frozen=True, slots=True)
class DeleteOptions:
    """How to delete: `grace_s` of None is the object's own; `policy` of None is the resource's default."""

    grace_s: int | None = None
    uid: str | None = None
    resource_version: str | None = None
    policy: str | None = None
    dry_run: bool = False

    @classmethod
    def parse(cls, body: Mapping[str, Any], *, dry_run: bool = False) -> "DeleteOptions":
        """From a `DeleteOptions` object; `dry_run` is what the request's query says."""
        preconditions = body.get("preconditions") or {}
        policy = body.get("propagationPolicy")
        problems = []
        if policy is not None and policy not in _POLICIES:
            problems.append(FieldError.unsupported("propagationPolicy", policy, [*_POLICIES, "nil"]))
        if policy is not None and body.get("orphanDependents") is not None:
            problems.append(
                FieldError.invalid(
                    "propagationPolicy", policy, "orphanDependents and deletionPropagation cannot be both set"
                )
            )
        dry = body.get("dryRun") or []
        problems += [FieldError.unsupported("dryRun", dry, ["All"]) for entry in dry if entry != "All"]
        if problems:
            raise errors.invalid("DeleteOptions", "meta.k8s.io", "", problems)
        if body.get("orphanDependents") is not None:
            policy = "Orphan" if body["orphanDependents"] else "Background"
        return cls(
            grace_s=body.get("gracePeriodSeconds"),
            uid=preconditions.get("uid"),
            resource_version=preconditions.get("resourceVersion"),
            policy=policy,
            dry_run=dry_run or bool(dry),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Deleted:
    """What a deletion came to: the object as it last was, and whether it is gone already."""

    obj: Object
    gone: bool


def delete(registry: Registry, target: Target, options: DeleteOptions) -> Deleted:
    """Delete an object, or begin to."""
    resource = target.resource
    with registry.store.lock:
        record = registry.find(resource, target.namespace, target.name)
        admission.check_deletion(resource, target.name)
        check_preconditions(record, options)
        grace_s = _grace(record, options)
        finalizers = _finalizers(record, options)
        waits = grace_s > 0 or bool(finalizers) or resource.kind == "Namespace"
        if not waits:
            gone = record.copy() if options.dry_run else registry.store.remove(record).copy()
            return Deleted(gone, gone=True)
        marked = _marked(registry, record, grace_s, finalizers)
        if not options.dry_run and marked != record.obj:
            registry.store.put(resource, marked)
        return Deleted(marked, gone=False)


def check_preconditions(record: Record, options: DeleteOptions) -> None:
    """Refuse to delete another object, or another version of it, than the client saw."""
    seen = (
        ("UID", options.uid, record.obj["metadata"]["uid"]),
        ("ResourceVersion", options.resource_version, str(record.revision)),
    )
    for what, wanted, actual in seen:
        if wanted is not None and wanted != actual:
            raise errors.conflict(
                record.resource,
                record.name,
                f"Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {actual}",
            )


def _grace(record: Record, options: DeleteOptions) -> int:
    """Seconds of grace: only pods that run somewhere have any."""
    if record.resource.kind != "Pod":
        return 0
    grace_s = options.grace_s
    if grace_s is None:
        grace_s = int(record.obj["spec"]["terminationGracePeriodSeconds"])
    if "nodeName" not in record.obj["spec"] or is_finished(record.obj):
        return 0
    return max(grace_s, 0)


def _finalizers(record: Record, options: DeleteOptions) -> list[str]:
    finalizers = list(record.obj["metadata"].get("finalizers", ()))
    default = "Orphan" if record.resource.orphans_by_default else "Background"
    wanted = _POLICIES[options.policy or default]
    if "deletionTimestamp" not in record.obj["metadata"] or options.policy is not None:
        finalizers = [entry for entry in finalizers if entry not in {FOREGROUND, ORPHAN}]
        finalizers += [wanted] if wanted else []
    return finalizers


def _marked(registry: Registry, record: Record, grace_s: int, finalizers: list[str]) -> Object:
    """The object as terminating; a shorter grace period replaces a longer one."""
    obj = record.copy()
    metadata = obj["metadata"]
    if finalizers:
        metadata["finalizers"] = finalizers
    else:
        metadata.pop("finalizers", None)
    before = metadata.get("deletionGracePeriodSeconds")
    if before is None or grace_s < before:
        due = parse_time(registry.now()) + datetime.timedelta(seconds=grace_s)
        metadata["deletionTimestamp"] = rfc3339(due)
        metadata["deletionGracePeriodSeconds"] = grace_s
        if before is None and "generation" in metadata:
            metadata["generation"] += 1
    if record.resource.kind == "Namespace":
        obj["status"] = {**obj.get("status", {}), "phase": "Terminating"}
    return obj
