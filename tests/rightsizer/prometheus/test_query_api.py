"""The query API: a response is complete, or an error that says what to do."""

import contextlib
import dataclasses
import datetime
import pathlib
import socket
import ssl
import subprocess
import threading
import traceback
from collections.abc import Iterator

import pytest

from rightsizer.__main__ import parser
from rightsizer.cli.connection import prometheus_settings
from rightsizer.config import PrometheusSettings, Secret
from rightsizer.errors import ConfigurationError, PrometheusError
from rightsizer.prometheus.query_api import Prometheus
from tests.rightsizer.fakeprometheus import GOOD, SCALAR, Answer, Fake, serving

AT = datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC)


@pytest.fixture
def fake() -> Iterator[Fake]:
    """A server that speaks HTTP, and whatever a test tells it to."""
    with serving() as server:
        yield server


def _ask(url: str, **settings: object) -> list[tuple[dict[str, str], float]]:
    given = PrometheusSettings(url, timeout_s=30.0)
    prometheus = Prometheus(dataclasses.replace(given, **settings))  # type: ignore[arg-type]
    return [(dict(sample.labels), sample.value) for sample in prometheus.query("x", AT)]


REFUSED = {
    "bad-query": (
        Answer(400, '{"status":"error","errorType":"bad_data","error":"parse error"}'),
        "HTTP 400: bad_data: parse error",
    ),
    "too-many-samples": (
        Answer(
            422,
            '{"status":"error","errorType":"execution","error":"query processing would load too many samples"}',
        ),
        "too many samples",
    ),
    "warnings": (
        Answer(body=GOOD[:-1] + ', "warnings": ["store gone"]}'),
        "may be incomplete; not used: store gone",
    ),
    "partial": (Answer(body=GOOD[:-1] + ', "isPartial": true}'), "may be incomplete"),
    "not-allowed": (
        Answer(401, "nope"),
        "HTTP 401: not allowed; see the --prometheus flags for credentials: -token-file",
    ),
    "forbidden": (Answer(403, "nope"), "HTTP 403: not allowed"),
    "no-prometheus": (
        Answer(200, "<html>Grafana</html>"),
        "this is not a Prometheus API: <html>Grafana</html>",
    ),
    "not-found": (Answer(404, "404 page not found"), "HTTP 404, but this is not a Prometheus API"),
    "broken": (Answer(500, "boom"), ": HTTP 500: boom"),
    "cut-off": (
        Answer(200, GOOD, {"Content-Length": "5000"}),
        ": the response was cut off",
    ),
    "redirect": (Answer(302, "", {"Location": "http://169.254.169.254/"}), "HTTP 302"),
    "empty": (Answer(200, ""), "this is not a Prometheus API"),
    "a-scalar": (
        Answer(body='{"status":"success","data":{"resultType":"scalar","result":[0,"1"]}}'),
        "expected a vector, got a scalar",
    ),
    "wrong-shape": (
        Answer(body='{"status":"success","data":{"resultType":"vector","result":[{"value":"x"}]}}'),
        "cannot be parsed",
    ),
    "overloaded": (Answer(503, "shed"), "HTTP 503: shed"),
    "rate-limited": (Answer(429, "slow down"), "HTTP 429: slow down"),
}


@pytest.mark.covers("P20")
@pytest.mark.parametrize(("answer", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_query_incomplete_or_foreign_response_raises(fake: Fake, answer: Answer, words: str) -> None:
    """The error says why, and names the server."""
    fake.answers.append(dataclasses.replace(answer))
    with pytest.raises(PrometheusError) as caught:
        _ask(fake.url)
    assert words in str(caught.value)
    assert fake.url in str(caught.value)


def test_query_complete_response_returns_samples(fake: Fake) -> None:
    """Labels and values arrive; the request carries the deadline and the instant."""
    fake.answers.append(Answer())
    assert _ask(fake.url + "/prometheus/") == [({"a": "b"}, 1.5)]
    assert "time=1795219200.000" in fake.asked[0]["form"]
    assert "timeout=" in fake.asked[0]["form"]


@pytest.mark.covers("P1")
def test_query_transient_error_is_retried(fake: Fake) -> None:
    """Two responses of 503 in a row do not fail the query."""
    fake.answers += [Answer(503, "shed", times=2), Answer()]
    assert _ask(fake.url, timeout_s=30.0) == [({"a": "b"}, 1.5)]
    assert len(fake.asked) == 3


def test_query_storage_error_is_retried(fake: Fake) -> None:
    """While Prometheus cuts a block, a query may miss a chunk; the next one finds it."""
    error = (
        '{"status":"error","errorType":"execution","error":"cannot populate chunk 1 from block 0: not found"}'
    )
    fake.answers += [Answer(422, error, times=1), Answer()]
    assert _ask(fake.url, timeout_s=30.0) == [({"a": "b"}, 1.5)]


@pytest.mark.covers("P1")
@pytest.mark.parametrize("status", [400, 401, 403, 422])
def test_query_permanent_error_is_not_retried(fake: Fake, status: int) -> None:
    """A query that a retry cannot help is sent once."""
    fake.answers.append(Answer(status, "{}"))
    with pytest.raises(PrometheusError):
        _ask(fake.url)
    assert len(fake.asked) == 1


def test_query_headers_and_token_are_sent_and_never_shown(fake: Fake, tmp_path: pathlib.Path) -> None:
    """The token is read for each request, since projected tokens rotate; no error shows a secret."""
    token = tmp_path / "token"
    token.write_text("first-token\n")
    settings = PrometheusSettings(fake.url, token_file=token, headers={"X-Scope-OrgID": Secret("team-a")})
    prometheus = Prometheus(settings)
    fake.answers += [Answer(times=1), Answer(401, "x")]
    prometheus.query("x", AT)
    token.write_text("second-token")
    with pytest.raises(PrometheusError) as caught:
        prometheus.query("x", AT)
    assert [one["Authorization"] for one in fake.asked] == ["Bearer first-token", "Bearer second-token"]
    assert fake.asked[0]["X-Scope-OrgID"] == "team-a"
    for hidden in ("first-token", "second-token", "team-a"):
        assert hidden not in str(caught.value) + repr(settings)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"s3cret\ns3cret\n", "holds more than one line, or control characters"),
        (b"s3cret\x00", "holds more than one line, or control characters"),
        ("s3cr\u00e9t".encode(), "is not ASCII text"),
    ],
)
def test_query_token_invalid_in_header_raises(
    fake: Fake, tmp_path: pathlib.Path, content: bytes, words: str
) -> None:
    """The error names the file but not its content, and nothing is sent."""
    token = tmp_path / "token"
    token.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        _ask(fake.url, token_file=token)
    assert str(caught.value).startswith(f"--prometheus-token-file {token}: {words}")
    assert "s3cr" not in "".join(traceback.format_exception(caught.value))
    assert fake.asked == []


@pytest.mark.covers("P7")
@pytest.mark.parametrize(
    "result", ["[]", '{"a":1}', '[1e300,"1"]', '["x","1"]', "null", '[-1e300,"1"]', "[1]"]
)
def test_now_unparsable_time_raises(fake: Fake, result: str) -> None:
    """A response to time() of another shape, or a time outside the calendar, is a PrometheusError."""
    fake.answers.append(
        Answer(body=f'{{"status":"success","data":{{"resultType":"scalar","result":{result}}}}}')
    )
    with pytest.raises(PrometheusError, match="its response cannot be parsed"):
        Prometheus(PrometheusSettings(fake.url, timeout_s=30.0)).now()


@pytest.mark.covers("P15")
def test_query_value_not_a_number_raises(fake: Fake) -> None:
    """A value that cannot be parsed is an error."""
    fake.answers.append(Answer(body=GOOD.replace("1.5", "many")))
    with pytest.raises(PrometheusError, match="its response cannot be parsed"):
        _ask(fake.url)


def test_query_token_file_missing_raises(fake: Fake, tmp_path: pathlib.Path) -> None:
    """The error names the flag and the path."""
    with pytest.raises(ConfigurationError, match=r"--prometheus-token-file .*gone: No such file"):
        _ask(fake.url, token_file=tmp_path / "gone")


@pytest.mark.covers("P1")
def test_query_connection_refused_raises() -> None:
    """The error has the operating system's reason, without the layers that wrap it."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(PrometheusError) as caught:
            _ask(url)
    assert str(caught.value) == (
        f"querying Prometheus at {url}: Connection refused; is the URL right, and reachable from here?"
    )


@pytest.mark.covers("P1")
def test_query_unknown_host_raises() -> None:
    """The error says that the name does not resolve."""
    with pytest.raises(PrometheusError, match=r"not known|resolution"):
        _ask("http://prometheus.invalid:9090")


@pytest.mark.covers("P2")
def test_query_without_response_raises_at_deadline() -> None:
    """The deadline ends the query."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(PrometheusError, match=r"no response within 0\.3 s; is it overloaded"),
    ):
        _ask(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.3)


@pytest.mark.covers("P20")
def test_query_oversized_body_raises(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body beyond the limit is dropped, not collected."""
    monkeypatch.setattr("rightsizer.prometheus.transport.MAX_BYTES", 1000)
    fake.answers.append(Answer(body=" " * 5000))
    with pytest.raises(PrometheusError, match="larger than"):
        _ask(fake.url)


@pytest.fixture
def tls(tmp_path: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
    """A TLS server with a certificate of its own, and that certificate's file."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=x -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serving(context) as server:
        server.answers.append(Answer())
        yield server.url, certificate


@pytest.mark.covers("P1")
def test_query_private_ca_is_trusted_if_given(tls: tuple[str, pathlib.Path]) -> None:
    """Without --prometheus-ca-file the certificate is refused."""
    url, certificate = tls
    with pytest.raises(
        PrometheusError, match=r"TLS failed: .*give the CA that signed it.*: --prometheus-ca-file"
    ):
        _ask(url)
    assert _ask(url, ca_file=certificate) == [({"a": "b"}, 1.5)]


def test_query_https_of_a_plain_server_hints_at_http() -> None:
    """The certificates are not the problem."""
    with serving() as server:
        server.answers.append(Answer())
        with pytest.raises(PrometheusError, match="the server has no TLS; does it need http://"):
            _ask(server.url.replace("http://", "https://"))


def test_query_dead_proxy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of the proxy are the remedy, not the URL; its password is not shown."""
    monkeypatch.setenv("http_proxy", "http://user:s3cret@127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(PrometheusError, match=r"the proxy 127.0.0.1:9 failed: .*check HTTP_PROXY") as caught:
        _ask("http://prometheus.invalid:9090")
    assert "s3cret" not in str(caught.value)


def test_client_ca_file_missing_raises(tmp_path: pathlib.Path) -> None:
    """The error names the flag and the path, before any request."""
    with pytest.raises(ConfigurationError, match=r"--prometheus-ca-file .*gone"):
        _ask("https://127.0.0.1:1", ca_file=tmp_path / "gone")


@pytest.mark.covers("P20")
@pytest.mark.parametrize("pause_s", [0.05, 10.0], ids=["drips", "falls-silent"])
def test_query_endless_body_raises_at_deadline(pause_s: float) -> None:
    """A server that announces a body and sends a byte now and then cannot hold a query beyond its deadline."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)

        def serve() -> None:
            taken: list[socket.socket] = []
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    taken.append(server.accept()[0])
                    taken[-1].sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
                for connection in taken if pause_s < 1 else []:
                    with contextlib.suppress(OSError):
                        connection.sendall(b" " * 70_000)
            for connection in taken:
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(PrometheusError, match=r"the response did not end in time"):
            _ask(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=2.0)
        ended.set()
        thread.join()


def test_query_header_from_file_is_sent(fake: Fake, tmp_path: pathlib.Path) -> None:
    """Also a whole Authorization header, as basic authentication needs it."""
    secret = tmp_path / "basic"
    secret.write_text("Basic dTpw\n")
    fake.answers.append(Answer(body=SCALAR))
    flags = ["--prometheus-header", f"Authorization=@{secret}", "--prometheus-header", "X-Scope-OrgID: a b"]
    arguments = parser().parse_args(["plan", "--prometheus-url", fake.url, *flags])
    Prometheus(prometheus_settings(arguments)).now()
    assert (fake.asked[0]["Authorization"], fake.asked[0]["X-Scope-OrgID"]) == ("Basic dTpw", "a b")
