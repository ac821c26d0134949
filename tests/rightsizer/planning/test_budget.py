"""Counting against budgets: in every scope and over every time, in the order of the plan."""

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

import pytest

from rightsizer.model import Action, ChangeRecord, Decision, Fleet, FoundChange, Node, ObjectRef, Workload
from rightsizer.planning.budget import Purse, within_budgets
from rightsizer.policy.limits import DEFAULT_BUDGETS, Budget, with_defaults
from rightsizer.policy.schema import Policy
from tests.rightsizer.build import (
    AT,
    all_idle,
    busy_usage,
    concurrency,
    evaluator,
    measured_for,
    planned,
    pod,
    usages,
    workload,
)

HOUR = datetime.timedelta(hours=1)
NODES = {"n1": Node("n1", pool="a"), "n2": Node("n2", pool="b")}


def _item(name: str, gpus: int = 1, *, namespace: str = "team-a", nodes: Sequence[str] = ("n1",)) -> Workload:
    pods = (
        pod(
            f"{name}-{number}",
            devices=gpus,
            node=node,
            ref=ObjectRef("v1", "Pod", namespace, f"{name}-{number}", f"uid-{name}-{number}"),
        )
        for number, node in enumerate(nodes)
    )
    return workload(*pods, ref=ObjectRef("apps/v1", "Deployment", namespace, name, f"uid-{name}"))


def _policy(*budgets: dict[str, Any]) -> Policy:
    """These budgets, and none of the default ones that would matter."""
    written = {(one.get("scope", "cluster"), one.get("per", "run")) for one in budgets}
    defaults = [("cluster", "run"), ("namespace", "run"), ("cluster", "hour"), ("owner", "day")]
    others = [
        {"scope": scope, "per": per, "workloads": 1000}
        for scope, per in defaults
        if (scope, per) not in written
    ]
    return Policy.model_validate(
        {
            "apiVersion": "gpu-rightsizer.io/v1alpha1",
            "kind": "Policy",
            "budgets": [*budgets, *others],
            "rules": [{"name": "all", "match": {"everything": True}, "mode": "enforce", "cooldown": "1s"}],
        }
    )


def _plan(rules: Policy, *items: Workload, changes: tuple[FoundChange, ...] = ()) -> dict[str, Decision]:
    book = evaluator(rules, around=Fleet(items, NODES, {}, changes))
    found = {key: used for item in items for key, used in all_idle(item).items()}
    return {one.workload.ref.name: one for one in planned(book, measured_for(book, found))}


def _done(decisions: dict[str, Decision]) -> list[str]:
    return [name for name, decision in decisions.items() if decision.is_enforced]


FLEET = (
    _item("large", 4),
    _item("middle", 2, nodes=("n2",)),
    _item("other", 2, namespace="team-b"),
    _item("small"),
)

CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "gpus": ({"gpus": 5}, ["large", "small"]),
    "gpus-exactly": ({"gpus": 6}, ["large", "middle"]),
    "workloads": ({"workloads": 2}, ["large", "middle"]),
    "none": ({"gpus": 0}, []),
    "no-workload": ({"workloads": 0}, []),
    "share-of-nine-rounded-up": ({"share": "50%"}, ["large", "small"]),
    "the-lower-of-both": ({"gpus": 9, "share": "12%"}, ["middle"]),
    "of-each-namespace": ({"scope": "namespace", "workloads": 1}, ["large", "other"]),
    "share-of-each-namespace": ({"scope": "namespace", "share": "50%"}, ["large"]),
    "of-each-pool": ({"scope": "nodePool", "gpus": 3}, ["middle", "other", "small"]),
    "of-each-owner": ({"scope": "owner", "gpus": 2}, ["middle", "other", "small"]),
}


@pytest.mark.parametrize(("budget", "done"), CASES.values(), ids=CASES.keys())
def test_budget_in_plan_order_blocks_what_does_not_fit(budget: dict[str, Any], done: list[str]) -> None:
    """What does not fit is blocked, and what follows may still fit."""
    assert _done(_plan(_policy(budget), *FLEET)) == done


def test_budget_several_exceeded_lists_all() -> None:
    """A change is charged to all of them or to none."""
    rules = _policy({"gpus": 6}, {"scope": "namespace", "workloads": 1}, {"per": "hour", "gpus": 4})
    decisions = _plan(rules, *FLEET)
    assert _done(decisions) == ["large"]
    assert [block.message for block in decisions["middle"].blockers] == [
        "namespace/run of team-a: 1 of 1 workloads are used up by other changes of this plan",
        "cluster/hour: 4 of 4 GPUs are used up by other changes of this plan; this change needs 2",
    ]


def test_budget_smaller_than_a_change_says_that_it_never_fits() -> None:
    """Waiting does not help: a tenth of 40 GPUs is less than one node's workload of eight."""
    decisions = _plan(
        _policy({"per": "hour", "share": "10%"}), _item("wide", 8), *(_item(f"s{n}") for n in range(32))
    )
    assert [block.message for block in decisions["wide"].blockers] == [
        "cluster/hour: this change needs 8 GPUs, and it never allows more than 4; raise it in the policy"
    ]


@pytest.mark.parametrize(("each", "done"), [(0.5, ["first", "second"]), (0.6, ["first"])])
def test_budget_counts_parts_of_gpus(each: float, done: list[str]) -> None:
    """Of pods that share GPUs: two halves are one, and more is too much."""
    rules = _policy({"gpus": 1})
    book = evaluator(rules, around=Fleet((_item("first"), _item("second")), NODES, {}))
    plain = _plan(_policy(), _item("first"), _item("second")).values()
    found = within_budgets([dataclasses.replace(one, frees=each) for one in plain], book)
    assert [one.workload.ref.name for one in found if one.is_enforced] == done


def test_budget_workload_of_two_pools_counts_in_both() -> None:
    """With all that it frees: where its pods would go from is not asked."""
    both = _item("both", 1, nodes=("n1", "n2"))
    assert _done(_plan(_policy({"scope": "nodePool", "gpus": 1}), both)) == []
    assert _done(_plan(_policy({"scope": "nodePool", "gpus": 2}), both)) == ["both"]


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_budget_workload_of_two_pools_charges_each(node: str) -> None:
    """What it took of either is not left for another workload there."""
    items = _item("both", 1, nodes=("n1", "n2")), _item("other", 1, nodes=(node,))
    assert _done(_plan(_policy({"scope": "nodePool", "gpus": 2}), *items)) == ["both"]


def test_budget_pods_of_unknown_nodes_count_together() -> None:
    """They are in no known pool, and are no way around a budget of pools."""
    items = [_item(name, 1, nodes=(node,)) for name, node in (("first", "gone"), ("second", "lost"))]
    assert len(_done(_plan(_policy({"scope": "nodePool", "gpus": 1}), *items))) == 1


LATELY = {
    "a-minute-ago": (HOUR / 60, "hour", False),
    "an-hour-ago": (HOUR, "hour", True),
    "by-a-clock-that-is-ahead": (-HOUR, "hour", False),
    "hours-ago": (23 * HOUR, "day", False),
    "a-day-ago": (24 * HOUR, "day", True),
    "of-another-run": (HOUR / 60, "run", True),
}


@pytest.mark.parametrize(("ago", "per", "is_done"), LATELY.values(), ids=LATELY.keys())
def test_budget_recent_changes_count(ago: datetime.timedelta, per: str, is_done: bool) -> None:
    """In the 60 minutes or 24 hours before, whoever did it; not in a budget per run."""
    change = FoundChange(ObjectRef("apps/v1", "Deployment", "gone", "x"), ChangeRecord(AT - ago, "r0", "", 3))
    decisions = _plan(_policy({"per": per, "gpus": 3}), _item("w"), changes=(change,))
    assert (_done(decisions) == ["w"]) is is_done


def test_budget_past_change_counts_in_its_namespace_and_pools() -> None:
    """In its namespace, and in its pools."""
    change = FoundChange(
        ObjectRef("apps/v1", "Deployment", "team-a", "x"), ChangeRecord(AT, "r0", "", 1), pools=("a",)
    )
    for scope, done in (("namespace", ["other"]), ("nodePool", ["middle"])):
        items = (
            _item("small"),
            _item("middle", nodes=("n2",), namespace="team-a"),
            _item("other", namespace="team-b"),
        )
        decisions = _plan(_policy({"scope": scope, "per": "hour", "workloads": 1}), *items, changes=(change,))
        assert _done(decisions) == done


def test_budget_notice_costs_nothing() -> None:
    """They free nothing, and no more is changed by them."""
    rules = _policy({"workloads": 0})
    gentle = rules.model_copy(update={"rules": (rules.rules[0].model_copy(update={"notifyBefore": HOUR}),)})
    assert _done(_plan(gentle, _item("w"))) == ["w"]


def test_budget_blocked_change_costs_nothing() -> None:
    """A PodDisruptionBudget holds the largest: what comes after it gets its share."""
    guarded = dataclasses.replace(_item("large", 4), budgets={"pdb": 0})
    decisions = _plan(_policy({"gpus": 2}), guarded, _item("small"))
    assert _done(decisions) == ["small"]
    assert [block.code.value for block in decisions["large"].blockers] == ["disruption-budget"]


LEFT: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "workloads": ({"per": "hour", "workloads": 5}, {"workloads": 4}),
    "gpus": ({"per": "hour", "gpus": 5}, {"gpus": 2}),
    "the-lower-of-both": ({"per": "hour", "gpus": 9, "share": "50%"}, {"gpus": 2}),
    "what-each-run-may": ({"gpus": 5, "workloads": 7}, {"gpus": 5, "workloads": 7}),
    "never-below-none": ({"per": "day", "gpus": 1}, {"gpus": 0}),
    "of-the-namespace-with-the-least": (
        {"scope": "namespace", "per": "hour", "workloads": 2},
        {"workloads": 1},
    ),
    "of-the-pool-with-the-least": ({"scope": "nodePool", "per": "hour", "share": "40%"}, {"gpus": 0}),
    "of-owners-that-hold-any": ({"scope": "owner", "per": "day", "workloads": 1}, {"workloads": 1}),
}


@pytest.mark.parametrize(("budget", "left"), LEFT.values(), ids=LEFT.keys())
def test_budget_left_after_changes_is_the_minimum(budget: dict[str, Any], left: dict[str, float]) -> None:
    """By what was changed lately: of what counts by parts of the fleet, where the least is left."""
    change = FoundChange(
        ObjectRef("apps/v1", "Deployment", "team-a", "x"),
        ChangeRecord(AT - HOUR / 2, "r0", "", 3),
        pools=("a",),
    )
    purse = Purse(_policy(budget), Fleet(FLEET, NODES, {}, (change,)), AT)
    key = (budget.get("scope", "cluster"), budget.get("per", "run"))
    assert {one.unit: one.amount for one in purse.left() if (one.scope, one.per) == key} == left


@pytest.mark.parametrize(("minutes", "left"), [(29, 2), (30, 1), (31, 1)])
def test_budget_left_for_a_run_with_several_cycles_counts_what_earlier_ones_changed(
    minutes: int, left: int
) -> None:
    """Each goes on with the budgets of the run; what was changed before it began is another run's."""
    ref = ObjectRef("apps/v1", "Deployment", "team-a", "x")
    change = FoundChange(ref, ChangeRecord(AT - HOUR / 2, "r0", "", 3))
    fleet, began = Fleet(FLEET, NODES, {}, (change,)), AT - datetime.timedelta(minutes=minutes)
    assert next(iter(Purse(_policy({"workloads": 2}), fleet, AT, began).left())).amount == left


def test_budget_left_of_empty_cluster_is_whole() -> None:
    """Of parts of the fleet that nobody holds GPUs in nothing is said."""
    purse = Purse(_policy({"workloads": 3}, {"scope": "nodePool", "gpus": 1}), Fleet((), {}, {}), AT)
    assert {(one.scope, one.per, one.amount) for one in purse.left()} == {
        ("cluster", "run", 3),
        ("cluster", "hour", 1000),
    }


def _service(budgets: list[dict[str, Any]], *changes: FoundChange) -> Decision:
    """A Deployment of ten replicas of two GPUs, of which two are needed with headroom."""
    pods = [pod(f"w-{number}", devices=2) for number in range(10)]
    item = workload(*pods, kind="Deployment")
    found = usages(*((one, (busy_usage(), busy_usage(1))) for one in item.pods))
    rules = Policy.model_validate(
        {
            "apiVersion": "gpu-rightsizer.io/v1alpha1",
            "kind": "Policy",
            "budgets": budgets,
            "rules": [
                {
                    "name": "all",
                    "match": {"everything": True},
                    "mode": "enforce",
                    "findings": {"too-many-replicas": "enforce"},
                }
            ],
        }
    )
    book = evaluator(rules, around=Fleet((item,), NODES, {}, changes))
    (decision,) = planned(book, measured_for(book, found, concurrency={"uid-w": concurrency(1)}))
    return decision


SHORTENED: dict[str, tuple[list[dict[str, Any]], int]] = {
    "a-quarter-by-default": ([], 8),  # five GPUs
    "gpus": ([{"per": "run", "gpus": 7}], 7),
    "no-more-than-needed": ([{"per": "run", "gpus": 100}], 2),
    "the-lowest": ([{"per": "run", "gpus": 100}, {"scope": "namespace", "per": "hour", "gpus": 4}], 8),
    "of-other-actions": ([{"scope": "namespace", "per": "hour", "gpus": 1, "actions": ["suspend"]}], 8),
}


@pytest.mark.parametrize(("budgets", "left"), SHORTENED.values(), ids=SHORTENED.keys())
def test_budget_of_a_scale_down_removes_what_it_allows(budgets: list[dict[str, Any]], left: int) -> None:
    """The rest goes in later runs."""
    decision = _service(budgets)
    proposal = decision.finding.proposal
    assert proposal is not None
    assert (proposal.replicas, decision.frees, proposal.frees) == (left, 20 - 2 * left, 20 - 2 * left)
    assert decision.is_enforced
    assert f"--replicas {left}" in decision.command
    assert proposal.words in decision.finding.words


@pytest.mark.parametrize("budget", [{"gpus": 1}, {"workloads": 0}])
def test_budget_without_room_for_one_replica_blocks_the_scale_down(budget: dict[str, Any]) -> None:
    """As any other change."""
    decision = _service([{"per": "run", **budget}])
    assert [block.code.value for block in decision.blockers] == ["budget"]


@pytest.mark.parametrize(
    ("action", "left"), [("scale-down", 6), ("scale-to-zero", 2), ("", 6), ("of a later version", 6)]
)
def test_budget_counts_changes_of_its_actions(action: str, left: int) -> None:
    """And those whose action is not known."""
    change = FoundChange(
        ObjectRef("apps/v1", "Deployment", "gone", "x"), ChangeRecord(AT - HOUR / 2, "r0", action, 12)
    )
    budgets = [{"per": "hour", "gpus": 20, "actions": ["scale-down"]}, {"per": "run", "gpus": 100}]
    proposal = _service(budgets, change).finding.proposal
    assert proposal is not None
    assert proposal.replicas == left


def test_budget_of_some_actions_leaves_the_default_of_others() -> None:
    """What it does not count is limited as before."""
    stops = with_defaults((Budget(workloads=9, actions=(Action.SUSPEND, Action.SCALE_TO_ZERO)),))
    assert {*DEFAULT_BUDGETS} <= {*stops}
    everything = with_defaults((Budget(workloads=9),))
    assert [one for one in everything if (one.scope, one.per) == ("cluster", "run")] == [everything[0]]


ROW = tuple(
    _item(name, gpus, namespace=f"team-{name}") for name, gpus in (("a", 4), ("b", 3), ("c", 2), ("d", 1))
)
"""By a budget of five GPUs, the first and the last are changed."""


@pytest.mark.parametrize("finding", ["", "idle"])
def test_budget_of_an_hour_counts_earlier_parts_of_stops(finding: str) -> None:
    """Replicas that went on demand from a workload that could be stopped; not those of a plain scale-down."""
    item, other = _item("w"), _item("other")
    record = ChangeRecord(AT - HOUR / 2, "run-1", Action.SCALE_DOWN, 1, finding=finding)
    change = FoundChange(other.ref, record)
    rules = _policy({"per": "hour", "workloads": 1, "actions": ["scale-to-zero"]})
    assert _done(_plan(rules, item, changes=(change,))) == ([] if finding else ["w"])
