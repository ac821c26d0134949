"""The scale subresource: replicas of a workload as an autoscaling/v1 Scale."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from simulator.kube import errors
from simulator.kube.errors import FieldError
from simulator.kube.objects import Object
from simulator.kube.policies import Attempt, enforce
from simulator.kube.receiving import Target, Write
from simulator.kube.registry import Registry
from simulator.kube.resources import Resource
from simulator.kube.selectors import from_object
from simulator.kube.store import Record


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
        attempt = Attempt.of(write, target.resource, "UPDATE", scale, old, "scale")
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
