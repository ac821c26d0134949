"""metadata.managedFields: who set which field last."""

from typing import Any

import pytest

from tests.controlplane.contract.objects import replicated
from tests.controlplane.contract.server import Api, Object


@pytest.fixture
def deployment(api: Api) -> str:
    """The path of a Deployment that `owner` has made."""
    body = replicated(replicas=0)
    reply = api("POST", f"{api.apps}/deployments", body, params={"fieldManager": "owner"})
    assert reply.status_code == 201
    return f"{api.apps}/deployments/w"


def _managers(obj: Object) -> dict[tuple[str, str], dict[str, Any]]:
    """What each manager of the tests owns, by name and subresource."""
    return {
        (entry["manager"], entry.get("subresource", "")): entry["fieldsV1"]
        for entry in obj["metadata"]["managedFields"]
        if entry["manager"] != "kube-controller-manager"
    }


def test_created_fields_belong_to_their_manager(api: Api, deployment: str) -> None:
    """Under his name, as an Update of that API version; keyed lists by their keys."""
    (entry,) = (
        entry for entry in api.get(deployment)["metadata"]["managedFields"] if entry["manager"] == "owner"
    )
    assert (entry["operation"], entry["apiVersion"], entry["fieldsType"]) == ("Update", "apps/v1", "FieldsV1")
    fields = entry["fieldsV1"]["f:spec"]
    assert fields["f:replicas"] == {}
    container = fields["f:template"]["f:spec"]["f:containers"]['k:{"name":"main"}']
    assert (container["."], container["f:image"]) == ({}, {})


def test_changed_field_moves_to_new_manager(api: Api, deployment: str) -> None:
    """The other loses it and keeps the rest; an annotation is a field of its own."""
    patch = {"spec": {"replicas": 1}, "metadata": {"annotations": {"example.com/why": "x"}}}
    answer = api.patch(deployment, patch, params={"fieldManager": "rightsizer"}).json()
    found = _managers(answer)
    mine, owners = found["rightsizer", ""], found["owner", ""]
    assert mine["f:spec"]["f:replicas"] == {}
    assert mine["f:metadata"]["f:annotations"]["f:example.com/why"] == {}
    assert "f:replicas" not in owners["f:spec"]
    assert "f:template" in owners["f:spec"]


def test_scale_write_names_subresource_in_managed_fields(api: Api, deployment: str) -> None:
    """The entry names the subresource."""
    api.patch(f"{deployment}/scale", {"spec": {"replicas": 1}}, params={"fieldManager": "scaler"})
    found = _managers(api.get(deployment))
    assert found["scaler", "scale"]["f:spec"] == {"f:replicas": {}}
    assert "f:replicas" not in found["owner", ""]["f:spec"]


def test_write_without_manager_uses_user_agent(api: Api, deployment: str) -> None:
    """The name of the program, from its User-Agent up to the slash."""
    api.patch(deployment, {"spec": {"replicas": 1}}, headers={"User-Agent": "my-tool/1.0 (x)"})
    assert _managers(api.get(deployment))["my-tool", ""]["f:spec"] == {"f:replicas": {}}


def test_removed_field_has_no_manager(api: Api, deployment: str) -> None:
    """A removed annotation stands with no manager; one without any field is dropped."""
    annotations = {"annotations": {"example.com/why": "x"}}
    api.patch(deployment, {"metadata": annotations}, params={"fieldManager": "rightsizer"})
    removed = {"metadata": {"annotations": {"example.com/why": None}}}
    answer = api.patch(deployment, removed, params={"fieldManager": "other"}).json()
    assert all("example.com/why" not in str(fields) for fields in _managers(answer).values())


def test_no_op_write_adds_no_manager(api: Api, deployment: str) -> None:
    """Its manager is not added."""
    answer = api.patch(deployment, {"spec": {"replicas": 0}}, params={"fieldManager": "nobody"}).json()
    assert ("nobody", "") not in _managers(answer)


def test_manager_name_too_long_is_422(api: Api, deployment: str) -> None:
    """128 bytes at most."""
    reply = api.patch(deployment, {"spec": {"replicas": 1}}, params={"fieldManager": "x" * 129})
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert "fieldManager: Too long: may not be more than 128 bytes" in reply.json()["message"]
