"""Lists: selectors, pages, what becomes of a page's token, and tables."""

from typing import Any

import pytest

from simulator.kube import ApiServer
from simulator.kube.tables import duration
from tests.simulator.kube.manifests import configmap, job, names, node, pod, workload
from tests.simulator.kube.wire import Clock, Http, Official

MAPS = "/api/v1/namespaces/default/configmaps"
KUBECTL = {
    "Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,"
    "application/json"
}


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


def _shown(table: dict[str, Any]) -> list[dict[str, object]]:
    titles = [column["name"] for column in table["columnDefinitions"]]
    return [dict(zip(titles, row["cells"], strict=True)) for row in table["rows"]]


@pytest.mark.usefixtures("nodes")
def test_list_as_table_has_the_columns_that_kubectl_prints(
    server: ApiServer, http: Http, clock: Clock
) -> None:
    """Of the kinds that people look at; with the page's token, and metadata for kubectl's own columns."""
    server.create(workload("Deployment", replicas=2))
    server.create(job())
    server.create(pod("waits", nodeSelector={"no": "where"}))
    server.settle()
    clock.forward(200)
    pods = http("GET", "/api/v1/pods", headers=KUBECTL, params={"limit": 3}).json()
    assert pods["kind"] == "Table"
    assert pods["metadata"]["continue"]
    assert pods["rows"][0]["object"]["metadata"]["namespace"] == "default"
    for row in _shown(pods):
        assert [row[title] for title in ("Ready", "Status", "Restarts", "Age")] == [
            "1/1",
            "Running",
            0,
            "3m20s",
        ]
        assert str(row["Node"]).startswith("node-")
    [waits] = _shown(http("GET", "/api/v1/namespaces/default/pods/waits", headers=KUBECTL).json())
    assert (waits["Ready"], waits["Status"], waits["Node"]) == ("0/1", "Pending", "<none>")
    [deployment] = _shown(http("GET", "/apis/apps/v1/deployments", headers=KUBECTL).json())
    assert deployment == {"Name": "w", "Ready": "2/2", "Up-to-date": 2, "Available": 2, "Age": "3m20s"}
    [running] = _shown(http("GET", "/apis/batch/v1/jobs", headers=KUBECTL).json())
    assert (running["Status"], running["Completions"], running["Duration"]) == ("Running", "0/1", "3m20s")


def test_list_as_table_tells_of_a_cordoned_node(server: ApiServer, http: Http) -> None:
    """Whether it is ready, and whether pods may come."""
    server.create({**node("a"), "spec": {"unschedulable": True}})
    server.settle()
    [found] = _shown(http("GET", "/api/v1/nodes", headers=KUBECTL).json())
    assert (found["Name"], found["Status"], found["Roles"]) == ("a", "Ready,SchedulingDisabled", "<none>")


def test_list_of_other_kinds_stays_a_list_for_kubectl(http: Http) -> None:
    """It prints name and age of these by itself."""
    reply = http("GET", "/api/v1/resourcequotas", headers=KUBECTL).json()
    assert reply["kind"] == "ResourceQuotaList"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-1, "0s"),
        (119, "119s"),
        (120, "2m"),
        (192, "3m12s"),
        (600, "10m"),
        (10799, "179m"),
        (10800, "3h"),
        (25500, "7h5m"),
        (172799, "47h"),
        (187200, "2d4h"),
        (30 * 86400, "30d"),
        (800 * 86400, "2y70d"),
        (9 * 365 * 86400, "9y"),
    ],
)
def test_duration_in_a_table_is_as_kubectl_writes_it(seconds: float, words: str) -> None:
    """The unit changes where one of the next has become enough."""
    assert duration(seconds) == words
