"""Which pods can use GPUs that they do not hold."""

import dataclasses
from typing import Any

import msgspec
import pytest

from rightsizer.inventory.gpu_reach import reach_of, reach_on
from rightsizer.kube.api_objects import PodObject
from rightsizer.model import Node
from tests.rightsizer import build

PRIVILEGED = {"securityContext": {"privileged": True}}


def _reach(
    container: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    **metadata: Any,
) -> str:
    item = {
        "metadata": {"name": "x", "namespace": "team", **metadata},
        "spec": {"containers": [{"name": "main", **(container or {})}], **(spec or {})},
        "status": status or {},
    }
    return reach_of(msgspec.json.decode(msgspec.json.encode(item), type=PodObject))


def _visible(**value: Any) -> dict[str, Any]:
    return {"env": [{"name": "HOME", "value": "/"}, {"name": "NVIDIA_VISIBLE_DEVICES", **value}]}


def _mounts(path: str) -> dict[str, Any]:
    return {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "hostPath": {"path": path}}]}


@pytest.mark.parametrize(
    ("container", "spec"),
    [
        pytest.param(PRIVILEGED, {}, id="privileged"),
        pytest.param({}, {"initContainers": [{"name": "a", **PRIVILEGED}]}, id="init-container"),
        pytest.param({}, {"ephemeralContainers": [{"name": "a", **PRIVILEGED}]}, id="debug-container"),
        pytest.param(_visible(value="all"), {}, id="all-visible"),
        pytest.param(_visible(value="GPU-1,GPU-2"), {}, id="some-visible"),
        pytest.param(_visible(valueFrom={"configMapKeyRef": {"name": "x"}}), {}, id="visible-from-elsewhere"),
        *(
            pytest.param({}, _mounts(path), id=path)
            for path in (
                *("/", "//", "/dev", "/dev/", "/dev/nvidia3", "/dev/../dev", "/run", "/var/run/docker.sock"),
                "/tmp/nvidia-mps/pipe",
                *("/run/containerd/containerd.sock", "/var/run/cdi", "/etc/cdi", "/run/nvidia/mps"),
            )
        ),
    ],
)
def test_reach_of_a_spec_that_shows_more_gpus_is_named(
    container: dict[str, Any], spec: dict[str, Any]
) -> None:
    """Init and debug containers whose state is not known may run."""
    assert _reach(container, spec)


@pytest.mark.parametrize(
    ("container", "spec"),
    [
        pytest.param({}, {}, id="plain"),
        pytest.param({"securityContext": {"privileged": False}}, {}, id="not-privileged"),
        pytest.param({"securityContext": None, "env": None}, {"volumes": None}, id="null"),
        pytest.param(_visible(value="void"), {}, id="none-visible"),
        pytest.param(_visible(), {}, id="empty"),  # as the API server returns ""
        pytest.param(_visible(value="", valueFrom=None), {}, id="empty-and-null"),
        pytest.param({"envFrom": [{"configMapRef": {"name": "settings"}}]}, {}, id="read-from-elsewhere"),
        *(
            pytest.param({}, _mounts(path), id=path or "none")
            for path in (
                "",
                "/dev/shm",
                "/dev/infiniband",
                "/data",
                "/var/lib/docker",
                "/etc/ssl",
                "/runs",
                "/tmp",
            )
        ),
    ],
)
def test_reach_of_a_spec_that_shows_no_other_gpu_is_empty(
    container: dict[str, Any], spec: dict[str, Any]
) -> None:
    """Mounts of other paths are common."""
    assert not _reach(container, spec)


@pytest.mark.parametrize(
    ("kind", "fields", "state", "is_over"),
    [
        ("initContainer", {}, {"terminated": {"exitCode": 0}}, True),
        ("ephemeralContainer", {}, {"terminated": {"exitCode": 1}}, True),
        ("initContainer", {}, {"running": {}}, False),
        ("initContainer", {}, {"waiting": {"reason": "CrashLoopBackOff"}}, False),
        ("ephemeralContainer", {}, {"running": {}}, False),
        ("initContainer", {"restartPolicy": "Always"}, {"terminated": {"exitCode": 0}}, False),
        ("container", {}, {"terminated": {"exitCode": 0}}, False),
    ],
)
def test_reach_of_init_and_debug_containers_ends_with_them(
    kind: str, fields: dict[str, Any], state: dict[str, Any], *, is_over: bool
) -> None:
    """`sysctl` init containers are common; sidecars and main containers restart."""
    spec = {f"{kind}s": [{"name": "sysctl", **PRIVILEGED, **fields}]}
    status = {f"{kind}Statuses": [{"name": "sysctl", "state": state}]}
    assert bool(_reach(spec=spec, status=status)) != is_over
    other = {f"{kind}Statuses": [{"name": "other", "state": state}]}
    assert _reach(spec=spec, status=other)


@pytest.mark.parametrize("name", ["cdi.k8s.io/x", "gpu-fraction", "gpu-memory"])
def test_reach_of_annotations_is_named(name: str) -> None:
    """Container runtimes give a container the devices of the first, and KAI's scheduler chooses by the others."""
    assert name.partition("x")[0] in _reach(annotations={name: "0.5"})


def test_reach_of_a_mount_that_names_devices() -> None:
    """NVIDIA's Container Toolkit can be told to read devices from the names of mounts."""
    mount = {"name": "v", "mountPath": "/var/run/nvidia-container-devices/all"}
    words = "its container main mounts /var/run/nvidia-container-devices"
    assert _reach({"volumeMounts": [{"name": "w", "mountPath": "/data"}, mount]}) == words


@pytest.mark.parametrize("sharing", ["mps", "hami", "gpushare", "time-slicing", ""])
def test_reach_on_a_node_is_by_how_it_shares_gpus(sharing: str) -> None:
    """HAMi and gpushare choose a GPU by annotation, whatever device ID the kubelet chose."""
    pod = build.pod("x")
    assert bool(reach_on(pod, Node("n1", sharing=sharing))) == (sharing in {"mps", "hami", "gpushare"})
    asks = dataclasses.replace(pod, resources={"aliyun.com/gpu-mem": 8})
    assert reach_on(asks, None) == "gpushare chooses its GPU"
    for resource in ("nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"):
        asks = dataclasses.replace(pod, resources={resource: 8})
        assert reach_on(asks, Node("n1")) == "hami chooses its GPU"
