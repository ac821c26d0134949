"""Failures on demand, and the log of what reached the server."""

import time
from http.client import HTTPConnection

import pytest
import requests

from simulator.kube import ADMIN_TOKEN, ApiServer, Fault
from tests.simulator.kube.manifests import configmap
from tests.simulator.kube.wire import Clock, Http

MAPS = "/api/v1/namespaces/default/configmaps"


def test_injected_status_replaces_answer_once(server: ApiServer, http: Http) -> None:
    """The request fails with the given status and headers, and has no effect; the next one succeeds."""
    server.inject(Fault(r"/configmaps$", "POST", status=429, headers={"Retry-After": "7"}))
    reply = http("POST", MAPS, configmap())
    assert (reply.status_code, reply.json()["reason"], reply.headers["Retry-After"]) == (
        429,
        "TooManyRequests",
        "7",
    )
    assert server.list("ConfigMap") == []
    assert http("POST", MAPS, configmap()).status_code == 201


def test_injected_body_is_sent_unchanged(server: ApiServer, http: Http) -> None:
    """A Status of one's own arrives unchanged."""
    own = {"kind": "Status", "status": "Failure", "code": 500, "message": "webhook said no"}
    server.inject(Fault(status=500, body=own))
    assert http("GET", MAPS).json() == own


def test_fault_matches_method_and_path_limited_times(server: ApiServer, http: Http) -> None:
    """Method and path select; `times` counts; clearing disarms the rest."""
    server.inject(Fault(r"/secrets", "GET", times=2, status=503))
    codes = [http("GET", path).status_code for path in (MAPS, *["/api/v1/secrets"] * 3)]
    assert codes == [200, 503, 503, 200]
    server.inject(Fault(times=None, status=500))
    assert [http("GET", MAPS).status_code for _ in range(3)] == [500, 500, 500]
    server.clear_faults()
    assert http("GET", MAPS).status_code == 200


@pytest.mark.parametrize(("after_effect", "left"), [(False, 0), (True, 1)])
def test_fault_drop_closes_connection_before_or_after_effect(
    server: ApiServer, http: Http, after_effect: bool, left: int
) -> None:
    """The connection closes without an answer, before or after the write took effect."""
    server.inject(Fault(r"/configmaps", "POST", drop=True, after_effect=after_effect))
    with pytest.raises(requests.ConnectionError):
        http("POST", MAPS, configmap())
    assert len(server.list("ConfigMap")) == left
    assert server.requests.all()[-1].code == 0


def test_fault_after_effect_answers_504_though_written(server: ApiServer, http: Http) -> None:
    """A write can take effect and still be answered with 504."""
    server.inject(Fault(r"/configmaps", "POST", status=504, after_effect=True))
    assert http("POST", MAPS, configmap()).status_code == 504
    assert len(server.list("ConfigMap")) == 1


def test_fault_delay_postpones_answer(server: ApiServer, http: Http) -> None:
    """A delayed request is answered, only later."""
    server.inject(Fault(delay_s=0.2))
    started = time.monotonic()
    assert http("GET", MAPS).status_code == 200
    assert time.monotonic() - started >= 0.2


def test_request_log_holds_every_request(server: ApiServer, http: Http, clock: Clock) -> None:
    """The log holds time, user, method, path, query, content type, body and code."""
    clock.forward(5)
    http.patch(f"{MAPS}/none", {"data": {"a": "b"}}, params={"fieldManager": "me"})
    [entry] = server.requests.all()
    assert entry.time == clock.now
    assert (entry.user, entry.method, entry.path) == ("kubernetes-admin", "PATCH", f"{MAPS}/none")
    assert (entry.query, entry.content_type) == ("fieldManager=me", "application/merge-patch+json")
    assert (entry.json, entry.code) == ({"data": {"a": "b"}}, 404)


def test_request_log_mutating_holds_writes_only(server: ApiServer, http: Http) -> None:
    """`mutating` holds writes only, refused ones included, dry runs on request; `clear` forgets."""
    http("GET", MAPS)
    http("POST", MAPS, configmap(), params={"dryRun": "All"})
    http("DELETE", f"{MAPS}/none")
    assert [entry.method for entry in server.requests.mutating()] == ["DELETE"]
    assert len(server.requests.mutating(include_dry_run=True)) == 2
    server.requests.clear()
    assert server.requests.all() == []


def test_request_log_omits_in_process_calls(server: ApiServer) -> None:
    """The log is of the wire: what tests set up in process, and what controllers do, is not in it."""
    server.create(configmap())
    server.settle()
    assert server.requests.all() == []


def test_connection_after_refusal_stays_open(server: ApiServer) -> None:
    """One connection carries many requests, also after a refusal."""
    connection = HTTPConnection(server.url.removeprefix("http://"), timeout=300)
    sockets, codes = set(), []
    for path in (MAPS, "/nowhere", f"{MAPS}/none", MAPS):
        connection.request("GET", path, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
        sockets.add(connection.sock)
        reply = connection.getresponse()
        reply.read()
        codes.append(reply.status)
    connection.close()
    assert (codes, len(sockets)) == ([200, 404, 404, 200], 1)
