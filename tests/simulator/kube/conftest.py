"""A server per test, and the ways in which clients reach it."""

from collections.abc import Iterator

import pytest
from kubernetes import client, config

from simulator.kube import ApiServer
from tests.simulator.kube.manifests import Object, node
from tests.simulator.kube.wire import Clock, Http, Official


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


@pytest.fixture
def server(clock: Clock) -> Iterator[ApiServer]:
    """A running server."""
    with ApiServer(clock=clock, termination_delay_s=0.02) as running:
        yield running


@pytest.fixture
def http(server: ApiServer) -> Iterator[Http]:
    """Plain HTTP to it, as the administrator."""
    speaker = Http(server.url)
    yield speaker
    speaker.session.close()


@pytest.fixture
def api(server: ApiServer) -> Iterator[client.ApiClient]:
    """The official client."""
    connected = config.new_client_from_config_dict(server.kubeconfig())
    yield connected
    connected.close()


@pytest.fixture
def core(api: client.ApiClient) -> Official:
    """Its core/v1 API."""
    return client.CoreV1Api(api)


@pytest.fixture
def apps(api: client.ApiClient) -> Official:
    """Its apps/v1 API."""
    return client.AppsV1Api(api)


@pytest.fixture
def batch(api: client.ApiClient) -> Official:
    """Its batch/v1 API."""
    return client.BatchV1Api(api)


@pytest.fixture
def nodes(server: ApiServer) -> list[Object]:
    """Two nodes with eight GPUs each."""
    return [server.create(node(f"node-{index}")) for index in range(2)]
