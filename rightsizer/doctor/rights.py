"""The RBAC rights of each command: doctor checks them, docs list them, and --roles grants them. Pure.

https://kubernetes.io/docs/reference/access-authn-authz/rbac/
"""

import dataclasses
import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from rightsizer.changes import memory
from rightsizer.execute import control_state
from rightsizer.inventory.demand_kinds import DEMAND_KINDS, POD_DEMAND
from rightsizer.inventory.kueue_queues import CLUSTER_QUEUES, COHORTS, FLAVORS, LOCAL_QUEUES
from rightsizer.inventory.managers import AUTOSCALERS
from rightsizer.inventory.obstacles import CSI_NODES
from rightsizer.inventory.pod_groups import GROUP_KINDS, VOLCANO, VOLCANO_QUEUES
from rightsizer.inventory.resource_claims import CLAIMS, CLASSES, TEMPLATES
from rightsizer.inventory.resource_slices import SLICES, TAINT_RULES
from rightsizer.kinds import CONTROL_OBJECT_KINDS, KINDS
from rightsizer.kinds.core import POD
from rightsizer.kinds.kind import Kind
from rightsizer.kube import last_backtest, lease
from rightsizer.kube.owner_kinds import KUEUE, OWNERS
from rightsizer.planning import kept_sizes


class Purpose(enum.StrEnum):
    """Commands, as what rights are needed for; `discovery` is the search of `plan` for Prometheus without a URL."""

    PLAN = "plan"
    DISCOVERY = "discovery"
    APPLY = "apply"
    UNDO = "undo"
    HISTORY = "history"
    PAUSE = "pause"
    BACKTEST = "backtest"
    EXTEND = "extend"


PLAN, APPLY, UNDO = (Purpose.PLAN,), (Purpose.APPLY,), (Purpose.UNDO,)
HISTORY, PAUSE, BACKTEST = (Purpose.HISTORY,), (Purpose.PAUSE,), (Purpose.BACKTEST,)
EXTEND = (Purpose.EXTEND,)
_READ = (Purpose.PLAN, Purpose.APPLY)
_WRITE = (Purpose.APPLY, Purpose.UNDO)
BUILT_IN = frozenset(
    {
        *("", "apps", "batch", "policy", "scheduling.k8s.io", "autoscaling", "apiextensions.k8s.io"),
        "coordination.k8s.io",
    }
)
"""API groups that every cluster serves."""


@dataclasses.dataclass(frozen=True, slots=True)
class Right:
    """One verb on one resource.

    Attributes:
        resource: Plural name, with its subresource, such as `pods/eviction`.
        commands: The commands that need it.
        is_own: Limited to the state namespace.
        cost: What the command lacks without it; empty if the command fails.
        names: Limited to these objects; RBAC cannot limit `create` by name.
    """

    verb: str
    group: str
    resource: str
    commands: tuple[Purpose, ...]
    is_own: bool = False
    cost: str = ""
    names: tuple[str, ...] = ()

    @property
    def named(self) -> str:
        """The resource as kubectl takes it, such as deployments.apps."""
        plural, slash, part = self.resource.partition("/")
        return (f"{plural}.{self.group}" if self.group else plural) + slash + part

    def attributes(self, own: str) -> Iterator[dict[str, str]]:
        """The attributes of SelfSubjectAccessReviews, one for each name; no namespace means all namespaces."""
        plural, _, part = self.resource.partition("/")
        found = {"verb": self.verb, "group": self.group, "resource": plural, "subresource": part}
        if self.is_own:
            found["namespace"] = own
        for name in self.names or ("",):
            yield {key: value for key, value in {**found, "name": name}.items() if value}


STATE_MAPS = (control_state.NAME, *memory.NAMES, kept_sizes.NAME, memory.NAMED_MAP)
"""Every ConfigMap that changes are kept in; RBAC allows to write no other."""
_VOLCANO = "gangs that Volcano holds back are served late, or not at all"
_LEASES = (lease.LEASE_NAME,)
_SECRETS = "budgets ignore earlier evictions, and evicted pods cannot be restored"


def _table() -> Iterator[Right]:
    for resource in ("pods", "nodes", "namespaces"):
        yield Right("list", "", resource, _READ)
    yield Right("list", "scheduling.k8s.io", "priorityclasses", _READ)
    yield Right("list", "policy", "poddisruptionbudgets", _READ)
    yield Right("list", "", "resourcequotas", _READ, cost="quotas are unknown")
    for owner in OWNERS:
        cost = "" if owner.group in BUILT_IN else "labels, annotations and size of such workloads are unknown"
        yield Right("get", owner.group, owner.plural, _READ, cost=cost)
        if owner.kind != "Pod":
            yield Right("list", owner.group, owner.plural, _READ, cost=cost)
    for scaler in AUTOSCALERS:
        cost = "workloads with this autoscaler are not recognised"
        yield Right("list", scaler.group, scaler.plural, _READ, cost=cost)
    cost = "workloads that Kueue queues get only advice"
    yield Right("list", KUEUE.group, KUEUE.plural, _READ, cost=cost)
    cost = "no GPUs are freed for what this queue holds back"
    for row in (CLUSTER_QUEUES, LOCAL_QUEUES, FLAVORS, COHORTS, VOLCANO_QUEUES):
        yield Right("list", row.group, row.plural, _READ, cost=cost)
    for group in GROUP_KINDS:
        cost = _VOLCANO if group.of is VOLCANO else "a gang needs all of its pending pods"
        yield Right("list", group.of.group, group.of.plural, _READ, cost=cost)
    cost = "workloads of unknown kinds with a scale subresource get only advice"
    yield Right(
        "get", "apiextensions.k8s.io", "customresourcedefinitions", (*_READ, *UNDO, *HISTORY), cost=cost
    )
    volumes = ("", "persistentvolumeclaims"), ("", "persistentvolumes"), (CSI_NODES.group, CSI_NODES.plural)
    for of, resource in volumes:
        cost = "no GPUs are freed for pods with PersistentVolumeClaims"
        yield Right("list", of, resource, _READ, cost=cost)
    cost = "GPUs held through ResourceClaims are not counted"
    yield Right("list", CLAIMS.group, CLAIMS.plural, _READ, cost=cost)
    cost = "GPUs that only a DRA driver publishes are not known"
    yield Right("list", SLICES.group, SLICES.plural, _READ, cost=cost)
    cost = "no GPUs are freed for pods whose ResourceClaims wait, and none of these get a smaller MIG profile"
    yield Right("list", CLASSES.group, CLASSES.plural, _READ, cost=cost)
    cost = "pods with ResourceClaims do not get fewer GPUs"
    yield Right("list", TEMPLATES.group, TEMPLATES.plural, _READ, cost=cost)
    cost = "taints of DRA devices are not known"
    yield Right("list", TAINT_RULES.group, TAINT_RULES.plural, _READ, cost=cost)
    yield Right("list", "", "services", (Purpose.DISCOVERY,))
    yield Right("get", "", "services/proxy", (Purpose.DISCOVERY,))
    yield from _writes()


def _writes() -> Iterator[Right]:
    for resource in ("nodes", "namespaces"):
        yield Right("get", "", resource, APPLY)
    for row in KINDS:
        if row is not POD:
            is_needed = row.group in BUILT_IN and not row.of.starts_others
            yield from _changes(row, "" if is_needed else "workloads of this kind are not changed")
    for row in CONTROL_OBJECT_KINDS:
        cost = "workloads stopped through this object are not changed"
        yield from _changes(row, cost)
        yield Right("get", row.group, row.of.plural, APPLY, cost=cost)
    cost = "pods with ResourceClaims do not get fewer GPUs, nor back what they had"
    yield Right("create", TEMPLATES.group, TEMPLATES.plural, APPLY, cost=cost)
    yield Right("get", TEMPLATES.group, TEMPLATES.plural, _WRITE, cost=cost)
    yield from _watches()
    yield Right("create", "", "events", EXTEND, cost="preemptions create no Events")
    yield Right("create", "", "pods/eviction", APPLY)
    yield Right(
        "patch", "", "pods", APPLY, cost="bare pods get no notice; those that require one are not evicted"
    )
    yield Right("create", "", "events", _WRITE, cost="changes create no Events")
    yield Right("get", "", "pods", UNDO)
    yield Right("create", "", "pods", UNDO)
    yield Right("create", "", "secrets", APPLY, is_own=True)
    yield Right("list", "", "secrets", (*_READ, *UNDO, *HISTORY), is_own=True, cost=_SECRETS)
    yield Right("list", "", "pods", HISTORY)
    cost = "series of every scraped target count"
    yield Right("list", "", "pods", BACKTEST, cost=cost)
    yield Right("list", "", "events", HISTORY, cost="Events are not shown")
    cost = "pauses and recent changes are unknown"
    yield Right("get", "", "configmaps", PLAN, is_own=True, cost=cost, names=STATE_MAPS)
    yield Right("create", "", "configmaps", (*APPLY, *PAUSE, *BACKTEST, *EXTEND), is_own=True)
    cost = "no backtest metrics"
    yield Right("get", "", "configmaps", _READ, is_own=True, cost=cost, names=(last_backtest.NAME,))
    for verb in ("get", "patch"):
        yield Right(verb, "", "configmaps", BACKTEST, is_own=True, names=(last_backtest.NAME,))
    cost = "changes of deleted objects and evicted pods are lost"
    yield Right("get", "", "configmaps", (*UNDO, *HISTORY), is_own=True, cost=cost, names=memory.NAMES)
    for verb in ("get", "patch"):
        yield Right(verb, "", "configmaps", APPLY, is_own=True, names=STATE_MAPS)
        yield Right(verb, "", "configmaps", PAUSE, is_own=True, names=STATE_MAPS[:1])
        yield Right(verb, "", "configmaps", EXTEND, is_own=True, names=(memory.NAMED_MAP,))
    for verb in ("get", "patch"):
        cost = "kept sizes remain"
        yield Right(verb, "", "configmaps", UNDO, is_own=True, cost=cost, names=(kept_sizes.NAME,))
    yield Right("get", "", "namespaces", PAUSE)
    for verb, names in (("get", _LEASES), ("create", ()), ("update", _LEASES)):
        yield Right(verb, "coordination.k8s.io", "leases", _WRITE, is_own=True, names=names)
    yield Right("get", "", "secrets", UNDO, is_own=True, cost="evicted pods cannot be restored")
    yield Right("delete", "", "secrets", _WRITE, is_own=True)


def _watches() -> Iterator[Right]:
    for demand in (row for row in DEMAND_KINDS if row.is_watched):
        late = (
            "pending pods wait for the next scheduled cycle of run, which lists all pods"
            if demand is POD_DEMAND
            else "they wait longer"
        )
        cost = _VOLCANO if demand.of is VOLCANO else late
        yield Right("watch", demand.of.group, demand.of.plural, APPLY, cost=cost)
    yield Right("watch", "", "nodes", APPLY, cost="run lists them in each cycle")
    yield Right("get", VOLCANO.group, VOLCANO.plural, APPLY, cost=_VOLCANO)
    for group, resource in (("", "pods"), ("", "nodes"), ("policy", "poddisruptionbudgets")):
        yield Right("watch", group, resource, EXTEND)


def _changes(row: Kind, cost: str) -> Iterator[Right]:
    """The rights to change objects of a kind and to undo that, in addition to reading them."""
    yield Right("patch", row.group, row.of.plural, _WRITE, cost=cost)
    yield Right("list", row.group, row.of.plural, (*UNDO, *HISTORY), cost=cost)
    yield Right("get", row.group, row.of.plural, UNDO, cost=cost)
    if row.stop is not None and row.stop.command is not None:
        command = row.stop.command
        yield Right("create", command.api_version.partition("/")[0], command.plural, _WRITE, cost=cost)


RIGHTS: tuple[Right, ...] = tuple(_table())


def rights_for(served: Collection[str]) -> list[Right]:
    """The rights on API groups that are served."""
    return [right for right in RIGHTS if right.group in BUILT_IN or right.group in served]


def needed(rights: Iterable[Right], command: Purpose) -> list[Right]:
    """The rights of a command."""
    return [right for right in rights if command in right.commands]


def roles(own: str) -> list[dict[str, Any]]:
    """A ClusterRole for each command, and a Role for the state namespace, as `kubectl apply` takes them."""
    found = []
    for command in Purpose:
        rights = needed(RIGHTS, command)
        name = f"gpu-rightsizer-{command}"
        everywhere = [right for right in rights if not right.is_own]
        if everywhere:
            found.append(role("ClusterRole", {"name": name}, everywhere))
        in_own = [right for right in rights if right.is_own]
        if in_own:
            found.append(role("Role", {"name": name, "namespace": own}, in_own))
    return found


def role(kind: str, metadata: Mapping[str, str], rights: Iterable[Right]) -> dict[str, Any]:
    """A role with these rights, its rules in a stable order."""
    verbs: dict[tuple[str, str, tuple[str, ...]], set[str]] = {}
    for right in rights:
        verbs.setdefault((right.group, right.resource, right.names), set()).add(right.verb)
    rules: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (group, resource, names), allowed in sorted(verbs.items()):
        rules.setdefault((group, names, tuple(sorted(allowed))), []).append(resource)
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": dict(metadata),
        "rules": [
            {
                "apiGroups": [group],
                "resources": resources,
                **({"resourceNames": list(names)} if names else {}),
                "verbs": list(allowed),
            }
            for (group, names, allowed), resources in rules.items()
        ],
    }
