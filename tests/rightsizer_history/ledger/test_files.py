"""The ledger's files: each counts once, whatever was merged, killed or broken."""

import dataclasses
import datetime
import math
import pathlib
import re
import shutil
import subprocess
import sys
import time
from typing import Any

import hypothesis
import pyarrow.parquet
import pytest
from hypothesis import strategies as st

from rightsizer.errors import ConfigurationError
from rightsizer.model import Action, Effect, FindingName, Fleet, Measured, Outcome, Plan, Result, Verdict
from rightsizer.planning.cost_summary import cost_summary_of
from rightsizer_history.ledger import BY
from rightsizer_history.ledger.files import ClusterLedger, Ledger, file_of
from rightsizer_history.ledger.sums import LEADERS, Hours, Reclaim
from tests.rightsizer.build import AT
from tests.rightsizer.reported import PRICES, decision, found, full_plan, group
from tests.rightsizer_history.ledger.recorded import HOUR, MINUTE, account, cycles, record, record_outcomes

ROOT = pathlib.Path(__file__).parents[3]
DAY = datetime.timedelta(days=1)


def _expected(plan: Plan, hours: float) -> Hours:
    """What a plan says of its GPUs, for a time."""
    total = cost_summary_of(plan, PRICES).total
    rest = total.gpus * hours
    return Hours(
        held=rest,
        used=total.used * hours,
        unknown=total.unknown * hours,
        reclaimable=total.reclaimable * hours,
        cost=total.cost_per_hour * hours,
        unused_cost=total.wasted_per_hour * hours,
        unpriced=total.unknown * hours,  # the only GPU without a price is the one without series
    )


def _close(found: Hours, wanted: Hours) -> bool:
    pairs = zip(dataclasses.astuple(found), dataclasses.astuple(wanted), strict=True)
    return all(a == pytest.approx(b, abs=1e-6) for a, b in pairs)


@hypothesis.settings(max_examples=12)
@hypothesis.given(
    gaps=st.lists(st.integers(1, 40 * 60), min_size=1, max_size=12),
    kept=st.lists(st.integers(0, 16), min_size=1, max_size=13),
    by=st.sampled_from(sorted(BY)),
)
def test_ledger_sums_equal_what_the_plans_said(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[int], kept: list[int], by: str
) -> None:
    """Each plan for the time since the one before, at most a day; merged or not; by any part, day and owner."""
    folder, plan = tmp_path_factory.mktemp("ledger"), full_plan()
    wanted, at = Hours(), plan.at
    for place, gap in enumerate([0, *gaps]):
        at += MINUTE * gap
        number = kept[place % len(kept)] + 1
        now = dataclasses.replace(plan, at=at, run=f"run-{place}", decisions=plan.decisions[:number])
        hours = 24.0 if place == 0 else min(gap / 60, 24.0)
        record(folder, now, merges=bool(kept[place % len(kept)] % 2))
        wanted += _expected(now, hours)
    found = account(folder, end=at + MINUTE, days=60, by=by)
    assert _close(found.total, wanted)
    assert _close(sum((part.hours for part in found.parts), Hours()), wanted)
    owners = [
        one for one in account(folder, end=at + MINUTE, days=60, by="owner").parts if one.hours.unused > 0
    ]
    assert [one.name for one in found.leaders] == [one.name for one in owners[:LEADERS]]
    assert all(_close(one.hours, other.hours) for one, other in zip(found.leaders, owners, strict=False))
    assert len(found.leaders) + found.more_leaders == len(owners)
    assert sum(one.recorded_h for one in found.clusters) == pytest.approx(
        24 + sum(min(gap / 60, 24) for gap in gaps)
    )
    assert not found.problems


def test_ledger_merges_hours_and_days_that_are_over(tmp_path: pathlib.Path) -> None:
    """One file for each day that is over, one for each hour of today, and the last cycle."""
    for plan in cycles(full_plan(), 8 * 4, 3 * HOUR / 4):
        record(tmp_path, plan)
    levels = [(one.level, one.at.day) for one in Ledger(str(tmp_path)).files()]
    assert levels[0] == ("day", 21)
    assert {level for level, _ in levels[1:]} == {"hour", "cycle"}
    assert [level for level, _ in levels].count("cycle") == 1


def test_merged_file_whose_sources_are_still_there_counts_once(tmp_path: pathlib.Path) -> None:
    """As after a crash between writing it and deleting them; the next cycle deletes them."""
    plans = cycles(full_plan(), 6, 10 * MINUTE)
    for plan in plans:
        record(tmp_path, plan, merges=False)
    left = {one.name: one.read_bytes() for one in (tmp_path / "prod").iterdir()}
    before = account(tmp_path, end=plans[-1].at + MINUTE)
    ClusterLedger(str(tmp_path), "prod").merge(plans[-1].at + DAY)
    for name, content in left.items():
        (tmp_path / "prod" / name).write_bytes(content)
    again = account(tmp_path, end=plans[-1].at + MINUTE)
    assert _close(again.total, before.total)
    assert before.total.held > 0
    ClusterLedger(str(tmp_path), "prod").merge(plans[-1].at + DAY)
    assert len(list((tmp_path / "prod").iterdir())) == 2, "the day and the last cycle"
    assert _close(account(tmp_path, end=plans[-1].at + MINUTE).total, before.total)


def record_for_ever(folder: str, begun: str) -> None:
    """Until it is killed."""
    plan = full_plan()
    place = 0
    while True:
        record(
            pathlib.Path(folder),
            dataclasses.replace(plan, at=plan.at + 7 * MINUTE * place, run=f"run-{place}"),
        )
        place += 1
        pathlib.Path(begun).touch()


@pytest.mark.parametrize("delay_s", [0.0, 0.013, 0.031, 0.07])
def test_ledger_killed_while_it_is_written_has_no_broken_file(tmp_path: pathlib.Path, delay_s: float) -> None:
    """SIGKILL at any moment: what has a name is whole, and each hour counts once."""
    begun = tmp_path / "begun"
    folder = tmp_path / "ledger"
    code = f"from {__name__} import record_for_ever as r; r({str(folder)!r}, {str(begun)!r})"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as process:
        while not begun.exists():
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(0.3 + delay_s)
        process.kill()
    found = account(folder, end=full_plan().at + 30 * DAY, days=60)
    assert not found.problems
    (cluster,) = found.clusters
    cycles_done = round((cluster.recorded_h - 24) * 60 / 7)
    assert cluster.recorded_h == pytest.approx(24 + cycles_done * 7 / 60)
    assert found.total.held == pytest.approx(_expected(full_plan(), cluster.recorded_h).held)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all"], ids=["empty", "cut", "other"])
def test_broken_file_is_named_and_the_others_count(tmp_path: pathlib.Path, content: bytes) -> None:
    """Also after its hour was merged without it."""
    first, second, third = cycles(full_plan(), 3, HOUR)
    for plan in (first, second):
        record(tmp_path, plan, merges=False)
    (broken,) = (tmp_path / "prod").glob("*run-000.parquet")
    broken.write_bytes(content)
    record(tmp_path, third)
    found = account(tmp_path, end=third.at + MINUTE)
    assert len(found.problems) == 1
    assert found.problems[0].startswith(f"{broken}: left out, cannot be read: ")
    assert _close(found.total, _expected(full_plan(), 2.0))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_file_without_a_column_is_named_and_the_others_count(tmp_path: pathlib.Path, place: int) -> None:
    """Whether it is the first that DuckDB reads or a later one."""
    for plan in cycles(full_plan(), 3, HOUR):
        record(tmp_path, plan, merges=False)
    (lacking,) = (tmp_path / "prod").glob(f"*run-00{place}.parquet")
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(lacking).drop_columns("held_h"), lacking)
    found = account(tmp_path, end=plan.at + MINUTE)
    assert found.problems == [f"{lacking}: left out, cannot be read: it lacks the column held_h"]
    assert found.total.held > 0


@pytest.mark.parametrize(
    "harm",
    ["pages", "type", "metadata", "merged", "nulls"],
)
def test_file_that_another_program_wrote_is_named_and_the_others_count(
    tmp_path: pathlib.Path, harm: str
) -> None:
    """One writer of a shared bucket ends nobody's report."""
    for plan in cycles(full_plan(), 3, HOUR):
        record(tmp_path, plan, merges=False)
    (harmed,) = (tmp_path / "prod").glob("usage*run-001.parquet")
    table = pyarrow.parquet.read_table(harmed)
    if harm == "pages":
        data = bytearray(harmed.read_bytes())
        data[4 : len(data) // 3] = bytes(len(data) // 3 - 4)
        harmed.write_bytes(data)
    elif harm == "type":
        wrong = pyarrow.array(["many"] * len(table))
        table = table.set_column(table.column_names.index("held_h"), "held_h", wrong)
    elif harm == "nulls":
        for name in ("owner", "currency", "cluster"):
            nothing = pyarrow.nulls(len(table), pyarrow.string())
            table = table.set_column(table.column_names.index(name), name, nothing)
    else:
        text = {"metadata": '["none"]', "merged": '{"version": 1, "merged": {"a": [1]}}'}[harm]
        table = table.replace_schema_metadata({"gpu-rightsizer": text})
    if harm != "pages":
        pyarrow.parquet.write_table(table, harmed)
    found = account(tmp_path, end=plan.at + MINUTE, by="owner")
    assert [words.partition(":")[0] for words in found.problems if "left out" in words] == (
        [] if harm == "nulls" else [str(harmed)]
    )
    assert found.total.held > 0


def test_values_that_nobody_measured_reach_no_sum_and_no_screen(tmp_path: pathlib.Path) -> None:
    """No formula, escape or infinity of whoever may write to the bucket."""
    for plan in cycles(full_plan(), 2, HOUR):
        record(tmp_path, plan, merges=False)
    (forged,) = (tmp_path / "prod").glob("usage*run-001.parquet")
    table = pyarrow.parquet.read_table(forged)
    whole = account(tmp_path, end=plan.at + MINUTE).total.held
    columns: dict[str, list[Any]] = {
        "currency": ["=1+1\x1b[31m"],
        "held_h": [math.nan],
        "cost": [math.inf],
        "used_h": [-1e9],
    }
    for name, values in columns.items():
        wrong = pyarrow.array(values * len(table), table.schema.field(name).type)
        table = table.set_column(table.column_names.index(name), name, wrong)
    pyarrow.parquet.write_table(table, forged)
    found = account(tmp_path, end=plan.at + MINUTE)
    assert 0 < found.total.held < whole
    assert math.isfinite(found.total.cost)
    assert found.total.used >= 0
    assert "different currencies (USD, unknown)" in found.problems[-1]


@pytest.mark.parametrize("merges", [True, False], ids=["merged", "beside-each-other"])
def test_ledger_of_an_earlier_version_is_read_and_merged(tmp_path: pathlib.Path, *, merges: bool) -> None:
    """It names pods that were bound where GPUs were freed: in a day's file, and in a cycle of today's."""
    shutil.copytree(pathlib.Path(__file__).parent / "with-takers", tmp_path, dirs_exist_ok=True)
    own = group("own")
    idle = decision(own, found(FindingName.IDLE, Verdict.ACT, "idle"), action=Action.SCALE_TO_ZERO, frees=1)
    plan = Plan(AT - 5 * MINUTE, "own", "", "", (idle,), Fleet((own,), {}, {}), Measured(AT, {}))
    gone = Effect(gone=1, left=0, free=1.0)
    done = Outcome(own.ref, Action.SCALE_TO_ZERO.value, Result.DONE, "", 1.0, plan.at, effect=gone)
    record(tmp_path, plan, merges=False)
    record_outcomes(tmp_path, plan, [done])
    if merges:
        ClusterLedger(str(tmp_path), "prod").merge(AT)
        ClusterLedger(str(tmp_path), "prod").merge(AT + DAY)
    told = account(tmp_path, end=AT + 55 * MINUTE, days=3, by="owner")
    assert not told.problems
    hours = {"gone": 2 * (24 + 55 / 60), "back": 2.0, "own": 1.0}
    wanted = Reclaim(3, 4, 0, sum(hours.values()), 10 * (hours["gone"] + 2), unpriced=1, returned=1)
    assert dataclasses.astuple(told.reclaim) == pytest.approx(dataclasses.astuple(wanted))
    freed = {part.name.rpartition("/")[2]: part.reclaimed for part in told.parts if part.reclaimed}
    assert freed == pytest.approx(hours)
    assert {part.name: part.returned for part in told.parts if part.returned} == {
        "research/Deployment/back": 1
    }
    assert told.total.held == pytest.approx(95 + 3 / 4)


def test_two_clusters_in_one_directory_or_two_are_one_fleet(tmp_path: pathlib.Path) -> None:
    """Each by its name, with its own hours."""
    plan = full_plan()
    for place, cluster in ((tmp_path / "a", "prod"), (tmp_path / "a", "dev"), (tmp_path / "b", "edge")):
        record(place, dataclasses.replace(plan, run=cluster), cluster=cluster)
    both = account(tmp_path / "a", end=plan.at + MINUTE, by="cluster")
    assert {part.name: round(part.hours.held) for part in both.parts} == {"prod": 720, "dev": 720}
    all_three = account(tmp_path / "a", tmp_path / "b", end=plan.at + MINUTE)
    assert _close(all_three.total, _expected(plan, 3 * 24.0))
    assert [one.name for one in all_three.clusters] == ["dev", "edge", "prod"]


@pytest.mark.parametrize("copy", ["same", "elsewhere", "renamed", "merged"])
def test_copy_of_a_ledger_counts_once(tmp_path: pathlib.Path, copy: str) -> None:
    """The same directory named twice, a copy of it, under another cluster's name, or before its cycles were merged."""
    first, second = cycles(full_plan(), 2, 2 * HOUR)
    record(tmp_path / "a", first)
    ledgers = [tmp_path / "a", tmp_path / "a"]
    if copy != "same":
        ledgers[1] = tmp_path / "b"
        shutil.copytree(tmp_path / "a" / "prod", tmp_path / "b" / ("other" if copy == "renamed" else "prod"))
    if copy == "merged":
        record(tmp_path / "a", second)
    found = account(*ledgers, end=second.at + MINUTE)
    assert _close(found.total, _expected(full_plan(), 26.0 if copy == "merged" else 24.0))
    assert [one.name for one in found.clusters] == ["prod"]
    place = ledgers[1] / ("other" if copy == "renamed" else "prod")
    told = f"{place}: left out: cycles that are in {ledgers[0]}/prod, too"
    assert list(found.problems) == ([] if copy == "same" else [told])


def test_cycles_that_only_a_copy_has_are_told_when_they_are_left_out(tmp_path: pathlib.Path) -> None:
    """A copy that went on by itself, and merged what it copied with what it recorded."""
    first, second, third, fourth = cycles(full_plan(), 4, 10 * MINUTE)
    record(tmp_path / "a", first, merges=False)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for plan in (second, third, fourth):
        record(tmp_path / "a", plan, merges=False)
    for plan in (second, third):
        record(tmp_path / "b", dataclasses.replace(plan, run="own"), merges=False)
    later = fourth.at + 2 * HOUR
    for place in ("a", "b"):
        ClusterLedger(str(tmp_path / place), "prod").merge(later)
    words = account(tmp_path / "a", tmp_path / "b", end=later).problems[0]
    told = f"{tmp_path}/b/prod: left out: cycles that are in {tmp_path}/a/prod, too"
    assert words == f"{told}, and 1 more in the same files"


@pytest.mark.parametrize("second", ["same", "another"])
def test_hours_that_two_processes_record_at_once_count_once(tmp_path: pathlib.Path, second: str) -> None:
    """In one ledger or in two; a day that only one of them recorded is whole."""
    before, plan = cycles(full_plan(), 2, DAY)
    ledgers = [tmp_path / "one", tmp_path / ("one" if second == "same" else "two")]
    record(ledgers[0], before)
    for ledger, run in zip(ledgers, ("one", "two"), strict=True):
        record(ledger, dataclasses.replace(plan, run=run), merges=False)
    found = account(*dict.fromkeys(ledgers), end=plan.at + MINUTE)
    (words,) = found.problems
    assert re.match(
        r"prod: [\d.]+ hours are recorded twice, by several processes at once; their mean counts", words
    )
    (cluster,) = found.clusters
    assert cluster.recorded_h == pytest.approx(48.0, abs=0.1)
    assert _close(found.total, _expected(full_plan(), cluster.recorded_h))


def test_ledger_in_a_file_says_that_it_is_no_directory(tmp_path: pathlib.Path) -> None:
    """In one sentence."""
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigurationError) as caught:
        ClusterLedger(str(file), "prod").check()
    assert str(caught.value) == f"--ledger {file}: Not a directory"


def test_unfinished_file_of_an_earlier_day_is_deleted(tmp_path: pathlib.Path) -> None:
    """It is what a killed process left; one of today may be in work."""
    first, second = cycles(full_plan(), 2, DAY)
    record(tmp_path, first)
    for at in (first.at, second.at):
        (tmp_path / "prod" / f"usage-{at:%Y%m%dT%H%M%S%fZ}-x.parquet.unfinished").touch()
    record(tmp_path, second)
    assert [one.name for one in (tmp_path / "prod").glob("*.unfinished")] == [
        f"usage-{second.at:%Y%m%dT%H%M%S%fZ}-x.parquet.unfinished"
    ]


@pytest.mark.parametrize(
    "name",
    [
        "usage-20261121.parquet.unfinished",
        "usage-20261341.parquet",
        "usage-20261121T25Z.parquet",
        "pods-2026-11-21.parquet",
        "usage-20261121T120000000000Z.parquet",
    ],
)
def test_file_of_another_name_is_not_the_ledgers(name: str) -> None:
    """Such as one of the backtest, or one that is not whole."""
    assert file_of(f"prod/{name}") is None
