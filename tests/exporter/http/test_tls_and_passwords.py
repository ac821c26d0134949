"""TLS, client certificates, passwords and reloads, with real clients and the real process."""

import base64
import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import bcrypt
import pytest
import trustme
import yaml

from simulator.processes import Server
from tests.exporter.conftest import MakeNode
from tests.exporter.rig import PATIENCE_S, Exporter, Node, ended, eventually, h100

pytestmark = pytest.mark.driver

CA = trustme.CA()
OTHER_CA = trustme.CA()
SERVER = CA.issue_cert("localhost", "127.0.0.1")
PAIR = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"
MUTUAL = f"{PAIR}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n"
ALICE = f"basic_auth_users:\n  alice: {bcrypt.hashpw(b'wonderland', bcrypt.gensalt(4)).decode()}\n"

LOCKED = b"""\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAiIHFqhEY9PkAICA+gw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEAQIEEFd7tp73E4GvPfjNERqEEvkEgZDm
WUGf88utb4J80jR7F+RJr/qmqedg6xvZjANHbSm4C/6XH52EOs/cpqYXayQdPq6E
HzyVMLE6iYjHawzbE9ZKW6BRMhNX030corvpjqKdS1GbadghOFBGqNIG+h3+/ifv
2P+r3kgGquTwhTKNKpNARv+Hr6VVjfwscEfMxasGvmNPWG1aSY5mP2MgJcLDCtc=
-----END ENCRYPTED PRIVATE KEY-----
"""


class Web:
    """A web configuration file and its folder."""

    def __init__(self, folder: Path, node: Node) -> None:
        self.folder = folder
        self.node = node
        self.file = folder / "web.yml"
        self.identity(SERVER)
        CA.cert_pem.write_to_path(folder / "ca.pem")

    def identity(self, cert: trustme.LeafCert) -> None:
        """Replace the server's certificate and key, each atomically, as kubelet and cert-manager do."""
        for name, blobs in {"server.crt": cert.cert_chain_pems, "server.key": [cert.private_key_pem]}.items():
            (self.folder / "new").write_bytes(b"".join(blob.bytes() for blob in blobs))
            (self.folder / "new").rename(self.folder / name)

    def write(self, text: str) -> None:
        """Replace the file atomically."""
        (self.folder / "new").write_text(text)
        (self.folder / "new").rename(self.file)

    @contextlib.contextmanager
    def exporting(self, text: str) -> Iterator[Exporter]:
        """A running exporter with this configuration."""
        self.write(text)
        with self.node.exporting(f"--web-config-file={self.file}", pods=False, ready=False) as exporter:
            yield exporter

    def refused(self, text: str) -> str:
        """The error of an exporter that refuses this configuration, without the file's name."""
        self.write(text)
        done = self.node.once(f"--web-config-file={self.file}", "--pod-resources-socket=")
        assert (done.code, done.out) == (2, "")
        (line,) = done.err.splitlines()
        return line.removeprefix(f"error: web configuration {self.file}")


@pytest.fixture
def web(tmp_path: Path, make_node: MakeNode) -> Web:
    """A folder for the configuration, and a node with one GPU."""
    folder = tmp_path / "web"
    folder.mkdir()
    return Web(folder, make_node(h100(1)))


def client(cert: trustme.LeafCert | None = None, *, ca: trustme.CA = CA) -> ssl.SSLContext:
    """A TLS client that trusts `ca`, with its own certificate if there is one."""
    context = ssl.create_default_context()
    ca.configure_trust(context)
    if cert is not None:
        cert.configure_cert(context)
    return context


def port(exporter: Exporter) -> int:
    """The exporter's port."""
    return int(exporter.url.rpartition(":")[2])


def get(
    exporter: Exporter, path: str = "/healthz", *, context: ssl.SSLContext | None = None, **headers: str
) -> tuple[int, http.client.HTTPMessage, str]:
    """Status, headers and body of one request, over TLS if there is a context."""
    connection = (
        http.client.HTTPConnection("127.0.0.1", port(exporter), timeout=PATIENCE_S)
        if context is None
        else http.client.HTTPSConnection("127.0.0.1", port(exporter), context=context, timeout=PATIENCE_S)
    )
    with contextlib.closing(connection):
        connection.request(
            "GET", path, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read().decode()


def basic(name: str, password: str) -> str:
    """The Authorization header."""
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


def serial(exporter: Exporter) -> int:
    """The serial number of the server's current certificate."""
    with (
        socket.create_connection(("127.0.0.1", port(exporter)), timeout=PATIENCE_S) as plain,
        client().wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        shown = secure.getpeercert()
        assert shown is not None
        return int(str(shown["serialNumber"]), 16)


def test_metrics_over_tls_are_served(web: Web) -> None:
    """With a certificate, the exporter serves HTTPS and logs its URL."""
    with web.exporting(PAIR) as exporter:
        assert exporter.url.startswith("https://127.0.0.1:")
        eventually(lambda: get(exporter, "/readyz", context=client())[0] == 200)
        status, _, body = get(exporter, "/metrics", context=client(), Accept_Encoding="identity")
        assert (status, "DCGM_FI_DEV_GPU_UTIL{" in body) == (200, True)


def test_plain_http_on_a_tls_port_is_explained(web: Web) -> None:
    """Plain HTTP on an HTTPS port gets an explanation and no metrics."""
    with web.exporting(PAIR) as exporter:
        status, _, body = get(exporter, "/metrics")
        assert (status, body) == (400, "this is an HTTPS server; use https://\n")


def test_inline_pems_are_served(web: Web) -> None:
    """An inline certificate and key work like files."""
    pems = {
        "cert": b"".join(blob.bytes() for blob in SERVER.cert_chain_pems),
        "key": SERVER.private_key_pem.bytes(),
    }
    lines = [
        f"  {name}: |\n" + re.sub("^", "    ", pem.decode(), flags=re.MULTILINE) for name, pem in pems.items()
    ]
    with web.exporting("tls_server_config:\n" + "\n".join(lines)) as exporter:
        assert get(exporter, context=client())[0] == 200


def _version(**bounds: ssl.TLSVersion) -> ssl.SSLContext:
    context = client()
    for name, version in bounds.items():
        setattr(context, name, version)
    return context


def _ciphers(names: str) -> ssl.SSLContext:
    context = _version(maximum_version=ssl.TLSVersion.TLSv1_2)
    context.set_ciphers(names)
    return context


def _curve(name: str) -> ssl.SSLContext:
    context = client()
    context.set_ecdh_curve(name)
    return context


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "good", "bad"),
    [
        ("", lambda: _version(maximum_version=ssl.TLSVersion.TLSv1_2), lambda: client(ca=OTHER_CA)),
        (
            "  min_version: TLS13\n",
            lambda: _version(minimum_version=ssl.TLSVersion.TLSv1_3),
            lambda: _version(maximum_version=ssl.TLSVersion.TLSv1_2),
        ),
        (
            "  max_version: TLS12\n",
            lambda: _version(maximum_version=ssl.TLSVersion.TLSv1_2),
            lambda: _version(minimum_version=ssl.TLSVersion.TLSv1_3),
        ),
        (
            "  cipher_suites: [TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256]\n",
            lambda: _ciphers("ECDHE-ECDSA-CHACHA20-POLY1305"),
            lambda: _ciphers("ECDHE-ECDSA-AES256-GCM-SHA384"),
        ),
        ("  curve_preferences: [CurveP384]\n", lambda: _curve("secp384r1"), lambda: _curve("X25519")),
    ],
    ids=["default", "min_version", "max_version", "cipher_suites", "curve_preferences"],
)
def test_tls_versions_and_ciphers_are_as_configured(
    lines: str, good: Callable[[], ssl.SSLContext], bad: Callable[[], ssl.SSLContext], web: Web
) -> None:
    """A matching client is served; another gets no connection."""
    with web.exporting(PAIR + lines) as exporter:
        assert get(exporter, context=good())[0] == 200
        with pytest.raises(ssl.SSLError):
            get(exporter, context=bad())


@pytest.mark.parametrize("prefers", [True, False])
def test_cipher_order_is_as_configured(prefers: bool, web: Web) -> None:
    """`prefer_server_cipher_suites` decides between the server's first suite and the client's."""
    suites = ["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"]
    lines = f"  cipher_suites: [{', '.join(suites)}]\n  prefer_server_cipher_suites: {str(prefers).lower()}\n"
    context = _ciphers("ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384")
    with (
        web.exporting(PAIR + lines) as exporter,
        socket.create_connection(("127.0.0.1", port(exporter)), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        cipher = secure.cipher()
        assert cipher is not None
        assert cipher[0] == f"ECDHE-ECDSA-AES{256 if prefers else 128}-GCM-SHA{384 if prefers else 256}"


def _may_come_in(exporter: Exporter, context: ssl.SSLContext) -> bool:
    try:
        return get(exporter, context=context)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", {"nobody": True}),
        ("  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n",
         {"nobody": False, "prometheus": True, "other": True, "stranger": False}),
        ("  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: ca.pem\n",
         {"nobody": True, "prometheus": True, "other": True, "stranger": False}),
        (("  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n"
         "  client_allowed_sans: [prometheus.example, '2001:db8::1']\n"),
         {"nobody": False, "prometheus": True, "other": False, "address": True, "stranger": False}),
        (("  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: ca.pem\n"
          "  client_allowed_sans: [me@example.org]\n"),
         {"nobody": True, "prometheus": False, "mail": True, "stranger": False}),
    ],
    ids=["none", "required", "if-given", "allowed-sans", "if-given-allowed-sans"],
)  # fmt: skip
def test_client_certificates_are_verified(lines: str, expected: dict[str, bool], web: Web) -> None:
    """Who comes in without a certificate, with one of our CA, of another name, and of somebody else's CA."""
    contexts = {
        "nobody": client(),
        "prometheus": client(CA.issue_cert("prometheus.example")),
        "other": client(CA.issue_cert("other.example")),
        "address": client(CA.issue_cert("2001:db8::1")),
        "mail": client(CA.issue_cert("me@example.org")),
        "stranger": client(OTHER_CA.issue_cert("prometheus.example")),
    }
    with web.exporting(PAIR + lines) as exporter:
        assert {name: _may_come_in(exporter, contexts[name]) for name in expected} == expected


def test_renewed_certificate_is_served_at_once(web: Web) -> None:
    """The next client gets the renewed certificate; an open connection is still answered."""
    renewed = CA.issue_cert("localhost", "127.0.0.1")
    with web.exporting(PAIR) as exporter:
        before = serial(exporter)
        with (
            socket.create_connection(("127.0.0.1", port(exporter)), timeout=PATIENCE_S) as plain,
            client().wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            secure.sendall(b"GET /healthz HTTP/1.1\r\n")
            web.identity(renewed)
            assert serial(exporter) != before
            secure.sendall(b"\r\n")
            assert secure.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")
        assert get(exporter, context=client())[0] == 200
    assert len(exporter.messages("reloaded")) <= 2  # between certificate and key nobody asked


def test_invalid_reload_keeps_the_previous_configuration(web: Web) -> None:
    """The previous configuration stays, one error gives the reason, and a corrected file is loaded."""
    with web.exporting(PAIR) as exporter:
        before = serial(exporter)
        web.write(PAIR.replace("key_file", "key_fil"))
        assert [serial(exporter) for _ in range(3)] == [before] * 3
        assert exporter.messages("keeping the previous") == [
            (
                f"web configuration {web.file}, line 3: key_fil: unknown field of tls_server_config; did you mean "
                "key_file?; keeping the previous configuration"
            )
        ]

        (web.folder / "server.key").write_bytes(b"")
        web.write(PAIR)
        assert serial(exporter) == before
        assert exporter.messages("keeping the previous")[1:] == [
            (
                f"web configuration {web.file}: key_file: no private key in PEM that OpenSSL can read; "
                "keeping the previous configuration"
            )
        ]

        web.identity(CA.issue_cert("localhost", "127.0.0.1"))
        assert serial(exporter) != before


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        (PAIR, "", "tls_server_config"),
        (PAIR + ALICE, PAIR, "basic_auth_users"),
        (MUTUAL, PAIR, "client_auth_type"),
        (f"{MUTUAL}  client_allowed_sans: [a.example]\n", MUTUAL, "client_allowed_sans"),
    ],
    ids=["tls", "passwords", "client-certificates", "allowed-sans"],
)
def test_reload_without_protection_is_refused(before: str, after: str, lost: str, web: Web) -> None:
    """A half-written file may be valid and protect less: it is not loaded while the exporter runs."""
    context = client(CA.issue_cert("a.example"))
    with web.exporting(before) as exporter:
        known = basic("alice", "wonderland")
        assert get(exporter, context=context, Authorization=known)[0] == 200
        web.write(after)
        assert get(exporter, context=context)[0] == (401 if lost == "basic_auth_users" else 200)
        assert eventually(lambda: exporter.messages("keeping the previous")) == [
            (
                f"web configuration {web.file}: no longer has {lost}; restart the exporter to serve without; "
                "keeping the previous configuration"
            )
        ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "tls_server_config:\n  cert_file: no.crt\n  key_file: server.key\n",
            (
                ": cert_file {}/no.crt: cannot be read: no such file or directory"
            ),
        ),
        (
            "tls_server_config:\n  cert_file: ca.pem\n  key_file: server.key\n",
            (
                ": cert_file and key_file do not match"
            ),
        ),
        (
            "tls_server_config:\n  cert_file: server.key\n  key_file: server.key\n",
            (
                ": cert_file: no certificate in PEM that OpenSSL can read"
            ),
        ),
        (
            "tls_server_config:\n  cert_file: server.crt\n  key_file: ca.pem\n",
            (
                ": key_file: no private key in PEM that OpenSSL can read"
            ),
        ),
        (
            "tls_server_config:\n  cert_file: server.crt\n  key_file: locked.key\n",
            (
                ": key_file: is encrypted; write the key without a passphrase"
            ),
        ),
        (
            MUTUAL.replace("ca.pem", "server.key"),
            (
                ": client_ca_file: no certificate in PEM that OpenSSL can read"
            ),
        ),
        ("tls_server: {}\n", ", line 1: tls_server: unknown field; did you mean tls_server_config?"),
    ],
)  # fmt: skip
def test_invalid_web_file_is_refused_at_start(text: str, words: str, web: Web) -> None:
    """One line names the file and the problem; exit code 2."""
    (web.folder / "locked.key").write_bytes(LOCKED)
    assert web.refused(text) == words.format(web.folder)


def test_missing_web_file_is_refused_at_start(web: Web) -> None:
    """A missing file or a folder is refused, also when set by dcgm-exporter's variable."""
    for path, words in {
        web.folder / "none": "no such file or directory",
        web.folder: "is a directory",
    }.items():
        done = web.node.once("--pod-resources-socket=", DCGM_EXPORTER_WEB_CONFIG_FILE=str(path))
        assert (done.code, done.err) == (
            2,
            f"error: web configuration {path}: cannot be read: {words}\n",
        )


def test_request_without_a_valid_password_is_refused(web: Web) -> None:
    """Each page requires a valid user and password; attempts are not in the log."""
    with web.exporting(ALICE) as exporter:
        for path in ("/metrics", "/healthz", "/", "/nothing"):
            status, headers, body = get(exporter, path)
            assert (status, body) == (401, "a user name and its password are required\n")
            assert headers["WWW-Authenticate"] == 'Basic realm="gpu-exporter", charset="UTF-8"'
        tried = {
            basic("alice", "wonderland"): 200,
            basic("alice", "Wonderland"): 401,
            basic("alice", ""): 401,
            basic("bob", "wonderland"): 401,
            basic("", ""): 401,
            "Basic !!!": 401,
            "Basic": 401,
            f"Bearer {base64.b64encode(b'alice:wonderland').decode()}": 401,
            f"basic  {base64.b64encode(b'alice:wonderland').decode()}": 200,
            basic("alice", "x" * 100): 401,
            basic("alice", "wonder\0land"): 401,
        }
        assert {sent: get(exporter, Authorization=sent)[0] for sent in tried} == tried
        log = str(exporter.log)
        assert not any(word in log.lower() for word in ("wonder", "$2", "d29uZGVy"))


@pytest.mark.parametrize(("module", "library"), [("bcrypt", "bcrypt"), ("yaml", "pyyaml")])
def test_missing_library_for_passwords_is_named(module: str, library: str, web: Web) -> None:
    """Without the library, the exporter does not start, and the message names what to install."""
    web.write(ALICE)
    code = (
        f"import sys; sys.modules[{module!r}] = None; from exporter.__main__ import main; "
        f"sys.argv[1:] = ['--web-config-file', {str(web.file)!r}]; sys.exit(main())"
    )
    done = ended([sys.executable, "-c", code], web.node.environment())
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert line.endswith(f" needs the library {library}; run: pip install 'gpu-rightsizer[exporter]'")


def test_changed_users_apply_at_once(web: Web) -> None:
    """The next request needs the new password; the old one is refused."""
    changed = f"basic_auth_users:\n  alice: {bcrypt.hashpw(b'glass', bcrypt.gensalt(4)).decode()}\n"
    with web.exporting(ALICE) as exporter:
        assert get(exporter, Authorization=basic("alice", "wonderland"))[0] == 200
        web.write(changed)
        assert get(exporter, Authorization=basic("alice", "wonderland"))[0] == 401
        assert get(exporter, Authorization=basic("alice", "glass"))[0] == 200


def test_long_passwords_are_truncated_as_by_bcrypt(web: Web) -> None:
    """bcrypt uses 72 bytes; htpasswd's hashes of longer passwords work."""  # noqa: D403 - a name
    hashed = bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4)).decode().replace("$2b$", "$2y$")
    with web.exporting(f"basic_auth_users:\n  alice: {hashed}\n") as exporter:
        assert get(exporter, Authorization=basic("alice", "x" * 80))[0] == 200
        assert get(exporter, Authorization=basic("alice", "x" * 71))[0] == 401


def _cpu_s(exporter: Exporter) -> float:
    fields = Path(f"/proc/{exporter.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
def test_password_guessing_blocks_no_known_user(web: Web) -> None:
    """While many clients guess passwords, known clients get answers, and guessers are asked to retry."""
    hashed = bcrypt.hashpw(b"wonderland", bcrypt.gensalt(11)).decode()
    known = basic("alice", "wonderland")
    with web.exporting(f"basic_auth_users:\n  alice: {hashed}\n") as exporter:
        assert get(exporter, Authorization=known)[0] == 200

        def guess(number: int) -> int:
            return get(exporter, Authorization=basic("alice" if number % 2 else "bob", str(number)))[0]

        with concurrent.futures.ThreadPoolExecutor(8) as guessers:
            guesses = [guessers.submit(guess, number) for number in range(100)]
            while not all(guess.done() for guess in guesses):
                assert get(exporter, Authorization=known)[0] == 200
                concurrent.futures.wait(guesses, timeout=0.1)
        assert {guess.result() for guess in guesses} == {401, 503}


@pytest.mark.deep
def test_password_guessing_uses_a_quarter_of_a_core(web: Web) -> None:
    """Each wrong password causes a pause in proportion to the duration of the check."""
    hashed = bcrypt.hashpw(b"wonderland", bcrypt.gensalt(12)).decode()
    with web.exporting(f"basic_auth_users:\n  alice: {hashed}\n") as exporter:
        assert get(exporter, Authorization=basic("alice", "first"))[0] == 401
        cpu, begun = _cpu_s(exporter), time.monotonic()
        assert {get(exporter, Authorization=basic("alice", str(guess)))[0] for guess in range(4)} == {401}
        assert _cpu_s(exporter) - cpu < 0.5 * (time.monotonic() - begun)


def test_repeated_wrong_password_is_cached(web: Web) -> None:
    """Repeated requests with the same wrong password are refused without a new check."""
    hashed = bcrypt.hashpw(b"wonderland", bcrypt.gensalt(12)).decode()
    with web.exporting(f"basic_auth_users:\n  alice: {hashed}\n") as exporter:
        wrong = basic("alice", "wrong")
        assert get(exporter, Authorization=wrong)[0] == 401
        cpu = _cpu_s(exporter)
        assert [get(exporter, Authorization=wrong)[0] for _ in range(20)] == [401] * 20
        assert _cpu_s(exporter) - cpu < 1  # each hash takes 0.2 s


def test_security_headers_are_on_every_response(web: Web) -> None:
    """The configured headers are on answers and refusals."""
    headers = (
        "http_server_config:\n  http2: true\n  headers:\n    X-Frame-Options: deny\n    X-XSS-Protection: 1\n"
    )
    with web.exporting(headers + ALICE) as exporter:
        known = basic("alice", "wonderland")
        for path, status, authorization in (
            ("/metrics", 200, known),
            ("/nothing", 404, known),
            ("/metrics", 401, ""),
        ):
            found, sent, _ = get(exporter, path, Authorization=authorization)
            assert (found, sent["X-Frame-Options"], sent["X-XSS-Protection"]) == (status, "deny", "1")


def test_rate_limit_refuses_excess_requests(web: Web) -> None:
    """`rate_limit` accepts a burst, and then one request per interval."""
    with web.exporting("rate_limit:\n  interval: 1h\n  burst: 3\n") as exporter:
        statuses = [get(exporter)[0] for _ in range(5)]
    assert statuses == [200, 200, 200, 429, 429]


def _connections(exporter: Exporter, count: int) -> Sequence[socket.socket]:
    return [socket.create_connection(("127.0.0.1", port(exporter)), timeout=PATIENCE_S) for _ in range(count)]


def test_unfinished_handshakes_block_nobody(web: Web) -> None:
    """Clients with an unfinished handshake do not block others."""
    with web.exporting(PAIR) as exporter, contextlib.ExitStack() as stack:
        for silent in _connections(exporter, 8):
            stack.enter_context(silent)
            silent.sendall(b"\x16\x03\x01")
        begun = time.monotonic()
        assert get(exporter, context=client())[0] == 200
        assert time.monotonic() - begun < 5


FULL = f"""\
{MUTUAL}  client_allowed_sans: [prometheus.example]
  min_version: TLS12
  max_version: TLS13
  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384]
  prefer_server_cipher_suites: true
  curve_preferences: [CurveP256]
http_server_config:
  http2: true
  headers:
    X-Frame-Options: deny
    Strict-Transport-Security: max-age=31536000
{ALICE}"""


@pytest.mark.prometheus
def test_real_prometheus_scrapes_with_tls_and_password(web: Web) -> None:
    """Prometheus scrapes an exporter with every protection enabled."""
    (web.folder / "password").write_text("wonderland")
    CA.issue_cert("prometheus.example").private_key_and_cert_chain_pem.write_to_path(
        web.folder / "client.pem"
    )
    with web.exporting(FULL) as exporter:
        scrape = {
            "job_name": "gpu-exporter",
            "scheme": "https",
            "tls_config": {name: str(web.folder / file) for name, file in {
                "ca_file": "ca.pem", "cert_file": "client.pem", "key_file": "client.pem"}.items()},
            "basic_auth": {"username": "alice", "password_file": str(web.folder / "password")},
            "static_configs": [{"targets": [f"127.0.0.1:{port(exporter)}"]}],
        }  # fmt: skip
        config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [scrape]}
        (web.folder / "prometheus.yml").write_text(yaml.safe_dump(config))

        def command(listen: int) -> list[str]:
            return [
                "prometheus", f"--config.file={web.folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={web.folder / 'data'}", f"--web.listen-address=127.0.0.1:{listen}",
            ]  # fmt: skip

        prometheus = Server("prometheus", command, ready_path="/-/ready", log=web.folder / "prometheus.log")
        prometheus.start()
        try:
            query = "/api/v1/query?query=DCGM_FI_DEV_GPU_TEMP"
            eventually(lambda: json.loads(prometheus.get(query)[1])["data"]["result"])
        finally:
            prometheus.stop()


@pytest.mark.prometheus
def test_exporter_toolkit_accepts_the_same_file(web: Web) -> None:
    """exporter-toolkit's own check accepts and refuses the same files."""
    good = FULL.replace("  client_allowed_sans: [prometheus.example]\n", "")  # younger than Debian's promtool
    bad = good.replace("curve_preferences", "curve_preference")
    for text, code in {good: 0, bad: 1}.items():
        web.write(text)
        check = ["promtool", "check", "web-config", str(web.file)]
        assert subprocess.run(check, capture_output=True, check=False).returncode == code
    assert "did you mean curve_preferences?" in web.refused(bad)
