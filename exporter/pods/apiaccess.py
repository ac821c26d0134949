"""How the API server is reached: the service account of a pod, or a kubeconfig. Must not know what is asked for."""

import base64
import binascii
import dataclasses
import http.client
import json
import ssl
import urllib.parse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from exporter.errors import StartError

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_HTTPS_PORT, _HTTP_PORT = 443, 80


@dataclasses.dataclass(frozen=True, slots=True)
class Access:
    """An API server, and who we are to it.

    Attributes:
        host: Its name or address.
        port: Its port.
        token: Gives the bearer token, read anew each time because it is replaced every hour; None without one.
        tls: Makes what checks its certificate; None where it is asked without TLS.
    """

    host: str
    port: int
    token: Callable[[], str] | None = None
    tls: Callable[[], ssl.SSLContext] | None = None

    def connect(self, timeout_s: float) -> http.client.HTTPConnection:
        """A connection, not yet open.

        Raises:
            OSError: The certificates cannot be read.
        """
        if self.tls is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=self.tls())

    def headers(self) -> dict[str, str]:
        """What says who we are.

        Raises:
            OSError: The token cannot be read.
        """
        return {} if self.token is None else {"Authorization": f"Bearer {self.token()}"}


def in_cluster(environment: Mapping[str, str], account: Path = _ACCOUNT) -> Access:
    """As the service account of the pod that this runs in.

    Raises:
        StartError: This runs in no pod, or in one without its account's token.
    """
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdecimal():
        raise StartError(
            "labels and UIDs of pods come from the API server, and this does not run in a pod "
            "(KUBERNETES_SERVICE_HOST is not set): name a kubeconfig by --kubeconfig, or leave them out"
        )
    token, ca = account / "token", account / "ca.crt"
    if not token.is_file():
        raise StartError(
            f"labels and UIDs of pods come from the API server, and there is no token at {token}: set "
            "automountServiceAccountToken: true in the exporter's pod, or leave them out"
        )
    return Access(
        host.strip("[]"),
        int(port),
        token=lambda: token.read_text().strip(),
        tls=lambda: ssl.create_default_context(cafile=str(ca)),
    )


def from_kubeconfig(path: Path) -> Access:
    """As the current context of a kubeconfig that is written as JSON and holds a token.

    Raises:
        StartError: It cannot be read, or needs what is not supported.
    """
    try:
        config = json.loads(path.read_text())
        context = _named(config, "context", config["current-context"])
        cluster = _named(config, "cluster", context["cluster"])
        user = _named(config, "user", context["user"])
        return _access(cluster, user, path.parent)
    except OSError as error:
        raise StartError(f"--kubeconfig {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, StopIteration, binascii.Error) as error:
        raise StartError(
            f"--kubeconfig {path}: {type(error).__name__}: {error}; it must be JSON with a server and a token, as "
            "written by: kubectl config view --raw --minify --flatten -o json"
        ) from error


def _named(config: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(entry for entry in config[f"{kind}s"] if entry["name"] == name)[kind]
    return found


def _access(cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> Access:
    url = urllib.parse.urlsplit(cluster["server"])
    if url.scheme not in {"http", "https"} or not url.hostname or url.path.strip("/"):
        raise ValueError(f"{cluster['server']!r} is not the address of a server")
    if "token" not in user and "tokenFile" not in user:
        raise ValueError("the user has neither token nor tokenFile")
    secure = url.scheme == "https"
    token_file = folder / user.get("tokenFile", "")
    return Access(
        url.hostname,
        url.port or (_HTTPS_PORT if secure else _HTTP_PORT),
        token=lambda: str(user.get("token") or token_file.read_text().strip()),
        tls=_tls(cluster, folder) if secure else None,
    )


def _tls(cluster: Mapping[str, Any], folder: Path) -> Callable[[], ssl.SSLContext]:
    data = cluster.get("certificate-authority-data")
    file = cluster.get("certificate-authority")
    pem = base64.b64decode(data, validate=True).decode() if data else None
    cafile = str(folder / file) if file else None
    return lambda: ssl.create_default_context(cadata=pem, cafile=cafile)
