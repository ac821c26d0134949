"""Docs and code say the same: generated parts are up to date, links lead somewhere, every name is mentioned."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from benchmarks._judges import PLAIN, Ours
from benchmarks._workloads import WORKLOADS
from benchmarks.judgement import ANSWERS
from rightsizer.doctor.examination import CHECKS
from rightsizer.doctor.rights import RIGHTS
from rightsizer.model import Action, BlockerCode, Confidence, FindingName, Mode, Result, Verdict
from rightsizer.report import FORMS
from scripts.write_docs import DOCS, generated
from tests.rightsizer.commands import run_command

ROOT = DOCS.parent
PAGES = sorted(
    {page for pattern in ("*.md", "*/*.md", "docs/*/*.md", "deploy/**/*.md") for page in ROOT.glob(pattern)}
)
TESTS = sorted(ROOT.glob("tests/**/test_*.py"))


@pytest.mark.parametrize("path", sorted(generated()), ids=lambda path: str(path.relative_to(ROOT)))
def test_generated_file_in_the_repository_is_up_to_date(path: Path) -> None:
    """A change of settings, metrics or policy fields needs `make golden`."""
    assert path.read_text() == generated()[path](), "run `make golden`; the diff is the review"


def _prose(path: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def _links(path: Path) -> Iterator[tuple[Path, str]]:
    """The linked files of a page, each with its anchor."""
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", _prose(path)):
        yield (path.parent / target).resolve() if target else path, anchor


def _anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", _prose(path), re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return {
        f"{slug}-{before}" if (before := slugs[:at].count(slug)) else slug for at, slug in enumerate(slugs)
    }


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_link_of_a_page_has_a_target(path: Path) -> None:
    """Every relative link names a file of the repository and, where it has an anchor, a heading in it."""
    links = list(_links(path))
    assert [str(file) for file, _ in links if not file.exists()] == []
    assert [(file.name, anchor) for file, anchor in links if anchor and anchor not in _anchors(file)] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_page_that_names_a_test_names_exactly_one(path: Path) -> None:
    """Claims about safety lead to their tests; of files with one name the page names the folder, too."""
    named = set(re.findall(r"`([\w./-]*test_\w+\.py)`", path.read_text()))
    found = {name: [str(file) for file in TESTS if file.match(name)] for name in named}
    assert {name: files for name, files in found.items() if len(files) != 1} == {}


def test_index_of_docs_links_to_every_page() -> None:
    """docs/README.md links to each page and schema, or to its folder, or to the index of that folder."""
    linked = {file for file, _ in _links(DOCS / "README.md")}
    pages = {*DOCS.rglob("*.md"), *DOCS.glob("*.json")} - {DOCS / "README.md"}
    assert [
        str(page.relative_to(DOCS))
        for page in sorted(pages)
        if not {page, page.parent, page.parent / "README.md"} & (linked - {DOCS})
    ] == []


def _typed() -> Iterator[tuple[str, str]]:
    """Every command line of gpu-rightsizer in the pages: the name of the page and the line."""
    for path in PAGES:
        text = re.sub(r"<!-- (generated|printed).*?<!-- end -->", "", path.read_text(), flags=re.DOTALL)
        for code in re.findall(
            r"```\n(.*?)```|`(gpu-rightsizer [^`]+)`", text.replace("\\\n", " "), re.DOTALL
        ):
            for line in "".join(code).splitlines():
                if found := re.match(r"[$ ]*(?:\S*/)?gpu-rightsizer ([a-z][^#|]*)", line):
                    yield path.name, found[1].strip()


@pytest.mark.parametrize(("page", "line"), sorted(set(_typed())))
def test_command_line_of_a_page_has_known_flags(page: str, line: str) -> None:
    """The command exists and has the flags that the page shows."""
    del page
    first, *rest = line.split()
    command = (first, rest[0]) if first in {"policy", "breaker"} and rest and rest[0].isalpha() else (first,)
    told = run_command(*command, "--help")
    assert told.code == 0, told.err
    flags = re.findall(r"(?<=\s)(--?[a-z][a-z-]*)", f" {' '.join(rest)}")
    assert [flag for flag in flags if not re.search(rf"(?<![\w-]){flag}(?![\w-])", told.out)] == []


@pytest.mark.parametrize("values", sorted(ROOT.glob("deploy/helm/*/values.yaml")), ids=str)
def test_chart_value_in_a_page_exists(values: Path) -> None:
    """A page sets only values of the chart."""
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
    """Whether a value exists; an empty mapping takes any value."""
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
def test_commands_of_a_page_wait_for_a_job_and_replace_the_policy(page: Path, typed: str) -> None:
    """Pages read the log of a Job after it is complete, and never merge a policy into the previous one."""
    del page
    assert len(re.findall(r"\blogs\b.* job/", typed)) == len(
        re.findall(r"\bwait\b.*--for=condition=complete.*(?:&&|\n).*\blogs\b.* job/", typed)
    )
    assert not [line for line in typed.splitlines() if "--reuse-values" in line and "policy" in line]


@pytest.mark.parametrize(
    ("benchmark", "page", "rows"),
    [
        ("attribution_error", "attribution.md", [workload.name for workload in WORKLOADS]),
        ("judgement", "judgement.md", [judge.name for judge in (*map(Ours, ANSWERS), *PLAIN)]),
    ],
)
def test_page_of_a_benchmark_has_a_row_for_each_case(benchmark: str, page: str, rows: list[str]) -> None:
    """The page has the whole table of the benchmark."""
    part = f"<!-- measured: {benchmark.replace('_', '-')} -->\n(.*?)<!-- end -->"
    found = re.search(part, (DOCS / page).read_text(), re.DOTALL)
    assert found is not None, f"run `python -m benchmarks.{benchmark} --write`"
    assert [row for row in rows if f"| {row}" not in found[1]] == []


@pytest.mark.parametrize("name", [*FindingName, *Verdict, *Action, *Mode, *BlockerCode, *Confidence, *FORMS])
def test_word_of_a_plan_is_explained_in_docs(name: str) -> None:
    """Findings, verdicts, actions and formats are in docs/glossary.md."""
    text = (DOCS / "glossary.md").read_text()
    assert re.search(rf"[`| ]{name}[`| ]", text)


@pytest.mark.parametrize("check", sorted({check.name for check in CHECKS}))
def test_doctor_check_has_a_symptom_in_troubleshooting(check: str) -> None:
    """docs/troubleshooting.md links a symptom to each check."""
    assert re.search(rf"\[[^\]]*\b{check}\b[^\]]*\]\(doctor.md#", (DOCS / "troubleshooting.md").read_text())


_WRITERS = {
    "files": {"--ledger"},
    "history_files": {"--history"},
    "reporter": {"--save", "--patches"},
    "state_file": {"--state-file"},
}
"""The modules of the rightsizer that write files, with the flags that name these."""
_WRITES = re.compile(
    r"\.write_(?:text|bytes)\(|TemporaryFile\(|mkstemp\(|\bParquetFolder\(|open\([^)]*\"[wax]b?\""
)


def test_state_page_names_every_store_in_code_and_no_other() -> None:
    """Annotations, objects that the program may write in its own namespace, and flags that name files."""
    sources = {path.stem: path.read_text() for path in ROOT.glob("rightsizer*/**/*.py")}
    assert {name for name, text in sources.items() if _WRITES.search(text)} == _WRITERS.keys()
    annotations = {name for text in sources.values() for name in re.findall(r'\bPREFIX \+ "([a-z-]+)"', text)}
    objects = {name for right in RIGHTS if right.is_own for name in right.names}
    numbered = {name for name in objects if re.search(r"-[1-9]$", name)}
    stores, _, others = (DOCS / "state.md").read_text().partition("## What a loss means")
    places = re.findall(r"^\| \*\*[^|]*\|([^|]*)", stores, re.MULTILINE)
    lists = re.findall(r"^- (?:Marks|Wishes|Output)[^:]*:((?:.|\n  )*)", others, re.MULTILINE)
    named = set(re.findall(r"`((?:--)?[a-z][a-z0-9-]*)`", " ".join((*places, *lists))))
    assert named == annotations.union(objects, *_WRITERS.values()) - numbered
    assert {right.resource for right in RIGHTS if right.is_own} == {"configmaps", "leases", "secrets"}


def test_apply_help_names_every_result_and_docs_explain_it() -> None:
    """apply --help lists each result of an outcome; docs/rightsizer.md has a row for it."""  # noqa: D403 - a command's name
    from rightsizer.cli.flags import ApplyOptions  # noqa: PLC0415 - the text itself

    outcomes = ApplyOptions.epilog.partition("outcomes:")[2].partition("examples:")[0]
    page = (DOCS / "rightsizer.md").read_text()
    assert all(re.search(rf"\b{result}\b", outcomes) for result in Result if result != Result.UNTRUSTED)
    assert all(re.search(rf"^\| `{result}` \| \S", page, re.MULTILINE) for result in Result)


def test_make_target_in_the_readme_exists() -> None:
    """README names only existing targets."""
    targets = set(re.findall(r"\bmake ([a-z][a-z-]*)", (ROOT / "README.md").read_text()))
    makefile = (ROOT / "Makefile").read_text()
    assert targets
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_make_without_a_target_lists_all_targets() -> None:
    """`make` lists every target with a sentence."""
    out = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("setup", "demo", "test", "check", "golden", "bench"):
        assert re.search(rf"^  make {target} +\S", out, re.MULTILINE)
