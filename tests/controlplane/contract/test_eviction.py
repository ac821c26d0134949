"""The eviction subresource and PodDisruptionBudgets."""

from collections.abc import Iterator

import pytest

from tests.controlplane.contract.objects import budget, names, pod, replicated
from tests.controlplane.contract.server import Api, Object

HOLD = "example.com/hold"


@pytest.fixture
def pods(api: Api) -> Iterator[str]:
    """The path of the pods of a StatefulSet of two: w-0 and w-1, held by a finalizer so that they can be seen going."""
    body = replicated(replicas=2, serviceName="w", podManagementPolicy="Parallel")
    body["spec"]["template"]["metadata"]["finalizers"] = [HOLD]
    api.create(f"{api.apps}/statefulsets", body)
    api.running(2)
    yield f"{api.core}/pods"
    api("DELETE", f"{api.apps}/statefulsets/w", {"propagationPolicy": "Orphan"})
    for found in api.pods():
        api.patch(f"{api.core}/pods/{found['metadata']['name']}", {"metadata": {"finalizers": None}})


def _evict(api: Api, name: str = "w-0", *, dry: bool = False, **options: object) -> Object:
    body: Object = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    if options:
        body["deleteOptions"] = options
    reply = api("POST", f"{api.core}/pods/{name}/eviction", body, params={"dryRun": "All"} if dry else {})
    answer: Object = reply.json()
    assert reply.status_code == answer["code"]
    return answer


def _with_budget(api: Api, name: str = "b", **spec: str | int) -> Object:
    """A budget over the pods, once its status is computed."""
    body = budget(name)
    body["spec"].update(spec)
    path = f"{api.policy}/poddisruptionbudgets"
    api.create(path, body)
    return api.eventually(
        lambda: api.get(f"{path}/{name}"),
        lambda found: (
            found.get("status", {}).get("currentHealthy") == 2
            and found["status"].get("observedGeneration") == 1
        ),
    )


def _is_going(api: Api, name: str = "w-0") -> bool:
    return "deletionTimestamp" in api.get(f"{api.core}/pods/{name}")["metadata"]


def test_evicted_pod_gets_disruption_target_and_terminates(api: Api, pods: str) -> None:
    """201; the pod terminates and tells why, for those who must decide whether that was a failure."""
    answer = _evict(api)
    assert (answer["status"], answer["code"]) == ("Success", 201)
    going = api.get(f"{pods}/w-0")
    # Its kubelet may have ended it meanwhile, with a grace of 0; the finalizer holds it.
    assert going["metadata"]["deletionGracePeriodSeconds"] in {30, 0}
    conditions = {entry["type"]: entry for entry in going["status"]["conditions"]}
    assert conditions["DisruptionTarget"]["status"] == "True"
    assert conditions["DisruptionTarget"]["reason"] == "EvictionByEvictionAPI"


def test_evicted_pod_of_deployment_is_replaced(api: Api) -> None:
    """Evicting one of a Deployment's pods frees nothing for long."""
    api.create(f"{api.apps}/deployments", replicated())
    (before,) = api.running(1)
    assert _evict(api, before["metadata"]["name"])["code"] == 201
    api.eventually(lambda: api.running(1), lambda found: names(found) != names([before]))


def test_eviction_with_other_name_in_body_is_400(api: Api, pods: str) -> None:
    """A body for another pod than the path's is 400."""
    reply = api("POST", f"{pods}/w-0/eviction", {"metadata": {"name": "w-1"}})
    assert (reply.status_code, reply.json()["reason"]) == (400, "BadRequest")
    assert not _is_going(api, "w-1")


def test_eviction_of_missing_pod_is_404(api: Api) -> None:
    """Evicting what does not exist is 404."""
    answer = _evict(api, "none")
    assert (answer["code"], answer["reason"], answer["details"]["name"]) == (404, "NotFound", "none")


def test_eviction_with_other_uid_is_409(api: Api, pods: str) -> None:
    """A UID precondition that does not hold is 409, and the pod stays; one that holds evicts."""
    uid = api.get(f"{pods}/w-0")["metadata"]["uid"]
    refused = _evict(api, preconditions={"uid": "another"})
    assert (refused["code"], refused["reason"]) == (409, "Conflict")
    assert (
        f"the UID in the precondition (another) does not match the UID in record ({uid})"
        in refused["message"]
    )
    assert not _is_going(api)
    assert _evict(api, preconditions={"uid": uid})["code"] == 201
    assert _is_going(api)


def test_eviction_with_stale_version_is_409(api: Api, pods: str) -> None:
    """A resourceVersion precondition holds, too, in a dry run as in earnest: this is the rightsizer's."""
    seen = api.get(f"{pods}/w-0")["metadata"]
    stale = {"uid": seen["uid"], "resourceVersion": seen["resourceVersion"]}
    now = api.patch(f"{pods}/w-0", {"metadata": {"annotations": {"keep": "me"}}}).json()["metadata"]
    for dry in (True, False):
        refused = _evict(api, dry=dry, preconditions=stale, dryRun=["All"] if dry else [])
        assert (refused["code"], refused["reason"]) == (409, "Conflict")
    assert not _is_going(api)
    fresh = {**stale, "resourceVersion": now["resourceVersion"]}
    assert _evict(api, dry=True, preconditions=fresh, dryRun=["All"])["code"] == 201
    assert not _is_going(api)
    assert _evict(api, preconditions=fresh)["code"] == 201
    assert _is_going(api)


@pytest.mark.parametrize(
    ("spec", "allowed", "desired"),
    [
        pytest.param({"minAvailable": 1}, 1, 1, id="min-number"),
        pytest.param({"minAvailable": 2}, 0, 2, id="min-all"),
        pytest.param({"minAvailable": "51%"}, 0, 2, id="min-percent-rounds-up"),
        pytest.param({"maxUnavailable": 1}, 1, 1, id="max-number"),
        pytest.param({"maxUnavailable": "10%"}, 1, 1, id="max-percent-rounds-up"),
        pytest.param({"maxUnavailable": 0}, 0, 2, id="max-none"),
    ],
)
@pytest.mark.usefixtures("pods")
def test_budget_status_counts_healthy_pods(
    api: Api, spec: dict[str, str | int], allowed: int, desired: int
) -> None:
    """Budgets count healthy pods against numbers and percentages."""
    status = _with_budget(api, "b", **spec)["status"]
    assert (status["disruptionsAllowed"], status["desiredHealthy"]) == (allowed, desired)
    assert (status["currentHealthy"], status["expectedPods"]) == (2, 2)


@pytest.mark.usefixtures("pods")
def test_eviction_without_allowed_disruptions_is_429(api: Api) -> None:
    """429 with the budget and its counts as cause DisruptionBudget; the pod stays, nothing says when to try again."""
    _with_budget(api, minAvailable=2)
    reply = api("POST", f"{api.core}/pods/w-0/eviction", {"metadata": {"name": "w-0"}})
    status = reply.json()
    assert (reply.status_code, status["reason"]) == (429, "TooManyRequests")
    assert status["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    (cause,) = status["details"]["causes"]
    assert cause["reason"] == "DisruptionBudget"
    assert cause["message"] == "The disruption budget b needs 2 healthy pods and has 2 currently"
    assert "Retry-After" not in reply.headers
    assert not _is_going(api)


@pytest.mark.usefixtures("pods")
def test_eviction_beyond_allowed_disruptions_is_429(api: Api) -> None:
    """With room for one disruption the second eviction in a row is blocked; a pod that is going needs no budget."""
    _with_budget(api, maxUnavailable=1)
    assert _evict(api, "w-0")["code"] == 201
    assert _evict(api, "w-1")["code"] == 429
    assert _evict(api, "w-0")["code"] == 201


@pytest.mark.usefixtures("pods")
def test_eviction_dry_run_uses_no_disruption(api: Api) -> None:
    """It tells whether an eviction would be allowed, and uses nothing up."""
    before = _with_budget(api, maxUnavailable=1)
    path = f"{api.policy}/poddisruptionbudgets/b"
    assert _evict(api, dry=True)["code"] == 201
    assert api.get(path)["status"] == before["status"]
    assert not _is_going(api)
    api.patch(path, {"spec": {"maxUnavailable": 0}})
    api.eventually(lambda: api.get(path)["status"]["observedGeneration"] == 2)
    assert _evict(api, dry=True)["code"] == 429


@pytest.mark.usefixtures("pods")
def test_eviction_under_two_budgets_is_500(api: Api) -> None:
    """The API server evicts no pod that two budgets cover, and calls that an error of its own, without a reason."""
    _with_budget(api, "b", maxUnavailable=1)
    _with_budget(api, "c", maxUnavailable=1)
    answer = _evict(api)
    assert (answer["status"], answer["code"]) == ("Failure", 500)
    assert answer["message"] == (
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    )
    assert not {"reason", "details"} & answer.keys()
    assert not _is_going(api)


def test_eviction_of_pending_pod_ignores_budget(api: Api) -> None:
    """A pending pod is no disruption: it goes at once."""
    labels = {"app": "w"}
    api.create(f"{api.core}/pods", pod("p", 99, labels=labels))
    path = f"{api.policy}/poddisruptionbudgets"
    api.create(path, budget(minAvailable=1))
    api.eventually(lambda: api.get(f"{path}/b").get("status", {}).get("expectedPods") == 1)
    assert _evict(api, "p")["code"] == 201
    api.eventually(lambda: api("GET", f"{api.core}/pods/p").status_code == 404)


def test_scale_down_ignores_budget(api: Api) -> None:
    """Budgets speak of evictions only: whoever scales to zero must look at them himself."""
    api.create(f"{api.apps}/deployments", replicated(replicas=2))
    api.running(2)
    _with_budget(api, minAvailable=2)
    assert api.patch(f"{api.apps}/deployments/w", {"spec": {"replicas": 0}}).status_code == 200
    api.running(0)
