"""Measures which small mistakes no test notices: mutmut makes them in one package at a time, in a copy of the tree.

mutmut changes one operator, constant, argument or name of a function, and runs the tests that call the function.
A mutant is killed if a test fails, or mypy. mutation.toml says which tests, which mutants are harmless and why, and
the share of the others that must be killed.
"""

import argparse
import contextlib
import dataclasses
import difflib
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from mutmut.mutation.file_mutation import mutate_file_contents

from scripts.mutants import FILES, TREES, copy_tree

ROOT = pathlib.Path(__file__).parent.parent
TABLE = pathlib.Path(__file__).with_suffix(".toml")
_PLACE = ROOT / "build" / "mutation"
_FORM_ONLY = frozenset({"ignore-without-code", "no-redef", "redundant-expr", "unreachable", "unused-ignore"})
"""Errors of mypy that come from the form in which mutmut writes mutants, not from the mistake."""
_UNNOTICED = frozenset({0, 5, 33})
"""Exit codes of pytest and mutmut: the tests passed, or there are none."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """As a plugin of pytest: fast tests first, so that most mutants are killed soon."""
    items.sort(key=lambda item: item.get_closest_marker("prometheus") is not None)


@dataclasses.dataclass(frozen=True, slots=True)
class Mutant:
    """One small mistake.

    Attributes:
        name: By mutmut.
        is_killed: Whether a test failed or did not end, or mypy refused it.
        lines: What differs in the function: lines of a diff.
    """

    name: str
    is_killed: bool
    lines: tuple[str, ...]


def _folder(package: str) -> pathlib.Path:
    """Of a package below `rightsizer`, or of one beside it."""
    return pathlib.Path(package if package.startswith("rightsizer") else f"rightsizer/{package}")


def _config(package: str, table: Mapping[str, Any]) -> str:
    """The section of mutmut; it mutates, tests and reads relative to the directory in which it runs."""
    marks = "not slow and not deep and not controlplane and not operators and not node"
    marks += "" if table.get("prometheus") else " and not prometheus"
    folder = _folder(package)
    fields = {
        "source_paths": [folder.parts[0]],
        "only_mutate": [f"{folder}/*.py"],
        "also_copy": [one for one in (*TREES, *FILES) if one != folder.parts[0]],
        "pytest_add_cli_args": ["-n", "0", "-p", "no:cacheprovider", "-p", "scripts.mutation", "-m", marks],
        "pytest_add_cli_args_test_selection": table["tests"],
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
    off = [
        f"{name} = false" for name in ("use_setproctitle", "track_dependencies", "use_git_change_detection")
    ]
    return "\n".join(["", "[tool.mutmut]", *lines, *off, ""])


def _refused(folder: pathlib.Path, top: str) -> dict[str, set[int]]:
    """Lines that mypy finds wrong, by file; errors in the form that mutmut gives a file are none of the mutant's."""
    command = [sys.executable, "-m", "mypy", "--output", "json", top]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
    found: dict[str, set[int]] = {}
    for error in map(json.loads, filter(None, done.stdout.splitlines())):
        if error["code"] not in _FORM_ONLY:
            found.setdefault(error["file"], set()).add(error["line"])
    return found


def _mutants(package: str) -> Iterator[Mutant]:
    """The mutants of a package that were tried."""
    folder = _PLACE / package / "mutants"
    refused = _refused(folder, _folder(package).parts[0])
    for meta in sorted((folder / _folder(package)).glob("*.meta")):
        path = meta.with_suffix("")
        spans = json.loads(path.with_name(f"{path.name}.spans").read_text())["spans"]
        wrong = refused.get(str(path.relative_to(folder)), set())
        text = path.read_text().splitlines()
        for name, code in json.loads(meta.read_text())["exit_code_by_key"].items():
            if code is None:
                continue
            function = name.rpartition(".")[-1]
            original = f"{function.rpartition('__mutmut_')[0]}__mutmut_orig"
            was, becomes = (
                [line.replace(one, "") for line in text[spans[one][0] - 1 : spans[one][1]]]
                for one in (original, function)
            )
            diff = difflib.unified_diff(was, becomes, n=0, lineterm="")
            lines = tuple(f"{one[0]} {one[1:].strip()}" for one in diff if one[:2] not in {"--", "++", "@@"})
            is_typed = wrong.isdisjoint(range(spans[function][0], spans[function][1] + 1))
            yield Mutant(name, code not in _UNNOTICED or not is_typed, lines)


def _sample(package: str, size: int) -> list[str]:
    """Names of mutants, drawn at random: the same ones as long as the package is the same."""
    names: list[str] = []
    with contextlib.chdir(_PLACE / package):  # mutmut reads its section of pyproject.toml there
        for path in sorted(_folder(package).glob("*.py")):
            made = mutate_file_contents(str(path), path.read_text()).mutant_names
            names += [f"{'.'.join(path.with_suffix('').parts)}.{name}" for name in made]
    return random.Random(package).sample(names, min(size, len(names)))  # noqa: S311 - no secret


def _run(package: str, table: Mapping[str, Any], jobs: int, sample: int) -> None:
    place = _PLACE / package
    shutil.rmtree(place, ignore_errors=True)
    copy_tree(place)
    with (place / "pyproject.toml").open("a") as file:
        file.write(_config(package, table))
    names = _sample(package, sample) if sample else []
    programs = pathlib.Path(sys.executable).parent
    with (place / "log").open("w") as log:
        done = subprocess.run(  # noqa: S603 - of this file's own table
            [f"{programs}/mutmut", "run", "--max-children", str(jobs), *names],
            cwd=place,
            env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
            stdout=log,
            stderr=log,
            check=False,
        )
    if done.returncode:
        last = (place / "log").read_text().splitlines()[-30:]
        raise SystemExit("\n".join([*last, f"make mutation: mutmut failed on {package}, see {place}/log"]))


def _is_harmless(mutant: Mutant, rules: Sequence[Mapping[str, str]]) -> bool:
    return any(
        re.search(rule.get("names", ""), mutant.name)
        and re.search(rule.get("lines", ""), "\n".join(mutant.lines), re.MULTILINE)
        for rule in rules
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Counted:
    """The mutants of a package; of those that no test notices, `harmless` have a reason in the table."""

    mutants: int
    harmless: int
    survived: int

    @property
    def killed(self) -> int:
        return self.mutants - self.harmless - self.survived

    @property
    def share(self) -> float:
        """Percent of the mutants that are not harmless."""
        return 100 * self.killed / max(self.killed + self.survived, 1)


def _counted(package: str, rules: Sequence[Mapping[str, str]]) -> _Counted:
    """Count the mutants of the last run, and write the survivors to a file beside it."""
    every = list(_mutants(package))
    left = [one for one in every if not one.is_killed]
    survivors = [one for one in left if not _is_harmless(one, rules)]
    texts = ("\n".join((one.name, *one.lines, "")) for one in survivors)
    (_PLACE / f"{package}.txt").write_text("\n".join(texts))
    return _Counted(len(every), len(left) - len(survivors), len(survivors))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the packages that were given, or all; 0 if each reaches its share."""
    parser = argparse.ArgumentParser(prog="python -m scripts.mutation", description=__doc__)
    parser.add_argument("packages", nargs="*", help="of the rightsizer; default: all of mutation.toml")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at the same time")
    parser.add_argument(
        "--sample", type=int, default=0, help="number of mutants to run, drawn at random; default: all"
    )
    parser.add_argument(
        "--again", action="store_true", help="only count what the last run left in build/mutation"
    )
    given = parser.parse_args(arguments)
    table = tomllib.loads(TABLE.read_text())
    failed = 0
    print(f"{'package':20}{'mutants':>9}{'harmless':>9}{'killed':>9}{'survived':>9}{'%':>8}{'least':>7}")
    for package in given.packages or table["package"]:
        row = table["package"][package]
        if not given.again:
            _run(package, row, given.jobs, given.sample)
        found = _counted(package, table["harmless"])
        failed += found.share < row["least"]
        print(
            f"{package:20}{found.mutants:9}{found.harmless:9}{found.killed:9}{found.survived:9}"
            f"{found.share:8.1f}{row['least']:7}",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
