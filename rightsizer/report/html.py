"""A plan as one self-contained HTML page: totals, charts, every workload with its evidence.

Its Content-Security-Policy lets nothing in but its own style and script, which it names by their hashes, so that even
a name that found a way through the escaping could load, send and run nothing.
"""

import base64
import functools
import hashlib
import importlib.resources
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rightsizer.model import FindingName, Plan, Verdict
from rightsizer.planning.cost_summary import Account, Accounts
from rightsizer.prices import Prices
from rightsizer.report.charts import bar
from rightsizer.report.html_elements import Markup, element, join, raw, text
from rightsizer.report.html_workloads import workloads_table
from rightsizer.report.rows import Row, rows_of
from rightsizer.report.table import hypothetical_words, verdict_words
from rightsizer.report.totals import (
    ROWS,
    Totals,
    remarks,
    stranded_lines,
    stranded_words,
    totals_of,
    used_share,
)
from rightsizer.text import count, money, number, percent


def plan_html(plan: Plan, accounts: Accounts, prices: Prices) -> str:
    """The page; it needs no network, no server and no file beside it."""
    rows = rows_of(plan, prices)
    style, script = _asset("page.css"), _asset("page.js")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_security(style, script)),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"GPU plan of {plan.at:%Y-%m-%d %H:%M} UTC"),
        raw("style", style),
    )
    body = element(
        "body",
        _header(plan, accounts, prices),
        element("main", *_sections(plan, accounts, prices, rows)),
        raw("script", script),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


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


def _header(plan: Plan, accounts: Accounts, prices: Prices) -> Markup:
    words = f"{plan.at:%Y-%m-%d %H:%M:%S} UTC; policy {plan.policy_source}; run {plan.run}"
    warning = hypothetical_words(plan)
    return element(
        "header",
        element("h1", "GPU plan"),
        element("p", words, class_="soft"),
        element("p", warning, class_="warning") if warning else "",
        element("div", *_tiles(accounts, prices), class_="tiles"),
        element("p", verdict_words(plan)),
    )


def _tiles(accounts: Accounts, prices: Prices) -> Iterator[Markup]:
    total = accounts.total
    yield _tile(number(total.gpus), f"GPUs held by {count(total.workloads, 'workload')}")
    if accounts.window:
        yield _tile(percent(used_share(total)), "used, by mean activity")
    yield _tile(number(total.reclaimable), "GPUs that could be freed")
    yield _tile(number(total.enforced), "GPUs that applying this plan frees")
    if total.cost_per_hour:
        yield _tile(money(total.cost_per_hour), f"{prices.currency} per hour for what is held")
        yield _tile(money(total.wasted_per_hour), f"{prices.currency} of that for what is not used")


def _tile(value: str, words: str) -> Markup:
    return element("div", element("b", value), element("span", words), class_="tile")


def _sections(plan: Plan, accounts: Accounts, prices: Prices, rows: Sequence[Row]) -> Iterator[Markup]:
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
        yield element("div", *map(_total_card, totals_of(accounts, prices)), class_="cards")
        yield from (element("p", words, class_="note") for words in remarks(accounts, prices))
    yield from _free(plan)
    if plan.problems:
        yield element("h2", "Problems")
        yield element("ul", *(element("li", problem) for problem in plan.problems))


def _charts(accounts: Accounts) -> Iterator[Markup]:
    if accounts.total.gpu_hours_held <= 0:
        return
    yield element("h2", "Held against used")
    parts = {"By class": accounts.by_class, "By namespace": accounts.by_namespace}
    yield element("div", *(_chart(title, part) for title, part in parts.items()), class_="cards")


def _chart(title: str, parts: Mapping[str, Account]) -> Markup:
    largest = sorted(parts.items(), key=lambda part: (-part[1].gpu_hours_held, part[0]))
    longest = max((account.gpu_hours_held for account in parts.values()), default=0.0)
    cells = [
        cell
        for name, account in largest[:ROWS]
        for cell in (
            element("span", name),
            bar(account, longest),
            element(
                "span", f"{number(account.gpu_hours_held)} h, {percent(used_share(account))}", class_="number"
            ),
        )
    ]
    left = len(largest) - ROWS
    more = [element("p", f"and {left} more", class_="note")] if left > 0 else []
    legend = element("div", *map(_key, ("used", "held", "unknown")), class_="legend")
    return element(
        "div", element("h3", title), element("div", *cells, class_="bars"), *more, legend, class_="card"
    )


_LEGEND = {"used": "GPU-hours used", "held": "held, not used", "unknown": "not measured"}


def _key(name: str) -> Markup:
    swatch = element("svg", element("rect", class_=name, width="100%", height="100%"), aria_hidden="true")
    return element("span", swatch, _LEGEND[name])


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


def _total_card(table: Totals) -> Markup:
    heads = (element("th", name, class_="number", scope="col") for name in table.head)
    lines = (
        element(
            "tr",
            element("th", name, scope="row"),
            *(element("td", cell, class_="number") for cell in cells),
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


def _free(plan: Plan) -> Iterator[Markup]:
    shown, more, unwanted = stranded_lines(plan)
    lines = [
        element("li", f"{one.free} {one.resource} on {one.node}: {stranded_words(one)}") for one in shown
    ]
    if more:
        lines.append(element("li", f"and on {count(more, 'node')} more"))
    if unwanted:
        lines.append(element("li", f"{count(unwanted)} free that nothing waits for"))
    if lines:
        yield join(element("h2", "Free GPUs"), element("ul", *lines))
