"""Reading a server's objects in tests of the controllers."""

from simulator.kube import ApiServer
from tests.simulator.kube.manifests import Object

OTHER_IMAGE = {"name": "main", "image": "app:2"}


def get(server: ApiServer, kind: str, name: str = "w") -> Object:
    """An object of "default"."""
    stored = server.get(kind, "default", name)
    assert stored is not None, f"{kind} {name} is missing"
    return stored


def pods(server: ApiServer) -> list[Object]:
    """All pods, once nothing moves."""
    server.settle()
    return server.list("Pod")
