"""Docs and code say the same: generated parts are up to date, links lead somewhere, every name is mentioned."""

import re
import subprocess
from pathlib import Path

import pytest

from benchmarks._workloads import WORKLOADS
from rightsizer.model import Action, Cause, Confidence, FindingName, Mode, Result, Verdict
from rightsizer.report.forms import FORMS
from scripts.write_docs import DOCS, rendered

ROOT = DOCS.parent
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


@pytest.mark.parametrize("path", sorted(rendered()), ids=lambda path: str(path.name))
def test_generated_parts_are_up_to_date(path: Path) -> None:
    """`make golden` has been run since settings, metrics or policy fields changed."""
    assert path.read_text() == rendered()[path], "run `make golden`; the diff is the review"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link names a file of the repository."""
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text())
    missing = [target for target in targets if not (path.parent / target).exists()]
    assert missing == []


def test_the_errors_of_gauges_and_counter_are_told_of_each_workload() -> None:
    """docs/attribution.md has the benchmark's table, with each of its workloads."""
    text = (DOCS / "attribution.md").read_text()
    part = re.search(r"<!-- measured: attribution-error -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert part is not None, "run `python -m benchmarks.attribution_error --write`"
    missing = [one.name for one in WORKLOADS if f"| {one.name}" not in part[1]]
    assert missing == []


@pytest.mark.parametrize("name", [*FindingName, *Verdict, *Action, *Mode, *Cause, *Confidence, *FORMS])
def test_every_word_of_a_plan_is_explained(name: str) -> None:
    """Findings, verdicts, actions, modes, causes, confidence and forms stand in one of the two pages."""
    text = (DOCS / "rightsizer.md").read_text() + (DOCS / "policy.md").read_text()
    assert re.search(rf"[`| ]{name}[`| ]", text)


def test_every_outcome_is_explained_in_the_help() -> None:
    """apply --help lists each result that an outcome can have."""  # noqa: D403 - a command's name
    from rightsizer.cli.flags import _APPLY_EPILOG  # noqa: PLC0415 - the text itself

    assert all(re.search(rf"^  {result} ", _APPLY_EPILOG, re.MULTILINE) for result in Result)


def test_every_make_target_of_the_readme_exists() -> None:
    """What README tells to type can be typed."""
    targets = set(re.findall(r"\bmake ([a-z][a-z-]*)", (ROOT / "README.md").read_text()))
    makefile = (ROOT / "Makefile").read_text()
    assert targets
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_make_alone_explains_itself() -> None:
    """`make` lists every target with a sentence."""
    out = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("setup", "demo", "test", "check", "golden", "bench"):
        assert re.search(rf"^  make {target} +\S", out, re.MULTILINE)
