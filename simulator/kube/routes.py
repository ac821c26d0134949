"""From a path to what it is about. Pure."""

from simulator.kube.receiving import Target
from simulator.kube.resources import by_path

_NAMESPACE_PARTS = {"status", "finalize"}


def parse_path(path: str) -> tuple[Target, bool] | None:
    """The target of a resource path, and whether its list is over all namespaces; None where nothing is served.

    A target without a name is a collection.
    """
    steps = [step for step in path.split("/") if step]
    match steps:
        case ["api", version, *rest]:
            return _resolve("", version, rest)
        case ["apis", group, version, *rest]:
            return _resolve(group, version, rest)
        case _:
            return None


def _resolve(group: str, version: str, steps: list[str]) -> tuple[Target, bool] | None:
    namespace = ""
    match steps:
        case ["namespaces", _, part] if part in _NAMESPACE_PARTS:
            pass
        case ["namespaces", namespace, plural, *rest]:
            steps = [plural, *rest]
        case _:
            pass
    if not 1 <= len(steps) <= 3:  # noqa: PLR2004 - plural, name, subresource
        return None
    resource = by_path(group, version, steps[0])
    if resource is None or bool(namespace) > resource.namespaced:
        return None
    name, subresource = [*steps[1:], "", ""][:2]
    if resource.namespaced and name and not namespace:
        return None
    if subresource and subresource not in resource.subresources:
        return None
    return Target(resource, namespace, name, subresource), resource.namespaced and not namespace
