"""Every mutant of scripts/mutants.toml can be made, and what scripts/mutation.toml says is about something."""

import ast
import re
import subprocess
import sys
import tomllib

import pytest

from scripts.mutants import ROOT, TABLE, Mutant, Program, mutants

MUTATION = tomllib.loads((ROOT / "scripts/mutation.toml").read_text())
MUTANTS = mutants(TABLE.read_text())


@pytest.fixture(scope="module")
def program() -> Program:
    """The modules that mutants change."""
    return Program(ROOT)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_in_its_function_once(program: Program, mutant: Mutant) -> None:
    """A mutant whose code changed would otherwise count as a broken run, minutes later."""
    path, text = program.mutated(mutant)
    assert text != ast.unparse(ast.parse((ROOT / path).read_text()))


def test_mutant_tests_exist() -> None:
    """Pytest finds each: a file, a function in it, or one of its cases."""
    tests = sorted({test for mutant in MUTANTS for test in mutant.tests})
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *tests], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or done.stdout[-2000:]


@pytest.mark.parametrize("package", MUTATION["package"])
def test_mutation_package_and_its_tests_exist(package: str) -> None:
    """Without its tests every mutant would survive."""
    top = "" if package.startswith("rightsizer") else "rightsizer"
    assert (ROOT / top / package).is_dir()
    tests = [test.partition("::")[0] for test in MUTATION["package"][package]["tests"]]
    assert [test for test in tests if not (ROOT / test).exists()] == []


@pytest.mark.parametrize("rule", MUTATION["harmless"], ids=lambda rule: rule["reason"])
def test_mutation_rule_of_harmless_mutants_is_about_few(rule: dict[str, str]) -> None:
    """Without a condition, every survivor would have a reason."""
    conditions = [rule[name] for name in ("names", "lines") if name in rule]
    assert conditions
    assert [one for one in conditions if re.search(one, "")] == []
