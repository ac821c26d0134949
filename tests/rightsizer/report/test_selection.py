"""Filters of a plan: by name, namespace, label, verdict, finding, class and owner."""

import contextlib
import dataclasses

import hypothesis
import pytest
from hypothesis import strategies as st

from rightsizer.findings.no_requests import servers_without_metrics
from rightsizer.model import Manager, ObjectRef, Plan
from rightsizer.report.selection import InvalidSelectorError, Selection, parse_selector, selected
from tests.rightsizer.reported import full_plan

LABELS = {"app": "chat", "tier": "gold", "example.com/team": "nlp"}


def _plan() -> Plan:
    """The first workload has labels, a CronJob, a gang and a manager."""
    first, *others = full_plan().decisions
    workload = dataclasses.replace(
        first.workload,
        labels=LABELS,
        starter=ObjectRef("batch/v1", "CronJob", "research", "nightly"),
        managers=(Manager("Argo CD", "platform"),),
        gang="PodGroup research/train",
    )
    return dataclasses.replace(
        full_plan(), decisions=(dataclasses.replace(first, workload=workload), *others)
    )


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        (Selection(namespaces=("serving",)), ["chat", "assistant"]),
        (Selection(namespaces=("serv*", "training")), ["chat", "llm-pretrain", "assistant"]),
        (Selection(workloads=("research/deployment/eval-server",)), ["eval-server"]),
        (Selection(workloads=("research/Deployment.apps/eval-server",)), ["eval-server"]),
        (Selection(workloads=("serving/*/*",), verdicts=frozenset({"act"})), ["chat"]),
        (Selection(verdicts=frozenset({"protected", "act"})), ["eval-server", "chat", "assistant"]),
        (Selection(findings=frozenset({"stuck"})), ["llm-pretrain"]),
        (Selection(classes=("medium-*",)), ["chat"]),
        (Selection(labels=parse_selector("app=chat,tier!=silver")), ["eval-server"]),
        (Selection(owners=("nightly",)), ["eval-server"]),
        (Selection(owners=("CronJob/nightly",)), ["eval-server"]),
        (Selection(owners=("Argo CD/platform",)), ["eval-server"]),
        (Selection(owners=("Deployment/chat",)), ["chat"]),
        (Selection(owners=("PodGroup/research/train",)), ["eval-server"]),
        (Selection(owners=("nobody",)), []),
    ],
)
def test_selected_plan_has_only_workloads_that_match(selection: Selection, names: list[str]) -> None:
    """All that is given must hold; the others are counted."""
    plan = selected(_plan(), dataclasses.replace(selection, text="x"))
    assert [one.workload.ref.name for one in plan.decisions] == names
    assert plan.left_out == len(_plan().decisions) - len(names)


def test_selected_plan_leaves_out_problems_of_other_workloads() -> None:
    """Those of the cluster stay."""
    one, other, *_ = (str(decision.workload.ref) for decision in _plan().decisions)
    words = (
        "metrics are old",
        f"{one}: its annotation cannot be read",
        f"{other}: its annotation cannot be read",
    )
    plan = dataclasses.replace(_plan(), problems=words)
    assert selected(plan, Selection(workloads=(one,), text="x")).problems == words[:2]


def test_selected_plan_names_only_its_own_servers_without_metrics() -> None:
    """The remark names several, in the order of the fleet; it goes where none of them is kept."""
    plan = _plan()
    serving = [
        dataclasses.replace(
            one,
            workload=dataclasses.replace(
                one.workload, spec=b'{"containers": [{"image": "vllm/vllm-openai"}]}'
            ),
        )
        for one in plan.decisions[:2]
    ]
    assert plan.measured is not None
    (remark,) = servers_without_metrics((one.workload for one in serving[::-1]), plan.measured)
    plan = dataclasses.replace(plan, decisions=(*serving, *plan.decisions[2:]), problems=("old", remark))
    one, other, third = (str(decision.workload.ref) for decision in plan.decisions[:3])
    assert (one in remark, other in remark) == (True, True)
    last, words = selected(plan, Selection(workloads=(one,), text="x")).problems
    assert last == "old"
    assert (one in words, other in words) == (True, False)
    assert "of 1 inference server," in words
    assert selected(plan, Selection(workloads=(third,), text="x")).problems == ("old",)


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        (
            Selection(namespaces=("train",)),
            "namespace train: no GPU workload has it; there are: notebooks, research, ",
        ),
        (Selection(classes=("low",)), "PriorityClass low: no GPU workload has it; there are: "),
        (
            Selection(owners=("alice", "bob")),
            "owner alice or bob: no GPU workload has it; there are: Argo CD/platform, ",
        ),
    ],
)
def test_selected_plan_that_nothing_matches_says_what_there_is(selection: Selection, words: str) -> None:
    """Among the problems, so that a typo does not read as an empty cluster."""
    problems = selected(_plan(), dataclasses.replace(selection, text="x")).problems
    assert problems[0].startswith(words)
    assert len(problems) == len(_plan().problems) + 1


def test_selected_plan_without_filter_is_the_plan() -> None:
    """Nothing is left out."""
    plan = _plan()
    assert selected(plan, Selection()) is plan


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("app=chat", True),
        ("app==chat", True),
        ("app=other", False),
        ("app!=other", True),
        ("gone!=other", True),
        ("gone=", False),
        ("app", True),
        ("!app", False),
        ("!gone", True),
        ("app in (chat, mail)", True),
        ("app notin (chat,mail)", False),
        ("gone notin (chat)", True),
        ("example.com/team=nlp,tier in (gold),!gone", True),
        ("app=chat,tier=silver", False),
    ],
)
def test_label_selector_holds_as_in_kubernetes(text: str, holds: bool) -> None:
    """https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors ."""
    assert all(one.holds(LABELS) for one in parse_selector(text)) is holds


@pytest.mark.parametrize(
    "text", ["", "=x", "a=b=c", "a in", "a in x", "a in (x", "!a=b", "a,,b", "a b", "-a=b"]
)
def test_label_selector_malformed_is_refused(text: str) -> None:
    """Never taken for one that selects something else."""
    with pytest.raises(InvalidSelectorError, match="write a label selector"):
        parse_selector(text)


@hypothesis.given(st.text(max_size=40))
def test_label_selector_any_text_is_read_or_refused(text: str) -> None:
    """Nothing else is raised."""
    with contextlib.suppress(InvalidSelectorError):
        assert parse_selector(text)
