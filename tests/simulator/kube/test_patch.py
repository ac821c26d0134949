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


def test_merge_patch_replaces_lists_and_deletes_by_null(http: Http) -> None:
    """Objects merge, null removes, lists are replaced whole."""
    http.patch(MAP, {"metadata": {"annotations": {"a": None, "c": "3"}}, "data": {"y": "2"}})
    stored = http("GET", MAP).json()
    assert stored["metadata"]["annotations"] == {"b": "2", "c": "3"}
    assert stored["data"] == {"x": "1", "y": "2"}
    containers = [{"name": "other", "image": "other:1"}]
    reply = http.patch(PATH, {"spec": {"template": {"spec": {"containers": containers}}}})
    assert [entry["name"] for entry in reply.json()["spec"]["template"]["spec"]["containers"]] == ["other"]


def test_strategic_merge_patch_merges_lists_by_their_keys(http: Http) -> None:
    """Containers merge by name and env by name; tolerations, which have no key, are replaced."""
    first = {
        "containers": [{"name": "main", "env": [{"name": "A", "value": "1"}]}],
        "tolerations": [{"key": "x"}],
    }
    second = {
        "containers": [
            {"name": "main", "env": [{"name": "B", "value": "2"}]},
            {"name": "side", "image": "s:1"},
        ]
    }
    http.patch(PATH, {"spec": {"template": {"spec": first}}}, STRATEGIC)
    http.patch(PATH, {"spec": {"template": {"spec": {**second, "tolerations": [{"key": "y"}]}}}}, STRATEGIC)
    spec = http("GET", PATH).json()["spec"]["template"]["spec"]
    assert [entry["name"] for entry in spec["containers"]] == ["main", "side"]
    assert [entry["name"] for entry in spec["containers"][0]["env"]] == ["A", "B"]
    assert spec["containers"][0]["image"] == "app:1"
    assert spec["tolerations"] == [{"key": "y"}]


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        pytest.param(
            [{"name": "side", "image": "s:1"}, {"$patch": "delete", "name": "main"}], ["side"], id="delete"
        ),
        pytest.param([{"$patch": "replace"}, {"name": "only", "image": "o:1"}], ["only"], id="replace"),
    ],
)
def test_strategic_directives(http: Http, containers: list[Object], expected: list[str]) -> None:
    """`$patch: delete` removes an entry of a list; `$patch: replace` replaces the list."""
    reply = http.patch(PATH, {"spec": {"template": {"spec": {"containers": containers}}}}, STRATEGIC)
    assert [entry["name"] for entry in reply.json()["spec"]["template"]["spec"]["containers"]] == expected


def test_strategic_replace_of_an_object(http: Http) -> None:
    """`$patch: replace` in an object drops what the patch does not name."""
    http.patch(MAP, {"metadata": {"annotations": {"$patch": "replace", "z": "9"}}}, STRATEGIC)
    assert http("GET", MAP).json()["metadata"]["annotations"] == {"z": "9"}


def test_retained_keys_drop_the_others(http: Http) -> None:
    """`$retainKeys` lets a strategy change its type without leftovers of the old one."""
    patch = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    assert http.patch(PATH, patch, STRATEGIC).json()["spec"]["strategy"] == {"type": "Recreate"}


def test_json_patch_applies_its_operations_in_order(http: Http) -> None:
    """Add, replace, move, copy, test and remove do what RFC 6902 says, with escaped keys."""
    operations = [
        {"op": "test", "path": "/data/x", "value": "1"},
        {"op": "add", "path": "/metadata/annotations/example.com~1k", "value": "v"},
        {"op": "copy", "from": "/data/x", "path": "/data/y"},
        {"op": "replace", "path": "/data/x", "value": "2"},
        {"op": "move", "from": "/data/y", "path": "/data/z"},
        {"op": "remove", "path": "/metadata/annotations/a"},
    ]
    stored = http.patch(MAP, operations, JSON).json()
    assert stored["data"] == {"x": "2", "z": "1"}
    assert stored["metadata"]["annotations"] == {"b": "2", "example.com/k": "v"}


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param({"op": "test", "path": "/data/x", "value": "9"}, id="test-fails"),
        pytest.param({"op": "remove", "path": "/data/none"}, id="nothing-to-remove"),
        pytest.param({"op": "frob", "path": "/data/x"}, id="unknown-operation"),
    ],
)
def test_a_json_patch_that_does_not_apply_changes_nothing(http: Http, operation: Object) -> None:
    """One failing operation is 422, and the ones before it are undone."""
    before = http("GET", MAP).json()
    reply = http.patch(MAP, [{"op": "replace", "path": "/data/x", "value": "2"}, operation], JSON)
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert http("GET", MAP).json() == before


@pytest.mark.parametrize("kind", [MERGE, STRATEGIC])
def test_a_patch_with_a_stale_resource_version_conflicts(http: Http, kind: str) -> None:
    """A patch may carry metadata.resourceVersion as a precondition: stale is 409, current is 200."""
    stale = http("GET", MAP).json()["metadata"]["resourceVersion"]
    current = http.patch(MAP, {"data": {"x": "2"}}).json()["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": stale}, "data": {"x": "3"}}
    assert http.patch(MAP, patch, kind).json()["reason"] == "Conflict"
    patch["metadata"]["resourceVersion"] = current
    assert http.patch(MAP, patch, kind).status_code == 200


@pytest.mark.parametrize(("kind", "body"), [(MERGE, []), (STRATEGIC, "x"), (JSON, {"op": "add"})])
def test_a_patch_of_the_wrong_form_is_a_bad_request(http: Http, kind: str, body: object) -> None:
    """A patch that is not of its type's form is 400."""
    assert http.patch(MAP, body, kind).status_code == 400


@pytest.mark.parametrize("kind", ["application/apply-patch+yaml", "application/json", "text/plain"])
def test_other_patch_types_are_not_served(http: Http, kind: str) -> None:
    """Server-side apply and unknown types get 415 and a list of what is served."""
    reply = http("PATCH", MAP, {}, headers={"Content-Type": kind})
    assert (reply.status_code, reply.json()["reason"]) == (415, "UnsupportedMediaType")
    assert "application/merge-patch+json" in reply.json()["message"]
