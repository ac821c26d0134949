"""The nodes' client gets into a real API server: TLS, client certificates, tokens from files."""

import base64
import http.server
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator.kubeclient import Endpoint, KubeClient

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a self-signed certificate, which is server, client and authority in one."""
    directory = tmp_path_factory.mktemp("keys")
    subprocess.run(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost "
        "-addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem",
        shell=True,
        cwd=directory,
        check=True,
        capture_output=True,
    )
    return directory


@pytest.fixture(scope="module")
def secure_url(keys: Path) -> Iterator[str]:
    """An HTTPS server that asks for a client certificate and answers with the request's Authorization."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f'{{"authorization": "{self.headers.get("Authorization", "")}"}}'.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(keys / "cert.pem"))
    context.load_cert_chain(keys / "cert.pem", keys / "key.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def _kubeconfig(directory: Path, server: str, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    path = directory / "kubeconfig"
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "files"])
def test_client_with_certificate_is_authenticated(keys: Path, secure_url: str, *, inline: bool) -> None:
    """Authority and client certificate work from files beside the kubeconfig and from within it."""
    names = {"client-certificate": "cert.pem", "client-key": "key.pem"}
    authority: dict[str, Any] = {"certificate-authority": "cert.pem"}
    user: dict[str, Any] = dict(names)
    if inline:
        data = {name: base64.b64encode((keys / file).read_bytes()).decode() for name, file in names.items()}
        authority = {"certificate-authority-data": data["client-certificate"]}
        user = {f"{name}-data": value for name, value in data.items()}
    (keys / "token").write_text("secret\n")
    path = _kubeconfig(keys, secure_url, authority, user | {"tokenFile": "token"})
    client = KubeClient(Endpoint.from_kubeconfig(path))
    assert client.get("/api") == {"authorization": "Bearer secret"}


def test_client_with_unknown_authority_refuses_connection(tmp_path: Path, secure_url: str) -> None:
    """Without the server's authority the connection is refused, not made anyway."""
    client = KubeClient(Endpoint.from_kubeconfig(_kubeconfig(tmp_path, secure_url, {}, {"token": "secret"})))
    with pytest.raises(ssl.SSLCertVerificationError):
        client.get("/api")
