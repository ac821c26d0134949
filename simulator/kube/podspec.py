"""Whether a pod's spec can be: containers, images, resources. Pure; used for pods and for every template."""

from collections.abc import Iterable, Mapping
from typing import Any

from simulator.kube.errors import FieldError
from simulator.kube.names import dns_label
from simulator.kube.objects import Object
from simulator.kube.quantity import parse_quantity

_NATIVE = ("cpu", "memory", "ephemeral-storage")
_RESTART_POLICIES = ("Always", "OnFailure", "Never")
_MUTABLE_IN_CONTAINERS = ("image",)
_FROZEN = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def pod_spec_problems(spec: Object, field: str) -> list[FieldError]:
    """What is wrong with a pod's spec found at `field`."""
    problems: list[FieldError] = []
    containers = spec.get("containers")
    if not containers:
        problems.append(FieldError.required(f"{field}.containers"))
    seen: set[str] = set()
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or ()):
            at = f"{field}.{group}[{index}]"
            problems += _container_problems(container, at)
            if container.get("name") in seen:
                problems.append(FieldError.duplicate(f"{at}.name", container["name"]))
            seen.add(container.get("name", ""))
    if spec.get("restartPolicy") not in _RESTART_POLICIES:
        problems.append(
            FieldError.unsupported(f"{field}.restartPolicy", spec.get("restartPolicy"), _RESTART_POLICIES)
        )
    grace = spec.get("terminationGracePeriodSeconds", 0)
    if not isinstance(grace, int) or grace < 0:
        problems.append(
            FieldError.invalid(
                f"{field}.terminationGracePeriodSeconds", grace, "must be greater than or equal to 0"
            )
        )
    return problems


def not_negative(spec: Mapping[str, Any], fields: Iterable[str], at: str = "spec") -> list[FieldError]:
    """Problems of counts."""
    problems: list[FieldError] = []
    for field in fields:
        value = spec.get(field, 0)
        if not isinstance(value, int) or isinstance(value, bool):
            problems.append(FieldError.invalid(f"{at}.{field}", value, "must be an integer"))
        elif value < 0:
            problems.append(FieldError.invalid(f"{at}.{field}", value, "must be greater than or equal to 0"))
    return problems


def _container_problems(container: Mapping[str, Any], field: str) -> list[FieldError]:
    problems: list[FieldError] = []
    if not container.get("name"):
        problems.append(FieldError.required(f"{field}.name"))
    else:
        problems += dns_label(f"{field}.name", container["name"])
    if not container.get("image"):
        problems.append(FieldError.required(f"{field}.image"))
    return problems + _resource_problems(container.get("resources", {}), f"{field}.resources")


def _resource_problems(resources: Mapping[str, Any], field: str) -> list[FieldError]:
    problems: list[FieldError] = []
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    for group, entries in (("limits", limits), ("requests", requests)):
        for name, quantity in entries.items():
            problems += _quantity_problems(name, quantity, f"{field}.{group}[{name}]")
    if problems:
        return problems
    for name, quantity in requests.items():
        problems += _request_problems(name, quantity, limits.get(name), f"{field}.requests")
    return problems


def is_extended(name: str) -> bool:
    """Whether a resource is an extended one, such as nvidia.com/gpu."""
    return "/" in name and "kubernetes.io/" not in name


def _quantity_problems(name: str, quantity: object, field: str) -> list[FieldError]:
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


def _request_problems(name: str, quantity: object, limit: object, field: str) -> list[FieldError]:
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


def frozen_problems(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[FieldError]:
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
