"""How Prometheus is reached and as whom: basic authentication, TLS in both directions, and what the flags may say."""

import base64
import datetime
import logging
import pathlib
import ssl
from collections.abc import Iterator

import pytest
import trustme

from rightsizer.cli import parser
from rightsizer.cli.connection import prometheus_settings
from rightsizer.config import PrometheusSettings
from rightsizer.errors import ConfigurationError, PrometheusError, UsageError
from rightsizer.prometheus.query_api import Prometheus
from tests.rightsizer.fakeprometheus import Answer, Fake, serving

AT = datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC)
CA = trustme.CA()
OTHER_CA = trustme.CA()
SERVER = CA.issue_cert("127.0.0.1")
CLIENT = CA.issue_cert("gpu-rightsizer")

LOCKED = b"""\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAiIHFqhEY9PkAICA+gw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEAQIEEFd7tp73E4GvPfjNERqEEvkEgZDm
WUGf88utb4J80jR7F+RJr/qmqedg6xvZjANHbSm4C/6XH52EOs/cpqYXayQdPq6E
HzyVMLE6iYjHawzbE9ZKW6BRMhNX030corvpjqKdS1GbadghOFBGqNIG+h3+/ifv
2P+r3kgGquTwhTKNKpNARv+Hr6VVjfwscEfMxasGvmNPWG1aSY5mP2MgJcLDCtc=
-----END ENCRYPTED PRIVATE KEY-----
"""


@pytest.fixture
def fake() -> Iterator[Fake]:
    """A server over HTTP."""
    with serving() as server:
        server.answers.append(Answer())
        yield server


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["tls1.2", "tls1.3"])
def mutual(request: pytest.FixtureRequest) -> Iterator[Fake]:
    """A server over HTTPS that takes clients of our CA only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = request.param
    context.verify_mode = ssl.CERT_REQUIRED
    SERVER.configure_cert(context)
    CA.configure_trust(context)
    with serving(context) as server:
        server.answers.append(Answer())
        yield server


class Files:
    """Certificates and keys in a folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.ca = folder / "ca.pem"
        self.certificate = folder / "client.crt"
        self.key = folder / "client.key"
        CA.cert_pem.write_to_path(self.ca)
        self.identity(CLIENT)

    def identity(self, cert: trustme.LeafCert) -> None:
        """Put a client's certificate and key into place."""
        self.certificate.write_bytes(b"".join(blob.bytes() for blob in cert.cert_chain_pems))
        cert.private_key_pem.write_to_path(self.key)

    def settings(self, url: str) -> PrometheusSettings:
        """How to reach a server with them."""
        return PrometheusSettings(
            url,
            ca_file=self.ca,
            client_cert_file=self.certificate,
            client_key_file=self.key,
            timeout_s=30.0,
        )


@pytest.fixture
def files(tmp_path: pathlib.Path) -> Files:
    """Those of a client that the server takes."""
    return Files(tmp_path)


def test_basic_authentication(fake: Fake, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """User and password are sent as RFC 7617 says, the password read for each request, and neither is ever shown."""
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "password"
    path.write_text("s3cret:1\n")
    settings = PrometheusSettings(fake.url, user="grünfeld", password_file=path, timeout_s=30.0)
    prometheus = Prometheus(settings)
    fake.answers[:] = [Answer(times=1), Answer(401, "nope")]
    prometheus.query("x", AT)
    path.write_text("s3cret:2")
    with pytest.raises(PrometheusError, match="HTTP 401: not allowed; see the --prometheus flags") as caught:
        prometheus.query("x", AT)
    sent = [base64.b64decode(one["Authorization"].removeprefix("Basic ")).decode() for one in fake.asked]
    assert sent == ["grünfeld:s3cret:1", "grünfeld:s3cret:2"]
    assert "s3cret" not in str(caught.value) + repr(settings) + caplog.text
    assert base64.b64encode("grünfeld:s3cret".encode()).decode()[:12] not in caplog.text


def test_a_password_that_cannot_be_read(fake: Fake, tmp_path: pathlib.Path) -> None:
    """The flag and the file are named, and nothing is sent."""
    settings = PrometheusSettings(fake.url, user="u", password_file=tmp_path / "gone", timeout_s=30.0)
    with pytest.raises(ConfigurationError, match=r"--prometheus-password-file .*gone: No such file"):
        Prometheus(settings).query("x", AT)
    assert fake.asked == []


def test_a_client_certificate(mutual: Fake, files: Files) -> None:
    """A server that wants one answers to it."""
    samples = Prometheus(files.settings(mutual.url)).query("x", AT)
    assert [sample.value for sample in samples] == [1.5]


@pytest.mark.parametrize("whose", ["none", "of-another-ca"])
def test_a_client_certificate_that_is_not_taken(mutual: Fake, files: Files, whose: str) -> None:
    """It is an error that names the flag; nothing is asked."""
    settings = files.settings(mutual.url)
    if whose == "none":
        settings = PrometheusSettings(mutual.url, ca_file=files.ca, timeout_s=30.0)
    else:
        files.identity(OTHER_CA.issue_cert("gpu-rightsizer"))
    with pytest.raises(PrometheusError, match=r"TLS failed: .*-client-cert-file"):
        Prometheus(settings).query("x", AT)
    assert mutual.asked == []


def test_a_client_certificate_that_is_renewed(mutual: Fake, files: Files) -> None:
    """What stands in the files when a connection is made is what is presented."""
    prometheus = Prometheus(files.settings(mutual.url))
    files.identity(OTHER_CA.issue_cert("gpu-rightsizer"))
    with pytest.raises(PrometheusError, match="TLS failed"):
        prometheus.query("x", AT)
    files.identity(CLIENT)
    assert len(prometheus.query("x", AT)) == 1


@pytest.mark.parametrize("what", ["another-key", "no-pem", "a-passphrase", "no-file", "no-authority"])
def test_certificates_that_cannot_be_used(files: Files, what: str) -> None:
    """It is found out before anything is asked; the flag and the file are named, and no passphrase is asked for."""
    words = "--prometheus-client-cert-file .*client.crt and -key-file .*client.key: cannot be used"
    match what:
        case "another-key":
            CA.issue_cert("x").private_key_pem.write_to_path(files.key)
        case "no-pem":
            files.certificate.write_text("s3cret")
        case "a-passphrase":
            files.key.write_bytes(LOCKED)
        case "no-file":
            files.certificate.unlink()
            files.ca.unlink()
            words = (
                "--prometheus-ca-file .*ca.pem: no such file; --prometheus-client-cert-file .*no such file"
            )
        case _:
            files.ca.write_text("s3cret")
            words = "--prometheus-ca-file .*ca.pem: holds no certificates"
    with pytest.raises(ConfigurationError, match=words) as caught:
        Prometheus(files.settings("https://127.0.0.1:1"))
    assert "s3cret" not in str(caught.value)


def test_any_certificate_if_that_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    """It is believed only where the flag says so, and then a warning is logged."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    OTHER_CA.issue_cert("elsewhere").configure_cert(context)
    with serving(context) as server:
        server.answers.append(Answer())
        with pytest.raises(PrometheusError, match="TLS failed"):
            Prometheus(PrometheusSettings(server.url, timeout_s=30.0)).query("x", AT)
        prometheus = Prometheus(PrometheusSettings(server.url, skip_verify=True, timeout_s=30.0))
        assert len(prometheus.query("x", AT)) == 1
    assert "whoever is between here and Prometheus can invent metrics" in caplog.text


HTTP, HTTPS = ["--prometheus-url", "http://h"], ["--prometheus-url", "https://h"]
USER = ["--prometheus-user", "u", "--prometheus-password-file", "f"]
CERTIFICATE = ["--prometheus-client-cert-file", "c", "--prometheus-client-key-file", "k"]
REGION = ["--prometheus-sigv4-region", "eu-central-1"]
SKIP = ["--prometheus-insecure-skip-verify"]
REFUSED = {
    "two-credentials": (
        [*HTTP, *USER, "--prometheus-token-file", "t"],
        "--prometheus-token-file and --prometheus-user: give one of them",
    ),
    "three-credentials": (
        [*HTTP, *USER, *REGION, "--prometheus-token-file", "t"],
        "--prometheus-token-file and --prometheus-user and --prometheus-sigv4-region: give one of them",
    ),
    "a-user-alone": ([*HTTP, "--prometheus-user", "u"], "give --prometheus-password-file, too"),
    "a-password-alone": ([*HTTP, "--prometheus-password-file", "f"], "give --prometheus-user, too"),
    "a-user-with-a-colon": (
        [*HTTP, "--prometheus-user", "u:p4ssw0rd", "--prometheus-password-file", "f"],
        "--prometheus-user: holds a colon",
    ),
    "a-certificate-alone": ([*HTTPS, "--prometheus-client-cert-file", "c"], "give both, or neither"),
    "a-key-alone": ([*HTTPS, "--prometheus-client-key-file", "k"], "give both, or neither"),
    "a-certificate-over-http": ([*HTTP, *CERTIFICATE], "is presented over https only"),
    "skipping-what-http-has-not": ([*HTTP, *SKIP], "is about https, and --prometheus-url is not"),
    "an-authority-for-nothing": (
        [*HTTPS, *SKIP, "--prometheus-ca-file", "c"],
        "--prometheus-ca-file and --prometheus-insecure-skip-verify: give one of them",
    ),
    "a-region-that-is-none": (
        [*HTTPS, "--prometheus-sigv4-region", "https://aps"],
        "is not a region such as eu-central-1",
    ),
    "too-parallel": ([*HTTP, "--prometheus-parallel", "5"], "must be a number from 1 to 4"),
    "not-parallel": ([*HTTP, "--prometheus-parallel", "two"], "must be a number from 1 to 4"),
    "none-parallel": ([*HTTP, "--prometheus-parallel", "0"], "must be a number from 1 to 4"),
    "a-token-for-nobody": (["--prometheus-token-file", "t"], "sent to one that you name only"),
    "a-password-for-nobody": (USER, "sent to one that you name only"),
    "a-signature-for-nobody": (REGION, "sent to one that you name only"),
    "a-certificate-for-nobody": (CERTIFICATE, "sent to one that you name only"),
    "a-secret-header-for-nobody": (
        ["--prometheus-header", f"X-Scope-OrgID=@{__file__}.gone"],
        "sent to one that you name only",
    ),
}


@pytest.mark.parametrize(("flags", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_flags_that_cannot_be_meant_together(flags: list[str], words: str) -> None:
    """Refused before anything is read or asked, in words without any secret."""
    with pytest.raises(UsageError) as caught:
        prometheus_settings(parser().parse_args(["plan", *flags]))
    assert words in str(caught.value)
    assert caught.value.exit_code == 2
    assert "p4ssw0rd" not in str(caught.value)


def test_all_problems_are_told_at_once() -> None:
    """Each on a line of its own."""
    flags = [*HTTP, *SKIP, *REGION, "--prometheus-user", "u", "--prometheus-timeout", "soon"]
    with pytest.raises(UsageError) as caught:
        prometheus_settings(
            parser().parse_args(["plan", *flags, "--prometheus-header", "X-Api-Key: p4ssw0rd"])
        )
    first, *lines = str(caught.value).splitlines()
    assert first == "5 problems with the flags about Prometheus:"
    assert [line.split(":")[0].strip() for line in lines] == [
        "--prometheus-header X-Api-Key",
        "--prometheus-timeout",
        "--prometheus-user and --prometheus-sigv4-region",
        "--prometheus-user",
        "--prometheus-insecure-skip-verify",
    ]
    assert "p4ssw0rd" not in str(caught.value)


def test_every_flag_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command line and from the environment."""
    monkeypatch.setenv("GPU_RIGHTSIZER_PROMETHEUS_INSECURE_SKIP_VERIFY", "true")
    monkeypatch.setenv("GPU_RIGHTSIZER_PROMETHEUS_USER", "u")
    monkeypatch.setenv("GPU_RIGHTSIZER_PROMETHEUS_PASSWORD_FILE", "f")
    flags = [*HTTPS, *CERTIFICATE, "--prometheus-parallel", "3", "--prometheus-label", "cluster=prod"]
    assert prometheus_settings(parser().parse_args(["plan", *flags])) == PrometheusSettings(
        "https://h",
        user="u",
        password_file=pathlib.Path("f"),
        client_cert_file=pathlib.Path("c"),
        client_key_file=pathlib.Path("k"),
        skip_verify=True,
        labels={"cluster": "prod"},
        parallel=3,
    )
    monkeypatch.setenv("GPU_RIGHTSIZER_PROMETHEUS_INSECURE_SKIP_VERIFY", "perhaps")
    with pytest.raises(UsageError, match="its variable must be true or false"):
        prometheus_settings(parser().parse_args(["plan", *flags]))


def test_a_region_is_read() -> None:
    """It stands in the settings."""
    settings = prometheus_settings(parser().parse_args(["plan", *HTTPS, *REGION]))
    assert settings.sigv4_region == "eu-central-1"
