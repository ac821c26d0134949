"""The Service proxy; backends are URLs that a test sets, and a Service without one answers 503.

Like the real server it removes the client's Authorization header.
"""

import dataclasses
import http.client
import urllib.parse
from collections.abc import Mapping

from simulator.kube.errors import ApiError

_STEPS = 7
"""Of /api/v1/namespaces/NAMESPACE/services/NAME/proxy."""
_TAKEN_OFF = {"authorization", "connection", "host", "content-length", "transfer-encoding"}
_OF_A_HOP = {"connection", "content-length", "date", "server", "transfer-encoding"}
_TIMEOUT_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class ProxyPath:
    """A path through a Service; `segment` is NAME, NAME:PORT or SCHEME:NAME:PORT, `rest` goes to the backend."""

    namespace: str
    segment: str
    rest: str

    @property
    def name(self) -> str:
        """The Service's."""
        parts = self.segment.split(":")
        return parts[1] if len(parts) == 3 else parts[0]  # noqa: PLR2004

    @property
    def port(self) -> str:
        """Number or name of the port, where one is named."""
        return self.segment.rpartition(":")[2] if ":" in self.segment else ""


def parse_proxy_path(path: str) -> ProxyPath | None:
    """What of a path is for a Service's proxy, if it is."""
    steps = path.lstrip("/").split("/", _STEPS)
    if steps[:3] != ["api", "v1", "namespaces"] or len(steps) < _STEPS:
        return None
    if (steps[4], steps[6]) != ("services", "proxy"):
        return None
    return ProxyPath(steps[3], steps[5], "/" + "".join(steps[_STEPS:]))


class Backends:
    """What stands behind which port of which Service."""

    def __init__(self) -> None:
        self._urls: dict[tuple[str, str, int], str] = {}

    def set(self, namespace: str, name: str, port: int, url: str) -> None:
        """Let a URL stand behind a port."""
        self._urls[namespace, name, port] = url

    def forward(
        self, path: ProxyPath, method: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of what stands behind it; `path.rest` may have a query."""
        url = self._urls.get((path.namespace, path.name, int(path.port) if path.port.isdecimal() else 0))
        if url is None:
            raise ApiError(503, "ServiceUnavailable", f'no endpoints available for service "{path.segment}"')
        target = urllib.parse.urlsplit(url)
        connection = http.client.HTTPConnection(target.netloc, timeout=_TIMEOUT_S)
        try:
            kept = {name: value for name, value in headers.items() if name not in _TAKEN_OFF}
            connection.request(method, target.path.rstrip("/") + path.rest, body or None, kept)
            reply = connection.getresponse()
            passed = {name: value for name, value in reply.getheaders() if name.lower() not in _OF_A_HOP}
            return reply.status, passed, reply.read()
        except OSError as error:
            words = f"error trying to reach service: {error}"
            raise ApiError(503, "ServiceUnavailable", words) from error
        finally:
            connection.close()
