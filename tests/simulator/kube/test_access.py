"""Who may do what: tokens, rules, refusals in the real server's words."""

import pytest
import requests

from simulator.kube import ApiServer, Rule
from tests.simulator.kube.manifests import Object, pod, workload
from tests.simulator.kube.wire import Http

MAPS = "/api/v1/namespaces/default/configmaps"
SCALE = "/apis/apps/v1/namespaces/default/deployments/w/scale"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@pytest.fixture(autouse=True)
def bob(server: ApiServer) -> None:
    """A user who may read ConfigMaps in "default", and a Deployment."""
    server.add_user("bobs-token", "bob", ["readers"])
    server.allow(Rule("bob", ("get", "list", "watch"), ("configmaps",), ("",), ("default",)))
    server.create(workload("Deployment", replicas=0))


@pytest.mark.parametrize("header", ["", "Bearer nobody", "Basic YTpi", "Bearer"])
def test_authentication_without_valid_token_is_401(server: ApiServer, header: str) -> None:
    """No token, an unknown one or another scheme is 401 with a Status."""
    reply = requests.get(server.url + MAPS, headers={"Authorization": header}, timeout=300)
    assert (reply.status_code, reply.json()["reason"], reply.json()["message"]) == (
        401,
        "Unauthorized",
        "Unauthorized",
    )


def test_authentication_with_revoked_token_is_401(server: ApiServer, http: Http) -> None:
    """A token that was rotated away is 401."""
    assert http("GET", MAPS, token="bobs-token").status_code == 200
    server.access.revoke("bobs-token")
    assert http("GET", MAPS, token="bobs-token").status_code == 401


def test_rule_for_scale_does_not_cover_deployment(server: ApiServer, http: Http) -> None:
    """A rule for deployments/scale allows the scale and not the Deployment."""
    server.allow(Rule("readers", ("patch",), ("deployments/scale",), ("apps",), ("default",)))
    patch = {"Content-Type": "application/merge-patch+json"}
    body = {"spec": {"replicas": 1}}
    assert http("PATCH", SCALE, body, token="bobs-token", headers=patch).status_code == 200
    whole = SCALE.removesuffix("/scale")
    assert http("PATCH", whole, body, token="bobs-token", headers=patch).status_code == 403


def test_deny_rule_overrides_administrator(server: ApiServer, http: Http) -> None:
    """A denied verb is refused to everybody it names, even where all is allowed; other verbs go on."""
    server.deny(Rule("*", ("create",), ("pods/eviction",)))
    server.create(pod(schedulerName="nobody"))
    path = "/api/v1/namespaces/default/pods/p"
    assert http("POST", f"{path}/eviction", {"metadata": {"name": "p"}}).status_code == 403
    assert http("DELETE", path).status_code == 200


@pytest.mark.parametrize(
    ("attributes", "allowed"),
    [
        ({"verb": "get", "resource": "configmaps", "namespace": "default"}, True),
        ({"verb": "get", "resource": "configmaps", "namespace": "kube-system"}, False),
        ({"verb": "patch", "group": "apps", "resource": "deployments", "subresource": "scale"}, False),
    ],
)
def test_access_review_answers_from_rules_and_stores_nothing(
    http: Http, attributes: Object, allowed: bool
) -> None:
    """Everybody may ask what they may do; nothing is stored by asking."""
    reply = http("POST", REVIEWS, {"spec": {"resourceAttributes": attributes}}, token="bobs-token")
    assert reply.status_code == 201
    assert reply.json()["status"] == {"allowed": allowed}


def test_access_review_is_not_logged_as_mutating(server: ApiServer, http: Http) -> None:
    """The wire log does not count a review among the mutating requests, and a review cannot be read back."""
    server.requests.clear()
    http("POST", REVIEWS, {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}})
    assert server.requests.mutating() == []
    assert http("GET", REVIEWS).status_code == 405
    assert http("POST", REVIEWS, {"spec": {}}).status_code == 422


def test_discovery_without_grants_is_allowed(http: Http) -> None:
    """Who may do nothing else may still discover."""
    assert http("GET", "/apis", token="bobs-token").status_code == 200
