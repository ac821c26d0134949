"""docs/bad-data.md, the tests and the scenarios name the same; every finding has a scenario."""

import ast
import pathlib
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest
import yaml

from rightsizer.model import FindingName

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parents[1] / "docs/bad-data.md"
SCENARIOS = sorted((HERE / "scenarios").glob("*.yaml"))


def _marked() -> Iterator[tuple[str, str]]:
    """Each row and what says that it covers it."""
    for path in SCENARIOS:
        found = re.search(r"^covers: (\[.*\])$", path.read_text(), re.MULTILINE)
        for row in yaml.safe_load(found[1]) if found else ():
            yield row, path.name
    for path in HERE.glob("test_*.py"):
        for function in ast.parse(path.read_text()).body:
            for decorator in getattr(function, "decorator_list", ()):
                if ast.unparse(decorator).startswith("pytest.mark.covers("):
                    for row in decorator.args:
                        yield row.value, f"{path.name}::{getattr(function, 'name', '')}"


def _told() -> Iterator[tuple[str, str]]:
    """Each row of the page and what it says that shows it."""
    for row, shown in re.findall(r"^\| (P\d+) \|.*\| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE):
        for name in re.findall(r"`([^`]+)`", shown):
            yield row, name


def test_each_way_in_which_data_go_wrong_names_what_shows_it() -> None:
    """The page's rows are numbered without a gap, none is without a test, and tests and page name each other."""
    told: dict[str, set[str]] = defaultdict(set)
    marked: dict[str, set[str]] = defaultdict(set)
    for found, pairs in ((told, _told()), (marked, _marked())):
        for row, name in pairs:
            found[row].add(name)
    rows = re.findall(r"^\| (P\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [f"P{number}" for number in range(1, 21)]
    assert set(told) == set(rows)
    assert told == marked


@pytest.mark.parametrize("name", FindingName)
def test_each_finding_has_a_scenario(name: FindingName) -> None:
    """What can be found is walked through at least once, by the whole of the loop."""
    assert any(re.search(rf"finding: {name}\b(?!-)", path.read_text()) for path in SCENARIOS)
