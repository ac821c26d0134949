"""What a backtest prints, in each form; names of the cluster stay text."""

import csv
import datetime
import functools
import io
import json
import random

import pytest

from rightsizer_history.backtest.judges import Nothing, Oracle, PlainRule, PolicyJudge
from rightsizer_history.backtest.replay import Terms, replay
from rightsizer_history.backtest.summary import summarize
from rightsizer_history.report import BACKTEST_FORMS, form
from rightsizer_history.report.backtest import Backtest
from rightsizer_history.report.backtest_page import round_steps, square_steps
from tests.conftest import Golden
from tests.rightsizer.hostile import ATTRIBUTES, FORMULAS, XSS
from tests.rightsizer.markup import outline, skeleton
from tests.rightsizer_history.backtest.recordings import BEGIN, BUSY, IDLE, hours, policy, recording, workload

HOUR = datetime.timedelta(hours=1)
FILES = {"table": "backtest.txt", "markdown": "backtest.md", "csv": "backtest.csv", "html": "backtest.dom"}


@functools.cache
def result(word: str = "notes", every: datetime.timedelta = HOUR) -> Backtest:
    """Of a service that was left behind, a trainer, and a workload with this name that paused for eight hours."""
    recorded = recording(
        workload(
            "left", [hours(BUSY * 12 + IDLE * 36)], [hours(BUSY * 12 + IDLE * 36)], priority_class="low"
        ),
        workload("train", [hours(BUSY * 48)] * 4, kind="Job"),
        workload(word, [hours(BUSY * 10 + IDLE * 8 + BUSY * 30)], kind="StatefulSet"),
    )
    terms = Terms(every=every, first=0, restart=HOUR / 4)
    judges = (Nothing(), PlainRule("idle 1h", HOUR), PolicyJudge("mine.yaml", policy()), Oracle())
    return Backtest(
        begin=BEGIN,
        end=BEGIN + 48 * HOUR,
        learned=24 * HOUR,
        step=HOUR / 2,
        every=every,
        restart=terms.restart,
        is_enforced=False,
        source="dcgm",
        workloads=3,
        gpus=7.0,
        summaries=[
            summarize(replay(recorded, one, terms), random.Random(1), lambda _: 2.5) for one in judges
        ],
        policies=frozenset({"mine.yaml"}),
        rules=["idle 1h"],
        unknown=["bursts between two scrapes: dcgm has no counters of busy time"],
        remarks={"mine.yaml": ["no recorded workload is under rule old"]},
        currency="USD",
        prices=["a list, 2026-11-01"],
    )


@pytest.mark.golden
@pytest.mark.parametrize("name", FILES)
def test_backtest_each_form_matches_golden_file(name: str, golden: Golden) -> None:
    """80 columns in a terminal."""
    text = form(name, BACKTEST_FORMS)(result())
    if name == "table":
        assert max(map(len, text.splitlines())) <= 80
    text = outline(text) if name == "html" else text
    golden(FILES[name], text.replace("\r\n", "\n"))


def test_backtest_json_and_yaml_say_the_same() -> None:
    """Every judge, and those who were hurt."""
    document = json.loads(form("json", BACKTEST_FORMS)(result()))
    assert [judge["name"] for judge in document["judges"]] == ["do nothing", "idle 1h", "mine.yaml", "oracle"]
    assert [one["workload"] for one in document["judges"][2]["hurt"]] == ["team/StatefulSet/notes"]
    assert form("yaml", BACKTEST_FORMS)(result()).count("name: ") == 4


def test_backtest_long_owner_has_a_line_of_its_own() -> None:
    """The figures stay in their columns."""
    lines = form("table", BACKTEST_FORMS)(result("n" * 60)).splitlines()
    place = lines.index(f"  team/StatefulSet/{'n' * 60}")
    assert lines[place + 1].split() == ["4", "1", "1"]


def test_backtest_page_ticks_are_round_and_apart() -> None:
    """Of few returns as of many, and of none at all."""
    for most in (1.0, 7.0, 64.0, 956.0, 12_345.0):
        returns = [*square_steps(most)]
        assert returns == sorted(returns)
        assert all(0 <= one <= most for one in returns)
        hours = [*round_steps(most)]
        assert hours[0] == 0
        assert 3 <= len(hours) <= 6


@pytest.mark.parametrize("word", [*XSS[::9], *ATTRIBUTES], ids=repr)
def test_backtest_page_hostile_names_are_escaped(word: str) -> None:
    """The same elements as with a harmless name."""
    assert skeleton(form("html", BACKTEST_FORMS)(result(word, 8 * HOUR))) == skeleton(
        form("html", BACKTEST_FORMS)(result("x", 8 * HOUR))
    )


@pytest.mark.parametrize("word", FORMULAS, ids=repr)
def test_backtest_csv_has_no_formula(word: str) -> None:
    """Spreadsheets run what looks like one."""
    rows = csv.reader(io.StringIO(form("csv", BACKTEST_FORMS)(result(word, 8 * HOUR)), newline=""))
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for row in rows for cell in row)


@pytest.mark.parametrize("word", ["\x1b[31mred", "a\nb", "\u202eevil"], ids=repr)
def test_backtest_table_has_no_control_characters(word: str) -> None:
    """Nothing that a terminal obeys."""
    text = form("table", BACKTEST_FORMS)(result(word, 8 * HOUR))
    assert not set(text) & {"\x1b", "\u202e"}
    assert text.count("\n") == form("table", BACKTEST_FORMS)(result("x" * len(word), 8 * HOUR)).count("\n")
