"""A plan as Markdown, for issues, merge requests and wikis. Pure.

Names and reasons in a cluster are not trusted: nothing in them becomes a table's edge, markup, HTML or a
link.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from rightsizer.model import Plan, Verdict
from rightsizer.planning.cost_summary import CostSummary
from rightsizer.prices import Prices
from rightsizer.report.documents import manifests
from rightsizer.report.rows import (
    Row,
    cluster_words,
    filter_words,
    headline,
    node_lines,
    remarks,
    rows_of,
    stranded_lines,
    totals_of,
)
from rightsizer.report.table import applying_words, verdict_words
from rightsizer.report.terminal import Table
from rightsizer.text import gpus_number, percent, safe

_ACTIVE = str.maketrans({char: f"&#{ord(char)};" for char in "\\`*_[]<>&|~#@$"})
"""Characters that Markdown, its tables or its extensions could take for more than themselves."""

_ITEM = re.compile(r"^([0-9]*)([-+.)](?=\s|$)|(?<![0-9])\s)")
"""Beginning of an item of a list, or of a block of code, at the beginning of a line."""

_CODE_BREAKS = frozenset("\\`|")
"""Characters that are not allowed between backticks in a table cell."""


def plan_markdown(plan: Plan, accounts: CostSummary, prices: Prices) -> str:
    """Summary, totals, and each workload on a row; the commands follow as a block."""
    rows = rows_of(plan, prices)
    parts = [
        [f"# GPU plan of {plan.at:%Y-%m-%d %H:%M:%S} UTC"],
        [
            escaped(" ".join(headline(plan, accounts, prices))),
            escaped(filter_words(plan)),
            verdict_words(plan),
            escaped(applying_words(plan)),
        ],
        [f"{escaped(cluster_words(plan))}. Policy: {escaped(plan.policy_source)}; run {escaped(plan.run)}."],
        *([list(map(escaped, remarks(accounts, prices)))] if rows else []),
        *([table_markdown(part)] for part in totals_of(accounts, prices) if rows),
        ["## Workloads"] if rows else [],
        [_grid(_HEAD, map(_cells, rows), numbers=_NUMBERS)] if rows else [],
        list(_commands(rows)),
        list(_autoscalers(rows)),
        _listed("## Nodes", node_lines(plan, prices)),
        _listed("## Free GPUs", stranded_lines(plan)),
        _listed("## Problems", plan.problems),
    ]
    return "\n\n".join(block for part in parts for block in part if block) + "\n"


_HEAD = ("verdict", "GPUs", "workload", "class", "finding", "mean", "action", "rule", "why")
_NUMBERS = frozenset({"GPUs", "mean"})


def _cells(row: Row) -> Iterator[str]:
    decision, finding = row.decision, row.finding
    proposal = filter(None, [row.proposal])
    also = (f"also: {other.name.value}" for other in decision.also)
    yield f"**{decision.verdict.value}**" if decision.verdict is Verdict.ACT else decision.verdict.value
    yield gpus_number(decision.workload.gpus)
    yield _code(str(decision.workload.ref))
    yield escaped(decision.workload.priority_class)
    yield finding.name.value + (f" ({row.confidence} confidence)" if row.confidence else "")
    yield percent(finding.activity_mean).replace("<", "&lt;")
    yield row.action + (f" (frees {gpus_number(row.frees)})" if row.action and row.frees else "")
    yield escaped(decision.rule)
    yield "; ".join(map(escaped, (*finding.words, *proposal, *row.obstacles, *also)))


def table_markdown(content: Table) -> str:
    """A table of names and figures."""
    head = tuple(map(escaped, content.head))
    text = _grid(head, (map(escaped, row) for row in content.rows), numbers=frozenset(head[1:]))
    return f"{text}\n\nand {content.more} more" if content.more else text


def _grid(head: Sequence[str], rows: Iterable[Iterable[str]], *, numbers: frozenset[str]) -> str:
    rules = ["---:" if name in numbers else "---" for name in head]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rules, *rows))


def _commands(rows: Sequence[Row]) -> Iterator[str]:
    """An indented block ends at nothing that a line can hold, unlike a fenced one."""
    commands = [safe(row.decision.command) for row in rows if row.decision.command]
    if commands:
        yield "## By hand"
        yield "\n".join(f"    {command}" for command in commands)


def _autoscalers(rows: Sequence[Row]) -> Iterator[str]:
    """Either of the two would do; blocks as above."""
    advised = [row for row in rows if row.decision.autoscalers]
    if advised:
        yield "## Autoscalers"
    for row in advised:
        for title, lines in manifests(row.decision):
            yield f"{title} for {_code(str(row.decision.workload.ref))}:"
            yield "\n".join(f"    {line}" for line in lines)


def _listed(title: str, lines: Sequence[str]) -> list[str]:
    return [title, "\n".join(f"- {escaped(line)}" for line in lines)] if lines else []


def escaped(text: str) -> str:
    """Escaped text; addresses in it do not become links."""
    inert = safe(text).translate(_ACTIVE)
    inert = _ITEM.sub(lambda mark: f"{mark[1]}&#{ord(mark[2])};", inert)
    return inert.replace("://", "&#58;//").replace("www.", "www&#46;")


def _code(name: str) -> str:
    """A name between backticks, or where it could break out of them, as plain text."""
    inner = safe(name)
    return escaped(name) if _CODE_BREAKS & set(inner) or inner != inner.strip() else f"`{inner}`"
