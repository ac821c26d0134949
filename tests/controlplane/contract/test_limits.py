"""How large and of what form things may be."""

import pytest

from rightsizer.inventory.gpu_requests import LARGEST, quantity_of
from tests.controlplane.contract.objects import config_map, pod
from tests.controlplane.contract.server import Api, Object

TOTAL = 256 * 1024


@pytest.mark.parametrize("way", ["create", "patch"])
def test_annotations_over_256_kib_are_422(api: Api, way: str) -> None:
    """256 KiB of keys and values: one byte more is 422, and nothing is stored."""
    path = f"{api.core}/configmaps"
    key = "example.com/record"
    fits, over = (
        {"metadata": {"name": "c", "annotations": {key: "x" * (TOTAL - len(key) + more)}}} for more in (0, 1)
    )
    if way == "create":
        refused = api("POST", path, over)
        assert api("GET", f"{path}/c").status_code == 404
        accepted = api("POST", path, fits)
    else:
        api.create(path, config_map())
        refused = api.patch(f"{path}/c", over)
        accepted = api.patch(f"{path}/c", fits)
    assert (refused.status_code, refused.json()["reason"]) == (422, "Invalid")
    assert refused.json()["details"]["causes"][0]["field"] == "metadata.annotations"
    assert "Too long: may not be more than 262144 bytes" in refused.json()["message"]
    assert accepted.status_code in {200, 201}


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"name": "Upper"}, "metadata.name"),
        ({"name": "a_b"}, "metadata.name"),
        ({"name": "x" * 254}, "metadata.name"),
        ({"labels": {"a b": "x"}}, "metadata.labels"),
        ({"labels": {"a": "b c"}}, "metadata.labels"),
        ({"labels": {"a": "x" * 64}}, "metadata.labels"),
        ({"annotations": {"a b": "x"}}, "metadata.annotations"),
        ({"annotations": {"/x": "y"}}, "metadata.annotations"),
    ],
)
def test_invalid_names_and_labels_are_422(api: Api, metadata: Object, field: str) -> None:
    """422 with the field; annotations' values may be anything, their keys not."""
    body = {"metadata": {"name": "c", **metadata}}
    reply = api("POST", f"{api.core}/configmaps", body)
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert {cause["field"] for cause in reply.json()["details"]["causes"]} == {field}


def test_config_map_over_1_mib_is_422(api: Api) -> None:
    """1 MiB of data."""
    reply = api("POST", f"{api.core}/configmaps", config_map(data={"x": "x" * (1024 * 1024 + 1)}))
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert "Too long: may not be more than 1048576 bytes" in reply.json()["message"]


def test_request_over_3_mib_is_413(api: Api) -> None:
    """3 MiB: beyond that it is not read."""
    reply = api("POST", f"{api.core}/configmaps", config_map(data={"x": "x" * (4 * 1024 * 1024)}))
    assert (reply.status_code, reply.json()["reason"]) == (413, "RequestEntityTooLarge")


def test_extended_resource_request_must_equal_integer_limit(api: Api) -> None:
    """And a request is equal to its limit."""
    half = pod()
    half["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "500m"}}
    reply = api("POST", f"{api.core}/pods", half)
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert "must be an integer" in reply.json()["message"]
    less = pod()
    less["spec"]["containers"][0]["resources"] = {
        "limits": {"nvidia.com/gpu": "2"},
        "requests": {"nvidia.com/gpu": "1"},
    }
    reply = api("POST", f"{api.core}/pods", less)
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert "must be equal to nvidia.com/gpu limit of 2" in reply.json()["message"]


@pytest.mark.parametrize(
    ("quantity", "devices"),
    [
        ("2", 2),
        ("1k", 1000),
        ("1000", 1000),  # kept as 1k by the real one
        ("2e0", 2),
        ("2E0", 2),
        ("4Ki", 4096),
        ("2000m", 2),
        ("0.002k", 2),
        ("1.", 1),
        ("+2", 2),
        ("007", 7),
        ("1E", 10**18),
        ("1e1000", LARGEST),
    ],
)
def test_extended_resource_quantity_in_any_notation_is_accepted(
    api: Api, quantity: str, devices: int
) -> None:
    """All are accepted, and most are kept as they are written; what is kept, the rightsizer reads."""
    asked = pod()
    asked["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": quantity}}
    made = api.create(f"{api.core}/pods", asked)
    resources = made["spec"]["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"]
    assert quantity_of(resources["limits"]["nvidia.com/gpu"]) == devices


@pytest.mark.parametrize(
    ("quantity", "code"),
    [
        ("1e-1", 422),
        ("2.5", 422),
        ("-1", 422),
        ("1e-1000", 422),
        ("1q", 400),
        ("", 400),
        ("1Zi", 400),
        ("\u0662", 400),
    ],
)
def test_extended_resource_quantity_not_integer_is_refused(api: Api, quantity: str, code: int) -> None:
    """422 where it is a quantity, 400 where it is none; other scripts' digits are none."""
    asked = pod()
    asked["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": quantity}}
    assert api("POST", f"{api.core}/pods", asked).status_code == code


def test_limit_without_request_sets_request(api: Api) -> None:
    """The server writes it down."""
    made = api.create(f"{api.core}/pods", pod(gpus=2))
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "2"}


def test_pod_gpu_change_is_422(api: Api) -> None:
    """Not even while it waits: 422."""
    api.create(f"{api.core}/pods", pod(gpus=99))
    resources = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
    patch = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
    reply = api.patch(f"{api.core}/pods/p", patch, "strategic-merge-patch")
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert "pod updates may not change fields other than" in reply.json()["message"]
