"""One count of GPUs: whole GPUs, of which MIG instances and shares are parts, the same in every output."""

import csv
import dataclasses
import io
import json
import re

import pytest

from rightsizer.kinds import KINDS, kind_of
from rightsizer.model import Action, FindingName, Fleet, Measured, Mode, Node, Outcome, Plan, Result, Verdict
from rightsizer.planning.cost_summary import cost_summary_of
from rightsizer.report import form
from rightsizer.report.chat_messages import CHATS, changes_message
from rightsizer.report.events import event_of
from rightsizer.report.metrics import Metrics
from rightsizer.report.outcomes import cycle_words, outcomes_summary
from rightsizer.text import gpus_number
from tests.rightsizer.build import AT, idle_usage
from tests.rightsizer.markup import contents
from tests.rightsizer.reported import PRICES, WEEK, decision, found, group

NODES = {
    "mig": Node("mig", "NVIDIA-H100-80GB-HBM3", gpus=2),
    "whole": Node("whole", "NVIDIA-H100-80GB-HBM3", gpus=8),
    "sliced": Node("sliced", "NVIDIA-A100-SXM4-80GB", gpus=2, sharing="time-slicing"),
}
FLEET, HELD, PARTS, FREED, USED = 12, 4 + 3 * 2 / 7 + 5 / 4, 8, 3 * 2 / 7 + 5 / 4, 2.0
"""Four whole GPUs half used, three MIG instances 2g and five of eight time slices; the latter two idle."""


def _plan() -> Plan:
    busy = found(FindingName.BUSY, Verdict.KEEP, "it worked", activity_mean=0.5)
    idle = found(FindingName.IDLE, Verdict.ACT, "it did not")
    kept = decision(group("train", kind="Job", devices=4, node="whole"), busy)
    stopped = [
        decision(item, idle, mode=Mode.ENFORCE, action=Action.SCALE_TO_ZERO, frees=float(item.gpus))
        for item in (
            group("mig", pods=3, node="mig", share=2 / 7, resources={"nvidia.com/mig-2g.20gb": 1}),
            group("slices", pods=5, node="sliced", share=1 / 4, resources={"nvidia.com/gpu.shared": 1}),
        )
    ]
    decisions = (*stopped, kept)
    usages = {
        (pod.ref.namespace, pod.ref.name): tuple(
            idle_usage(number, activity_mean=one.finding.activity_mean) for number in range(pod.devices)
        )
        for one in decisions
        for pod in one.workload.pods
    }
    fleet = Fleet(tuple(one.workload for one in decisions), NODES, {})
    return Plan(AT, "run-1", "policy.yaml", "", decisions, fleet, Measured(AT, {WEEK: usages}))


def _cell(text: str, row: str, column: str) -> str:
    """A cell of the totals, by the words of its line."""
    lines = [line.replace("|", " ").split() for line in text.splitlines()]
    head = next(line for line in lines if line[:1] == ["TOTAL"] or line[:1] == ["total"])
    cells = next(line for line in lines if line[:1] == [row])
    return cells[[name.lower() for name in head].index(column)]


def test_gpus_held_and_freed_agree_in_every_output() -> None:
    """To the decimal: tables, documents, page and metrics."""
    plan = _plan()
    accounts = cost_summary_of(plan, PRICES)
    texts = {
        name: form(name)(plan, accounts, PRICES) for name in ("table", "explain", "markdown", "csv", "html")
    }
    held, freed = gpus_number(HELD), gpus_number(FREED)
    for name in ("explain", "markdown"):
        assert [_cell(texts[name], "all", column) for column in ("held", "reclaim", "apply")] == [
            held,
            freed,
            freed,
        ]
    for name in ("table", "explain", "markdown", "html"):
        assert (
            f"3 workloads, {held} GPUs held: act 2 (holding {freed} GPUs), keep 1 (holding 4 GPUs)."
            in " ".join(texts[name].split())
        )
    assert contents(texts["html"], "b")[1] == held
    rows = list(csv.DictReader(io.StringIO(texts["csv"], newline="")))
    assert sum(float(row["gpus"]) for row in rows) == pytest.approx(HELD, abs=1e-3)
    assert sum(float(row["frees"]) for row in rows) == pytest.approx(FREED, abs=1e-3)
    assert f"frees {freed} GPUs" in cycle_words(plan)


def test_gpus_of_document_and_metrics_agree_and_add_up() -> None:
    """The fleet is held or free, what is held is used, unused or unknown, and the parts make up the whole."""
    plan = _plan()
    accounts = cost_summary_of(plan, PRICES)
    totals = json.loads(form("json")(plan, accounts, PRICES))["totals"]
    items = json.loads(form("json")(plan, accounts, PRICES))["items"]
    account, about = totals["account"], pytest.approx(HELD, abs=1e-3)
    assert (totals["gpus"], account["gpus"], totals["fleet"]["held"]) == (about, about, about)
    assert sum(item["gpus"] for item in items) == about
    for part in ("byClass", "byNamespace", "byModel", "byVerdict"):
        assert sum(one["gpus"] for one in totals[part].values()) == about, part
    assert sum(one["gpus"] for one in totals["verdicts"].values()) == about
    assert totals["fleet"]["gpus"] == FLEET == pytest.approx(totals["fleet"]["free"] + HELD, abs=1e-3)
    assert (account["gpusUsed"], account["gpusUnknown"]) == (USED, 0)
    assert (account["migInstancesAndShares"], sum(one["migInstancesAndShares"] for one in items)) == (
        PARTS,
        PARTS,
    )
    assert account["reclaimable"] == account["enforced"] == pytest.approx(FREED, abs=1e-3)
    metrics = Metrics(acts=False)
    metrics.observe(plan, accounts, (), currency="USD")
    published: dict[str, float] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            published[sample.name] = published.get(sample.name, 0.0) + sample.value
    for name, gpus in (("gpus", HELD), ("held_whole_gpus", HELD), ("reclaimable_gpus", FREED)):
        assert published[f"gpu_rightsizer_{name}"] == pytest.approx(gpus, abs=1e-3), name


def test_gpus_of_unknown_use_are_neither_used_nor_unused() -> None:
    """Without any measurement all that is held is unknown."""
    plan = dataclasses.replace(_plan(), measured=Measured(AT, {WEEK: {}}))
    account = cost_summary_of(plan, PRICES).total
    assert account.used == 0.0
    assert account.unknown == pytest.approx(HELD)


def test_gpus_of_events_and_messages_are_those_of_the_plan() -> None:
    """Of the Event on each workload, and of the message about each change."""
    for one in _plan().decisions:
        if one.frees:
            words = f"{gpus_number(one.workload.gpus)} GPUs"
            _, event = event_of(one, kind_of(one.workload.ref) or KINDS[0], run="run-1", at=AT)
            assert event["message"].startswith(f"frees {words} "), event
            outcome = Outcome(one.workload.ref, "scale-to-zero", Result.DONE, "", one.frees, AT)
            assert f"({words})" in str(changes_message(CHATS["slack"], "prod-eu", "run-1", [outcome]))


def test_outcomes_of_parts_add_up_to_what_was_planned() -> None:
    """What three changes freed is what the plan said, to the decimal."""
    outcomes = [
        Outcome(one.workload.ref, "scale-to-zero", Result.DONE, "", one.frees, AT)
        for one in _plan().decisions
        if one.frees
    ]
    words = outcomes_summary(outcomes, undo="undo")
    assert re.search(rf"\b{re.escape(gpus_number(FREED))} GPUs not verified as free", words)


@pytest.mark.parametrize(
    ("is_own", "activity", "node", "share", "resource", "used"),
    [
        # Four pods take turns on a GPU that is never idle: each has used all of its quarter.
        (True, 0.25, "sliced", 1 / 4, "nvidia.com/gpu.shared", 1.0),
        (True, 0.9, "sliced", 1 / 4, "nvidia.com/gpu.shared", 1.0),
        (True, 0.1, "sliced", 1 / 4, "nvidia.com/gpu.shared", 0.4),
        # Who of them worked is unknown: each has its share of what the device did.
        (False, 0.25, "sliced", 1 / 4, "nvidia.com/gpu.shared", 0.25),
        # A MIG instance is the pod's alone.
        (True, 0.5, "mig", 2 / 7, "nvidia.com/mig-2g.20gb", 4 * 2 / 7 * 0.5),
        (True, 0.5, "mig", 2 / 7, "deviceclass:mig.nvidia.com", 4 * 2 / 7 * 0.5),
    ],
)
def test_gpus_used_on_shared_devices_are_part_of_those_held(
    is_own: bool, activity: float, node: str, share: float, resource: str, used: float
) -> None:
    """Never more than what is held, and not a share of a share."""
    kept = decision(
        group("w", pods=4, node=node, share=share, resources={resource: 1}, is_shared=node == "sliced"),
        found(FindingName.BUSY, Verdict.KEEP, "it worked", activity_mean=activity),
    )
    usage = idle_usage(0, activity_mean=activity, is_own=is_own)
    usages = {(pod.ref.namespace, pod.ref.name): (usage,) for pod in kept.workload.pods}
    fleet = Fleet((kept.workload,), NODES, {})
    plan = Plan(AT, "run-1", "policy.yaml", "", (kept,), fleet, Measured(AT, {WEEK: usages}))
    assert cost_summary_of(plan, PRICES).total.used == pytest.approx(used)
