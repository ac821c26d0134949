"""Both API servers, one after the other, for each test: what holds for the real one must hold for the simulated one."""

from collections.abc import Iterator

import pytest

from simulator.controlplane.plane import ControlPlane
from simulator.kube import ApiServer
from tests.controlplane.contract.server import POOL, Api, Object, Real, Server, Simulated
from tests.simulator.kube.manifests import node

_NODES = ("contract-0", "contract-1")


@pytest.fixture(
    scope="session",
    params=[
        "simulated",
        pytest.param("real", marks=[pytest.mark.controlplane, pytest.mark.xdist_group("controlplane")]),
    ],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An API server with two nodes of eight GPUs; one per session."""
    if request.param == "simulated":
        with ApiServer(termination_delay_s=0.05) as running:
            yield _with_nodes(Simulated(running))
    else:
        plane: ControlPlane = request.getfixturevalue("plane")
        yield _with_nodes(Real(plane.kubeconfig, tmp_path_factory.mktemp("credentials")))


def _with_nodes(server: Server) -> Server:
    with server.session() as session:
        for name in _NODES:
            body: Object = node(name, labels=POOL)
            session.post(f"{server.url}/api/v1/nodes", json=body, timeout=60).raise_for_status()
    return server


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    """HTTP to it, in a fresh namespace, which is removed in the end."""
    speaker = Api(server)
    yield speaker
    speaker("DELETE", f"/api/v1/namespaces/{speaker.namespace}")
    speaker.session.close()


@pytest.fixture
def strict_api(server: Server, api: Api) -> Api:
    """The real one: the simulated one does not refuse what only administrators write, and no test does."""
    if isinstance(server, Simulated):
        pytest.skip("the simulated API server does not check these objects")
    return api
