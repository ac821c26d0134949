"""Acting on the wire: what is sent, what happens when the API server says no, and what undo brings back."""

import base64
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from simulator.kube import Fault, LoggedRequest, Rule
from tests.rightsizer.world import DEFAULT_POLICY, World, created

pytestmark = pytest.mark.prometheus

UNDO = "gpu-rightsizer.io/undo"


def _writes(world: World) -> list[LoggedRequest]:
    """Writes that took effect or tried to, without Events and our own state."""
    ours = ("/events", "/configmaps", "/configmaps/gpu-rightsizer-state")
    requests = world.api.requests.mutating()
    return [one for one in requests if not one.path.endswith(ours) and "/leases" not in one.path]


def _apply(world: World, *flags: str) -> Any:
    return world.run("apply", "--yes", "-o", "json", *flags, policy=DEFAULT_POLICY)


def _replicas(world: World, name: str) -> int:
    replicas: int = created(world.api, "Deployment", world.team, name)["spec"]["replicas"]
    return replicas


def test_plan_dry_run_sends_no_mutating_request(world: World) -> None:
    """A plan works with an account that may only read, and asks for nothing else."""
    world.api.add_user("reader", "reader")
    world.api.allow(Rule("reader", verbs=("get", "list")))
    world.write_kubeconfig("reader")
    world.add("Deployment", world.team, "idle", {})
    run = world.run("plan", "-o", "json", policy=DEFAULT_POLICY)
    assert (run.code, run.items["idle"]["verdict"]) == (0, "act")
    assert world.api.requests.mutating(include_dry_run=True) == []


def test_patch_carries_change_record_and_precondition(world: World) -> None:
    """Each change is one PATCH, tried by the server before; its record says what was, why, and by which rule."""
    world.add("Deployment", world.team, "idle", {"replicas": 3})
    before = created(world.api, "Deployment", world.team, "idle")["metadata"]
    run = _apply(world)
    tried, real = (one for one in world.api.requests.mutating(include_dry_run=True) if one.method == "PATCH")
    assert (tried.dry_run, real.dry_run) == (True, False)
    assert tried.json == real.json
    body = real.json
    named = {key: body["metadata"][key] for key in ("uid", "resourceVersion")}
    assert named == {key: before[key] for key in named}
    assert body["spec"] == {"replicas": 0}
    record = json.loads(body["metadata"]["annotations"][UNDO])
    assert record["edits"] == [{"path": ["spec", "replicas"], "before": 3, "after": 0}]
    assert (record["rule"], record["finding"], record["action"]) == ("scavengers", "idle", "scale-to-zero")
    assert record["run"] == json.loads(run.out)["metadata"]["run"]
    assert {"fieldManager=gpu-rightsizer", "fieldValidation=Strict"} <= set(real.query.split("&"))


def test_change_that_no_record_can_hold_is_only_advised(world: World) -> None:
    """Its owner wrote a value that undo could not restore: this workload alone is left, and nothing is written."""
    stop = "serving.kserve.io/stop"
    world.add("InferenceService.serving.kserve.io", world.team, "odd", {"annotations": {stop: 'a"b'}})
    world.add("Deployment", world.team, "idle", {})
    run = _apply(world)
    assert {name: item["result"] for name, item in run.items.items()} == {"idle": "done"}, run.out
    item = world.run("plan", "-o", "json", policy=DEFAULT_POLICY).items["odd"]
    assert (item["verdict"], item["mode"]) == ("act", "advise")
    assert any("no undo record can hold this change" in reason for reason in item["reasons"]), item


def test_event_after_change_names_reason_and_undo_command(world: World) -> None:
    """An Event says for kubectl describe what was done, why, and how to get it back."""
    world.add("Deployment", world.team, "idle", {})
    _apply(world)
    (event,) = (
        one for one in world.api.list("Event", world.team) if one["source"]["component"] == "gpu-rightsizer"
    )
    assert (event["reason"], event["type"]) == ("ScaledToZero", "Normal")
    assert (
        event["involvedObject"]["uid"]
        == created(world.api, "Deployment", world.team, "idle")["metadata"]["uid"]
    )
    assert f"Undo: gpu-rightsizer undo {world.team}/Deployment/idle" in event["message"]


def test_evict_carries_pod_uid_after_manifest_is_saved(world: World) -> None:
    """The pod's manifest is safe before the pod is asked to go, and no other pod of its name can be hit."""
    world.add("Pod", world.team, "shell", {})
    meta = created(world.api, "Pod", world.team, "shell")["metadata"]
    _apply(world)
    saved, eviction = _writes(world)
    assert saved.path == "/api/v1/namespaces/gpu-rightsizer/secrets"
    assert eviction.path == f"/api/v1/namespaces/{world.team}/pods/shell/eviction"
    preconditions = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
    assert eviction.json["deleteOptions"] == {"preconditions": preconditions}
    manifest = json.loads(base64.b64decode(saved.json["data"]["manifest"]))
    assert manifest["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert not {"nodeName", "priority"} & manifest["spec"].keys()


def test_undo_evicted_pod_is_recreated_and_manifest_deleted(world: World) -> None:
    """The pod comes back as it was written, and the saved manifest goes."""
    world.add("Pod", world.team, "shell", {"gpus": 2, "annotations": {"keep": "me"}})
    before = created(world.api, "Pod", world.team, "shell")
    _apply(world)
    assert world.pods_of(world.team, "shell") == []
    run = world.run("undo", f"{world.team}/Pod/shell", "--yes", "-o", "json")
    assert run.items["shell"]["result"] == "done", run.err
    after = created(world.api, "Pod", world.team, "shell")
    assert after["spec"]["containers"] == before["spec"]["containers"]
    assert after["metadata"]["annotations"]["keep"] == "me"
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert world.api.list("Secret", "gpu-rightsizer") == []


def test_undo_repeated_changes_nothing(world: World) -> None:
    """What was restored carries no record any more."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    _apply(world)
    assert world.run("undo", "--all", "--yes", "-o", "json").items["idle"]["result"] == "done"
    assert _replicas(world, "idle") == 2
    world.api.requests.clear()
    again = world.run("undo", "--all", "--yes", "-o", "json")
    assert (again.code, again.items) == (0, {})
    assert _writes(world) == []


def test_undo_workload_changed_since_is_skipped_without_force(world: World) -> None:
    """A person's own number stands, and is shown; --force overrides it."""
    world.add("Deployment", world.team, "idle", {"replicas": 3})
    _apply(world)
    world.api.patch("Deployment", world.team, "idle", {"spec": {"replicas": 1}})
    run = world.run("undo", f"{world.team}/Deployment/idle", "--yes", "-o", "json")
    assert (run.code, run.items["idle"]["result"]) == (1, "changed")
    assert "spec.replicas is 1; gpu-rightsizer had set it to 0" in run.items["idle"]["detail"]
    assert _replicas(world, "idle") == 1
    forced = world.run("undo", f"{world.team}/Deployment/idle", "--yes", "--force", "-o", "json")
    assert forced.items["idle"]["result"] == "done"
    assert _replicas(world, "idle") == 3


def test_undo_run_flag_limits_to_that_run(world: World) -> None:
    """--run chooses what one run changed."""
    world.add("Deployment", world.team, "first", {})
    first = json.loads(_apply(world).out)["metadata"]["run"]
    world.add("Deployment", world.team, "second", {})
    _apply(world)
    assert set(world.run("undo", "--run", first, "--yes", "-o", "json").items) == {"first"}
    assert (_replicas(world, "first"), _replicas(world, "second")) == (1, 0)


def test_undo_without_secret_access_warns_and_restores_workloads(world: World) -> None:
    """Who may not list our Secrets can still restored what carries its own record; the rest is a warning."""
    world.add("Deployment", world.team, "idle", {})
    _apply(world)
    world.api.deny(Rule("*", resources=("secrets",)))
    assert world.run("undo", "--all", "--yes", "-o", "json").items["idle"]["result"] == "done"


def test_undo_record_unreadable_is_reported(world: World) -> None:
    """Someone's edit of the annotation is named, and nothing is guessed."""
    world.add("Deployment", world.team, "idle", {})
    _apply(world)
    world.api.patch("Deployment", world.team, "idle", {"metadata": {"annotations": {UNDO: "{broken"}}})
    run = world.run("undo", "--all", "--yes", "-o", "json")
    assert (run.code, run.items["idle"]["result"]) == (1, "refused")
    assert "cannot be read" in run.items["idle"]["detail"]
    assert _replicas(world, "idle") == 0


def test_apply_saved_plan_outdated_items_are_skipped(world: World) -> None:
    """What was changed, or began to work, between plan and apply is left alone."""
    for name in ("same", "edited", "scaled", "gone", "busy", "opted-out"):
        world.add("Deployment", world.team, name, {"replicas": 2})
    path = world.directory / "plan.json"
    assert world.run("plan", "--save", str(path), policy=DEFAULT_POLICY).code == 0
    world.api.patch("Deployment", world.team, "edited", {"spec": {"minReadySeconds": 5}})
    world.api.patch("Deployment", world.team, "scaled", {"spec": {"replicas": 3}})
    world.api.delete("Deployment", world.team, "gone")
    annotation = {"metadata": {"annotations": {"gpu-rightsizer.io/mode": "off"}}}
    world.api.patch("Deployment", world.team, "opted-out", annotation)
    for pod in world.pods_of(world.team, "busy"):
        world.record(pod, "busy", 1)
    world.add("Deployment", world.team, "not-in-the-plan", {})
    run = _apply(world, "--plan", str(path))
    assert {name: item["result"] for name, item in run.items.items()} == {
        "same": "done",
        "edited": "changed",
        "scaled": "changed",
        "gone": "changed",
        "busy": "changed",
        "opted-out": "changed",
    }
    assert (_replicas(world, "scaled"), _replicas(world, "busy"), _replicas(world, "not-in-the-plan")) == (
        3,
        2,
        1,
    )


def _scale_up(world: World) -> None:
    world.api.patch("Deployment", world.team, "idle", {"spec": {"replicas": 5}})


def _edit(world: World) -> None:
    world.api.patch("Deployment", world.team, "idle", {"spec": {"minReadySeconds": 5}})


def _opt_out_of_action(world: World) -> None:
    annotations = {"gpu-rightsizer.io/mode": "advise"}
    world.api.patch("Namespace", None, world.team, {"metadata": {"annotations": annotations}})


def _opt_out(world: World) -> None:
    world.api.patch(
        "Deployment", world.team, "idle", {"metadata": {"annotations": {"gpu-rightsizer.io/mode": "off"}}}
    )


def _wake_up(world: World) -> None:
    for pod in world.pods_of(world.team, "idle"):
        world.record(pod, "busy", 1)


def _guard(world: World) -> None:
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "idle"}}}
    meta = {"name": "guard", "namespace": world.team}
    world.api.create(
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": spec}
    )
    world.api.settle()


@pytest.mark.slow
@pytest.mark.parametrize("change", [_scale_up, _edit, _opt_out, _opt_out_of_action, _wake_up, _guard])
def test_preflight_workload_changed_since_plan_is_skipped(
    world: World, change: Callable[[World], None]
) -> None:
    """Between deciding and writing everything is read again; here someone meddles while the first is stopped."""
    world.add("Deployment", world.team, "first", {"replicas": 4})
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    meddler = _Meddler(world, change)
    world.api.requests.add = meddler.add  # type: ignore[method-assign]
    items = _apply(world).items
    assert meddler.happened
    assert (items["first"]["result"], items["idle"]["result"]) == ("done", "changed"), items
    assert _replicas(world, "idle") in {2, 5}


class _Meddler:
    """Someone who changes the second workload the moment the first was patched."""

    def __init__(self, world: World, change: Callable[[World], None]) -> None:
        self._add, self._world, self._change = world.api.requests.add, world, change
        self.happened = False

    def add(self, entry: LoggedRequest) -> None:
        """Log the request, as before, and meddle once."""
        self._add(entry)
        if entry.method == "PATCH" and not entry.dry_run and "first" in entry.path and not self.happened:
            self.happened = True
            self._change(self._world)


REFUSALS = {
    "conflict": (Fault("deployments/idle", "PATCH", None, status=409), "changed", 0, 3),
    "forbidden": (Fault("deployments/idle", "PATCH", None, status=403), "refused", 1, 1),
    "invalid": (Fault("deployments/idle", "PATCH", None, status=422), "blocked", 0, 1),
    "too-large": (Fault("deployments/idle", "PATCH", None, status=413), "blocked", 0, 1),
    "server-error": (Fault("deployments/idle", "PATCH", None, status=500), "refused", 1, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "result", "code", "attempts"), REFUSALS.values(), ids=REFUSALS.keys())
def test_apply_item_refused_by_server_does_not_stop_the_rest(
    world: World, fault: Fault, result: str, code: int, attempts: int
) -> None:
    """An error Status becomes an outcome; only after a conflict it is looked and tried again, and not for ever."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    world.add("Deployment", world.team, "next", {})
    world.api.inject(fault)
    run = _apply(world)
    assert (run.code, run.items["idle"]["result"], run.items["next"]["result"]) == (code, result, "done")
    patches = [one for one in world.api.requests.all() if one.method == "PATCH" and "idle" in one.path]
    assert len(patches) == attempts
    assert "Traceback" not in run.err


def test_apply_too_many_requests_ends_run(world: World) -> None:
    """A server that asks for quiet gets it: nothing more is sent."""
    world.add("Deployment", world.team, "a", {"replicas": 2})
    world.add("Deployment", world.team, "b", {})
    world.api.inject(Fault("deployments/a", "PATCH", None, status=429, headers={"Retry-After": "1"}))
    run = _apply(world)
    assert [(name, item["result"]) for name, item in run.items.items()] == [
        ("a", "refused"),
        ("b", "skipped"),
    ]
    assert _replicas(world, "b") == 1
    codes = [one.code for one in world.api.requests.all()]
    later = world.api.requests.all()[codes.index(429) + 1 :]
    assert not [one.path for one in later if "/deployments" in one.path or "/pods" in one.path]


@pytest.mark.parametrize(("after_effect", "result", "replicas"), [(True, "done", 0), (False, "refused", 2)])
def test_patch_lost_response_is_confirmed_by_read_back(
    world: World,
    after_effect: bool,
    result: str,
    replicas: int,
) -> None:
    """Where the connection broke after the write, the record on the object tells that it was ours."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    # The dry run goes through; the write itself loses its answer.
    world.api.inject(Fault("deployments/idle", "PATCH", 1, delay_s=0.01))
    world.api.inject(Fault("deployments/idle", "PATCH", 1, drop=True, after_effect=after_effect))
    run = _apply(world)
    assert run.items["idle"]["result"] == result, run.items
    assert _replicas(world, "idle") == replicas
    assert len(_writes(world)) <= 1


def test_evict_blocked_by_pdb_deletes_saved_manifest(world: World) -> None:
    """429 with a DisruptionBudget is blocked, not failed; the manifest that was saved for it goes again."""
    world.add("Pod", world.team, "shell", {})
    status = {
        "kind": "Status",
        "status": "Failure",
        "code": 429,
        "reason": "TooManyRequests",
        "message": "Cannot evict pod as it would violate the pod's disruption budget.",
        "details": {"causes": [{"reason": "DisruptionBudget", "message": "The disruption budget x needs 1"}]},
    }
    world.api.inject(Fault("shell/eviction", "POST", 1, delay_s=0.01))
    world.api.inject(Fault("shell/eviction", "POST", 1, status=429, body=status))
    run = _apply(world)
    assert (run.code, run.items["shell"]["result"]) == (0, "blocked")
    assert world.api.list("Secret", "gpu-rightsizer") == []
    assert len(world.pods_of(world.team, "shell")) == 1


def test_event_write_failure_warns_and_keeps_change(world: World) -> None:
    """The change stands and is reported as done; the missing Event is a warning."""
    world.add("Deployment", world.team, "idle", {})
    world.api.inject(Fault("/events$", "POST", None, status=403))
    run = _apply(world)
    assert (run.code, run.items["idle"]["result"]) == (0, "done")


@pytest.mark.slow
@pytest.mark.parametrize(
    "repeated",
    [
        r'"{\"spec\":{\"env\":[{\"name\":\"TOKEN\",\"value\":\"hunter2\"}]}}"',
        '{"spec":{"env":[{"name":"TOKEN","value":"hunter2"}]}}',
        '"map[spec:map[env:[map[name:TOKEN value:hunter2]]]]"',
        'core.PodTemplateSpec{Spec:core.PodSpec{Env:[]core.EnvVar{{Name:"TOKEN", Value:"hunter2"}}}}',
    ],
)
def test_refused_patch_response_object_is_not_leaked(world: World, repeated: str) -> None:
    """Its answer to a patch that it refuses may hold the whole object, environment and all; the reason stays."""
    world.add("Deployment", world.team, "idle", {})
    message = f'Deployment.apps "idle" is invalid: patch: Invalid value: {repeated}: field is immutable'
    status = {"kind": "Status", "status": "Failure", "reason": "Invalid", "code": 422, "message": message}
    world.api.inject(Fault("deployments/idle", "PATCH", 1, status=422, body=status))
    item = _apply(world).items["idle"]
    assert item["result"] == "blocked"
    assert "field is immutable" in item["detail"]
    assert "hunter2" not in item["detail"]


def test_list_expired_while_paging_is_restarted(world: World) -> None:
    """A 410 in the middle of paging starts over; half a list is never used."""
    world.add("Deployment", world.team, "idle", {})
    gone = {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"}
    world.api.inject(Fault("^/api/v1/pods$", "GET", 1, status=410, body=gone))
    assert world.run("plan", "-o", "json", policy=DEFAULT_POLICY).items["idle"]["verdict"] == "act"
    world.api.inject(Fault("^/api/v1/pods$", "GET", None, status=410, body=gone))
    run = world.run("plan", policy=DEFAULT_POLICY)
    assert (run.code, run.out) == (1, "")
    assert "the pages expired 3 times" in run.err


def test_evict_without_own_namespace_is_refused(world: World) -> None:
    """Without a place for manifests nothing at all is done, and the command that makes one is named."""
    world.add("Pod", world.team, "shell", {})
    world.add("Deployment", world.team, "idle", {})
    run = _apply(world, "--state-namespace", "nowhere")
    assert run.code == 2
    assert "create it with: kubectl create namespace nowhere" in run.err
    assert _writes(world) == []


@pytest.mark.slow
def test_apply_empty_plan_exits_0(world: World) -> None:
    """An apply without anything to change exits with 0, and plan --detailed-exitcode tells the two apart."""
    world.add("Deployment", world.team, "busy", {"usage": "busy"})
    assert world.run("plan", "--detailed-exitcode", policy=DEFAULT_POLICY).code == 0
    assert re.search(
        "Applying this plan changes nothing", world.run("apply", "--yes", policy=DEFAULT_POLICY).out
    )
    world.add("Deployment", world.team, "idle", {})
    assert world.run("plan", "--detailed-exitcode", policy=DEFAULT_POLICY).code == 10


@pytest.mark.slow
def test_apply_repeated_changes_nothing(world: World) -> None:
    """What was stopped holds no GPUs any more and is not in the next plan."""
    world.add("Deployment", world.team, "idle", {})
    assert _apply(world).items["idle"]["result"] == "done"
    world.api.settle()
    world.api.requests.clear()
    assert _apply(world).items == {}
    assert _writes(world) == []


LENDERS = """\
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
defaults: {kinds: []}
rules:
  - name: lenders
    match: {everything: true}
    mode: enforce
    actions: [suspend, evict]
    onlyForPendingPods: [suspend, evict]
"""


def _lend(world: World, kind: str, *, wanted: int) -> Any:
    """Two idle workloads of two GPUs each on one node, the first of which goes first, for a pod that needs `wanted`."""
    there = {"nodeSelector": {"pool": "small"}}
    world.node("small", resources={"nvidia.com/gpu": 4}, pool="small")
    for name, level in (("one", "low"), ("two", "medium")):
        given = {**there, "gpus": 2, "usage": "idle", "priorityClass": f"{level}-priority"}
        world.add(kind, world.team, name, given)
    urgent = {**there, "gpus": wanted, "usage": "absent", "priorityClass": "high-priority", "age_h": 0}
    world.add("Pod", world.team, "urgent", urgent)
    return world.run("apply", "--yes", "-o", "json", policy=LENDERS)


@pytest.mark.parametrize(
    ("fault", "result"),
    [
        pytest.param(Fault("jobs/two", "PATCH", None, status=403), "refused", id="suspend-forbidden"),
        pytest.param(Fault("jobs/two", "PATCH", None, status=422), "blocked", id="suspend-denied"),
        pytest.param(Fault("pods/two/eviction", "POST", None, status=403), "refused", id="evict-forbidden"),
    ],
)
def test_apply_victim_refused_spares_the_others_of_its_pending_pod(
    world: World, fault: Fault, result: str
) -> None:
    """One victim alone would not make room."""
    world.api.inject(fault)
    run = _lend(world, "Job" if "jobs" in fault.path else "Pod", wanted=4)
    assert (run.items["one"]["result"], run.items["two"]["result"]) == ("blocked", result), run.err
    assert "Pod/urgent also needs" in run.items["one"]["detail"]
    assert not [one.path for one in _writes(world) if re.search("/(one|two)(/|$)", one.path)]


def test_apply_victim_refused_is_replaced_by_the_next_run(world: World) -> None:
    """Nothing else goes in its place in a run whose plan did not show it."""
    world.api.inject(Fault("jobs/one", "PATCH", None, status=422))
    run = _lend(world, "Job", wanted=2)
    assert {name: one["result"] for name, one in run.items.items()} == {"one": "blocked"}, run.err
    again = world.run("apply", "--yes", "-o", "json", policy=LENDERS)
    assert {name: one["result"] for name, one in again.items.items()} == {"two": "done"}, again.err


def test_apply_pod_that_is_gone_meanwhile_gets_no_other_victim(world: World) -> None:
    """The first victim is not needed any more, and neither is the second."""
    world.after("poddisruptionbudgets", lambda: world.api.delete("Pod", world.team, "urgent"))
    run = _lend(world, "Job", wanted=2)
    assert {name: one["result"] for name, one in run.items.items()} == {"one": "changed"}, run.err
    assert not [one.path for one in _writes(world) if one.path.endswith("jobs/two")]


def test_apply_victim_of_a_gang_refused_spares_those_of_its_other_pods(world: World) -> None:
    """None of its pods starts without all of them, so nothing is written before all of their victims were tried."""
    for name in ("one", "two"):
        there = {"nodeSelector": {"pool": name}, "gpus": 2}
        world.node(name, resources={"nvidia.com/gpu": 2}, pool=name)
        world.add("Job", world.team, name, {**there, "usage": "idle"})
        member = {**there, "usage": "absent", "priorityClass": "high-priority", "age_h": 0}
        world.add(
            "Pod", world.team, f"m-{name}", {**member, "labels": {"scheduling.x-k8s.io/pod-group": "train"}}
        )
    world.api.inject(Fault("jobs/two", "PATCH", None, status=403))
    run = world.run("apply", "--yes", "-o", "json", policy=LENDERS)
    assert (run.items["one"]["result"], run.items["two"]["result"]) == ("blocked", "refused"), run.err
    assert "PodGroup/train also needs" in run.items["one"]["detail"]
    assert not [one.path for one in _writes(world) if one.path.endswith("jobs/one")]


def test_apply_victim_of_a_gang_refused_is_no_concern_of_other_gangs(world: World) -> None:
    """Both need a replica of one workload: the next run stops that of the gang that can be served."""
    other = f"{world.team}-other"
    for name, namespace, nodes in (("shared", world.team, 2), ("mine", world.team, 1), ("theirs", other, 1)):
        there = {"nodeSelector": {"pool": name}, "gpus": 2}
        for number in range(nodes):
            world.node(f"{name}-{number}", resources={"nvidia.com/gpu": 2}, pool=name)
        world.add("Deployment", namespace, name, {**there, "usage": "idle", "replicas": nodes})
        gangs = {"shared": ("mine", "theirs")}.get(name, (name,))
        for gang in gangs:
            member = {**there, "usage": "absent", "priorityClass": "high-priority", "age_h": 0}
            labels = {"scheduling.x-k8s.io/pod-group": gang}
            member_of = other if gang == "theirs" else world.team
            world.add("Pod", member_of, f"{gang}-on-{name}", {**member, "labels": labels})
    world.api.inject(Fault("deployments/theirs", "PATCH", None, status=422))
    lenders = LENDERS.replace("suspend, evict", "scale-to-zero, scale-down")
    first = world.run("apply", "--yes", "-o", "json", policy=lenders)
    assert {one["result"] for one in first.items.values()} == {"blocked"}, first.err
    run = world.run("apply", "--yes", "-o", "json", policy=lenders)
    found = {name: (one["result"], one["action"]) for name, one in run.items.items()}
    assert found == {
        "shared": ("done", "scale-down"),
        "mine": ("done", "scale-to-zero"),
    }, run.err
    assert _replicas(world, "shared") == 1


@pytest.mark.parametrize(("wanted", "tries"), [(4, [2, 2]), (2, [1, 0])])
def test_apply_several_victims_of_a_pod_are_all_tried_first(
    world: World, wanted: int, tries: list[int]
) -> None:
    """One dry run more for each; none more for a victim that suffices alone."""
    run = _lend(world, "Job", wanted=wanted)
    assert run.code == 0, run.err
    sent = [one for one in world.api.requests.mutating(include_dry_run=True) if one.method == "PATCH"]
    found = [[one.dry_run for one in sent if one.path.endswith(f"jobs/{name}")] for name in ("one", "two")]
    assert sorted((dry.count(True) for dry in found), reverse=True) == tries
    assert sum(dry.count(False) for dry in found) == wanted / 2
