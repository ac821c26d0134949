"""A real node beside a real control plane: kubelet, containerd and runc, as root in namespaces of their own.

No setting of the machine changes. The node adds a cgroup of its own, which goes with it.

  test ──► API server ◄── proxy on the node's loopback ◄── kubelet ──► containerd ──► runc
"""

import contextlib
import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from simulator.controlplane.plane import ControlPlane
from simulator.controlplane.programs import Programs
from simulator.gpus.library import library_path
from simulator.kubeclient import Endpoint, KubeClient, KubeClientError
from simulator.processes import POLL_S, Child, ProcessError
from simulator.realnode.images import busybox_image
from simulator.realnode.obstacles import CGROUPS

NAME = "real-node"
BUSYBOX = "localhost/busybox:1"
START_S = 90.0
"""A start takes some 20 seconds on an idle machine."""
_INSIDE = Path(__file__).with_name("inside.sh")
_ADDRESS = "10.88.0.1"
_SUBNET = "10.88.0.0/24"
_CGROUP_PREFIX = "gpu-rightsizer-"
_APPLETS = ("sh", "sleep", "cat", "true", "kill")
_CLONE_NEWNET = 0x40000000


class Node:
    """A node that is Ready once it has started. The thread that starts it must stay alive (see Child).

    Attributes:
        directory: Its files; `var/lib`, `var/log` and `run` are what it sees at these paths.

    Args:
        board: The file that shows GPUs to containers that ask for them as with NVIDIA's runtime.
    """

    def __init__(
        self, directory: Path, programs: Programs, plane: ControlPlane, *, board: Path | None = None
    ) -> None:
        self.directory = directory
        self._board = board
        self._programs = programs
        self._plane = plane
        self._cgroup = f"{_CGROUP_PREFIX}{os.getpid()}"
        self._stack = contextlib.ExitStack()
        self._children: dict[str, Child] = {}
        self._api: _Proxy | None = None
        self.pid = 0
        """The first process of its namespaces."""

    @property
    def endpoint(self) -> Endpoint:
        """Where its API server is, and an administrator's credentials."""
        return self._plane.endpoint

    @property
    def root(self) -> Path:
        """Its file system, with its /proc."""
        return Path(f"/proc/{self.pid}/root")

    @property
    def logs(self) -> tuple[Path, ...]:
        """What its programs said."""
        return tuple(sorted(self.directory.glob("*.log")))

    def start(self) -> None:
        """Start everything; returns once pods run."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with self._stack:
            self._stack.callback(_wait_for_end, self._cgroup)
            self._start_namespaces()
            self._write_configuration()
            self.connect()
            self._stack.callback(self.disconnect)
            self.start_program("containerd")
            self._import_images()
            self.start_program("kubelet")
            self.wait_ready()
            self._stack = self._stack.pop_all()

    def stop(self) -> None:
        """End everything."""
        self._stack.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- what tests do to it

    def start_program(self, name: str) -> None:
        """Start containerd or the kubelet; what runs on the node goes on meanwhile."""
        flags = {
            "containerd": ("--config", str(self.directory / "containerd.toml")),
            "kubelet": (
                f"--config={self.directory / 'kubelet.yaml'}",
                f"--kubeconfig={self._plane.kubeconfig}",
                f"--hostname-override={NAME}",
                f"--node-ip={_ADDRESS}",
                "--node-labels=nvidia.com/gpu.present=true",
                "--v=2",
            ),
        }[name]
        path = os.pathsep.join(dict.fromkeys(str(path.parent) for path in self._programs.values()))
        environment = {**os.environ, "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
        join = 'echo $$ >"$0/cgroup.procs" && exec "$@"'
        place = ("sh", "-c", join, str(CGROUPS / "pids" / self._cgroup / "runtime"))
        command = [*self._enter(), *place, str(self._programs[name]), *flags]
        child = Child(name, command, log=self.directory / f"{name}.log", env=environment)
        self._children[name] = child
        self._stack.callback(child.stop)
        if name == "containerd":
            child.wait_until((self.root / "run/containerd/containerd.sock").exists, timeout_s=START_S)

    def stop_program(self, name: str) -> None:
        """End containerd or the kubelet, as a service manager does."""
        self._children.pop(name).stop()

    def connect(self) -> None:
        """Let the node reach the API server at the address that the control plane's kubeconfig names."""
        port = int(self._plane.endpoint.url.rpartition(":")[2])
        self._api = _Proxy(self._listen(port), port)

    def disconnect(self) -> None:
        """End all connections from the node to the API server, and allow no new ones."""
        if self._api is not None:
            self._api.close()
            self._api = None

    def wait_ready(self) -> None:
        """Wait until the node is Ready."""
        client = KubeClient(self._plane.endpoint)
        self._children["kubelet"].wait_until(lambda: _is_ready(client), timeout_s=START_S)

    def import_image(self, archive: Path) -> None:
        """Make an image known to the node."""
        self.run(
            str(self._programs["ctr"]),
            "--address=/run/containerd/containerd.sock",
            "--namespace=k8s.io",
            "images",
            "import",
            str(archive),
        )

    def run(self, *command: str) -> str:
        """The output of a command in the node's namespaces."""
        done = subprocess.run([*self._enter(), *command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise ProcessError(f"{' '.join(command)}: ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def connection(self, host: str, port: int, *, timeout_s: float = 10.0) -> socket.socket:
        """A connection in the node's network, such as to a pod."""
        made = self._socket()
        made.settimeout(timeout_s)
        made.connect((host, port))
        return made

    # --- how it is made

    def _enter(self) -> Sequence[str]:
        return ("nsenter", "--target", str(self.pid), "--mount", "--net", "--")

    def _start_namespaces(self) -> None:
        unshare = ("unshare", "--mount", "--net", "--")
        inside = ("bash", str(_INSIDE), str(self.directory), self._cgroup, _ADDRESS)
        child = Child("namespaces", [*unshare, *inside], log=self.directory / "namespaces.log")
        self._stack.callback(child.stop)
        child.wait_until((self.directory / "ready").exists, timeout_s=START_S)
        self.pid = child.pid

    def _write_configuration(self) -> None:
        network = {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "ipam": {"type": "host-local", "ranges": [[{"subnet": _SUBNET, "gateway": _ADDRESS}]]},
                }
            ],
        }
        (self.directory / "cni").mkdir()
        (self.directory / "cni" / "pods.conflist").write_text(json.dumps(network))
        (self.directory / "manifests").mkdir()
        configuration = _kubelet_configuration(self._cgroup, self.directory / "manifests")
        (self.directory / "kubelet.yaml").write_text(yaml.safe_dump(configuration))
        (self.directory / "containerd.toml").write_text(
            _CONTAINERD.format(
                plugins=self._programs["bridge"].parent,
                conf=self.directory / "cni",
                pause=BUSYBOX,
                runtime=self._runtime(),
            )
        )

    def _runtime(self) -> Path:
        """The program in the place of runc."""
        path = self.directory / "runtime"
        command = "runc"
        if self._board is not None:
            script = Path(__file__).with_name("nvidia_runtime.py")
            command = f"{sys.executable} -I -S {script} {library_path()} {self._board}"
        path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        path.chmod(0o755)
        return path

    def _import_images(self) -> None:
        archive = self.directory / "busybox.tar"
        busybox_image(archive, BUSYBOX, Path(shutil.which("busybox") or ""), _APPLETS)
        self.import_image(archive)

    def _socket(self) -> socket.socket:
        """A socket in the node's network; only the calling thread goes there, and comes back."""
        with (
            Path("/proc/thread-self/ns/net").open() as own,
            (Path(f"/proc/{self.pid}/ns/net")).open() as node,
        ):
            _set_network(node.fileno())
            try:
                return socket.socket()
            finally:
                _set_network(own.fileno())

    def _listen(self, port: int) -> socket.socket:
        listener = self._socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        return listener


# Nothing of the machine's own: no plugins, devices or profiles of it, and nothing written outside of what is hidden.
_CONTAINERD = """\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"
[plugins."io.containerd.internal.v1.opt"]
path = "/var/lib/containerd/opt"
[plugins."io.containerd.nri.v1.nri"]
disable = true
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
disable_apparmor = true
cdi_spec_dirs = []
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{plugins}"]
conf_dir = "{conf}"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
BinaryName = "{runtime}"
"""


def _kubelet_configuration(cgroup: str, manifests: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "staticPodPath": str(manifests),
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "fileCheckFrequency": "1s",
        "syncFrequency": "1s",
        "nodeStatusUpdateFrequency": "1s",
        "resolvConf": "",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "registerWithTaints": [],
    }


class _Proxy:
    """Connects what comes to a listening socket with a port of this machine's loopback."""

    def __init__(self, listener: socket.socket, port: int) -> None:
        self._listener = listener
        self._port = port
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._open |= {near, far}
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=_copy, args=(source, target), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def _set_network(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"entering a network namespace: {os.strerror(number)}")


def _is_ready(client: KubeClient) -> bool:
    try:
        status = client.get(f"/api/v1/nodes/{NAME}").get("status", {})
    except (KubeClientError, OSError):
        return False
    return any(found["type"] == "Ready" and found["status"] == "True" for found in status["conditions"])


def _wait_for_end(name: str) -> None:
    """Wait until the node's cgroups are gone, and with them all that ran in them."""
    deadline = time.monotonic() + START_S
    while left := list(CGROUPS.glob(f"*/{name}")):
        if time.monotonic() > deadline:
            raise ProcessError(f"{left[0]}: was not removed within {START_S:g} s")
        time.sleep(POLL_S)
