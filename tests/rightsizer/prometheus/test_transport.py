"""Connections to Prometheus: basic authentication, TLS, and client certificates."""

import base64
import datetime
import logging
import pathlib
import ssl
from collections.abc import Iterator

import pytest
import trustme

from rightsizer.config import PrometheusSettings
from rightsizer.errors import ConfigurationError, PrometheusError
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


def test_query_basic_authentication_is_sent_and_never_shown(
    fake: Fake, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As RFC 7617 says. The password is read for each request."""
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


def test_query_password_file_missing_raises(fake: Fake, tmp_path: pathlib.Path) -> None:
    """The error names the flag and the file, and nothing is sent."""
    settings = PrometheusSettings(fake.url, user="u", password_file=tmp_path / "gone", timeout_s=30.0)
    with pytest.raises(ConfigurationError, match=r"--prometheus-password-file .*gone: No such file"):
        Prometheus(settings).query("x", AT)
    assert fake.asked == []


def test_query_client_certificate_is_presented(mutual: Fake, files: Files) -> None:
    """A server that requires one responds."""
    samples = Prometheus(files.settings(mutual.url)).query("x", AT)
    assert [sample.value for sample in samples] == [1.5]


@pytest.mark.parametrize("whose", ["none", "of-another-ca"])
def test_query_client_certificate_refused_raises(mutual: Fake, files: Files, whose: str) -> None:
    """The error names the flag; the server receives no request."""
    settings = files.settings(mutual.url)
    if whose == "none":
        settings = PrometheusSettings(mutual.url, ca_file=files.ca, timeout_s=30.0)
    else:
        files.identity(OTHER_CA.issue_cert("gpu-rightsizer"))
    with pytest.raises(PrometheusError, match=r"TLS failed: .*-client-cert-file"):
        Prometheus(settings).query("x", AT)
    assert mutual.asked == []


def test_query_client_certificate_renewed_is_presented(mutual: Fake, files: Files) -> None:
    """The files are read again for each connection."""
    prometheus = Prometheus(files.settings(mutual.url))
    files.identity(OTHER_CA.issue_cert("gpu-rightsizer"))
    with pytest.raises(PrometheusError, match="TLS failed"):
        prometheus.query("x", AT)
    files.identity(CLIENT)
    assert len(prometheus.query("x", AT)) == 1


@pytest.mark.parametrize("what", ["another-key", "no-pem", "a-passphrase", "no-file", "no-authority"])
def test_client_unusable_certificate_raises(files: Files, what: str) -> None:
    """Before any request; the error names the flag and the file, and no passphrase is asked for."""
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
                '--prometheus-ca-file ".*ca.pem": no such file; --prometheus-client-cert-file .*no such file'
            )
        case _:
            files.ca.write_text("s3cret")
            words = '--prometheus-ca-file ".*ca.pem": holds no certificates'
    with pytest.raises(ConfigurationError, match=words) as caught:
        Prometheus(files.settings("https://127.0.0.1:1"))
    assert "s3cret" not in str(caught.value)


def test_query_insecure_skip_verify_accepts_any_certificate(caplog: pytest.LogCaptureFixture) -> None:
    """Without the flag the certificate is refused; with it a warning is logged."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    OTHER_CA.issue_cert("elsewhere").configure_cert(context)
    with serving(context) as server:
        server.answers.append(Answer())
        with pytest.raises(PrometheusError, match="TLS failed"):
            Prometheus(PrometheusSettings(server.url, timeout_s=30.0)).query("x", AT)
        prometheus = Prometheus(PrometheusSettings(server.url, skip_verify=True, timeout_s=30.0))
        assert len(prometheus.query("x", AT)) == 1
    assert "anyone between gpu-rightsizer and Prometheus can forge metrics" in caplog.text
