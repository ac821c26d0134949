"""Keys, certificates and kubeconfigs of a control plane, created at each start.

Users and groups are those of the API server's bootstrap RBAC:
https://kubernetes.io/docs/reference/access-authn-authz/rbac/#default-roles-and-role-bindings
"""

import base64
import dataclasses
import os
from pathlib import Path

import trustme
import yaml

HOST = "127.0.0.1"
_NOBODY = "client.invalid"
"""Go refuses a client certificate with critical but empty alternative names."""
_SERVICE_NAMES = ("localhost", "kubernetes", "kubernetes.default.svc")


@dataclasses.dataclass(frozen=True, slots=True)
class ClientIdentity:
    """The subject of a client certificate: common name and organization."""

    name: str
    group: str = "system:authenticated"


ADMIN = ClientIdentity("admin", "system:masters")
CONTROLLER_MANAGER = ClientIdentity("system:kube-controller-manager")
SCHEDULER = ClientIdentity("system:kube-scheduler")
KUBELETS = ClientIdentity("kwok", "system:masters")


class Certificates:
    """An authority with what it has signed, as files under `directory` that only this user can read."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory
        self._authority = trustme.CA(organization_name="gpu-rightsizer simulator")
        self.authority = self._write("ca.crt", self._authority.cert_pem.bytes())
        serving = self._authority.issue_cert(HOST, *_SERVICE_NAMES)
        self.serving_key = self._write("apiserver.key", serving.private_key_pem.bytes())
        self.serving = self._write("apiserver.crt", _chain(serving))
        signer = self._authority.issue_cert(common_name="service-accounts")
        self.service_account_key = self._write("service-accounts.key", signer.private_key_pem.bytes())

    def kubeconfig(self, path: Path, user: ClientIdentity, server: str) -> None:
        """Write a kubeconfig that reaches `server` as `user`, with everything inside it."""
        signed = self._authority.issue_cert(_NOBODY, common_name=user.name, organization_name=user.group)
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "simulator",
            "contexts": [{"name": "simulator", "context": {"cluster": "simulator", "user": user.name}}],
            "clusters": [
                {
                    "name": "simulator",
                    "cluster": {
                        "server": server,
                        "certificate-authority-data": _base64(self._authority.cert_pem.bytes()),
                    },
                }
            ],
            "users": [
                {
                    "name": user.name,
                    "user": {
                        "client-certificate-data": _base64(_chain(signed)),
                        "client-key-data": _base64(signed.private_key_pem.bytes()),
                    },
                }
            ],
        }
        _private(path, yaml.safe_dump(document, sort_keys=False).encode())

    def _write(self, name: str, content: bytes) -> Path:
        path = self._directory / name
        _private(path, content)
        return path


def _chain(certificate: trustme.LeafCert) -> bytes:
    return b"".join(pem.bytes() for pem in certificate.cert_chain_pems)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _private(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
