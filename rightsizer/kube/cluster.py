"""The client for the Kubernetes API server, on top of the `kubernetes` package. The only module that talks to it.

Responses are decoded straight into small structs: the package's own models take thirty times longer to build, and
15 KB a pod to keep. No write is retried: the caller finds out whether it took effect.
https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

import abc
import contextlib
import http
import logging
import re
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import urllib3
from kubernetes import client

from rightsizer.config import FIELD_MANAGER, ClusterSettings
from rightsizer.errors import (
    INVALID_JSON,
    ClusterError,
    ClusterUnreachable,
    ConfigurationError,
    RequestRefused,
    Throttled,
)
from rightsizer.kube.kubeconfig import IN_CLUSTER, MAX_DETAIL, connection
from rightsizer.kube.object_names import require_direct
from rightsizer.model import ClusterName

log = logging.getLogger(__name__)

PAGE_SIZE = 500
_MERGE_PATCH = "application/merge-patch+json"
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"
_RESTARTS = 3
_EVERYTHING: Mapping[str, str] = {}
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

T = TypeVar("T")
A = TypeVar("A")


class _ListMeta(msgspec.Struct, rename={"continue_": "continue", "resource_version": "resourceVersion"}):
    continue_: str = ""
    resource_version: str = ""


class _Bookmark(msgspec.Struct):
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)


class _Page(msgspec.Struct, Generic[T]):
    items: list[T] | None = None
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)


class _WatchEvent(msgspec.Struct):
    """metav1.WatchEvent."""

    type: str
    object: msgspec.Raw


class _Version(msgspec.Struct):
    version: str


class _Group(msgspec.Struct):
    name: str
    versions: list[_Version]


class _Groups(msgspec.Struct):
    """metav1.APIGroupList."""

    groups: list[_Group]


class ApiResource(msgspec.Struct):
    """metav1.APIResource."""

    name: str
    kind: str


class _Resources(msgspec.Struct):
    """metav1.APIResourceList."""

    resources: list[ApiResource]


class _ServerVersion(msgspec.Struct):
    """version.Info; managed clusters append a plus sign to the minor version."""

    major: str = ""
    minor: str = ""


class _Verdict(msgspec.Struct):
    allowed: bool


class _Review(msgspec.Struct):
    """authorizationv1.SelfSubjectAccessReview."""

    status: _Verdict


class ObjectReader(abc.ABC):
    """Reads objects of the Kubernetes API: an API server's, or those of a file.

    Attributes:
        gpu_resources: Additional resource names of GPUs.
        host: Where the objects are, for messages.
    """

    gpu_resources: Sequence[str]
    host: str

    def list_all(
        self,
        path: str,
        kind: type[T],
        *,
        metadata_only: bool = False,
        label_selector: str = "",
        field_selector: str = "",
    ) -> list[T]:
        """All objects of a collection, read in pages of one consistent snapshot."""
        return self.reduce(
            path,
            kind,
            list[T],
            add=list[T].extend,
            metadata_only=metadata_only,
            selectors={"labelSelector": label_selector, "fieldSelector": field_selector},
        )

    @abc.abstractmethod
    def reduce(
        self,
        path: str,
        kind: type[T],
        start: Callable[[], A],
        *,
        add: Callable[[A, list[T]], None],
        metadata_only: bool = False,
        selectors: Mapping[str, str] = _EVERYTHING,
    ) -> A:
        """Reduce a collection that is too large to keep, page by page, each added to what `start` makes.

        Raises:
            ClusterError: The list is incomplete.
        """

    @abc.abstractmethod
    def get(self, path: str, kind: type[T]) -> T:
        """One object."""

    def find(self, path: str, kind: type[T]) -> T | None:
        """One object; None if it does not exist."""
        try:
            return self.get(path, kind)
        except RequestRefused as refused:
            if refused.code != http.HTTPStatus.NOT_FOUND:
                raise
            return None

    @abc.abstractmethod
    def served(self) -> Mapping[str, tuple[str, ...]]:
        """Versions of each API group except core, the preferred version first."""

    @abc.abstractmethod
    def resources(self, group_version: str) -> Sequence[ApiResource]:
        """Resources of an API group version, subresources as `plural/scale`."""

    @abc.abstractmethod
    def minor(self) -> int | None:
        """The minor version of Kubernetes 1.x; None if that is not known."""


class Cluster(ObjectReader):
    """A connection to one API server.

    Attributes:
        before_writing: Called before each request that may change something, dry run or not; an error that it raises
            keeps the request from being sent.
        is_inside: Whether this process runs in a pod of the cluster, as its service account.
        name: Which cluster it is, for people.

    Raises:
        ConfigurationError: There is no usable kubeconfig, context or in-cluster account.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        self._timeout_s = settings.timeout_s
        self._is_read_only = settings.is_read_only
        found = connection(settings)
        configuration, self._source, self._impersonation = (
            found.configuration,
            found.source,
            found.impersonation,
        )
        # A write that is silently sent twice could act twice, and a redirect could leave the cluster.
        configuration.retries = urllib3.Retry(0, redirect=False)
        self._client = client.ApiClient(configuration)
        self._client.user_agent = FIELD_MANAGER
        self._proxy = proxy_address(configuration.proxy or "")
        self._served: Mapping[str, tuple[str, ...]] | None = None
        self._resources: dict[str, Sequence[ApiResource]] = {}
        self._version: _ServerVersion | None = None
        self.host: str = configuration.host
        self.gpu_resources = settings.gpu_resources
        self.is_inside = self._source == IN_CLUSTER
        self.name = ClusterName(found.context, _without_credentials(self.host), self.is_inside)
        self.before_writing: Callable[[], None] = lambda: None
        self._throttled = ""

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def reduce(
        self,
        path: str,
        kind: type[T],
        start: Callable[[], A],
        *,
        add: Callable[[A, list[T]], None],
        metadata_only: bool = False,
        selectors: Mapping[str, str] = _EVERYTHING,
    ) -> A:
        """Reduce a collection that is too large to keep, page by page.

        When a snapshot expires, reading restarts with a fresh accumulator from `start`.

        Raises:
            ClusterError: The list is incomplete.
        """
        headers = {"Accept": _METADATA_ONLY if metadata_only else "application/json"}
        query = {"limit": str(PAGE_SIZE), **{key: text for key, text in selectors.items() if text}}
        return self._reduced(path, kind, (start, add), headers=headers, query=query)[0]

    def snapshot(
        self,
        path: str,
        kind: type[T],
        start: Callable[[], A],
        *,
        add: Callable[[A, list[T]], None],
        selector: str = "",
    ) -> tuple[A, str]:
        """Reduce a collection as `reduce` does; also the resourceVersion from which a watch continues.

        Raises:
            ClusterError: The list is incomplete.
        """
        headers, query = {"Accept": "application/json"}, {"limit": str(PAGE_SIZE)}
        query |= {"fieldSelector": selector} if selector else {}
        return self._reduced(path, kind, (start, add), headers=headers, query=query)

    def _reduced(
        self,
        path: str,
        kind: type[T],
        how: tuple[Callable[[], A], Callable[[A, list[T]], None]],
        *,
        headers: Mapping[str, str],
        query: Mapping[str, str],
    ) -> tuple[A, str]:
        start, add = how
        for _ in range(_RESTARTS):
            found, version = start(), ""
            try:
                for page in self._pages(path, kind, headers=headers, query=query):
                    add(found, page.items or [])
                    version = page.metadata.resource_version
            except RequestRefused as refused:
                if refused.reason != "Expired":
                    raise
            else:
                return found, version
        raise ClusterError(
            f"listing {path} at {self.host}: the pages expired {_RESTARTS} times while being read"
        )

    def _pages(
        self, path: str, kind: type[T], *, headers: Mapping[str, str], query: Mapping[str, str]
    ) -> Iterator[_Page[T]]:
        position: dict[str, str] = {}
        while True:
            data = self._send("GET", path, {**query, **position}, headers=headers)
            page = self._decode(data, _Page[kind], path)  # type: ignore[valid-type]
            yield page
            if not page.metadata.continue_:
                return
            position = {"continue": page.metadata.continue_}

    def watch(
        self, path: str, kind: type[T], *, length_s: float, since: str, selector: str = ""
    ) -> Iterator[tuple[str, T | None, str]]:
        """Each change of a collection: ADDED, MODIFIED or DELETED, the object, and its resourceVersion.

        A BOOKMARK has no object: all changes up to its resourceVersion have been sent.

        Args:
            path: Of the collection.
            kind: What its objects are decoded as.
            length_s: Then the server ends it.
            since: The resourceVersion from which on.
            selector: A field selector.

        Raises:
            ClusterError: It was refused, or ended early.
        """
        limits = {"fieldSelector": selector, "resourceVersion": since}
        query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(round(length_s))}
        query.update({key: text for key, text in limits.items() if text})
        attempted = f"watching {path} at {self.host}"
        headers = {"Accept": "application/json", "User-Agent": FIELD_MANAGER}
        with self._translated(attempted):
            timeout_s = length_s + self._timeout_s
            response = self._open("GET", path, query, headers=headers, timeout_s=timeout_s)
            if response.status != http.HTTPStatus.OK:
                _raise_for_status(response.status, response.data, attempted, source=self._source)
        for line in _lines(self._chunks(response, attempted)):
            event = self._decode(line, _WatchEvent, path)
            if event.type == "ERROR":
                code = http.HTTPStatus.INTERNAL_SERVER_ERROR
                _raise_for_status(code, bytes(event.object), attempted, source=self._source)
            shape: Any = _Bookmark if event.type == "BOOKMARK" else kind
            item = self._decode(bytes(event.object), shape, path)
            yield event.type, None if shape is _Bookmark else item, item.metadata.resource_version

    def served(self) -> Mapping[str, tuple[str, ...]]:
        """Versions of each API group except core, the server's preferred version first; cached."""
        if self._served is None:
            found = self.get("/apis", _Groups)
            self._served = {
                group.name: tuple(version.version for version in group.versions) for group in found.groups
            }
        return self._served

    def minor(self) -> int | None:
        """The minor version of Kubernetes 1.x; None if the server does not report it; cached."""
        if self._version is None:
            try:
                self._version = self.get("/version", _ServerVersion)
            except RequestRefused as refused:
                log.warning("the version of the API server is unknown: %s", refused)
                self._version = _ServerVersion()
        text = self._version.minor.removesuffix("+")
        is_known = self._version.major == "1" and text.isascii() and text.isdecimal()
        return int(text) if is_known else None

    def resources(self, group_version: str) -> Sequence[ApiResource]:
        """Resources of an API group version, subresources as `plural/scale`; cached."""
        if group_version not in self._resources:
            self._resources[group_version] = self.get(f"/apis/{group_version}", _Resources).resources
        return self._resources[group_version]

    def get(self, path: str, kind: type[T]) -> T:
        """One object."""
        return self._decode(self._send("GET", path, {}), kind, path)

    def is_allowed(self, attributes: Mapping[str, str]) -> bool:
        """Whether this account may do something, by a SelfSubjectAccessReview.

        https://kubernetes.io/docs/reference/kubernetes-api/authorization-resources/self-subject-access-review-v1/
        """
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        data = self._send("POST", _REVIEWS, {}, body=review)
        return self._decode(data, _Review, _REVIEWS).status.allowed

    def get_object(self, path: str) -> dict[str, Any]:
        """One object with all its fields."""
        return self.get(path, dict[str, Any])

    def require_writable(self) -> None:
        """Check that writes are possible, before each write and before lengthy preparations for one.

        Raises:
            Throttled: The API server throttled an earlier request; this connection writes nothing more.
            ClusterError: This connection only reads, or `before_writing` raised it.
        """
        if self._is_read_only:
            raise ClusterError(f"this connection to {self.host} only reads")
        if self._throttled:
            raise Throttled(f"the API server throttled an earlier request: {self._throttled}")
        self.before_writing()

    def patch(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> None:
        """Send one merge patch (RFC 7386)."""
        headers = {"Content-Type": _MERGE_PATCH}
        self._send("PATCH", path, _write_query(dry_run=dry_run), body=body, headers=headers)

    def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> None:
        """Create an object in a collection, or an eviction of a pod."""
        self._send("POST", path, _write_query(dry_run=dry_run), body=body)

    def replace(self, path: str, body: Mapping[str, Any]) -> None:
        """Replace an object of gpu-rightsizer's own; its resourceVersion is the precondition."""
        self._send("PUT", path, _write_query(dry_run=False), body=body)

    def delete(self, path: str) -> None:
        """Delete an object of gpu-rightsizer's own."""
        self._send("DELETE", path, {})

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        if method != "GET" and path != _REVIEWS:
            self.require_writable()
        attempted = f"{_VERBS[method]} {path} at {self.host}"
        sent = {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": FIELD_MANAGER}
        sent.update(headers or {})
        began = time.monotonic()
        with self._translated(attempted):
            response = self._open(method, path, query, headers=sent, body=body, timeout_s=self._timeout_s)
            data: bytes = response.data
        dry = " (dry run)" if "dryRun" in query else ""
        took_ms = (time.monotonic() - began) * 1000
        message = "%s %s at %s%s: %d, %d bytes, %.0f ms"
        log.info(message, method, path, self.host, dry, response.status, len(data), took_ms)
        retry_after = response.headers.get("Retry-After", "")
        try:
            _raise_for_status(response.status, data, attempted, source=self._source, retry_after=retry_after)
        except RequestRefused as refused:
            if refused.is_throttled:
                self._throttled = str(refused)
            raise
        return data

    def fetch(
        self, path: str, query: Mapping[str, str], *, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[int, Iterator[bytes]]:
        """GET through one of the API server's proxies: the HTTP status, and the body as a stream.

        Raises:
            ClusterError: The server does not respond, or the body ends early.
        """
        attempted = f"reading {path} at {self.host}"
        with self._translated(attempted):
            response = self._open("GET", path, query, headers=headers, timeout_s=timeout_s)
        return response.status, self._chunks(response, attempted)

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        body: Mapping[str, Any] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """A response with an unread body."""
        require_direct(path)
        url = f"{self.host}{path}?{urllib.parse.urlencode(query)}" if query else self.host + path
        sent = urllib3.HTTPHeaderDict(headers)
        sent.extend(self._impersonation)
        self._client.update_params_for_auth(sent, [], ["BearerToken"], path, method, body)
        _require_sendable(sent, self._source)
        answer = self._client.call_api(method, url, sent, body, _request_timeout=timeout_s)
        response: urllib3.BaseHTTPResponse = answer.response
        return response

    @contextlib.contextmanager
    def _translated(self, attempted: str) -> Iterator[None]:
        """Translate the libraries' errors."""
        try:
            yield
        except urllib3.exceptions.HTTPError as error:
            text = str(getattr(error, "reason", None) or error)
            # The text of a timeout has its length, the cause has not.
            words = text.rpartition(": ")[2] if "timed out" in text else root_cause(error)
            raise ClusterUnreachable(f"{attempted}: {words}{self._remedy(error, words)}") from error
        except client.ApiException as error:
            reason = " ".join(str(error.reason).split())
            raise ClusterUnreachable(f"{attempted}: {reason}{self._remedy(error, reason)}") from error

    def _remedy(self, error: BaseException, words: str) -> str:
        """A remedy for a connection that could not be made; empty if one was lost."""
        reason = getattr(error, "reason", None)
        if "WRONG_VERSION_NUMBER" in words:
            return f"; the server has no TLS; does the server URL of {self._source} need http://?"
        if "CERTIFICATE_VERIFY_FAILED" in words:
            return f"; is certificate-authority-data of {self._source} right, and no TLS-inspecting proxy in between?"
        if isinstance(reason, urllib3.exceptions.ProxyError):
            return f" (the proxy {self._proxy}); check HTTPS_PROXY, NO_PROXY, and proxy-url of {self._source}"
        if isinstance(reason, urllib3.exceptions.NewConnectionError) and not self.is_inside:
            return f"; is the server URL of {self._source} right, and reachable from here?"
        return ""

    def _chunks(self, response: urllib3.BaseHTTPResponse, attempted: str) -> Iterator[bytes]:
        with self._translated(attempted), contextlib.closing(response):
            yield from response.stream(1 << 16, decode_content=True)

    def _decode(self, data: bytes, kind: type[T], path: str) -> T:
        try:
            if not data.isascii():
                data.decode()  # msgspec checks no text in what it skips, or leaves for later
            return msgspec.json.decode(data, type=kind)
        except INVALID_JSON as error:
            problem = f"invalid response: {error}"
            if data.lstrip().startswith(b"<"):
                problem = (
                    f"a web page, not an API server's response; is the server URL of {self._source} right?"
                )
            raise ClusterError(f"reading {path} at {self.host}: {problem}") from error


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from filter(None, lines)


def _require_sendable(headers: Mapping[str, str], source: str) -> None:
    """Refuse invalid headers here: the HTTP library's own error would print the token.

    Raises:
        ConfigurationError: A header cannot be sent.
    """
    if not all(value.isascii() and value.isprintable() for value in headers.values()):
        raise ConfigurationError(
            f"{source}: its credentials cannot be sent: they contain line breaks or non-ASCII characters"
        )


_VERBS = {
    "GET": "reading",
    "PATCH": "patching",
    "POST": "creating in",
    "PUT": "replacing",
    "DELETE": "deleting",
}


def _write_query(*, dry_run: bool) -> dict[str, str]:
    """Parameters of a write: the API server refuses unknown or duplicate fields instead of dropping them."""
    query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
    return {**query, "dryRun": "All"} if dry_run else query


def _without_credentials(url: str) -> str:
    """A URL without a user, which a kubeconfig may have in it."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def proxy_address(url: str) -> str:
    """Host and port of a proxy's URL, without its user and password."""
    return url.rpartition("@")[2].rpartition("//")[2].partition("/")[0]


def root_cause(error: BaseException) -> str:
    """The innermost reason: `requests` and urllib3 wrap it several times."""
    reason = getattr(error, "reason", None)
    inner = reason if isinstance(reason, BaseException) else error.__cause__ or error.__context__
    if inner is None and error.args and isinstance(error.args[-1], BaseException):
        inner = error.args[-1]
    if inner is not None:
        return root_cause(inner)
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)[:MAX_DETAIL]


# --- Error responses

_FALSE = re.compile(r"failed expression: .*")
_REPEATED = (
    # A field or a whole patched object, as JSON or as Go prints it.
    (re.compile(r'Invalid value: "(?:\{|map\[|core\.)'), ('}": ', ']": '), "Invalid value (left out here): "),
    (re.compile(r"Invalid value: (?:\{|map\[|core\.)"), ("}: ", "]: "), "Invalid value (left out here): "),
    # An admission policy's expression: kilobytes that hide its result.
    (re.compile("expression '"), ("' resulted in error: ",), "an expression resulted in error: "),
)
"""Objects that the API server repeats in messages: their beginning, possible ends, and the words instead."""


class _Cause(msgspec.Struct):
    reason: str = ""


class _Details(msgspec.Struct):
    causes: list[_Cause] | None = None


class _Status(msgspec.Struct):
    kind: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    code: int = 0
    details: _Details | None = None


def _raise_for_status(code: int, data: bytes, attempted: str, *, source: str, retry_after: str = "") -> None:
    """Raise RequestRefused if a response is an error; a Status object's own code takes precedence over HTTP's.

    https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/
    """
    if code < http.HTTPStatus.MULTIPLE_CHOICES and b'"Failure"' not in data:
        return  # saves decoding long lists twice
    try:
        status = msgspec.json.decode(data, type=_Status)
    except INVALID_JSON:
        status = _Status()
    is_failure = status.kind == "Status" and status.status == "Failure"
    if code < http.HTTPStatus.MULTIPLE_CHOICES and not is_failure:
        return
    causes = tuple(cause.reason for cause in (status.details or _Details()).causes or [])
    detail = _without_values(status.message or data.decode(errors="replace"))
    if http.HTTPStatus.MULTIPLE_CHOICES <= code < http.HTTPStatus.BAD_REQUEST:
        detail = "redirected, which an API server never does; is the kubeconfig's server URL right?"
    if code == http.HTTPStatus.UNAUTHORIZED:
        detail += f"; the credentials of {source} are not accepted"
    if code == http.HTTPStatus.TOO_MANY_REQUESTS and re.fullmatch("[0-9]{1,6}", retry_after):
        detail += f" (Retry-After: {retry_after} s)"
    raise RequestRefused(
        attempted, code=status.code or code, reason=status.reason, detail=detail, causes=causes
    )


def _without_values(message: str) -> str:
    """A message on one line, without the objects that it repeats: their fields may be credentials."""
    text = _FALSE.sub("its expression is false", " ".join(message.split()))
    for beginning, ends, instead in _REPEATED:
        begin = beginning.search(text)
        # To the last end: one expression for both would take time in the square of a long message.
        place, end = max((text.rfind(end), end) for end in ends)
        if begin is not None and place >= begin.end():
            text = f"{text[: begin.start()]}{instead}{text[place + len(end) :]}"
    return text if len(text) <= MAX_DETAIL else f"{text[:MAX_DETAIL]} ..."
