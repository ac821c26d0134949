"""What holds for every policy: users only reduce, knowing less lets less happen, hidden rules are hidden."""

import dataclasses
import datetime
import fnmatch
import itertools
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from rightsizer.config import PREFIX
from rightsizer.model import FindingName, Fleet, Mode, Node, PriorityClass, Workload
from rightsizer.policy.do_not_disrupt import ROWS
from rightsizer.policy.effective import EffectivePolicy, PolicyEvaluator
from rightsizer.policy.limits import DEFAULT_BUDGETS, Budget, with_defaults
from rightsizer.policy.match import Match, holds, subject_of
from rightsizer.policy.policy_file import contains, covers
from rightsizer.policy.protections import OPT_OUTS
from rightsizer.policy.rule import ACTIONS, SWITCHABLE, Rule
from rightsizer.policy.schema import Policy
from tests.rightsizer.build import AT, MANY, pod, policy, rule_on, workload

CLASSES = {"high": 100, "low": 1, "": 0}
STRICTNESS = {Mode.PROTECT: 0, Mode.ADVISE: 1, Mode.ENFORCE: 2}
_texts = st.sampled_from(
    [
        "off",
        "advise",
        "enforce",
        "true",
        "false",
        "",
        "0",
        "1",
        "3",
        "2026-11-20",
        "2026-11-22T00:00:00Z",
        "1h",
    ]
) | st.text(max_size=8)


@st.composite
def _matches(draw: st.DrawFn) -> Match:
    conditions: dict[str, Any] = {
        "priorityClasses": ("l*",),
        "namespaces": ("res*",),
        "kinds": ("Job",),
        "models": ("*H100*",),
        "nodePools": ("a",),
        "labels": {"team": "v*"},
        "priority": {"min": 1},
    }
    names = draw(st.lists(st.sampled_from(sorted(conditions)), max_size=2, unique=True))
    return Match.model_validate({name: conditions[name] for name in names} or {"everything": True})


@st.composite
def _rules(draw: st.DrawFn, number: int) -> Rule:
    mode = draw(st.sampled_from(Mode))
    wishes = st.sampled_from(["advise", "off"])
    findings = draw(st.dictionaries(st.sampled_from(SWITCHABLE), wishes, max_size=3))
    return Rule.model_validate(
        {
            "name": f"r{number}",
            "match": draw(_matches()),
            "mode": mode,
            "findings": {name.value: wish for name, wish in findings.items()}
            if mode is not Mode.PROTECT
            else {},
            "actions": tuple(draw(st.permutations(ACTIONS)))[: draw(st.integers(3, 6))],
            "minGPUs": draw(st.integers(0, 4)),
            "notifyBefore": draw(st.sampled_from([None, "1h", "1d"])),
            "cooldown": draw(st.sampled_from(["1h", "24h"])),
        }
    )


@st.composite
def _policies(draw: st.DrawFn) -> Policy:
    rules = [draw(_rules(number)) for number in range(draw(st.integers(1, 4)))]
    return policy(*rules, classAnnotations=draw(st.sampled_from(["file-first", "class-first", "off"])))


@st.composite
def _workloads(draw: st.DrawFn) -> Workload:
    pods = []
    for number in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(CLASSES)))
        labels = draw(st.sampled_from([{}, {"team": "vision"}]))
        node = draw(st.sampled_from(["n1", "n2"]))
        pods.append(pod(f"w-{number}", priority_class=name, priority=CLASSES[name], labels=labels, node=node))
    kind = draw(st.sampled_from(["Deployment", "Job", "Notebook"]))
    return workload(*pods, kind=kind, labels=draw(st.sampled_from([{}, {"team": "vision"}])))


@st.composite
def _fleets(draw: st.DrawFn) -> Fleet:
    models = st.sampled_from(["NVIDIA-H100", "NVIDIA-T4"])
    nodes = {name: Node(name, model=draw(models), pool=draw(st.sampled_from("ab"))) for name in ("n1", "n2")}
    modes = st.sampled_from(
        [{}, {}, *({PREFIX + "mode": mode} for mode in ("protect", "advise", "enforce", "x"))]
    )
    classes = {name: PriorityClass(name, value, draw(modes)) for name, value in CLASSES.items() if name}
    return Fleet((), nodes, classes)


def _lets_no_more(now: EffectivePolicy, before: EffectivePolicy) -> None:
    assert STRICTNESS[now.mode] <= STRICTNESS[before.mode]
    for name in FindingName:
        assert now.mode_for(name) is not Mode.ENFORCE or before.mode_for(name) is Mode.ENFORCE
    if now.mode is not Mode.ENFORCE:
        return
    assert set(now.actions) <= set(before.actions)
    assert (now.min_replicas, now.min_gpus) >= (before.min_replicas, before.min_gpus)
    assert now.min_gpus >= before.min_gpus
    assert now.cooldown >= before.cooldown
    none = datetime.timedelta(0)
    assert (now.notify_before or none) >= (before.notify_before or none)


@MANY
@hypothesis.given(
    _workloads(),
    _policies(),
    _fleets(),
    st.dictionaries(
        st.sampled_from([*OPT_OUTS, *(row.key for row in ROWS), PREFIX + "idle-window"]), _texts, min_size=1
    ),
    st.sampled_from(["workload", "pod", "namespace"]),
)
def test_policy_annotations_only_reduce(
    item: Workload, rules: Policy, fleet: Fleet, wish: dict[str, str], where: str
) -> None:
    """Whatever stands on a workload, its pods or its namespace: no finding is treated harder, nothing kept is less."""
    first, *rest = item.pods
    wished = {
        "workload": dataclasses.replace(item, annotations=wish),
        "namespace": dataclasses.replace(item, namespace_annotations=wish),
        "pod": dataclasses.replace(item, pods=(dataclasses.replace(first, annotations=wish), *rest)),
    }[where]
    now, before = (rule_on(each, rules, fleet, at=AT) for each in (wished, item))
    _lets_no_more(now, before)
    for name in FindingName:
        assert STRICTNESS[now.mode_for(name)] <= STRICTNESS[before.mode_for(name)]


LESS: dict[str, Any] = {
    "a-node-gone": lambda item, fleet: (item, dataclasses.replace(fleet, nodes={"n2": fleet.nodes["n2"]})),
    "a-model-unlabelled": lambda item, fleet: (
        item,
        dataclasses.replace(
            fleet, nodes={**fleet.nodes, "n1": dataclasses.replace(fleet.nodes["n1"], model="")}
        ),
    ),
    "a-pool-unlabelled": lambda item, fleet: (
        item,
        dataclasses.replace(
            fleet, nodes={**fleet.nodes, "n1": dataclasses.replace(fleet.nodes["n1"], pool="")}
        ),
    ),
    "the-owner-unread": lambda item, fleet: (
        dataclasses.replace(item, resource_version="", labels={}),
        fleet,
    ),
    "a-priority-unresolved": lambda item, fleet: (
        dataclasses.replace(item, pods=(dataclasses.replace(item.pods[0], priority=None), *item.pods[1:])),
        fleet,
    ),
}


@pytest.mark.parametrize("lose", LESS.values(), ids=LESS.keys())
@MANY
@hypothesis.given(item=_workloads(), rules=_policies(), fleet=_fleets())
def test_policy_less_knowledge_never_does_more(
    lose: Any, item: Workload, rules: Policy, fleet: Fleet
) -> None:
    """Without a node, a label of it, or the owner's labels nothing is enforced that was not, and no less is kept."""
    less_item, less_fleet = lose(item, fleet)
    _lets_no_more(rule_on(less_item, rules, less_fleet, at=AT), rule_on(item, rules, fleet, at=AT))


_PARTS = {"*": st.text(alphabet="ab*?", max_size=2), "?": st.sampled_from("ab*?")}
_globs = st.text(alphabet="ab*?", min_size=1, max_size=5)
_narrower = _globs.flatmap(
    lambda wide: st.tuples(
        st.just(wide), st.tuples(*(_PARTS.get(one, st.just(one)) for one in wide)).map("".join)
    )
)
_NAMES = ["".join(letters) for length in range(6) for letters in itertools.product("abc", repeat=length)]


@hypothesis.settings(max_examples=500)
@hypothesis.given(st.one_of(st.tuples(_globs, _globs), _narrower))
def test_globs_contained_match_no_other_names(globs: tuple[str, str]) -> None:
    """No name over three letters matches the narrow glob alone."""
    wide, narrow = globs
    if contains(wide, narrow):
        assert all(fnmatch.fnmatchcase(name, wide) for name in _NAMES if fnmatch.fnmatchcase(name, narrow))


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("a-*", "a-b"),
        ("a?", "ab"),
        ("a?", "a?"),
        ("a-*", "a-b-*"),
        ("*-a", "?-a"),
        ("*a*", "ba*"),
        ("*", "?*"),
        ("team-?*", "team-a*"),
        ("a?b*", "a?b-*"),
    ],
)
def test_globs_contained_are_recognised(wide: str, narrow: str) -> None:
    """Equal text, a name, and a glob whose wildcards stand where the wide one has a star."""
    assert contains(wide, narrow)


@hypothesis.given(_matches(), _matches(), _workloads(), _fleets())
def test_unreachable_rule_never_matches_first(
    wide: Match, narrow: Match, item: Workload, fleet: Fleet
) -> None:
    """What the second matches the first matches, where it is said to cover it."""
    hypothesis.assume(covers(wide, narrow))
    for one in item.pods:
        subject = subject_of(item, one, fleet)
        assert holds(wide, subject) or not holds(narrow, subject)


@hypothesis.given(
    st.lists(
        st.builds(
            Budget,
            scope=st.sampled_from(["cluster", "namespace", "owner", "nodePool"]),
            per=st.sampled_from(["run", "hour", "day"]),
            gpus=st.integers(0, 10),
        ),
        unique_by=lambda budget: (budget.scope, budget.per),
    )
)
def test_budgets_written_keep_other_defaults(written: list[Budget]) -> None:
    """Each action that a default counts in a scope and time is counted there, once; what is written stands as it is."""
    budgets = with_defaults(tuple(written))
    keys = [(budget.scope, budget.per, action) for budget in budgets for action in budget.actions]
    assert len(keys) == len(set(keys))
    defaults = {(one.scope, one.per, action) for one in DEFAULT_BUDGETS for action in one.actions}
    assert defaults <= set(keys)
    assert list(budgets[: len(written)]) == written


@pytest.mark.parametrize(
    ("budget", "held", "gpus"),
    [
        ({"gpus": 8}, 1000, 8),
        ({"share": "10%"}, 1000, 100),
        ({"share": "10%"}, 8, 1),
        ({"share": "10%"}, 0, 0),
        ({"gpus": 8, "share": "10%"}, 1000, 8),
        ({"gpus": 8, "share": "10%"}, 30, 3),
        ({"share": "0.1%"}, 1000, 1),
        ({"share": "10%", "atLeastGPUs": 8}, 32, 8),
        ({"share": "10%", "atLeastGPUs": 8}, 5, 5),
        ({"share": "10%", "atLeastGPUs": 8}, 100, 10),
        ({"gpus": 2, "share": "10%", "atLeastGPUs": 8}, 32, 2),
        ({"workloads": 3}, 1000, None),
    ],
)
def test_budget_amount_and_share_lower_applies(budget: dict[str, Any], held: int, gpus: int | None) -> None:
    """A share is rounded up, exactly; a budget of workloads does not limit GPUs."""
    assert Budget.model_validate(budget).gpus_of(held) == gpus


@MANY
@hypothesis.given(st.lists(_workloads(), max_size=5), _policies(), _fleets())
def test_policy_evaluator_order_of_calls_changes_nothing(
    items: list[Workload], rules: Policy, fleet: Fleet
) -> None:
    """A evaluator that has been asked before says what a new one does."""
    book = PolicyEvaluator(rules, fleet, at=AT)
    assert [book.evaluate(item) for item in items] == [rule_on(item, rules, fleet, at=AT) for item in items]
