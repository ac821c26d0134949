"""docs/glossary.md is the one list of terms: code, schemas, commands and pages use no others, and no retired words."""

import argparse
import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rightsizer.cli import parser
from scripts.prose import found_retired

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PROGRAMS = ("exporter", "rightsizer")
TERMS = {
    code or noun
    for code, noun in re.findall(r"`([^`]+)`|\*\*([^*]+)\*\*", (DOCS / "glossary.md").read_text())
}
FORMAT = {"gpu-rightsizer.io/v1alpha1", "gpu-rightsizer", "Policy", "Plan", "True", "False"}
"""Values of schemas that are no terms."""
ELSEWHERE = re.compile(r"gpu-|gpumem-|kube-|kubeflow-|nvidia-|sample-|recording-|scrape-|pod-deletion-cost")
"""Hyphenated names of other things on the pages below: objects, checks of the doctor, tools."""
SPOKEN = ("rightsizer", "findings", "policy", "concepts", "operations", "troubleshooting", "for-researchers")


INTERNAL = {"Command", "Need", "Statistic"}
"""Enumerations whose values nobody sees."""


def _enumerations() -> Iterator[tuple[str, str]]:
    """Every value of the closed sets of gpu-rightsizer."""
    for file in sorted((ROOT / "rightsizer").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.ClassDef)
                and "StrEnum" in " ".join(map(ast.unparse, node.bases))
                and node.name not in INTERNAL
            ):
                for one in node.body:
                    if isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant):
                        yield node.name, str(one.value.value)


@pytest.mark.parametrize(("name", "value"), list(_enumerations()))
def test_glossary_has_every_value_of_an_enumeration(name: str, value: str) -> None:
    """Verdicts, findings, actions, blockers, data issues, outcomes and the rest."""
    assert value in TERMS, name


def _in_schema(part: object, *, with_fields: bool) -> Iterator[str]:
    """Closed values of a schema and, if wanted, names of fields."""
    match part:
        case dict():
            properties: Any = part.get("properties")
            if with_fields and isinstance(properties, dict):
                yield from properties
            yield from map(str, part.get("enum", []))
            for one in part.values():
                yield from _in_schema(one, with_fields=with_fields)
        case list():
            for one in part:
                yield from _in_schema(one, with_fields=with_fields)


@pytest.mark.parametrize(
    ("schema", "with_fields"), [("policy.schema.json", True), ("plan.schema.json", False)]
)
def test_glossary_has_every_term_of_a_schema(schema: str, with_fields: bool) -> None:
    """Fields and values of the policy; values in a plan, whose schema describes its fields."""
    found = _in_schema(json.loads((DOCS / schema).read_text()), with_fields=with_fields)
    assert sorted(set(found) - TERMS - FORMAT) == []


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


@pytest.mark.parametrize("page", SPOKEN)
def test_glossary_has_every_term_of_a_page(page: str) -> None:
    """Hyphenated words in code, as terms are written."""
    written = re.findall(r"(?<!`)`([a-z]+(?:-[a-z]+)+)`(?!`)", (DOCS / f"{page}.md").read_text())
    assert sorted({word for word in written if not ELSEWHERE.match(word)} - TERMS) == []


def _strings(file: Path) -> Iterator[tuple[int, str]]:
    """The strings of a module that are no docstrings."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


@pytest.mark.parametrize(
    "file",
    sorted(file for name in (*PROGRAMS, "dashboards") for file in (ROOT / name).rglob("*.py")),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_strings_of_a_module_have_no_retired_word(file: Path) -> None:
    """Nothing that a user can meet is in the words of before."""
    found = [(line, word, new) for line, text in _strings(file) for _, word, new in found_retired(text)]
    assert found == []


TEXTS = sorted(
    {
        *(ROOT / "deploy").rglob("*.yaml"),
        *(ROOT / "deploy").rglob("*.md"),
        *(ROOT / "deploy").rglob("*.txt"),
        *(ROOT / "deploy").rglob("*.json"),
        *DOCS.rglob("*.md"),
        *DOCS.glob("*.json"),
        ROOT / "README.md",
        ROOT / "dashboards" / "grafana.json",
    }
)


@pytest.mark.parametrize(
    "file",
    TEXTS,
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_texts_have_no_retired_word(file: Path) -> None:
    """Pages, schemas, chart, alerts and dashboard."""
    assert list(found_retired(file.read_text())) == []
