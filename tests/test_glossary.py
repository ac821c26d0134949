"""docs/glossary.md lists the terms, docs/state.md the annotations: code, schemas, commands and pages use no others."""

import argparse
import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rightsizer.__main__ import parser
from scripts.prose import found_retired

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MODULES = sorted(file for name in ("exporter", "rightsizer*") for file in ROOT.glob(f"{name}/**/*.py"))
TERMS = {
    code or noun
    for name in ("glossary.md", "state.md")
    for code, noun in re.findall(r"`([^`]+)`|\*\*([^*]+)\*\*", (DOCS / name).read_text())
}
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md"])
FORMAT = {"gpu-rightsizer.io/v1alpha1", "gpu-rightsizer", "Policy", "Plan", "True", "False"}
"""Values of schemas that are no terms."""
ELSEWHERE = re.compile(
    r"gpu-|gpumem-|kai-|kube-|kubeflow-|nvidia-|prometheus-|rancher-|runai-|sample-|recording-|scrape-|thanos-|victoria-"
    r"|dcgm-exporter|device-plugin|foreign-nodes|pod-deletion-cost"
)
"""Hyphenated names of other things on the pages below: objects, checks of the doctor, tools."""
INTERNAL = {"BusySource", "Format", "Kind", "Need", "Purpose", "Statistic", "Steering", "UsagePart", "Value"}
"""Enumerations whose values nobody sees."""
CLOSED_WORDS = 60
"""A policy author has to know at most this many closed values."""


def _enumerations() -> Iterator[tuple[str, str]]:
    """Every word of the closed sets of both programs."""
    for file in MODULES:
        source = file.read_text()
        classes = ast.parse(source).body if "Enum)" in source else []
        for node in classes:
            if (
                isinstance(node, ast.ClassDef)
                and any(ast.unparse(base).endswith("Enum") for base in node.bases)
                and node.name not in INTERNAL
            ):
                for one in node.body:
                    match one:
                        case ast.Assign(value=ast.Constant(value=str(word))) if word:
                            yield node.name, word


@pytest.mark.parametrize(("name", "value"), list(_enumerations()))
def test_glossary_has_every_value_of_an_enumeration(name: str, value: str) -> None:
    """Verdicts, findings, actions, blockers, data issues, outcomes and the rest."""
    assert value in TERMS, name


def _in_schema(part: object) -> Iterator[str]:
    """Closed values of a schema."""
    match part:
        case dict():
            yield from map(str, part.get("enum", []))
            for one in part.values():
                yield from _in_schema(one)
        case list():
            for one in part:
                yield from _in_schema(one)


@pytest.mark.parametrize("schema", ["policy.schema.json", "plan.schema.json", "ledger.schema.json"])
def test_glossary_has_every_value_of_a_schema(schema: str) -> None:
    """Generated tables and the schemas describe their fields."""
    found = _in_schema(json.loads((DOCS / schema).read_text()))
    assert sorted(set(found) - TERMS - FORMAT) == []


def test_policy_has_few_closed_words() -> None:
    """Without true, false, and the format's name and version."""
    schema = json.loads((DOCS / "policy.schema.json").read_text())
    assert len(set(_in_schema(schema)) - FORMAT) <= CLOSED_WORDS


def _choices(one: argparse.ArgumentParser) -> Iterator[str]:
    """Commands and closed choices, of subcommands too."""
    for action in one._actions:  # noqa: SLF001 - argparse has no other way
        yield from map(str, action.choices or ())
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for sub in action.choices.values():
                yield from _choices(sub)


def test_glossary_has_every_command_and_choice() -> None:
    """Of gpu-rightsizer."""
    assert sorted(set(_choices(parser())) - TERMS) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_glossary_has_every_term_of_a_page(page: Path) -> None:
    """Hyphenated words in code, as terms are written."""
    written = re.findall(r"(?<!`)`([a-z]+(?:-[a-z]+)+)`(?!`)", page.read_text())
    assert sorted({word for word in written if not ELSEWHERE.match(word)} - TERMS) == []


TEXTS = sorted(
    {
        *(ROOT / "deploy").rglob("*.yaml"),
        *(ROOT / "deploy").rglob("*.md"),
        *(ROOT / "deploy").rglob("*.txt"),
        *(ROOT / "deploy").rglob("*.json"),
        *MODULES,
        *(ROOT / "dashboards").rglob("*.py"),
        *PAGES,
        *DOCS.glob("*.json"),
        *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "Makefile")),
        ROOT / "simulator" / "README.md",
        ROOT / "benchmarks" / "README.md",
        ROOT / "dashboards" / "grafana.json",
    }
)


@pytest.mark.parametrize(
    "file",
    TEXTS,
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_texts_have_no_retired_word(file: Path) -> None:
    """Modules with their docstrings, pages, schemas, chart, alerts and dashboard."""
    assert list(found_retired(file.read_text())) == []
