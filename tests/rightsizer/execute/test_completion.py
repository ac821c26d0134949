"""Fewer GPUs for a running Job: suspended, changed and resumed, whole or not at all, whatever comes in between."""

import contextlib
import datetime
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rightsizer.changes.record_codec import encode_record
from rightsizer.model import Action, ChangeRecord, Edit, ObjectRef
from simulator.kube import Fault, LoggedRequest
from tests.rightsizer.commands import Run
from tests.rightsizer.given import manifest
from tests.rightsizer.memory import remember
from tests.rightsizer.world import BUDGETS, World, created, gpus_of, stamp

pytestmark = pytest.mark.prometheus

UNDO, HISTORY = "gpu-rightsizer.io/undo", "gpu-rightsizer.io/history"
HOLD = "example.com/hold"
POLICY = (
    """
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
defaults: {kinds: []}
rules:
  - {name: all, match: {everything: true}, mode: enforce, cooldown: 1s, findings: {too-many-gpus: enforce}}
"""
    + BUDGETS
)
HALF_USED = {"gpus": 2, "usage": [["busy", "idle"]]}
LIMIT = ("spec", "template", "spec", "containers", "name=main", "resources", "limits", "nvidia.com/gpu")


def _add(world: World, **given: Any) -> None:
    world.add("Job", world.team, "train", {**HALF_USED, **given})


def _apply(world: World, policy: str = POLICY, *flags: str) -> Run:
    return world.run("apply", "--yes", "-o", "json", "--log-format", "json", *flags, policy=policy).logged()


def _job(world: World) -> dict[str, Any]:
    return created(world.api, "Job", world.team, "train")


def _record(world: World) -> dict[str, Any] | None:
    text = _job(world)["metadata"].get("annotations", {}).get(UNDO)
    return json.loads(text) if text else None


def _ends(world: World) -> list[str | None]:
    past = json.loads(_job(world)["metadata"]["annotations"][HISTORY])
    return [entry.get("end") for entry in past]


def _state(world: World) -> tuple[bool, list[int]]:
    """Whether it is suspended, and the GPUs of each of its pods."""
    pods = [gpus_of(pod) for pod in world.pods_of(world.team, "train") if pod["status"]["phase"] == "Running"]
    return _job(world)["spec"]["suspend"], pods


def _writes(world: World) -> list[LoggedRequest]:
    return [one for one in world.api.requests.mutating() if one.path.endswith("jobs/train")]


def _reconciliations(run: Run) -> list[tuple[str, str]]:
    assert run.out, run.err
    return [(one["action"], one["result"]) for one in json.loads(run.out)["items"] if one["reconciliation"]]


def _events(world: World) -> list[str]:
    events = world.api.list("Event", world.team)
    return [one["reason"] for one in events if one["source"]["component"] == "gpu-rightsizer"]


def test_job_resize_suspends_patches_and_resumes_in_two_patches(world: World) -> None:
    """Two patches: one suspends it and says what is to come, one makes that and resumes it; each with its record."""
    _add(world)
    run = _apply(world)
    assert run.items["train"]["result"] == "done", run.err
    assert _state(world) == (False, [1])
    first, second = (one.json for one in _writes(world))
    assert first["spec"] == {"suspend": True}
    promised = json.loads(first["metadata"]["annotations"][UNDO])
    assert [edit["path"][-1] for edit in promised["edits"]] == ["suspend"]
    assert [(edit["before"], edit["after"]) for edit in promised["pendingEdits"]] == [("2", "1")]
    assert second["spec"]["suspend"] is False
    assert {"uid", "resourceVersion"} <= second["metadata"].keys()
    record = _record(world)
    assert record is not None
    assert (record["action"], "pendingEdits" in record) == ("resize", False)
    assert [edit["path"][-1] for edit in record["edits"]] == ["nvidia.com/gpu"]
    assert (_ends(world), len(json.dumps(promised)) < 2048) == ([None], True)
    assert ("complete", "done") in _reconciliations(run)


def test_job_resize_plan_reports_lost_work(world: World) -> None:
    """In the plan, beside what would be done."""
    _add(world)
    item = world.run("plan", "-o", "json", policy=POLICY).items["train"]
    assert (item["action"], item["mode"]) == ("resize", "enforce")
    assert "since the last checkpoint" in item["lost"]


@pytest.mark.parametrize(("actions", "mode"), [("[resize]", None), ("[suspend]", None)])
def test_job_resize_rule_without_work_loss_consent_is_refused(
    world: World, actions: str, mode: str | None
) -> None:
    """Whoever allows Deployments to shrink has not said that work may be lost."""
    _add(world)
    policy = POLICY.replace("cooldown: 1s", f"cooldown: 1s, actions: {actions}")
    if "resize" not in actions:
        policy = policy.replace(", findings: {too-many-gpus: enforce}", "")
    item = world.run("plan", "-o", "json", policy=policy).items["train"]
    assert item["action"] is mode
    assert "acting on too-many-gpus needs resize and suspend" in str(item["reasons"])


def _be_of_135(world: World) -> None:
    world.api.serve_version(35)


def _say_nothing(world: World) -> None:
    world.api.inject(Fault("^/version$", "GET", None, status=403))


def _say_nonsense(world: World) -> None:
    world.api.inject(Fault("^/version$", "GET", None, status=200, body={"major": "1", "minor": "x"}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "words"),
    [
        (_be_of_135, "this API server has version 1.35"),
        (_say_nothing, "does not state its version"),
        (_say_nonsense, "does not state its version"),
    ],
)
def test_job_resize_unsupported_by_server_is_only_advised(world: World, how: Any, words: str) -> None:
    """Nothing is tried out on a Job that would lose its work by it."""
    how(world)
    _add(world)
    item = world.run("plan", "-o", "json", policy=POLICY).items["train"]
    assert (item["action"], item["mode"]) == ("resize", "advise")
    assert words in str(item["reasons"])
    _apply(world)
    assert (_state(world), _writes(world)) == ((False, [2]), [])


def test_job_resize_on_demand_rule_without_waiters_is_skipped(world: World) -> None:
    """A rule that suspends only while others wait does not suspend for this either."""
    _add(world)
    policy = POLICY.replace("cooldown: 1s", "cooldown: 1s, onlyForPendingPods: [suspend]")
    item = world.run("plan", "-o", "json", policy=policy).items["train"]
    assert [block["code"] for block in item["blockers"]] == ["only-for-pending-pods"]


def test_job_resize_earlier_change_unfinished_is_refused(world: World) -> None:
    """Its owner resumed it before its change was completed, and that cannot be recorded: the record stays."""
    record = _half_done()
    _add(world, annotations={UNDO: encode_record(record)})
    known = {"run": record.run, "at": stamp(record.at), "action": "resize"}
    remember(world.api, ObjectRef("batch/v1", "Job", world.team, "train"), known)
    world.api.inject(Fault("jobs/train", "PATCH", 1, status=403))
    run = _apply(world)
    assert _reconciliations(run) == [("complete", "unknown")]
    assert (run.items["train"]["result"], run.items["train"]["detail"]) == (
        "blocked",
        "the change of run run-0 is not completed yet",
    )
    assert (_record(world) or {})["run"] == "run-0"
    assert _state(world) == (False, [2])


def _half_done() -> ChangeRecord:
    """Of a Job that was suspended twenty hours ago to get one GPU less."""
    at = datetime.datetime.now(datetime.UTC).replace(microsecond=0) - datetime.timedelta(hours=20)
    suspend, gpus = Edit(("spec", "suspend"), before=False, after=True), Edit(LIMIT, "2", "1")
    return ChangeRecord(at, "run-0", Action.RESIZE, 1, edits=(suspend,), pending_edits=(gpus,))


def test_job_resize_that_the_memory_lacks_is_completed(world: World) -> None:
    """It keeps 30 days, and 16 changes of an owner: a Job is not left suspended because of that."""
    _add(world, annotations={UNDO: encode_record(_half_done())})
    world.api.patch("Job", world.team, "train", {"spec": {"suspend": True}})
    world.api.settle()
    assert _reconciliations(_apply(world)) == [("complete", "done")]
    assert _state(world) == (False, [1])


def test_job_resize_suspended_by_others_is_refused(world: World) -> None:
    """Its pods still run: the controller in charge of it has not stopped them yet."""
    job = manifest("Job", world.team, "train", HALF_USED)
    job["spec"] |= {"suspend": True, "managedBy": "example.com/queue"}
    world.namespace(world.team)
    world.clock.stand(time.time() - 25 * 3600)
    uid = world.api.create(job)["metadata"]["uid"]
    pod = manifest("Pod", world.team, "train-x", HALF_USED)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid, "controller": True}
    pod["metadata"] |= {"ownerReferences": [owner], "labels": {"app": "train"}}
    world.api.create(pod)
    world.api.settle()
    world.clock.run()
    world.record(created(world.api, "Pod", world.team, "train-x"), ["busy", "idle"], 2)
    run = _apply(world)
    assert (run.items["train"]["result"], run.items["train"]["detail"]) == (
        "blocked",
        "somebody else suspended it already",
    )
    assert (_writes(world), _record(world)) == ([], None)


@pytest.mark.slow
def test_undo_resized_job_suspends_restores_and_resumes(world: World) -> None:
    """Suspended, what it had, resumed; nothing of ours is left but the memory."""
    _add(world)
    before = _job(world)["spec"]
    _apply(world)
    run = world.run("undo", f"{world.team}/Job/train", "--yes", "-o", "json")
    assert run.items["train"]["result"] == "done", run.out
    assert _state(world) == (False, [2])
    assert (_job(world)["spec"], _record(world), _ends(world)) == (before, None, ["undone"])
    assert [one.json["spec"]["suspend"] for one in _writes(world)] == [True, False, True, False]


@pytest.mark.slow
def test_undo_resized_job_changed_by_owner_is_skipped(world: World) -> None:
    """Resources that are others' by now."""
    _add(world)
    _apply(world)
    world.api.patch("Job", world.team, "train", {"spec": {"suspend": True}})
    world.api.settle()
    containers = _job(world)["spec"]["template"]["spec"]["containers"]
    containers[0]["resources"] = {part: {"nvidia.com/gpu": "4"} for part in ("limits", "requests")}
    patch = {"spec": {"suspend": False, "template": {"spec": {"containers": containers}}}}
    world.api.patch("Job", world.team, "train", patch)
    run = world.run("undo", f"{world.team}/Job/train", "--yes", "-o", "json")
    assert run.items["train"]["result"] == "changed"
    assert _state(world) == (False, [4])


@contextlib.contextmanager
def _killed(world: World, command: str, *flags: str) -> Iterator[None]:
    """A command that is killed after its first write to the Job, whose pods do not go before this ends."""
    for pod in world.pods_of(world.team, "train"):
        _hold(world, pod["metadata"]["name"], [HOLD])
    (world.directory / "policy.yaml").write_text(POLICY)
    asked = [sys.executable, "-m", "rightsizer", command, "--yes", *flags]
    asked += ["--kubeconfig", str(world.directory / "kubeconfig")]
    if command == "apply":
        asked += ["--prometheus-url", world.prometheus.url, "--policy", str(world.directory / "policy.yaml")]
    written, add = threading.Event(), world.api.requests.add

    def noted(entry: LoggedRequest) -> None:
        add(entry)
        if entry.method == "PATCH" and entry.path.endswith("jobs/train") and not entry.dry_run:
            written.set()

    world.api.requests.add = noted  # type: ignore[method-assign]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        asked, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    ) as process:
        happened = written.wait(60)
        process.kill()
        said = process.communicate()[0].decode()
    assert happened, said
    if command == "apply":
        world.api.delete("Lease", "gpu-rightsizer", "gpu-rightsizer")  # as if it had run out
    yield
    for pod in world.api.list("Pod", world.team):
        _hold(world, pod["metadata"]["name"], [])
    world.api.settle()


def _hold(world: World, name: str, finalizers: list[str]) -> None:
    pod = created(world.api, "Pod", world.team, name)
    others = [one for one in pod["metadata"].get("finalizers", ()) if one != HOLD]
    world.api.patch("Pod", world.team, name, {"metadata": {"finalizers": [*others, *finalizers]}})


@pytest.mark.slow
def test_job_resize_killed_halfway_is_finished_by_next_run(world: World) -> None:
    """Not before its pods are gone; and then once."""
    _add(world)
    with _killed(world, "apply"):
        early = _apply(world)
        assert (_reconciliations(early), len(_writes(world))) == ([], 1)
        assert "train" not in early.items
    run = _apply(world)
    assert (_reconciliations(run), _state(world)) == ([("complete", "done")], (False, [1]))
    assert (len(_writes(world)), _ends(world)) == (2, [None])
    assert _reconciliations(_apply(world)) == []


@pytest.mark.slow
def test_job_resize_half_done_opted_out_is_finished(world: World) -> None:
    """An opt-out after the first patch does not leave the Job suspended."""
    _add(world)
    with _killed(world, "apply"):
        notes = {"metadata": {"annotations": {"gpu-rightsizer.io/mode": "off"}}}
        world.api.patch("Job", world.team, "train", notes)
    assert (_reconciliations(_apply(world)), _state(world)) == ([("complete", "done")], (False, [1]))


@pytest.mark.slow
def test_job_resize_half_done_protected_is_not_completed(world: World) -> None:
    """Whoever may annotate a suspended Job of a protected namespace cannot have it changed and resumed."""
    _add(world)
    with _killed(world, "apply"):
        pass
    run = _apply(world, POLICY + "protectedNamespaces: ['team-*']\n")
    assert (_reconciliations(run), _job(world)["spec"]["suspend"]) == ([("complete", "blocked")], True)
    assert len(_writes(world)) == 1


@pytest.mark.slow
def test_undo_half_done_job_resize_resumes_job_in_one_patch(world: World) -> None:
    """At once, by one patch: its template was never touched."""
    _add(world)
    with _killed(world, "apply"):
        assert world.run("undo", "--all", "--yes").code == 0
    assert (_state(world), _record(world), _ends(world)) == ((False, [2]), None, ["undone"])


@pytest.mark.slow
def test_undo_job_half_done_is_finished_by_next_run(world: World) -> None:
    """What it had is restored once its pods are gone."""
    _add(world)
    _apply(world)
    with _killed(world, "undo", "--all"):
        pass
    assert _reconciliations(_apply(world)) == [("complete", "done")]
    assert (_state(world), _record(world), _ends(world)) == ((False, [2]), None, ["undone"])


@pytest.mark.slow
def test_job_resize_refused_by_server_is_not_retried(world: World) -> None:
    """It is resumed as it was, told, and from then on only advised on."""
    _add(world)
    with _killed(world, "apply"):
        world.api.serve_version(35)
    run = _apply(world)
    assert _reconciliations(run) == [("rollback", "done")]
    assert "field is immutable" in run.items["train"]["detail"]
    assert (_state(world), _record(world), _ends(world)) == ((False, [2]), None, ["refused"])
    assert "RolledBack" in _events(world)
    world.api.serve_version(36)
    (pod,) = world.pods_of(world.team, "train")
    world.record(pod, ["busy", "idle"], 2)
    assert _reconciliations(_apply(world)) == []
    assert _state(world) == (False, [2])


@pytest.mark.slow
def test_job_resize_second_patch_out_of_policy_opens_no_breaker(world: World) -> None:
    """The first one would have; the second one follows the record, which the owner may have changed."""
    _add(world)
    with _killed(world, "apply"):
        words = (
            "ValidatingAdmissionPolicy 'gpu-rightsizer-jobs.batch' with binding 'x' denied request: not ours"
        )
        status = {"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": words}
        world.api.inject(Fault("jobs/train$", "PATCH", 1, status=403, body=status))
    run = _apply(world)
    assert _reconciliations(run) == [("rollback", "done")]
    assert (_state(world), _ends(world)) == ((False, [2]), ["refused"])
    assert json.loads(world.run("breaker", "-o", "json").out)["breaker"]["trip"] is None


@pytest.mark.slow
def test_job_resize_half_done_resumed_by_owner_is_left_reverted(world: World) -> None:
    """Whoever resumes it has it as it was; that is remembered."""
    _add(world)
    with _killed(world, "apply"):
        world.api.patch("Job", world.team, "train", {"spec": {"suspend": False}})
    assert _reconciliations(_apply(world)) == [("rollback", "done")]
    assert (_state(world), _record(world), _ends(world)) == ((False, [2]), None, ["reverted"])


@pytest.mark.slow
def test_undo_job_half_done_resumed_by_owner_keeps_record(world: World) -> None:
    """It goes on with less, and with its record."""
    _add(world)
    _apply(world)
    with _killed(world, "undo", "--all"):
        world.api.patch("Job", world.team, "train", {"spec": {"suspend": False}})
    assert _reconciliations(_apply(world)) == [("rollback", "done")]
    assert (_state(world), _ends(world)) == ((False, [1]), [None])
    assert world.run("undo", "--all", "--yes").code == 0
    assert (_state(world), _record(world)) == ((False, [2]), None)


def test_reconcile_job_pod_failing_after_resize_is_rolled_back(world: World) -> None:
    """In two runs: one suspends it, one gives it back."""
    _add(world)
    _apply(world)
    (pod,) = world.pods_of(world.team, "train")
    world.api.patch(
        "Pod", world.team, pod["metadata"]["name"], {"status": {"phase": "Failed"}}, subresource="status"
    )
    world.api.settle()
    assert _reconciliations(_apply(world)) == [("rollback", "done")]
    assert _reconciliations(_apply(world)) == [("complete", "done")]
    assert (_state(world), _record(world), _ends(world)) == ((False, [2]), None, ["rollback"])


@pytest.mark.slow
def test_reconcile_completed_job_is_healthy_and_not_resumed(world: World) -> None:
    """It is not resumed, nor made anew."""
    _add(world)
    _apply(world)
    (pod,) = world.pods_of(world.team, "train")
    name = pod["metadata"]["name"]
    world.api.patch("Pod", world.team, name, {"status": {"phase": "Succeeded"}}, subresource="status")
    world.api.settle()
    run = _apply(world)
    assert _reconciliations(run) == [("confirm", "done")]
    assert "it has ended since: Complete" in run.items["train"]["detail"]
    undone = world.run("undo", "--all", "--yes", "-o", "json").items["train"]
    assert (undone["result"], "it has ended" in undone["detail"]) == ("changed", True)
