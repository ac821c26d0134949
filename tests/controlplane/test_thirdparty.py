"""The kinds of others can be installed into the control plane, so far as acting on them needs."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from simulator.controlplane.plane import ControlPlane
from simulator.controlplane.thirdparty import ThirdPartyKind, third_party_kinds
from tests.controlplane.contract.server import Api, Object, Real

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("controlplane")]

KINDS = third_party_kinds()
_GOOD = {"boolean": False, "integer": 1, "count": 1, "string": "x", "object": None}
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.kind}.{kind.group}")


@pytest.fixture
def api(third_parties: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """HTTP to it, in a fresh namespace."""
    speaker = Api(Real(third_parties.kubeconfig, tmp_path_factory.mktemp("credentials")))
    yield speaker
    speaker("DELETE", f"/api/v1/namespaces/{speaker.namespace}")
    speaker.session.close()


def _collection(api: Api, kind: ThirdPartyKind, version: str) -> str:
    scope = f"/namespaces/{api.namespace}" if kind.scope == "Namespaced" else ""
    return f"/apis/{kind.group}/{version}{scope}/{kind.plural}"


def _object(kind: ThirdPartyKind, version: str) -> Object:
    body: Object = {"apiVersion": f"{kind.group}/{version}", "kind": kind.kind}
    anything = next((name for name in kind.spec if f"spec.{name}" not in _typed(kind)), "anything")
    return {**body, "metadata": {"name": f"x-{uuid.uuid4().hex[:8]}"}, "spec": {anything: {"else": [1]}}}


def _typed(kind: ThirdPartyKind) -> set[str]:
    """Its fields that have a type, and those that lead to them."""
    return {".".join(path.split(".")[:2]) for path in kind.fields}


def _nested(path: str, value: object) -> Object:
    patch: object = value
    for step in reversed(path.split(".")):
        patch = {step: patch}
    assert isinstance(patch, dict)
    return patch


@each_kind
def test_third_party_kind_is_served_in_each_version(api: Api, kind: ThirdPartyKind) -> None:
    """Objects are kept as they come, found under every version, and have a status of their own."""
    for version in kind.versions:
        body = _object(kind, version)
        made = api.create(_collection(api, kind, version), body)
        assert made["spec"] == body["spec"]
        for other in kind.versions:
            path = f"{_collection(api, kind, other)}/{body['metadata']['name']}"
            assert api.get(path)["metadata"]["uid"] == made["metadata"]["uid"]
        assert "status" not in api.patch(path, {"status": {"x": 1}}).json()
        assert api.patch(f"{path}/status", {"status": {"x": 1}}).json()["status"] == {"x": 1}


@each_kind
def test_third_party_field_of_wrong_type_is_refused(api: Api, kind: ThirdPartyKind) -> None:
    """Each takes a value of its type and refuses others, with its name."""
    path = _collection(api, kind, kind.versions[0])
    body = _object(kind, kind.versions[0])
    for field, of in kind.root.items():
        body = {**body, **_nested(field, _GOOD[of])}
    name = api.create(path, body)["metadata"]["name"]
    for field, of in {**kind.fields, **kind.root}.items():
        bad = {"boolean": "yes", "integer": 0.5, "count": -1, "string": 1, "object": 1}[of]
        assert api.patch(f"{path}/{name}", _nested(field, _GOOD[of])).status_code == 200
        refused = api.patch(f"{path}/{name}", _nested(field, bad))
        assert (refused.status_code, refused.json()["details"]["causes"][0]["field"]) == (422, field)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.spec], ids=lambda kind: str(kind.kind))
def test_third_party_spec_with_unknown_field_is_refused(api: Api, kind: ThirdPartyKind) -> None:
    """As by the real definition: a write that asks for strict validation learns of a field that would be dropped."""
    path = _collection(api, kind, kind.versions[0])
    name = api.create(path, _object(kind, kind.versions[0]))["metadata"]["name"]
    strict = api.patch(f"{path}/{name}?fieldValidation=Strict", {"spec": {"noSuchField": 1}})
    assert 'unknown field "spec.noSuchField"' in strict.json()["message"]
    assert (
        (api.patch(f"{path}/{name}", {"spec": {"noSuchField": 1}}).json()["spec"]).get("noSuchField") is None
    )


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.scale], ids=lambda kind: str(kind.kind))
def test_third_party_kind_with_scale_can_be_scaled(api: Api, kind: ThirdPartyKind) -> None:
    """Through the subresource, to zero and back."""
    path = _collection(api, kind, kind.versions[0])
    wish = kind.scale[0].lstrip(".")
    body = {**_object(kind, kind.versions[0]), **_nested(wish, 3)}
    name = api.create(path, body)["metadata"]["name"]
    assert api.get(f"{path}/{name}/scale")["spec"] == {"replicas": 3}
    assert api.patch(f"{path}/{name}/scale", {"spec": {"replicas": 0}}).status_code == 200
    found: Any = api.get(f"{path}/{name}")
    for step in wish.split("."):
        found = found[step]
    assert found == 0
