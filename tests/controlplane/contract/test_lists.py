"""Lists: paging, selectors, metadata only, and watching what comes after."""

import json
from collections.abc import Generator

import pytest

from tests.controlplane.contract.objects import config_map, names, pod
from tests.controlplane.contract.server import Api, Object

METADATA_ONLY = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


@pytest.fixture
def maps(api: Api) -> str:
    """The path of seven ConfigMaps, besides those that the cluster puts into every namespace."""
    path = f"{api.core}/configmaps"
    for number in range(7):
        api.create(path, {"metadata": {"name": f"c{number}", "labels": {"n": str(number), "mine": "yes"}}})
    return path


def _page(api: Api, path: str, **params: str | int) -> Object:
    reply = api("GET", path, params=params)
    assert reply.status_code == 200, reply.text
    page: Object = reply.json()
    return page


def test_list_pages_hold_each_object_once_at_one_version(api: Api, maps: str) -> None:
    """Following `continue` yields each object once, in order, all pages of one resourceVersion."""
    whole = names(_page(api, maps)["items"])
    found, versions, remaining, token = [], set(), [], ""
    while True:
        page = _page(api, maps, limit=3, **({"continue": token} if token else {}))
        found += names(page["items"])
        versions.add(page["metadata"]["resourceVersion"])
        remaining.append(page["metadata"].get("remainingItemCount", 0))
        token = page["metadata"].get("continue", "")
        if not token:
            break
    assert found == whole
    assert len(versions) == 1
    assert remaining == [max(0, len(whole) - 3 * (number + 1)) for number in range(len(remaining))]


def test_list_pages_are_a_snapshot(api: Api, maps: str) -> None:
    """What is created or deleted between two pages does not show in the second."""
    first = _page(api, maps, limit=3)
    api.create(maps, config_map("zz-new"))
    assert api("DELETE", f"{maps}/c6").status_code == 200
    rest = names(_page(api, maps, limit=500, **{"continue": first["metadata"]["continue"]})["items"])
    assert "c6" in rest
    assert "zz-new" not in rest


def test_list_with_selector_has_no_remaining_count(api: Api, maps: str) -> None:
    """With a selector the server does not know how many remain."""
    page = _page(api, maps, limit=2, labelSelector="mine=yes")
    assert names(page["items"]) == ["c0", "c1"]
    assert "remainingItemCount" not in page["metadata"]
    assert page["metadata"]["continue"]


def test_list_with_invalid_token_is_400(api: Api, maps: str) -> None:
    """400, so that nobody takes the beginning for the rest."""
    reply = api("GET", maps, params={"limit": 3, "continue": "rubbish"})
    assert (reply.status_code, reply.json()["reason"]) == (400, "BadRequest")
    assert "continue key is not valid" in reply.json()["message"]


def test_list_limit_below_one_means_all(api: Api, maps: str) -> None:
    """Below one means all of it; what is no number is refused."""
    assert len(_page(api, maps, limit=-1)["items"]) >= 7
    assert len(_page(api, maps, limit=0)["items"]) >= 7
    assert api("GET", maps, params={"limit": "many"}).status_code == 400


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("n=3", ["c3"]),
        ("n==3", ["c3"]),
        ("n in (1,2)", ["c1", "c2"]),
        ("mine,n notin (0,1,2,3,4)", ["c5", "c6"]),
        ("mine=yes,n!=0,n!=1,n!=2,n!=3,n!=4", ["c5", "c6"]),
        ("n=9", []),
        ("n>4", ["c5", "c6"]),
    ],
)
def test_list_by_label_selector_is_filtered(api: Api, maps: str, selector: str, expected: list[str]) -> None:
    """Equality, sets, existence and numbers."""
    assert names(api.items(maps, labelSelector=selector)) == expected


@pytest.mark.parametrize("selector", ["n in 1", "=x", "a b", "n in (1"])
def test_list_with_invalid_label_selector_is_400(api: Api, maps: str, selector: str) -> None:
    """400, rather than everything."""
    reply = api("GET", maps, params={"labelSelector": selector})
    assert (reply.status_code, reply.json()["reason"]) == (400, "BadRequest")


def test_list_by_field_selector_is_filtered(api: Api, maps: str) -> None:
    """metadata.name works for all, spec.nodeName and status.phase for pods; others are refused."""
    assert names(api.items(maps, fieldSelector="metadata.name=c4")) == ["c4"]
    api.create(f"{api.core}/pods", pod())
    (running,) = api.running(1)
    node = running["spec"]["nodeName"]
    assert names(api.items(f"{api.core}/pods", fieldSelector=f"spec.nodeName={node}")) == ["p"]
    assert api.items(f"{api.core}/pods", fieldSelector="status.phase!=Running") == []
    reply = api("GET", maps, params={"fieldSelector": "data.x=1"})
    assert (reply.status_code, reply.json()["reason"]) == (400, "BadRequest")
    assert '"data.x" is not a known field selector' in reply.json()["message"]


def test_list_as_partial_metadata_has_metadata_only(api: Api, maps: str) -> None:
    """As PartialObjectMetadataList: no spec, no data, pages as usual."""
    reply = api("GET", maps, params={"limit": 2}, headers={"Accept": METADATA_ONLY})
    page = reply.json()
    assert (page["kind"], page["apiVersion"]) == ("PartialObjectMetadataList", "meta.k8s.io/v1")
    assert {key for item in page["items"] for key in item} == {"kind", "apiVersion", "metadata"}
    assert {item["kind"] for item in page["items"]} == {"PartialObjectMetadata"}
    assert page["metadata"]["continue"]


def test_list_items_have_no_kind(api: Api, maps: str) -> None:
    """Kind and version stand at the list; a client that wants an object's own has to know it."""
    page = _page(api, maps, limit=1)
    assert page["kind"] == "ConfigMapList"
    assert not {"kind", "apiVersion"} & page["items"][0].keys()


def _events(api: Api, path: str, **params: str | int) -> Generator[Object, None, None]:
    query = {"watch": "true", "timeoutSeconds": 60, **params}
    reply = api.session.get(api.server.url + path, params=query, stream=True, timeout=100)
    assert reply.status_code == 200, reply.text
    with reply:
        for line in reply.iter_lines():
            yield json.loads(line)


def test_watch_from_list_version_gets_later_changes(api: Api, maps: str) -> None:
    """From the list's resourceVersion on: nothing of before, everything after, in order."""
    version = _page(api, maps)["metadata"]["resourceVersion"]
    api.create(maps, config_map("later"))
    api.patch(f"{maps}/later", {"data": {"x": "1"}})
    api("DELETE", f"{maps}/later")
    events = _events(api, maps, resourceVersion=version)
    found = [next(events) for _ in range(3)]
    assert [event["type"] for event in found] == ["ADDED", "MODIFIED", "DELETED"]
    assert {event["object"]["metadata"]["name"] for event in found} == {"later"}
    assert found[0]["object"]["kind"] == "ConfigMap"
    events.close()


def test_watch_without_version_begins_with_existing_objects(api: Api, maps: str) -> None:
    """Each existing object comes as ADDED."""
    events = _events(api, maps, labelSelector="mine")
    found = [next(events) for _ in range(7)]
    assert {event["type"] for event in found} == {"ADDED"}
    assert sorted(event["object"]["metadata"]["name"] for event in found) == [f"c{n}" for n in range(7)]
    events.close()


def test_watch_with_selector_sees_leaving_object_as_deleted(api: Api, maps: str) -> None:
    """A label that changes takes the object out of, or into, a selecting watch."""
    version = _page(api, maps)["metadata"]["resourceVersion"]
    api.patch(f"{maps}/c1", {"metadata": {"labels": {"n": "x"}}})
    api.patch(f"{maps}/c2", {"metadata": {"labels": {"n": "1"}}})
    events = _events(api, maps, resourceVersion=version, labelSelector="n=1")
    assert [
        (event["type"], event["object"]["metadata"]["name"]) for event in (next(events), next(events))
    ] == [
        ("DELETED", "c1"),
        ("ADDED", "c2"),
    ]
    events.close()


def test_watch_ends_after_timeout_seconds(api: Api, maps: str) -> None:
    """The server closes it after timeoutSeconds, without an error."""
    assert list(_events(api, maps, labelSelector="n=none", timeoutSeconds=1)) == []


def test_list_of_unknown_kind_is_404(api: Api) -> None:
    """404 in plain text: no such path, rather than no such object."""
    assert api("GET", f"{api.core}/gpus").status_code == 404
    assert api("GET", f"/apis/no.such.group/v1/namespaces/{api.namespace}/gpus").status_code == 404


def test_get_of_missing_object_is_404(api: Api) -> None:
    """404 NotFound with name and kind in the details."""
    reply = api("GET", f"{api.apps}/deployments/none")
    status = reply.json()
    assert (reply.status_code, status["reason"]) == (404, "NotFound")
    assert status["message"] == 'deployments.apps "none" not found'
    assert status["details"] == {"name": "none", "group": "apps", "kind": "deployments"}
