"""A plan as one self-contained HTML page: totals, charts, every workload with its evidence. Pure.

The Content-Security-Policy allows only the page's own style and script, by hash. Even a name that got through the
escaping could load, send and run nothing.
"""

import base64
import functools
import hashlib
import importlib.resources
from collections.abc import Iterator, Mapping, Sequence

import jinja2
import markupsafe

from rightsizer.config import format_duration
from rightsizer.model import FindingName, Plan, Verdict
from rightsizer.planning.cost_summary import CostSummary, CostTotals
from rightsizer.prices import Prices
from rightsizer.report.charts import Bar, bar, line, profile_of
from rightsizer.report.documents import manifests
from rightsizer.report.rows import (
    ROWS,
    Row,
    cluster_words,
    filter_words,
    headline,
    node_lines,
    remarks,
    rows_of,
    stranded_lines,
    totals_of,
    used_share,
)
from rightsizer.report.table import hypothetical_words, verdict_words
from rightsizer.text import count, gpus_number, memory, money, number, percent, power, safe, span


def rendered(template: str, title: str, *, package: str = __package__, **values: object) -> str:
    """A page by a template of a package: all values become text, without control characters."""
    style, script = _asset("page.css"), _asset("page.js")
    security = _security(style=style, script=script)
    page = _environment(package).get_template(template)
    return page.render(title=title, style=style, script=script, security=security, **values)


@functools.cache
def _environment(package: str) -> jinja2.Environment:
    loaders = [jinja2.PackageLoader(name) for name in dict.fromkeys((package, __package__))]
    made = jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders),
        autoescape=True,
        finalize=_text,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(percent=percent, money=money, gpus=gpus_number, figure=_figure)
    return made


def _text(value: object) -> str:
    return value if isinstance(value, markupsafe.Markup) else safe(str(value))


def _figure(value: float | None) -> str:
    """A number for the page's script, which sorts by it."""
    return "-1" if value is None else f"{value:.6g}"


@functools.cache
def _asset(name: str) -> markupsafe.Markup:
    content = importlib.resources.files(__package__).joinpath("assets", name).read_text("utf-8")
    return markupsafe.Markup(content)  # noqa: S704 - a file of this package


def _security(*, style: str, script: str) -> str:
    """Content Security Policy Level 3, by hashes: https://www.w3.org/TR/CSP3/ ."""
    sources = {"style-src": style, "script-src": script}
    hashes = (f"{name} 'sha256-{_hash(content)}'" for name, content in sources.items())
    return "; ".join(("default-src 'none'", *hashes, "base-uri 'none'", "form-action 'none'"))


def _hash(content: str) -> str:
    return base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def plan_html(plan: Plan, accounts: CostSummary, prices: Prices) -> str:
    """The page; it needs no network, no server and no file beside it."""
    rows = rows_of(plan, prices)
    profiles = plan.measured.profiles if plan.measured else {}
    lines = [line(profile_of(row.decision.workload, profiles)) for row in rows]
    verdicts = {row.decision.verdict for row in rows}
    findings = {row.finding.name for row in rows}
    return rendered(
        "plan.html",
        f"GPU plan of {plan.at:%Y-%m-%d %H:%M} UTC",
        headline=" ".join(headline(plan, accounts, prices)),
        about=(cluster_words(plan), filter_words(plan)),
        made=f"{plan.at:%Y-%m-%d %H:%M:%S} UTC; policy {plan.policy_source}; run {plan.run}",
        warning=hypothetical_words(plan),
        tiles=_tiles(accounts, prices),
        verdicts=verdict_words(plan),
        charts=tuple(_charts(accounts)),
        choices={
            "verdict": [verdict for verdict in Verdict if verdict in verdicts],
            "finding": [name for name in FindingName if name in findings],
        },
        heads=_heads(rows, prices, has_lines=any(lines)),
        chips=_CHIPS,
        rows=tuple(zip(rows, lines, strict=True)),
        has_device_line=_has_device_line,
        place=_place,
        notes=_notes,
        reasons=lambda row: tuple(_reason_lines(row)),
        numbers=_numbers,
        manifests=manifests,
        totals=totals_of(accounts, prices),
        remarks=remarks(accounts, prices),
        nodes=node_lines(plan, prices),
        stranded=stranded_lines(plan),
        problems=plan.problems,
    )


def _tiles(accounts: CostSummary, prices: Prices) -> Iterator[tuple[str, str]]:
    total = accounts.total
    yield gpus_number(total.gpus), f"GPUs held by {count(total.workloads, 'workload')}"
    if accounts.window:
        yield percent(used_share(total)), "used, by mean activity"
    yield gpus_number(total.reclaimable), "GPUs that could be freed"
    yield gpus_number(total.enforced), "GPUs that applying this plan frees"
    if total.cost_per_hour:
        yield money(total.cost_per_hour), f"{prices.currency} per hour for what is held"
        yield money(total.wasted_per_hour), f"{prices.currency} of that for what is not used"


def _charts(accounts: CostSummary) -> Iterator[tuple[str, Sequence[Bar], int]]:
    """GPU-hours held and used of each part, and how many parts are left out."""
    if accounts.total.gpu_hours_held <= 0:
        return
    for title, parts in (("By class", accounts.by_class), ("By namespace", accounts.by_namespace)):
        largest = sorted(parts.items(), key=lambda part: (-part[1].gpu_hours_held, part[0]))
        bars = [_bar(*part, longest=largest[0][1].gpu_hours_held) for part in largest[:ROWS]]
        yield title, bars, max(0, len(largest) - ROWS)


def _bar(name: str, account: CostTotals, *, longest: float) -> Bar:
    held = account.gpu_hours_held
    drawn = bar(held, account.gpu_hours_used, account.gpu_hours_unknown, longest)
    return name, drawn, f"{number(held)} h, {percent(used_share(account))}"


_CHIPS = {Verdict.ACT: "act", Verdict.KEEP: "keep", Verdict.PROTECTED: "protected", Verdict.UNKNOWN: "unsure"}
_FEW = 2


def _heads(rows: Sequence[Row], prices: Prices, *, has_lines: bool) -> Mapping[str, str]:
    line_head = {"line": "activity"} if has_lines else {}
    cost = {"cost": f"{prices.currency}/h"} if any(row.cost_per_hour is not None for row in rows) else {}
    first = {"name": "workload", "verdict": "verdict", "gpus": "GPUs"}
    return {**first, **line_head, "mean": "mean", "frees": "action", **cost}


def _place(row: Row) -> str:
    workload = row.decision.workload
    return ", ".join(filter(None, (workload.ref.kind, workload.priority_class, row.model)))


def _notes(row: Row) -> str:
    decision = row.decision
    notes = [f"frees {gpus_number(row.frees)}"] if row.action and row.frees else []
    if decision.verdict is Verdict.ACT and not decision.is_enforced:
        notes.append("blocked for now" if decision.is_blocked else "advice only")
    return ", ".join(notes)


def _has_device_line(row: Row) -> bool:
    """Whether its activity was measured, but only that of a whole GPU, which it shares."""
    is_shared = any(pod.is_shared for pod in row.decision.workload.pods)
    is_measured = row.finding.activity_mean is not None
    return is_shared and is_measured


def _reason_lines(row: Row) -> Iterator[str]:
    finding = row.finding
    yield from finding.words
    if row.proposal:
        yield f"proposal: {row.proposal}"
    yield from row.obstacles
    yield from filter(None, [row.advice])
    for other in row.decision.also:
        first = (other.proposal.words,) if other.proposal else other.words[:1]
        yield f"also: {': '.join((other.name.value, *first))}"
    for manager in row.decision.workload.managers:
        name = f"{manager.kind} {manager.name}".strip()
        yield f"managed by {name}{', which reverts changes' if manager.reverts else ''}"


def _numbers(row: Row) -> Iterator[str]:
    decision, finding = row.decision, row.finding
    yield f"rule {decision.rule}, mode {decision.mode.value}, priority {decision.workload.priority}"
    yield f"activity mean {percent(finding.activity_mean)}, peak {percent(finding.activity_peak)}"
    yield f"memory peak {memory(finding.memory_peak_bytes)}"
    yield f"power mean {power(finding.power_mean_w)}, peak {power(finding.power_peak_w)}"
    yield f"coverage {percent(finding.coverage)}"
    if finding.window:
        yield f"window {format_duration(finding.window.total_seconds())}"
    if finding.idle_s is not None:
        yield f"idle for {span(finding.idle_s)}"
    if finding.longest_return_s is not None:
        yield f"came back after at most {span(finding.longest_return_s)}"
    if decision.workload.gang:
        yield f"gang {decision.workload.gang}"
    if row.pool:
        yield f"node pool {row.pool}"
    if row.nodes:
        few = ", ".join(row.nodes[:_FEW])
        left = len(row.nodes) - _FEW
        yield f"on {few}" + (f" and {left} more" if left > 0 else "")
