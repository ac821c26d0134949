"""docs/bad-data.md, the tests and the scenarios name the same rows; every finding has a scenario."""

import ast
import pathlib
import re
from collections.abc import Iterator

import pytest
import yaml

from rightsizer.model import FindingName

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parents[1] / "docs/bad-data.md"
SCENARIOS = sorted((HERE / "scenarios").glob("*.yaml"))


def _covered() -> Iterator[str]:
    """Each row that a scenario (`covers`) or a test (`@pytest.mark.covers`) names."""
    for path in SCENARIOS:
        found = re.search(r"^covers: (\[.*\])$", path.read_text(), re.MULTILINE)
        yield from yaml.safe_load(found[1]) if found else ()
    for path in HERE.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            for decorator in getattr(node, "decorator_list", ()):
                if ast.unparse(decorator).startswith("pytest.mark.covers("):
                    yield from (row.value for row in decorator.args)


def test_bad_data_row_has_scenario_or_test() -> None:
    """Rows are numbered without a gap; each has a test or a scenario, and these name no other row."""
    rows = re.findall(r"^\| (P\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [f"P{number}" for number in range(1, 23)]
    assert set(_covered()) == set(rows)


@pytest.mark.parametrize("name", FindingName)
def test_bad_data_finding_has_scenario(name: FindingName) -> None:
    """The whole loop runs through each finding at least once."""
    assert any(re.search(rf"finding: {name}\b(?!-)", path.read_text()) for path in SCENARIOS)
