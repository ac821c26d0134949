"""What the wire log makes of dry runs; what they do is in tests/controlplane/contract."""

import pytest

from simulator.kube import ApiServer
from tests.simulator.kube.manifests import Object, pod, workload
from tests.simulator.kube.wire import Http

POD = "/api/v1/namespaces/default/pods/p"


@pytest.fixture(autouse=True)
def objects(server: ApiServer, nodes: list[Object]) -> None:
    """A Deployment and a running pod."""
    assert nodes
    server.create(workload("Deployment", replicas=1))
    server.create(pod())
    server.settle()


def test_dry_run_in_delete_options_is_logged_as_dry_run(server: ApiServer, http: Http) -> None:
    """DELETE and eviction take dryRun in their bodies; the wire log sees both as dry runs."""
    server.requests.clear()
    http("DELETE", POD, {"dryRun": ["All"]})
    http("POST", f"{POD}/eviction", {"metadata": {"name": "p"}, "deleteOptions": {"dryRun": ["All"]}})
    assert server.requests.mutating() == []
    assert len(server.requests.mutating(include_dry_run=True)) == 2
    stored = server.get("Pod", "default", "p")
    assert stored is not None
    assert "deletionTimestamp" not in stored["metadata"]


def test_delete_body_without_dry_run_overrides_query(server: ApiServer, http: Http) -> None:
    """What its body says stands for the query, and the wire log knows that."""
    server.requests.clear()
    http("DELETE", POD, {}, params={"dryRun": "All"})
    assert len(server.requests.mutating()) == 1
