"""Who may do what: tokens, rules, refusals in the real server's words."""

import pytest
import requests

from simulator.kube import ApiServer, Rule
from tests.simulator.kube.manifests import Object, configmap, pod, workload
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
def test_nobody_is_let_in_without_a_token(server: ApiServer, header: str) -> None:
    """No token, an unknown one or another scheme is 401 with a Status."""
    reply = requests.get(server.url + MAPS, headers={"Authorization": header}, timeout=10)
    assert (reply.status_code, reply.json()["reason"], reply.json()["message"]) == (
        401,
        "Unauthorized",
        "Unauthorized",
    )


def test_a_revoked_token_no_longer_works(server: ApiServer, http: Http) -> None:
    """A token that was rotated away is 401."""
    assert http("GET", MAPS, token="bobs-token").status_code == 200
    server.access.revoke("bobs-token")
    assert http("GET", MAPS, token="bobs-token").status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "message"),
    [
        ("GET", "/api/v1/pods",
         'pods is forbidden: User "bob" cannot list resource "pods" in API group "" at the cluster scope'),
        ("GET", "/api/v1/namespaces/default/pods?watch=1",
         'pods is forbidden: User "bob" cannot watch resource "pods" in API group "" in the namespace "default"'),
        ("GET", "/api/v1/configmaps",
         'configmaps is forbidden: User "bob" cannot list resource "configmaps" in API group "" at the cluster scope'),
        ("PATCH", SCALE,
         ('deployments.apps "w" is forbidden: User "bob" cannot patch resource "deployments/scale" in API group "apps" '
         'in the namespace "default"')),
        ("POST", MAPS,
         ('configmaps is forbidden: User "bob" cannot create resource "configmaps" in API group "" '
         'in the namespace "default"')),
        ("POST", "/api/v1/namespaces/default/pods/p/eviction",
         ('pods "p" is forbidden: User "bob" cannot create resource "pods/eviction" in API group "" '
         'in the namespace "default"')),
        ("DELETE", "/api/v1/nodes/n",
         'nodes "n" is forbidden: User "bob" cannot delete resource "nodes" in API group "" at the cluster scope'),
    ],
)  # fmt: skip
def test_what_is_not_allowed_is_forbidden(http: Http, method: str, path: str, message: str) -> None:
    """403 names user, verb, resource with subresource, group and scope."""
    status = http(method, path, {}, token="bobs-token").json()
    assert (status["code"], status["reason"], status["message"]) == (403, "Forbidden", message)


def test_a_refused_write_has_no_effect(server: ApiServer, http: Http) -> None:
    """What is forbidden is not done."""
    http("POST", MAPS, configmap(), token="bobs-token")
    assert server.list("ConfigMap") == []


def test_rules_cover_subresources_apart(server: ApiServer, http: Http) -> None:
    """A rule for deployments/scale allows the scale and not the Deployment."""
    server.allow(Rule("readers", ("patch",), ("deployments/scale",), ("apps",), ("default",)))
    patch = {"Content-Type": "application/merge-patch+json"}
    body = {"spec": {"replicas": 1}}
    assert http("PATCH", SCALE, body, token="bobs-token", headers=patch).status_code == 200
    whole = SCALE.removesuffix("/scale")
    assert http("PATCH", whole, body, token="bobs-token", headers=patch).status_code == 403


def test_a_denial_outweighs_the_administrator(server: ApiServer, http: Http) -> None:
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
def test_access_reviews_answer_from_the_same_rules(http: Http, attributes: Object, allowed: bool) -> None:
    """Everybody may ask what they may do; nothing is stored by asking."""
    reply = http("POST", REVIEWS, {"spec": {"resourceAttributes": attributes}}, token="bobs-token")
    assert reply.status_code == 201
    assert reply.json()["status"] == {"allowed": allowed}


def test_reviews_are_not_writes(server: ApiServer, http: Http) -> None:
    """The wire log does not count a review among the mutating requests, and a review cannot be read back."""
    server.requests.clear()
    http("POST", REVIEWS, {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}})
    assert server.requests.mutating() == []
    assert http("GET", REVIEWS).status_code == 405
    assert http("POST", REVIEWS, {"spec": {}}).status_code == 422


def test_discovery_is_open_to_every_user(http: Http) -> None:
    """Who may do nothing else may still discover."""
    assert http("GET", "/apis", token="bobs-token").status_code == 200
