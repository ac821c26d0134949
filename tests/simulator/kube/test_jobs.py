"""Jobs: counting, suspending, resuming."""

import pytest

from simulator.kube import ApiServer
from tests.simulator.kube.manifests import Object, job, names, pod_spec
from tests.simulator.kube.wire import Clock, Http

pytestmark = pytest.mark.usefixtures("nodes")
JOB = "/apis/batch/v1/namespaces/default/jobs/j"


def get(server: ApiServer) -> Object:
    """The Job, once nothing moves."""
    server.settle()
    stored = server.get("Job", "default", "j")
    assert stored is not None
    return stored


def conditions(server: ApiServer) -> dict[str, tuple[str, str]]:
    """Status and reason of the Job's conditions."""
    return {
        entry["type"]: (entry["status"], entry["reason"])
        for entry in get(server)["status"].get("conditions", ())
    }


def end(server: ApiServer, phase: str, count: int = 1) -> None:
    """Let running pods of the Job end."""
    running = [entry for entry in server.list("Pod") if entry["status"]["phase"] == "Running"]
    for entry in running[:count]:
        name = entry["metadata"]["name"]
        server.patch("Pod", "default", name, {"status": {"phase": phase}}, subresource="status")
    server.settle()


def test_as_many_pods_run_as_the_parallelism_says(server: ApiServer) -> None:
    """Active and ready pods are counted; the start time is set."""
    server.create(job(parallelism=3, completions=5))
    status = get(server)["status"]
    assert (status["active"], status["ready"], status["startTime"]) == (3, 3, "2026-11-20T12:00:00Z")


def test_a_job_completes(server: ApiServer, clock: Clock) -> None:
    """Succeeded pods are counted, replaced while more are wanted, and at the end the Job is Complete."""
    server.create(job(parallelism=2, completions=3))
    server.settle()
    end(server, "Succeeded", 2)
    assert (get(server)["status"]["succeeded"], get(server)["status"]["active"]) == (2, 1)
    clock.forward(60)
    end(server, "Succeeded")
    status = get(server)["status"]
    assert conditions(server)["Complete"] == ("True", "CompletionsReached")
    assert (status["succeeded"], status["completionTime"]) == (3, "2026-11-20T12:01:00Z")
    assert "active" not in status


def test_a_job_fails_beyond_its_backoff_limit(server: ApiServer) -> None:
    """Failures are replaced up to the limit, then the Job is Failed and its pods go."""
    server.create(job(backoffLimit=1))
    server.settle()
    end(server, "Failed")
    assert (get(server)["status"]["failed"], get(server)["status"]["active"]) == (1, 1)
    end(server, "Failed")
    assert conditions(server)["Failed"] == ("True", "BackoffLimitExceeded")


def test_suspending_ends_the_pods_and_forgets_the_start(server: ApiServer) -> None:
    """Active pods are deleted without counting as failures, startTime goes, the condition Suspended comes."""
    server.create(job(parallelism=2, completions=2))
    server.settle()
    server.patch("Job", "default", "j", {"spec": {"suspend": True}})
    status = get(server)["status"]
    assert server.list("Pod") == []
    assert not {"active", "failed", "startTime"} & status.keys()
    assert conditions(server)["Suspended"] == ("True", "JobSuspended")


def test_resuming_starts_anew(server: ApiServer, clock: Clock) -> None:
    """After a resume pods come back and startTime is that of the resume."""
    server.create(job(parallelism=2, completions=2, suspend=True))
    assert "startTime" not in get(server)["status"]
    assert server.list("Pod") == []
    clock.forward(3600)
    server.patch("Job", "default", "j", {"spec": {"suspend": False}})
    assert get(server)["status"]["startTime"] == "2026-11-20T13:00:00Z"
    assert get(server)["status"]["active"] == 2
    assert conditions(server)["Suspended"] == ("False", "JobResumed")


def test_what_was_done_before_a_suspension_counts(server: ApiServer) -> None:
    """Successes survive suspension; only the rest runs again."""
    server.create(job(parallelism=2, completions=3))
    server.settle()
    end(server, "Succeeded")
    server.patch("Job", "default", "j", {"spec": {"suspend": True}})
    server.settle()
    server.patch("Job", "default", "j", {"spec": {"suspend": False}})
    status = get(server)["status"]
    assert (status["succeeded"], status["active"]) == (1, 2)


def test_less_parallelism_ends_pods(server: ApiServer) -> None:
    """Lowering the parallelism shrinks a running Job."""
    server.create(job(parallelism=4, completions=8))
    server.settle()
    server.patch("Job", "default", "j", {"spec": {"parallelism": 1}})
    assert get(server)["status"]["active"] == 1


def test_indexed_jobs_number_their_pods(server: ApiServer) -> None:
    """Each index runs once; completed ones are on record as ranges."""
    server.create(job(completionMode="Indexed", parallelism=3, completions=3))
    server.settle()
    key = "batch.kubernetes.io/job-completion-index"
    assert sorted(entry["metadata"]["annotations"][key] for entry in server.list("Pod")) == ["0", "1", "2"]
    end(server, "Succeeded", 3)
    assert get(server)["status"]["completedIndexes"] == "0-2"


@pytest.mark.parametrize("ignoring", [False, True])
def test_an_evicted_pod_counts_as_a_failure_unless_a_rule_ignores_it(
    server: ApiServer,
    http: Http,
    ignoring: bool,
) -> None:
    """Eviction uses up the backoff limit, except under a podFailurePolicy on DisruptionTarget."""
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    server.create(job(podFailurePolicy={"rules": [rule] if ignoring else []}))
    server.settle()
    [name] = names(server.list("Pod"))
    http("POST", f"/api/v1/namespaces/default/pods/{name}/eviction", {"metadata": {"name": name}})
    status = get(server)["status"]
    assert status.get("failed", 0) == (0 if ignoring else 1)
    assert status["active"] == 1
    assert names(server.list("Pod")) != [name]


def test_deleting_a_job_without_a_policy_leaves_its_pods(server: ApiServer, http: Http) -> None:
    """batch/v1 orphans by default and warns about it; with Background the pods go too."""
    server.create(job())
    server.settle()
    assert "child pods are preserved by default" in http("DELETE", JOB).headers["Warning"]
    server.settle()
    [left] = server.list("Pod")
    assert "ownerReferences" not in left["metadata"]
    assert "finalizers" not in left["metadata"]
    server.create(job())
    server.settle()
    assert "Warning" not in http("DELETE", JOB, {"propagationPolicy": "Background"}).headers
    server.settle()
    assert names(server.list("Pod")) == names([left])


def test_a_pending_job_is_counted_as_active(server: ApiServer) -> None:
    """Pods that wait for a GPU are active and not ready."""
    server.create(job(template={"spec": pod_spec(gpus=100, restartPolicy="Never")}))
    status = get(server)["status"]
    assert (status["active"], status["ready"]) == (1, 0)
