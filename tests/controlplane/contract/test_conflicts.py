"""Preconditions: who writes on what he has read, and who comes too late."""

import pytest

from tests.controlplane.contract.objects import config_map
from tests.controlplane.contract.server import Api


@pytest.fixture
def config(api: Api) -> str:
    """The path of a ConfigMap."""
    api.create(f"{api.core}/configmaps", config_map(data={"x": "1"}))
    return f"{api.core}/configmaps/c"


@pytest.mark.parametrize("kind", ["merge-patch", "strategic-merge-patch"])
def test_patch_with_stale_version_is_409(api: Api, config: str, kind: str) -> None:
    """Stale is 409 Conflict and no effect, current is 200: this is the rightsizer's precondition."""
    stale = api.get(config)["metadata"]["resourceVersion"]
    current = api.patch(config, {"data": {"x": "2"}}).json()["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": stale}, "data": {"x": "3"}}
    refused = api.patch(config, patch, kind)
    assert (refused.status_code, refused.json()["reason"]) == (409, "Conflict")
    assert (
        "the object has been modified; please apply your changes to the latest version"
        in refused.json()["message"]
    )
    assert refused.json()["details"] == {"name": "c", "kind": "configmaps"}
    assert api.get(config)["data"] == {"x": "2"}
    patch["metadata"]["resourceVersion"] = current
    assert api.patch(config, patch, kind).status_code == 200


def test_patch_of_recreated_object_is_409(api: Api, config: str) -> None:
    """With the UID and the version that were read, the patch does not reach the new object; its own pass."""
    old = api.get(config)["metadata"]
    assert api("DELETE", config).status_code == 200
    new = api.create(f"{api.core}/configmaps", config_map(data={"x": "new"}))["metadata"]
    for read, status in ((old, 409), (new, 200)):
        metadata = {"uid": read["uid"], "resourceVersion": read["resourceVersion"]}
        assert api.patch(config, {"metadata": metadata, "data": {"x": "ours"}}).status_code == status
    assert api.get(config)["data"] == {"x": "ours"}


def test_json_patch_with_failing_version_test_is_422(api: Api, config: str) -> None:
    """A failing `test` of the version is 422, and nothing happens."""
    operations = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": "1"},
        {"op": "replace", "path": "/data/x", "value": "9"},
    ]
    assert api.patch(config, operations, "json-patch").status_code == 422
    assert api.get(config)["data"] == {"x": "1"}


def test_update_with_stale_version_is_409(api: Api, config: str) -> None:
    """PUT with the version that was read; the second of two writers loses."""
    read = api.get(config)
    assert api("PUT", config, {**read, "data": {"x": "2"}}).status_code == 200
    late = api("PUT", config, {**read, "data": {"x": "3"}})
    assert (late.status_code, late.json()["reason"]) == (409, "Conflict")
    assert api.get(config)["data"] == {"x": "2"}


def test_update_with_uid_of_deleted_object_is_409(api: Api, config: str) -> None:
    """PUT with the UID of an object that has been deleted and made anew."""
    read = api.get(config)
    body = {"metadata": {"name": "c", "uid": "00000000-0000-0000-0000-000000000000"}, "data": read["data"]}
    reply = api("PUT", config, body)
    assert (reply.status_code, reply.json()["reason"]) == (409, "Conflict")
    assert "Precondition failed: UID in precondition" in reply.json()["message"]


def test_update_with_invalid_version_is_500(api: Api, config: str) -> None:
    """Versions are opaque to clients, but not anything at all; the server calls it an error of its own."""
    reply = api.patch(config, {"metadata": {"resourceVersion": "x"}, "data": {"x": "2"}})
    assert reply.status_code == 500
    assert "reason" not in reply.json()
    assert api.get(config)["data"] == {"x": "1"}


@pytest.mark.parametrize("field", ["uid", "resourceVersion"])
def test_delete_with_failed_precondition_is_409(api: Api, config: str, field: str) -> None:
    """A precondition that does not hold is 409, and the object stays; one that holds deletes."""
    current = api.get(config)["metadata"][field]
    refused = api("DELETE", config, {"preconditions": {field: f"{current}0"}})
    assert (refused.status_code, refused.json()["reason"]) == (409, "Conflict")
    assert "precondition" in refused.json()["message"].lower()
    assert api("DELETE", config, {"preconditions": {field: current}}).status_code == 200
    assert api("GET", config).status_code == 404


def test_create_of_existing_object_is_409(api: Api, config: str) -> None:
    """409 AlreadyExists, which is not the Conflict of a stale version."""
    assert api.get(config)
    reply = api("POST", f"{api.core}/configmaps", config_map())
    assert (reply.status_code, reply.json()["reason"]) == (409, "AlreadyExists")
    assert reply.json()["message"] == 'configmaps "c" already exists'


def test_create_with_version_is_refused(api: Api) -> None:
    """Who creates with a resourceVersion has mistaken create for update."""
    body = {"metadata": {"name": "d", "resourceVersion": "1"}}
    reply = api("POST", f"{api.core}/configmaps", body)
    assert reply.status_code == 500
    assert "resourceVersion should not be set on objects to be created" in reply.json()["message"]
