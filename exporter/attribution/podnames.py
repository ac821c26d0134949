"""Maps pod UIDs to names by the folders of the pods' logs, without the API server.

The kubelet names a pod's folder `pods/<namespace>_<name>_<uid>`, of a static pod with the hash of its configuration,
and links `containers/<pod>_<namespace>_<container>-<container id>.log` into it. (kubernetes: pkg/kubelet/kuberuntime,
helpers.go and legacy.go.) Names of pods and namespaces hold no underscore. Names in another form are skipped.
"""

import dataclasses
import os
import re
from collections.abc import Iterable
from pathlib import Path

_POD = re.compile(r"(?P<namespace>[a-z0-9-]{1,63})_(?P<pod>[a-z0-9.-]{1,253})_(?P<uid>[0-9a-f-]{32,36})")
_CONTAINER = re.compile(r"[a-z0-9.-]+_[a-z0-9-]+_(?P<container>[a-z0-9-]{1,63})-(?P<id>[0-9a-f]{64})\.log")


@dataclasses.dataclass(frozen=True, slots=True)
class PodName:
    """Namespace and name of a pod."""

    namespace: str
    name: str


class PodLogFolders:
    """The log folders of the node's pods."""

    def __init__(self, logs: Path) -> None:
        """Take the host's /var/log; nothing is read yet."""
        self._pods_folder = logs / "pods"
        self._containers_folder = logs / "containers"
        self._pods: dict[str, PodName] = {}
        self._containers: dict[str, str] = {}

    @property
    def folder(self) -> Path:
        """The folder with one subfolder per pod."""
        return self._pods_folder

    @property
    def exist(self) -> bool:
        """Whether the folder exists."""
        return self._pods_folder.is_dir()

    def refresh(self, uids: Iterable[str], containers: Iterable[str], pods: Iterable[PodName]) -> None:
        """Read the folders again if one of the arguments is unknown, and forget what has vanished."""
        if not (self._pods.keys() >= set(uids) and set(self._pods.values()) >= set(pods)):
            self._pods = {
                match["uid"]: PodName(match["namespace"], match["pod"])
                for name in _names(self._pods_folder)
                if (match := _POD.fullmatch(name))
            }
        if not self._containers.keys() >= set(containers):
            self._containers = {
                match["id"]: match["container"]
                for name in _names(self._containers_folder)
                if (match := _CONTAINER.fullmatch(name))
            }

    def pod(self, uid: str) -> PodName | None:
        """The pod with this UID, or with this hash of a static pod."""
        return self._pods.get(uid)

    def knows(self, name: PodName) -> bool:
        """Whether there is a pod with that name."""
        return name in self._pods.values()

    def container(self, container_id: str) -> str:
        """The container's name; empty if unknown."""
        return self._containers.get(container_id, "")


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names only: a path for each of thousands is slow
    except OSError:
        return []
