"""The simulated API server over HTTPS: kubectl sends a token to no other server."""

import json
import pathlib
import shutil
import socket
import subprocess
import threading
import time

import pytest
import urllib3
from kubernetes import client, config, watch

from simulator.kube import ApiServer
from tests.simulator.kube.manifests import node, workload


def test_tls_server_answers_clients_that_trust_its_authority() -> None:
    """By the kubeconfig that it gives; others refuse its certificate."""
    with ApiServer(tls=True) as server, config.new_client_from_config_dict(server.kubeconfig()) as api:
        server.create(node("a"))
        assert [item.metadata.name for item in client.CoreV1Api(api).list_node().items] == ["a"]  # type: ignore[union-attr]
        with urllib3.PoolManager(retries=False) as strangers, pytest.raises(urllib3.exceptions.SSLError):
            strangers.request("GET", f"{server.url}/version")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kubectl_applies_and_the_server_validates_fields(tmp_path: pathlib.Path) -> None:
    """Without a schema on kubectl's side; a second time nothing changes."""
    web, kubeconfig = tmp_path / "web.yaml", tmp_path / "kubeconfig"

    def applied(*flags: str) -> subprocess.CompletedProcess[str]:
        command = ["kubectl", "--kubeconfig", str(kubeconfig), *(flags or ("apply", "-f", str(web)))]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    with ApiServer(tls=True) as server:
        kubeconfig.write_text(json.dumps(server.kubeconfig()))
        body = workload("Deployment", name="web", replicas=0)
        web.write_text(json.dumps(body))
        assert applied().stdout == "deployment.apps/web created\n"
        assert applied().stdout == "deployment.apps/web unchanged\n"
        body["spec"]["template"]["spec"]["containers"][0]["image"] = "other:1"
        web.write_text(json.dumps(body))
        assert applied().stdout == "deployment.apps/web configured\n"
        body["spec"]["template"]["spec"]["containers"][0]["nonsense"] = 1
        web.write_text(json.dumps(body))
        refused = applied().stderr
        assert 'unknown field "spec.template.spec.containers[0].nonsense"' in refused
        assert "$setElementOrder" not in refused.rpartition("strict decoding error")[2]
        assert "kubectl sends JSON for" in applied("create", "namespace", "new").stderr


def test_tls_server_survives_clients_that_speak_no_tls() -> None:
    """They delay nobody, and the next client is answered."""
    with ApiServer(tls=True) as server, config.new_client_from_config_dict(server.kubeconfig()) as api:
        host, port = server.url.removeprefix("https://").split(":")
        with (
            socket.create_connection((host, int(port))) as silent,
            socket.create_connection((host, int(port))) as plain,
        ):
            plain.sendall(b"GET /version HTTP/1.1\r\n\r\n")
            assert client.VersionApi(api).get_code().git_version
            silent.close()


def test_tls_watch_ends_when_its_client_hangs_up() -> None:
    """Each watch has a thread of the server, which ends within seconds."""
    with ApiServer(tls=True) as server, config.new_client_from_config_dict(server.kubeconfig()) as api:
        before = threading.active_count()
        stream = watch.Watch()
        server.create(node("a"))
        for event in stream.stream(client.CoreV1Api(api).list_node, timeout_seconds=60):
            assert event["object"].metadata.name == "a"
            stream.stop()
        api.rest_client.pool_manager.clear()
        deadline = time.monotonic() + 30
        while threading.active_count() > before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert threading.active_count() <= before
