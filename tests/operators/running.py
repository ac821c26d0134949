"""Operators as they run on a real control plane: their definitions, their webhooks, and the programs."""

import base64
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import trustme
import yaml

from simulator.controlplane.certificates import ADMIN, HOST
from simulator.controlplane.plane import START_S, ControlPlane
from simulator.controlplane.programs import OPERATORS, find
from simulator.controlplane.thirdparty import define
from simulator.kubeclient import KubeClient, Object
from simulator.processes import Server, free_port

_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
_CONFIGURATIONS = {
    "jobset": ("config.jobset.x-k8s.io/v1alpha1", "internalCertManagement"),
    "lws": ("config.lws.x-k8s.io/v1alpha1", "internalCertManagement"),
    "trainer": ("config.trainer.kubeflow.org/v1alpha1", "certManagement"),
}
"""The API versions of the configuration files, and the field for certificates; other fields are the same."""
_FLAGS = {
    "training-operator": "--health-probe-bind-address={probe} --webhook-server-port={port} "
    "--webhook-cert-dir={certificates}",
    "mpi-operator": "--health-probe-bind-address={probe}",
    "kuberay": "--health-probe-bind-address={probe} --metrics-addr=0 --enable-leader-election=false",
}


class Operators:
    """Some of OPERATORS on a control plane of their own."""

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        self.plane = ControlPlane(directory / "plane", find())
        rows = [program for program in OPERATORS if program.name in names]
        self._programs = find(rows)
        self.names = tuple(self._programs)
        self._directory = directory
        self._stack = contextlib.ExitStack()
        authority = trustme.CA()
        self._authority = base64.b64encode(authority.cert_pem.bytes()).decode()
        leaf = authority.issue_cert(HOST)
        self._certificates = directory / "k8s-webhook-server" / "serving-certs"
        self._certificates.mkdir(parents=True)
        (self._certificates / "tls.crt").write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(self._certificates / "tls.key")

    def __enter__(self) -> Self:
        with self._stack:
            self._stack.enter_context(self.plane)
            client = KubeClient(self.plane.endpoint)
            manifests = {name: _manifests(path) for name, path in self._programs.items()}
            define(client, [item for items in manifests.values() for item in items if _is_definition(item)])
            for name, items in manifests.items():
                port = free_port()
                self._start(name, port)
                for item in items:
                    if not _is_definition(item):
                        self._intercept(client, name, item, port)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, name: str, port: int) -> None:
        kubeconfig = self._directory / f"{name}.kubeconfig"
        self.plane.write_kubeconfig(kubeconfig, ADMIN)
        places = {"port": port, "certificates": self._certificates}

        def command(probe: int) -> list[str]:
            address = f"{HOST}:{probe}"
            flags = _FLAGS.get(name, "").format(probe=address, **places).split()
            if name in _CONFIGURATIONS:
                path = self._directory / f"{name}.yaml"
                path.write_text(yaml.safe_dump(self._configuration(name, address, port)))
                flags.append(f"--config={path}")
            return [str(self._programs[name]), f"--kubeconfig={kubeconfig}", *flags]

        log = self.plane.directory / f"{name}.log"
        # Below it they look for the certificates of their webhooks, where no configuration says so.
        server = Server(name, command, ready_path="/readyz", log=log, env={"TMPDIR": str(self._directory)})
        self._stack.callback(server.stop)
        server.start(timeout_s=START_S)

    def _configuration(self, name: str, probe: str, port: int) -> Object:
        api_version, certificates = _CONFIGURATIONS[name]
        webhook = {"host": HOST, "port": port}
        if name != "trainer":
            webhook["certDir"] = str(self._certificates)
        return {
            "apiVersion": api_version,
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": probe},
            "metrics": {"bindAddress": "0"},
            "webhook": webhook,
            "leaderElection": {"leaderElect": False},
            certificates: {"enable": False},
        }

    def _intercept(self, client: KubeClient, name: str, item: Object, port: int) -> None:
        """Register the webhooks of an operator where it listens, which is no Service."""
        for webhook in item["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            url = f"https://{HOST}:{port}{path}"
            webhook["clientConfig"] = {"url": url, "caBundle": self._authority}
        item["metadata"] = {"name": name}
        client.create(f"{_WEBHOOKS}/{item['kind'].lower()}s", item)


def _manifests(program: Path) -> list[Object]:
    text = program.with_name(f"{program.name}.yaml").read_text()
    return [item for item in yaml.load_all(text, Loader=yaml.CSafeLoader) if item]


def _is_definition(item: Mapping[str, Any]) -> bool:
    return bool(item["kind"] == "CustomResourceDefinition")
