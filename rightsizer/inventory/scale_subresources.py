"""Kinds that we do not know, but that have a scale subresource: found by discovery, read by their definitions.

A change of the number of replicas and its undo record are to be one PATCH of the object itself, so it has to be known
where in the object that number stands: its CustomResourceDefinition says so.
https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#scale-subresource
"""

import http
import logging
from collections.abc import Iterator

import msgspec

from rightsizer.errors import RequestRefused
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.owner_kinds import OwnerKind, owner_kind
from rightsizer.model import Scalable

log = logging.getLogger(__name__)

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_BUILT_IN = frozenset({"apps", "batch", "autoscaling", "policy", "extensions"})
_OF_KUBERNETES = ".k8s.io"
"""Of these groups only those of the SIGs (x-k8s.io) are of custom resources."""


class _Scale(msgspec.Struct, rename="camel"):
    spec_replicas_path: str = ""


class _Subresources(msgspec.Struct):
    scale: _Scale | None = None


class _Version(msgspec.Struct):
    name: str
    subresources: _Subresources | None = None


class _Spec(msgspec.Struct):
    versions: list[_Version]


class _Definition(msgspec.Struct):
    """apiextensionsv1.CustomResourceDefinition."""

    spec: _Spec


def scalable(cluster: Cluster, group: str, version: str, kind: str) -> Scalable | None:
    """What is known of a kind's scale; None where it has none, or nobody may say.

    Raises:
        ClusterError: The API server does not answer.
    """
    if not _is_custom(group):
        return None
    names = _names(cluster, f"{group}/{version}")
    plural = next((name for name, of in names.items() if of == kind and "/" not in name), "")
    if f"{plural}/scale" not in names:
        return None
    return Scalable(plural, _replicas_path(cluster, f"{plural}.{group}", version))


def scalables(cluster: Cluster) -> Iterator[OwnerKind]:
    """All kinds with a scale whose replicas can be changed, but for those that we know.

    Raises:
        ClusterError: The API server does not answer.
    """
    try:
        served = cluster.served()
    except RequestRefused:
        return
    for group, versions in served.items():
        if not _is_custom(group):
            continue
        names = _names(cluster, f"{group}/{versions[0]}")
        for name in [kind for plural, kind in names.items() if f"{plural}/scale" in names]:
            found = None if owner_kind(group, name) else scalable(cluster, group, versions[0], name)
            if found is not None and found.replicas:
                yield kind_of_scalable(group, versions[0], name, found)


def kind_of_scalable(group: str, version: str, kind: str, found: Scalable) -> OwnerKind:
    """Such a kind as a row."""
    return OwnerKind(group, (version,), kind, found.plural, found.replicas)


def _is_custom(group: str) -> bool:
    is_kubernetes = group in _BUILT_IN or (group.endswith(_OF_KUBERNETES) and not group.endswith(".x-k8s.io"))
    return bool(group) and not is_kubernetes


def _names(cluster: Cluster, group_version: str) -> dict[str, str]:
    """Kinds by the names that a group version serves; none where it does not answer, as a third party's may not."""
    try:
        return {one.name: one.kind for one in cluster.resources(group_version)}
    except RequestRefused:
        return {}


def _replicas_path(cluster: Cluster, name: str, version: str) -> tuple[str, ...]:
    """Where in an object the number of replicas stands; nothing where the definition cannot be read."""
    try:
        definition = cluster.get(f"{_DEFINITIONS}/{name}", _Definition)
    except RequestRefused as refused:
        if refused.code == http.HTTPStatus.FORBIDDEN:
            log.warning(
                "%s: where its replicas stand is not known, so it is only advised on: %s", name, refused
            )
        return ()
    for one in definition.spec.versions:
        scale = one.subresources.scale if one.subresources else None
        if one.name == version and scale is not None and scale.spec_replicas_path.startswith(".spec."):
            return tuple(scale.spec_replicas_path.split(".")[1:])
    return ()
