"""A plan as text: 80 columns with colour on a terminal, or one wide line for each workload. Pure.

Names and reasons come from the cluster: control characters are removed.
"""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rightsizer.model import Action, Confidence, Decision, Finding, Mode, Plan, Verdict
from rightsizer.planning.cost_summary import CostSummary
from rightsizer.prices import Prices
from rightsizer.report.documents import HPA, KEDA, on_one_line
from rightsizer.report.rows import (
    Row,
    Totals,
    advice_on,
    proposal_words,
    remarks,
    rows_of,
    stranded_lines,
    totals_of,
)
from rightsizer.report.terminal import INDENT, WIDTH, Paint, wrapped
from rightsizer.text import block_words, count, memory, number, percent, power, safe, span, wanted_words

_NAME_COLUMN = 17
_NAME_WIDTH = 43
_TOTAL_WIDTHS = (8, 6, 9, 7, 8, 8, 8)
_SHOWN = 3
_ALSO_SHOWN = 2
NOBODY = "No workload holds GPUs."


def plan_table(plan: Plan, accounts: CostSummary, prices: Prices) -> str:
    """The table without colours."""
    return plan_text(plan, accounts, prices, colour=False)


def plan_text(
    plan: Plan,
    accounts: CostSummary,
    prices: Prices,
    *,
    colour: bool,
    approved: Sequence[Decision] | None = None,
) -> str:
    """The whole plan: each workload with its evidence, then the totals; `approved` limits what is applied."""
    paint = Paint(colour=colour)
    head = f"{'VERDICT':<11}{'GPUS':>4}  {'WORKLOAD':<{_NAME_WIDTH}}{'FINDING'}"
    lines = [paint.bold(head)] if plan.decisions else []
    for decision in plan.decisions:
        lines.extend(_decision_lines(decision, paint))
    if plan.decisions:
        lines.extend(_totals_lines(accounts, prices, paint))
    lines.extend(_free_and_problems(plan, paint))
    lines.extend([*([""] if lines else []), *_summary(plan, approved)])
    return "\n".join(lines) + "\n"


def _decision_lines(decision: Decision, paint: Paint) -> Iterator[str]:
    workload, finding = decision.workload, decision.finding
    name = safe(str(workload.ref))
    verdict = paint.verdict(decision.verdict, f"{decision.verdict.value:<11}")
    head = f"{verdict}{workload.gpus:>4}  "
    if len(name) < _NAME_WIDTH:
        yield f"{head}{name:<{_NAME_WIDTH}}{finding.name.value}"
    else:
        first, *rest = textwrap.wrap(name, WIDTH - _NAME_COLUMN, break_on_hyphens=False)
        yield head + first
        yield from (" " * _NAME_COLUMN + more for more in rest)
        yield " " * (_NAME_COLUMN + _NAME_WIDTH) + finding.name.value
    for words in _reason_lines(decision):
        yield from (paint.dim(line) for line in wrapped(words))
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
    """Class, rule, intended action and confidence."""
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
        yield from (paint.dim(line) for line in textwrap.wrap(safe(words), WIDTH))


def _total_table(table: Totals, paint: Paint) -> Iterator[str]:
    widths = _TOTAL_WIDTHS[: len(table.head)]
    left = WIDTH - sum(_TOTAL_WIDTHS)
    head = "".join(f"{name.upper():>{width}}" for name, width in zip(table.head, widths, strict=True))
    yield paint.bold(f"{table.title.upper():<{left}}{head}")
    for name, cells in table.rows:
        shown = safe(name) if len(name) < left else safe(name)[: left - 4] + "..."
        yield f"{shown:<{left}}" + "".join(
            f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)
        )
    if table.more:
        yield paint.dim(f"and {table.more} more")


def _free_and_problems(plan: Plan, paint: Paint) -> Iterator[str]:
    for title, lines in (("FREE GPUS", stranded_lines(plan)), ("PROBLEMS", plan.problems)):
        if lines:
            yield from ("", paint.bold(title))
        for line in lines:
            yield from wrapped(line, indent="")


def _summary(plan: Plan, approved: Sequence[Decision] | None) -> list[str]:
    lines = [verdict_words(plan)]
    lines.append(hypothetical_words(plan) or _what_applying_does(plan, approved))
    return [part for line in lines for part in textwrap.wrap(line, WIDTH)]


def verdict_words(plan: Plan) -> str:
    """How many workloads and GPUs there are of each verdict."""
    if not plan.decisions:
        return NOBODY
    counted = []
    for verdict in Verdict:
        chosen = [decision for decision in plan.decisions if decision.verdict is verdict]
        if chosen:
            counted.append(f"{verdict.value} {len(chosen)} ({_gpus(chosen)})")
    shown = ", ".join(counted)
    return f"{count(len(plan.decisions), 'workload')}, {_gpus(plan.decisions)}: {shown}."


def hypothetical_words(plan: Plan) -> str:
    """Why the plan cannot be applied; empty if it can."""
    return f"This plan cannot be applied: {safe(plan.hypothetical)}." if plan.hypothetical else ""


def applying_words(plan: Plan) -> str:
    """What applying the plan does."""
    return hypothetical_words(plan) or _what_applying_does(plan, None)


def _what_applying_does(plan: Plan, approved: Sequence[Decision] | None) -> str:
    carried_out = plan.enforced if approved is None else approved
    what = "Applying this plan" if approved is None else "Applying the saved plan"
    words = f"{what} {_deeds(carried_out)}." if carried_out else f"{what} changes nothing."
    if left := len(plan.enforced) - len(carried_out):
        words += f" Left out, as the saved plan does not change them: {count(left, 'workload')}."
    return words


def _deeds(decisions: Sequence[Decision]) -> str:
    """Changes of workloads in words; a notice frees nothing yet."""
    noticed = [one for one in decisions if one.action is Action.NOTICE]
    stopped = [one for one in decisions if one.finding.proposal is None and one not in noticed]
    changed = len(decisions) - len(noticed) - len(stopped)
    deeds = [f"stops {count(len(stopped), 'workload')}"] if stopped else []
    deeds += [f"changes {count(changed, 'workload')}"] if changed else []
    deeds += [f"gives notice about {count(len(noticed), 'workload')}"] if noticed else []
    if stopped or changed:
        freed = sum(one.frees for one in decisions)
        deeds += [f"frees {count(freed)}" if freed >= 0 else f"adds {count(-freed)}"]
    return " and ".join([", ".join(deeds[:-1]), deeds[-1]] if deeds[1:] else deeds)


def _gpus(decisions: Iterable[Decision]) -> str:
    return count(sum(decision.workload.gpus for decision in decisions))


_NOTHING = "-"
"""Shown for empty cells; unknown values are shown as a question mark."""

_COLUMNS: Mapping[str, Callable[[Row], str]] = {
    "NAMESPACE": lambda row: row.decision.workload.ref.namespace,
    "KIND": lambda row: row.decision.workload.ref.kind,
    "NAME": lambda row: row.decision.workload.ref.name,
    "CLASS": lambda row: row.decision.workload.priority_class,
    "GPUS": lambda row: str(row.decision.workload.gpus),
    "MODEL": lambda row: row.model,
    "POOL": lambda row: row.pool,
    "MEAN": lambda row: percent(row.finding.activity_mean),
    "PEAK": lambda row: percent(row.finding.activity_peak),
    "MEMORY": lambda row: memory(row.finding.memory_peak_bytes),
    "POWER": lambda row: power(row.finding.power_mean_w),
    "IDLE": lambda row: span(row.finding.idle_s),
    "VERDICT": lambda row: row.decision.verdict.value,
    "FINDING": lambda row: row.finding.name.value,
    "CONFIDENCE": lambda row: row.finding.confidence.value,
    "ACTION": lambda row: row.action,
    "FREES": lambda row: number(row.frees) if row.frees else "",
    "RULE": lambda row: row.decision.rule,
    "BLOCKED BY": lambda row: "; ".join(row.obstacles),
}

_AUTOSCALERS: Mapping[str, Callable[[Row], str]] = {
    "SCALEDOBJECT": lambda row: on_one_line(row.decision, KEDA),
    "HPA": lambda row: on_one_line(row.decision, HPA),
}
"""Columns with manifests; only if an autoscaler is advised."""


def plan_wide(plan: Plan, accounts: CostSummary, prices: Prices) -> str:  # noqa: ARG001 - every form's signature
    """Columns are as wide as their widest cell; nothing is wrapped or cut."""
    if not plan.decisions:
        return f"{NOBODY}\n"
    is_advised = any(decision.autoscalers for decision in plan.decisions)
    columns = {**_COLUMNS, **(_AUTOSCALERS if is_advised else {})}
    table = [list(columns), *(list(_cells(row, columns)) for row in rows_of(plan, prices))]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _cells(row: Row, columns: Mapping[str, Callable[[Row], str]]) -> Iterator[str]:
    for tell in columns.values():
        yield safe(tell(row)) or _NOTHING
