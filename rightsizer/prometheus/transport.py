"""Transports to the Prometheus API, with credentials: HTTP by `requests`, or the API server's proxy to a Service.

A transport sends one request and returns the whole response within a deadline and a size limit. It does not follow
redirects, which could lead anywhere. Files with secrets are read for each request because tokens and passwords rotate;
no message contains a secret.
"""

import base64
import collections
import contextlib
import logging
import re
import socket
import ssl
import time
import types
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import requests
import urllib3

from rightsizer.config import PrometheusSettings, Secret, library, read_secret
from rightsizer.errors import (
    ClusterError,
    ConfigurationError,
    PrometheusError,
    PrometheusUnreachable,
    QueryTooLarge,
)
from rightsizer.kube.cluster import Cluster, proxy_address, root_cause
from rightsizer.kube.object_names import shell_command
from rightsizer.prometheus.responses import MAX_SHOWN

log = logging.getLogger(__name__)

MAX_BYTES = 256 << 20
"""A larger response is an attack or a mistake: 100,000 series of 96 points need about 200 MB."""

_PASSPHRASE = ""
"""Keeps OpenSSL from prompting on a terminal."""
_HEADERS = {"User-Agent": "gpu-rightsizer", "Accept": "application/json"}


Signer = Callable[[str, str, bytes], Mapping[str, str]]
"""Returns the authentication headers for a request's method, URL and body."""

AWS_SERVICE = "aps"
"""The name of Amazon Managed Service for Prometheus in the scope of a signature."""


class Transport(Protocol):
    """The connection to one server."""

    where: str  # the server, as messages name it
    hint: str  # what to check when access is denied

    def send(self, endpoint: str, form: Mapping[str, str], timeout_s: float) -> tuple[int, bytes]:
        """HTTP status and body of the response from `/api/v1/{endpoint}`.

        Raises:
            PrometheusUnreachable: There is no response.
            QueryTooLarge: The response takes too long, or is too large.
            PrometheusError, ConfigurationError: A retry would not help.
        """
        ...


class HttpTransport:
    """HTTP by `requests`, with every kind of credential.

    Raises:
        ConfigurationError: The settings have no URL, or a file that they name cannot be used.
    """

    hint = "the --prometheus flags for credentials: -token-file, -user, -sigv4-region, -client-cert-file, -header"

    def __init__(self, settings: PrometheusSettings) -> None:
        if settings.url is None:
            raise ConfigurationError("--prometheus-url is missing")
        self.where = settings.url.rstrip("/")
        self._settings = settings
        self._sign = signer(settings)
        self._verify = _verification(settings)
        certificate, key = settings.client_cert_file, settings.client_key_file
        # `requests` reads the files again for each connection, since certificates rotate.
        self._certificate = (str(certificate), str(key)) if certificate and key else None
        _require_certificates(settings)
        # A session must not be used by two threads at a time.
        self._idle: collections.deque[requests.Session] = collections.deque()

    def send(self, endpoint: str, form: Mapping[str, str], timeout_s: float) -> tuple[int, bytes]:
        """POST the form, which may be longer than a URL; without a form, GET."""
        attempted = f"querying Prometheus at {self.where}"
        deadline = time.monotonic() + timeout_s
        with self._translated(attempted, timeout_s), self._session() as session:
            response = session.request(
                "POST" if form else "GET",
                f"{self.where}/api/v1/{endpoint}",
                data=form,
                auth=self._authorize,
                timeout=timeout_s,
                cert=self._certificate,
                allow_redirects=False,
                stream=True,
            )
            with contextlib.closing(response):
                if location := response.headers.get("Location", ""):
                    raise PrometheusError(
                        f"{attempted}: HTTP {response.status_code}: redirected to {_without_secrets(location)}; "
                        f"redirects are not followed: give the final URL, or, if it is a login page, see {self.hint}"
                    )
                return response.status_code, _collect(response.iter_content(1 << 16), attempted, deadline)

    @contextlib.contextmanager
    def _session(self) -> Iterator[requests.Session]:
        try:
            session = self._idle.pop()
        except IndexError:
            session = requests.Session()
            # The environment's proxies and CAs, looked up once instead of for each request.
            found = session.merge_environment_settings(
                url=self.where, proxies={}, stream=True, verify=self._verify, cert=None
            )
            session.proxies, session.verify, session.trust_env = found["proxies"], found["verify"], False
            session.headers.update(_HEADERS)
            session.headers.update({name: secret.reveal() for name, secret in self._settings.headers.items()})
        try:
            yield session
        finally:
            self._idle.append(session)

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add the credentials to a request; setting this also keeps `requests` from reading ~/.netrc."""
        body = request.body or b""
        data = body.encode() if isinstance(body, str) else bytes(body)
        request.headers.update(self._sign(str(request.method), str(request.url), data))
        return request

    @contextlib.contextmanager
    def _translated(self, attempted: str, timeout_s: float) -> Iterator[None]:
        """Translate the errors of `requests`."""
        try:
            yield
        except requests.exceptions.SSLError as error:
            hint = next(words for text, words in _TLS_HINTS if text in str(error))
            raise PrometheusError(f"{attempted}: TLS failed: {root_cause(error)}; {hint}") from error
        except requests.exceptions.ProxyError as error:
            found = requests.utils.get_environ_proxies(self.where)
            proxy = proxy_address(requests.utils.select_proxy(self.where, found) or "")
            hint = "check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
            words = f"{attempted}: the proxy {proxy} failed: {root_cause(error)}; {hint}"
            raise PrometheusUnreachable(words) from error
        except (
            requests.exceptions.InvalidURL,
            requests.exceptions.MissingSchema,
            requests.exceptions.InvalidSchema,
        ) as error:
            raise ConfigurationError(f'--prometheus-url "{self.where}": {error}') from error
        except requests.exceptions.ConnectTimeout as error:
            raise PrometheusUnreachable(
                f"{attempted}: no connection within {timeout_s:.3g} s; is the URL right, and reachable from here?"
            ) from error
        except requests.exceptions.Timeout as error:
            raise QueryTooLarge(
                f"{attempted}: no response within {timeout_s:.3g} s; is it overloaded?"
            ) from error
        except requests.exceptions.ChunkedEncodingError as error:
            raise PrometheusUnreachable(
                f"{attempted}: the response was cut off: {root_cause(error)}"
            ) from error
        except requests.exceptions.RequestException as error:
            if any(isinstance(part, urllib3.exceptions.ReadTimeoutError) for part in error.args):
                # While the body is read; before that, `requests` raises Timeout.
                raise QueryTooLarge(f"{attempted}: the response did not end in time") from error
            hint = "is the URL right, and reachable from here?"
            if any(isinstance(cause, socket.gaierror) for cause in _causes(error)):
                hint = _port_forward(self.where) or hint
            raise PrometheusUnreachable(f"{attempted}: {root_cause(error)}; {hint}") from error


class ServiceProxyTransport:
    """The API server's proxy to a Service, with the credentials of the kubeconfig.

    The API server removes these before it forwards a request, so Prometheus receives no credentials. Queries are GETs:
    permission to read is enough. `path` is the proxy's for the Service, and the prefix of "/api/v1" there.
    https://kubernetes.io/docs/tasks/access-application-cluster/access-cluster-services/
    """

    hint = "your permission to get services/proxy; or give --prometheus-url, with its own credentials"

    def __init__(self, cluster: Cluster, path: str, *, where: str, headers: Mapping[str, Secret]) -> None:
        self.where = where
        self._cluster = cluster
        self._path = path.rstrip("/")
        self._headers = {**_HEADERS, "Accept-Encoding": "gzip"}
        self._headers.update({name: secret.reveal() for name, secret in headers.items()})

    def send(self, endpoint: str, form: Mapping[str, str], timeout_s: float) -> tuple[int, bytes]:
        """GET with the form in the URL."""
        attempted = f"querying {self.where}"
        deadline = time.monotonic() + timeout_s
        path = f"{self._path}/api/v1/{endpoint}"
        try:
            status, chunks = self._cluster.fetch(path, form, headers=self._headers, timeout_s=timeout_s)
            return status, _collect(chunks, attempted, deadline)
        except ClusterError as error:
            if time.monotonic() > deadline:
                raise QueryTooLarge(
                    f"{attempted}: no response within {timeout_s:.3g} s; is it overloaded?"
                ) from error
            raise PrometheusUnreachable(f"{attempted}: {error}") from error


_TLS_HINTS = (
    ("WRONG_VERSION_NUMBER", "the server has no TLS; does it need http:// instead of https://?"),
    ("is not valid for", "is the host of the URL right?"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "give the CA that signed it, or that of a TLS-inspecting proxy in between: --prometheus-ca-file",
    ),
    ("", "see --prometheus-ca-file and -client-cert-file"),
)
"""Hints for words of OpenSSL's error."""

_SERVICE = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9-]*)(\.(?P<namespace>[a-z0-9][a-z0-9-]*)(\.svc(\.cluster\.local)?)?)?\.?"
)
"""A host that may be the name of a Service: https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/"""


def _port_forward(url: str) -> str:
    """A kubectl command that reaches a Service from outside; empty if the URL's host is the name of none."""
    parts = urllib.parse.urlsplit(url)
    found = _SERVICE.fullmatch(parts.hostname or "")
    if found is None:
        return ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    service, namespace = f"service/{found['name']}", found["namespace"] or "NAMESPACE"
    command = shell_command("kubectl", "-n", namespace, "port-forward", service, f"9090:{port}")
    return f"if it is a Service, run {command}, and give --prometheus-url {parts.scheme}://localhost:9090"


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _without_secrets(location: str) -> str:
    """A redirect's target, without what may be a credential."""
    return re.sub(r"//[^/?#]*@", "//", re.split("[?#]", location)[0])[:MAX_SHOWN]


def _collect(chunks: Iterable[bytes], attempted: str, deadline: float) -> bytes:
    """The body, if it ends in time and is not too large."""
    collected, size = [], 0
    for chunk in chunks:
        size += len(chunk)
        if size > MAX_BYTES:
            raise QueryTooLarge(f"{attempted}: the response is larger than {MAX_BYTES >> 20} MiB")
        if time.monotonic() > deadline:
            raise QueryTooLarge(f"{attempted}: the response did not end in time")
        collected.append(chunk)
    return b"".join(collected)


def _verification(settings: PrometheusSettings) -> str | bool:
    """The `verify` argument of `requests`."""
    if settings.skip_verify:
        log.warning(
            "--prometheus-insecure-skip-verify: anyone between gpu-rightsizer and Prometheus can forge metrics"
        )
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # logged once, above
        return False
    return True if settings.ca_file is None else str(settings.ca_file)


def signer(settings: PrometheusSettings) -> Signer:
    """The signer for the credentials in the settings, of which at most one kind is set.

    Raises:
        ConfigurationError: There are no AWS credentials, or botocore is not installed.
    """
    if (token := settings.token_file) is not None:
        return lambda *_: {
            "Authorization": f"Bearer {read_secret(token, f'--prometheus-token-file {token}')}"
        }
    if settings.user is not None and (path := settings.password_file) is not None:
        return lambda *_: {
            "Authorization": _basic(
                f"{settings.user}:{read_secret(path, f'--prometheus-password-file {path}')}"
            )
        }
    if settings.sigv4_region is not None:
        return _SigV4Signer(settings.sigv4_region)
    return lambda *_: {}


def _basic(pair: str) -> str:
    """RFC 7617, with UTF-8 as the charset of the user name."""
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


class _SigV4Signer:
    """AWS Signature Version 4 for the workspaces of one region.

    botocore finds and renews the credentials: environment, profile, SSO, web identity (IRSA), container (EKS Pod
    Identity) or instance. https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html
    """

    def __init__(self, region: str) -> None:
        self._region = region
        session = _botocore("session").Session()
        session.set_config_variable("region", region)  # also of the security token service
        exceptions = _botocore("exceptions")
        self._errors = (exceptions.BotoCoreError, exceptions.ClientError)
        try:
            self._credentials = session.get_credentials()
        except self._errors as error:
            raise ConfigurationError(f"--prometheus-sigv4-region: AWS credentials: {error}") from error
        if self._credentials is None:
            raise ConfigurationError(
                "--prometheus-sigv4-region: no AWS credentials in environment, profile, web identity, container or "
                "instance; set AWS_PROFILE, or give the pod a role"
            )

    def __call__(self, method: str, url: str, body: bytes) -> Mapping[str, str]:
        """The headers of one request; the signature covers host, path, query and body."""
        try:
            credentials = self._credentials.get_frozen_credentials()
        except self._errors as error:
            raise PrometheusError(f"signing a query for AWS: getting credentials failed: {error}") from error
        request = _botocore("awsrequest").AWSRequest(method=method, url=url, data=body)
        _botocore("auth").SigV4Auth(credentials, AWS_SERVICE, self._region).add_auth(request)
        return dict(request.headers.items())


def _botocore(module: str) -> types.ModuleType:
    return library(f"botocore.{module}", "aws", "--prometheus-sigv4-region")


def _require_certificates(settings: PrometheusSettings) -> None:
    """Check all certificate files before the first request; raises ConfigurationError with all problems."""
    named = {
        "--prometheus-ca-file": settings.ca_file,
        "--prometheus-client-cert-file": settings.client_cert_file,
        "--prometheus-client-key-file": settings.client_key_file,
    }
    given = {flag: path for flag, path in named.items() if path is not None}
    problems = [f'{flag} "{path}": no such file' for flag, path in given.items() if not path.is_file()]
    if problems := problems or _certificate_problems(settings):
        raise ConfigurationError("; ".join(problems))


def _certificate_problems(settings: PrometheusSettings) -> list[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    problems = []
    certificate, key = settings.client_cert_file, settings.client_key_file
    if settings.ca_file is not None:
        try:
            context.load_verify_locations(settings.ca_file)
        except (OSError, ValueError) as error:
            problems.append(
                f'--prometheus-ca-file "{settings.ca_file}": holds no certificates: {root_cause(error)}'
            )
    if certificate is not None and key is not None:
        try:
            context.load_cert_chain(certificate, key, password=_PASSPHRASE)
        except (OSError, ValueError) as error:
            problems.append(
                f"--prometheus-client-cert-file {certificate} and -key-file {key}: cannot be used: "
                f"{root_cause(error)}; they must be PEM, belong together, and the key must have no passphrase"
            )
    return problems
