"""Who may do what: RBAC's refusals, and asking beforehand."""

import pytest

from tests.controlplane.contract.objects import config_map, pod, replicated
from tests.controlplane.contract.server import Api


@pytest.fixture
def reader(api: Api) -> str:
    """A user who may read Deployments and pods of the namespace."""
    api.create(f"{api.apps}/deployments", replicated(replicas=0))
    api.server.grant("reader", api.namespace, verbs=["get", "list"], resources=["deployments", "pods"])
    api.eventually(lambda: api("GET", f"{api.apps}/deployments/w", user="reader").status_code == 200)
    return "reader"


@pytest.mark.parametrize(
    ("request_line", "action"),
    [
        ("PATCH {apps}/deployments/w", "patch deployments apps w"),
        ("PATCH {apps}/deployments/w/scale", "patch deployments/scale apps w"),
        ("DELETE {apps}/deployments/w", "delete deployments apps w"),
        ("POST {apps}/deployments", "create deployments apps"),
        ("GET {core}/secrets", "list secrets"),
        ("GET {core}/secrets/s", "get secrets  s"),
        ("POST {core}/pods/p/eviction", "create pods/eviction  p"),
    ],
)
def test_request_without_grant_is_403(api: Api, reader: str, request_line: str, action: str) -> None:
    """403 with user, verb, resource, group and namespace; nobody learns whether the object is there."""
    method, url = request_line.format(apps=api.apps, core=api.core).split()
    headers = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
    body = {"GET": None, "POST": {"metadata": {"name": "p"}}}.get(method, {})
    reply = api(method, url, body, user=reader, headers=headers)
    answer = reply.json()
    assert (reply.status_code, answer["reason"]) == (403, "Forbidden")
    verb, resource, group, name = [*action.split(" "), "", ""][:4]
    plural = resource.partition("/")[0]
    subject = f"{plural}.{group}" if group else plural
    named = f'{subject} "{name}"' if name else subject
    assert answer["message"] == (
        f'{named} is forbidden: User "reader" cannot {verb} resource "{resource}" in API group "{group}" '
        f'in the namespace "{api.namespace}"'
    )
    assert answer["details"].get("kind") == plural


def test_grant_in_one_namespace_does_not_cover_all(api: Api, reader: str) -> None:
    """A list over all namespaces is refused at the cluster scope."""
    assert api("GET", f"{api.core}/pods", user=reader).status_code == 200
    reply = api("GET", "/api/v1/pods", user=reader)
    assert (reply.status_code, reply.json()["reason"]) == (403, "Forbidden")
    assert reply.json()["message"] == (
        'pods is forbidden: User "reader" cannot list resource "pods" in API group "" at the cluster scope'
    )


def test_refused_request_changes_nothing(api: Api, reader: str) -> None:
    """Not in a dry run either."""
    for params in ({}, {"dryRun": "All"}):
        reply = api.patch(f"{api.apps}/deployments/w", {"spec": {"replicas": 3}}, user=reader, params=params)
        assert reply.status_code == 403
    assert api.get(f"{api.apps}/deployments/w")["spec"]["replicas"] == 0


def test_unknown_token_is_401(api: Api) -> None:
    """401, with no more words than that."""
    with api.server.session() as session:
        session.cert = None
        session.headers["Authorization"] = "Bearer of-bad-news"
        reply = session.get(f"{api.server.url}/api/v1/pods", timeout=60)
    assert (reply.status_code, reply.json()["reason"]) == (401, "Unauthorized")
    assert reply.json()["message"] == "Unauthorized"


def test_request_without_credentials_is_anonymous(api: Api) -> None:
    """Without credentials one is system:anonymous, who may see the version and no more."""
    with api.server.session() as session:
        session.cert = None
        session.headers.pop("Authorization", None)
        reply = session.get(f"{api.server.url}/api/v1/pods", timeout=60)
        assert session.get(f"{api.server.url}/version", timeout=60).status_code == 200
    assert (reply.status_code, reply.json()["reason"]) == (403, "Forbidden")
    assert 'User "system:anonymous" cannot list resource "pods"' in reply.json()["message"]


@pytest.mark.parametrize(
    ("attributes", "allowed"),
    [
        ({"verb": "list", "resource": "pods"}, True),
        ({"verb": "get", "group": "apps", "resource": "deployments"}, True),
        ({"verb": "patch", "group": "apps", "resource": "deployments"}, False),
        ({"verb": "create", "resource": "pods", "subresource": "eviction"}, False),
        ({"verb": "list", "resource": "pods", "namespace": ""}, False),
        ({"verb": "get", "resource": "services", "subresource": "proxy"}, False),
        ({"verb": "list", "group": "no.such.group", "resource": "things"}, False),
    ],
)
def test_access_review_answers_for_oneself(
    api: Api, reader: str, attributes: dict[str, str], allowed: bool
) -> None:
    """SelfSubjectAccessReview, as `kubectl auth can-i` does; everybody may ask about himself."""
    asked = {"namespace": api.namespace, **attributes}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    for body in ({}, kind):
        reply = api("POST", path, {**body, "spec": {"resourceAttributes": asked}}, user=reader)
        assert reply.status_code == 201
        assert reply.json()["status"]["allowed"] is allowed


def test_access_review_without_namespace_means_all(api: Api, reader: str) -> None:
    """Where no namespace is named all of them are meant: a grant in one does not suffice, an administrator's does."""
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    body = {"spec": {"resourceAttributes": {"verb": "list", "resource": "pods"}}}
    assert api("POST", path, body, user=reader).json()["status"]["allowed"] is False
    assert api("POST", path, body).json()["status"]["allowed"] is True


def test_impersonation_without_grant_is_403(api: Api, reader: str) -> None:
    """Impersonation is a grant like others, and administrators' only."""
    assert api("GET", f"{api.core}/pods", user=reader).status_code == 200
    api.create(f"{api.core}/configmaps", config_map())
    assert api("GET", f"{api.core}/configmaps/c", user="stranger").status_code == 403
    assert api("POST", f"{api.core}/pods", pod(), user="stranger").status_code == 403
