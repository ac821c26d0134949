"""Maps pod UIDs to names by the folders of the pods' logs, without the API server.

The kubelet names a pod's folder `pods/<namespace>_<name>_<uid>`, of a static pod with the hash of its configuration,
and links `containers/<pod>_<namespace>_<container>-<container id>.log` into it. (kubernetes: pkg/kubelet/kuberuntime,
helpers.go and legacy.go.) Names of pods and namespaces hold no underscore. Names in another form are skipped. A link's
name has at most 255 characters, so that long names cut the end of the container id, or all of it.
"""

import dataclasses
import os
import re
from collections.abc import Iterable
from pathlib import Path

_POD = re.compile(r"(?P<namespace>[a-z0-9-]{1,63})_(?P<pod>[a-z0-9.-]{1,253})_(?P<uid>[0-9a-f-]{32,36})")
_CONTAINER = re.compile(r"[a-z0-9.-]+_[a-z0-9-]+_(?P<container>[a-z0-9-]{1,63})-(?P<id>[0-9a-f]{8,64})\.log")
_ID_LENGTH = 64


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
        return os.path.isdir(self._pods_folder)  # noqa: PTH112 - raises nothing, whoever may not look

    def not_static(self) -> set[tuple[str, str]]:
        """Namespace and name of the pods that the API server gave to the kubelet, also of those that have ended."""
        found = filter(None, map(_POD.fullmatch, _names(self._pods_folder)))
        return {(match["namespace"], match["pod"]) for match in found if "-" in match["uid"]}

    def refresh(self, uids: Iterable[str], containers: Iterable[str], pods: Iterable[PodName]) -> None:
        """Read the folders again if one of the arguments is unknown, and forget what has vanished."""
        if not (self._pods.keys() >= set(uids) and set(self._pods.values()) >= set(pods)):
            self._pods = {
                match["uid"]: PodName(match["namespace"], match["pod"])
                for name in _names(self._pods_folder)
                if (match := _POD.fullmatch(name))
            }
        wanted = set(containers)
        if not self._containers.keys() >= wanted:
            links = {
                match["id"]: match["container"]
                for name in _names(self._containers_folder)
                if (match := _CONTAINER.fullmatch(name))
            }
            cut = [(start, name) for start, name in links.items() if len(start) < _ID_LENGTH]
            self._containers = links | {
                whole: name for whole in wanted for start, name in cut if whole.startswith(start)
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
