"""A plan as text with the evidence of each workload, its command, and the totals of the fleet's parts. Pure.

Names and reasons come from the cluster: control characters are removed.
"""

import textwrap
from collections.abc import Iterator, Sequence

from rightsizer.model import Action, Confidence, Decision, Finding, Mode, Plan, Verdict
from rightsizer.planning.cost_summary import CostSummary
from rightsizer.prices import Prices
from rightsizer.report.rows import advice_on, proposal_words, remarks, totals_of
from rightsizer.report.table import nodes_and_problems, summary_lines, top_lines
from rightsizer.report.terminal import INDENT, WIDTH, Paint, Table, table_lines, wrapped
from rightsizer.text import block_words, count, gpus_number, instant, safe, wanted_words

_NAME_COLUMN = 17
_NAME_WIDTH = 43
_TOTAL_WIDTHS = (8, 6, 9, 7, 8, 8, 8)
_SHOWN = 3
_ALSO_SHOWN = 2


def plan_explained(plan: Plan, accounts: CostSummary, prices: Prices) -> str:
    """The text without colours, in 80 columns."""
    return explained_text(plan, accounts, prices, Paint(colour=False))


def explained_text(plan: Plan, accounts: CostSummary, prices: Prices, paint: Paint) -> str:
    """The whole plan: each workload with its evidence, then the totals."""
    head = f"{'VERDICT':<11}{'GPUS':>4}  {'WORKLOAD':<{_NAME_WIDTH + paint.width - WIDTH}}{'FINDING'}"
    lines = top_lines(plan, accounts, prices, paint)
    if plan.decisions:
        lines.extend(["", paint.bold(head)])
    for decision in plan.decisions:
        lines.extend(_decision_lines(decision, paint))
    if len(plan.decisions) > 1:
        lines.extend(_totals_lines(accounts, prices, paint))
    lines.extend(nodes_and_problems(plan, prices, paint))
    lines.extend(["", *summary_lines(plan, paint)])
    return "\n".join(lines) + "\n"


def _decision_lines(decision: Decision, paint: Paint) -> Iterator[str]:
    workload, finding = decision.workload, decision.finding
    name = safe(str(workload.ref))
    verdict = paint.verdict(decision.verdict, f"{decision.verdict.value:<11}")
    head = f"{verdict}{gpus_number(workload.gpus):>4}  "
    room = _NAME_WIDTH + paint.width - WIDTH
    if len(name) < room:
        yield f"{head}{name:<{room}}{finding.name.value}"
    else:
        first, *rest = textwrap.wrap(name, paint.width - _NAME_COLUMN, break_on_hyphens=False)
        yield head + first
        yield from (" " * _NAME_COLUMN + more for more in rest)
        yield " " * (_NAME_COLUMN + room) + finding.name.value
    for words in _reason_lines(decision):
        yield from map(paint.dim, wrapped(words, width=paint.width))
    if decision.command:
        yield INDENT + safe(decision.command)


def _reason_lines(decision: Decision) -> Iterator[str]:
    yield _standing(decision)
    shown = decision.finding.words[:_SHOWN]
    yield from shown
    if proposed := proposal_words(decision.finding, shown):
        yield f"proposal: {proposed}"
    yield from (blocker.message for blocker in decision.restrictions[:_SHOWN])
    yield from (block_words(block) for block in decision.blockers)
    yield from wanted_words(decision)
    if decision.lost and decision.is_enforced and decision.announced is None:
        yield f"will be lost: {decision.lost}"
    yield from filter(None, [advice_on(decision, "in plan -o yaml, under autoscaling")])
    yield from _also(decision.also)


def _also(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings[:_ALSO_SHOWN]:
        words = (finding.proposal.words,) if finding.proposal else finding.words[:1]
        yield f"also: {': '.join((finding.name.value, *words))}"
    if left := len(findings) - _ALSO_SHOWN:
        yield from [f"also: {count(left, 'finding')} more"] if left > 0 else []


def _standing(decision: Decision) -> str:
    workload = decision.workload
    class_name = workload.priority_class or "no PriorityClass"
    standing = f"{class_name} ({workload.priority})"
    if decision.verdict is not Verdict.PROTECTED:
        standing += f", rule {decision.rule}"
    if decision.verdict is Verdict.ACT:
        standing += f": {_intent(decision)}"
    if decision.finding.confidence is not Confidence.MEDIUM:
        standing += f"; {decision.finding.confidence.value} confidence"
    return standing


def _intent(decision: Decision) -> str:
    if decision.action is None:
        return "advice only"
    if decision.action is Action.NOTICE and decision.due is not None:
        return f"will give notice of {decision.announced}, from {instant(decision.due)}"
    would = "would" if decision.blockers else "will"
    verb = "advises" if decision.mode is Mode.ADVISE else would
    freed = decision.frees if decision.frees not in {0.0, decision.workload.gpus} else None
    if freed is None:
        return f"{verb} {decision.action.value}"
    gives = f"freeing {count(freed)}" if freed > 0 else f"adding {count(-freed)}"
    return f"{verb} {decision.action.value}, {gives}"


def _totals_lines(accounts: CostSummary, prices: Prices, paint: Paint) -> Iterator[str]:
    whole, *parts = totals_of(accounts, prices)
    yield ""
    yield from _total_table(whole, paint)
    for part in parts:
        yield from ("", *_total_table(part, paint))
    notes = remarks(accounts, prices)
    if notes:
        yield ""
    for words in notes:
        yield from (paint.dim(line) for line in textwrap.wrap(safe(words), paint.width))


def _total_table(table: Table, paint: Paint) -> Iterator[str]:
    widths = (
        paint.width - sum(_TOTAL_WIDTHS),
        *(width - 1 for width in _TOTAL_WIDTHS[: len(table.head) - 1]),
    )
    head, *lines = table_lines(table, widths)
    yield from (paint.bold(head), *lines[: len(lines) - bool(table.more)])
    yield from (paint.dim(line) for line in lines[len(lines) - bool(table.more) :])
