"""Every mutant of scripts/mutants.toml can be made: its text is in its file once, and its tests exist."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MUTANTS = tomllib.loads((ROOT / "scripts/mutants.toml").read_text())["mutant"]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["name"])
def test_mutant_text_is_in_its_file_once(mutant: dict[str, str]) -> None:
    """A mutant whose text moved would otherwise count as a broken run, minutes later."""
    assert (ROOT / mutant["file"]).read_text().count(mutant["was"]) == 1


def test_mutant_tests_exist() -> None:
    """Pytest finds each: a file, a function in it, or one of its cases."""
    tests = sorted({test for mutant in MUTANTS for test in mutant["tests"]})
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *tests], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or done.stdout[-2000:]
