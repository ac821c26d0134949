"""Starts and stops the programs of a control plane.

etcd ◄── kube-apiserver ◄─┬─ kube-controller-manager
                          ├─ kube-scheduler
                          └─ kwok (all kubelets, unless real nodes join)
"""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from simulator.controlplane.certificates import (
    ADMIN,
    CONTROLLER_MANAGER,
    HOST,
    KUBELETS,
    SCHEDULER,
    Certificates,
    ClientIdentity,
)
from simulator.controlplane.programs import Programs
from simulator.kubeclient import Endpoint, KubeClient, KubeClientError
from simulator.processes import Child, ProcessError, Server

START_S = 60.0
"""A start takes about five seconds; a machine that is busy compiling may need more."""
_STAGES = Path(__file__).with_name("kubelets.yaml")
_SERVICE_ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"
_IN_NO_HURRY = ("--kube-api-qps=500", "--kube-api-burst=1000")
"""The programs' own limits are for clusters with other clients, not for tests that wait for them."""


class ControlPlane:
    """A control plane without nodes. The thread that starts it must stay alive (see Child).

    Args:
        directory: For its data, keys and logs.
        programs: Where its programs are.
        api_flags: More flags of the API server.
        scheduler: A KubeSchedulerConfiguration; None for the default one.
        simulates_kubelets: Whether kwok plays the kubelets of all nodes.
    """

    def __init__(
        self,
        directory: Path,
        programs: Programs,
        *,
        api_flags: Sequence[str] = (),
        scheduler: Mapping[str, Any] | None = None,
        simulates_kubelets: bool = True,
    ) -> None:
        self.directory = directory
        self.kubeconfig = directory / "kubeconfig"
        self._programs = programs
        self._api_flags = tuple(api_flags)
        self._scheduler = scheduler
        self._simulates_kubelets = simulates_kubelets
        self._certificates = Certificates(directory / "pki")
        self._stack = contextlib.ExitStack()
        self._clients: list[Child] = []
        self._etcd = Server("etcd", self._etcd_command, ready_path="/health", log=self._log("etcd"))

    @property
    def endpoint(self) -> Endpoint:
        """Where its API server is, and an administrator's credentials."""
        return Endpoint.from_kubeconfig(self.kubeconfig)

    @property
    def logs(self) -> tuple[Path, ...]:
        """The programs' logs, in the order in which they were started."""
        return tuple(sorted(self.directory.glob("*.log"), key=lambda path: path.stat().st_ctime))

    def start(self) -> None:
        """Start everything; returns once pods can be created."""
        with self._stack:
            self._stack.callback(self._etcd.stop)
            self._etcd.start(timeout_s=START_S)
            server = self._start_api_server()
            self._certificates.kubeconfig(self.kubeconfig, ADMIN, server.url)
            self._start_clients(server.url)
            self._wait()
            self._stack = self._stack.pop_all()

    def stop(self) -> None:
        """End everything; the clients are asked first, and all at once."""
        for child in self._clients:
            child.terminate()
        self._clients.clear()
        self._stack.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def write_kubeconfig(self, path: Path, user: ClientIdentity) -> None:
        """Write a kubeconfig that authenticates as `user`; RBAC decides what the user may do."""
        self._certificates.kubeconfig(path, user, self.endpoint.url)

    # --- the programs

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _etcd_command(self, port: int) -> list[str]:
        url = f"http://{HOST}:{port}"
        peer = f"http://{HOST}:0"  # a single member
        return [
            str(self._programs["etcd"]),
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",  # the data need not survive a crash
            "--log-level=warn",
        ]

    def _start_api_server(self) -> Server:
        # The readiness probe must trust the CA, which is in the kubeconfig.
        probe = self.directory / "probe.kubeconfig"
        self._certificates.kubeconfig(probe, ADMIN, f"https://{HOST}")
        server = Server(
            "kube-apiserver",
            self._api_server_command,
            ready_path="/readyz",
            log=self._log("kube-apiserver"),
            tls=Endpoint.from_kubeconfig(probe).tls,
        )
        self._stack.callback(server.stop)
        server.start(timeout_s=START_S)
        return server

    def _api_server_command(self, port: int) -> list[str]:
        files = self._certificates
        return [
            str(self._programs["kube-apiserver"]),
            f"--etcd-servers={self._etcd.url}",
            f"--bind-address={HOST}",
            f"--advertise-address={HOST}",
            f"--secure-port={port}",
            f"--cert-dir={self.directory / 'pki'}",
            f"--tls-cert-file={files.serving}",
            f"--tls-private-key-file={files.serving_key}",
            f"--client-ca-file={files.authority}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={files.service_account_key}",
            f"--service-account-signing-key-file={files.service_account_key}",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--endpoint-reconciler-type=none",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            *self._api_flags,
        ]

    def _start_clients(self, server: str) -> None:
        files = self._certificates
        self._start_client(
            "kube-controller-manager",
            CONTROLLER_MANAGER,
            server,
            "--leader-elect=false",
            "--secure-port=0",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={files.service_account_key}",
            f"--root-ca-file={files.authority}",
            "--horizontal-pod-autoscaler-sync-period=1s",
            f"--flex-volume-plugin-dir={self.directory / 'volume-plugins'}",
            *_IN_NO_HURRY,
        )
        self._start_client("kube-scheduler", SCHEDULER, server, "--secure-port=0", *self._scheduler_flags())
        if self._simulates_kubelets:
            self._start_client(
                "kwok",
                KUBELETS,
                server,
                "--manage-all-nodes",
                "--node-lease-duration-seconds=40",
                f"--config={_STAGES}",
            )

    def _scheduler_flags(self) -> tuple[str, ...]:
        """With a configuration file, it ignores most flags."""
        if self._scheduler is None:
            return ("--leader-elect=false", *_IN_NO_HURRY)
        kubeconfig = str(self.directory / "kube-scheduler.kubeconfig")
        whole = {
            **self._scheduler,
            "clientConnection": {"kubeconfig": kubeconfig, "qps": 500, "burst": 1000},
            "leaderElection": {"leaderElect": False},
        }
        path = self.directory / "kube-scheduler.yaml"
        path.write_text(yaml.safe_dump(whole))
        return (f"--config={path}",)

    def _start_client(self, name: str, user: ClientIdentity, server: str, *flags: str) -> None:
        kubeconfig = self.directory / f"{name}.kubeconfig"
        self._certificates.kubeconfig(kubeconfig, user, server)
        command = [str(self._programs[name]), f"--kubeconfig={kubeconfig}", *flags]
        child = Child(name, command, log=self._log(name))
        self._stack.callback(child.stop)
        self._clients.append(child)

    def _wait(self) -> None:
        """Wait until pods can be created: their service account is made by the controller manager."""
        client = KubeClient(self.endpoint)
        controllers = self._clients[0]
        controllers.wait_until(lambda: _exists(client, _SERVICE_ACCOUNT), timeout_s=START_S)
        for child in self._clients:
            if not child.is_running:
                raise ProcessError(f"{child.name} ended at start\n{child.tail()}")


def _exists(client: KubeClient, path: str) -> bool:
    try:
        client.get(path)
    except (KubeClientError, OSError):
        return False
    return True
