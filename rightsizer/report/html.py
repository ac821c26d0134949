"""A plan as one self-contained HTML page: totals, charts, every workload with its evidence. Pure.

The Content-Security-Policy allows only the page's own style and script, by hash. Even a name that got through the
escaping could load, send and run nothing.
"""

import base64
import functools
import hashlib
import importlib.resources
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rightsizer.config import format_duration
from rightsizer.model import FindingName, Plan, Verdict
from rightsizer.planning.cost_summary import CostSummary, CostTotals
from rightsizer.prices import Prices
from rightsizer.report.charts import Markup, Profiles, bar, element, join, legend, line, profile_of, raw, text
from rightsizer.report.documents import manifests
from rightsizer.report.rows import (
    ROWS,
    Row,
    Totals,
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
from rightsizer.text import count, gpus_number, memory, money, number, percent, power, span


def plan_html(plan: Plan, accounts: CostSummary, prices: Prices) -> str:
    """The page; it needs no network, no server and no file beside it."""
    rows = rows_of(plan, prices)
    return page(
        f"GPU plan of {plan.at:%Y-%m-%d %H:%M} UTC",
        _header(plan, accounts, prices),
        element("main", *_sections(plan, accounts, prices, rows)),
    )


def page(title: str, *body: Markup) -> str:
    """A whole page with its style."""
    style, script = _asset("page.css"), _asset("page.js")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_security(style, script)),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        raw("style", style),
    )
    return f"<!doctype html>\n{element('html', head, element('body', *body, raw('script', script)), lang='en')}\n"


@functools.cache
def _asset(name: str) -> str:
    return importlib.resources.files("rightsizer.report").joinpath("assets", name).read_text("utf-8")


def _security(style: str, script: str) -> str:
    """Content Security Policy Level 3, by hashes: https://www.w3.org/TR/CSP3/ ."""
    sources = {"style-src": style, "script-src": script}
    hashes = (f"{name} 'sha256-{_hash(content)}'" for name, content in sources.items())
    return "; ".join(("default-src 'none'", *hashes, "base-uri 'none'", "form-action 'none'"))


def _hash(content: str) -> str:
    return base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _header(plan: Plan, accounts: CostSummary, prices: Prices) -> Markup:
    words = f"{plan.at:%Y-%m-%d %H:%M:%S} UTC; policy {plan.policy_source}; run {plan.run}"
    warning = hypothetical_words(plan)
    return element(
        "header",
        element("h1", "GPU plan"),
        element("p", element("b", " ".join(headline(plan, accounts, prices)))) if plan.decisions else "",
        element("p", cluster_words(plan)),
        element("p", filter_words(plan)) if plan.filter else "",
        element("p", words, class_="soft"),
        element("p", warning, class_="warning") if warning else "",
        element("div", *_tiles(accounts, prices), class_="tiles"),
        element("p", verdict_words(plan)),
    )


def _tiles(accounts: CostSummary, prices: Prices) -> Iterator[Markup]:
    total = accounts.total
    yield tile(gpus_number(total.gpus), f"GPUs held by {count(total.workloads, 'workload')}")
    if accounts.window:
        yield tile(percent(used_share(total)), "used, by mean activity")
    yield tile(gpus_number(total.reclaimable), "GPUs that could be freed")
    yield tile(gpus_number(total.enforced), "GPUs that applying this plan frees")
    if total.cost_per_hour:
        yield tile(money(total.cost_per_hour), f"{prices.currency} per hour for what is held")
        yield tile(money(total.wasted_per_hour), f"{prices.currency} of that for what is not used")


def tile(value: str, words: str) -> Markup:
    """A figure with its meaning."""
    return element("div", element("b", value), element("span", words), class_="tile")


def _sections(plan: Plan, accounts: CostSummary, prices: Prices, rows: Sequence[Row]) -> Iterator[Markup]:
    if rows:
        yield from _charts(accounts)
        yield element("h2", "Workloads")
        yield _controls(rows)
        yield element(
            "div",
            workloads_table(rows, plan.measured.profiles if plan.measured else {}, prices),
            class_="card",
        )
        yield element("h2", "Totals")
        yield element("div", *map(total_card, totals_of(accounts, prices)), class_="cards")
        yield from (element("p", words, class_="note") for words in remarks(accounts, prices))
    yield from _listed("Nodes", node_lines(plan, prices))
    yield from _listed("Free GPUs", stranded_lines(plan))
    yield from _listed("Problems", plan.problems)


def _charts(accounts: CostSummary) -> Iterator[Markup]:
    if accounts.total.gpu_hours_held <= 0:
        return
    yield element("h2", "Held against used")
    parts = {"By class": accounts.by_class, "By namespace": accounts.by_namespace}
    yield element("div", *(_chart(title, part) for title, part in parts.items()), class_="cards")


def _chart(title: str, parts: Mapping[str, CostTotals]) -> Markup:
    largest = sorted(parts.items(), key=lambda part: (-part[1].gpu_hours_held, part[0]))
    longest = max((account.gpu_hours_held for account in parts.values()), default=0.0)
    cells = [
        cell
        for name, account in largest[:ROWS]
        for cell in (
            element("span", name),
            bar(account.gpu_hours_held, account.gpu_hours_used, account.gpu_hours_unknown, longest),
            element(
                "span", f"{number(account.gpu_hours_held)} h, {percent(used_share(account))}", class_="number"
            ),
        )
    ]
    left = len(largest) - ROWS
    more = [element("p", f"and {left} more", class_="note")] if left > 0 else []
    return element(
        "div", element("h3", title), element("div", *cells, class_="bars"), *more, legend(), class_="card"
    )


def _controls(rows: Sequence[Row]) -> Markup:
    verdicts = {row.decision.verdict for row in rows}
    findings = {row.finding.name for row in rows}
    return element(
        "div",
        element(
            "input", id="search", type="search", placeholder="namespace, kind or name", aria_label="search"
        ),
        _select("verdict", "any verdict", (one for one in Verdict if one in verdicts)),
        _select("finding", "any finding", (one for one in FindingName if one in findings)),
        element("span", id="shown", class_="soft", aria_live="polite"),
        id="controls",
        hidden="",
    )


def _select(name: str, default: str, values: Iterable[str]) -> Markup:
    options = (element("option", str(value), value=str(value)) for value in values)
    return element("select", element("option", default, value=""), *options, id=name, aria_label=name)


def total_card(table: Totals) -> Markup:
    """A table of totals."""
    heads = (element("th", name, class_="number", scope="col") for name in table.head)
    lines = (
        element(
            "tr", element("th", name, scope="row"), *(element("td", cell, class_="number") for cell in cells)
        )
        for name, cells in table.rows
    )
    grid = element(
        "table",
        element("thead", element("tr", element("th", table.title, scope="col"), *heads)),
        element("tbody", *lines),
        class_="totals",
    )
    more = element("p", f"and {table.more} more", class_="note") if table.more else text("")
    return element("div", element("div", grid, class_="scroll"), more, class_="card")


def _listed(title: str, lines: Sequence[str]) -> Iterator[Markup]:
    if lines:
        yield join(element("h2", title), element("ul", *(element("li", line) for line in lines)))


_CHIPS = {Verdict.ACT: "act", Verdict.KEEP: "keep", Verdict.PROTECTED: "protected", Verdict.UNKNOWN: "unsure"}
_FEW = 2


def workloads_table(rows: Sequence[Row], profiles: Profiles, prices: Prices) -> Markup:
    """Every workload once."""
    lines = [profile_of(row.decision.workload, profiles) for row in rows]
    has_prices = any(row.cost_per_hour is not None for row in rows)
    heads = _heads(prices.currency)
    shown = {
        key: head
        for key, head in heads.items()
        if (has_prices or key != "cost") and (any(lines) or key != "line")
    }
    head = element("thead", element("tr", *(_head(key, words) for key, words in shown.items())))
    bodies = (_body(row, line(profile), shown) for row, profile in zip(rows, lines, strict=True))
    return element("table", head, *bodies, class_="workloads")


def _heads(currency: str) -> Mapping[str, str]:
    return {
        "name": "workload",
        "verdict": "verdict",
        "gpus": "GPUs",
        "line": "activity",
        "mean": "mean",
        "frees": "action",
        "cost": f"{currency}/h",
    }


_NUMBERS = frozenset({"gpus", "mean", "cost"})


def _head(key: str, words: str) -> Markup:
    label = words if key == "line" else element("button", words, type="button", data_key=key)
    return element("th", label, scope="col", class_="number" if key in _NUMBERS else None)


def _body(row: Row, drawn: Markup, shown: Mapping[str, str]) -> Markup:
    decision, finding = row.decision, row.finding
    cells = _cells(row, drawn, shown)
    more = element("td", _details(row), class_="more", colspan=len(shown))
    return element(
        "tbody",
        element("tr", *(cells[key] for key in shown)),
        element("tr", more),
        data_name=str(decision.workload.ref),
        data_verdict=decision.verdict.value,
        data_finding=finding.name.value,
        data_gpus=decision.workload.gpus,
        data_mean=-1 if finding.activity_mean is None else finding.activity_mean,
        data_frees=row.frees,
        data_cost=-1 if row.cost_per_hour is None else row.cost_per_hour,
    )


def _cells(row: Row, drawn: Markup, shown: Mapping[str, str]) -> Mapping[str, Markup]:
    decision, finding = row.decision, row.finding
    ref = decision.workload.ref
    place = ", ".join(part for part in (ref.kind, decision.workload.priority_class, row.model) if part)
    chip = element("span", decision.verdict.value, class_=f"chip {_CHIPS[decision.verdict]}")
    words = finding.name.value + (f", {row.confidence} confidence" if row.confidence else "")
    notes = [f"frees {gpus_number(row.frees)}"] if row.action and row.frees else []
    if decision.verdict is Verdict.ACT and not decision.is_enforced:
        notes.append("blocked for now" if decision.is_blocked else "advice only")
    cost = "" if row.cost_per_hour is None else money(row.cost_per_hour)
    return {
        "name": element(
            "td", element("b", f"{ref.namespace}/{ref.name}"), element("small", place), class_="name"
        ),
        "verdict": element("td", chip, element("small", words)),
        "gpus": element("td", gpus_number(decision.workload.gpus), class_="number", data_head="GPUs"),
        "line": element("td", drawn or _why_no_line(row)),
        "mean": element("td", percent(finding.activity_mean), class_="number", data_head="mean"),
        "frees": element(
            "td", row.action, element("small", ", ".join(notes)) if notes else "", class_="action"
        ),
        "cost": element("td", cost, class_="number", data_head=shown.get("cost") if cost else None),
    }


def _why_no_line(row: Row) -> Markup:
    """Activity was measured, but on a shared GPU it is not known to be this workload's."""
    is_shared = any(pod.is_shared for pod in row.decision.workload.pods)
    is_measured = row.finding.activity_mean is not None
    return element("small", "whole device only") if is_shared and is_measured else Markup()


def _details(row: Row) -> Markup:
    """The first sentence is the summary; the rest, the numbers and the command are inside."""
    words = tuple(_reason_lines(row))
    parts = [element("ul", *(element("li", one) for one in words[1:]))]
    if row.decision.command:
        parts.append(element("pre", row.decision.command))
    parts += [
        element("details", element("summary", title), element("pre", _block(lines)))
        for title, lines in manifests(row.decision)
    ]
    parts.append(element("p", "; ".join(_numbers(row)), class_="note"))
    return element("details", element("summary", words[0] if words else row.finding.name.value), *parts)


def _block(lines: Sequence[str]) -> Markup:
    return join(*(part for line in lines for part in (line, Markup("\n"))))


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
