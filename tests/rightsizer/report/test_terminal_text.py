"""What people read: byte for byte, in 80 columns, with nothing that a terminal would obey."""

import dataclasses
import datetime
from collections.abc import Sequence

import hypothesis
import pytest
from hypothesis import strategies as st

from rightsizer.config import format_duration, parse_duration
from rightsizer.kinds import KINDS
from rightsizer.kinds.patches import UndoItem, record_of
from rightsizer.model import Edit, Effect, Mode, ObjectRef, Outcome, Plan, Result, Workload
from rightsizer.policy.match import Match
from rightsizer.report.evidence_text import explained_text
from rightsizer.report.outcomes import outcome_text, outcomes_summary, undoable_text
from rightsizer.report.table import changes_text, plan_text
from rightsizer.report.terminal import Paint, wrapped
from rightsizer.text import safe
from tests.conftest import Golden
from tests.rightsizer.build import (
    AT,
    all_idle,
    busy_usage,
    idle_usage,
    judged_all,
    pod,
    policy,
    rule,
    usages,
    workload,
)
from tests.rightsizer.reported import accounted, full_plan


def _named(name: str, item: Workload, **changes: str) -> Workload:
    ref = dataclasses.replace(item.ref, name=name, uid=f"uid-{name}", **changes)
    pods = tuple(
        dataclasses.replace(one, ref=dataclasses.replace(one.ref, name=f"{name}-{number}"))
        for number, one in enumerate(item.pods)
    )
    return dataclasses.replace(item, ref=ref, pods=pods)


def _plan() -> Plan:
    high = pod(priority_class="high-priority", priority=100_000)
    eight = pod(devices=8)
    items = {
        "idle": _named("eval-server", workload(pod("a"), pod("b"))),
        "long": _named("a-deployment-whose-name-does-not-fit-into-its-column-nor-into-one-line", workload()),
        "partly": _named("fine-tune", workload(eight, kind="Job")),
        "protected": _named("assistant", workload(high)),
        "opted-out": _named("mine", workload(annotations={"gpu-rightsizer.io/mode": "off"})),
        "silent": _named("silent", workload(kind="StatefulSet")),
        "foreign": _named(
            "ray", workload(ref=ObjectRef("example.com/v1", "RayCluster", "research", "w", "uid-w"))
        ),
    }
    found = {key: used for item in items.values() for key, used in all_idle(item).items()}
    busy = (busy_usage(0), busy_usage(1), *(idle_usage(number) for number in range(2, 8)))
    found.update(usages((items["partly"].pods[0], busy), (items["silent"].pods[0], ())))
    rules = policy(
        rule("production", Mode.PROTECT, match=Match(priorityClasses=("high-*",))), rule("research")
    )
    return Plan(AT, "run-1", "policy.yaml", "0" * 64, judged_all(items.values(), found, rules))


def test_report_plan_fits_80_columns(golden: Golden) -> None:
    """Every workload with class, rule, action and evidence; then the totals; commands can be copied whole."""
    text = explained_text(*accounted(_plan()), Paint(colour=False))
    assert max(len(line) for line in text.splitlines() if "kubectl" not in line) <= 80
    golden("plan.txt", text)


@pytest.mark.parametrize("width", [80, 132])
def test_report_short_plan_is_as_wide_as_the_terminal(width: int, golden: Golden) -> None:
    """A line for each workload; more columns show why; a name that does not fit stands on its own lines."""
    text = plan_text(*accounted(_plan()), Paint(colour=False, width=width))
    assert max(map(len, text.splitlines())) <= width
    golden(f"plan-short-{width}.txt", text)


def test_report_changes_lists_only_what_is_chosen(golden: Golden) -> None:
    """What is about to be changed, and what is lost by it; nothing about the other workloads."""
    plan = full_plan()
    chosen = [dataclasses.replace(one, lost="memory of its pods") for one in plan.enforced]
    golden(
        "changes.txt", changes_text(plan, accounted(plan)[1:], chosen, Paint(colour=False), is_saved=False)
    )


def test_report_colour_adds_only_escape_sequences(golden: Golden) -> None:
    """With its escape sequences removed the coloured plan is the plain one."""
    coloured = explained_text(*accounted(_plan()), Paint(colour=True))
    golden("plan-coloured.txt", coloured.replace("\x1b", "<ESC>"))
    for code in ("[33m", "[32m", "[34m", "[35m", "[2m", "[1m", "[0m"):
        coloured = coloured.replace("\x1b" + code, "")
    assert coloured == explained_text(*accounted(_plan()), Paint(colour=False))


@pytest.mark.parametrize(
    ("effects", "words"),
    [
        ([Effect(3, 0, 22.0)], "1 of 1 done, 22 GPUs freed."),
        ([Effect(0, 3, 0.0)], "1 of 1 done, 22 GPUs not verified as free."),
        ([None], "1 of 1 done, 22 GPUs not verified as free."),
        (
            [Effect(3, 0, 22.0), Effect(1, 2, 4.0)],
            "2 of 2 done, 22 GPUs freed, 22 GPUs not verified as free.",
        ),
        ([Effect(3, 0, 22.0, health="failed")], "1 of 1 done, 0 GPUs freed."),
    ],
    ids=["gone", "none-gone", "unverified", "both", "rolled-back"],
)
def test_outcomes_summary_counts_only_verified_gpus_as_freed(
    effects: Sequence[Effect | None], words: str
) -> None:
    """What nobody has seen go is not freed."""
    ref = ObjectRef("ray.io/v1", "RayService", "research", "serve")
    outcomes = [Outcome(ref, "suspend", Result.DONE, "", 22, AT, effect=effect) for effect in effects]
    assert outcomes_summary(outcomes, undo="gpu-rightsizer undo --run run-1").startswith(words)


@pytest.mark.parametrize("gpus", [3, -3], ids=["as-asked-for", "as-freed"])
def test_outcomes_summary_of_scale_up_frees_nothing(gpus: int) -> None:
    """GPUs that a service gets again are added."""
    ref = ObjectRef("apps/v1", "Deployment", "research", "chat")
    grown = Outcome(ref, "scale-up", Result.DONE, "", gpus, AT, effect=Effect(0, 0, 0.0))
    shrunk = Outcome(ref, "scale-down", Result.DONE, "", 5, AT, effect=Effect(5, 0, 4.0))
    assert outcomes_summary([grown], undo="undo").startswith("1 of 1 done, 3 GPUs added.")
    assert outcomes_summary([grown, shrunk], undo="undo").startswith(
        "2 of 2 done, 5 GPUs freed, 3 GPUs added."
    )


def test_outcomes_summary_of_notices_offers_no_undo() -> None:
    """Nothing was changed yet, so nothing carries a record."""
    ref = ObjectRef("apps/v1", "Deployment", "research", "chat")
    told = Outcome(ref, "notice", Result.DONE, "", 2, AT)
    assert outcomes_summary([told], undo="gpu-rightsizer undo --run run-1").startswith("1 of 1 done")
    assert "Undo" not in outcomes_summary([told], undo="gpu-rightsizer undo --run run-1")


def test_report_outcomes_list_each_result_and_total(golden: Golden) -> None:
    """One of each result, and what the run came to."""
    ref = ObjectRef("apps/v1", "Deployment", "research", "eval-server")
    outcomes = [
        Outcome(ref, "scale-to-zero", result, f"what a person has to know about {result}", 2, AT)
        for result in Result
    ]
    text = "".join(outcome_text(outcome, colour=False) for outcome in outcomes)
    golden("outcomes.txt", text + outcomes_summary(outcomes, undo="gpu-rightsizer undo --run run-1"))


def test_report_revertible_changes_are_listed_latest_first(golden: Golden) -> None:
    """Latest first, with when, why and what was."""
    decision = _plan().decisions[0]
    row, job = KINDS[1], KINDS[4]
    record = record_of(decision, [Edit(("spec", "replicas"), 3, 0)], run="run-1", at=AT)
    broken = UndoItem(ObjectRef("batch/v1", "Job", "batch", "sweep"), job, None, problem="cannot be read")
    golden(
        "undo.txt", undoable_text([UndoItem(decision.workload.ref, row, record), broken]) + undoable_text([])
    )


@pytest.mark.parametrize(
    "hostile", ["\x1b[2Jgone", "\x1b]0;title\x07", "a\rb", "a\nb", "\u202eright-to-left", "\x9b31m"]
)
def test_report_control_characters_in_names_are_replaced(hostile: str) -> None:
    """Escape sequences, carriage returns and direction marks are replaced."""
    assert safe(hostile).isprintable()


def test_report_long_field_path_breaks_between_fields() -> None:
    """A path that no line holds is not broken inside a name."""
    path = 'spec.template.spec.containers[trainer].resources.requests[nvidia.com/gpu]: "2" → "8"'
    lines = wrapped(path)
    assert max(map(len, lines)) <= 80
    assert [line.strip() for line in lines] == [
        "spec.template.spec.containers[trainer].resources.requests",
        '[nvidia.com/gpu]: "2" → "8"',
    ]


@hypothesis.given(st.integers(0, 400 * 86_400))
def test_format_duration_has_two_units_and_rounds_down(seconds: int) -> None:
    """At most two units, and reading it back loses less than its last unit says."""
    text = format_duration(seconds)
    assert len(text.split()) <= 2
    if seconds:
        back = parse_duration(text.replace(" ", "")).total_seconds()
        assert back <= seconds
        assert seconds - back < {"d": 86_400, "h": 86_400, "m": 3_600, "s": 1}[text[-1]]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("1d12h", 129_600), ("1.5h", 5_400), ("250ms", 0.25), (" 2w ", 1_209_600)],
)
def test_parse_duration_prometheus_units_add_up(text: str, seconds: float) -> None:
    """Units add up."""
    assert parse_duration(text) == datetime.timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "24", "h", "1y", "-1h", "1h-", "1h 2x", "0s", "\u0661h", "1e3s", "inf", "nanh"]
)
def test_parse_duration_invalid_text_is_refused(text: str) -> None:
    """Refused with an example of what would be right, or with what is wrong."""
    with pytest.raises(
        ValueError, match=r"is not a duration; write a number and a unit|must be longer than zero"
    ):
        parse_duration(text)
