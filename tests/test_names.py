"""A name stands for one thing in each program: no two modules and no two classes are called the same."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = ("exporter", "rightsizer*", "simulator")


def _repeated(names: Iterator[tuple[str, Path]]) -> dict[str, list[str]]:
    places = defaultdict(list)
    for name, path in names:
        places[name].append(str(path.relative_to(ROOT)))
    return {name: paths for name, paths in sorted(places.items()) if len(paths) > 1}


def _sources(program: str) -> list[Path]:
    return sorted(ROOT.glob(f"{program}/**/*.py"))


def _classes(program: str) -> Iterator[tuple[str, Path]]:
    """Every class, wherever it is defined."""
    for path in _sources(program):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield node.name, path


@pytest.mark.parametrize("program", PROGRAMS)
def test_module_name_in_a_program_is_unique(program: str) -> None:
    """Only `__init__` and `__main__` are in more than one package."""
    modules = ((path.stem, path) for path in _sources(program) if path.stem not in {"__init__", "__main__"})
    assert _repeated(modules) == {}


@pytest.mark.parametrize("program", PROGRAMS)
def test_class_name_in_a_program_is_unique(program: str) -> None:
    """Private classes count as well."""
    assert _repeated(_classes(program)) == {}
