"""What docs/bad-data.md says of scenarios and tests, from their marks."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

TESTS = Path(__file__).parents[1] / "tests" / "rightsizer"


def covering() -> Mapping[str, set[str]]:
    """Each row of the page, and the scenarios (`covers`) and tests (`@pytest.mark.covers`) that show it."""
    found: dict[str, set[str]] = defaultdict(set)
    for row, name in _marked():
        found[row].add(name)
    return found


def _marked() -> Iterator[tuple[str, str]]:
    for path in (TESTS / "scenarios").glob("*.yaml"):
        covers = re.search(r"^covers: (\[.*\])$", path.read_text(), re.MULTILINE)
        for row in yaml.safe_load(covers[1]) if covers else ():
            yield row, path.name
    for path in TESTS.rglob("test_*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            for decorator in getattr(function, "decorator_list", ()):
                if ast.unparse(decorator).startswith("pytest.mark.covers("):
                    for row in decorator.args:
                        yield row.value, f"{path.name}::{getattr(function, 'name', '')}"


def tests() -> str:
    """One list item per row: scenarios first."""
    rows = sorted(covering().items(), key=lambda row: int(row[0][1:]))
    return "".join(
        f"- {row}: {', '.join(f'`{name}`' for name in sorted(names, key=lambda one: ('::' in one, one)))}\n"
        for row, names in rows
    )
