"""What a plan and its outcomes leave in the ledger: hours, changes and returns."""

import dataclasses
import datetime
import pathlib
from typing import Any

import pytest

from rightsizer.model import (
    Action,
    ChangeOutcome,
    ChangeRecord,
    Decision,
    Effect,
    Fleet,
    FoundChange,
    Measured,
    Node,
    Outcome,
    Plan,
    Result,
    Verdict,
)
from rightsizer_history.ledger.entries import Bookkeeper, LedgerPeriod
from rightsizer_history.report.ledger import headline
from tests.rightsizer.build import AT, busy_usage, idle_usage
from tests.rightsizer.reported import PRICES, decision, found, group
from tests.rightsizer_history.ledger.recorded import HOUR, MINUTE, account, record, record_outcomes

DAY = datetime.timedelta(days=1)
H100 = "NVIDIA-H100-80GB-HBM3"


def _decision(name: str, *, pods: int = 1, kind: str = "Deployment", **changes: Any) -> Decision:
    item = group(name, pods=pods, kind=kind, **changes)
    return decision(item, found("idle", Verdict.ACT, "idle"), action=Action.SCALE_TO_ZERO, frees=item.gpus)  # type: ignore[arg-type]


def _plan(*decisions: Decision, at: datetime.datetime = AT, gpus: int = 8, **changes: Any) -> Plan:
    nodes = {name: Node(name, H100, gpus=gpus) for name in ("h100-a", "h100-b")}
    fleet = Fleet(tuple(one.workload for one in decisions), nodes, {}, **changes)
    return Plan(at, f"run-{at:%d%H%M}", "policy.yaml", "0" * 64, decisions, fleet, Measured(at, {}))


def _done(one: Decision, at: datetime.datetime, **effect: Any) -> Outcome:
    values = {"gone": 1, "left": 0, "free": 0.0, **effect}
    return Outcome(
        one.workload.ref, Action.SCALE_TO_ZERO.value, Result.DONE, "", one.frees, at, effect=Effect(**values)
    )


def test_usage_of_a_pod_begins_when_it_was_bound(tmp_path: pathlib.Path) -> None:
    """Not when it was created, and waited."""
    plan = _plan(_decision("w", devices=4, created=AT - 10 * DAY, bound=AT - 2 * HOUR))
    record(tmp_path, plan)
    assert account(tmp_path, end=AT + MINUTE).total.held == pytest.approx(8.0)


def test_usage_over_midnight_is_of_both_days(tmp_path: pathlib.Path) -> None:
    """By UTC."""
    midnight = AT.replace(hour=0)
    plan = _plan(_decision("w", devices=2, created=AT - 10 * DAY), at=midnight + 6 * HOUR)
    record(tmp_path, plan)
    trend = account(tmp_path, end=AT + MINUTE).trend
    assert {f"{day:%d}": hours.held for day, hours in trend.items()} == {"20": 36.0, "21": 12.0}


def test_usage_takes_the_shortest_window_that_covers_the_time() -> None:
    """A long one remembers work that has ended; one that is too short says nothing of the rest."""
    one = _decision("w")
    key = ("research", "w-0")
    windows = {
        10 * MINUTE: {key: (busy_usage(activity_mean=1.0),)},
        HOUR: {key: (busy_usage(activity_mean=0.25),)},
        7 * DAY: {key: (idle_usage(activity_mean=0.75),)},
    }
    plan = dataclasses.replace(_plan(one), measured=Measured(AT, windows))
    books = Bookkeeper(plan, PRICES, "team")
    for length, wanted in ((30 * MINUTE, 0.125), (2 * HOUR, 1.5)):
        entries = list(books.usage(LedgerPeriod(AT - length, AT)))
        assert sum(entry.used_h for entry in entries) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("where", "team"),
    [("namespace", "green"), ("workload", "red"), ("pods", "blue"), ("", "")],
)
def test_team_is_of_the_namespace_else_the_workload_else_its_pods(where: str, team: str) -> None:
    """By the label that the flag names: whoever deploys a workload cannot charge it to another team."""
    one = _decision("w", labels={"owner": "blue"} if where else {})
    of: dict[str, Any] = {"labels": {"owner": "red"}} if where in {"namespace", "workload"} else {}
    of |= {"namespace_labels": {"owner": "green"}} if where == "namespace" else {}
    one = dataclasses.replace(one, workload=dataclasses.replace(one.workload, **of))
    assert Bookkeeper(_plan(one), PRICES, "owner").holder(one).team == team


def test_reclaimed_counts_only_what_verification_saw_go(tmp_path: pathlib.Path) -> None:
    """The rest is named as not verified; hours run until the end of the period."""
    sure, unsure = _decision("sure", pods=2), _decision("unsure", pods=3)
    plan = _plan(sure, unsure)
    record(tmp_path, plan)
    record_outcomes(tmp_path, plan, [_done(sure, AT, gone=2), _done(unsure, AT, gone=1, left=2)])
    told = account(tmp_path, end=AT + 5 * HOUR).reclaim
    assert (told.changes, told.gpus, told.unverified, told.returned) == (2, 2, 3, 0)
    assert (told.hours, told.cost) == (10.0, 100.0)


def test_returned_gpus_end_the_hours_of_their_change_once(tmp_path: pathlib.Path) -> None:
    """Several cycles tell of the same return, by the record of the change; forged records tell nothing."""
    one = _decision("w", pods=2)
    plan = _plan(one)
    record(tmp_path, plan)
    record_outcomes(tmp_path, plan, [_done(one, AT, gone=2)])
    ended = ChangeRecord(
        AT, plan.run, "scale-to-zero", 2.0, end=ChangeOutcome.UNDONE, ended=AT + HOUR, priority_class="low"
    )
    changes = (
        FoundChange(one.workload.ref, ended),
        FoundChange(dataclasses.replace(one.workload.ref, uid="x"), ended, is_remembered=False),
    )
    for at in (AT + HOUR + MINUTE, AT + HOUR + 15 * MINUTE):
        record(tmp_path, _plan(at=at, changes=changes))
    told = account(tmp_path, end=AT + 5 * HOUR, by="owner")
    assert (told.reclaim.returned, told.reclaim.hours) == (2, 2.0)
    by_cluster = account(tmp_path, end=AT + 5 * HOUR, by="cluster")
    assert [(part.name, part.reclaimed, part.returned) for part in by_cluster.parts] == [("prod", 2.0, 2.0)]
    (part,) = [part for part in told.parts if part.reclaimed]
    assert (part.name, part.reclaimed, part.returned) == ("research/Deployment/w", 2.0, 2.0)


def test_return_of_a_change_that_is_not_in_the_ledger_is_told_apart(tmp_path: pathlib.Path) -> None:
    """It was made before the period, or by a process without --ledger."""
    one = _decision("w", pods=2)
    ended = ChangeRecord(AT, "before", "scale-to-zero", 2.0, end=ChangeOutcome.UNDONE, ended=AT + MINUTE)
    record(tmp_path, _plan(at=AT + HOUR, changes=(FoundChange(one.workload.ref, ended),)))
    told = account(tmp_path, end=AT + 2 * HOUR)
    assert (told.reclaim.returned, told.reclaim.returned_earlier) == (0, 2)
    assert "No change was made. Returned of earlier changes: 2 GPUs." in [*headline(told)]


def test_scale_up_returns_some_of_the_gpus(tmp_path: pathlib.Path) -> None:
    """The others stay reclaimed."""
    one = _decision("w", pods=3)
    plan = _plan(one)
    record(tmp_path, plan)
    record_outcomes(tmp_path, plan, [_done(one, AT, gone=3)])
    later = _plan(one, at=AT + HOUR)
    record(tmp_path, later)
    grown = Outcome(one.workload.ref, Action.SCALE_UP.value, Result.DONE, "", -1, AT + HOUR)
    record_outcomes(tmp_path, later, [grown])
    told = account(tmp_path, end=AT + 3 * HOUR).reclaim
    assert (told.returned, told.hours) == (1, 1 + 2 * 3)
