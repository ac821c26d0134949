"""Finds the pod and container of a process in the text of /proc/<pid>/cgroup. Pure.

A path names a pod only if it has the form that the kubelet and the container runtimes use.
"""

import dataclasses
import enum
import re
from collections.abc import Iterable, Iterator, Sequence


class NoPodReason(enum.Enum):
    """Why a process has no pod: a closed set, because the value is the label `reason` of unattributed usage.

    HOST: a process of the host. CONTAINER: in a container outside Kubernetes, such as podman's. HIDDEN: the
    exporter's cgroup namespace hides that part of the path. UNKNOWN_LAYOUT: below the kubelet's cgroups in an unknown
    form. UNREADABLE: not in the kernel's form. procfs finds the others. GONE: ended meanwhile. REUSED: its PID is now
    another process's. NO_PERMISSION. OFF: /proc is not the host's.
    """

    HOST = "host"
    CONTAINER = "container"
    HIDDEN = "hidden"
    UNKNOWN_LAYOUT = "unknown_layout"
    UNREADABLE = "unreadable"
    GONE = "gone"
    REUSED = "reused"
    NO_PERMISSION = "no_permission"
    OFF = "off"


# The lines of cgroup v1 may differ. If none names a pod, the least certain reason wins.
_ORDER = (NoPodReason.UNKNOWN_LAYOUT, NoPodReason.HIDDEN, NoPodReason.CONTAINER, NoPodReason.HOST)


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """The pod and container of a process."""

    # the kubelet's: a UUID, or for a static pod the 32 digits of its annotation kubernetes.io/config.hash.
    # Empty if there is no pod.
    pod_uid: str = ""
    container_id: str = ""  # the runtime's 64 digits; empty if unknown
    no_pod_reason: NoPodReason | None = None  # set if and only if there is no pod


_SUFFIX_OF_REMOVED = " (deleted)"  # cgroup v2, of a process whose cgroup is removed already
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")  # systemd's, in names of units
_UID = r"(?P<uid>[0-9a-f]{8}(?P<dash>[-_])(?:[0-9a-f]{4}(?P=dash)){3}[0-9a-f]{12}|[0-9a-f]{32})"
_ID = r"(?P<id>[0-9a-f]{64})"
_CLASSES = ("burstable", "besteffort")  # guaranteed pods have no level of their own
# systemd's driver: a slice's name holds those of the slices above it, hence the prefix under --cgroup-root. A runtime
# that is not configured for the systemd driver uses "slice:runtime:id" as the name of one folder.
_KUBEPODS = r"(?:.+-)?kubepods(?:-burstable|-besteffort)?"
_SLICE = re.compile(rf"{_KUBEPODS}\.slice")
_POD_SLICE = re.compile(rf"{_KUBEPODS}-pod{_UID}\.slice(?::[a-z-]+:{_ID})?")
_NEARLY_POD_SLICE = re.compile(rf"{_KUBEPODS}-pod.*\.slice.*")
# cgroupfs's driver
_FOLDER = "kubepods"
_POD_FOLDER = re.compile(rf"pod{_UID}")
# conmon and other helpers of a runtime (crio-conmon-…) are not the container
_CONTAINER = re.compile(rf"(?:(?:cri-containerd|crio|docker)-)?{_ID}(?:\.scope)?")
_FOREIGN_CONTAINER = re.compile(rf"(?:(?:cri-containerd|crio|docker|libpod|nerdctl)-)?{_ID}(?:\.scope)?")
_ROOT_UNITS = frozenset({"init.scope", "system.slice", "user.slice", "machine.slice"})
# The exporter's cgroup namespace starts at its container's cgroup, or with crun one below: two levels up may still be
# its own pod.
_OUT_OF_OWN_POD = 3


def placement(text: str) -> Placement:
    """The placement in the text of /proc/<pid>/cgroup, which has one line in cgroup v2, several in v1 and hybrid."""
    placements = [_path_placement(path) for path in dict.fromkeys(_paths(text))]
    if not placements:
        return Placement(no_pod_reason=NoPodReason.UNREADABLE)
    in_pods = [found for found in placements if found.no_pod_reason is None]
    if in_pods:
        return _common(in_pods)
    return min(placements, key=lambda found: _ORDER.index(found.no_pod_reason or NoPodReason.HOST))


def _common(placements: Sequence[Placement]) -> Placement:
    """The common result of cgroup v1's hierarchies, which disagree on the pod only after manipulation."""
    uids = {found.pod_uid for found in placements}
    ids = {found.container_id for found in placements} - {""}
    if len(uids) > 1:
        return Placement(no_pod_reason=NoPodReason.UNKNOWN_LAYOUT)
    return Placement(uids.pop(), ids.pop() if len(ids) == 1 else "")


def _paths(text: str) -> Iterator[str]:
    """The path of each line "number:controllers:path". The kernel allows no line break in a cgroup's name."""
    for line in text.split("\n"):
        number, _, rest = line.partition(":")
        _, colon, path = rest.partition(":")
        if colon and number.isdecimal() and path.startswith("/"):
            yield path.removesuffix(_SUFFIX_OF_REMOVED)


def _path_placement(path: str) -> Placement:
    names = [_ESCAPE.sub(_unescaped, name) for name in path.split("/") if name]
    ups = next((depth for depth, name in enumerate(names) if name != ".."), len(names))
    names = names[ups:]
    found = (_in_hidden_kubepods(names) if ups > 1 else None) or _in_kubepods(names, is_cut=ups > 0)
    if found is not None:
        return found
    container_id = _first_container(names)
    above = ups >= _OUT_OF_OWN_POD or (ups > 1 and names[:1] and names[0] in _ROOT_UNITS)
    if ups and not above:
        return Placement(container_id=container_id, no_pod_reason=NoPodReason.HIDDEN)
    return Placement(
        container_id=container_id, no_pod_reason=NoPodReason.CONTAINER if container_id else NoPodReason.HOST
    )


def _in_kubepods(names: Sequence[str], *, is_cut: bool) -> Placement | None:
    """Placement by the outermost of the kubelet's cgroups, as pods may run other clusters' nodes; None without one.

    If the path is cut off, the outermost may be what is hidden: below a pod or container, no name counts.
    """
    inside = False
    for depth, name in enumerate(names):
        if is_cut and (_POD_FOLDER.fullmatch(name) or _FOREIGN_CONTAINER.fullmatch(name)):
            break
        if name == _FOLDER:
            return _in_pod_folder(names[depth + 1 :]) or Placement(no_pod_reason=NoPodReason.UNKNOWN_LAYOUT)
        if match := _POD_SLICE.fullmatch(name):
            return Placement(_uid(match), match["id"] or _container(names[depth + 1 :]))
        if _SLICE.fullmatch(name):
            inside = True
        elif inside or _NEARLY_POD_SLICE.fullmatch(name):
            return Placement(no_pod_reason=NoPodReason.UNKNOWN_LAYOUT)
    return Placement(no_pod_reason=NoPodReason.UNKNOWN_LAYOUT) if inside else None


def _in_hidden_kubepods(names: Sequence[str]) -> Placement | None:
    """Placement where a namespace hides "kubepods" itself (cgroupfs driver): pod and container are required."""
    found = _in_pod_folder(names)
    return found if found and found.container_id else None


def _in_pod_folder(names: Sequence[str]) -> Placement | None:
    below = names[1:] if names and names[0] in _CLASSES else names
    match = _POD_FOLDER.fullmatch(below[0]) if below else None
    return Placement(_uid(match), _container(below[1:])) if match else None


def _container(names: Sequence[str]) -> str:
    """The container directly below the pod; cgroups that a container creates inside itself do not count."""
    match = _CONTAINER.fullmatch(names[0]) if names else None
    return match["id"] if match else ""


def _first_container(names: Iterable[str]) -> str:
    return next((match["id"] for name in names if (match := _FOREIGN_CONTAINER.fullmatch(name))), "")


def _uid(match: re.Match[str]) -> str:
    """UID in the API's form: the systemd driver replaces dashes, which separate slices."""
    return match["uid"].replace("_", "-")


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[1], 16))
