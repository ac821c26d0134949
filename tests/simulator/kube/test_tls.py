"""The simulated API server over HTTPS: kubectl sends a token to no other server."""

import socket
import threading
import time

import pytest
import urllib3
from kubernetes import client, config, watch

from simulator.kube import ApiServer
from tests.simulator.kube.manifests import node


def test_tls_server_answers_clients_that_trust_its_authority() -> None:
    """By the kubeconfig that it gives; others refuse its certificate."""
    with ApiServer(tls=True) as server, config.new_client_from_config_dict(server.kubeconfig()) as api:
        server.create(node("a"))
        assert [item.metadata.name for item in client.CoreV1Api(api).list_node().items] == ["a"]  # type: ignore[union-attr]
        with urllib3.PoolManager(retries=False) as strangers, pytest.raises(urllib3.exceptions.SSLError):
            strangers.request("GET", f"{server.url}/version")


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
