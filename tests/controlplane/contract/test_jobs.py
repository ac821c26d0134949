"""Jobs: suspended, resumed, evicted from."""

import datetime
import email.utils

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


def test_running_job_counts_its_pods(api: Api) -> None:
    """Active and ready, with a start time, and no more than the parallelism."""
    _create(api, parallelism=2, completions=5)
    assert _status(api, active=2, ready=2)["startTime"]
    api.running(2)


def test_suspended_job_loses_pods_and_start_time(api: Api) -> None:
    """Active pods are deleted and not counted as failed; startTime goes, and the condition Suspended comes."""
    path = _create(api, parallelism=2, completions=2, backoffLimit=0)
    api.running(2)
    assert api.patch(path, {"spec": {"suspend": True}}).status_code == 200
    api.running(0)
    status = _status(api, active=None, startTime=None)
    assert "failed" not in status
    assert conditions({"status": status})["Suspended"] == ("True", "JobSuspended")
    assert "Failed" not in conditions({"status": status})


def test_resumed_job_starts_new_pods(api: Api) -> None:
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


def test_job_suspended_twice_has_one_condition(api: Api) -> None:
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


def test_job_with_enough_successes_completes(api: Api) -> None:
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


def test_resumed_job_keeps_its_successes(api: Api) -> None:
    """Successes survive; only the rest runs again."""
    path = _create(api, parallelism=2, completions=3)
    api.running(2)
    _end(api, "Succeeded")
    _status(api, succeeded=1)
    api.patch(path, {"spec": {"suspend": True}})
    _status(api, active=None, succeeded=1)
    api.patch(path, {"spec": {"suspend": False}})
    _status(api, active=2, succeeded=1)


def test_job_beyond_backoff_limit_fails(api: Api) -> None:
    """With none, the first failure is the last."""
    path = _create(api, backoffLimit=0)
    api.running(1)
    _end(api, "Failed")
    api.eventually(lambda: conditions(api.get(path)).get("Failed") == ("True", "BackoffLimitExceeded"))
    assert _status(api, failed=1, active=None)


def test_finished_job_suspended_stays_complete(api: Api) -> None:
    """The patch is accepted; the Job stays complete, and is not called suspended."""
    path = _create(api)
    api.running(1)
    _end(api, "Succeeded")
    api.eventually(lambda: "Complete" in conditions(api.get(path)))
    assert api.patch(path, {"spec": {"suspend": True}}).status_code == 200
    found = conditions(api.get(path))
    assert "Suspended" not in found
    assert found["Complete"][0] == "True"


def test_running_job_template_change_is_422(api: Api) -> None:
    """422: pods that run cannot be changed by way of their Job."""
    path = _create(api)
    api.running(1)
    patch = {"spec": {"template": {"spec": {"nodeSelector": {"other": "node"}}}}}
    reply = api.patch(path, patch)
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert "spec.template: Invalid value" in reply.json()["message"]
    assert "field is immutable" in reply.json()["message"]


def _template(**spec: object) -> Object:
    return {"spec": {"template": {"spec": spec}}}


_OTHER_NODES = _template(nodeSelector={"other": "node"}, tolerations=[{"key": "a", "operator": "Exists"}])
_MORE_GPUS = _template(containers=pod_spec(2)["containers"])
_OTHER_IMAGE = _template(containers=[{"name": "main", "image": "app:2"}])


@pytest.mark.parametrize("started", [False, True])
def test_suspended_job_template_is_partly_mutable(api: Api, started: bool) -> None:
    """Suspended from the start or later: it may go elsewhere and ask for other resources, but be nothing else."""
    path = _create(api, suspend=not started)
    if started:
        api.running(1)
        api.patch(path, {"spec": {"suspend": True}})
        api.running(0)
    api.eventually(lambda: conditions(api.get(path)).get("Suspended") == ("True", "JobSuspended"))
    for patch in (_OTHER_NODES, _MORE_GPUS):
        assert api.patch(path, patch).status_code == 200
    reply = api.patch(path, _OTHER_IMAGE)
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    (cause,) = reply.json()["details"]["causes"]
    assert cause["field"] == "spec.template.spec"
    assert cause["message"].endswith("field is immutable")


def test_resumed_job_uses_changed_template(api: Api) -> None:
    """What was changed during the suspension holds for the pods after it."""
    path = _create(api, suspend=True)
    api.eventually(lambda: "Suspended" in conditions(api.get(path)))
    resume = {"spec": {"suspend": False, **_MORE_GPUS["spec"]}}
    assert api.patch(path, resume).status_code == 200
    (found,) = api.running(1)
    assert found["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}


def test_suspended_job_can_change_resources_and_resume_in_one_patch(api: Api) -> None:
    """Suspended, and then changed and resumed by one patch, as a dry run allows once its pods are gone (KEP-5440)."""
    path = _create(api, pod=pod_spec(2))
    api.running(1)
    fewer = {"spec": {"suspend": False, "template": {"spec": {"containers": pod_spec(1)["containers"]}}}}
    assert api.patch(path, fewer, params={"dryRun": "All"}).status_code == 422
    assert api.patch(path, {"spec": {"suspend": True}}).status_code == 200
    api.eventually(
        lambda: api.get(path),
        lambda job: conditions(job).get("Suspended", ("",))[0] == "True" and not job["status"].get("active"),
    )
    assert api.patch(path, fewer, params={"dryRun": "All"}).status_code == 200
    assert api.patch(path, fewer).status_code == 200
    (found,) = api.eventually(
        lambda: [one for one in api.pods(phase="Running") if "deletionTimestamp" not in one["metadata"]]
    )
    assert found["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}


def test_patch_suspending_job_and_changing_template_is_422(api: Api) -> None:
    """One patch cannot do both; neither is done."""
    path = _create(api)
    api.running(1)
    reply = api.patch(path, {"spec": {"suspend": True, **_OTHER_NODES["spec"]}})
    assert reply.status_code == 422
    assert reply.json()["details"]["causes"][0]["field"] == "spec.template"
    assert api.get(path)["spec"]["suspend"] is False


def test_suspended_job_deadline_is_paused(api: Api) -> None:
    """It counts from startTime, and so from the last resumption; what was run before is forgotten."""
    path = _create(api, activeDeadlineSeconds=100)
    api.running(1)
    first = _status(api, active=1)["startTime"]
    api.patch(path, {"spec": {"suspend": True}})
    api.running(0)
    api.patch(path, {"spec": {"activeDeadlineSeconds": 2}})
    api.eventually(lambda: _age_s(api, first) > 2)
    assert "Failed" not in conditions(api.get(path))
    api.patch(path, {"spec": {"suspend": False}})
    api.running(1)
    assert _status(api, active=1)["startTime"] > first
    api.eventually(lambda: conditions(api.get(path)).get("Failed") == ("True", "DeadlineExceeded"))
    api.running(0)


def _age_s(api: Api, moment: str) -> float:
    """Seconds since a timestamp, by the server's own clock."""
    now = email.utils.parsedate_to_datetime(api("GET", "/version").headers["Date"])
    return (now - datetime.datetime.fromisoformat(moment)).total_seconds()


def test_suspended_and_resumed_job_gets_events(api: Api) -> None:
    """On the Job, by its controller."""
    path = _create(api)
    api.running(1)
    for suspend in (True, False):
        api.patch(path, {"spec": {"suspend": suspend}})
        api.running(0 if suspend else 1)
    for reason, message in (("Suspended", "Job suspended"), ("Resumed", "Job resumed")):
        event = _event(api, reason)
        assert (event["type"], event["message"]) == ("Normal", message)
        assert event["source"]["component"] == "job-controller"


def _event(api: Api, reason: str) -> Object:
    selector = f"involvedObject.kind=Job,involvedObject.name=j,reason={reason}"
    (event,) = api.eventually(lambda: api.items(f"{api.core}/events", fieldSelector=selector))
    return event


def test_job_with_less_parallelism_ends_pods(api: Api) -> None:
    """A running Job shrinks without failing."""
    path = _create(api, parallelism=3, completions=8)
    api.running(3)
    api.patch(path, {"spec": {"parallelism": 1}})
    api.running(1)
    assert "failed" not in _status(api, active=1)


@pytest.mark.parametrize("ignoring", [False, True])
def test_evicted_job_pod_is_failure_unless_rule_ignores_it(api: Api, ignoring: bool) -> None:
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


_ON_DISRUPTION = {"onPodConditions": [{"type": "DisruptionTarget"}]}


def test_eviction_under_fail_job_rule_fails_job(api: Api) -> None:
    """Under a FailJob rule on DisruptionTarget, whatever the backoff limit."""
    path = _create(api, backoffLimit=3, podFailurePolicy={"rules": [{"action": "FailJob", **_ON_DISRUPTION}]})
    (found,) = api.running(1)
    name = found["metadata"]["name"]
    assert api("POST", f"{api.core}/pods/{name}/eviction", {"metadata": {"name": name}}).status_code == 201
    job = api.eventually(lambda: api.get(path), lambda seen: "Failed" in conditions(seen))
    assert conditions(job)["Failed"] == ("True", "PodFailurePolicy")
    (entry,) = (entry for entry in job["status"]["conditions"] if entry["type"] == "Failed")
    assert entry["message"] == (
        f"Pod {api.namespace}/{name} has condition DisruptionTarget matching FailJob rule at index 0"
    )


def test_exit_code_under_fail_job_rule_fails_job(api: Api) -> None:
    """Under a FailJob rule on that code."""
    rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1, 42]}}
    path = _create(api, backoffLimit=3, podFailurePolicy={"rules": [rule]})
    api.running(1)
    _end(api, "Failed")
    api.eventually(lambda: conditions(api.get(path)).get("Failed") == ("True", "PodFailurePolicy"))


@pytest.mark.parametrize(
    ("spec", "field", "words"),
    [
        (
            {"podFailurePolicy": {"rules": [{"action": "Shrug", **_ON_DISRUPTION}]}},
            "spec.podFailurePolicy.rules[0].action",
            'Unsupported value: "Shrug": supported values: "Count", "FailIndex", "FailJob", "Ignore"',
        ),
        (
            {"podFailurePolicy": {"rules": [{"action": "Ignore"}]}},
            "spec.podFailurePolicy.rules[0]",
            "Invalid value: specifying one of OnExitCodes and OnPodConditions is required",
        ),
        (
            {
                "podReplacementPolicy": "TerminatingOrFailed",
                "podFailurePolicy": {"rules": [{"action": "Ignore", **_ON_DISRUPTION}]},
            },
            "spec.podReplacementPolicy",
            'Unsupported value: "TerminatingOrFailed": supported values: "Failed"',
        ),
        (
            {
                "pod": pod_spec(restartPolicy="OnFailure"),
                "podFailurePolicy": {"rules": [{"action": "Ignore", **_ON_DISRUPTION}]},
            },
            "spec.template.spec.restartPolicy",
            'Invalid value: "OnFailure": only "Never" is supported when podFailurePolicy is specified',
        ),
        ({"parallelism": -1}, "spec.parallelism", "Invalid value: -1: must be greater than or equal to 0"),
        (
            {"completionMode": "Some"},
            "spec.completionMode",
            'Unsupported value: "Some": supported values: "NonIndexed", "Indexed"',
        ),
    ],
    ids=["action", "no-pattern", "replacement", "restart", "parallelism", "mode"],
)
def test_invalid_job_is_422_with_field(api: Api, spec: Object, field: str, words: str) -> None:
    """422 that names the field."""
    reply = api("POST", f"{api.batch}/jobs", job(**spec))
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    (cause,) = reply.json()["details"]["causes"]
    assert (cause["field"], cause["message"]) == (field, words)


def test_job_deleted_without_policy_orphans_pods(api: Api) -> None:
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


def test_delete_with_unknown_policy_is_422(api: Api) -> None:
    """422 with those that are."""
    reply = api("DELETE", _create(api, suspend=True), params={"propagationPolicy": "Some"})
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert reply.json()["message"] == (
        'DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: "Some": supported values: '
        '"Foreground", "Background", "Orphan", "nil"'
    )


def test_job_without_labels_gets_pod_labels(api: Api) -> None:
    """Where it has none of its own: also the generated ones, by which its pods are found."""
    made = api.create(f"{api.batch}/jobs", job(suspend=True))
    generated = {"batch.kubernetes.io/controller-uid": made["metadata"]["uid"], "job-name": "j", "app": "j"}
    assert generated.items() <= made["metadata"]["labels"].items()
    own = job("own", suspend=True)
    own["metadata"]["labels"] = {"mine": "yes"}
    assert api.create(f"{api.batch}/jobs", own)["metadata"]["labels"] == {"mine": "yes"}


def test_job_with_unschedulable_pods_is_active(api: Api) -> None:
    """Pods that no node has room for count as active, not as ready."""
    _create(api, pod=pod_spec(99))
    assert _status(api, active=1)["ready"] == 0


def test_indexed_job_runs_each_index_in_a_pod(api: Api) -> None:
    """Each index runs in a pod of its own."""
    _create(api, completionMode="Indexed", parallelism=3, completions=3)
    key = "batch.kubernetes.io/job-completion-index"
    assert sorted(found["metadata"]["annotations"][key] for found in api.running(3)) == ["0", "1", "2"]
