"""ConfigMaps in the state namespace that keep texts by key.

Each write carries the resourceVersion that was read, so concurrent writers never lose each other's changes.
"""

import contextlib
import http
from collections.abc import Callable, Iterator, Mapping

import msgspec

from rightsizer.errors import ClusterError, ConfigurationError, RequestRefused
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.object_names import shell_command

_ATTEMPTS = 5

Texts = Mapping[str, str]
Changes = Mapping[str, str | None]
"""New texts by key; None deletes a key."""


class _ResourceVersion(msgspec.Struct, rename="camel"):
    resource_version: str


class _ConfigMapObject(msgspec.Struct):
    metadata: _ResourceVersion
    data: dict[str, str] | None = None


class ConfigMap:
    """A ConfigMap in the state namespace; `contents` says in messages what it keeps."""

    def __init__(self, cluster: Cluster, namespace: str, name: str, contents: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._collection = f"/api/v1/namespaces/{namespace}/configmaps"
        self._name = name
        self._contents = contents
        self.place = f"ConfigMap {namespace}/{name}"

    def read(self) -> Texts:
        """The texts; none if the ConfigMap does not exist.

        Raises:
            ClusterError: The request failed.
        """
        return self._read()[0]

    def change(self, how: Callable[[Texts], Changes]) -> None:
        """Read, change and write; again if another writer was faster. Writes nothing if nothing changes.

        Raises:
            ConfigurationError: Writing is forbidden, or the namespace does not exist.
            ClusterError: A request failed.
        """
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(_ConflictError):
                self._change(how)
                return
        self._change(how)

    def _change(self, how: Callable[[Texts], Changes]) -> None:
        before, version = self._read()
        changes = {key: text for key, text in how(before).items() if before.get(key) != text}
        if changes:
            with self._translated():
                self._write(changes, version)

    def _read(self) -> tuple[Texts, str]:
        found = self._cluster.find(f"{self._collection}/{self._name}", _ConfigMapObject)
        return (found.data or {}, found.metadata.resource_version) if found else ({}, "")

    def _write(self, changes: Changes, version: str) -> None:
        if version:
            body = {"metadata": {"resourceVersion": version}, "data": changes}
            self._cluster.patch(f"{self._collection}/{self._name}", body)
            return
        head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self._name}}
        self._cluster.create(self._collection, {**head, "data": changes})

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except RequestRefused as refused:
            match refused.code:
                case http.HTTPStatus.CONFLICT:
                    raise _ConflictError(str(refused)) from refused
                case http.HTTPStatus.NOT_FOUND:
                    raise ConfigurationError(
                        f'--state-namespace "{self._namespace}": cannot store breaker, pauses, history and manifests '
                        f"of evicted pods: {refused.detail}; create it with: "
                        + shell_command("kubectl", "create", "namespace", self._namespace)
                    ) from refused
                case http.HTTPStatus.FORBIDDEN:
                    raise ConfigurationError(
                        f"{self.place}: cannot store {self._contents}: {refused.detail}; "
                        "gpu-rightsizer doctor --roles prints the permissions that it needs"
                    ) from refused
                case _:
                    raise


class _ConflictError(ClusterError):
    """Another writer changed it between read and write."""
