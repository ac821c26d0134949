"""ResourceQuota, also by PriorityClass scope: what a namespace may hold of each class."""

from collections.abc import Iterator
from http import HTTPStatus

import pytest

from tests.controlplane.contract.objects import conditions, pod, pod_spec, replicated
from tests.controlplane.contract.server import Api, Object

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
GPUS = "requests.nvidia.com/gpu"


@pytest.fixture
def low(api: Api) -> Iterator[str]:
    """The name of a PriorityClass."""
    name = f"low-{api.namespace}"
    api.create(CLASSES, {"metadata": {"name": name}, "value": 10})
    yield name
    api("DELETE", f"{CLASSES}/{name}")


def _limit(api: Api, hard: dict[str, str], **more: object) -> str:
    """A quota, once its status is computed; its path."""
    path = f"{api.core}/resourcequotas"
    api.create(path, {"metadata": {"name": "q"}, "spec": {"hard": hard, **more}})
    api.eventually(lambda: api.get(f"{path}/q").get("status", {}).get("hard") == hard)
    # Admission knows a quota from a watch of its own, a little later.
    return f"{path}/q"


def _scoped(name: str, operator: str = "In") -> Object:
    expression: Object = {"scopeName": "PriorityClass", "operator": operator}
    return {
        "matchExpressions": [{**expression, "values": [name]} if operator in {"In", "NotIn"} else expression]
    }


def _used(api: Api, path: str, **expected: str) -> None:
    wanted = {name.replace("_", "."): value for name, value in expected.items()}
    api.eventually(
        lambda: {key: api.get(path)["status"]["used"].get(key) for key in wanted},
        lambda found: found == wanted,
    )


def test_pod_over_quota_of_its_class_is_403(api: Api, low: str) -> None:
    """403 that names the quota, what was asked, used and allowed; other classes are not counted."""
    path = _limit(api, {GPUS: "3"}, scopeSelector=_scoped(low))
    api.create(f"{api.core}/pods", pod("a", 2, priorityClassName=low))
    reply = api("POST", f"{api.core}/pods", pod("b", 2, priorityClassName=low))
    assert (reply.status_code, reply.json()["reason"]) == (403, "Forbidden")
    assert reply.json()["message"] == (
        f'pods "b" is forbidden: exceeded quota: q, requested: {GPUS}=2, used: {GPUS}=2, limited: {GPUS}=3'
    )
    api.create(f"{api.core}/pods", pod("c", 4))
    api.create(f"{api.core}/pods", pod("d", 1, priorityClassName=low))
    assert api.get(path)["status"]["used"] == {GPUS: "3"}


def test_deleted_or_finished_pod_frees_quota(api: Api, low: str) -> None:
    """A deleted pod is no longer counted, and neither is one that has ended."""
    path = _limit(api, {GPUS: "2", "pods": "5"}, scopeSelector=_scoped(low))
    for name in ("a", "b"):
        api.create(f"{api.core}/pods", pod(name, 1, priorityClassName=low))
    api.running(2)
    api("DELETE", f"{api.core}/pods/a")
    api.eventually(lambda: api.get(path)["status"]["used"] == {GPUS: "1", "pods": "1"})
    api.patch(f"{api.core}/pods/b/status", {"status": {"phase": "Succeeded"}})
    api.eventually(lambda: api.get(path)["status"]["used"] == {GPUS: "0", "pods": "0"})
    # Admission's own view of the quota may be a little older than what has just been read.
    api.eventually(
        lambda: api("POST", f"{api.core}/pods", pod("c", 2, priorityClassName=low)).status_code,
        lambda code: code == HTTPStatus.CREATED,
    )


def test_deployment_over_quota_reports_replica_failure(api: Api, low: str) -> None:
    """The Deployment is accepted, its pods are not; the ReplicaSet's condition tells why."""
    _limit(api, {GPUS: "1"}, scopeSelector=_scoped(low))
    body = replicated(replicas=2, pod=pod_spec(1, priorityClassName=low))
    api.create(f"{api.apps}/deployments", body)
    api.running(1)
    (owner,) = api.eventually(
        lambda: api.items(f"{api.apps}/replicasets"), lambda found: "ReplicaFailure" in conditions(found[0])
    )
    assert conditions(owner)["ReplicaFailure"] == ("True", "FailedCreate")
    (condition,) = (entry for entry in owner["status"]["conditions"] if entry["type"] == "ReplicaFailure")
    assert (
        f"exceeded quota: q, requested: {GPUS}=1, used: {GPUS}=1, limited: {GPUS}=1" in condition["message"]
    )


def test_quota_scope_operators_select_pods(api: Api, low: str) -> None:
    """NotIn counts pods of the other classes, Exists those of any class, and those without one by neither."""
    path = _limit(api, {"pods": "1"}, scopeSelector=_scoped(low, "Exists"))
    api.create(f"{api.core}/pods", pod("plain"))
    assert api.get(path)["status"]["used"] == {"pods": "0"}
    api.create(f"{api.core}/pods", pod("a", priorityClassName=low))
    reply = api("POST", f"{api.core}/pods", pod("b", priorityClassName=low))
    assert reply.json()["message"] == (
        'pods "b" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1'
    )


def test_quota_without_scope_counts_all_pods(api: Api) -> None:
    """Whatever class they are of."""
    path = _limit(api, {"count/deployments.apps": "1", "pods": "1", GPUS: "8"})
    api.create(f"{api.core}/pods", pod("a", 3))
    assert api.get(path)["status"]["used"][GPUS] == "3"
    assert api("POST", f"{api.core}/pods", pod("b")).status_code == 403
    api.create(f"{api.apps}/deployments", replicated(replicas=0))
    reply = api("POST", f"{api.apps}/deployments", replicated("v", 0))
    assert "exceeded quota: q, requested: count/deployments.apps=1" in reply.json()["message"]


def test_dry_run_over_quota_is_refused_and_uses_nothing(api: Api) -> None:
    """It is refused as the real write would be, and leaves the count alone."""
    path = _limit(api, {"pods": "1"})
    for _ in range(2):
        assert api("POST", f"{api.core}/pods", pod("a"), params={"dryRun": "All"}).status_code == 201
    assert api.get(path)["status"]["used"] == {"pods": "0"}
    api.create(f"{api.core}/pods", pod("a"))
    assert api("POST", f"{api.core}/pods", pod("b"), params={"dryRun": "All"}).status_code == 403


def test_quota_with_invalid_scope_is_422(strict_api: Api) -> None:
    """In needs values, Exists takes none."""
    for expression in (
        {"scopeName": "PriorityClass", "operator": "In", "values": []},
        {"scopeName": "PriorityClass", "operator": "Exists", "values": ["x"]},
        {"scopeName": "Frob", "operator": "Exists"},
    ):
        spec = {"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": [expression]}}
        reply = strict_api(
            "POST", f"{strict_api.core}/resourcequotas", {"metadata": {"name": "q"}, "spec": spec}
        )
        assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
