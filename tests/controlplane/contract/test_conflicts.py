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
def test_a_patch_with_a_stale_version_conflicts(api: Api, config: str, kind: str) -> None:
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


def test_a_patch_of_what_was_replaced_by_another_of_its_name_conflicts(api: Api, config: str) -> None:
    """With the UID and the version that were read, the patch does not reach the new object; its own pass."""
    old = api.get(config)["metadata"]
    assert api("DELETE", config).status_code == 200
    new = api.create(f"{api.core}/configmaps", config_map(data={"x": "new"}))["metadata"]
    for read, status in ((old, 409), (new, 200)):
        metadata = {"uid": read["uid"], "resourceVersion": read["resourceVersion"]}
        assert api.patch(config, {"metadata": metadata, "data": {"x": "ours"}}).status_code == status
    assert api.get(config)["data"] == {"x": "ours"}


def test_a_json_patch_can_test_the_version(api: Api, config: str) -> None:
    """A failing `test` of the version is 422, and nothing happens."""
    operations = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": "1"},
        {"op": "replace", "path": "/data/x", "value": "9"},
    ]
    assert api.patch(config, operations, "json-patch").status_code == 422
    assert api.get(config)["data"] == {"x": "1"}


def test_a_replacement_with_a_stale_version_conflicts(api: Api, config: str) -> None:
    """PUT with the version that was read; the second of two writers loses."""
    read = api.get(config)
    assert api("PUT", config, {**read, "data": {"x": "2"}}).status_code == 200
    late = api("PUT", config, {**read, "data": {"x": "3"}})
    assert (late.status_code, late.json()["reason"]) == (409, "Conflict")
    assert api.get(config)["data"] == {"x": "2"}


def test_a_replacement_of_another_incarnation_conflicts(api: Api, config: str) -> None:
    """PUT with the UID of an object that has been deleted and made anew."""
    read = api.get(config)
    body = {"metadata": {"name": "c", "uid": "00000000-0000-0000-0000-000000000000"}, "data": read["data"]}
    reply = api("PUT", config, body)
    assert (reply.status_code, reply.json()["reason"]) == (409, "Conflict")
    assert "Precondition failed: UID in precondition" in reply.json()["message"]


def test_a_version_that_is_no_number_is_refused(api: Api, config: str) -> None:
    """Versions are opaque to clients, but not anything at all; the server calls it an error of its own."""
    reply = api.patch(config, {"metadata": {"resourceVersion": "x"}, "data": {"x": "2"}})
    assert reply.status_code == 500
    assert "reason" not in reply.json()
    assert api.get(config)["data"] == {"x": "1"}


@pytest.mark.parametrize("field", ["uid", "resourceVersion"])
def test_a_deletion_can_name_what_it_means(api: Api, config: str, field: str) -> None:
    """A precondition that does not hold is 409, and the object stays; one that holds deletes."""
    current = api.get(config)["metadata"][field]
    refused = api("DELETE", config, {"preconditions": {field: "99"}})
    assert (refused.status_code, refused.json()["reason"]) == (409, "Conflict")
    assert "precondition" in refused.json()["message"].lower()
    assert api("DELETE", config, {"preconditions": {field: current}}).status_code == 200
    assert api("GET", config).status_code == 404


def test_what_exists_cannot_be_created_again(api: Api, config: str) -> None:
    """409 AlreadyExists, which is not the Conflict of a stale version."""
    assert api.get(config)
    reply = api("POST", f"{api.core}/configmaps", config_map())
    assert (reply.status_code, reply.json()["reason"]) == (409, "AlreadyExists")
    assert reply.json()["message"] == 'configmaps "c" already exists'


def test_a_new_object_brings_no_version(api: Api) -> None:
    """Who creates with a resourceVersion has mistaken create for update."""
    body = {"metadata": {"name": "d", "resourceVersion": "1"}}
    reply = api("POST", f"{api.core}/configmaps", body)
    assert reply.status_code == 500
    assert "resourceVersion should not be set on objects to be created" in reply.json()["message"]
