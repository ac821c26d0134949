"""Pauses, breaker and accepted scope through the commands: what stops everything, and who lets it go on."""

import json
from typing import Any

import pytest

from simulator.kube import Fault, LoggedRequest, Rule
from tests.rightsizer.commands import Run
from tests.rightsizer.world import DEFAULT_POLICY, World, created

pytestmark = pytest.mark.prometheus

STATE = "gpu-rightsizer-state"


_ADVISE = DEFAULT_POLICY.replace("mode: enforce", "mode: advise")


def _apply(world: World, *flags: str, policy: str = DEFAULT_POLICY) -> Run:
    return world.run("apply", "--yes", "-o", "json", "--verify-for", "0", *flags, policy=policy)


def _plan(world: World) -> dict[str, dict[str, Any]]:
    run = world.run("plan", "-o", "json", policy=DEFAULT_POLICY)
    assert run.code == 0, run.err
    return run.items


def _causes(world: World, name: str) -> list[str]:
    return [block["code"] for block in _plan(world)[name]["blockers"]]


def _state(world: World) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(world.run("breaker", "-o", "json").out)
    return found


def _replicas(world: World, name: str) -> int:
    found: int = created(world.api, "Deployment", world.team, name)["spec"]["replicas"]
    return found


def _idle(world: World, *names: str) -> None:
    for name in names:
        world.add("Deployment", world.team, name, {})


def test_pause_of_everything_changes_nothing(world: World) -> None:
    """A plan is made, and says why; resume lets it go on."""
    _idle(world, "idle")
    assert world.run("pause", "--reason", "incident 4711").code == 0
    plan = _plan(world)["idle"]
    assert (plan["verdict"], [block["code"] for block in plan["blockers"]]) == ("act", ["paused"])
    assert "incident 4711" in plan["blockers"][0]["message"]
    assert (_apply(world).items, _replicas(world, "idle")) == ({}, 1)
    assert "paused: nothing" in world.run("resume").out
    assert _apply(world).items["idle"]["result"] == "done"


def test_pause_of_a_namespace_leaves_others(world: World) -> None:
    """And ends by itself, where it was said for how long."""
    _idle(world, "idle")
    world.add("Deployment", f"{world.team}-other", "free", {})
    run = world.run("pause", "-n", world.team, "--reason", "paper deadline", "--for", "8h")
    assert (run.code, "until" in run.out) == (0, True)
    assert (_causes(world, "idle"), _causes(world, "free")) == (["paused"], [])
    assert set(_apply(world).items) == {"free"}
    assert world.run("resume").code == 2
    assert world.run("resume", "-n", world.team).code == 0
    assert _causes(world, "idle") == []


def test_pause_during_a_run_stops_the_next_write(world: World) -> None:
    """Whoever pauses in the middle of a run stops what has not been done yet."""
    world.add("Deployment", world.team, "first", {"replicas": 2})
    _idle(world, "second")
    note, waiting = world.api.requests.add, [True]

    def noted(entry: LoggedRequest) -> None:
        note(entry)
        is_first = entry.method == "PATCH" and not entry.dry_run and entry.path.endswith("/first")
        if is_first and waiting:
            waiting.pop()
            assert world.run("pause", "--reason", "stop it").code == 0

    world.api.requests.add = noted  # type: ignore[method-assign]
    run = _apply(world)
    assert {name: item["result"] for name, item in run.items.items()} == {
        "first": "done",
        "second": "blocked",
    }
    assert "stop it" in run.items["second"]["detail"]
    assert _replicas(world, "second") == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["pause"], "--reason"),
        (["pause", "--reason", "  "], "is empty"),
        (["pause", "--reason", "x", "--for", "soon"], "--for"),
        (["pause", "--reason", "x", "--for", "0"], "would end at once"),
        (["pause", "--reason", "x", "-n", "no-such-namespace"], "not found"),
        (["resume"], "the whole cluster is not paused; paused: nothing"),
        (["breaker", "reset"], "say why"),
        (["breaker", "accept-growth"], "needs --policy"),
        (["undo", "--until", "2h"], "give --since, too"),
        (["undo", "--since", "yesterday"], "write a time with its zone"),
        (["undo", "--since", "2026-11-20T18:00:00"], "says no zone"),
        (["history", "not-a-name"], "NAMESPACE/KIND/NAME"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_breaker_command_invalid_flags_exit_2(world: World, flags: list[str], words: str) -> None:
    """Exit code 2, and what would be right."""
    run = world.run(*flags)
    assert (run.code, words in run.err) == (2, True), run.err
    assert world.api.list("ConfigMap", "gpu-rightsizer") == []


@pytest.mark.slow
def test_breaker_errors_over_several_runs_stays_open(world: World) -> None:
    """Latched: that the cause has gone does not close it; a person with a reason does."""
    _idle(world, "a", "b")
    world.api.inject(Fault("deployments/[abc]$", "PATCH", None, status=500))
    assert {item["result"] for item in _apply(world).items.values()} == {"refused"}
    assert _state(world)["breaker"]["isOpen"] is False
    run = _apply(world)
    assert [item["result"] for item in run.items.values()] == ["refused", "blocked"]
    world.api.clear_faults()
    assert (_causes(world, "a"), _apply(world).items) == (["paused"], {})
    assert _state(world)["breaker"]["trip"]["cause"] == "refused"
    cleared = world.run("breaker", "reset", "--reason", "the API server was being upgraded")
    assert "last cleared" in cleared.out
    assert {item["result"] for item in _apply(world).items.values()} == {"done"}


def _status(code: int, message: str, **more: object) -> dict[str, object]:
    return {"kind": "Status", "status": "Failure", "code": code, "message": message, **more}


_EXPECTED = {
    "gone": _status(404, 'deployments.apps "a" not found'),
    "kind-gone": _status(404, "the server could not find the requested resource"),
    "changed": _status(409, "the object has been modified"),
    "budget": _status(429, "it would violate", details={"causes": [{"reason": "DisruptionBudget"}]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", _EXPECTED)
def test_breaker_expected_answers_are_not_errors(world: World, case: str) -> None:
    """That something is gone, changed or held by a budget is the API server at its work, however often."""
    _idle(world, "a")
    body = _EXPECTED[case]
    world.api.inject(Fault("deployments/a$", "PATCH", None, status=int(str(body["code"])), body=body))
    for _ in range(2):
        run = world.run("apply", "--yes", "-o", "json", policy=DEFAULT_POLICY + "breaker: {maxErrors: 1}\n")
        assert run.items["a"]["result"] in {"gone", "changed", "blocked"}, run.items
    assert _state(world)["breaker"]["isOpen"] is False


_OURS = "ValidatingAdmissionPolicy 'gpu-rightsizer-deployments.apps' with binding 'x' denied request: "


@pytest.mark.parametrize(
    ("code", "words"),
    [(403, "no"), (422, "failed to configure binding: no kind"), (422, "compilation error: no function")],
    ids=["refused", "unconfigured", "not-compiled"],
)
def test_breaker_write_out_of_policy_opens_at_once(world: World, code: int, words: str) -> None:
    """What the admission guardrails refuse, the program should never have tried; nor if they check nothing."""
    _idle(world, "a", "b")
    status = {"kind": "Status", "status": "Failure", "code": code}
    status["message"] = f'deployments.apps "a" is forbidden: {_OURS}{words}'
    world.api.inject(Fault("deployments/a$", "PATCH", 1, status=code, body=status))
    run = _apply(world)
    assert [item["result"] for item in run.items.values()] == ["refused", "blocked"]
    assert _state(world)["breaker"]["trip"]["cause"] == "refused"
    assert _replicas(world, "b") == 1


def test_breaker_object_too_large_for_etcd_blocks_itself_alone(world: World) -> None:
    """A tenant may fill a template with 1.5 MB; the dry run passes, and the record is too much. Nothing was changed."""
    _idle(world, "a")
    words = "etcdserver: request is too large"
    status = {"kind": "Status", "status": "Failure", "code": 500, "message": words}
    world.api.inject(Fault("deployments/a$", "PATCH", 1, delay_s=0.001))
    world.api.inject(Fault("deployments/a$", "PATCH", 1, status=500, body=status))
    run = world.run("apply", "--yes", "-o", "json", policy=DEFAULT_POLICY + "breaker: {maxErrors: 1}\n")
    assert (run.items["a"]["result"], _replicas(world, "a")) == ("blocked", 1), run.items
    assert _state(world)["breaker"]["isOpen"] is False
    assert "rejected" in world.run("history").out


_THEIRS = "ValidatingAdmissionPolicy 'company' with binding 'all' denied request: image"
_QUOTA = "exceeded quota: q, requested: count/x=1, used: count/x=5, limited: count/x=5"
_ENDS = "unable to create new content in namespace team because it is being terminated"
_TEMPLATE = 'resourceclaimtemplates.resource.k8s.io "a-1" is forbidden: '
_DENIALS = {
    "quota-of-templates": (403, f"{_TEMPLATE}{_QUOTA}"),
    "quota-of-commands": (403, f'commands.bus.volcano.sh "a-1" is forbidden: {_QUOTA}'),
    "quota-just-created": (403, f"{_TEMPLATE}status unknown for quota: q, resources: count/x"),
    "quota-missing": (403, f"{_TEMPLATE}insufficient quota to consume: count/x"),
    "namespace-terminating": (403, f"{_TEMPLATE}{_ENDS}"),
    "webhook": (403, 'admission webhook "gatekeeper.sh" denied the request: no label team'),
    "webhook-without-code": (400, 'admission webhook "kyverno.svc" denied the request without explanation'),
    "webhook-that-quotes-the-object": (403, f'admission webhook "x.sh" denied the request: image {_OURS}'),
    "other-policy": (403, f'deployments.apps "a" is forbidden: {_THEIRS} {_OURS}'),
    "own-about-class": (422, f"{_OURS}rule precious protects pods of class high"),
    "own-without-result": (422, f"{_OURS}expression 'x' resulted in error: compilation error"),
    "own-too-costly": (422, f"{_OURS}validation failed due to running out of cost budget, no further"),
}


def _refused(world: World, code: int, words: str) -> tuple[str, bool]:
    """The result of a change that the API server refuses, and whether the breaker opens at the first error."""
    _idle(world, "a")
    status = {"kind": "Status", "status": "Failure", "code": code, "message": words}
    world.api.inject(Fault("deployments/a$", "PATCH", 1, status=code, body=status))
    run = world.run("apply", "--yes", "-o", "json", policy=DEFAULT_POLICY + "breaker: {maxErrors: 1}\n")
    return run.items["a"]["result"], _state(world)["breaker"]["isOpen"]


@pytest.mark.parametrize(("code", "words"), _DENIALS.values(), ids=_DENIALS.keys())
def test_breaker_object_that_policies_deny_blocks_itself_alone(world: World, code: int, words: str) -> None:
    """Its owner wrote it, perhaps also the text that such a policy repeats: it opens no breaker."""
    assert _refused(world, code, words) == ("blocked", False)


_ERRORS = {
    "own-policy-that-quotes": (403, f'deployments.apps "a" is forbidden: {_OURS}{_TEMPLATE}{_QUOTA}'),
    "no-permission": (403, f'deployments.apps "a" is forbidden: User "x" cannot patch {_TEMPLATE}{_ENDS}'),
    "without-object": (403, _QUOTA),
    "own-namespace": (403, f'secrets "gpu-rightsizer-pod" is forbidden: {_QUOTA}'),
    "own-namespace-terminating": (403, f'secrets "gpu-rightsizer-pod" is forbidden: {_ENDS}'),
    "server-error": (500, f"{_TEMPLATE}{_QUOTA}"),
}


@pytest.mark.parametrize(("code", "words"), _ERRORS.values(), ids=_ERRORS.keys())
def test_breaker_refusal_that_is_not_about_the_object_opens(world: World, code: int, words: str) -> None:
    """Whatever it quotes; a quota of gpu-rightsizer's own namespace stops every eviction."""
    assert _refused(world, code, words) == ("refused", True)


@pytest.mark.parametrize(
    ("code", "told", "kept"),
    [
        (422, "expression 'EXPRESSION' resulted in error: no such key: name", "no such key: name"),
        (403, "failed expression: EXPRESSION", "its expression is false"),
    ],
    ids=["error", "false"],
)
def test_apply_refusal_omits_the_expression(world: World, code: int, told: str, kept: str) -> None:
    """The API server repeats kilobytes of it, which would hide the cause in a table and in the breaker's reason."""
    _idle(world, "a")
    expression = "variables.spec.all(k,\n'x' in k) && " * 200
    words = f"{_OURS}{told.replace('EXPRESSION', expression)}"
    status = {"kind": "Status", "status": "Failure", "code": code, "message": words}
    world.api.inject(Fault("deployments/a$", "PATCH", 1, status=code, body=status))
    detail = _apply(world).items["a"]["detail"]
    trip = _state(world)["breaker"].get("trip") or {"reason": kept}
    for reason in (detail, trip["reason"]):
        assert "variables" not in reason
        assert kept in reason
        assert len(reason) < 700


@pytest.mark.slow
def test_apply_with_open_breaker_fails(world: World) -> None:
    """With nothing else to do, too, and in one sentence: a CronJob has nothing but its exit code to be alerted by."""
    _idle(world, "a")
    world.api.inject(Fault("deployments/a$", "PATCH", None, status=500))
    while not _state(world)["breaker"]["isOpen"]:
        assert _apply(world).code == 1
    world.api.clear_faults()
    run = _apply(world)
    assert (run.code, run.items) == (1, {})
    assert "error: the breaker is open: 3 errors in a row" in run.err
    assert "gpu-rightsizer breaker" in run.err
    world.run("breaker", "reset", "--reason", "looked")
    run = _apply(world)
    assert (run.code, run.err.count("breaker")) == (0, 0)


@pytest.mark.slow
def test_apply_too_many_unready_nodes_opens_breaker(world: World) -> None:
    """A plan shows it; apply latches it."""
    _idle(world, "idle")
    for number in range(3):
        world.node(f"away-{number}")
        world.api.settle()
        conditions = {
            "status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}
        }
        world.api.patch("Node", None, f"away-{number}", conditions, subresource="status")
    assert _causes(world, "idle") == ["paused"]
    assert _state(world)["breaker"]["isOpen"] is False
    assert _apply(world).items == {}
    for number in range(3):
        world.api.delete("Node", None, f"away-{number}")
    assert _causes(world, "idle") == ["paused"]
    assert "3 of 4 GPU nodes are not ready" in _state(world)["breaker"]["trip"]["reason"]


def _many(world: World) -> None:
    """One idle workload, and eleven that nothing is known about."""
    world.add("Deployment", world.team, "many-0", {})
    for number in range(1, 12):
        world.add("Deployment", world.team, f"many-{number}", {"usage": "absent"})


def test_apply_new_workloads_of_users_do_not_open_breaker(world: World) -> None:
    """Whoever may create pods of an enforced class does not stop all changes."""
    _idle(world, "idle")
    assert _apply(world).items["idle"]["result"] == "done"
    assert _state(world)["scope"]["rules"] == {"research": 0, "scavengers": 1}
    _many(world)
    run = _apply(world)
    assert (run.code, run.items["many-0"]["result"]) == (0, "done"), run.err
    assert _state(world)["scope"]["rules"] == {"research": 0, "scavengers": 12}


@pytest.mark.slow
def test_apply_growth_by_policy_opens_breaker(world: World) -> None:
    """The first run's scope is taken as meant; later growth opens the breaker until somebody accepts it."""
    _idle(world, "idle")
    assert _apply(world).items["idle"]["result"] == "done"
    _many(world)
    assert _apply(world, policy=_ADVISE).items == {}
    for _ in range(2):  # a reset accepts nothing
        assert (_apply(world).items, _causes(world, "many-0")) == ({}, ["paused"])
        assert _state(world)["breaker"]["trip"]["cause"] == "growth"
        assert world.run("breaker", "reset", "--reason", "look again").code == 0
    assert _state(world)["scope"]["rules"] == {"research": 0, "scavengers": 1}
    policy = world.directory / "policy.yaml"
    accepted = world.run("breaker", "accept-growth", "--policy", str(policy))
    assert "scavengers: 12 workloads" in accepted.out, accepted.err
    assert _causes(world, "many-0") == []


def test_apply_accept_growth_closes_breaker(world: World) -> None:
    """--accept-growth closes what the scope had opened, and the run goes on."""
    _idle(world, "idle")
    _apply(world, policy=_ADVISE)
    _many(world)
    assert _apply(world).items == {}
    assert _apply(world, "--accept-growth").items["many-0"]["result"] == "done"
    assert _state(world)["breaker"]["isOpen"] is False


@pytest.mark.slow
def test_apply_unreadable_state_changes_nothing(world: World) -> None:
    """Somebody's edit of the ConfigMap is no permission; clearing it makes it readable again."""
    _idle(world, "idle")
    data = {"breaker.json": "{", "pauses.json": "7"}
    metadata = {"name": STATE, "namespace": "gpu-rightsizer"}
    world.api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    assert _causes(world, "idle") == ["paused"]
    assert _apply(world).items == {}
    assert world.run("resume").code == 0
    assert _causes(world, "idle") == ["paused"]
    assert world.run("breaker", "reset", "--reason", "mended").code == 0
    assert _causes(world, "idle") == []


def test_apply_without_read_access_to_state_changes_nothing(world: World) -> None:
    """A plan is made all the same, and says so."""
    _idle(world, "idle")
    world.api.deny(Rule("*", resources=("configmaps",)))
    plan = world.run("plan", "-o", "json", policy=DEFAULT_POLICY)
    assert plan.items["idle"]["verdict"] == "act"
    assert any("whether it is paused is not known" in problem for problem in json.loads(plan.out)["problems"])
    run = _apply(world)
    assert (run.code, _replicas(world, "idle")) == (2, 1)
    assert "whether it is paused cannot be known" in run.err


def test_state_two_writers_lose_nothing(world: World) -> None:
    """The second is refused by the resourceVersion, reads again and adds its own."""
    assert world.run("pause", "--reason", "first").code == 0
    note, waiting = world.api.requests.add, [True]

    def noted(entry: LoggedRequest) -> None:
        note(entry)
        if entry.method == "GET" and entry.path.endswith(STATE) and waiting:
            waiting.pop()
            world.namespace(world.team)
            assert world.run("pause", "-n", world.team, "--reason", "second").code == 0

    world.api.requests.add = noted  # type: ignore[method-assign]
    assert world.run("pause", "-n", "default", "--reason", "third").code == 0
    assert {pause["reason"] for pause in _state(world)["pauses"]} == {"first", "second", "third"}


def test_apply_object_that_allows_no_write_waits_alone(world: World) -> None:
    """Annotations that leave no room for a record, or a manifest too large to save, are nobody else's error."""
    world.add("Deployment", world.team, "full", {})
    world.add("Deployment", world.team, "idle", {})
    text = "x" * ((256 << 10) - 64)
    world.api.patch("Deployment", world.team, "full", {"metadata": {"annotations": {"a": text}}})
    policy = DEFAULT_POLICY.replace("maxErrors: 3", "maxErrors: 1")
    run = world.run("apply", "--yes", "-o", "json", policy=policy)
    results = {name: item["result"] for name, item in run.items.items()}
    assert (results, run.code) == ({"full": "blocked", "idle": "done"}, 0)
    assert "may not be more than 262144 bytes" in run.items["full"]["detail"]
    assert "\nbreaker: closed\n" in world.run("breaker").out
    plan = world.run("plan", "-o", "json", policy=policy)
    assert "it rejected a change at" in str(plan.items["full"]["blockers"])
    assert world.run("apply", "--yes", "-o", "json", policy=policy).items == {}
    assert "rejected" in world.run("history").out
