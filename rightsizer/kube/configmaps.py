"""ConfigMaps of our own namespace: texts by key, written only as they were read.

A resourceVersion precondition stands in every patch, so two who write at the same time do not lose each other's. What
the texts mean is the caller's business.
"""

import contextlib
import http
from collections.abc import Callable, Iterator, Mapping

import msgspec

from rightsizer.errors import ClusterError, ConfigurationError, RequestRefused
from rightsizer.kube.cluster import Cluster

_ATTEMPTS = 5

Texts = Mapping[str, str]
Changes = Mapping[str, str | None]
"""Texts by key; None for one that is not needed any more."""


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str


class _ConfigMap(msgspec.Struct):
    metadata: _Metadata
    data: dict[str, str] | None = None


class ConfigMap:
    """One of them.

    Args:
        cluster: Where.
        namespace: Our own.
        name: Of the ConfigMap.
        what: It keeps, for people.
    """

    def __init__(self, cluster: Cluster, namespace: str, name: str, what: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._maps = f"/api/v1/namespaces/{namespace}/configmaps"
        self._name = name
        self._what = what
        self.place = f"ConfigMap {namespace}/{name}"

    def read(self) -> Texts:
        """What is kept; nothing where there is no ConfigMap.

        Raises:
            ClusterError: It could not be read.
        """
        return self._read()[0]

    def change(self, how: Callable[[Texts], Changes]) -> None:
        """Read, change and write. Nothing is written where nothing changes.

        Raises:
            ConfigurationError: It may not be written, or its namespace does not exist.
            ClusterError: It could not be read or written.
        """
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(_OvertakenError):
                self._change(how)
                return
        self._change(how)

    def _change(self, how: Callable[[Texts], Changes]) -> None:
        before, version = self._read()
        changes = {key: text for key, text in how(before).items() if before.get(key) != text}
        if changes:
            with self._refusals():
                self._write(changes, version)

    def _read(self) -> tuple[Texts, str]:
        try:
            found = self._cluster.get(f"{self._maps}/{self._name}", _ConfigMap)
        except RequestRefused as refused:
            if refused.code == http.HTTPStatus.NOT_FOUND:
                return {}, ""
            raise
        return found.data or {}, found.metadata.resource_version

    def _write(self, changes: Changes, version: str) -> None:
        if version:
            body = {"metadata": {"resourceVersion": version}, "data": changes}
            self._cluster.patch(f"{self._maps}/{self._name}", body)
            return
        metadata = {"name": self._name}
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": changes}
        self._cluster.create(self._maps, made)

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except RequestRefused as refused:
            match refused.code:
                case http.HTTPStatus.CONFLICT:
                    raise _OvertakenError(str(refused)) from refused
                case http.HTTPStatus.NOT_FOUND:
                    raise ConfigurationError(
                        f"--state-namespace {self._namespace}: breaker, pauses, what was changed and evicted pods' "
                        f"manifests are kept there, but: {refused.detail}; create it with: "
                        f"kubectl create namespace {self._namespace}"
                    ) from refused
                case http.HTTPStatus.FORBIDDEN:
                    raise ConfigurationError(
                        f"{self.place}: keeps {self._what}, but may not be written: {refused.detail}; "
                        "gpu-rightsizer doctor --roles prints what is needed"
                    ) from refused
                case _:
                    raise


class _OvertakenError(ClusterError):
    """Somebody else wrote it between our reading and writing."""
