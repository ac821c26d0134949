"""Whether a pod's spec can be: containers, images, resources. Pure; used for pods and for every template."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from simulator.kube.errors import FieldError
from simulator.kube.names import dns_label
from simulator.kube.objects import Object, holds
from simulator.kube.quantity import parse_quantity

_NATIVE = ("cpu", "memory", "ephemeral-storage")
_RESTART_POLICIES = ("Always", "OnFailure", "Never")
_MUTABLE_IN_CONTAINERS = ("image",)
_FROZEN = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def pod_spec_problems(spec: Object, field: str) -> Iterator[FieldError]:
    """What is wrong with a pod's spec found at `field`."""
    containers = spec.get("containers")
    if not containers:
        yield FieldError.required(f"{field}.containers")
    seen: set[str] = set()
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or ()):
            at = f"{field}.{group}[{index}]"
            yield from _container_problems(container, at)
            if container.get("name") in seen:
                yield FieldError.duplicate(f"{at}.name", container["name"])
            seen.add(container.get("name", ""))
    if spec.get("restartPolicy") not in _RESTART_POLICIES:
        yield FieldError.unsupported(f"{field}.restartPolicy", spec.get("restartPolicy"), _RESTART_POLICIES)
    grace = spec.get("terminationGracePeriodSeconds", 0)
    if not isinstance(grace, int) or grace < 0:
        yield FieldError.invalid(
            f"{field}.terminationGracePeriodSeconds", grace, "must be greater than or equal to 0"
        )


def not_negative(spec: Mapping[str, Any], fields: Iterable[str], at: str = "spec") -> Iterator[FieldError]:
    """Problems of counts."""
    for field in fields:
        value = spec.get(field, 0)
        if not isinstance(value, int) or isinstance(value, bool):
            yield FieldError.invalid(f"{at}.{field}", value, "must be an integer")
        elif value < 0:
            yield FieldError.invalid(f"{at}.{field}", value, "must be greater than or equal to 0")


def _container_problems(container: Mapping[str, Any], field: str) -> Iterator[FieldError]:
    if not container.get("name"):
        yield FieldError.required(f"{field}.name")
    else:
        yield from dns_label(f"{field}.name", container["name"])
    if not container.get("image"):
        yield FieldError.required(f"{field}.image")
    yield from _resource_problems(container.get("resources", {}), f"{field}.resources")


def _resource_problems(resources: Mapping[str, Any], field: str) -> Iterator[FieldError]:
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    malformed = [
        problem
        for group, entries in (("limits", limits), ("requests", requests))
        for name, quantity in entries.items()
        for problem in _quantity_problems(name, quantity, f"{field}.{group}[{name}]")
    ]
    yield from malformed
    for name, quantity in requests.items() if not malformed else ():
        yield from _request_problems(name, quantity, limits.get(name), f"{field}.requests")


def is_extended(name: str) -> bool:
    """Whether a resource is an extended one, such as nvidia.com/gpu."""
    return "/" in name and "kubernetes.io/" not in name


def _quantity_problems(name: str, quantity: object, field: str) -> Iterable[FieldError]:
    try:
        value = parse_quantity(quantity)
    except ValueError as error:
        return [FieldError.invalid(field, quantity, str(error))]
    if value < 0:
        return [FieldError.invalid(field, quantity, "must be greater than or equal to 0")]
    if is_extended(name) and value.denominator != 1:
        return [FieldError.invalid(field, quantity, "must be an integer")]
    if "/" not in name and name not in _NATIVE and not name.startswith("hugepages-"):
        return [FieldError.invalid(field, name, "must be a standard resource type or fully qualified")]
    return []


def _request_problems(name: str, quantity: object, limit: object, field: str) -> Iterable[FieldError]:
    if limit is None:
        if is_extended(name):
            return [FieldError.required("limits", "Limit must be set for non overcommitable resources")]
        return []
    if is_extended(name) and parse_quantity(quantity) != parse_quantity(limit):
        return [FieldError.invalid(field, str(quantity), f"must be equal to {name} limit of {limit}")]
    if parse_quantity(quantity) > parse_quantity(limit):
        return [
            FieldError.invalid(field, str(quantity), f"must be less than or equal to {name} limit of {limit}")
        ]
    return []


def frozen_problems(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterable[FieldError]:
    """What a change of a pod's spec may not do."""
    before, after = _comparable(old), _comparable(new)
    tolerations = old.get("tolerations", [])
    kept = all(entry in new.get("tolerations", []) for entry in tolerations)
    gates_added = [
        gate for gate in new.get("schedulingGates", ()) if gate not in old.get("schedulingGates", ())
    ]
    if gates_added:
        return [
            FieldError.forbidden(
                "spec.schedulingGates", "only deletion is allowed, but found new scheduling gate"
            )
        ]
    return [] if before == after and kept else [FieldError.forbidden("spec", _FROZEN)]


def _comparable(spec: Mapping[str, Any]) -> Object:
    shown = {
        key: value
        for key, value in spec.items()
        if key not in {"tolerations", "activeDeadlineSeconds", "schedulingGates"}
    }
    for group in ("containers", "initContainers"):
        if group in shown:
            shown[group] = [
                {key: value for key, value in container.items() if key not in _MUTABLE_IN_CONTAINERS}
                for container in shown[group]
            ]
    return shown


_IMMUTABLE = "field is immutable"
_COUNTS = ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished")
_FAILURE_ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
_EXIT_OPERATORS = ("In", "NotIn")
_SCHEDULING_DIRECTIVES = ("affinity", "nodeSelector", "schedulingGates", "tolerations")
_MUTABLE_RESOURCES_SINCE = 36
"""MutablePodResourcesForSuspendedJobs (KEP-5440) is on from 1.36, and lets scheduling directives change again, too."""


def job_problems(obj: Object) -> Iterable[FieldError]:
    """What is wrong with a Job."""
    return _spec_problems(obj["spec"], "spec")


def cron_job_problems(obj: Object) -> Iterator[FieldError]:
    """What is wrong with a CronJob."""
    spec = obj["spec"]
    if not spec.get("schedule"):
        yield FieldError.required("spec.schedule")
    yield from _one_of(spec, "concurrencyPolicy", ("Allow", "Forbid", "Replace"), "spec")
    yield from _spec_problems(spec["jobTemplate"]["spec"], "spec.jobTemplate.spec")


def _spec_problems(spec: Object, at: str) -> Iterator[FieldError]:
    yield from not_negative(spec, _COUNTS, at)
    pod_spec = spec["template"]["spec"]
    if pod_spec["restartPolicy"] == "Always":
        yield FieldError.required(f"{at}.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"')
    yield from _one_of(spec, "completionMode", ("NonIndexed", "Indexed"), at)
    if spec.get("completionMode") == "Indexed" and "completions" not in spec:
        yield FieldError.required(f"{at}.completions", "when completion mode is Indexed")
    if "podFailurePolicy" in spec:
        yield from _failure_policy_problems(spec, at)
        yield from _one_of(spec, "podReplacementPolicy", ("Failed",), at)
    else:
        yield from _one_of(spec, "podReplacementPolicy", ("Failed", "TerminatingOrFailed"), at)
    yield from pod_spec_problems(pod_spec, f"{at}.template.spec")


def _one_of(spec: Mapping[str, Any], field: str, known: Iterable[str], at: str) -> Iterable[FieldError]:
    value = spec.get(field)
    return [] if value is None or value in known else [FieldError.unsupported(f"{at}.{field}", value, known)]


def _failure_policy_problems(spec: Mapping[str, Any], at: str) -> Iterator[FieldError]:
    policy = spec["template"]["spec"]["restartPolicy"]
    if policy != "Never":
        yield FieldError.invalid(
            f"{at}.template.spec.restartPolicy",
            policy,
            'only "Never" is supported when podFailurePolicy is specified',
        )
    for index, rule in enumerate(spec["podFailurePolicy"].get("rules") or ()):
        yield from _failure_rule_problems(rule, f"{at}.podFailurePolicy.rules[{index}]")


def _failure_rule_problems(rule: Mapping[str, Any], at: str) -> Iterator[FieldError]:
    if rule.get("action") not in _FAILURE_ACTIONS:
        yield FieldError.unsupported(f"{at}.action", rule.get("action"), _FAILURE_ACTIONS)
    codes, patterns = rule.get("onExitCodes"), rule.get("onPodConditions")
    if codes and patterns:
        words = "specifying both OnExitCodes and OnPodConditions is not supported"
        yield FieldError("FieldValueInvalid", at, f"Invalid value: {words}")
    if not codes and not patterns:
        words = "specifying one of OnExitCodes and OnPodConditions is required"
        yield FieldError("FieldValueInvalid", at, f"Invalid value: {words}")
    if codes:
        yield from _one_of(codes, "operator", _EXIT_OPERATORS, f"{at}.onExitCodes")
        yield from [
            FieldError.invalid(f"{at}.onExitCodes.values[{index}]", 0, "must not be 0 for the In operator")
            for index, value in enumerate(codes.get("values") or ())
            if value == 0 and codes.get("operator") == "In"
        ]


def job_change_problems(old: Mapping[str, Any], new: Object, minor: int) -> Iterator[FieldError]:
    """What is wrong with changing one Job into another, to Kubernetes 1.minor."""
    before, after = old["spec"], new["spec"]
    fixed = ["selector", "completionMode", "podFailurePolicy"]
    elastic = before.get("completionMode") == "Indexed" and after.get("completions") == after.get(
        "parallelism"
    )
    if not elastic:
        fixed.append("completions")
    for field in fixed:
        if before.get(field) != after.get(field):
            yield FieldError.invalid(f"spec.{field}", after.get(field), _IMMUTABLE)
    yield from _template_problems(old, new, minor)


def _template_problems(old: Mapping[str, Any], new: Mapping[str, Any], minor: int) -> Iterable[FieldError]:
    """A Job's template is immutable, but for its scheduling directives and resources while it is suspended.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#mutable-scheduling-directives
    """
    before, after = old["spec"]["template"], new["spec"]["template"]
    is_new = minor >= _MUTABLE_RESOURCES_SINCE
    if not _is_waiting(old, is_new=is_new):
        return [] if before == after else [FieldError.invalid("spec.template", after, _IMMUTABLE)]
    if _fixed(before["spec"], is_new=is_new) == _fixed(after["spec"], is_new=is_new):
        return []
    field, value = ("spec.template.spec", after["spec"]) if is_new else ("spec.template", after)
    return [FieldError.invalid(field, value, _IMMUTABLE)]


def _is_waiting(job: Mapping[str, Any], *, is_new: bool) -> bool:
    """Whether some of the template may change: before it has run and, in newer versions, once no pod is active."""
    status = job.get("status", {})
    is_unstarted = "startTime" not in status
    if not job["spec"].get("suspend"):
        return False
    if not is_new:
        return is_unstarted
    return (is_unstarted or holds(job, "Suspended")) and not status.get("active")


def _fixed(spec: Mapping[str, Any], *, is_new: bool) -> Object:
    shown = {key: value for key, value in spec.items() if key not in _SCHEDULING_DIRECTIVES}
    for group in ("containers", "initContainers"):
        if group in shown and is_new:
            shown[group] = [{**container, "resources": None} for container in shown[group]]
    return shown
