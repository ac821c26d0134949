"""Jobs: suspended, resumed, evicted from."""

import pytest

from tests.controlplane.contract.objects import conditions, job, names, pod_spec
from tests.controlplane.contract.server import Api, Object


def _create(api: Api, *, pod: Object | None = None, **spec: object) -> str:
    api.create(f"{api.batch}/jobs", job("j", pod=pod, **spec))
    return f"{api.batch}/jobs/j"


def _status(api: Api, **expected: object) -> Object:
    """The Job's status, once it holds what is expected; None means that a field is absent."""
    status: Object = api.eventually(
        lambda: api.get(f"{api.batch}/jobs/j").get("status", {}),
        lambda found: all(found.get(field) == value for field, value in expected.items()),
    )
    return status


def test_a_running_job_counts_its_pods(api: Api) -> None:
    """Active and ready, with a start time, and no more than the parallelism."""
    _create(api, parallelism=2, completions=5)
    assert _status(api, active=2, ready=2)["startTime"]
    api.running(2)


def test_suspending_ends_the_pods_and_forgets_the_start(api: Api) -> None:
    """Active pods are deleted and not counted as failed; startTime goes, and the condition Suspended comes."""
    path = _create(api, parallelism=2, completions=2, backoffLimit=0)
    api.running(2)
    assert api.patch(path, {"spec": {"suspend": True}}).status_code == 200
    api.running(0)
    status = _status(api, active=None, startTime=None)
    assert "failed" not in status
    assert conditions({"status": status})["Suspended"] == ("True", "JobSuspended")
    assert "Failed" not in conditions({"status": status})


def test_resuming_starts_anew(api: Api) -> None:
    """Other pods run, there is a start time again, and the condition says that it was resumed."""
    path = _create(api, parallelism=2, completions=2, suspend=True)
    _status(api, startTime=None)
    api.eventually(lambda: "Suspended" in conditions(api.get(path)))
    assert api.pods() == []
    api.patch(path, {"spec": {"suspend": False}})
    api.running(2)
    status = _status(api, active=2)
    assert status["startTime"]
    assert conditions({"status": status})["Suspended"] == ("False", "JobResumed")


def test_suspending_twice_leaves_one_record(api: Api) -> None:
    """Pods of the second run are not those of the first."""
    path = _create(api)
    (first,) = api.running(1)
    api.patch(path, {"spec": {"suspend": True}})
    api.running(0)
    api.patch(path, {"spec": {"suspend": False}})
    (second,) = api.running(1)
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    api.patch(path, {"spec": {"suspend": True}})
    api.running(0)
    assert conditions(api.get(path))["Suspended"][0] == "True"


def _end(api: Api, phase: str, count: int = 1) -> None:
    """Let running pods end, as their kubelet would tell."""
    running = api.pods(phase="Running")
    for found in running[:count]:
        name = found["metadata"]["name"]
        code = 0 if phase == "Succeeded" else 1
        state = {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}}
        statuses = [
            {**entry, "ready": False, "state": state} for entry in found["status"]["containerStatuses"]
        ]
        patch = {"status": {"phase": phase, "containerStatuses": statuses}}
        assert api.patch(f"{api.core}/pods/{name}/status", patch).status_code == 200


def test_a_job_completes(api: Api) -> None:
    """Successes count, and the last one completes it."""
    path = _create(api, parallelism=2, completions=3)
    api.running(2)
    _end(api, "Succeeded", 2)
    _status(api, succeeded=2, active=1)
    api.eventually(lambda: len(api.pods(phase="Running")) == 1)
    _end(api, "Succeeded")
    status = _status(api, succeeded=3, active=None)
    api.eventually(lambda: conditions(api.get(path)).get("Complete") == ("True", "CompletionsReached"))
    assert "failed" not in status


def test_what_was_done_before_a_suspension_counts(api: Api) -> None:
    """Successes survive; only the rest runs again."""
    path = _create(api, parallelism=2, completions=3)
    api.running(2)
    _end(api, "Succeeded")
    _status(api, succeeded=1)
    api.patch(path, {"spec": {"suspend": True}})
    _status(api, active=None, succeeded=1)
    api.patch(path, {"spec": {"suspend": False}})
    _status(api, active=2, succeeded=1)


def test_a_job_fails_beyond_its_backoff_limit(api: Api) -> None:
    """With none, the first failure is the last."""
    path = _create(api, backoffLimit=0)
    api.running(1)
    _end(api, "Failed")
    api.eventually(lambda: conditions(api.get(path)).get("Failed") == ("True", "BackoffLimitExceeded"))
    assert _status(api, failed=1, active=None)


def test_a_finished_job_can_be_suspended_to_no_effect(api: Api) -> None:
    """The patch is accepted; the Job stays complete, and is not called suspended."""
    path = _create(api)
    api.running(1)
    _end(api, "Succeeded")
    api.eventually(lambda: "Complete" in conditions(api.get(path)))
    assert api.patch(path, {"spec": {"suspend": True}}).status_code == 200
    found = conditions(api.get(path))
    assert "Suspended" not in found
    assert found["Complete"][0] == "True"


def test_a_running_jobs_template_is_fixed(api: Api) -> None:
    """422: pods that run cannot be changed by way of their Job."""
    path = _create(api)
    api.running(1)
    patch = {"spec": {"template": {"spec": {"nodeSelector": {"other": "node"}}}}}
    reply = api.patch(path, patch)
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert "spec.template: Invalid value" in reply.json()["message"]
    assert "field is immutable" in reply.json()["message"]


def test_a_job_that_never_started_may_choose_other_nodes(api: Api) -> None:
    """While it is suspended and has not started: node selector, tolerations, labels."""
    path = _create(api, suspend=True)
    _status(api, startTime=None)
    patch = {"spec": {"template": {"spec": {"nodeSelector": {"other": "node"}}}}}
    assert api.patch(path, patch).status_code == 200


def test_less_parallelism_ends_pods(api: Api) -> None:
    """A running Job shrinks without failing."""
    path = _create(api, parallelism=3, completions=8)
    api.running(3)
    api.patch(path, {"spec": {"parallelism": 1}})
    api.running(1)
    assert "failed" not in _status(api, active=1)


@pytest.mark.parametrize("ignoring", [False, True])
def test_an_evicted_pod_is_a_failure_unless_a_rule_ignores_it(api: Api, ignoring: bool) -> None:
    """Eviction uses up the backoff limit, except under a podFailurePolicy on DisruptionTarget."""
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    more = {"podFailurePolicy": {"rules": [rule]}} if ignoring else {}
    _create(api, backoffLimit=3, **more)
    (before,) = api.running(1)
    name = before["metadata"]["name"]
    assert api("POST", f"{api.core}/pods/{name}/eviction", {"metadata": {"name": name}}).status_code == 201
    _status(api, failed=None if ignoring else 1, active=1, ready=1)
    api.eventually(
        lambda: names(api.pods(phase="Running")), lambda found: len(found) == 1 and found != [name]
    )


def test_deleting_a_job_takes_its_pods_along_only_if_told(api: Api) -> None:
    """A deletion without a policy orphans the pods, and warns; Background takes them along."""
    path = _create(api)
    api.running(1)
    reply = api("DELETE", path)
    assert "child pods are preserved by default when jobs are deleted" in reply.headers["Warning"]
    api.eventually(lambda: api("GET", path).status_code == 404)
    (left,) = api.eventually(api.pods, lambda found: "ownerReferences" not in found[0]["metadata"])
    assert left["status"]["phase"] == "Running"
    _create(api)
    api.running(2)
    assert "Warning" not in api("DELETE", path, {"propagationPolicy": "Background"}).headers
    api.eventually(lambda: names(api.pods()) == names([left]))


def test_a_waiting_job_is_active(api: Api) -> None:
    """Pods that no node has room for count as active, not as ready."""
    _create(api, pod=pod_spec(99))
    assert _status(api, active=1)["ready"] == 0


def test_indexed_jobs_number_their_pods(api: Api) -> None:
    """Each index runs in a pod of its own."""
    _create(api, completionMode="Indexed", parallelism=3, completions=3)
    key = "batch.kubernetes.io/job-completion-index"
    assert sorted(found["metadata"]["annotations"][key] for found in api.running(3)) == ["0", "1", "2"]
