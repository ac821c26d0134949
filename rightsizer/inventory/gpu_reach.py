"""Why a pod can use GPUs that it does not hold: by its spec, or by how its node shares GPUs. Pure."""

import posixpath
from collections.abc import Iterator

import msgspec

from rightsizer.inventory.gpu_requests import FRACTION_ANNOTATIONS
from rightsizer.kube.api_objects import ABSENT, Container, EnvVar, PodObject
from rightsizer.model import Node, Pod

_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""Variable not looked for behind `envFrom`: many pods have it, hardly any for this, and it may name a Secret."""
_NONE_VISIBLE = frozenset({"", "none", "void"})
_DEVICE_MOUNTS = "/var/run/nvidia-container-devices"
"""Directory in which mounts are named after devices: accept-nvidia-visible-devices-as-volume-mounts of NVIDIA's
Container Toolkit."""
_CDI_ANNOTATION = "cdi.k8s.io/"
_PATHS = (
    *("/dev/nvidia", "/dev/dri", "/dev/dxg", "/etc/cdi"),
    *(
        f"{run}/{name}"
        for run in ("/run", "/var/run")
        for name in ("cdi", "nvidia", "docker.sock", "containerd", "crio", "podman", "k3s")
    ),
)
"""Device files of GPUs, and sockets and folders of what gives containers devices."""
_MPS = "/tmp/nvidia-mps"  # noqa: S108 - a path of nodes
"""Directory that counts if mounted itself: mounts of /tmp are common, and on a node with MPS every pod is in reach."""

_CHOOSES = {
    "mps": "MPS may run its work on another GPU",
    **dict.fromkeys(("hami", "gpushare"), "{} chooses its GPU"),
}
"""Reasons why the kubelet's device need not be the one that a pod uses, by how its node shares GPUs."""
_CHOOSING = {
    "aliyun.com/gpu-mem": "gpushare",
    **dict.fromkeys(("volcano.sh/vgpu-number", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage"), "hami"),
    "nvidia.com/gpucores": "hami",
}
"""Ways of sharing by resource name, where the node does not say it."""


def reach_of(item: PodObject) -> str:
    """Why the spec of a pod lets it use any GPU of its node, in words; empty if it does not."""
    spec = item.spec
    for one in (*spec.containers, *_unfinished(item)):
        if how := _container_reach(one):
            return f"its container {one.name} {how}"
    if path := next(filter(None, map(_with_gpus, _paths(spec.volumes))), ""):
        return f"it mounts {path} of its node"
    for key in item.metadata.annotations or ():
        if key.startswith(_CDI_ANNOTATION):
            return f"its annotation {_CDI_ANNOTATION} names devices"
        if key in FRACTION_ANNOTATIONS:
            return f"the scheduler that reads its annotation {key} chooses its GPU"
    return ""


def _container_reach(container: Container) -> str:
    if container.security_context is not None and container.security_context.privileged:
        return "is privileged"
    if any(variable.name == _VISIBLE and _shows(variable) for variable in container.env or ()):
        return f"sets {_VISIBLE}"
    return f"mounts {_DEVICE_MOUNTS}" if _DEVICE_MOUNTS.encode() in bytes(container.volume_mounts) else ""


def _shows(variable: EnvVar) -> bool:
    """Whether a variable may name GPUs; mpi-operator sets it to nothing on the launchers of MPIJobs v2beta1."""
    return (variable.value or "") not in _NONE_VISIBLE or bytes(variable.value_from) != bytes(ABSENT)


def _unfinished(item: PodObject) -> Iterator[Container]:
    """Sidecars, and the init and ephemeral containers that have not ended, or whose state is not known."""
    spec, status = item.spec, item.status
    states = (*(status.init_container_statuses or ()), *(status.ephemeral_container_statuses or ()))
    ended = {one.name for one in states if one.state.terminated is not None}
    for one in (*(spec.init_containers or ()), *(spec.ephemeral_containers or ())):
        if one.restart_policy == "Always" or one.name not in ended:
            yield one


class _HostPath(msgspec.Struct):
    """corev1.HostPathVolumeSource."""

    path: str = ""


class _HostVolume(msgspec.Struct, rename="camel"):
    """corev1.Volume."""

    host_path: _HostPath | None = None


_decoder = msgspec.json.Decoder(list[_HostVolume] | None)


def _paths(volumes: msgspec.Raw) -> Iterator[str]:
    """The paths of the node that a pod mounts; all of it if they cannot be read."""
    try:
        found = _decoder.decode(volumes)
    except msgspec.DecodeError:
        yield "/"
        return
    yield from (volume.host_path.path for volume in found or () if volume.host_path is not None)


def _with_gpus(path: str) -> str:
    """The path, normalized, if it is one of `_PATHS`, inside of one or of `_MPS`, or contains one; else empty."""
    folder = "/" + posixpath.normpath(path).strip("/") if path else ""
    within = f"{folder.rstrip('/')}/"
    return (
        folder
        if folder and (any(one.startswith(within) for one in _PATHS) or folder.startswith((*_PATHS, _MPS)))
        else ""
    )


def reach_on(pod: Pod, node: Node | None) -> str:
    """The same, with what its node and its resources add."""
    sharing = node.sharing if node is not None else ""
    by_resource = next((how for name, how in _CHOOSING.items() if name in pod.resources), "")
    sharing = sharing if sharing in _CHOOSES else by_resource
    return pod.reach or (_CHOOSES[sharing].format(sharing) if sharing else "")
