"""RBAC for exactly what a policy file allows; `admission.grant_gaps` lists what is granted beyond. Pure.

If all enforcing rules name their namespaces in full, nothing is granted in others.
https://kubernetes.io/docs/reference/access-authn-authz/rbac/
"""

import dataclasses
import enum
import fnmatch
from collections.abc import Iterator, Sequence
from typing import Any

from rightsizer.doctor.rights import BUILT_IN, RIGHTS, Purpose, Right, role
from rightsizer.kinds import CONTROL_OBJECT_KINDS, KINDS
from rightsizer.kinds.core import POD
from rightsizer.kinds.kind import Kind, Steering
from rightsizer.model import Action, Mode
from rightsizer.policy.rule import Rule
from rightsizer.policy.schema import Policy


@dataclasses.dataclass(frozen=True, slots=True)
class WritePath:
    """A way in which a rule that enforces one of these actions writes to objects of a kind.

    Attributes:
        about: Names of kinds, one of which the rule must match; empty for any.
        asking: Only if pods get a notice first.
    """

    row: Kind
    actions: tuple[Action, ...]
    about: tuple[str, ...] = ()
    asking: bool = False


def names(row: Kind) -> tuple[str, ...]:
    """The names by which a policy may call a kind."""
    return (row.kind, f"{row.kind}.{row.group}") if row.group else (row.kind,)


def _openings() -> Iterator[WritePath]:
    for row in KINDS:
        if row is not POD:
            yield WritePath(row, tuple(action for action in Action if _can(row, action)), names(row))
        if row.steering is Steering.DELETION_COST:
            yield WritePath(POD, (Action.SCALE_DOWN,), names(row))
        for stop in (state.stop for state in row.states if state.stop is not None and state.stop.owned):
            owned = next(kind for kind in KINDS if (kind.group, kind.kind) == (row.group, stop.owned))
            yield WritePath(owned, (stop.action,), names(row))
    yield WritePath(POD, (Action.EVICT,), names(POD), asking=True)
    for row in CONTROL_OBJECT_KINDS:  # of what it stops the rules speak
        yield WritePath(row, (row.action,) if row.action else ())


def _can(row: Kind, action: Action) -> bool:
    if action is Action.SCALE_UP:
        return row.replicas is not None
    if action is Action.SCALE_DOWN:
        return row.replicas is not None or row.groups is not None
    if action in {Action.RESIZE, Action.RESLICE}:
        return bool(row.containers)
    return any(stop.action is action for stop in row.stops)


WRITE_PATHS = tuple(_openings())


class Enabled:
    """Targets of the enforcing rules: kinds (with pods, if they are annotated), evictions, namespaces.

    Attributes:
        namespaces: The only ones with changes; None if unknown.
    """

    def __init__(self, policy: Policy) -> None:
        rules = [rule for rule in policy.rules if rule.mode is Mode.ENFORCE]
        by_class = policy.asks_classes
        self.acts = by_class or bool(rules)
        opened = [
            way.row for way in WRITE_PATHS if by_class or any(_opens(way, rule, policy) for rule in rules)
        ]
        self.kinds: tuple[Kind, ...] = tuple(row for row in (*KINDS, *CONTROL_OBJECT_KINDS) if row in opened)
        self.evicts = by_class or any(
            Action.EVICT in rule.actions and _is_about(names(POD), rule) for rule in rules
        )
        named = [rule.match.namespaces for rule in rules]
        literal = [name for names in named for name in names or () if not set("*?[") & set(name)]
        is_known = not by_class and all(names is not None for names in named)
        is_literal = is_known and len(literal) == sum(len(names or ()) for names in named)
        self.namespaces: tuple[str, ...] | None = tuple(sorted(set(literal))) if is_literal else None


def _opens(way: WritePath, rule: Rule, policy: Policy) -> bool:
    return (
        any(action in rule.actions for action in way.actions)
        and (not way.about or _is_about(way.about, rule))
        and (not way.asking or _asks_pods(rule, policy))
    )


def _asks_pods(rule: Rule, policy: Policy) -> bool:
    """Whether a bare pod gets a notice."""
    by_kind = any(row.notifyBefore and _matches(names(POD), row.kinds) for row in policy.defaults.kinds)
    return bool(rule.notifyBefore or by_kind)


def _is_about(called: tuple[str, ...], rule: Rule) -> bool:
    return rule.match.kinds is None or _matches(called, rule.match.kinds)


def _matches(called: tuple[str, ...], patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns for name in called)


Object = dict[str, Any]
_READING = frozenset({"get", "list", "watch"})
_NAME = "gpu-rightsizer"


def grants(policy: Policy, *, account: str, own: str, is_finding: bool = False) -> list[Object]:
    """A service account in the namespace `own`, with roles that also find Prometheus if `is_finding`."""
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
    """The part of a policy that calls for a right."""

    NOTHING = "nothing"
    """Needed to plan."""
    DISCOVERY = "discovery"
    """Needed to plan without a URL of Prometheus, which is not in the policy."""
    CHANGES = "changes"
    """Needed for any change."""
    EVICTIONS = "evictions"
    KIND = "kind"
    """Needed to change one kind, by patches or by command objects."""


def need(right: Right) -> Need | None:
    """The part of a policy that needs a right; None if only another command needs it."""
    if Purpose.PLAN in right.commands:
        return Need.EVICTIONS if right.resource == "secrets" else Need.NOTHING
    if (
        Purpose.APPLY not in right.commands
    ):  # in a pod Prometheus is asked directly, without the API server's proxy
        is_finding = Purpose.DISCOVERY in right.commands and right.resource != "services/proxy"
        return Need.DISCOVERY if is_finding else None
    is_ordering = right.verb == "create" and right.group not in BUILT_IN
    if is_ordering or (right.verb == "patch" and not right.is_own):
        return Need.KIND
    if right.resource in {"pods/eviction", "secrets"}:
        return Need.EVICTIONS
    return Need.CHANGES


def is_for(right: Right, row: Kind) -> bool:
    """Whether changing objects of a kind needs this right of Need.KIND."""
    if right.verb == "patch":
        return (right.group, right.resource) == (row.group, row.of.plural)
    return row.stop is not None and row.stop.command is not None and right.resource == row.stop.command.plural


def _is_needed(right: Right, enabled: Enabled, *, is_finding: bool) -> bool:
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
