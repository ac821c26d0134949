"""Lists the objects of a kind that we act upon, where the cluster has the kind and lets us."""

import http
import logging
from collections.abc import Iterator
from typing import Protocol, TypeVar

from rightsizer.errors import RequestRefused
from rightsizer.inventory.owner_reader import scalable_kinds
from rightsizer.kinds import CONTROL_OBJECT_KINDS, KINDS, collection_of, scalable_row
from rightsizer.kinds.kind import Kind
from rightsizer.kube.api_objects import ObjectMeta
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.owner_kinds import owner_kind
from rightsizer.model import ObjectRef, Scalable

log = logging.getLogger(__name__)
_OF_EVERY_CLUSTER = frozenset({"", "apps", "batch"})


class HasMetadata(Protocol):
    """Any object, as far as it was decoded."""

    metadata: ObjectMeta


T = TypeVar("T", bound=HasMetadata)


def recordable_kinds(cluster: Cluster) -> Iterator[Kind]:
    """All kinds whose objects may carry a note of ours: those that we know, levers, and what only has a scale.

    Raises:
        ClusterError: The API server does not answer.
    """
    yield from KINDS
    yield from CONTROL_OBJECT_KINDS
    for where in scalable_kinds(cluster):
        found = Scalable(where.plural, where.size)
        yield scalable_row(where.group, where.versions[0], where.kind, found)


def list_objects(
    cluster: Cluster, row: Kind, of: type[T], *, metadata_only: bool = False
) -> Iterator[tuple[ObjectRef, T]]:
    """All objects of a kind; nothing where the cluster does not have it, or not for us, which is told.

    Args:
        cluster: Where.
        row: The kind.
        of: What each object is decoded to.
        metadata_only: Whether only metadata is asked for.

    Raises:
        ClusterError: One of Kubernetes's own kinds could not be listed, or a list is not whole.
    """
    for api_version in _versions(cluster, row):
        try:
            items = cluster.list_all(
                collection_of(row, api_version=api_version), of, metadata_only=metadata_only
            )
        except RequestRefused as refused:
            if refused.code == http.HTTPStatus.NOT_FOUND and row.group not in _OF_EVERY_CLUSTER:
                continue  # a group may serve a version without serving each kind in it
            if row.group in _OF_EVERY_CLUSTER or refused.code != http.HTTPStatus.FORBIDDEN:
                raise
            # Of kinds that we do not know nobody is expected to let us.
            level = logging.WARNING if owner_kind(row.group, row.kind) is not None else logging.INFO
            log.log(level, "%ss cannot be listed: %s", row.kind, refused)
            return
        for item in items:
            metadata = item.metadata
            yield ObjectRef(api_version, row.kind, metadata.namespace, metadata.name, metadata.uid), item
        return


def _versions(cluster: Cluster, row: Kind) -> Iterator[str]:
    """The API versions under which objects of a kind may be listed, best first; none where the cluster has none."""
    served = cluster.served().get(row.group, ()) if row.group else row.of.versions
    for version in row.of.versions:
        if version in served:
            yield f"{row.group}/{version}" if row.group else version
