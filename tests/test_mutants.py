"""Every mutant of scripts/mutants.toml can be made: its text is in its file once, and its tests exist."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MUTANTS = tomllib.loads((ROOT / "scripts/mutants.toml").read_text())["mutant"]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["name"])
def test_mutant_text_is_in_its_file_once(mutant: dict[str, str]) -> None:
    """A mutant whose text moved would otherwise count as a broken run, minutes later."""
    assert (ROOT / mutant["file"]).read_text().count(mutant["was"]) == 1


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["name"])
def test_mutant_tests_exist(mutant: dict[str, list[str]]) -> None:
    """Each names a file, or a function in it."""
    for test in mutant["tests"]:
        path, _, rest = test.partition("::")
        name = re.sub(r"\[.*", "", rest.rpartition("::")[2])
        assert (
            not name
            or f"def {name}(" in (ROOT / path).read_text()
            or f"class {name}" in (ROOT / path).read_text()
        )
