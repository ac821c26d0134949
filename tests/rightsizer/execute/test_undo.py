"""Undo: which of several is meant, and what a record may ask for."""

import base64
import datetime
import json
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from rightsizer.changes.memory import NAMES, key_of, part_of, with_change
from rightsizer.changes.record_codec import MANIFEST_LABEL, MANIFEST_TYPE
from rightsizer.kinds.saved_pods import digest_of
from rightsizer.model import ChangeOutcome, ChangeRecord, FoundChange, ObjectRef
from simulator.kube import Fault, Rule
from tests.rightsizer.build import workload
from tests.rightsizer.memory import remember
from tests.rightsizer.world import DEFAULT_POLICY, World, created, stamp

pytestmark = pytest.mark.prometheus

AT_ONCE = DEFAULT_POLICY.replace("name: scavengers\n", "name: scavengers\n    cooldown: 1s\n")
"""What comes again by its name may be stopped again nearly at once."""
UNDO = "gpu-rightsizer.io/undo"
CAME_BACK = "gpu-rightsizer.io/came-back-after"


def _evict(world: World, gpus: int) -> str:
    """Evict a bare pod with so many GPUs, one more than those before it of that name; the run that did it."""
    world.add("Pod", world.team, "shell", {"gpus": gpus, "usage": [["idle"]]})
    run = world.run("apply", "--yes", "-o", "json", policy=AT_ONCE)
    assert run.items["shell"]["result"] == "done", run.err
    assert world.pods_of(world.team, "shell") == []
    name: str = json.loads(run.out)["metadata"]["run"]
    return name


def _gpus(world: World) -> str:
    containers = created(world.api, "Pod", world.team, "shell")["spec"]["containers"]
    amount: str = containers[0]["resources"]["limits"]["nvidia.com/gpu"]
    return amount


@pytest.mark.slow
def test_undo_pod_evicted_twice_restores_latest(world: World) -> None:
    """As it is listed: latest first."""
    _evict(world, 1)
    _age(world)
    _evict(world, 2)
    run = world.run("undo", f"{world.team}/Pod/shell", "--yes", "-o", "json")
    assert (run.code, _gpus(world)) == (0, "2")


@pytest.mark.slow
def test_undo_run_flag_selects_earlier_eviction(world: World) -> None:
    """--run beside the workload's name chooses; the other manifest stays."""
    first = _evict(world, 1)
    _age(world)
    second = _evict(world, 2)
    run = world.run("undo", f"{world.team}/Pod/shell", "--run", first, "--yes", "-o", "json")
    assert (run.code, _gpus(world)) == (0, "1")
    (left,) = json.loads(world.run("undo", "-o", "json").out)["items"]
    assert left["record"]["run"] == second


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "noted"), [("Deployment", "5h0m"), ("Deployment", "500h0m"), ("Pod", "")])
def test_undo_restored_workload_records_idle_duration(world: World, kind: str, noted: str) -> None:
    """How long it had been idle, and stopped; of several times the longest stays."""
    world.add(kind, world.team, "idle", {})
    world.run("apply", "--yes", policy=AT_ONCE)
    if noted:
        world.api.patch(kind, world.team, "idle", {"metadata": {"annotations": {CAME_BACK: noted}}})
    assert world.run("undo", "--all", "--yes").code == 0
    found = created(world.api, kind, world.team, "idle")["metadata"]["annotations"][CAME_BACK]
    assert found == noted if noted == "500h0m" else found.startswith("24h")


def _age(world: World) -> None:
    """Let what is there of an eviction be three days older: longer ago than the window, and than the cooldown."""
    (secret,) = world.api.list("Secret", "gpu-rightsizer")
    record = json.loads(_decoded(secret["data"]["record"]))
    record["at"] = "2026-01-01T00:00:00Z"
    secret["data"]["record"] = _encoded(json.dumps(record))
    world.api.delete("Secret", "gpu-rightsizer", secret["metadata"]["name"])
    del secret["metadata"]["resourceVersion"], secret["metadata"]["uid"]
    world.clock.stand(time.time() - 3 * 86400)
    world.api.create(secret)
    world.clock.run()
    _remember(world, secret, at=stamp(datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=3)))


def _remember(world: World, secret: dict[str, Any], **changes: Any) -> None:
    """Write what the memory has of an eviction, as whoever writes in the state namespace can."""
    files = {name: _decoded(text) for name, text in secret["data"].items()}
    run, pod = secret["metadata"]["labels"][MANIFEST_LABEL], json.loads(files["manifest"])["metadata"]
    owner = ObjectRef("v1", "Pod", pod["namespace"], pod["name"])
    now = stamp(datetime.datetime.now(datetime.UTC))
    change = {"run": run, "at": now, "action": "evict", "manifestDigest": digest_of(files), **changes}
    remember(world.api, owner, change, namespace=secret["metadata"]["namespace"])


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode()


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _edit(**changes: Any) -> dict[str, Any]:
    return {"edits": [{"path": ["spec", "replicas"], "before": 64, "after": 0, **changes}]}


FORGED: dict[str, dict[str, Any]] = {
    "another-field": _edit(path=["spec", "nothing"]),
    "no-field": {"edits": []},
    "false-for-zero": _edit(after=False),
    "negative": _edit(before=-1),
    "another-type": _edit(before=True),
}


@pytest.mark.parametrize("changes", FORGED.values(), ids=FORGED.keys())
@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "force"])
def test_undo_forged_record_is_refused(world: World, changes: dict[str, Any], force: list[str]) -> None:
    """Whoever may annotate a workload does not scale it through whoever runs undo."""
    _carry(world, "forged", changes)
    run = world.run("undo", "--all", "--yes", *force, "-o", "json")
    assert (run.code, run.items["forged"]["result"]) == (0, "untrusted"), run.items
    assert "1 untrusted" in run.err
    named = world.run("undo", f"{world.team}/Deployment/forged", "--yes", *force)
    assert named.code == 1, named.out
    assert "was not written by gpu-rightsizer" in run.items["forged"]["detail"]
    assert created(world.api, "Deployment", world.team, "forged")["spec"]["replicas"] == 1


def _carry(world: World, name: str, changes: dict[str, Any]) -> None:
    """A Deployment of one replica that carries a record."""
    world.add("Deployment", world.team, name, {})
    record = {
        "run": "r",
        "at": "2026-01-01T00:00:00Z",
        "action": "scale-to-zero",
        "rule": "research",
        "finding": "idle",
        "reason": "",
        "version": 1,
    }
    annotations = {UNDO: msgspec.json.encode({**record, **changes}).decode()}
    world.api.patch("Deployment", world.team, name, {"metadata": {"annotations": annotations}})


LOWERED = {"action": "scale-down", **_edit(before=3, after=1)}


def _is_restored(world: World, name: str) -> bool:
    events = [one for one in world.api.list("Event", world.team) if one["reason"] == "Restored"]
    replicas = created(world.api, "Deployment", world.team, name)["spec"]["replicas"]
    assert (name in {one["involvedObject"]["name"] for one in events}) is (replicas == 3)
    return bool(replicas == 3)


@pytest.mark.parametrize("which", [["--all"], ["--since", "9999d"], ["--run", "r"]], ids=" ".join)
def test_undo_change_that_memory_lacks_is_untrusted_until_named(world: World, which: list[str]) -> None:
    """Anybody may have written its record; if it is only older than the memory, a person who names it knows that."""
    _carry(world, "forged", LOWERED)
    sizes = {"namespace": "gpu-rightsizer", "name": "gpu-rightsizer-sizes"}
    size = {f"{world.team}.Deployment.forged": "1"}
    world.api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": sizes, "data": size})
    listed = " ".join(world.run("undo").out.split())
    assert "untrusted: the memory of gpu-rightsizer has no such change" in listed
    run = world.run("undo", *which, "--yes", "-o", "json")
    assert (run.code, run.items["forged"]["result"]) == (0, "untrusted"), run.items
    assert "name the workload" in run.items["forged"]["detail"]
    assert not _is_restored(world, "forged")
    assert created(world.api, "ConfigMap", **sizes)["data"] == size
    named = world.run("undo", f"{world.team}/Deployment/forged", "--yes")
    assert (named.code, "untrusted: the memory" in named.out) == (0, True), named.out
    assert _is_restored(world, "forged")
    assert created(world.api, "ConfigMap", **sizes)["data"] == {}


def test_undo_refused_write_of_forged_record_is_no_failure(world: World) -> None:
    """Else whoever may annotate one object lets every undo of all fail; who names it gets the failure."""
    _carry(world, "forged", LOWERED)
    world.api.inject(Fault("deployments/forged", "PATCH", None, status=403))
    for which, code in (["--all"], 0), ([f"{world.team}/Deployment/forged"], 1):
        run = world.run("undo", *which, "--yes", "-o", "json")
        assert (run.code, run.items["forged"]["result"]) == (code, "untrusted"), run.items


@pytest.mark.parametrize(
    ("kept", "action", "result"),
    [
        pytest.param("scale-down", "scale-down", "untrusted", id="run-without-change"),
        pytest.param("scale-down", "scale-up", "done", id="given-back-in-part"),
        pytest.param("rejected", "scale-down", "untrusted", id="never-made"),
    ],
)
def test_undo_record_needs_a_change_of_its_workload(
    world: World, kept: str, action: str, result: str
) -> None:
    """The memory keeps what took GPUs: a later scale-up has a record of another run."""
    run = "r" if kept == "rejected" else "earlier"
    _carry(world, "idle", LOWERED | {"action": action})
    ref = ObjectRef("apps/v1", "Deployment", world.team, "idle")
    at = datetime.datetime.now(datetime.UTC)
    end = ChangeOutcome.REJECTED if kept == "rejected" else None
    change = FoundChange(ref, ChangeRecord(at, run, "scale-down", 2, end=end))
    texts = with_change({}, change, workload(ref=ref), at)
    metadata = {"namespace": "gpu-rightsizer", "name": NAMES[part_of(key_of(ref))]}
    world.api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": texts})
    undone = world.run("undo", "--all", "--yes", "-o", "json")
    assert (undone.code, undone.items["idle"]["result"]) == (0, result), undone.items


def _recreate(world: World, _: str) -> None:
    world.api.delete("Deployment", world.team, "idle")
    world.api.settle()
    world.add("Deployment", world.team, "idle", {"replicas": 0})


def _recreate_with_record(world: World, record: str) -> None:
    _recreate(world, record)
    _annotate(world, record)


def _replace_record(world: World, record: str) -> None:
    _annotate(world, record.replace('"before":3', '"before":2'))


def _annotate(world: World, record: str) -> None:
    world.api.patch("Deployment", world.team, "idle", {"metadata": {"annotations": {UNDO: record}}})


@pytest.mark.parametrize("change", [_recreate, _recreate_with_record, _replace_record])
@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "force"])
def test_undo_deployment_replaced_since_listing_is_skipped(
    world: World, force: list[str], change: Callable[[World, str], None]
) -> None:
    """A Deployment of the same name, at zero by its owner's will, or with another record, is not what was listed."""
    world.add("Deployment", world.team, "idle", {"replicas": 3})
    world.run("apply", "--yes", policy=DEFAULT_POLICY)
    record = created(world.api, "Deployment", world.team, "idle")["metadata"]["annotations"][UNDO]
    listed = world.api.requests.add
    waiting = [True]

    def noted(entry: Any) -> None:
        listed(entry)
        if waiting and entry.path == "/apis/apps/v1/deployments":
            waiting.pop()
            change(world, record)

    world.api.requests.add = noted  # type: ignore[method-assign]
    run = world.run("undo", "--all", "--yes", *force, "-o", "json")
    assert (run.code, run.items["idle"]["result"]) == (1, "changed"), run.items
    assert created(world.api, "Deployment", world.team, "idle")["spec"]["replicas"] == 0


@pytest.mark.parametrize(
    ("times", "result"), [(2, "done"), (1000, "refused")], ids=["now-and-then", "always"]
)
def test_undo_write_conflict_is_retried_up_to_limit(world: World, times: int, result: str) -> None:
    """A controller that writes its status does not keep a workload from being restored; no end of writes does."""
    world.add("Deployment", world.team, "idle", {"replicas": 3})
    world.run("apply", "--yes", policy=DEFAULT_POLICY)
    note, left = world.api.requests.add, iter(range(times))

    def noted(entry: Any) -> None:
        note(entry)
        if (
            entry.method == "GET"
            and entry.path.endswith("/deployments/idle")
            and (turn := next(left, None)) is not None
        ):
            world.api.patch("Deployment", world.team, "idle", {"metadata": {"labels": {"turn": str(turn)}}})

    world.api.requests.add = noted  # type: ignore[method-assign]
    run = world.run("undo", "--all", "--yes", "-o", "json")
    assert run.items["idle"]["result"] == result, run.items
    assert created(world.api, "Deployment", world.team, "idle")["spec"]["replicas"] == (
        3 if result == "done" else 0
    )


def test_undo_logs_each_change_and_holds_lease(world: World) -> None:
    """An intent before each, an outcome after it; the Lease is taken where it can be had, and given back."""
    world.add("Deployment", world.team, "idle", {})
    assert world.run("apply", "--yes", policy=DEFAULT_POLICY).code == 0
    run = json.loads(world.run("history", "-o", "json").out)["items"][0]["run"]
    world.api.delete("Lease", "gpu-rightsizer", "gpu-rightsizer")
    intent, outcome = world.run("undo", "--all", "--yes", "--log-format", "json").changes
    for step in (intent, outcome):
        assert (step["action"], step["name"], step["run"]) == ("undo", "idle", run)
    assert (intent["step"], outcome["step"], outcome["result"]) == ("intent", "outcome", "done")
    assert intent["reason"].startswith("to revert scale-to-zero of ")
    assert outcome["reason"] == "spec.replicas: 0 → 1"
    lease = created(world.api, "Lease", "gpu-rightsizer", "gpu-rightsizer")
    assert lease["spec"]["holderIdentity"] == ""


def test_undo_name_alone_is_answered_with_the_whole_name(world: World) -> None:
    """And what has no record, with where the names are listed."""
    world.add("Deployment", world.team, "idle", {})
    world.run("apply", "--yes", policy=DEFAULT_POLICY)
    named, other = world.run("undo", "idle", "--yes"), world.run("undo", "nothing", "--yes")
    assert (named.code, other.code) == (2, 2)
    assert (
        f"idle: carries no record of a change, or does not exist; did you mean {world.team}/Deployment/idle?"
        in named.err
    )
    assert "write NAMESPACE/KIND/NAME as gpu-rightsizer undo lists them" in other.err


def test_undo_lease_held_by_other_is_reported_and_continues(world: World) -> None:
    """It says who holds the Lease, and restores all the same."""
    world.add("Deployment", world.team, "idle", {})
    assert world.run("apply", "--yes", policy=DEFAULT_POLICY).code == 0
    held = {"spec": {"holderIdentity": "the-deployment", "leaseDurationSeconds": 15}}
    world.api.patch("Lease", "gpu-rightsizer", "gpu-rightsizer", held)
    run = world.run("undo", "--all", "--yes")
    assert (run.code, "the-deployment holds the Lease" in run.err) == (0, True), run.err
    assert created(world.api, "Deployment", world.team, "idle")["spec"]["replicas"] == 1


@pytest.mark.slow
def test_undo_all_unrestorable_workload_does_not_fail(world: World) -> None:
    """It is told each time, and the rest is restored; only who names it gets a failure."""
    world.add("Workflow.argoproj.io", world.team, "flow", {})
    world.add("Deployment", world.team, "idle", {})
    assert world.run("apply", "--yes", policy=DEFAULT_POLICY).code == 0
    run = world.run("undo", "--all", "--yes", "-o", "json")
    assert (run.code, run.items["flow"]["result"], run.items["idle"]["result"]) == (0, "refused", "done")
    assert "cannot be undone" in run.items["flow"]["detail"]
    again = world.run("undo", "--since", "2h", "--yes", "-o", "json")
    assert (again.code, again.items["flow"]["result"]) == (0, "refused")
    assert world.run("undo", f"{world.team}/Workflow/flow", "--yes").code == 1


PRIVILEGED = {
    "hostPID": True,
    "containers": [{"name": "c", "image": "evil:1", "securityContext": {"privileged": True}}],
}


def _forge(
    world: World,
    namespace: str,
    name: str,
    spec: dict[str, Any],
    kind: str = MANIFEST_TYPE,
    metadata: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A Secret with a manifest, by whoever holds the acting token or writes in the state namespace."""
    world.namespace(namespace)
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name},
        "spec": spec,
    }
    record = {"at": stamp(datetime.datetime.now(datetime.UTC)), "run": "r", "action": "evict"}
    secret: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": kind,
        "metadata": {
            "namespace": "gpu-rightsizer",
            "name": f"{name}-0123abcd",
            "labels": {MANIFEST_LABEL: "r"},
            **(metadata or {}),
        },
        "data": {"manifest": _encoded(json.dumps(manifest)), "record": _encoded(json.dumps(record))},
    }
    world.api.create(secret)
    return secret


@pytest.mark.slow
def test_undo_forged_manifest_creates_no_pod(world: World) -> None:
    """The listing shows what the pod would be; `--all` refuses it in a word of its own, and does the rest."""
    world.add("Deployment", world.team, "idle", {})
    assert world.run("apply", "--yes", policy=DEFAULT_POLICY).code == 0
    _forge(world, "kube-system", "system", PRIVILEGED)
    _forge(world, world.team, "shell", PRIVILEGED | {"serviceAccount": "admin"})
    listed = " ".join(world.run("undo").out.split())
    for words in (
        "image evil:1",
        "service account default",
        "service account admin",
        "hostPID true",
        "securityContext.privileged true",
    ):
        assert words in listed
    run = world.run("undo", "--all", "--yes", "-o", "json")
    results = {name: item["result"] for name, item in run.items.items()}
    assert (run.code, results) == (0, {"idle": "done", "system": "untrusted", "shell": "untrusted"}), run.err
    assert "1 of 3 done, 2 untrusted" in run.err
    for namespace, name in (("kube-system", "system"), (world.team, "shell")):
        assert world.api.get("Pod", namespace, name) is None
        flag = ("--allow-unverified", f"{namespace}/{name}")  # the memory would know it
        assert world.run("undo", f"{namespace}/Pod/{name}", "--yes", *flag).code == 1
        assert world.api.get("Pod", namespace, name) is None


@pytest.mark.parametrize("namespace", ["kube-system", "gpu-rightsizer", "vault"])
def test_undo_forged_memory_creates_no_pod_in_protected_namespace(world: World, namespace: str) -> None:
    """Whoever forges the memory, too, gets no pod where nothing is ever evicted, whatever undo is told."""
    _remember(world, _forge(world, namespace, "shell", PRIVILEGED))
    name = f"{namespace}/shell"
    policy = DEFAULT_POLICY + "protectedNamespaces: [vau*]\n"
    run = world.run("undo", "--all", "--yes", "--allow-privileged", name, "-o", "json", policy=policy)
    assert (run.code, run.items["shell"]["result"]) == (0, "untrusted"), run.err
    assert world.api.get("Pod", namespace, "shell") is None


def test_undo_forged_memory_creates_no_pod_in_state_namespace(world: World) -> None:
    """Whatever that namespace is called: its own pods are never evicted."""
    world.namespace("ops")
    spec = {"containers": [{"name": "c", "image": "evil:1"}]}
    _remember(world, _forge(world, "ops", "shell", spec, metadata={"namespace": "ops"}))
    run = world.run("undo", "--all", "--yes", "--state-namespace", "ops", "-o", "json")
    assert (run.code, run.items["shell"]["result"]) == (0, "untrusted"), run.err
    assert world.api.get("Pod", "ops", "shell") is None


def test_undo_broken_record_while_memory_is_unreadable_is_a_failure(world: World) -> None:
    """Nothing shows that gpu-rightsizer did not write it, so it must not pass as somebody's forgery."""
    world.add("Deployment", world.team, "idle", {})
    assert world.run("apply", "--yes", policy=DEFAULT_POLICY).code == 0
    key = key_of(ObjectRef("apps/v1", "Deployment", world.team, "idle"))
    world.api.patch("ConfigMap", "gpu-rightsizer", NAMES[part_of(key)], {"data": {key: "{broken"}})
    _annotate(world, "{broken")
    run = world.run("undo", "--all", "--yes", "-o", "json")
    assert (run.code, run.items["idle"]["result"]) == (1, "refused"), run.err


def test_undo_without_right_to_read_memory_creates_no_pod(world: World) -> None:
    """Nothing shows that the manifest is that of an evicted pod; the reason is named, and the command fails."""
    _evict(world, 1)
    world.api.deny(Rule("*", ("get",), ("configmaps",), names=NAMES))
    run = world.run("undo", "--all", "--yes", "-o", "json")
    assert (run.code, run.items["shell"]["result"]) == (1, "refused"), run.err
    assert "without the right to read the memory" in run.items["shell"]["detail"]
    assert world.api.get("Pod", world.team, "shell") is None


def test_undo_evicted_pod_that_still_terminates_is_listed(world: World) -> None:
    """Its manifest is the only copy: nobody is told to delete it."""
    world.add("Pod", world.team, "shell", {"usage": [["idle"]]})
    world.api.patch("Pod", world.team, "shell", {"metadata": {"finalizers": ["example.com/wait"]}})
    assert world.run("apply", "--yes", "--verify-for", "0", policy=DEFAULT_POLICY).code == 0
    assert "deletionTimestamp" in created(world.api, "Pod", world.team, "shell")["metadata"]
    listed = world.run("undo", "-o", "json")
    assert list(listed.items) == ["shell"]
    assert "never evicted" not in listed.err


def test_undo_privileged_pod_is_created_only_by_name(world: World) -> None:
    """Nobody creates more than baseline by accident; the refusal shows the flag."""
    _remember(world, _forge(world, world.team, "shell", PRIVILEGED))
    run = world.run("undo", "--all", "--yes", "--allow-privileged", f"{world.team}/other", "-o", "json")
    assert (run.code, run.items["shell"]["result"]) == (1, "refused")
    flag = ("--allow-privileged", f"{world.team}/shell")
    assert " ".join(flag) in run.items["shell"]["detail"]
    assert world.api.get("Pod", world.team, "shell") is None
    assert world.run("undo", "--all", "--yes", *flag).code == 0
    assert created(world.api, "Pod", world.team, "shell")["spec"]["hostPID"] is True


@pytest.mark.parametrize("when", ["before", "while"])
def test_undo_manifest_replaced_since_eviction_is_refused(world: World, when: str) -> None:
    """The pod that is created is the evicted one, and the one that was listed."""
    _evict(world, 1)
    (secret,) = world.api.list("Secret", "gpu-rightsizer")
    forged = _decoded(secret["data"]["manifest"]).replace('"image": "', '"image": "evil/')
    assert "evil" in forged

    def replace() -> None:
        data = {"data": {"manifest": _encoded(forged)}}
        world.api.patch("Secret", "gpu-rightsizer", secret["metadata"]["name"], data)

    if when == "before":
        replace()
    else:  # after the list, right before the pod is created
        world.after("pods/shell", replace, method="GET")
    run = world.run("undo", "--all", "--yes", "-o", "json")
    assert run.items["shell"]["result"] == ("untrusted" if when == "before" else "changed"), run.err
    assert world.pods_of(world.team, "shell") == []


def test_undo_manifest_older_than_memory_is_created_only_by_name(world: World) -> None:
    """Nothing shows that it is forged, so the command fails; the message names the Secret and the flag."""
    world.clock.stand(time.time() - 31 * 86400)
    _forge(world, world.team, "shell", PRIVILEGED)
    _forge(world, "vault", "safe", {"containers": [{"name": "c", "image": "evil:1"}]})
    world.clock.run()
    run = world.run("undo", "--all", "--yes", "-o", "json")
    assert (run.code, run.items["shell"]["result"]) == (1, "refused")
    assert "more than 30 days ago" in run.items["shell"]["detail"]
    assert "Secret shell-0123abcd" in run.items["shell"]["detail"]
    flags = [("--allow-unverified", f"{world.team}/shell"), ("--allow-unverified", "vault/safe")]
    policy = DEFAULT_POLICY + "protectedNamespaces: [vau*]\n"
    more = [word for flag in flags for word in flag]
    run = world.run("undo", "--all", "--yes", *more, policy=policy)
    assert (run.code, "exceeds Pod Security baseline" in run.out) == (1, True)
    assert (world.pods_of(world.team, "shell"), world.pods_of("vault", "safe")) == ([], [])
    both = ("--allow-privileged", f"{world.team}/shell", *flags[0])
    assert world.run("undo", f"{world.team}/Pod/shell", "--yes", *both).code == 0
    assert created(world.api, "Pod", world.team, "shell")["spec"]["hostPID"] is True


UNNAMEABLE = ("../../kube-system/pods/system", "..", "a/b", "%2e%2e", "Shell", "a..b", "shell?dryRun=All", "")


def test_manifest_of_impossible_pod_or_depth_is_untrusted(world: World) -> None:
    """Nothing is sent for a name that no pod can have, and nested JSON ends no command: each is refused by itself."""
    spec = {"containers": [{"name": "c", "image": "evil:1"}]}
    for number, name in enumerate(UNNAMEABLE):
        pod = {"gpu-rightsizer.io/pod": f"{world.team}/{name}"}
        own = {"name": f"forged-{number}", "annotations": pod}
        _forge(world, world.team, name, spec, metadata=own)
    deep = '{"a":' * 2000 + "1" + "}" * 2000
    for field in ("manifest", "record"):
        called = f"deep-{field}"
        _forge(world, world.team, called, spec, metadata={"name": called})
        world.api.patch("Secret", "gpu-rightsizer", called, {"data": {field: _encoded(deep)}})
    world.add("Deployment", world.team, "deep", {"usage": [["busy"]]})
    world.api.patch("Deployment", world.team, "deep", {"metadata": {"annotations": {UNDO: deep}}})
    refused = {"deep", "deep-manifest", "deep-record", *(f"forged-{one}" for one in range(len(UNNAMEABLE)))}
    world.api.requests.clear()
    run = world.run("undo", "--all", "--yes", "-o", "json")
    results = {name: item["result"] for name, item in run.items.items()}
    assert (run.code, results) == (0, dict.fromkeys(refused, "untrusted")), run.err
    for command in (["undo"], ["history"]):
        assert world.run(*command).code == 0
    assert world.run("apply", "--yes", policy=DEFAULT_POLICY).code == 0
    assert [one.path for one in world.api.requests.all() if "/pods/" in one.path or ".." in one.path] == []


def test_secret_of_another_type_is_no_manifest(world: World) -> None:
    """Neither for undo and history, nor for cooldowns and reconciliations: a label alone makes none of it."""
    world.add("Pod", world.team, "shell", {"usage": [["idle"]]})
    (pod,) = world.pods_of(world.team, "shell")
    annotations = {"gpu-rightsizer.io/pod": f"{world.team}/shell", "gpu-rightsizer.io/gpus": "60"}
    world.clock.stand(time.time() - 7200)
    for uid in ("0123abcd", pod["metadata"]["uid"][:8]):
        called = {"name": f"shell-{uid}", "annotations": annotations}
        _forge(world, world.team, "shell", PRIVILEGED, "Opaque", called)
    world.clock.run()
    assert json.loads(world.run("undo", "-o", "json").out)["items"] == []
    assert json.loads(world.run("history", "-o", "json").out)["items"] == []
    assert world.run("plan", "-o", "json", policy=DEFAULT_POLICY).items["shell"]["blockers"] == []
    assert "delete-manifest" not in world.run("apply", "--yes", policy=DEFAULT_POLICY).out
