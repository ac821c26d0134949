"""The control plane itself: its nodes, its pods' lives, and its end."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulator.cluster import Cluster
from simulator.controlplane.certificates import ClientIdentity
from simulator.controlplane.plane import ControlPlane
from simulator.controlplane.programs import find
from simulator.kubeclient import Endpoint, KubeClient, KubeClientError
from simulator.processes import ProcessError
from simulator.specfile import preset
from tests.controlplane.contract.objects import conditions, job, pod, pod_spec
from tests.controlplane.world import RealWorld

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("controlplane")]

ROOT = Path(__file__).parents[2]
_STARTS = """\
import pathlib, sys, threading
from simulator.controlplane.plane import ControlPlane
from simulator.controlplane.programs import find
with ControlPlane(pathlib.Path(sys.argv[1]), find()):
    print("up", flush=True)
    threading.Event().wait()
"""


@pytest.mark.driver
def test_fleet_nodes_have_labels_taints_and_resources(plane: ControlPlane, tmp_path: Path) -> None:
    """Ready, with discovery's and the clouds' labels, taints, and whole, cut and shared GPUs as resources."""
    with Cluster(preset("fleet"), tmp_path, kubeconfig=plane.kubeconfig, exporters=False):
        client = KubeClient(plane.endpoint)
        found = {node["metadata"]["name"]: node for node in client.get("/api/v1/nodes")["items"]}
        for spec in preset("fleet").nodes:
            assert conditions(found[spec.name])["Ready"][0] == "True"
        gke, eks, aks = (found[name] for name in ("gke-h100", "eks-a100-mig", "aks-t4-shared"))
        assert gke["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
        assert gke["metadata"]["labels"]["cloud.google.com/gke-accelerator"] == "nvidia-h100-80gb"
        assert {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"} in gke["spec"]["taints"]
        assert eks["status"]["allocatable"]["nvidia.com/mig-3g.20gb"] == "4"
        assert aks["status"]["allocatable"]["nvidia.com/gpu.shared"] == "16"
        assert found["rack-h100-rdma"]["status"]["allocatable"]["rdma/rdma_shared_device_a"] == "63"
        for spec in preset("fleet").nodes:
            client.delete(f"/api/v1/nodes/{spec.name}")


@pytest.mark.prometheus
def test_pod_with_ends_after_finishes(world: RealWorld) -> None:
    """Pods with the annotation end after that time, well or badly, and their Job sees it."""
    world.node()
    key = "simulator.gpu-rightsizer.io"
    for name, annotations, condition in (
        ("good", {f"{key}/ends-after": "300ms"}, "Complete"),
        ("bad", {f"{key}/ends-after": "300ms", f"{key}/exit-code": "3"}, "Failed"),
    ):
        body = job(name, pod={**pod_spec(), "nodeSelector": world.labels}, backoffLimit=0)
        body["spec"]["template"]["metadata"]["annotations"] = annotations
        world.api.create(f"{world.api.batch}/jobs", body)
        world.api.eventually(
            lambda name=name: conditions(world.get("Job", name)),  # type: ignore[misc]
            lambda found, condition=condition: condition in found,  # type: ignore[misc]
        )


@pytest.mark.prometheus
def test_deleted_pod_terminates_before_removal(world: RealWorld) -> None:
    """Its containers end with 143 and its phase is Failed, as a finalizer lets one see."""
    world.node()
    body = pod(labels={"app": "p"})
    body["spec"]["nodeSelector"] = world.labels
    body["metadata"]["finalizers"] = ["example.com/hold"]
    path = f"{world.api.core}/pods/p"
    world.api.create(f"{world.api.core}/pods", body)
    world.running("p", 1)
    world.api("DELETE", path)
    ended = world.api.eventually(
        lambda: world.api.get(path), lambda found: found["status"]["phase"] == "Failed"
    )
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
    world.api.patch(path, {"metadata": {"finalizers": None}})
    world.gone("p")


def test_user_without_grants_is_forbidden(plane: ControlPlane, tmp_path: Path) -> None:
    """Kubeconfigs for other users carry their own certificate; RBAC decides the rest."""
    path = tmp_path / "kubeconfig"
    plane.write_kubeconfig(path, ClientIdentity("stranger"))
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(KubeClientError, match='User "stranger" cannot list resource "pods"'):
        KubeClient(Endpoint.from_kubeconfig(path)).get("/api/v1/pods")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_control_plane_ends_with_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    """Killed or interrupted: all five programs end."""
    process = subprocess.Popen(
        [sys.executable, "-c", _STARTS, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    assert len(_programs(tmp_path)) == 5
    process.send_signal(number)
    process.wait(100)
    process.stdout.close()
    deadline = time.monotonic() + 100
    while left := _programs(tmp_path):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_program_failing_at_start_reports_its_log(tmp_path: Path) -> None:
    """And what had been started before it is ended."""
    with pytest.raises(ProcessError, match="kube-apiserver ended at start") as error:
        ControlPlane(tmp_path, find(), api_flags=["--no-such-flag"]).start()
    assert "unknown flag: --no-such-flag" in str(error.value)
    assert _programs(tmp_path) == []


def _programs(directory: Path) -> list[str]:
    """The command lines of the programs that were started for the directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if words[0].rpartition("/")[2] in find() and str(directory) in " ".join(words):
            found.append(words[0])
    return found
