"""From the text of /proc/<pid>/cgroup to the pod and the container that a process belongs to. Pure.

A path names a pod only where it is built as the kubelet and the runtimes build it; what looks otherwise is no pod.
"""

import dataclasses
import enum
import re
from collections.abc import Iterable, Iterator, Sequence


class NoPod(enum.Enum):
    """Why a process has no pod: a closed set, because the value is the `reason` label of what is not attributed.

    HOST: a process of the host. CONTAINER: of a container that Kubernetes does not know, such as podman's. HIDDEN: our
    own cgroup namespace hides the part of the path that would say. UNKNOWN_LAYOUT: below the kubelet's cgroups, but not
    in a form that is known. UNREADABLE: not what the kernel writes. The others only a reader of /proc can find: GONE,
    ended in the meantime; REUSED, its PID is another process's by now; NO_PERMISSION; OFF, /proc is not the host's.
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


# The lines of cgroup v1 may differ; where none names a pod, the one that least allows to call it the host's counts.
_ORDER = (NoPod.UNKNOWN_LAYOUT, NoPod.HIDDEN, NoPod.CONTAINER, NoPod.HOST)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a process belongs.

    Attributes:
        pod_uid: As the kubelet knows it: a UUID, or the 32 digits of a static pod's configuration, whose mirror pod has
            them in its annotation kubernetes.io/config.hash; empty where there is no pod.
        container_id: The runtime's, of 64 digits; empty where the process is in no container, or in none that is known.
        why_not: Set exactly where there is no pod.
    """

    pod_uid: str = ""
    container_id: str = ""
    why_not: NoPod | None = None


_SUFFIX_OF_REMOVED = " (deleted)"  # cgroup v2, of a process whose cgroup is removed already
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")  # systemd's, in names of units
_UID = r"(?P<uid>[0-9a-f]{8}(?P<dash>[-_])(?:[0-9a-f]{4}(?P=dash)){3}[0-9a-f]{12}|[0-9a-f]{32})"
_ID = r"(?P<id>[0-9a-f]{64})"
_CLASSES = ("burstable", "besteffort")  # guaranteed pods have no level of their own
# systemd's driver: a slice's name holds those of the slices above it, hence the prefix under --cgroup-root. A runtime
# that is not told that the driver is systemd's takes "slice:runtime:id" for the name of one folder.
_KUBEPODS = r"(?:.+-)?kubepods(?:-burstable|-besteffort)?"
_SLICE = re.compile(rf"{_KUBEPODS}\.slice")
_POD_SLICE = re.compile(rf"{_KUBEPODS}-pod{_UID}\.slice(?::[a-z-]+:{_ID})?")
_NEARLY_POD_SLICE = re.compile(rf"{_KUBEPODS}-pod.*\.slice.*")
# cgroupfs's driver
_FOLDER = "kubepods"
_POD_FOLDER = re.compile(rf"pod{_UID}")
# conmon and other helpers of a runtime have names of their own (crio-conmon-…) and are not the container
_CONTAINER = re.compile(rf"(?:(?:cri-containerd|crio|docker)-)?{_ID}(?:\.scope)?")
_FOREIGN_CONTAINER = re.compile(rf"(?:(?:cri-containerd|crio|docker|libpod|nerdctl)-)?{_ID}(?:\.scope)?")
_ROOT_UNITS = frozenset({"init.scope", "system.slice", "user.slice", "machine.slice"})
# Our cgroup namespace begins at our container's cgroup, or with crun one below it: two levels up may still be our pod.
_OUT_OF_OWN_POD = 3


def place(text: str) -> Place:
    """Where the process is whose /proc/<pid>/cgroup reads `text`: one line in cgroup v2, several in v1 and hybrid."""
    places = [_placed(path) for path in dict.fromkeys(_paths(text))]
    if not places:
        return Place(why_not=NoPod.UNREADABLE)
    in_pods = [found for found in places if found.why_not is None]
    if in_pods:
        return _agreed(in_pods)
    return min(places, key=lambda found: _ORDER.index(found.why_not or NoPod.HOST))


def _agreed(places: Sequence[Place]) -> Place:
    """What the hierarchies of cgroup v1 say together; they never disagree on the pod unless someone plays with them."""
    uids = {found.pod_uid for found in places}
    ids = {found.container_id for found in places} - {""}
    if len(uids) > 1:
        return Place(why_not=NoPod.UNKNOWN_LAYOUT)
    return Place(uids.pop(), ids.pop() if len(ids) == 1 else "")


def _paths(text: str) -> Iterator[str]:
    """The path of each line "number:controllers:path". The kernel allows no line break in a cgroup's name."""
    for line in text.split("\n"):
        number, _, rest = line.partition(":")
        _, colon, path = rest.partition(":")
        if colon and number.isdecimal() and path.startswith("/"):
            yield path.removesuffix(_SUFFIX_OF_REMOVED)


def _placed(path: str) -> Place:
    names = [_ESCAPE.sub(_unescaped, name) for name in path.split("/") if name]
    ups = next((depth for depth, name in enumerate(names) if name != ".."), len(names))
    names = names[ups:]
    found = _in_kubepods(names) or (_in_hidden_kubepods(names) if ups > 1 else None)
    if found is not None:
        return found
    container_id = _first_container(names)
    above = ups >= _OUT_OF_OWN_POD or (ups > 1 and names[:1] and names[0] in _ROOT_UNITS)
    if ups and not above:
        return Place(container_id=container_id, why_not=NoPod.HIDDEN)
    return Place(container_id=container_id, why_not=NoPod.CONTAINER if container_id else NoPod.HOST)


def _in_kubepods(names: Sequence[str]) -> Place | None:
    """By the outermost of the kubelet's cgroups: pods may hold nodes of other clusters. None where there are none."""
    inside = False
    for depth, name in enumerate(names):
        if name == _FOLDER:
            return _in_pod_folder(names[depth + 1 :]) or Place(why_not=NoPod.UNKNOWN_LAYOUT)
        if match := _POD_SLICE.fullmatch(name):
            return Place(_uid(match), match["id"] or _container(names[depth + 1 :]))
        if _SLICE.fullmatch(name):
            inside = True
        elif inside or _NEARLY_POD_SLICE.fullmatch(name):
            return Place(why_not=NoPod.UNKNOWN_LAYOUT)
    return Place(why_not=NoPod.UNKNOWN_LAYOUT) if inside else None


def _in_hidden_kubepods(names: Sequence[str]) -> Place | None:
    """With cgroupfs's driver, a namespace hides "kubepods" itself: then both pod and container must stand there."""
    found = _in_pod_folder(names)
    return found if found and found.container_id else None


def _in_pod_folder(names: Sequence[str]) -> Place | None:
    below = names[1:] if names and names[0] in _CLASSES else names
    match = _POD_FOLDER.fullmatch(below[0]) if below else None
    return Place(_uid(match), _container(below[1:])) if match else None


def _container(names: Sequence[str]) -> str:
    """The container right below the pod; what a container makes inside of itself does not count."""
    match = _CONTAINER.fullmatch(names[0]) if names else None
    return match["id"] if match else ""


def _first_container(names: Iterable[str]) -> str:
    return next((match["id"] for name in names if (match := _FOREIGN_CONTAINER.fullmatch(name))), "")


def _uid(match: re.Match[str]) -> str:
    """As the API writes it: systemd's driver replaces the dashes, which separate slices there."""
    return match["uid"].replace("_", "-")


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[1], 16))
