"""Asks the API server for everything that a plan is made from, in pages, keeping only what is needed."""

import http
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from rightsizer.errors import ConfigurationError, RequestRefused
from rightsizer.model import PriorityClass, Quota, WorkloadKind
from rightsizer.observe import claims
from rightsizer.observe.claims import Claim, ClaimObject, claim_of
from rightsizer.observe.cluster import Cluster
from rightsizer.observe.gathered import (
    ControllerTable,
    NodeTable,
    Objects,
    by_name,
    class_of,
    quotas_of,
)
from rightsizer.observe.managers import SCALERS, Scaler, ScalerObject, scaler_of
from rightsizer.observe.nodes import NodeObject
from rightsizer.observe.objects import (
    Budget,
    Controller,
    Metadata,
    ObjectMeta,
    OwnerReference,
    PodObject,
    PriorityClassObject,
    QuotaObject,
)
from rightsizer.observe.owners import OWNERS, Controlled, OwnerKind, missing_owners
from rightsizer.observe.pods import PodTable, Seen
from rightsizer.observe.records import MANIFEST_LABEL
from rightsizer.observe.resources import ResourceTable, parse_gpu_resource

log = logging.getLogger(__name__)

FEW = 3
"""So many objects of one kind are asked for one by one; of more the collection is listed."""
FEW_NODES = 32
_MOST_LEVELS = 16
"""Nothing is owned through more; what would be ends as unread."""
_BUILT_IN = frozenset({"", "apps", "batch"})
_ABSENT = frozenset({http.HTTPStatus.FORBIDDEN, http.HTTPStatus.NOT_FOUND})

T = TypeVar("T")


def read(
    cluster: Cluster,
    kinds: Sequence[WorkloadKind],
    *,
    namespace: str | None = None,
    state_namespace: str = "",
) -> Objects:
    """Read the whole cluster, or all that concerns the workloads of one namespace.

    Args:
        cluster: Where.
        kinds: Those that we stop: what we stopped of them is read also where it has no pods.
        namespace: All namespaces where none is given.
        state_namespace: Ours, where evicted pods' manifests are kept; of no interest to the reading of one namespace.

    Raises:
        ClusterError: Something could not be read whole.
        ConfigurationError: A name of a GPU resource cannot be meant.
    """
    reader = _Reader(cluster, f"/namespaces/{namespace}" if namespace else "")
    pods = cluster.reduce(
        f"/api/v1{reader.scope}/pods", PodObject, lambda: PodTable(reader.resources), add=PodTable.add
    )
    named = frozenset(one.pod.node for one in pods.seen if one.pod.node)
    nodes = reader.nodes(named, is_whole=namespace is None)
    found = Objects(
        pods=tuple(pods.seen),
        waiting=() if namespace else tuple(pods.waiting),
        controllers=reader.controllers(pods.seen, () if namespace else kinds),
        nodes=nodes.nodes,
        rooms=nodes.with_requests(pods.requested),
        namespaces=by_name(reader.namespaces(namespace)),
        priority_classes={one.name: one for one in read_classes(cluster)},
        claims=dict(reader.claims(pods.seen)),
        scalers=tuple(reader.scalers()),
        quotas=() if namespace else tuple(reader.quotas()),
        evictions=() if namespace else reader.evictions(state_namespace),
        # Last, so that as little time as can be passes between reading them and what they decide about.
        budgets=tuple(cluster.list_all(f"/apis/policy/v1{reader.scope}/poddisruptionbudgets", Budget)),
        problems=(*reader.problems, *pods.problems),
    )
    for problem in found.problems:
        log.log(logging.DEBUG if namespace else logging.WARNING, "%s", problem)
    return found


def read_priority_classes(cluster: Cluster) -> Iterator[str]:
    """Names of the cluster's PriorityClasses."""
    return (one.name for one in read_classes(cluster))


def read_classes(cluster: Cluster) -> Iterator[PriorityClass]:
    """The cluster's PriorityClasses."""
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    return map(class_of, cluster.list_all(path, PriorityClassObject))


def resource_table(texts: Sequence[str]) -> ResourceTable:
    """Which resources are GPUs, with those that are configured.

    Raises:
        ConfigurationError: One of the texts cannot be meant.
    """
    try:
        return ResourceTable(tuple(map(parse_gpu_resource, texts)))
    except ValueError as error:
        raise ConfigurationError(f"--gpu-resources: {error}") from error


class _Reader:
    """One reading.

    Attributes:
        scope: The part of paths that names the namespace; empty for all.
        problems: What was not served, or not for us, in words.
    """

    def __init__(self, cluster: Cluster, scope: str) -> None:
        self._cluster = cluster
        self.scope = scope
        self.resources = resource_table(cluster.gpu_resources)
        self.problems: list[str] = []

    def nodes(self, named: frozenset[str], *, is_whole: bool) -> NodeTable:
        """All nodes with GPUs, or those that pods are on."""

        def start() -> NodeTable:
            return NodeTable(self.resources, named)

        if is_whole or len(named) > FEW_NODES:
            return self._cluster.reduce("/api/v1/nodes", NodeObject, start, add=NodeTable.add)
        table = start()
        for name in sorted(named):
            item = self._one(f"/api/v1/nodes/{name}", NodeObject)
            table.add([item] if item else [])
        return table

    def namespaces(self, namespace: str | None) -> list[ObjectMeta]:
        """All of them, or the one."""
        if namespace:
            items = [self._cluster.get(f"/api/v1/namespaces/{namespace}", Metadata)]
        else:
            items = self._cluster.list_all("/api/v1/namespaces", Metadata, metadata_only=True)
        return [item.metadata for item in items]

    def claims(self, seen: Sequence[Seen]) -> Iterator[tuple[tuple[str, str], Claim]]:
        """ResourceClaims, where pods use any; only those about GPUs, or that pods ask for, stand for anything."""
        used = {(one.pod.ref.namespace, name) for one in seen for name in one.claims}
        path = self._path(claims.GROUP, claims.VERSIONS, "resourceclaims") if used else None
        if path is None:
            return
        for item in self._all(path, ClaimObject):
            key = (item.metadata.namespace, item.metadata.name)
            if key in used:
                yield key, claim_of(item, self.resources)

    def scalers(self) -> Iterator[Scaler]:
        """Autoscalers of every kind that is served."""
        for row in SCALERS:
            path = self._path(row.group, row.versions, row.plural)
            if path is not None:
                found = (scaler_of(row.kind, item) for item in self._all(path, ScalerObject))
                yield from (scaler for scaler in found if scaler is not None)

    def quotas(self) -> Iterator[Quota]:
        """ResourceQuotas, as far as they are about GPUs."""
        path = "/api/v1/resourcequotas"
        for item in self._all(path, QuotaObject):
            yield from quotas_of(item, self.resources)

    def evictions(self, state_namespace: str) -> tuple[ObjectMeta, ...]:
        """Metadata of the Secrets that keep evicted pods' manifests; what they hold is not asked for."""
        if not state_namespace:
            return ()
        path = f"/api/v1/namespaces/{state_namespace}/secrets"
        secrets = self._all(path, Metadata, metadata_only=True, label_selector=MANIFEST_LABEL)
        return tuple(item.metadata for item in secrets)

    # --- owners

    def controllers(self, seen: Sequence[Seen], kinds: Sequence[WorkloadKind]) -> dict[str, Controlled]:
        """What owns the pods, level by level, and what we stopped of these kinds."""
        found: dict[str, Controlled] = {}
        listed: set[OwnerKind] = set()
        asked: set[str] = set()
        fresh = [(one.owner, one.pod.ref.namespace) for one in seen if one.owner is not None]
        for _ in range(_MOST_LEVELS):
            wanted = missing_owners(iter(fresh), found)
            fresh = []
            for row, by_key in wanted.items():
                keys = {key: by_key[key] for key in by_key if key not in asked}
                asked.update(keys)
                read_now = self._owners(row, keys, seen=seen, listed=listed)
                found.update(read_now)
                fresh += [
                    (one.metadata.controller, one.ref.namespace)
                    for one in read_now.values()
                    if one.metadata.controller
                ]
            if not fresh:
                break
        stoppable = {(kind.api_version.rpartition("/")[0], kind.kind) for kind in kinds if kind.field}
        for row in OWNERS:
            if (row.group, row.kind) in stoppable and row not in listed:
                found.update(self._list(row, frozenset()))
        return found

    def _owners(
        self,
        row: OwnerKind,
        wanted: dict[str, tuple[OwnerReference, str]],
        *,
        seen: Sequence[Seen],
        listed: set[OwnerKind],
    ) -> dict[str, Controlled]:
        """Objects of one kind: pods that were read already, a few one by one, or the whole collection."""
        found: dict[str, Controlled] = {}
        if row.kind == "Pod":
            found = {one.pod.ref.uid: _as_owner(one) for one in seen if one.pod.ref.uid in wanted}
        left = {key: wanted[key] for key in wanted if key not in found}
        if len(left) > FEW:
            listed.add(row)
            return {**found, **self._list(row, frozenset(left))}
        path = self._path(row.group, row.versions, row.plural, scope="/namespaces/{}")
        for key, (owner, namespace) in left.items() if path else ():
            place = f"{str(path).format(namespace)}/{owner.name}"
            item = self._owner(row, place)
            table = ControllerTable(row, _version_in(place, row), key.__eq__)
            table.add([item] if item else [])
            found.update({one: table.found[one] for one in table.found if one == key})
        return found

    def _owner(self, row: OwnerKind, place: str) -> Controller | None:
        if row.group in _BUILT_IN:
            return self._one(place, Controller)
        return self._optional(place, lambda: self._one(place, Controller), None)

    def _list(self, row: OwnerKind, keys: frozenset[str]) -> dict[str, Controlled]:
        path = self._path(row.group, row.versions, row.plural)
        if path is None:
            return {}
        version = _version_in(path, row)

        def ask() -> ControllerTable:
            return self._cluster.reduce(
                path,
                Controller,
                lambda: ControllerTable(row, version, keys.__contains__),
                add=ControllerTable.add,
                metadata_only=not row.size,
            )

        if row.group in _BUILT_IN:
            return ask().found
        return self._optional(path, ask, ControllerTable(row, version, keys.__contains__)).found

    # --- asking

    def _path(
        self, group: str, versions: Sequence[str], plural: str, *, scope: str | None = None
    ) -> str | None:
        """Where a collection is served, by the best version that is; None where none is."""
        scope = self.scope if scope is None else scope
        if not group:
            return f"/api/v1{scope}/{plural}"
        served = self._optional("/apis", self._cluster.served, None)
        version = (
            versions[0] if served is None else next((v for v in versions if v in served.get(group, ())), None)
        )
        return None if version is None else f"/apis/{group}/{version}{scope}/{plural}"

    def _all(
        self, path: str, kind: type[T], *, metadata_only: bool = False, label_selector: str = ""
    ) -> list[T]:
        """A collection that may not be there, or not for us."""
        nothing: list[T] = []

        def ask() -> list[T]:
            return self._cluster.list_all(
                path, kind, metadata_only=metadata_only, label_selector=label_selector
            )

        return self._optional(path, ask, nothing)

    def _one(self, path: str, kind: type[T]) -> T | None:
        """One object; None where it is gone."""
        try:
            return self._cluster.get(path, kind)
        except RequestRefused as refused:
            if refused.code != http.HTTPStatus.NOT_FOUND:
                raise
            return None

    def _optional(self, path: str, ask: Callable[[], T], otherwise: T) -> T:
        """What not every cluster serves, or serves us; what is missing is said."""
        try:
            return ask()
        except RequestRefused as refused:
            if refused.code not in _ABSENT:
                raise
            problem = f"{path} is left out: {refused.code} {refused.reason}: {refused.detail}"
            if problem not in self.problems:
                self.problems.append(problem)
            return otherwise


def _as_owner(one: Seen) -> Controlled:
    """A GPU pod that owns others."""
    ref = one.pod.ref
    owners = [one.owner] if one.owner else None
    metadata = one.metadata or ObjectMeta(
        name=ref.name, namespace=ref.namespace, uid=ref.uid, owner_references=owners
    )
    return Controlled(ref, metadata)


def _version_in(path: str, row: OwnerKind) -> str:
    """The API version in a path."""
    return path.split("/")[3] if row.group else row.versions[0]
