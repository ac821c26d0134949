"""RBAC from a policy file: what its actions need, and no more; why that is more than it seems, `locks.gaps` says. Pure.

Where all rules that enforce name their namespaces in full, nothing is granted in others. RBAC knows no classes and no
fields: that is what the admission policies are for.
https://kubernetes.io/docs/reference/access-authn-authz/rbac/
"""

import enum
from collections.abc import Iterator, Sequence
from typing import Any

from rightsizer.doctor.rights import BUILT_IN, RIGHTS, Command, Right, role
from rightsizer.guardrails.permitted import Enabled
from rightsizer.kinds.kind import Kind
from rightsizer.policy.schema import Policy

Object = dict[str, Any]
_READING = frozenset({"get", "list"})
_NAME = "gpu-rightsizer"


def grants(policy: Policy, *, account: str, own: str, is_finding: bool = False) -> list[Object]:
    """A service account and its roles and bindings, as `kubectl apply` takes them.

    Args:
        policy: The file.
        account: Our service account.
        own: Its namespace, ours.
        is_finding: Whether it has to find Prometheus by itself.
    """
    enabled = Enabled(policy)
    rights = [right for right in RIGHTS if _is_needed(right, enabled, is_finding=is_finding)]
    reading = [right for right in rights if not right.is_own and right.verb in _READING]
    writing = [right for right in rights if not right.is_own and right.verb not in _READING]
    service_account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": account, "namespace": own},
    }
    found: list[Object] = [service_account]
    found += _pair(f"{_NAME}-read", reading, account=account, own=own)
    if writing and enabled.namespaces is None:
        found += _pair(f"{_NAME}-write", writing, account=account, own=own)
    for namespace in enabled.namespaces or ():
        found += _pair(f"{_NAME}-write", writing, account=account, own=own, namespace=namespace)
    found += _pair(
        _NAME, [right for right in rights if right.is_own], account=account, own=own, namespace=own
    )
    return found


class Need(enum.StrEnum):
    """What a policy has to let be done for a right to be granted."""

    NOTHING = "nothing"
    """It takes it to plan."""
    DISCOVERY = "discovery"
    """It takes it to plan where no URL of Prometheus is given: that is no part of a policy."""
    CHANGES = "changes"
    """Anything."""
    EVICTIONS = "evictions"
    KIND = "kind"
    """Changes of a kind, whose objects are patched, or ordered about."""


def need(right: Right) -> Need | None:
    """What of a policy calls for a right; None where nothing does, and some other command wants it."""
    if Command.PLAN in right.commands:
        return Need.EVICTIONS if right.resource == "secrets" else Need.NOTHING
    if (
        Command.APPLY not in right.commands
    ):  # in a pod Prometheus is asked directly, without the API server's proxy
        is_finding = Command.DISCOVERY in right.commands and right.resource != "services/proxy"
        return Need.DISCOVERY if is_finding else None
    is_ordering = right.verb == "create" and right.group not in BUILT_IN
    if is_ordering or (right.verb == "patch" and not right.is_own):
        return Need.KIND
    if right.resource in {"pods/eviction", "secrets"}:
        return Need.EVICTIONS
    return Need.CHANGES


def is_for(right: Right, row: Kind) -> bool:
    """Whether changing objects of a kind takes a right of Need.KIND."""
    if right.verb == "patch":
        return (right.group, right.resource) == (row.group, row.of.plural)
    return row.stop is not None and row.stop.orders is not None and right.resource == row.stop.orders.plural


def _is_needed(right: Right, enabled: Enabled, *, is_finding: bool) -> bool:
    """Of what `apply` may need, what this policy's actions do."""
    match need(right):
        case None:
            return False
        case Need.NOTHING:
            return True
        case Need.DISCOVERY:
            return is_finding
        case Need.CHANGES:
            return enabled.acts
        case Need.EVICTIONS:
            return enabled.evicts
        case Need.KIND:
            return any(is_for(right, row) for row in enabled.kinds)


def _pair(
    name: str, rights: Sequence[Right], *, account: str, own: str, namespace: str = ""
) -> Iterator[Object]:
    """A role and its binding, for the cluster or for one namespace."""
    kind = "Role" if namespace else "ClusterRole"
    metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
    yield role(kind, metadata, rights)
    yield {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": f"{kind}Binding",
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": own}],
    }
