"""Slow, large, many or unusual clients: each is bounded, and others are served."""

import concurrent.futures
import contextlib
import signal
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from exporter.http.handlers import MAX_SCRAPES
from simulator.spec import GpuSpec, NodeSpec
from tests.exporter.conftest import MakeNode
from tests.exporter.rig import PATIENCE_S, Exporter, Node, eventually, h100

pytestmark = pytest.mark.driver

CA = trustme.CA()
GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """One GPU."""
    return make_node(h100(1))


@pytest.fixture
def exporter(node: Node) -> Iterator[Exporter]:
    """A running exporter."""
    with node.exporting(pods=False) as running:
        yield running


def connect(exporter: Exporter) -> socket.socket:
    """A connected client socket."""
    address = ("127.0.0.1", int(exporter.url.rpartition(":")[2]))
    return socket.create_connection(address, timeout=PATIENCE_S)


def exchange(exporter: Exporter, content: bytes) -> bytes:
    """The complete answer to `content`, until the exporter closes the connection."""
    with connect(exporter) as client:
        client.sendall(content)
        return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"\r\n" + GET, b"200 OK"),
        (GET.replace(b"\r\n", b"\n"), b"200 OK"),
        (GET.replace(b"1.1", b"1.0"), b"200 OK"),
        (GET.replace(b"/healthz", b"http://node:9400/healthz?a=b#c"), b"200 OK"),
        (GET.replace(b"/healthz", b"/healthz?a=b"), b"200 OK"),
        (GET.replace(b"1.1", b"2.0"), b"505 HTTP Version Not Supported"),
        (b"GET /healthz\r\n\r\n", b"400 Bad Request"),
        (b"GET  /healthz HTTP/1.1\r\n\r\n", b"400 Bad Request"),
        (b"GET /\x1b[31m HTTP/1.1\r\n\r\n", b"400 Bad Request"),
        (b"\x16\x03\x01\x00\xf4\x01\r\n\r\n", b"400 Bad Request"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"400 Bad Request"),
        (b"GET / HTTP/1.1\r\nName : value\r\n\r\n", b"400 Bad Request"),
        (b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", b"400 Bad Request"),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n", b"414 Request-URI Too Long"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 65 + b"\r\n", b"431 Request Header Fields Too Large"),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 17000 + b"\r\n\r\n", b"431 Request Header Fields Too Large"),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 300_000, b"431 Request Header Fields Too Large"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", b"405 Method Not Allowed"),
        (b"OPTIONS * HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
    ],
    ids=lambda part: ascii(part[:40]),
)
def test_server_answers_unusual_requests_with_a_status(
    content: bytes, status: bytes, exporter: Exporter
) -> None:
    """Each request gets one answer with its status, and the exporter closes the connection."""
    answer = exchange(exporter, content)
    assert answer.split(b"\r\n")[0] == b"HTTP/1.1 " + status
    assert answer.count(b"Content-Length: ") == 1
    assert exporter.messages("a bug in") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 5\r\n\r\nhello",
        b"Content-Length: 5\r\n\r\n",
        b"Content-Length: 1000000\r\n\r\n" + b"x" * 1_000_000,
        b"Content-Length: -1\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"Content-Length: 40\r\nExpect: 100-continue\r\n\r\n",
        b"Content-Length: 0\r\n\r\n" + GET,
    ],
    ids=["small", "missing", "large", "negative", "chunked", "expected", "pipelined"],
)
def test_server_never_reads_a_body(body: bytes, exporter: Exporter) -> None:
    """A GET with a body is answered once and completely, and its body is no second request."""
    begun = time.monotonic()
    answer = exchange(exporter, b"GET /healthz HTTP/1.1\r\n" + body)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nok\n")
    assert answer.count(b"HTTP/1.1") == 1
    assert time.monotonic() - begun < 5


@pytest.mark.deep
def test_server_closes_slow_clients_after_ten_seconds(exporter: Exporter) -> None:
    """Clients that send nothing, or a byte now and then, are closed after ten seconds; others are served meanwhile."""
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        silent, dribbling, *others = [stack.enter_context(connect(exporter)) for _ in range(14)]
        ended = threading.Event()

        def dribble() -> None:
            with contextlib.suppress(OSError):
                for number in range(256):
                    dribbling.sendall(GET[number % 10 : number % 10 + 1])
                    if ended.wait(0.2):
                        return

        threading.Thread(target=dribble, daemon=True).start()
        assert exporter.get("/healthz")[0] == 200
        try:
            assert dribbling.recv(100).startswith(b"HTTP/1.1 408 Request Timeout\r\n")
            assert 8 < time.monotonic() - begun < 14
            assert {client.recv(100) for client in (silent, *others)} == {b""}
        finally:
            ended.set()


@contextlib.contextmanager
def crowd(exporter: Exporter, count: int) -> Iterator[None]:
    """`count` clients that connect, send an incomplete request, and reconnect when they are dropped."""
    ended = threading.Event()

    def come_again(content: bytes) -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError), connect(exporter) as client:
                client.sendall(content)
                client.settimeout(0.1)
                while not ended.is_set():
                    with contextlib.suppress(TimeoutError):
                        if not client.recv(1000):
                            break

    contents = (b"", b"GET /metr", b"\x16\x03\x01")
    threads = [threading.Thread(target=come_again, args=(contents[n % 3],)) for n in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("count", [24, pytest.param(100, marks=pytest.mark.deep)])
def test_server_with_silent_clients_still_answers(
    count: int, secure: bool, make_node: MakeNode, tmp_path: Path
) -> None:
    """All probes and scrapes are answered while many clients send incomplete requests and reconnect."""
    flags, context = [], None
    if secure:
        server = CA.issue_cert("127.0.0.1")
        server.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
        web = tmp_path / "web.yml"
        web.write_text("tls_server_config:\n  cert_file: server.pem\n  key_file: server.pem\n")
        flags, context = [f"--web-config-file={web}"], ssl.create_default_context()
        CA.configure_trust(context)
    with make_node(h100(1)).exporting(*flags, pods=False, ready=False) as exporter:
        threads = exporter.process_threads()
        with crowd(exporter, count):
            eventually(lambda: exporter.process_threads() >= threads + min(count, 60))
            for number in range(40):
                path = ("/healthz", "/metrics")[number % 2]
                with urllib.request.urlopen(
                    exporter.url + path, timeout=PATIENCE_S, context=context
                ) as reply:
                    assert reply.status == 200
            assert exporter.process_threads() < 100
        eventually(lambda: exporter.process_threads() <= threads + 6)


@pytest.mark.deep
def test_server_closes_clients_that_do_not_read(make_node: MakeNode) -> None:
    """A client that requests a large exposition and does not read it is closed after ten seconds."""
    node = make_node(NodeSpec("large", (GpuSpec("H100-SXM5-80GB", ("1g.10gb",) * 7),) * 16))
    with (
        node.exporting("--metrics=full", "--naming=both", pods=False) as exporter,
        contextlib.ExitStack() as stack,
    ):
        address = ("127.0.0.1", int(exporter.url.rpartition(":")[2]))
        for _ in range(2):
            clients = [stack.enter_context(socket.socket()) for _ in range(MAX_SCRAPES)]  # share renderings
            for client in clients:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
                client.connect(address)
                client.sendall(GET.replace(b"/healthz", b"/metrics"))
            assert [client.recv(12) for client in clients] == [b"HTTP/1.1 200"] * MAX_SCRAPES
        assert exporter.get("/healthz")[0] == 503
        eventually(lambda: exporter.get("/healthz")[0] == 200)


@pytest.mark.slow
def test_server_under_a_flood_answers_or_refuses(make_node: MakeNode) -> None:
    """Each of many concurrent requests gets a complete answer, or 503 with Retry-After; the exporter recovers."""
    node = make_node(NodeSpec("large", (GpuSpec("H100-SXM5-80GB", ("1g.10gb",) * 7),) * 8))
    ask = b"GET /metrics HTTP/1.1\r\nAccept: %s\r\n\r\n"
    types = [b"text/plain", b"application/openmetrics-text;version=1.0.0"]
    with (
        node.exporting("--metrics=full", pods=False) as exporter,
        concurrent.futures.ThreadPoolExecutor(40) as pool,
    ):
        threads = exporter.process_threads()
        answers = list(pool.map(lambda number: exchange(exporter, ask % types[number % 2]), range(200)))
        statuses = {answer.split(b"\r\n")[0] for answer in answers}
        assert b"HTTP/1.1 200 OK" in statuses
        assert statuses <= {b"HTTP/1.1 200 OK", b"HTTP/1.1 503 Service Unavailable"}
        for answer in answers:
            head, _, body = answer.partition(b"\r\n\r\n")
            assert f"Content-Length: {len(body)}".encode() in head
            assert (b"Retry-After: 1" in head) == (b" 503 " in head)
        eventually(lambda: exporter.process_threads() <= threads)
        assert exporter.get("/metrics")[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("timeout", "status"),
    [
        (b"0.5", b"503 Service Unavailable"),
        (b"10", b"200 OK"),
        (b"soon", b"200 OK"),
        (b"-1", b"200 OK"),
        (b"nan", b"200 OK"),
    ],
)
def test_request_after_its_scrape_timeout_is_refused(
    timeout: bytes, status: bytes, exporter: Exporter
) -> None:
    """A request past its scrape timeout gets 503; an invalid timeout header is ignored."""
    with connect(exporter) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n")
        threading.Event().wait(0.6)
        client.sendall(b"X-Prometheus-Scrape-Timeout-Seconds: " + timeout + b"\r\n\r\n")
        answer = client.recv(1000)
    assert answer.split(b"\r\n")[0] == b"HTTP/1.1 " + status
    assert (b"Retry-After: 1" in answer) == (b" 503 " in answer)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_exporter_with_open_connections_stops_in_time(number: signal.Signals, exporter: Exporter) -> None:
    """Silent clients, half requests and clients that do not read do not delay the exit."""
    with contextlib.ExitStack() as stack:
        for content in (b"", b"GET /met", GET.replace(b"/healthz", b"/metrics")):
            for _ in range(4):
                stack.enter_context(connect(exporter)).sendall(content)
        eventually(lambda: exporter.process_threads() > 8)
        begun = time.monotonic()
        assert exporter.stop(number) == 0
        assert time.monotonic() - begun < 5


def test_exporter_finishes_a_request_before_it_stops(exporter: Exporter) -> None:
    """A connection accepted before the signal is answered; a later one is refused."""
    with connect(exporter) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\n")
        eventually(lambda: exporter.get("/healthz")[0] == 200)  # so that the other has been accepted
        exporter.process.terminate()
        eventually(lambda: exporter.messages("stopping"))
        client.sendall(b"\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")
    assert exporter.process.wait(PATIENCE_S) == 0
    with pytest.raises(ConnectionRefusedError):
        connect(exporter)
