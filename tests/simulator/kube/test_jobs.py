"""Jobs: counting, suspending, resuming."""

import pytest

from simulator.kube import ApiServer
from tests.simulator.kube.manifests import Object, job

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


def test_indexed_job_completes_each_index_once(server: ApiServer) -> None:
    """Each index runs once; completed ones are on record as ranges."""
    server.create(job(completionMode="Indexed", parallelism=3, completions=3))
    server.settle()
    key = "batch.kubernetes.io/job-completion-index"
    assert sorted(entry["metadata"]["annotations"][key] for entry in server.list("Pod")) == ["0", "1", "2"]
    end(server, "Succeeded", 3)
    assert get(server)["status"]["completedIndexes"] == "0-2"


def _more(field: str) -> Object:
    amounts = {"nvidia.com/gpu": "2"}
    containers = {"containers": [{"name": "main", "image": "app:1", "resources": {"limits": amounts}}]}
    return {"spec": {"template": {"spec": {"nodeSelector": {"a": "b"}} if field == "nodes" else containers}}}


@pytest.mark.parametrize(
    ("minor", "has_run", "field", "free"),
    [
        (35, False, "nodes", True),
        (35, True, "resources", False),
        (35, False, "resources", False),
        (36, True, "nodes", True),
        (36, True, "resources", True),
        (36, False, "resources", True),
    ],
)
def test_suspended_job_template_is_partly_mutable_by_version(
    server: ApiServer, minor: int, has_run: bool, field: str, free: bool
) -> None:
    """What its pods ask for only from 1.36 on; before, nothing once it has run."""
    server.serve_version(minor)
    server.create(job(suspend=not has_run))
    server.settle()
    if has_run:
        server.patch("Job", "default", "j", {"spec": {"suspend": True}})
        server.settle()
    if free:
        server.patch("Job", "default", "j", _more(field))
    else:
        with pytest.raises(Exception, match=r"spec\.template: Invalid value.*field is immutable"):
            server.patch("Job", "default", "j", _more(field))


def test_suspended_job_with_active_pods_has_immutable_template(server: ApiServer) -> None:
    """Whatever is said of it: the controller has not come to it yet."""
    server.create(job())
    server.settle()
    with server.batch():
        server.patch("Job", "default", "j", {"spec": {"suspend": True}})
        with pytest.raises(Exception, match=r"spec\.template: Invalid value.*field is immutable"):
            server.patch("Job", "default", "j", _more("resources"))
