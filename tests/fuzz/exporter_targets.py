"""Parsers of gpu-exporter."""

import contextlib
import functools
import http.client
import itertools
import pathlib
import re
import socket
import tempfile
import time

from exporter.attribution.cgroups import placement
from exporter.attribution.procfs import ProcessScanner
from exporter.errors import ApiServerError, ConfigFileError, PodResourcesError, RequestError, StartError
from exporter.http import messages, webconfig
from exporter.pods import protobuf
from exporter.pods.apiaccess import ApiServerAccess, from_kubeconfig
from exporter.pods.apihttp import PodApi
from exporter.pods.grpc import Channel
from exporter.pods.podfacts import WantedPodFacts, label_names, pod_fact
from exporter.sampling import catalogue
from exporter.sampling.jobs import JobDirectory
from exporter.sampling.metricsfile import MetricsFile
from exporter.sampling.metricslist import select_metrics
from tests.fuzz.fuzz_target import YAML_S, FuzzTarget, as_file


def _pod_resources(data: bytes) -> None:
    with contextlib.suppress(PodResourcesError):
        protobuf.allocations(data)
    protobuf.offers(data)


@functools.cache
def _kubelet() -> tuple[socket.socket, str]:
    server = socket.socket(socket.AF_UNIX)
    path = f"{tempfile.mkdtemp()}/kubelet.sock"
    server.bind(path)
    server.listen()
    return server, path


def _kubelet_call(data: bytes) -> None:
    """A call that the kubelet answers with these bytes, and then ends the connection."""
    server, path = _kubelet()
    channel = Channel(path, clock=time.monotonic, timeout_s=5.0)
    accepted, _ = server.accept()
    try:
        accepted.sendall(data)
        accepted.shutdown(socket.SHUT_WR)
        protobuf.allocations(channel.call("/v1.PodResourcesLister/List", timeout_s=5.0))
    finally:
        accepted.close()
        channel.close()


def _cgroup(data: bytes) -> None:
    placement(data.decode(errors="replace"))


_PID = 4711
_FILES = ("2/stat", f"{_PID}/stat", f"{_PID}/cgroup", "loadavg", "stat")


def _proc(data: bytes) -> None:
    """The files of /proc, one after the other, each ended by a zero byte."""
    files = dict(itertools.zip_longest(_FILES, data.split(b"\0", len(_FILES) - 1), fillvalue=b""))

    def read(path: str, most: int) -> bytes:
        return files[path.removeprefix("/proc/")][:most]

    scanner = ProcessScanner(pathlib.Path("/proc"), ticks_per_s=100, read=read)
    for _ in range(2):
        scanner.scan([_PID], listed_at_ns=10**18)


@functools.cache
def _listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


class _Connection(http.client.HTTPConnection):
    """A connection to an API server that answers before it is asked."""

    def __init__(self, answer: bytes) -> None:
        super().__init__("127.0.0.1", _listener().getsockname()[1], timeout=5.0)
        self._answer = answer

    def connect(self) -> None:
        """Connect, and let the server answer."""
        super().connect()
        self._server, _ = _listener().accept()
        self._server.sendall(self._answer)
        self._server.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close both ends."""
        super().close()
        self._server.close()


class _Access(ApiServerAccess):
    answer = b""

    def connect(self, timeout_s: float) -> http.client.HTTPConnection:
        """The connection that has the answer."""
        del timeout_s
        return _Connection(_Access.answer)


def _pod_list(data: bytes) -> None:
    """The answer to a list of pods, without its head."""
    _Access.answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data)
    document = PodApi(_Access("api", 80), "node").get({})
    items = document.get("items")
    for pod in items if isinstance(items, list) else ():
        _pod_fact(pod)


def _pod_watch(data: bytes) -> None:
    """The answer to a watch of pods, with its head."""
    _Access.answer = data
    for event in PodApi(_Access("api", 80), "node").watch({}, timeout_s=5.0):
        if event:
            _pod_fact(event.get("object"))


def _pod_fact(pod: object) -> None:
    _, fact = pod_fact(pod, WantedPodFacts(uid=True, labels=(re.compile("."),)))
    label_names(name for name, _ in fact.details.labels)


def _metrics_file(data: bytes) -> None:
    collectors = tuple(catalogue.collectors().values())
    parse = functools.partial(select_metrics, collectors=collectors, naming=None)
    MetricsFile(as_file(data), parse, unix_time=time.time)


def _web_config(data: bytes) -> None:
    webconfig.parse(data, pathlib.Path("web.yaml"))


def _kubeconfig(data: bytes) -> None:
    access = from_kubeconfig(as_file(data))
    with contextlib.suppress(OSError, ValueError):  # files that it names
        access.headers()


@functools.cache
def _job_folder() -> pathlib.Path:
    return pathlib.Path(tempfile.mkdtemp())


def _jobs(data: bytes) -> None:
    (_job_folder() / "0").write_bytes(data)
    JobDirectory(_job_folder()).read()


def _request(data: bytes) -> None:
    found = messages.parse(data)
    _ = found.timeout_s, found.has_body


TARGETS = (
    FuzzTarget("pod-resources", _pod_resources, (PodResourcesError,)),
    FuzzTarget("kubelet-call", _kubelet_call, (PodResourcesError,)),
    FuzzTarget("cgroup", _cgroup),
    FuzzTarget("proc", _proc),
    FuzzTarget("pod-list", _pod_list, (ApiServerError,)),
    FuzzTarget("pod-watch", _pod_watch, (ApiServerError,)),
    FuzzTarget("metrics-file", _metrics_file, (ConfigFileError,)),
    FuzzTarget("web-config", _web_config, (ConfigFileError,), YAML_S),
    FuzzTarget("exporter-kubeconfig", _kubeconfig, (StartError,), YAML_S),
    FuzzTarget("jobs", _jobs),
    FuzzTarget("http-request", _request, (RequestError,)),
)
