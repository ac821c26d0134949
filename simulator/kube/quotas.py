"""ResourceQuotas: usage of a namespace, and refusal of what exceeds a quota; as kubernetes/pkg/quota/v1."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from simulator.kube.errors import forbidden
from simulator.kube.objects import Object, is_finished, name_of
from simulator.kube.quantity import thousandths
from simulator.kube.resources import RESOURCES, Resource, by_kind
from simulator.kube.store import Record, Store

Usage = Counter[str]
"""Amounts in thousandths by the names that a quota's `hard` uses."""

_ONE = 1000
_PLAIN = {"cpu", "memory"}
"""Resources that a quota may name without `requests.` in front."""


def refuse_excess(store: Store, resource: Resource, namespace: str, obj: Mapping[str, Any]) -> None:
    """Refuse a new object that a quota of its namespace has no room for."""
    for quota in store.rows(by_kind("ResourceQuota"), namespace):
        asked = _usage(quota, resource, obj)
        hard = {name: thousandths(amount) for name, amount in quota.obj["spec"].get("hard", {}).items()}
        used = used_of(store, quota)
        over = sorted(name for name in hard if asked[name] and used[name] + asked[name] > hard[name])
        if over:
            told = ", ".join(
                f"{word}: {','.join(f'{name}={_shown(amounts[name])}' for name in over)}"
                for word, amounts in (("requested", asked), ("used", used), ("limited", hard))
            )
            raise forbidden(resource, name_of(obj), f"exceeded quota: {quota.name}, {told}")


def used_of(store: Store, quota: Record) -> Usage:
    """What stands against a quota."""
    total: Usage = Counter()
    for name in quota.obj["spec"].get("hard", {}):
        total[name] = 0
    for resource in {by_kind("Pod"), *filter(None, map(_counted, total))}:
        for row in store.rows(resource, quota.namespace):
            total.update(_usage(quota, resource, row.obj))
    return Counter({name: total[name] for name in quota.obj["spec"].get("hard", {})})


def status_of(store: Store, quota: Record) -> Object:
    """The status that a quota should have."""
    used = used_of(store, quota)
    return {
        "hard": dict(quota.obj["spec"].get("hard", {})),
        "used": {name: _shown(used[name]) for name in used},
    }


def _counted(name: str) -> Resource | None:
    """The resource that a `count/<plural>.<group>` counts."""
    plural, _, group = name.removeprefix("count/").partition(".")
    if not name.startswith("count/"):
        return None
    return next((row for row in RESOURCES if (row.group, row.plural) == (group, plural)), None)


def _usage(quota: Record, resource: Resource, obj: Mapping[str, Any]) -> Usage:
    counted: Usage = Counter({f"count/{resource.qualified}": _ONE})
    if resource.kind != "Pod":
        return counted if not _expressions(quota) else Counter()
    if is_finished(obj) or not all(_SCOPE[entry["scopeName"]](obj, entry) for entry in _expressions(quota)):
        return Counter()
    return counted + _of_pod(obj)


def _of_pod(pod: Mapping[str, Any]) -> Usage:
    total: Usage = Counter({"pods": _ONE})
    spec = pod["spec"]
    for side in ("requests", "limits"):
        lasting: Usage = Counter()
        for container in spec["containers"]:
            lasting.update(_amounts(container, side))
        for container in spec.get("initContainers", ()):
            lasting |= Counter(_amounts(container, side))
        for name, amount in lasting.items():
            total[f"{side}.{name}"] = amount
            if side == "requests" and name in _PLAIN:
                total[name] = amount
    return total


def _amounts(container: Mapping[str, Any], side: str) -> dict[str, int]:
    found = container.get("resources", {}).get(side, {})
    return {name: thousandths(amount) for name, amount in found.items()}


def _expressions(quota: Record) -> list[Mapping[str, Any]]:
    spec = quota.obj["spec"]
    plain = [{"scopeName": name, "operator": "Exists"} for name in spec.get("scopes", ())]
    return [*plain, *spec.get("scopeSelector", {}).get("matchExpressions", ())]


def _by_class(pod: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    name, values = pod["spec"].get("priorityClassName", ""), entry.get("values", ())
    match entry["operator"]:
        case "In":
            return name in values
        case "NotIn":
            return name not in values
        case "DoesNotExist":
            return not name
        case _:
            return bool(name)


def _ends(pod: Mapping[str, Any]) -> bool:
    return pod["spec"].get("activeDeadlineSeconds") is not None


def _asks_nothing(pod: Mapping[str, Any]) -> bool:
    return bool(pod.get("status", {}).get("qosClass") == "BestEffort")


_SCOPE: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], bool]] = {
    "PriorityClass": _by_class,
    "Terminating": lambda pod, _: _ends(pod),
    "NotTerminating": lambda pod, _: not _ends(pod),
    "BestEffort": lambda pod, _: _asks_nothing(pod),
    "NotBestEffort": lambda pod, _: not _asks_nothing(pod),
    "CrossNamespacePodAffinity": lambda pod, _: "namespaces" in str(pod["spec"].get("affinity", {})),
}


def _shown(amount: int) -> str:
    whole, rest = divmod(amount, _ONE)
    return f"{amount}m" if rest else str(whole)
