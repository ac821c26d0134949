"""docs/kinds.md says on which release of its operator a kind was tried."""

import re
from pathlib import Path

import pytest

from simulator.controlplane.programs import OPERATORS, Program, release
from tests.operators.rows import ROWS

PAGE = Path(__file__).parents[2] / "docs/kinds.md"


@pytest.mark.parametrize("program", OPERATORS, ids=lambda program: program.name)
def test_kinds_page_names_release_and_kinds_of_operator(program: Program) -> None:
    """As they are built and tried."""
    (row,) = re.findall(rf"^\| {program.name} (.*) \|$", PAGE.read_text(), re.MULTILINE)
    version, _, kinds = row.partition(" | ")
    assert version == release(program.module, program.of)
    tried = {row.kind for row in ROWS.values() if row.operator == program.name}
    assert set(re.findall("`(.*?)`", kinds)) == tried
