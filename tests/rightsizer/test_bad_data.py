"""docs/bad-data.md, the tests and the scenarios name the same; every finding has a scenario."""

import pathlib
import re

import pytest

from rightsizer.model import FindingName
from scripts.bad_data_tables import covering

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parents[1] / "docs/bad-data.md"
SCENARIOS = sorted((HERE / "scenarios").glob("*.yaml"))


def test_each_way_in_which_data_go_wrong_names_what_shows_it() -> None:
    """The page's rows are numbered without a gap, and each has a test or a scenario, as these have a row."""
    rows = re.findall(r"^\| (P\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [f"P{number}" for number in range(1, 21)]
    assert set(covering()) == set(rows)


@pytest.mark.parametrize("name", FindingName)
def test_each_finding_has_a_scenario(name: FindingName) -> None:
    """What can be found is walked through at least once, by the whole of the loop."""
    assert any(re.search(rf"finding: {name}\b(?!-)", path.read_text()) for path in SCENARIOS)
