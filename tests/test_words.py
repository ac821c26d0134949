"""Words: riddles and names that say nothing are found, with their place."""

from pathlib import Path

import pytest

from scripts.words import CLEAN, ROOT, problems


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ('"""What it is."""', '1: a docstring begins with "What"; begin with a noun or a verb'),
        ('MOST = 3\n"""Of pods."""', '2: a docstring begins with "Of"; begin with a noun or a verb'),
        ("for one in ():\n    pass", '1: a variable is called "one"; call it what it holds'),
        ("f = [each for each in ()]", '1: a variable is called "each"; call it what it holds'),
        ("f = lambda here: 1", '1: a variable is called "here"; call it what it holds'),
    ],
)
def test_problems_riddle_or_nameless_variable_is_found(tmp_path: Path, code: str, problem: str) -> None:
    """With the line that it is on."""
    path = tmp_path / "module.py"
    path.write_text(code)
    assert list(problems(path)) == [f"{path}:{problem}"]


def test_problems_noun_verb_or_whether_is_none(tmp_path: Path) -> None:
    """A word that only begins with another is another, and code that reads a name gives none."""
    path = tmp_path / "module.py"
    path.write_text('"""Whether an Office works."""\nOFFICE = 1\n"""Office."""\nprint(one)\n')
    assert list(problems(path)) == []


def test_clean_folders_exist() -> None:
    """A folder that is renamed would count as clean."""
    assert [folder for folder in CLEAN if not list((ROOT / folder).glob("*.py"))] == []
