"""Patches of each type."""

import pytest

from tests.controlplane.contract.objects import config_map, replicated
from tests.controlplane.contract.server import Api, Object

MERGE, STRATEGIC, JSON = "merge-patch", "strategic-merge-patch", "json-patch"


@pytest.fixture
def deployment(api: Api) -> str:
    """The path of a Deployment of one container with two environment variables."""
    container = {
        "name": "main",
        "image": "app:1",
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
    }
    body = replicated(pod={"containers": [container], "nodeSelector": {"nowhere": "yes"}})
    api.create(f"{api.apps}/deployments", body)
    return f"{api.apps}/deployments/w"


@pytest.fixture
def config(api: Api) -> str:
    """The path of a ConfigMap with two annotations."""
    body = {"metadata": {"name": "c", "annotations": {"a": "1", "b": "2"}}, "data": {"x": "1"}}
    api.create(f"{api.core}/configmaps", body)
    return f"{api.core}/configmaps/c"


@pytest.mark.parametrize("kind", [MERGE, STRATEGIC])
def test_merge_patch_with_null_removes_annotation(api: Api, config: str, kind: str) -> None:
    """This is how an undo record is taken away."""
    reply = api.patch(config, {"metadata": {"annotations": {"a": None}}}, kind)
    assert (reply.status_code, reply.json()["metadata"]["annotations"]) == (200, {"b": "2"})


def test_merge_patch_of_list_replaces_it(api: Api, deployment: str) -> None:
    """Who names one container in a merge patch says that there is only this one."""
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "other", "image": "x:1"}]}}}}
    reply = api.patch(deployment, patch, MERGE)
    containers = reply.json()["spec"]["template"]["spec"]["containers"]
    assert [(entry["name"], entry["image"]) for entry in containers] == [("other", "x:1")]


def test_strategic_patch_of_list_merges_by_key(api: Api, deployment: str) -> None:
    """A container is found by its name, a variable by its own; others stay, new ones come first."""
    container = {"name": "main", "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]}
    patch = {"spec": {"template": {"spec": {"containers": [container]}}}}
    reply = api.patch(deployment, patch, STRATEGIC)
    (found,) = reply.json()["spec"]["template"]["spec"]["containers"]
    assert found["image"] == "app:1"
    assert {entry["name"]: entry["value"] for entry in found["env"]} == {"A": "1", "B": "3", "C": "4"}


def test_strategic_patch_with_delete_directive_removes_entry(api: Api, deployment: str) -> None:
    """`$patch: delete` removes the element of that key."""
    container = {"name": "main", "env": [{"name": "A", "$patch": "delete"}]}
    patch = {"spec": {"template": {"spec": {"containers": [container]}}}}
    (found,) = api.patch(deployment, patch, STRATEGIC).json()["spec"]["template"]["spec"]["containers"]
    assert found["env"] == [{"name": "B", "value": "2"}]


def test_json_patch_operations_apply_in_order(api: Api, config: str) -> None:
    """Test, replace, add with an escaped key, copy, move, remove."""
    operations = [
        {"op": "test", "path": "/data/x", "value": "1"},
        {"op": "add", "path": "/metadata/annotations/example.com~1k", "value": "v"},
        {"op": "copy", "from": "/data/x", "path": "/data/y"},
        {"op": "replace", "path": "/data/x", "value": "2"},
        {"op": "move", "from": "/data/y", "path": "/data/z"},
        {"op": "remove", "path": "/metadata/annotations/a"},
    ]
    stored = api.patch(config, operations, JSON).json()
    assert stored["data"] == {"x": "2", "z": "1"}
    assert stored["metadata"]["annotations"] == {"b": "2", "example.com/k": "v"}


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param({"op": "test", "path": "/data/x", "value": "9"}, id="test-fails"),
        pytest.param({"op": "remove", "path": "/data/none"}, id="nothing-to-remove"),
        pytest.param({"op": "add", "path": "/nowhere/x", "value": "1"}, id="nowhere-to-add"),
    ],
)
def test_json_patch_with_failing_operation_changes_nothing(api: Api, config: str, operation: Object) -> None:
    """One failing operation is 422 Invalid, and the ones before it are not stored."""
    before = api.get(config)
    reply = api.patch(config, [{"op": "replace", "path": "/data/x", "value": "2"}, operation], JSON)
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert api.get(config) == before


@pytest.mark.parametrize(
    ("kind", "body"), [(MERGE, []), (MERGE, "x"), (STRATEGIC, "x"), (JSON, {"op": "add"}), (JSON, "x")]
)
def test_patch_of_wrong_form_is_400(api: Api, config: str, kind: str, body: object) -> None:
    """A patch that is not of its type's form is 400, and changes nothing."""
    before = api.get(config)
    reply = api.patch(config, body, kind)
    assert (reply.status_code, reply.json()["reason"]) == (400, "BadRequest")
    assert api.get(config) == before


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "application/frob-patch+json"])
def test_patch_of_unknown_type_is_415(api: Api, config: str, content_type: str) -> None:
    """They are 415, whatever they hold."""
    reply = api("PATCH", config, {}, headers={"Content-Type": content_type})
    assert (reply.status_code, reply.json()["reason"]) == (415, "UnsupportedMediaType")


def test_json_patch_replace_of_missing_key_adds_it(api: Api, config: str) -> None:
    """RFC 6902 forbids it, the API server's library adds it: a `test` before it is what protects."""
    stored = api.patch(config, [{"op": "replace", "path": "/data/none", "value": "1"}], JSON)
    assert stored.json()["data"] == {"x": "1", "none": "1"}


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        (MERGE, {"spec": {"replica": 0}}),
        (STRATEGIC, {"spec": {"replica": 0}}),
        (JSON, [{"op": "add", "path": "/spec/replica", "value": 0}]),
    ],
)
def test_strict_patch_with_unknown_field_is_refused(
    api: Api, deployment: str, kind: str, patch: object
) -> None:
    """Under fieldValidation=Strict a misspelt field is an error that names it."""
    reply = api.patch(deployment, patch, kind, params={"fieldValidation": "Strict"})
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert 'unknown field "spec.replica"' in reply.json()["message"]


def test_patch_with_unknown_field_drops_it_and_warns(api: Api, deployment: str) -> None:
    """The default only warns, in a header, and the field is not stored."""
    reply = api.patch(deployment, {"spec": {"replica": 0}})
    assert reply.status_code == 200
    assert "replica" not in reply.json()["spec"]
    assert reply.headers["Warning"] == r'299 - "unknown field \"spec.replica\""'


def test_patch_with_wrong_type_is_answered_with_whole_object(api: Api, deployment: str) -> None:
    """Replicas are a number; the message repeats the object with all that stands in it, secrets too."""
    reply = api.patch(deployment, {"spec": {"replicas": "none"}})
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    echoed = reply.json()["message"].replace("\\", "").replace(" ", "")
    assert '"env":[{"name":"A","value":"1"},{"name":"B","value":"2"}]' in echoed
    assert api.get(deployment)["spec"]["replicas"] == 1


@pytest.mark.parametrize("kind", [MERGE, STRATEGIC])
def test_patch_of_object_ignores_status(api: Api, deployment: str, kind: str) -> None:
    """The status belongs to its own subresource; the rest of the patch holds."""
    reply = api.patch(deployment, {"status": {"replicas": 77}, "spec": {"paused": True}}, kind)
    assert reply.status_code == 200
    assert reply.json()["status"].get("replicas") != 77
    assert reply.json()["spec"]["paused"] is True


def test_patch_of_status_ignores_spec(api: Api, deployment: str) -> None:
    """And the other way round; annotations are the object's."""
    patch = {"spec": {"replicas": 9}, "status": {"observedGeneration": 1}, "metadata": {"labels": {"x": "y"}}}
    reply = api.patch(f"{deployment}/status", patch)
    assert reply.status_code == 200
    assert reply.json()["spec"]["replicas"] == 1


def test_spec_change_increments_generation(api: Api) -> None:
    """Generation is what tells a changed wish from a changed annotation."""
    path = f"{api.apps}/statefulsets"
    api.create(path, replicated(serviceName="w", replicas=0))
    before = api.get(f"{path}/w")["metadata"]["generation"]
    annotated = api.patch(f"{path}/w", {"metadata": {"annotations": {"x": "y"}}}).json()
    assert annotated["metadata"]["generation"] == before
    for _ in range(2):  # the second time nothing changes
        scaled = api.patch(f"{path}/w", {"spec": {"replicas": 1}}).json()
        assert scaled["metadata"]["generation"] == before + 1


def test_deployment_annotation_increments_generation(api: Api, deployment: str) -> None:
    """Its annotations go on to its ReplicaSets, so they are part of the wish."""
    version = api.get(deployment)["metadata"]["generation"]
    patch = {"metadata": {"annotations": {"x": "y"}}}
    assert api.patch(deployment, patch).json()["metadata"]["generation"] == version + 1


def test_no_op_patch_keeps_version(api: Api, config: str) -> None:
    """No write, no new resourceVersion, nothing for watchers."""
    before = api.get(config)["metadata"]["resourceVersion"]
    assert api.patch(config, {"data": {"x": "1"}}).json()["metadata"]["resourceVersion"] == before


def test_patch_of_name_or_uid_is_refused(api: Api, config: str) -> None:
    """Neither its name (400) nor its UID (422, in a patch)."""
    renamed = api.patch(config, {"metadata": {"name": "d"}})
    assert (renamed.status_code, renamed.json()["reason"]) == (400, "BadRequest")
    assert "the name of the object (d) does not match the name on the URL (c)" in renamed.json()["message"]
    other = api.patch(config, {"metadata": {"uid": "d"}})
    assert (other.status_code, other.json()["reason"]) == (422, "Invalid")
    assert 'metadata.uid: Invalid value: "d": field is immutable' in other.json()["message"]


def test_patch_of_missing_object_is_404(api: Api) -> None:
    """404; only apply creates."""
    maps = f"{api.core}/configmaps"
    assert api.patch(f"{maps}/none", {"data": {}}).status_code == 404
    assert api("GET", f"{maps}/none").status_code == 404


def test_patch_of_immutable_field_is_422(api: Api, deployment: str) -> None:
    """A Deployment's selector: 422 with the field among the causes."""
    patch = {
        "spec": {
            "selector": {"matchLabels": {"app": "other"}},
            "template": {"metadata": {"labels": {"app": "other"}}},
        }
    }
    reply = api.patch(deployment, patch)
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert {cause["field"] for cause in reply.json()["details"]["causes"]} == {"spec.selector"}
    assert "field is immutable" in reply.json()["message"]


def test_merge_patch_of_config_map_merges_keys(api: Api) -> None:
    """Keys are merged, not replaced."""
    api.create(f"{api.core}/configmaps", config_map("d", data={"x": "1", "y": "2"}))
    assert api.patch(f"{api.core}/configmaps/d", {"data": {"y": None, "z": "3"}}).json()["data"] == {
        "x": "1",
        "z": "3",
    }


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_strict_create_with_unknown_fields_is_400(api: Api, deployment: str, method: str) -> None:
    """400 with all of their paths."""
    body = replicated()
    body["spec"]["replica"] = 1
    body["spec"]["template"]["spec"]["containers"][0]["imagePullSecret"] = "x"
    path = f"{api.apps}/deployments" if method == "POST" else deployment
    reply = api(method, path, body, params={"fieldValidation": "Strict"})
    assert (reply.status_code, reply.json()["reason"]) == (400, "BadRequest")
    assert "strict decoding error" in reply.json()["message"]
    assert 'unknown field "spec.replica"' in reply.json()["message"]
    assert 'unknown field "spec.template.spec.containers[0].imagePullSecret"' in reply.json()["message"]
