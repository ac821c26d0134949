"""The scale and eviction subresources.

Eviction follows kubernetes/pkg/registry/core/pod/storage/eviction.go: with two budgets it answers 500.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from simulator.kube import errors
from simulator.kube.decoding import Target, Write
from simulator.kube.deletion import DeleteOptions, check_preconditions, delete
from simulator.kube.errors import ApiError, FieldError
from simulator.kube.objects import (
    Object,
    is_finished,
    is_ready,
    is_terminating,
    labels_of,
    phase,
    set_condition,
)
from simulator.kube.policies import Attempt, enforce
from simulator.kube.registry import Registry
from simulator.kube.resources import Resource, by_kind
from simulator.kube.selectors import from_object
from simulator.kube.store import Record

_MAX_DISRUPTED_PODS = 2000  # evictions that the budget's controller has yet to confirm
_STALE_RETRY_S = 10
_BLOCKED = "Cannot evict pod as it would violate the pod's disruption budget."
_TWO_BUDGETS = (
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
)


def evict(registry: Registry, target: Target, body: Mapping[str, Any], *, dry_run: bool) -> Object:
    """Evict a pod; the answer is a Status."""
    if body.get("metadata", {}).get("name") != target.name:
        raise errors.bad_request("name in URL does not match name in Eviction object")
    options = DeleteOptions.parse(body.get("deleteOptions") or {}, dry_run=dry_run)
    with registry.store.lock:
        pod = registry.find(target.resource, target.namespace, target.name)
        _require_uid(pod, options)
        if not _needs_no_budget(pod.obj):
            budgets = _budgets_of(registry, pod)
            if len(budgets) > 1:
                return _status("Failure", 500, _TWO_BUDGETS)
            if budgets and not _unready_may_go(pod, budgets[0]):
                check_preconditions(pod, options)
                _take_one(registry, pod, budgets[0], dry_run=options.dry_run)
            options = _announce(registry, pod, options)
        delete(registry, Target(target.resource, target.namespace, target.name), options)
    return _status("Success", 201)


def _require_uid(pod: Record, options: DeleteOptions) -> None:
    uid = pod.obj["metadata"]["uid"]
    if options.uid not in {None, uid}:
        raise ApiError(
            409,
            "Conflict",
            f'Operation cannot be fulfilled on Pod "{pod.name}": the UID in the precondition ({options.uid}) does not '
            f"match the UID in record ({uid}). The object might have been deleted and then recreated",
            details={"name": pod.name, "kind": "Pod"},
        )


def _status(status: str, code: int, message: str = "") -> Object:
    words = {"message": message} if message else {}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": status, **words, "code": code}


def _needs_no_budget(pod: Mapping[str, Any]) -> bool:
    return is_finished(pod) or phase(pod) == "Pending" or is_terminating(pod)


def _budgets_of(registry: Registry, pod: Record) -> list[Record]:
    kind = by_kind("PodDisruptionBudget")
    return [row for row in registry.store.rows(kind, pod.namespace) if _covers(row, pod)]


def _covers(budget: Record, pod: Record) -> bool:
    selector = from_object(budget.obj.get("spec", {}).get("selector"))
    return selector is not None and selector.matches(labels_of(pod.obj))


def _unready_may_go(pod: Record, budget: Record) -> bool:
    """Whether the pod, being unready, does not count against the budget."""
    if is_ready(pod.obj):
        return False
    if budget.obj["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget.obj.get("status", {})
    desired = status.get("desiredHealthy", 0)
    return bool(status.get("currentHealthy", 0) >= desired > 0)


def _take_one(registry: Registry, pod: Record, budget: Record, *, dry_run: bool) -> None:
    """Check the budget and, unless this is a dry run, use up one of its disruptions."""
    status = budget.obj.get("status", {})
    allowed = status.get("disruptionsAllowed", 0)
    if status.get("observedGeneration", 0) < budget.obj["metadata"]["generation"]:
        raise _blocked(
            f"The disruption budget {budget.name} is still being processed by the server.", _STALE_RETRY_S
        )
    if allowed < 0:
        raise errors.forbidden(budget.resource, budget.name, "pdb disruptions allowed is negative")
    if len(status.get("disruptedPods", ())) > _MAX_DISRUPTED_PODS:
        raise errors.forbidden(
            budget.resource,
            budget.name,
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        )
    if allowed == 0:
        raise _blocked(
            f"The disruption budget {budget.name} needs {status.get('desiredHealthy', 0)} healthy pods and has "
            f"{status.get('currentHealthy', 0)} currently",
            0,
        )
    if not dry_run:
        _record(registry, pod, budget)


def _record(registry: Registry, pod: Record, budget: Record) -> None:
    def edit(obj: Object) -> Object:
        obj["status"]["disruptionsAllowed"] -= 1
        obj["status"].setdefault("disruptedPods", {})[pod.name] = registry.now()
        return obj

    registry.change(Target(budget.resource, budget.namespace, budget.name, "status"), edit)


def _announce(registry: Registry, pod: Record, options: DeleteOptions) -> DeleteOptions:
    """Write the DisruptionTarget condition; a resourceVersion precondition moves on with the pod."""
    check_preconditions(pod, options)
    if options.dry_run:
        return options
    entry = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
    }

    def edit(obj: Object) -> Object:
        set_condition(obj["status"], entry, registry.now())
        return obj

    changed = registry.change(Target(pod.resource, pod.namespace, pod.name, "status"), edit)
    if options.resource_version is None:
        return options
    return dataclasses.replace(options, resource_version=changed["metadata"]["resourceVersion"])


def _blocked(why: str, retry_after_s: int) -> ApiError:
    return errors.too_many_requests(_BLOCKED, retry_after_s, {"reason": "DisruptionBudget", "message": why})


def scale_of(record: Record) -> Object:
    """The Scale of a workload; zero replicas are left out of its spec, as in the real server's JSON."""
    return _scale(record.resource, record.obj)


def _scale(resource: Resource, obj: Mapping[str, Any]) -> Object:
    metadata = obj["metadata"]
    shown = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    *above, last = resource.replicas
    replicas = _within(obj, above).get(last, 0)
    selector = None if resource.is_custom else from_object(obj["spec"].get("selector"))
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in shown if key in metadata},
        "spec": {"replicas": replicas} if replicas else {},
        "status": {
            "replicas": obj.get("status", {}).get("replicas", 0),
            "selector": str(selector or ""),
        },
    }


def change_scale(
    registry: Registry, target: Target, edit: Callable[[Object], Mapping[str, Any]], write: Write
) -> Object:
    """Read, edit and write back a Scale, under the preconditions in its metadata."""

    def apply(obj: Object) -> Object:
        old = _scale(target.resource, obj)
        scale = edit(_scale(target.resource, obj))
        replicas = _replicas(scale, target.name)
        attempt = Attempt(write, target.resource, "UPDATE", scale, old, "scale")
        enforce(registry.store, attempt)
        *above, last = target.resource.replicas
        _within(obj, above)[last] = replicas
        for field in ("uid", "resourceVersion"):
            obj["metadata"][field] = scale.get("metadata", {}).get(field)
        return obj

    whole = Target(target.resource, target.namespace, target.name)
    changed = registry.change(whole, apply, dataclasses.replace(write, subresource="scale"))
    return _scale(target.resource, changed)


def _within(obj: Mapping[str, Any], path: list[str]) -> Object:
    """The mapping at a path of an object."""
    here: Any = obj
    for step in path:
        here = here.setdefault(step, {})
    found: Object = here
    return found


def _replicas(scale: Mapping[str, Any], name: str) -> int:
    given = scale.get("metadata", {}).get("name")
    if given != name:
        raise errors.bad_request(
            f"the name of the object ({given}) does not match the name on the URL ({name})"
        )
    replicas = (scale.get("spec") or {}).get("replicas") or 0
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise errors.bad_request(
            'Scale in version "v1" cannot be handled as a Scale: json: cannot unmarshal '
            f"{type(replicas).__name__} into Go struct field ScaleSpec.spec.replicas of type int32"
        )
    if replicas < 0:
        problem = FieldError.invalid("spec.replicas", replicas, "must be greater than or equal to 0")
        raise errors.invalid("Scale", "autoscaling", name, [problem])
    return replicas
