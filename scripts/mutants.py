"""Proves that the rightsizer's tests notice danger: each row of mutants.toml breaks the code, and its tests must fail.

Works on copies of the tree in a temporary directory, one for each job; the checkout is only read. A row that does not
apply any more, or whose tests are gone, counts as a failure as well: it proves nothing.
"""

import argparse
import ast
import concurrent.futures
import dataclasses
import enum
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence

ROOT = pathlib.Path(__file__).parent.parent
TABLE = pathlib.Path(__file__).with_suffix(".toml")
PACKAGES = ("rightsizer*", "exporter", "scripts")
"""Of the modules that mutants change."""
_CONTEXT = re.compile(r", ctx=(Load|Store|Del)\(\)")
_Definitions = Iterator[tuple[str, ast.stmt]]
_TIMEOUT_S = 300
_AT_ONCE = 20
"""Tests in one run without a mutant: all in one would not end in time on a busy machine."""
TREES = (
    "rightsizer",
    "rightsizer_extender",
    "rightsizer_history",
    "exporter",
    "simulator",
    "tests",
    "scripts",
    "docs",
    "deploy",
    "benchmarks",
    "dashboards",
)
FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile")
_PYTEST = ("-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--no-header", "--tb=no")


class Fate(enum.StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    BROKEN = "broken"


@dataclasses.dataclass(frozen=True, slots=True)
class Mutant:
    """One dangerous change of the code.

    Attributes:
        name: What is lost by it.
        where: The function, class or constant, with as much of its module's name as tells it from others.
        was: An expression, or statements, that stand there once.
        becomes: What stands there instead; without any statement, `pass`.
        danger: What it could do to a cluster.
        tests: Files or tests of which one must fail.
    """

    name: str
    where: str
    was: str
    becomes: str
    danger: str
    tests: tuple[str, ...]


class Program:
    """The modules of a tree, and where each name is defined."""

    def __init__(self, root: pathlib.Path) -> None:
        self._root = root
        self._defined: dict[str, dict[tuple[pathlib.Path, str], list[ast.stmt]]] = {}
        for path in sorted(path for name in PACKAGES for path in root.glob(f"{name}/**/*.py")):
            module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            for name, node in _definitions(ast.parse(path.read_text()).body):
                parts = f"{module}.{name}".split(".")
                for start in range(len(parts)):
                    found = self._defined.setdefault(".".join(parts[start:]), {})
                    found.setdefault((path, name), []).append(node)

    def mutated(self, mutant: Mutant) -> tuple[pathlib.Path, str]:
        """The module, from the root, and its text with the change.

        Raises:
            ValueError: No place or several have that name, or what is to be replaced is not there exactly once.
        """
        places = self._defined.get(mutant.where, {})
        if len(places) != 1:
            message = f"{mutant.where} is defined in {len(places)} places, not in one"
            raise ValueError(message)
        ((path, name),) = places
        tree = ast.parse(path.read_text())
        change = _Change(mutant)
        for own, node in _definitions(tree.body):
            if own == name:
                change.visit(node)
        if change.times != 1:
            message = f"{mutant.where} holds it {change.times} times, not once"
            raise ValueError(message)
        return path.relative_to(self._root), ast.unparse(tree)


def _definitions(body: Sequence[ast.stmt], prefix: str = "", *, is_in_function: bool = False) -> _Definitions:
    """Each function, class and constant with its name, those of classes and functions in them, too."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                yield prefix + node.name, node
                in_function = is_in_function or isinstance(node, ast.FunctionDef)
                yield from _definitions(node.body, f"{prefix}{node.name}.", is_in_function=in_function)
            case ast.Assign() | ast.AnnAssign() if not is_in_function:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = (
                    one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)
                )
                yield from ((prefix + name, node) for name in names)
            case _:
                pass


class _Change(ast.NodeTransformer):
    """Replaces an expression or statements, and counts how often."""

    def __init__(self, mutant: Mutant) -> None:
        self.times = 0
        was, becomes = ast.parse(mutant.was).body, ast.parse(mutant.becomes).body
        sides = [body[0].value for body in (was, becomes) if len(body) == 1 and isinstance(body[0], ast.Expr)]
        self._expressions = sides if len(sides) == 2 else None  # noqa: PLR2004 - both sides
        self._was, self._becomes = [*map(_form, was)], becomes or [ast.Pass()]

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Look for statements in each body, or for the expression."""
        if self._expressions is None:
            for field in ("body", "orelse", "finalbody"):
                if isinstance(body := getattr(node, field, None), list):
                    setattr(node, field, self._replaced(body))
        elif isinstance(node, ast.expr) and _form(node) == _form(self._expressions[0]):
            self.times += 1
            return self._expressions[1]
        return super().generic_visit(node)

    def _replaced(self, body: list[ast.stmt]) -> list[ast.stmt]:
        forms, count = [*map(_form, body)], len(self._was)
        for start in range(len(body) - count + 1):
            if forms[start : start + count] == self._was:
                self.times += 1
                return [*body[:start], *self._becomes, *body[start + count :]]
        return body


def _form(node: ast.AST) -> str:
    """What two nodes have in common that read alike, whether they are read from or written to."""
    return _CONTEXT.sub("", ast.dump(node))


def mutants(text: str) -> list[Mutant]:
    """The rows of the table."""
    rows = tomllib.loads(text)["mutant"]
    return [Mutant(**{**row, "tests": tuple(row["tests"])}) for row in rows]


def copy_tree(place: pathlib.Path) -> pathlib.Path:
    """Copy what the tests need to a new directory."""
    place.mkdir(parents=True)
    for name in TREES:
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, place / name)
    return place


def _tested(place: pathlib.Path, tests: Sequence[str]) -> tuple[int, str]:
    """Exit code and last words of pytest; the tree itself comes first on the path of what is imported."""
    environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "pytest", *_PYTEST, *tests]
    try:
        done = subprocess.run(  # noqa: S603 - of this file's own table
            command,
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, f"did not end within {_TIMEOUT_S} s"
    return done.returncode, (done.stdout.strip().splitlines() or [done.stderr.strip()])[-1]


def _fate(mutant: Mutant, program: Program, place: pathlib.Path) -> tuple[Fate, str]:
    try:
        path, changed = program.mutated(mutant)
    except ValueError as error:
        return Fate.BROKEN, str(error)
    text = (ROOT / path).read_text()
    _write(place / path, changed)
    try:
        code, words = _tested(place, mutant.tests)
    finally:
        _write(place / path, text)
    fates = {0: Fate.SURVIVED, 1: Fate.KILLED}  # by anything else pytest says that it could not test
    return fates.get(code, Fate.BROKEN), words


def _write(path: pathlib.Path, text: str) -> None:
    """Write a module and forget its bytecode, which goes by size and second."""
    path.write_text(text)
    for old in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        old.unlink()


def _fates(rows: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, Fate, str]]:
    """Each mutant's fate, as it becomes known."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        program = Program(ROOT)
        places: queue.SimpleQueue[pathlib.Path] = queue.SimpleQueue()
        for number in range(jobs):
            places.put(copy_tree(pathlib.Path(folder) / str(number)))

        def of(mutant: Mutant) -> tuple[Mutant, Fate, str]:
            place = places.get()
            try:
                return (mutant, *_fate(mutant, program, place))
            finally:
                places.put(place)

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for future in concurrent.futures.as_completed([pool.submit(of, row) for row in rows]):
                yield future.result()


def _require_healthy(rows: Sequence[Mutant], jobs: int) -> None:
    """Tests that fail, or that are skipped, whatever the code is, kill nobody.

    Raises:
        SystemExit: Some do.
    """
    tests = tuple(dict.fromkeys(test for row in rows for test in row.tests))
    parts = [tests[start : start + _AT_ONCE] for start in range(0, len(tests), _AT_ONCE)]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for code, words in pool.map(lambda part: _tested(ROOT, part), parts):
            if code or "skipped" in words:
                raise SystemExit(
                    f"make mutants: without any mutant its tests must run and pass, but: {words}"
                )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run those whose names were given, or all; 0 where each was killed."""
    parser = argparse.ArgumentParser(prog="python -m scripts.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="of mutants; default: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at the same time")
    given = parser.parse_args(arguments)
    rows = mutants(TABLE.read_text())
    if unknown := sorted(set(given.names) - {row.name for row in rows}):
        parser.error(f"no mutant of {TABLE.name} is named {', '.join(unknown)}")
    rows = [row for row in rows if not given.names or row.name in given.names]
    began = time.monotonic()
    _require_healthy(rows, given.jobs)
    fates: list[Fate] = []
    for mutant, fate, words in _fates(rows, given.jobs):
        fates.append(fate)
        print(f"{fate:8}  {mutant.name:44}  {mutant.where}" + ("" if fate is Fate.KILLED else f"  {words}"))
    killed = fates.count(Fate.KILLED)
    print(f"\n{killed} of {len(rows)} dangerous mutants killed in {time.monotonic() - began:.0f} s")
    return 0 if rows and killed == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
