"""Shrinking on the wire: which replicas go, what is said of them, and what is taken back where it comes to nothing."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from rightsizer.execute import deletion_cost
from simulator.kube import Fault
from tests.rightsizer.commands import Run
from tests.rightsizer.world import BUDGETS, World, created

pytestmark = pytest.mark.prometheus

POLICY = (
    """
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
defaults: {kinds: []}
rules:
  - {name: all, match: {everything: true}, mode: enforce, findings: {too-many-replicas: enforce}}
"""
    + BUDGETS
)
COST = "controller.kubernetes.io/pod-deletion-cost"
VICTIM = "gpu-rightsizer.io/deletion-cost-by"
ONE_OF_FOUR = {"replicas": 4, "usage": ["idle", "busy", "idle", "idle"]}


def _apply(world: World, policy: str = POLICY, *flags: str) -> Run:
    return world.run("apply", "--yes", "-o", "json", *flags, policy=policy)


def _names(world: World, name: str = "web") -> list[str]:
    return sorted(str(pod["metadata"]["name"]) for pod in world.pods_of(world.team, name))


def _marks(world: World) -> set[str]:
    pods = world.pods_of(world.team, "web")
    return {key for pod in pods for key in pod["metadata"].get("annotations", {}) if key in {COST, VICTIM}}


def test_shrink_deployment_removes_idle_replicas(world: World) -> None:
    """A Deployment's replica at work stays, whatever its age; those that stay carry no mark."""
    world.add("Deployment", world.team, "web", ONE_OF_FOUR)
    at_work = _names(world)[1]
    assert _apply(world).items["web"]["result"] == "done"
    left = _names(world)
    assert (len(left), at_work in left, _marks(world)) == (2, True, set())


def test_shrink_with_neighbour_without_series_is_judged_as_planned(world: World) -> None:
    """All of its own GPUs are named, so a pod of another namespace without series hides none of its use."""
    for name, gpus in {"s1": 2, "s2": 5}.items():
        world.node(name, resources={"nvidia.com/gpu": gpus}, pool="small")
    small = {"nodeSelector": {"pool": "small"}, "usage": [[]]}
    world.add("Pod", f"{world.team}-x", "unseen", {**small, "nodeName": "s1"})
    world.add("Deployment", world.team, "web", {**small, "replicas": 6})
    for pod in world.pods_of(world.team, "web"):
        world.record(pod, "idle", 1, {"Hostname": pod["spec"]["nodeName"]})
    policy = POLICY.replace("findings:", "idle: {idleFactor: 0}, findings:")
    item = _apply(world, policy).items["web"]
    assert (item["result"], len(_names(world))) == ("done", 0), item


@pytest.mark.parametrize(("dear", "result"), [((0, 1), "done"), ((0, 3), "changed")])
def test_shrink_user_deletion_costs_are_respected(world: World, dear: tuple[int, ...], result: str) -> None:
    """Where any pod has one, none is given by us; where these would take the one at work, nothing is done."""
    world.add("Deployment", world.team, "web", ONE_OF_FOUR)
    names = _names(world)
    kept = [names[number] for number in dear]
    for name in kept:
        world.api.patch("Pod", world.team, name, {"metadata": {"annotations": {COST: "100"}}})
    item = _apply(world).items["web"]
    assert item["result"] == result, item
    marked = [entry.path for entry in world.api.requests.mutating() if "/pods/" in entry.path]
    assert (marked, _names(world)) == ([], kept if result == "done" else names)


def test_shrink_inference_service_removes_idle_replicas(world: World) -> None:
    """The Deployment that KServe makes of it is told by costs, as any other."""
    given = {"replicas": 4, "usage": ["idle", "idle", "idle", "busy"], "spec": _served}
    world.add("LLMInferenceService.serving.kserve.io", world.team, "llm", given)
    at_work = _names(world, "llm")[3]
    assert _apply(world).items["llm"]["result"] == "done"
    assert (at_work in _names(world, "llm"), len(_names(world, "llm"))) == (True, 2)


@pytest.mark.parametrize("part", ["worker", "prefill", "scaling"])
def test_shrink_multi_component_inference_service_only_advises(world: World, part: str) -> None:
    """Its replicas are no pods of one Deployment."""
    world.add("LLMInferenceService.serving.kserve.io", world.team, "llm", {**ONE_OF_FOUR, "spec": _served})
    world.api.patch("LLMInferenceService", world.team, "llm", {"spec": {part: {"x": 1}}})
    run = world.run("plan", "-o", "json", policy=POLICY)
    item = run.items["llm"]
    assert (item["action"], item["mode"]) == ("scale-down", "advise"), item
    assert any(f"its spec.{part} is set" in reason for reason in item["reasons"])


def _served(template: dict[str, Any]) -> dict[str, Any]:
    return {"replicas": 4, "template": template["spec"]}


@pytest.mark.parametrize(
    ("usage", "result"),
    [(["busy", "idle", "idle", "idle"], "done"), (["idle", "idle", "idle", "busy"], "changed")],
    ids=["the-first-works", "the-last-works"],
)
def test_shrink_statefulset_active_last_ordinal_blocks(world: World, usage: list[str], result: str) -> None:
    """Its controller takes the highest ordinals, so where one of these is at work nothing is done."""
    world.add("StatefulSet", world.team, "web", {"replicas": 4, "usage": usage})
    item = _apply(world).items["web"]
    assert item["result"] == result, item
    assert _names(world) == [f"web-{number}" for number in range(2 if result == "done" else 4)]
    assert result == "done" or "web-3 is active" in item["detail"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "result"),
    [
        (Fault("deployments/web", "PATCH", None, status=422), "blocked"),
        (Fault("pods/web-", "PATCH", None, status=403), "refused"),
    ],
    ids=["the-change-is-refused", "pods-cannot-be-marked"],
)
def test_shrink_not_made_removes_deletion_costs(world: World, fault: Fault, result: str) -> None:
    """Nothing is left on them where the change is not made."""
    world.add("Deployment", world.team, "web", ONE_OF_FOUR)
    world.api.inject(fault)
    assert _apply(world).items["web"]["result"] == result
    assert (len(_names(world)), _marks(world)) == (4, set())


def test_shrink_killed_run_leftover_costs_are_removed(world: World) -> None:
    """A run that was killed between the two leaves marks; the next one takes them for nobody's wish, and says so."""
    _with_deletion_cost(world, "gpu-rightsizer/run-0")
    run = _apply(world, POLICY, "--log-format", "json")
    assert (run.code, _marks(world)) == (0, set())
    steps = run.changes
    assert [(step["step"], step.get("result", "")) for step in steps] == [("intent", ""), ("outcome", "done")]
    assert {step["action"] for step in steps} == {"clear-deletion-cost"}
    assert {step["reason"] for step in steps} == {"run run-0 marked it for deletion, and it was not deleted"}


def test_shrink_cleanup_keeps_newer_user_deletion_cost(world: World) -> None:
    """Only the mark goes, and the next shrink heeds what they said."""
    _with_deletion_cost(world, "gpu-rightsizer/run-0", cost="-5")
    assert _apply(world).code == 0
    assert _marks(world) == {COST}


def test_shrink_cleanup_takes_few_pods_and_namespaces_in_turn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may annotate pods may mark thousands."""
    monkeypatch.setattr(deletion_cost, "MOST_CLEARED", 3)
    marks = {COST: "-2147483648", VICTIM: "gpu-rightsizer/run-0"}
    for namespace, replicas in ((world.team, 4), ("zone", 1)):
        world.add("Deployment", namespace, "web", {"replicas": replicas, "usage": "busy"})
        for pod in world.pods_of(namespace, "web"):
            patch = {"metadata": {"annotations": marks}}
            world.api.patch("Pod", namespace, pod["metadata"]["name"], patch)
    assert _apply(world).code == 0
    left = {
        namespace: sum(
            VICTIM in pod["metadata"].get("annotations", {}) for pod in world.pods_of(namespace, "web")
        )
        for namespace in (world.team, "zone")
    }
    assert left == {world.team: 2, "zone": 0}


def _with_deletion_cost(world: World, by: str, cost: str = "-2147483648") -> None:
    world.add("Deployment", world.team, "web", {**ONE_OF_FOUR, "usage": "busy"})
    marks = {COST: cost, VICTIM: by}
    world.api.patch("Pod", world.team, _names(world)[0], {"metadata": {"annotations": marks}})


@pytest.mark.parametrize(
    ("by", "mode", "pauses"),
    [
        pytest.param("gpu-rightsizer/run-0", "enforce", True, id="while-it-is-paused"),
        pytest.param("gpu-rightsizer/run-0", "advise", False, id="where-nothing-is-enforced"),
        pytest.param("another/run-0", "enforce", False, id="what-another-instance-said"),
        pytest.param("run-0", "enforce", False, id="what-nobody-knows-who-said"),
    ],
)
def test_shrink_cleanup_without_write_permission_keeps_marks(
    world: World, by: str, mode: str, pauses: bool
) -> None:
    """Taking one back is a write like any other."""
    _with_deletion_cost(world, by)
    if pauses:
        assert world.run("pause", "--reason", "incident").code == 0
    before = len(world.api.requests.mutating())
    _apply(world, POLICY.replace("mode: enforce", f"mode: {mode}"))
    wrote = [entry.path for entry in world.api.requests.mutating()[before:] if "/pods/" in entry.path]
    assert (_marks(world), wrote) == ({COST, VICTIM}, [])


ONLY_FOR_PENDING_PODS = (
    """
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
defaults: {kinds: []}
rules:
  - {name: all, match: {everything: true}, mode: enforce, onlyForPendingPods: [suspend]}
"""
    + BUDGETS
)


def _give_up(world: World) -> None:
    world.api.delete("Pod", world.team, "waits")


def _find_a_place(world: World) -> None:
    world.node("another", resources={"nvidia.com/gpu": 8}, pool="training")
    world.api.settle()


def _wait_anew(world: World) -> None:
    """As another pod of that name, for which nothing was planned."""
    _give_up(world)
    world.api.settle()
    given = {"nodeSelector": {"pool": "training"}, "gpus": 2, "usage": "absent"}
    world.add("Pod", world.team, "waits", {**given, "priorityClass": "high-priority"})


@pytest.mark.parametrize("change", [_give_up, _find_a_place, _wait_anew])
def test_shrink_without_pending_pods_left_is_skipped(world: World, change: Callable[[World], None]) -> None:
    """Whoever waited when the plan was made is looked for again right before the write."""
    world.node("full", resources={"nvidia.com/gpu": 2}, pool="training")
    given: dict[str, Any] = {"nodeSelector": {"pool": "training"}, "gpus": 2}
    world.add("Job", world.team, "lends", given)
    world.add("Pod", world.team, "waits", {**given, "usage": "absent", "priorityClass": "high-priority"})
    world.after("poddisruptionbudgets", lambda: change(world))
    item = _apply(world, ONLY_FOR_PENDING_PODS).items["lends"]
    assert (item["result"], item["detail"]) == (
        "changed",
        "none of the pending pods that needed it is pending anymore",
    )
    assert created(world.api, "Job", world.team, "lends")["spec"].get("suspend") is not True


@pytest.mark.slow
def test_shrink_saved_plan_changed_replicas_is_refused(world: World, tmp_path: Any) -> None:
    """Another number of replicas than the reviewed one is not what was agreed to."""
    world.add("Deployment", world.team, "web", ONE_OF_FOUR)
    saved = tmp_path / "plan.json"
    saved.write_text(
        world.run("plan", "-o", "json", policy=POLICY).out.replace('"replicas": 2', '"replicas": 3')
    )
    assert _apply(world, POLICY, "--plan", str(saved)).items["web"]["result"] == "changed"
    saved.write_text(world.run("plan", "-o", "json", policy=POLICY).out)
    assert _apply(world, POLICY, "--plan", str(saved)).items["web"]["result"] == "done"


# --- For pending pods


ON_DEMAND = (
    """
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
defaults: {kinds: []}
rules:
  - {name: lenders, match: {everything: true}, mode: enforce, onlyForPendingPods: [scale-to-zero]}
"""
    + BUDGETS
)


def _lend(world: World, kind: str) -> dict[str, list[str]]:
    """Four idle replicas of a kind on two nodes; the names of those on each node."""
    for name in ("s1", "s2"):
        world.node(name, resources={"nvidia.com/gpu": 2}, pool="small", place=name)
    world.add(kind, world.team, "web", {"replicas": 4, "nodeSelector": {"pool": "small"}})
    found: dict[str, list[str]] = {"s1": [], "s2": []}
    for pod in world.pods_of(world.team, "web"):
        found[pod["spec"]["nodeName"]].append(pod["metadata"]["name"])
    return found


def _ask(world: World, name: str, node: str) -> None:
    """A pod of a higher priority that waits for a GPU of a node."""
    urgent = {
        "usage": "absent",
        "priorityClass": "high-priority",
        "age_h": 0,
        "nodeSelector": {"place": node},
    }
    world.add("Pod", world.team, name, urgent)


@pytest.mark.parametrize("node", ["s1", "s2"])
def test_on_demand_only_the_replica_that_a_pending_pod_needs_goes(world: World, node: str) -> None:
    """It is on the node that the pod accepts; undo brings it back."""
    before = _lend(world, "Deployment")
    _ask(world, "urgent", node)
    item = _apply(world, ON_DEMAND).items["web"]
    assert (item["action"], item["result"]) == ("scale-down", "done"), item
    gone = {name for names in before.values() for name in names} - set(_names(world))
    assert len(gone) == 1
    assert gone <= set(before[node])
    undo = json.loads(
        created(world.api, "Deployment", world.team, "web")["metadata"]["annotations"][
            "gpu-rightsizer.io/undo"
        ]
    )
    assert [(edit["before"], edit["after"]) for edit in undo["edits"]] == [(4, 3)]
    assert world.run("undo", "--yes", "--all").code == 0
    assert created(world.api, "Deployment", world.team, "web")["spec"]["replicas"] == 4


def test_on_demand_next_pending_pod_gets_the_next_idle_replica_at_once(world: World) -> None:
    """Those that stayed have been idle all the time: they need no new window of evidence."""
    _lend(world, "Deployment")
    for name, left in (("first", 3), ("second", 2)):
        _ask(world, name, "s2")
        item = _apply(world, ON_DEMAND).items["web"]
        assert (item["result"], len(_names(world))) == ("done", left), item
        world.api.settle()


def test_on_demand_replicas_of_a_statefulset_go_from_the_end(world: World) -> None:
    """As many as it takes until one on the node of the pending pod goes."""
    before = _lend(world, "StatefulSet")
    node = "s1" if "web-3" in before["s1"] else "s2"
    _ask(world, "urgent", node)
    item = _apply(world, ON_DEMAND).items["web"]
    assert (item["action"], item["result"]) == ("scale-down", "done"), item
    assert _names(world) == ["web-0", "web-1", "web-2"]


def test_on_demand_replica_marked_by_its_owner_since_the_plan_is_left_alone(world: World) -> None:
    """Deletion costs that appear before the write decide who goes: another replica would."""
    before = _lend(world, "Deployment")
    _ask(world, "urgent", "s1")
    marked = before["s2"][0]

    def mark() -> None:
        world.api.patch("Pod", world.team, marked, {"metadata": {"annotations": {COST: "-5"}}})

    world.after("deployments/web", mark)
    item = _apply(world, ON_DEMAND).items["web"]
    assert (item["result"], len(_names(world))) == ("changed", 4), item
    assert COST in item["detail"]
