"""Lists: selectors, pages, and what becomes of a page's token."""

import pytest

from simulator.kube import ApiServer
from tests.simulator.kube.manifests import configmap, names, pod
from tests.simulator.kube.wire import Http, Official

MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
def maps(server: ApiServer) -> list[str]:
    """Ten ConfigMaps, labelled by parity."""
    for index in range(10):
        server.create(configmap(f"m{index}", labels={"parity": str(index % 2)} if index else {}))
    return [f"m{index}" for index in range(10)]


@pytest.mark.parametrize(
    "query",
    [{"labelSelector": "a in b"}, {"fieldSelector": "spec.none=1"}, {"limit": "x"}, {"continue": "?"}],
)
def test_list_with_bad_parameters_is_400(http: Http, query: dict[str, str]) -> None:
    """A selector, limit or token that cannot be read is 400."""
    reply = http("GET", MAPS, params=query)
    assert (reply.status_code, reply.json()["reason"]) == (400, "BadRequest")


@pytest.mark.usefixtures("nodes")
def test_list_of_pods_by_field_selector_is_filtered(server: ApiServer, core: Official) -> None:
    """Pods are selected by node, phase and name."""
    server.create(pod("a"))
    server.create(pod("b", nodeSelector={"no": "where"}))
    server.settle()
    bound = core.list_pod_for_all_namespaces(field_selector="spec.nodeName!=").items
    running = core.list_pod_for_all_namespaces(
        field_selector="status.phase=Running,metadata.namespace=default"
    ).items
    assert [entry.metadata.name for entry in bound] == ["a"]
    assert [entry.metadata.name for entry in running] == ["a"]
    assert len(core.list_namespaced_pod("default", field_selector="metadata.name=b").items) == 1


def test_list_over_all_namespaces_is_in_key_order(server: ApiServer, http: Http) -> None:
    """The cluster-wide list has every namespace's objects in key order, and no kind in its items."""
    server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}})
    server.create(configmap("z", namespace="a"))
    server.create(configmap("b"))
    reply = http("GET", "/api/v1/configmaps").json()
    assert names(reply["items"]) == ["z", "b"]
    assert reply["kind"] == "ConfigMapList"
    assert "kind" not in reply["items"][0]


def test_list_pages_end_with_their_namespace(server: ApiServer, http: Http, maps: list[str]) -> None:
    """The last page of a namespace carries no token although other namespaces follow."""
    server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "z"}})
    server.create(configmap("after", namespace="z"))
    page = http("GET", MAPS, params={"limit": 10}).json()
    assert names(page["items"]) == maps
    assert "continue" not in page["metadata"]


@pytest.mark.usefixtures("maps")
def test_list_with_expired_token_is_410(server: ApiServer, http: Http) -> None:
    """After compaction the next page is 410 Expired; a new list works."""
    token = http("GET", MAPS, params={"limit": 4}).json()["metadata"]["continue"]
    server.expire_history()
    reply = http("GET", MAPS, params={"limit": 4, "continue": token})
    assert (reply.status_code, reply.json()["reason"]) == (410, "Expired")
    assert len(http("GET", MAPS).json()["items"]) == 10


def test_list_at_future_version_is_504(http: Http) -> None:
    """A list at a resourceVersion that does not exist yet is 504 Timeout, as the watch cache answers."""
    reply = http("GET", MAPS, params={"resourceVersion": "999999"})
    assert (reply.status_code, reply.json()["reason"]) == (504, "Timeout")


def test_list_pages_of_many_objects_hold_each_once(server: ApiServer, core: Official) -> None:
    """Five thousand objects are created and paged through within the test's patience, each exactly once."""
    for index in range(5000):
        server.create(configmap(f"n{index:05}"))
    seen, token = [], None
    while token != "":
        page = core.list_namespaced_config_map("default", limit=500, _continue=token)
        seen += [entry.metadata.name for entry in page.items]
        token = getattr(page.metadata, "_continue") or ""  # noqa: B009 - the client's name for a public field
    assert seen == [f"n{index:05}" for index in range(5000)]
