"""Docs and code say the same: generated parts are up to date, links lead somewhere, every name is mentioned."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from benchmarks._fleet import MIX
from benchmarks._judges import Ours
from benchmarks._weeks import PLAIN
from benchmarks._workloads import WORKLOADS
from rightsizer.doctor.check_list import FAMILIES
from rightsizer.model import Action, Cause, Confidence, FindingName, Mode, Result, Verdict
from rightsizer.report.forms import FORMS
from scripts.write_docs import DOCS, generated
from tests.rightsizer.commands import run_command

ROOT = DOCS.parent
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("deploy/**/*.md")])


@pytest.mark.parametrize("path", sorted(generated()), ids=lambda path: str(path.relative_to(ROOT)))
def test_generated_parts_are_up_to_date(path: Path) -> None:
    """`make golden` has been run since settings, metrics or policy fields changed."""
    assert path.read_text() == generated()[path](), "run `make golden`; the diff is the review"


def _prose(path: Path) -> str:
    """A page without its frames and what stands in them."""
    return re.sub(r"^ *```.*?^ *```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def _links(path: Path) -> Iterator[tuple[Path, str]]:
    """Files, and the anchors in them, to which a page links."""
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", _prose(path)):
        yield (path.parent / target).resolve() if target else path, anchor


def _anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _prose(path), re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return {
        f"{slug}-{before}" if (before := slugs[:at].count(slug)) else slug for at, slug in enumerate(slugs)
    }


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link names a file of the repository and, where it has an anchor, a heading in it."""
    links = list(_links(path))
    assert [str(file) for file, _ in links if not file.exists()] == []
    assert [(file.name, anchor) for file, anchor in links if anchor and anchor not in _anchors(file)] == []


def test_every_page_is_in_the_index() -> None:
    """docs/README.md links to each page and schema, or to its folder or that folder's own index."""
    linked = {file for file, _ in _links(DOCS / "README.md")}
    pages = {*DOCS.rglob("*.md"), *DOCS.glob("*.json")} - {DOCS / "README.md"}
    assert [
        str(page.relative_to(DOCS))
        for page in sorted(pages)
        if not {page, page.parent, page.parent / "README.md"} & (linked - {DOCS})
    ] == []


def _typed() -> Iterator[tuple[str, str]]:
    """Every command line of gpu-rightsizer that a page tells to type: the page's name and the line."""
    for path in PAGES:
        text = re.sub(r"<!-- (generated|printed).*?<!-- end -->", "", path.read_text(), flags=re.DOTALL)
        for code in re.findall(
            r"```\n(.*?)```|`(gpu-rightsizer [^`]+)`", text.replace("\\\n", " "), re.DOTALL
        ):
            for line in "".join(code).splitlines():
                if found := re.match(r"[$ ]*(?:\S*/)?gpu-rightsizer ([a-z][^#|]*)", line):
                    yield path.name, found[1].strip()


@pytest.mark.parametrize(("page", "line"), sorted(set(_typed())))
def test_what_is_to_be_typed_can_be_typed(page: str, line: str) -> None:
    """Commands exist and have the flags with which pages show them."""
    del page
    first, *rest = line.split()
    command = (first, rest[0]) if first in {"policy", "breaker"} and rest and rest[0].isalpha() else (first,)
    told = run_command(*command, "--help")
    assert told.code == 0, told.err
    flags = re.findall(r"(?<=\s)(--?[a-z][a-z-]*)", f" {' '.join(rest)}")
    assert [flag for flag in flags if not re.search(rf"(?<![\w-]){flag}(?![\w-])", told.out)] == []


@pytest.mark.parametrize("values", sorted(ROOT.glob("deploy/helm/*/values.yaml")), ids=str)
def test_values_of_the_chart_exist(values: Path) -> None:
    """Values that a page sets are values that the chart has."""
    told = "".join((DOCS / name).read_text() for name in ("install.md", "security.md", "operations.md"))
    known: dict[str, object] = yaml.safe_load(values.read_text())
    names = set(
        re.findall(
            r"(?:--set(?:-json)? '?|[`,])((?:[a-z]\w*\.)+\w+)(?==|`)", told + (ROOT / "README.md").read_text()
        )
    )
    missing = [
        name for name in sorted(names) if name.split(".")[0] in known and not _has(known, name.split("."))
    ]
    assert names
    assert missing == []


def _has(values: object, path: list[str]) -> bool:
    """Whether a value is there; within a mapping that is empty anything may be written."""
    for name in path:
        if values == {}:
            return True
        if not isinstance(values, dict) or name not in values:
            return False
        values = values[name]
    return True


_TYPED = [
    pytest.param(
        path,
        "\n".join(re.findall(r"^ *```\n(.*?)^ *```", path.read_text(), re.DOTALL | re.MULTILINE)),
        id=path.name,
    )
    for path in (
        ROOT / "README.md",
        *sorted(DOCS.rglob("*.md")),
        ROOT / "deploy/helm/gpu-rightsizer/README.md",
    )
]


@pytest.mark.parametrize(("page", "typed"), _TYPED)
def test_what_is_typed_does_what_it_is_typed_for(page: Path, typed: str) -> None:
    """The log of a Job is read once it is complete, and no policy is merged into the one before it."""
    del page
    assert len(re.findall(r"\blogs\b.* job/", typed)) == len(
        re.findall(r"\bwait\b.*--for=condition=complete.*(?:&&|\n).*\blogs\b.* job/", typed)
    )
    assert not [line for line in typed.splitlines() if "--reuse-values" in line and "policy" in line]


def test_the_errors_of_gauges_and_counter_are_told_of_each_workload() -> None:
    """docs/attribution.md has the benchmark's table, with each of its workloads."""
    text = (DOCS / "attribution.md").read_text()
    part = re.search(r"<!-- measured: attribution-error -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert part is not None, "run `python -m benchmarks.attribution_error --write`"
    missing = [one.name for one in WORKLOADS if f"| {one.name}" not in part[1]]
    assert missing == []


def test_the_judgement_is_told_of_each_archetype() -> None:
    """docs/judgement.md has the benchmark's tables, with each archetype and judge."""
    text = (DOCS / "judgement.md").read_text()
    part = re.search(r"<!-- measured: judgement -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert part is not None, "run `python -m benchmarks.judgement --write`"
    rows = [*(one.value for one in MIX), Ours().name, *(one.name for one in PLAIN)]
    assert [row for row in rows if f"| {row} |" not in part[1]] == []


@pytest.mark.parametrize("name", [*FindingName, *Verdict, *Action, *Mode, *Cause, *Confidence, *FORMS])
def test_every_word_of_a_plan_is_explained(name: str) -> None:
    """What stands in plans, and every form of one, is told in the rightsizer's or the policy's page."""
    text = (DOCS / "rightsizer.md").read_text() + (DOCS / "policy.md").read_text()
    assert re.search(rf"[`| ]{name}[`| ]", text)


@pytest.mark.parametrize("check", sorted({check.name for family in FAMILIES for check in family.checks}))
def test_every_check_of_the_doctor_has_a_symptom(check: str) -> None:
    """docs/troubleshooting.md leads from what somebody sees to each check."""
    assert re.search(rf"\[[^\]]*\b{check}\b[^\]]*\]\(doctor.md#", (DOCS / "troubleshooting.md").read_text())


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
