"""Access to the API server by a pod's service account or a kubeconfig. Must not know what is requested."""

import base64
import binascii
import dataclasses
import http.client
import ssl
import urllib.parse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from exporter.errors import StartError

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_DEEPEST = 100
_INVALID = (
    *(ValueError, LookupError, TypeError, AttributeError, StopIteration, RecursionError),
    binascii.Error,
)
_HTTPS_PORT, _HTTP_PORT = 443, 80


@dataclasses.dataclass(frozen=True, slots=True)
class ApiServerAccess:
    """Address and credentials of an API server."""

    host: str
    port: int
    # reads the bearer token, which is replaced every hour; None without one
    token: Callable[[], str] | None = None
    # makes the context that verifies its certificate; None without TLS
    tls: Callable[[], ssl.SSLContext] | None = None

    def connect(self, timeout_s: float) -> http.client.HTTPConnection:
        """A connection, not yet open. Raises OSError: the certificates cannot be read."""
        if self.tls is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=self.tls())

    def headers(self) -> dict[str, str]:
        """The headers that authenticate a request. Raises OSError: the token cannot be read."""
        return {} if self.token is None else {"Authorization": f"Bearer {self.token()}"}


def in_cluster(environment: Mapping[str, str], account: Path = _ACCOUNT) -> ApiServerAccess:
    """Access as the service account of the exporter's pod."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdecimal():
        raise StartError(
            "pod labels and UIDs come from the API server, but the exporter does not run in a pod "
            "(KUBERNETES_SERVICE_HOST is not set): set --kubeconfig, or drop --pod-labels and --pod-uid"
        )
    token, ca = account / "token", account / "ca.crt"
    if not token.is_file():
        raise StartError(
            f"pod labels and UIDs come from the API server, but there is no token at {token}: set "
            "automountServiceAccountToken: true in the exporter's pod, or drop --pod-labels and --pod-uid"
        )
    return ApiServerAccess(
        host.strip("[]"),
        int(port),
        token=lambda: token.read_text().strip(),
        tls=lambda: ssl.create_default_context(cafile=str(ca)),
    )


def from_kubeconfig(path: Path) -> ApiServerAccess:
    """Access by the current context of a kubeconfig, whose user must have a token."""
    try:
        config = _load(path)
        context = _named(config, "context", config["current-context"])
        cluster = _named(config, "cluster", context["cluster"])
        user = _named(config, "user", context["user"])
        return _access(cluster, user, path.parent)
    except OSError as error:
        raise StartError(f'--kubeconfig "{path}": {error.strerror or error}') from error
    except _INVALID as error:
        raise StartError(
            f'--kubeconfig "{path}": {type(error).__name__}: {error}; it must hold a server and a token, written by: '
            "kubectl config view --raw --minify --flatten"
        ) from error


def _load(path: Path) -> Mapping[str, Any]:
    try:
        import yaml  # noqa: PLC0415 - 2 MiB that most nodes do not need
    except ModuleNotFoundError:
        raise StartError(
            f"--kubeconfig \"{path}\": reading it needs pyyaml; run: pip install 'gpu-rightsizer[exporter]'"
        ) from None
    try:
        content = path.read_bytes()
        depth = 0
        for event in yaml.parse(content, yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):  # a few of them can expand to gigabytes
                raise StartError(f'--kubeconfig "{path}": uses YAML aliases (*name); write the values out')
            starts, ends = yaml.CollectionStartEvent, yaml.CollectionEndEvent
            depth += isinstance(event, starts) - isinstance(event, ends)
            if depth > _DEEPEST:  # the parser's time grows with the square of it
                raise StartError(f'--kubeconfig "{path}": is nested too deeply for a kubeconfig')
        config: Mapping[str, Any] = yaml.safe_load(content)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        # YAML's own message may quote a token.
        raise StartError(f'--kubeconfig "{path}"{line}: not valid YAML') from None
    return config


def _named(config: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(entry for entry in config[f"{kind}s"] if entry["name"] == name)[kind]
    return found


def _access(cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> ApiServerAccess:
    url = urllib.parse.urlsplit(cluster["server"])
    if url.scheme not in {"http", "https"} or not url.hostname or url.path.strip("/"):
        raise ValueError(f"{cluster['server']!r} is not an http or https URL of a server")
    if "token" not in user and "tokenFile" not in user:
        raise ValueError("the user has neither token nor tokenFile")
    if impersonating := [key for key in user if key == "as" or key.startswith("as-")]:
        raise ValueError(f"the user has {impersonating[0]}, but the exporter impersonates nobody")
    secure = url.scheme == "https"
    token_file = folder / user["tokenFile"] if user.get("tokenFile") else None
    return ApiServerAccess(
        url.hostname,
        url.port or (_HTTPS_PORT if secure else _HTTP_PORT),
        # The file counts before the token, as for kubectl.
        token=lambda: token_file.read_text().strip() if token_file else str(user["token"]),
        tls=_tls(cluster, folder) if secure else None,
    )


def _tls(cluster: Mapping[str, Any], folder: Path) -> Callable[[], ssl.SSLContext]:
    data = cluster.get("certificate-authority-data")
    file = cluster.get("certificate-authority")
    pem = base64.b64decode(data, validate=True).decode() if data else None
    cafile = str(folder / file) if file else None
    return lambda: ssl.create_default_context(cadata=pem, cafile=cafile)
