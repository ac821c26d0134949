"""The three patch types, their refusals and their preconditions."""

import pytest

from simulator.kube import ApiServer
from tests.simulator.kube.manifests import Object, configmap, workload
from tests.simulator.kube.wire import Http

PATH = "/apis/apps/v1/namespaces/default/deployments/w"
MAP = "/api/v1/namespaces/default/configmaps/c"
JSON, MERGE, STRATEGIC = "json-patch", "merge-patch", "strategic-merge-patch"


@pytest.fixture(autouse=True)
def objects(server: ApiServer) -> None:
    """A Deployment that stays at zero, and a ConfigMap."""
    server.create(workload("Deployment", replicas=0))
    server.create({**configmap(annotations={"a": "1", "b": "2"}), "data": {"x": "1"}})
    server.settle()


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        pytest.param(
            [{"name": "side", "image": "s:1"}, {"$patch": "delete", "name": "main"}], ["side"], id="delete"
        ),
        pytest.param([{"$patch": "replace"}, {"name": "only", "image": "o:1"}], ["only"], id="replace"),
    ],
)
def test_strategic_patch_directives_delete_and_replace_entries(
    http: Http, containers: list[Object], expected: list[str]
) -> None:
    """`$patch: delete` removes an entry of a list; `$patch: replace` replaces the list."""
    reply = http.patch(PATH, {"spec": {"template": {"spec": {"containers": containers}}}}, STRATEGIC)
    assert [entry["name"] for entry in reply.json()["spec"]["template"]["spec"]["containers"]] == expected


def test_strategic_patch_replace_drops_other_fields(http: Http) -> None:
    """`$patch: replace` in an object drops what the patch does not name."""
    http.patch(MAP, {"metadata": {"annotations": {"$patch": "replace", "z": "9"}}}, STRATEGIC)
    assert http("GET", MAP).json()["metadata"]["annotations"] == {"z": "9"}


def test_strategic_patch_directives_of_kubectl_apply_order_retain_and_remove(http: Http) -> None:
    """As `kubectl apply` sends them beside what it changes."""
    containers = [{"name": "side", "image": "s:1"}]
    order = {"$setElementOrder/containers": [{"name": "side"}, {"name": "main"}], "containers": containers}
    strategy = {"$retainKeys": ["type"], "type": "Recreate"}
    spec = http.patch(PATH, {"spec": {"strategy": strategy, "template": {"spec": order}}}, STRATEGIC).json()[
        "spec"
    ]
    assert [entry["name"] for entry in spec["template"]["spec"]["containers"]] == ["side", "main"]
    assert spec["strategy"] == {"type": "Recreate"}
    http.patch(MAP, {"metadata": {"finalizers": ["a.example/x", "b.example/x"]}}, STRATEGIC)
    gone = {"$deleteFromPrimitiveList/finalizers": ["a.example/x"]}
    assert http.patch(MAP, {"metadata": gone}, STRATEGIC).json()["metadata"]["finalizers"] == ["b.example/x"]
