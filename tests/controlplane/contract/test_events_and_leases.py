"""Events on what was changed, and Leases for who may change."""

import pytest

from tests.controlplane.contract.objects import config_map, names
from tests.controlplane.contract.server import Api, Object

STAMP = "2026-11-21T12:00:00Z"


def _event(api: Api, name: str = "e", **fields: object) -> Object:
    involved = {"apiVersion": "v1", "kind": "ConfigMap", "namespace": api.namespace, "name": "c"}
    whole = {
        "metadata": {"name": name},
        "involvedObject": involved,
        "type": "Normal",
        "reason": "ScaledToZero",
        "message": "given back",
        "source": {"component": "contract"},
        "reportingComponent": "contract",
        "firstTimestamp": STAMP,
        "lastTimestamp": STAMP,
        "count": 1,
    }
    return {**whole, **fields}


def test_event_list_by_involved_object_is_filtered(api: Api) -> None:
    """Field selectors of the involved object, the reason and the component; several are all."""
    path = f"{api.core}/events"
    api.create(path, _event(api))
    api.create(path, _event(api, "f", reason="Restored"))
    assert names(api.items(path, fieldSelector="involvedObject.name=c,involvedObject.kind=ConfigMap")) == [
        "e",
        "f",
    ]
    assert names(api.items(path, fieldSelector="reason=Restored")) == ["f"]
    assert names(api.items(path, fieldSelector="reportingComponent=contract,type=Normal")) == ["e", "f"]
    assert api.items(path, fieldSelector="involvedObject.name=d") == []


def test_event_in_other_namespace_is_refused(api: Api) -> None:
    """An object of another namespace is refused."""
    involved = {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "default", "name": "c"}
    reply = api("POST", f"{api.core}/events", _event(api, involvedObject=involved))
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert "involvedObject.namespace" in reply.json()["message"]


def test_event_about_missing_object_is_accepted(api: Api) -> None:
    """Nobody checks that the involved object is there: it may be gone."""
    involved = {"apiVersion": "v1", "kind": "Pod", "namespace": api.namespace, "name": "gone", "uid": "x"}
    assert api("POST", f"{api.core}/events", _event(api, involvedObject=involved)).status_code == 201


def test_generate_name_gets_random_suffix(api: Api) -> None:
    """A generateName gets five characters, another each time."""
    path = f"{api.core}/configmaps"
    made = {api.create(path, {"metadata": {"generateName": "c-"}})["metadata"]["name"] for _ in range(3)}
    assert len(made) == 3
    assert {len(name) for name in made} == {7}


def test_create_without_name_is_422(api: Api) -> None:
    """Neither name nor generateName: 422."""
    reply = api("POST", f"{api.core}/configmaps", {"metadata": {}})
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert "name or generateName is required" in reply.json()["message"]


def _lease(holder: str) -> Object:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": "2026-11-21T12:00:00.000000Z"}
    return {"metadata": {"name": "leader"}, "spec": spec}


@pytest.fixture
def leases(api: Api) -> str:
    """The path of the namespace's Leases."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{api.namespace}/leases"


def test_lease_created_twice_is_409(api: Api, leases: str) -> None:
    """The second creation is AlreadyExists."""
    api.create(leases, _lease("a"))
    reply = api("POST", leases, _lease("b"))
    assert (reply.status_code, reply.json()["reason"]) == (409, "AlreadyExists")
    assert api.get(f"{leases}/leader")["spec"]["holderIdentity"] == "a"


def test_lease_takeover_by_two_lets_one_win(api: Api, leases: str) -> None:
    """Both have read it; the first PUT holds, the second conflicts."""
    api.create(leases, _lease("gone"))
    read = api.get(f"{leases}/leader")
    codes = []
    for holder in "ab":
        spec = {**read["spec"], "holderIdentity": holder, "leaseTransitions": 1}
        codes.append(api("PUT", f"{leases}/leader", {**read, "spec": spec}).status_code)
    assert codes == [200, 409]
    assert api.get(f"{leases}/leader")["spec"]["holderIdentity"] == "a"


def test_lease_times_keep_microseconds(api: Api, leases: str) -> None:
    """Times of a Lease are finer than those of other objects."""
    api.create(leases, _lease("a"))
    assert api.get(f"{leases}/leader")["spec"]["renewTime"] == "2026-11-21T12:00:00.000000Z"
    spec = {"renewTime": "2026-11-21T12:00:00.123456Z"}
    api.patch(f"{leases}/leader", {"spec": spec})
    assert api.get(f"{leases}/leader")["spec"]["renewTime"] == spec["renewTime"]


def test_lease_without_duration_is_422(api: Api, leases: str) -> None:
    """The duration is positive."""
    body = _lease("a")
    body["spec"]["leaseDurationSeconds"] = 0
    reply = api("POST", leases, body)
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert "spec.leaseDurationSeconds" in reply.json()["message"]


def test_config_map_keys_are_checked_for_form_only(api: Api) -> None:
    """But for their form."""
    reply = api("POST", f"{api.core}/configmaps", config_map(data={"a b": "x"}))
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
