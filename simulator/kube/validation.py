"""Whether an object can be, and whether a change of it may be; one small function per kind. Pure."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from simulator.kube.errors import FieldError
from simulator.kube.names import key_problems, label_problems
from simulator.kube.objects import Object, name_of
from simulator.kube.podspec import (
    cron_job_problems,
    frozen_problems,
    job_change_problems,
    job_problems,
    not_negative,
    pod_spec_problems,
)
from simulator.kube.resources import is_custom, of_object
from simulator.kube.selectors import from_object, selector_problems

SYSTEM_CLASSES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_HIGHEST_USER_PRIORITY = 1_000_000_000
_LOWEST_INT32 = -(2**31)
_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_MAX_DATA = 1024 * 1024
_TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_TYPES = {"boolean": bool, "count": int, "integer": int, "object": dict, "string": str}
_IMMUTABLE = "field is immutable"
_STATEFUL_SET_MUTABLE = (
    "minReadySeconds",
    "ordinals",
    "persistentVolumeClaimRetentionPolicy",
    "replicas",
    "revisionHistoryLimit",
    "template",
    "updateStrategy",
)


def object_problems(obj: Object) -> Iterable[FieldError]:
    """What is wrong with an object in itself, beyond its metadata."""
    if is_custom(obj):
        return _untyped(obj)
    check = _OBJECT.get(obj["kind"])
    return check(obj) if check else []


def change_problems(old: Mapping[str, Any], new: Object, *, minor: int) -> list[FieldError]:
    """What is wrong with changing `old` into `new`, to Kubernetes 1.minor."""
    if new["kind"] == "Job" and not is_custom(new):
        return list(job_change_problems(old, new, minor))
    check = None if is_custom(new) else _CHANGE.get(new["kind"])
    return list(check(old, new)) if check else []


def _untyped(obj: Object) -> Iterator[FieldError]:
    """Fields of a custom resource that have another type than its definition gives them."""
    for path, kind in of_object(obj).typed:
        value: Any = obj
        for step in path.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        if value is not None and type(value) is not _TYPES[kind]:
            words = f"must be of type {'integer' if kind == 'count' else kind}"
            yield FieldError.invalid(path, value, words)
        elif kind == "count" and isinstance(value, int) and value < 0:
            yield FieldError.invalid(path, value, "should be greater than or equal to 0")


def _pod(obj: Object) -> Iterable[FieldError]:
    return pod_spec_problems(obj["spec"], "spec")


def _templated(obj: Object) -> Iterator[FieldError]:
    spec = obj["spec"]
    yield from not_negative(spec, ("replicas", "minReadySeconds", "revisionHistoryLimit"))
    labels = spec["template"].get("metadata", {}).get("labels") or {}
    yield from label_problems("spec.template.metadata.labels", labels)
    if unreadable := list(selector_problems(spec.get("selector"), "spec.selector")):
        yield from unreadable
        return
    selector = from_object(spec.get("selector"))
    if not selector:
        yield FieldError.required("spec.selector")
        if "selector" in spec:
            yield FieldError.invalid(
                "spec.selector", spec["selector"], "empty selector is invalid for deployment"
            )
    elif not selector.matches(labels):
        yield FieldError.invalid(
            "spec.template.metadata.labels", labels, "`selector` does not match template `labels`"
        )
    policy = spec["template"]["spec"].get("restartPolicy")
    if policy != "Always":
        yield FieldError.unsupported("spec.template.spec.restartPolicy", policy, ["Always"])
    yield from pod_spec_problems(spec["template"]["spec"], "spec.template.spec")


def _priority_class(obj: Object) -> Iterator[FieldError]:
    name, value = name_of(obj), obj["value"]
    policies = ("Never", "PreemptLowerPriority")
    if not isinstance(value, int) or value < _LOWEST_INT32:
        yield FieldError.invalid("value", value, "must be a 32-bit integer")
    elif name.startswith("system-"):
        if SYSTEM_CLASSES.get(name) != value:
            yield FieldError.forbidden(
                "metadata.name",
                "priority class names with 'system-' prefix are reserved for system use only. error: "
                f"{name} is not a known system priority class",
            )
    elif value > _HIGHEST_USER_PRIORITY:
        yield FieldError.forbidden(
            "value", f"maximum allowed value of a user defined priority is {_HIGHEST_USER_PRIORITY}"
        )
    if obj["preemptionPolicy"] not in policies:
        yield FieldError.unsupported("preemptionPolicy", obj["preemptionPolicy"], policies)


def _budget(obj: Object) -> Iterator[FieldError]:
    spec = obj.get("spec", {})
    yield from list(selector_problems(spec.get("selector"), "spec.selector"))
    if "minAvailable" in spec and "maxUnavailable" in spec:
        yield FieldError.invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")
    for field in ("minAvailable", "maxUnavailable"):
        value = spec.get(field, 0)
        if isinstance(value, str):
            number = value.removesuffix("%")
            if not (value.endswith("%") and number.isdecimal() and int(number) <= 100):  # noqa: PLR2004 - percent
                yield FieldError.invalid(
                    f"spec.{field}",
                    value,
                    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%', '93%')",
                )
        else:
            yield from not_negative(spec, (field,))
    policies = ("IfHealthyBudget", "AlwaysAllow")
    policy = spec.get("unhealthyPodEvictionPolicy", policies[0])
    if policy not in policies:
        yield FieldError.unsupported("spec.unhealthyPodEvictionPolicy", policy, policies)


def _event(obj: Object) -> Iterable[FieldError]:
    involved = obj.get("involvedObject", {}).get("namespace", "")
    if (involved or "default") == obj["metadata"]["namespace"]:
        return []
    return [FieldError.invalid("involvedObject.namespace", involved, "does not match event.namespace")]


def _lease(obj: Object) -> Iterator[FieldError]:
    spec = obj.get("spec", {})
    yield from not_negative(spec, ("leaseTransitions",))
    if spec.get("leaseDurationSeconds", 1) <= 0:
        yield FieldError.invalid(
            "spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0"
        )


def _autoscaler(obj: Object) -> Iterator[FieldError]:
    spec = obj["spec"]
    least, most = spec["minReplicas"], spec.get("maxReplicas", 0)
    if most < 1:
        yield FieldError.required("spec.maxReplicas", "must be set and greater than 0")
    if most < least:
        why = "must be greater than or equal to `minReplicas`"
        yield FieldError.invalid("spec.maxReplicas", most, why)
    target = spec.get("scaleTargetRef", {})
    yield from [
        FieldError.required(f"spec.scaleTargetRef.{field}")
        for field in ("kind", "name")
        if not target.get(field)
    ]


def _node(obj: Object) -> Iterator[FieldError]:
    for index, taint in enumerate(obj["spec"].get("taints", ())):
        yield from key_problems(f"metadata.taints[{index}].key", taint.get("key", ""))
        if taint.get("effect", "") not in _TAINT_EFFECTS:
            field = f"metadata.taints[{index}].effect"
            yield FieldError.unsupported(field, taint.get("effect", ""), _TAINT_EFFECTS)


def _data(obj: Object) -> Iterable[FieldError]:
    return [
        FieldError.invalid(
            f"{field}[{key}]",
            key,
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or "
            "'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
        )
        for field in ("data", "binaryData")
        for key in obj.get(field, ())
        if not _CONFIG_KEY.fullmatch(key)
    ]


def _same(old: Mapping[str, Any], new: Mapping[str, Any], fields: Iterable[str]) -> Iterable[FieldError]:
    return [
        FieldError.invalid(f"spec.{field}", new.get(field), _IMMUTABLE)
        for field in fields
        if old.get(field) != new.get(field)
    ]


def _pod_change(old: Mapping[str, Any], new: Object) -> Iterable[FieldError]:
    return frozen_problems(old["spec"], new["spec"])


def _selector_change(old: Mapping[str, Any], new: Object) -> Iterable[FieldError]:
    return _same(old["spec"], new["spec"], ("selector",))


def _stateful_set_change(old: Mapping[str, Any], new: Object) -> Iterable[FieldError]:
    fields = {*old["spec"], *new["spec"]} - set(_STATEFUL_SET_MUTABLE)
    if all(old["spec"].get(field) == new["spec"].get(field) for field in fields):
        return []
    return [
        FieldError.forbidden(
            "spec",
            "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
            "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
        )
    ]


def _priority_class_change(old: Mapping[str, Any], new: Object) -> Iterator[FieldError]:
    if old["value"] != new["value"]:
        yield FieldError.forbidden("value", "may not be changed in an update.")
    if old["preemptionPolicy"] != new["preemptionPolicy"]:
        yield FieldError.invalid("preemptionPolicy", new["preemptionPolicy"], _IMMUTABLE)


def _immutable_data(old: Mapping[str, Any], new: Object) -> Iterable[FieldError]:
    if not old.get("immutable"):
        return []
    return [
        FieldError.forbidden(field, "field is immutable when `immutable` is set")
        for field in ("immutable", "data", "binaryData", "stringData")
        if old.get(field) != new.get(field)
    ]


def _config_map(obj: Object) -> Iterator[FieldError]:
    size = sum(len(str(value)) for field in ("data", "binaryData") for value in obj.get(field, {}).values())
    yield from _data(obj)
    if size > _MAX_DATA:
        yield FieldError("FieldValueTooLong", "", f"Too long: may not be more than {_MAX_DATA} bytes")


def _admission_policy(obj: Object) -> Iterator[FieldError]:
    """Expressions that cannot be read."""
    import cel  # noqa: PLC0415 - imports a terminal toolkit, a third of what the simulator imports

    spec, compile_ = obj["spec"], cel.compile
    for field in ("variables", "matchConditions", "validations"):
        for index, entry in enumerate(spec.get(field, ())):
            try:
                compile_(entry["expression"])
            except ValueError as error:
                why = str(error).splitlines()[0]
                at = f"spec.{field}[{index}].expression"
                yield FieldError.invalid(at, entry["expression"], f"compilation failed: {why}")


_OBJECT: Mapping[str, Callable[[Object], Iterable[FieldError]]] = {
    "ConfigMap": _config_map,
    "CronJob": cron_job_problems,
    "DaemonSet": _templated,
    "Deployment": _templated,
    "Event": _event,
    "HorizontalPodAutoscaler": _autoscaler,
    "Job": job_problems,
    "Lease": _lease,
    "Node": _node,
    "Pod": _pod,
    "PodDisruptionBudget": _budget,
    "PriorityClass": _priority_class,
    "ReplicaSet": _templated,
    "Secret": _data,
    "StatefulSet": _templated,
    "ValidatingAdmissionPolicy": _admission_policy,
}
_CHANGE: Mapping[str, Callable[[Mapping[str, Any], Object], Iterable[FieldError]]] = {
    "ConfigMap": _immutable_data,
    "DaemonSet": _selector_change,
    "Deployment": _selector_change,
    "Pod": _pod_change,
    "PriorityClass": _priority_class_change,
    "ReplicaSet": _selector_change,
    "Secret": _immutable_data,
    "StatefulSet": _stateful_set_change,
}
