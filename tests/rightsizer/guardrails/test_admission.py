"""The admission guardrails let pass everything that the program does as the account that they limit."""

from typing import Any

import pytest

from rightsizer.guardrails.admission import admission_policies
from rightsizer.kinds import CONTROL_OBJECT_KINDS, KINDS
from rightsizer.policy.policy_file import parse
from rightsizer.report import events
from rightsizer.report.events import REASONS, ChangeEvent
from simulator.kube import Rule
from tests.rightsizer.world import BUDGETS, World, created, gpus_of

OWN = "gpu-rightsizer"
USER = f"system:serviceaccount:{OWN}:gpu-rightsizer"
POLICY = (
    """
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
classAnnotations: off
defaults: {kinds: []}
rules:
  - name: asked
    match: {kinds: [StatefulSet]}
    mode: enforce
    notifyBefore: 4h
    actions: [scale-to-zero]
  - name: all
    match: {everything: true}
    mode: enforce
    findings: {too-many-replicas: enforce, too-many-gpus: enforce}
    actions: [scale-up, scale-down, resize, scale-to-zero, suspend, evict]
"""
    + BUDGETS
)
GIVEN: dict[str, tuple[str, dict[str, Any]]] = {
    "web": ("Deployment", {"replicas": 4, "usage": ["idle", "busy", "idle", "idle"]}),
    "idle": ("Deployment", {"replicas": 2}),
    "wide": ("Deployment", {"gpus": 2, "usage": [["busy", "idle"]]}),
    "asked": ("StatefulSet", {}),
    "train": ("Job", {"gpus": 2, "usage": [["busy", "idle"]]}),
    "batch": ("Job", {}),
    "shell": ("Pod", {}),
}


def become_the_account(world: World) -> None:
    """Be the account that the guardrails limit, with all rights."""
    policy = parse(POLICY.encode(), source="policy").policy
    for document in admission_policies(policy, account="gpu-rightsizer", own=OWN):
        world.api.create(document)
    world.api.add_user("account", USER)
    world.api.allow(Rule(USER))
    world.write_kubeconfig("account")


@pytest.mark.slow
@pytest.mark.prometheus
def test_guardrails_allow_every_step_of_changes_and_undo(world: World) -> None:
    """Notice, replicas, GPUs, a Job in two steps, stop, eviction, state and Events; then all of it back."""
    for name, (kind, given) in GIVEN.items():
        world.add(kind, world.team, name, given)
    before = {name: created(world.api, kind, world.team, name)["spec"] for name, (kind, _) in GIVEN.items()}
    become_the_account(world)
    run = world.run("apply", "--yes", "-o", "json", policy=POLICY)
    assert {name: item["result"] for name, item in run.items.items()} == dict.fromkeys(GIVEN, "done"), run.out
    assert [gpus_of(pod) for pod in world.pods_of(world.team, "train")] == [1]
    reasons = {
        one["reason"] for one in world.api.list("Event", world.team) if one["source"]["component"] == OWN
    }
    assert reasons >= {"Notice", "ScaledDown", "ScaledToZero", "Resized", "Suspended", "Evicted", "Shrunk"}
    undone = world.run("undo", "--all", "--yes", "-o", "json")
    assert undone.code == 0, undone.out + undone.err
    after = {name: created(world.api, kind, world.team, name)["spec"] for name, (kind, _) in GIVEN.items()}
    same = [name for name in GIVEN if name != "shell" and after[name] == before[name]]
    assert [*same, "shell"] == list(GIVEN)
    assert [one.path for one in world.api.requests.all() if one.code == 403] == []


@pytest.mark.slow
@pytest.mark.prometheus
def test_guardrails_allow_longest_record_and_longer_ones_are_not_sent(world: World) -> None:
    """An owner's many services never make the guardrails refuse a write, which would open the breaker for everybody."""
    graph = "DynamoGraphDeployment.nvidia.com"
    for name, number in (("large", 120), ("larger", 150)):
        world.add(graph, world.team, name, {})
        more = {f"{'s' * 50}{one}": {"replicas": 1} for one in range(number)}
        world.api.patch(graph, world.team, name, {"spec": {"services": more}})
    become_the_account(world)
    run = world.run("apply", "--yes", "-o", "json", policy=POLICY)
    assert {name: item["result"] for name, item in run.items.items()} == {"large": "done"}, run.out
    assert world.run("undo", "--all", "--yes").code == 0
    assert [one.path for one in world.api.requests.all() if one.code == 403] == []


def test_admission_policies_fail_closed() -> None:
    """One that the API server cannot evaluate refuses the request, and none of them only warns."""
    policy = parse(POLICY.encode(), source="policy").policy
    documents = admission_policies(policy, account="gpu-rightsizer", own=OWN)
    specs = [document["spec"] for document in documents]
    assert {spec.get("failurePolicy", "Fail") for spec in specs} == {"Fail"}
    assert [spec["validationActions"] for spec in specs if "policyName" in spec] == [["Deny"]] * (
        len(specs) // 2
    )


def test_event_reasons_are_all_allowed_by_guardrails() -> None:
    """Each Event that the program can create has a reason in the list."""
    found = {one.reason for one in vars(events).values() if isinstance(one, ChangeEvent)}
    found |= {row.stop.reason for row in (*KINDS, *CONTROL_OBJECT_KINDS) if row.stop is not None}
    assert found <= REASONS
