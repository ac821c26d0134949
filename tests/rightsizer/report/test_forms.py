"""The forms of a plan: each byte for byte, every workload once in each, and the same plan gives the same bytes."""

import csv
import dataclasses
import datetime
import html
import io
import itertools
import json
import re
from pathlib import Path

import hypothesis
import jsonschema
import pytest
import yaml
from hypothesis import strategies as st

from rightsizer.__main__ import parser
from rightsizer.errors import ConfigurationError
from rightsizer.model import (
    Action,
    Autoscalers,
    Blocker,
    BlockerCode,
    Confidence,
    Decision,
    Finding,
    FindingName,
    Fleet,
    Measured,
    Mode,
    Node,
    ObjectRef,
    Plan,
    Proposal,
    Verdict,
)
from rightsizer.prices import PriceList, Prices, PriceSource
from rightsizer.report import FORMS, form
from rightsizer.report.approvals import read_saved_plan
from rightsizer.text import NOT_NOW, count, instant, number, percent, safe, short
from tests.conftest import Golden
from tests.rightsizer.build import AT, idle_usage
from tests.rightsizer.hostile import EVERYTHING
from tests.rightsizer.markup import contents, elements, outline
from tests.rightsizer.reported import WEEK, accounted, empty_plan, full_plan, group

ROOT = Path(__file__).parents[3]
_CLOUD = PriceList(PriceSource("a cloud's list", "2026-07-20", "us-east-1"), {}, {"BM.GPU.H100.8": 10.0})
SEVERAL_SOURCES = Prices("USD", "a list", "2026-11-21", {}, nodes={"a100-b": 3.0}, clouds={"oci": _CLOUD})
VALIDATOR = jsonschema.Draft202012Validator(json.loads((ROOT / "docs/plan.schema.json").read_text()))
FILES = {
    "table": "plan-full.txt",
    "explain": "plan-explained.txt",
    "wide": "plan-wide.txt",
    "json": "plan.json",
    "yaml": "plan.yaml",
    "csv": "plan.csv",
    "markdown": "plan.md",
    "html": "plan.dom",
}


@pytest.mark.parametrize("name", FORMS)
def test_report_each_format_matches_golden_file(name: str, golden: Golden) -> None:
    """Everything that a plan can hold, in every form; the page's own style and script are files of their own."""
    text = form(name)(*accounted(full_plan()))
    text = outline(text) if name == "html" else text
    golden(FILES[name], text.replace("\r\n", "\n"))


@pytest.mark.parametrize("name", FORMS)
def test_report_empty_plan_is_not_an_error(name: str) -> None:
    """An empty plan is told as one, not an error, and to people in words."""
    text = form(name)(*accounted(empty_plan()))
    assert text
    assert ("No workload holds GPUs." in text) is (name in {"table", "explain", "wide", "markdown", "html"})


def test_report_output_flag_lists_all_formats() -> None:
    """The flag lists what there is."""
    assert set(FORMS) == set(FILES)
    for name in FORMS:
        assert parser().parse_args(["plan", "-o", name]).output == name


def test_table_lines_except_commands_fit_80_columns() -> None:
    """Only commands, which are to be copied, are longer."""
    for name in ("table", "explain"):
        long = [line for line in form(name)(*accounted(full_plan())).splitlines() if len(line) > 80]
        assert [line for line in long if "kubectl" not in line] == []


def test_table_command_is_on_its_own_line() -> None:
    """However long it is, so that it can be copied."""
    plan = full_plan()
    command = f"kubectl -n research scale {'x' * 100} --replicas 0"
    plan = dataclasses.replace(plan, decisions=(dataclasses.replace(plan.decisions[0], command=command),))
    assert command in [line.strip() for line in form("explain")(*accounted(plan)).splitlines()]


def test_explained_notice_says_what_follows_and_from_when() -> None:
    """Not only that somebody is noticed."""
    plan = full_plan()
    due = plan.at + datetime.timedelta(hours=4)
    noticed = dataclasses.replace(
        plan.decisions[0],
        mode=Mode.ENFORCE,
        action=Action.NOTICE,
        announced=Action.SCALE_TO_ZERO,
        due=due,
        blockers=(),
    )
    text = form("explain")(*accounted(dataclasses.replace(plan, decisions=(noticed,))))
    words = f"will give notice of scale-to-zero, from {instant(due)}"
    assert "".join(words.split()) in "".join(text.split())


def test_html_report_shared_gpu_explains_missing_chart_line() -> None:
    """The line would be the device's, beside a mean that is the workload's."""
    plan = full_plan()
    first, *others = plan.decisions
    pods = tuple(dataclasses.replace(pod, is_shared=True) for pod in first.workload.pods)
    sharing = dataclasses.replace(first, workload=dataclasses.replace(first.workload, pods=pods))
    assert plan.measured
    keys = {(pod.ref.namespace, pod.ref.name) for pod in pods}
    profiles = {key: line for key, line in plan.measured.profiles.items() if key not in keys}
    measured = dataclasses.replace(plan.measured, profiles=profiles)
    changed = dataclasses.replace(plan, decisions=(sharing, *others), measured=measured)
    assert contents(form("html")(*accounted(changed)), "small").count("whole device only") == 1
    assert "whole device only" not in form("html")(*accounted(plan))


def test_report_autoscaler_manifests_can_be_applied() -> None:
    """In YAML for people, on one line where that is promised; the table says where they are."""
    scaled, hpa = {"kind": "ScaledObject", "x": "<b>"}, {"kind": "HorizontalPodAutoscaler", "y": ["a", "b"]}
    first, *others = full_plan().decisions
    advised = dataclasses.replace(first, autoscalers=Autoscalers(1, 3, scaled, hpa))
    plan = dataclasses.replace(full_plan(), decisions=(advised, *others))
    texts = {name: form(name)(*accounted(plan)) for name in ("explain", "wide", "markdown", "html")}
    assert "manifests for KEDA and for an HPA are in plan -o yaml" in " ".join(texts["explain"].split())
    head, line, *_ = texts["wide"].splitlines()
    assert head.split()[-2:] == ["SCALEDOBJECT", "HPA"]
    assert [json.loads(cell) for cell in line.split("  ") if cell.strip().startswith("{")] == [scaled, hpa]
    blocks = texts["markdown"].split("## Autoscalers")[1].split("\n\n")
    told = [yaml.safe_load(block) for block in blocks if block.startswith("    ")]
    assert told == [scaled, hpa]
    assert "are below" in texts["html"]
    assert "KEDA ScaledObject" in contents(texts["html"], "summary")
    for kind in ("kind: ScaledObject\nx: &lt;b&gt;\n", "kind: HorizontalPodAutoscaler\n"):
        assert f"<pre>{kind}" in texts["html"]


def test_report_hypothetical_plan_is_labelled() -> None:
    """In the table, in Markdown and on the page."""
    plan = dataclasses.replace(full_plan(), hypothetical="objects are from a file")
    for name in ("table", "explain", "markdown", "html"):
        assert "cannot be applied: objects are from a file" in form(name)(*accounted(plan))


def test_apply_hypothetical_plan_is_refused() -> None:
    """Apply refuses it, and says why."""
    plan = dataclasses.replace(full_plan(), hypothetical="it is as of 2026-11-01")
    text = form("json")(*accounted(plan))
    with pytest.raises(
        ConfigurationError, match="hypothetical and cannot be applied: it is as of 2026-11-01"
    ):
        read_saved_plan(text, source="plan.json")
    assert len(read_saved_plan(form("json")(*accounted(full_plan())), source="plan.json").approvals) == 1


def test_report_totals_without_data_omit_hours_and_cost() -> None:
    """No column of hours or money is there to be filled with zeros."""
    plan = dataclasses.replace(full_plan(), measured=None, fleet=None)
    text = form("explain")(*accounted(plan))
    assert "GPU-H" not in text
    assert "USD" not in text
    assert "RECLAIM  APPLY\n" in text


def test_report_unknown_usage_or_cost_is_not_zero() -> None:
    """Neither use nor money of what is not measured or has no price."""
    lines = form("explain")(*accounted(full_plan())).splitlines()
    [line] = [line for line in lines if line.startswith("Tesla-T4")]
    assert line.split() == ["Tesla-T4", "1", "?", "0", "0", "168", "?", "?"]


@pytest.mark.parametrize("name", ["explain", "markdown", "html"])
def test_report_names_each_price_source_with_its_nodes(name: str) -> None:
    """Several sources: the reader sees how much rests on which."""
    text = form(name)(*accounted(full_plan(), SEVERAL_SOURCES))
    words = "Prices in USD per GPU-hour: OpenCost (1 node); a cloud's list, us-east-1, 2026-07-20 (1 node)"
    assert words in " ".join(html.unescape(text).split())


def test_report_document_has_each_price_source_with_its_nodes() -> None:
    """Region and date are null where the source has none."""
    document = json.loads(form("json")(*accounted(full_plan(), SEVERAL_SOURCES)))
    VALIDATOR.validate(document)
    assert document["totals"]["prices"]["sources"] == [
        {"source": "OpenCost", "region": None, "date": None, "nodes": 1, "nodesInOtherRegionsOrSpot": 0},
        {
            "source": "a cloud's list",
            "region": "us-east-1",
            "date": "2026-07-20",
            "nodes": 1,
            "nodesInOtherRegionsOrSpot": 0,
        },
    ]


def test_csv_report_follows_rfc_4180() -> None:
    """Lines end in CR LF, and all have the header's number of cells."""
    text = form("csv")(*accounted(full_plan()))
    assert text.endswith("\r\n")
    assert "\n" not in text.replace("\r\n", "")
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert {len(row) for row in rows} == {len(rows[0])}
    assert len(rows) == 1 + len(full_plan().decisions)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (-0.001, "0"),
        (2.0, "2"),
        (0.125, "0.12"),
        (12.34, "12.3"),
        (1234.5, "1,234"),
        (-3.5, "-3.5"),
    ],
)
def test_format_number_keeps_only_significant_digits(value: float, words: str) -> None:
    """Digits that say something, and no others."""
    assert number(value) == words


@pytest.mark.parametrize(
    ("value", "words"), [(999_998.0, "999,998"), (999_999.9, "1.0M"), (16_800_000, "16.8M"), (7, "7")]
)
def test_format_number_large_value_fits_7_characters(value: float, words: str) -> None:
    """Seven characters at most."""
    assert short(value) == words


@pytest.mark.parametrize(
    ("ratio", "words"), [(None, "?"), (0.0, "0%"), (0.0001, "<0.1%"), (0.183, "18.3%"), (1.0, "100%")]
)
def test_format_number_nonzero_never_shows_zero(ratio: float | None, words: str) -> None:
    """A little activity is told from none, and none from what is not known."""
    assert percent(ratio) == words


# --- random plans

_WORDS = st.sampled_from(EVERYTHING) | st.text(max_size=12) | st.just("plain")
_RATIO = st.none() | st.floats(0, 1)
_AMOUNT = st.none() | st.floats(0, 1e12)


@st.composite
def _proposals(draw: st.DrawFn) -> Proposal:
    return Proposal(
        draw(st.sampled_from(Action)),
        draw(st.floats(-64, 64)),
        draw(_WORDS),
        draw(st.none() | st.integers(0, 99)),
        draw(st.none() | st.integers(0, 8)),
        tuple(draw(st.dictionaries(_WORDS, st.integers(1, 99), max_size=2)).items()),
        tuple(draw(st.lists(_WORDS, max_size=2))),
    )


@st.composite
def _findings(draw: st.DrawFn) -> Finding:
    return Finding(
        draw(st.sampled_from(FindingName)),
        draw(st.sampled_from(Verdict)),
        tuple(draw(st.lists(_WORDS, min_size=1, max_size=4))),
        draw(st.floats(0, 1)),
        busy_gpus=draw(st.none() | st.integers(0, 8)),
        activity_mean=draw(_RATIO),
        activity_peak=draw(_RATIO),
        memory_peak_bytes=draw(_AMOUNT),
        power_mean_w=draw(_AMOUNT),
        power_peak_w=draw(_AMOUNT),
        idle_s=draw(_AMOUNT),
        longest_return_s=draw(_AMOUNT),
        confidence=draw(st.sampled_from(Confidence)),
        proposal=draw(st.none() | _proposals()),
        window=draw(st.none() | st.just(WEEK)),
    )


@st.composite
def _decisions(draw: st.DrawFn, number: int) -> Decision:
    namespace = draw(_WORDS)
    item = group(
        f"{number}",
        namespace,
        pods=draw(st.integers(0, 2)),
        devices=draw(st.integers(0, 8)),
        priority_class=draw(_WORDS),
        node=draw(st.sampled_from(["n", "gone", ""])),
    )
    ref = dataclasses.replace(
        item.ref, name=f"{draw(_WORDS)}{number}", kind=draw(_WORDS), uid=f"uid-{number}"
    )
    return Decision(
        dataclasses.replace(item, ref=ref, gang=draw(_WORDS)),
        draw(_findings()),
        draw(st.sampled_from(Verdict)),
        draw(_WORDS),
        draw(st.sampled_from(Mode)),
        draw(st.none() | st.sampled_from(Action)),
        tuple(
            Blocker(BlockerCode.PROTECTED, draw(_WORDS), source=draw(_WORDS))
            for _ in range(draw(st.integers(0, 2)))
        ),
        tuple(draw(st.lists(_findings(), max_size=3))),
        tuple(
            Blocker(draw(st.sampled_from(sorted(NOT_NOW))), draw(_WORDS))
            for _ in range(draw(st.integers(0, 2)))
        ),
        draw(st.just("") | _WORDS),
        draw(st.floats(-8, 8)),
    )


@st.composite
def _plans(draw: st.DrawFn) -> Plan:
    decisions = tuple(draw(_decisions(number)) for number in range(draw(st.integers(0, 4))))
    keys = [(one.ref.namespace, one.ref.name) for each in decisions for one in each.workload.pods]
    usages = {
        key: tuple(idle_usage(n, activity_mean=draw(_RATIO)) for n in range(draw(st.integers(0, 2))))
        for key in keys
    }
    profiles = {key: draw(st.lists(_RATIO, max_size=4)) * draw(st.sampled_from([1, 50])) for key in keys}
    nodes = {"n": Node("n", draw(_WORDS), 8, pool=draw(_WORDS), instance_type="x")}
    return Plan(
        AT,
        draw(_WORDS),
        draw(_WORDS),
        draw(_WORDS),
        decisions,
        draw(st.none() | st.just(Fleet(tuple(one.workload for one in decisions), nodes, {}))),
        draw(st.none() | st.just(Measured(AT, {WEEK: usages}, profiles=profiles))),
        draw(st.just("") | _WORDS),
        tuple(draw(st.lists(_WORDS, max_size=2))),
    )


def _refs(plan: Plan) -> list[ObjectRef]:
    return [decision.workload.ref for decision in plan.decisions]


def _in_json(text: str, plan: Plan) -> bool:
    document = json.loads(text)
    VALIDATOR.validate(document)
    return [item["uid"] for item in document["items"]] == [ref.uid for ref in _refs(plan)]


def _in_yaml(text: str, plan: Plan) -> bool:
    same: bool = yaml.load(text, yaml.CSafeLoader) == json.loads(form("json")(*accounted(plan)))
    return same


def _in_csv(text: str, plan: Plan) -> bool:
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    return [row["uid"] for row in rows] == [ref.uid for ref in _refs(plan)]


def _in_table(text: str, plan: Plan) -> bool:
    heads = re.findall(
        r"(?m)^(?:APPLY|BLOCKED|ADVICE|UNKNOWN|KEEP|PROTECTED)[A-Z ]*\((\d+)\) +(?:FREES|GPUS)  FINDING", text
    )
    return sum(map(int, heads)) == len(plan.decisions)


def _explained(text: str, plan: Plan) -> bool:
    lines = itertools.dropwhile(lambda line: not line.startswith("VERDICT  "), text.splitlines())
    items = itertools.takewhile(lambda line: not line.startswith("TOTAL  "), lines)
    heads = [line for line in items if re.match(r"(act|keep|protected|unknown) +\d+  ", line)]
    return len(heads) == len(plan.decisions)


def _in_markdown(text: str, plan: Plan) -> bool:
    part = text.partition("\n## Workloads\n")[2]
    rows = itertools.takewhile(lambda line: line.startswith("|"), part.strip().splitlines()[2:])
    return len(list(rows)) == len(plan.decisions)


def _in_html(text: str, plan: Plan) -> bool:
    names = [attributes["data-name"] for tag, attributes in elements(text) if "data-name" in attributes]
    return names == [safe(str(ref)) for ref in _refs(plan)]


_ONCE = {
    "table": _in_table,
    "explain": _explained,
    "wide": lambda text, plan: len(text.splitlines()) == 1 + len(plan.decisions),
    "json": _in_json,
    "yaml": _in_yaml,
    "csv": _in_csv,
    "markdown": _in_markdown,
    "html": _in_html,
}


@hypothesis.given(_plans())
def test_report_any_workload_is_listed_once_per_format(plan: Plan) -> None:
    """Whatever the names and numbers are: nothing raises, all of it can be encoded, and twice is the same.

    What is for a terminal holds nothing that one would obey.
    """
    for name in FORMS:
        text = form(name)(*accounted(plan))
        assert text.encode()
        assert _ONCE[name](text, plan), name
        assert form(name)(*accounted(plan)) == text
        if name in {"table", "explain", "wide", "json", "yaml"}:
            assert text.replace("\n", "").isprintable()


def test_format_count_uses_singular_and_plural() -> None:
    """One GPU, two GPUs."""
    assert (count(1), count(2), count(0, "pod")) == ("1 GPU", "2 GPUs", "0 pods")
