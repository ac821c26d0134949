"""Watches: what is streamed, from where on, and how it ends."""

import json
import threading
from typing import Any

import pytest
import requests
from kubernetes import watch

from simulator.kube import ApiServer
from tests.simulator.kube.manifests import configmap
from tests.simulator.kube.wire import Http, Official

MAPS = "/api/v1/namespaces/default/configmaps"


def events(http: Http, **query: str) -> list[tuple[str, dict[str, Any]]]:
    """All events of a watch that the server ends after a second."""
    reply = http("GET", MAPS, params={"watch": "true", "timeoutSeconds": "1", **query}, stream=True)
    return [(entry["type"], entry["object"]) for entry in map(json.loads, reply.iter_lines())]


def kinds(stream: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, str]]:
    """What happened to whom."""
    return [(kind, obj["metadata"]["name"]) for kind, obj in stream]


def version(server: ApiServer, http: Http) -> str:
    """The resourceVersion of a list, once nothing moves."""
    server.settle()
    return str(http("GET", MAPS).json()["metadata"]["resourceVersion"])


def test_watch_by_name_sees_one_object(server: ApiServer, http: Http) -> None:
    """A field selector on the name narrows a watch to one object."""
    since = version(server, http)
    server.create(configmap("a"))
    server.create(configmap("b"))
    assert kinds(events(http, resourceVersion=since, fieldSelector="metadata.name=b")) == [("ADDED", "b")]


def test_watch_from_compacted_version_gets_error_event(server: ApiServer, http: Http) -> None:
    """After compaction a watch gets one ERROR event with a 410 Status, and ends."""
    since = version(server, http)
    server.create(configmap("a"))
    server.expire_history()
    [(kind, status)] = events(http, resourceVersion=since)
    assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")


def test_watch_with_bookmarks_ends_with_bookmark(server: ApiServer, http: Http) -> None:
    """With allowWatchBookmarks, the watch ends with the version to resume from."""
    since = version(server, http)
    server.create(configmap("a"))
    *_, (kind, obj) = events(http, resourceVersion=since, allowWatchBookmarks="true")
    assert kind == "BOOKMARK"
    assert int(obj["metadata"]["resourceVersion"]) > int(since)
    assert events(http, resourceVersion=obj["metadata"]["resourceVersion"]) == []


def test_watch_by_official_client_gets_event(server: ApiServer, core: Official) -> None:
    """An event arrives while the watch is open."""
    server.settle()
    since = core.list_namespaced_config_map("default").metadata.resource_version
    feed = watch.Watch()
    stream = feed.stream(
        core.list_namespaced_config_map, "default", resource_version=since, timeout_seconds=300
    )
    threading.Timer(0.05, lambda: server.create(configmap("late"))).start()
    for event in stream:
        assert (event["type"], event["object"].metadata.name) == ("ADDED", "late")
        feed.stop()


@pytest.mark.parametrize("query", [{"resourceVersion": "x"}])
def test_watch_from_invalid_version_is_400(http: Http, query: dict[str, str]) -> None:
    """A watch from an unreadable resourceVersion is 400."""
    assert http("GET", MAPS, params={"watch": "1", **query}).status_code == 400


def test_server_stop_ends_watches_and_threads() -> None:
    """No connection and no thread outlives the server, even with a watch open."""
    before = set(threading.enumerate())
    server = ApiServer()
    server.start()
    session = requests.Session()
    headers = {"Authorization": "Bearer admin-token"}
    reply = session.get(f"{server.url}{MAPS}?watch=true", headers=headers, stream=True, timeout=300)
    server.stop()
    assert set(threading.enumerate()) <= before
    with pytest.raises(requests.ConnectionError):
        session.get(server.url, timeout=1)
    reply.close()
    session.close()
