"""A plan as short text: one line for each workload, grouped by what happens to it. Pure.

Names and reasons come from the cluster: control characters are removed.
"""

import dataclasses
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rightsizer.model import Action, Decision, Plan, Verdict
from rightsizer.planning.cost_summary import CostSummary
from rightsizer.prices import Prices
from rightsizer.report.documents import HPA, KEDA, on_one_line
from rightsizer.report.rows import (
    Row,
    cluster_words,
    filter_words,
    headline,
    node_lines,
    price_words,
    rows_of,
    stranded_lines,
)
from rightsizer.report.terminal import Paint, wrapped
from rightsizer.text import count, gpus_number, memory, percent, power, safe, span

NOBODY = "No workload holds GPUs."
_INDENT = "    "
_GPUS = 5
_GAP = "  "
_LEAST_WHY = 24
"""Columns that a reason needs to say something; without them there is none."""


def plan_table(plan: Plan, accounts: CostSummary, prices: Prices) -> str:
    """The text without colours, in 80 columns."""
    return plan_text(plan, accounts, prices, Paint(colour=False))


def plan_text(plan: Plan, accounts: CostSummary, prices: Prices, paint: Paint) -> str:
    """The whole plan, a line for each workload."""
    lines = top_lines(plan, accounts, prices, paint)
    if plan.decisions:
        lines.append("")
    lines.extend(_grouped(plan.decisions, paint))
    lines.extend(nodes_and_problems(plan, prices, paint))
    lines.extend(["", *summary_lines(plan, paint)])
    if plan.decisions:
        more = "Evidence, commands and totals: gpu-rightsizer plan -o explain"
        for words in (*price_words(accounts, prices), more):
            lines.extend(textwrap.wrap(safe(words), paint.width))
    return "\n".join(lines) + "\n"


def changes_text(
    plan: Plan,
    costs: tuple[CostSummary, Prices],
    chosen: Sequence[Decision],
    paint: Paint,
    *,
    is_saved: bool,
) -> str:
    """Text of the changes to be made, with what will be lost by each."""
    lines = [*top_lines(plan, *costs, paint), *_section("PROBLEMS", plan.problems, paint)]
    if chosen:
        lines.extend(["", *_grouped(chosen, paint, with_losses=True)])
    lines.extend(["", *textwrap.wrap(_what_applying_does(plan, chosen, is_saved=is_saved), paint.width)])
    return "\n".join(lines) + "\n"


def top_lines(plan: Plan, accounts: CostSummary, prices: Prices, paint: Paint) -> list[str]:
    """First lines: the headline, the cluster, and the filter."""
    words = filter(None, (*headline(plan, accounts, prices), cluster_words(plan), filter_words(plan)))
    return [line for sentence in words for line in wrapped(sentence, indent="", width=paint.width)]


@dataclasses.dataclass(frozen=True, slots=True)
class _PlanGroup:
    """Workloads to which the same happens, and what the last column says about them.

    Attributes:
        frees: Whether the column of GPUs has those that a change frees; else those that are held.
    """

    title: str
    holds: Callable[[Decision], bool]
    head: str
    tell: Callable[[Decision], str]
    frees: bool = False


def _action(decision: Decision) -> str:
    if decision.action is not None:
        return decision.action.value
    proposal = decision.finding.proposal
    return proposal.action.value if proposal else ""


def _blocked_by(decision: Decision) -> str:
    first, *others = dict.fromkeys(block.code.value for block in decision.blockers)
    return f"{first} +{len(others)}" if others else first


def _used(decision: Decision) -> str:
    return percent(decision.finding.activity_mean)


_GROUPS = (
    _PlanGroup("APPLY CHANGES", lambda decision: decision.is_enforced, "ACTION", _action, frees=True),
    _PlanGroup(
        "BLOCKED FOR NOW", lambda decision: decision.is_blocked, "BLOCKED BY", _blocked_by, frees=True
    ),
    _PlanGroup(
        "ADVICE ONLY", lambda decision: decision.verdict is Verdict.ACT, "ADVICE", _action, frees=True
    ),
    _PlanGroup("UNKNOWN", lambda decision: decision.verdict is Verdict.UNKNOWN, "USED", _used),
    _PlanGroup("KEEP", lambda decision: decision.verdict is Verdict.KEEP, "USED", _used),
    _PlanGroup("PROTECTED", lambda decision: decision.verdict is Verdict.PROTECTED, "USED", _used),
)
"""The first that holds; each decision is in one, since the last four are all the verdicts."""


def _grouped(decisions: Sequence[Decision], paint: Paint, *, with_losses: bool = False) -> Iterator[str]:
    members: dict[str, list[Decision]] = {}
    for decision in decisions:
        members.setdefault(_group_of(decision).title, []).append(decision)
    widths = _widths(decisions, paint)
    before: list[str] = []
    for group in _GROUPS:
        found = members.get(group.title)
        if found:
            yield from before
            title = f"{group.title} ({len(found)})"
            gpus = "FREES" if group.frees else "GPUS"
            yield paint.bold(widths.line(title, gpus, "FINDING", group.head, "WHY"))
            for decision in found:
                yield from _lines(decision, group, widths, paint, with_losses=with_losses)
            before = [""]


@dataclasses.dataclass(frozen=True, slots=True)
class _Widths:
    """The widths of the columns of workload, finding, last column and reason (0: there is none)."""

    name: int
    finding: int
    last: int
    why: int

    def line(self, name: str, gpus: str, finding: str, last: str, why: str) -> str:
        """One line; the name has fitted."""
        cells = [
            f"{name:<{self.name}}",
            f"{gpus:>{_GPUS}}",
            f"{finding:<{self.finding}}",
            f"{last:<{self.last}}",
        ]
        shown = why if len(why) <= self.why else f"{why[: self.why - 3]}..."
        return _GAP.join([*cells, *([shown] if self.why else [])]).rstrip()


def _widths(decisions: Sequence[Decision], paint: Paint) -> _Widths:
    finding = max((len(decision.finding.name.value) for decision in decisions), default=0)
    last = max((len(_group_of(decision).tell(decision)) for decision in decisions), default=0)
    finding, last = max(finding, len("FINDING")), max(last, len("BLOCKED BY"))
    rest = _GPUS + finding + last + 3 * len(_GAP)
    longest = max((len(safe(str(decision.workload.ref))) for decision in decisions), default=0)
    name = max(min(longest, paint.width - rest), len("BLOCKED FOR NOW (0000)"))
    why = paint.width - name - rest - len(_GAP)
    return _Widths(name, finding, last, why if why >= _LEAST_WHY else 0)


def _group_of(decision: Decision) -> _PlanGroup:
    return next(group for group in _GROUPS if group.holds(decision))


def _lines(
    decision: Decision, group: _PlanGroup, widths: _Widths, paint: Paint, *, with_losses: bool
) -> Iterator[str]:
    """One line; a name that is too long has a line of its own."""
    name = safe(str(decision.workload.ref))
    if len(name) > widths.name:
        yield from textwrap.wrap(name, paint.width, break_on_hyphens=False)
        name = ""
    gpus = gpus_number(decision.frees if group.frees else decision.workload.gpus)
    finding = decision.finding.name.value
    yield widths.line(name, gpus, finding, group.tell(decision), safe(_why(decision)))
    if with_losses and decision.lost and decision.announced is None:
        words = f"will be lost: {decision.lost}"
        yield from map(paint.dim, wrapped(words, indent=_INDENT, width=paint.width))


def _why(decision: Decision) -> str:
    words = (*(block.message for block in decision.blockers), *decision.finding.words)
    return words[0] if words else ""


def nodes_and_problems(plan: Plan, prices: Prices, paint: Paint) -> Iterator[str]:
    """Emptied nodes, free GPUs that pods wait for, and what could not be read."""
    yield from _section("NODES", node_lines(plan, prices), paint)
    if not plan.filter:
        yield from _section("FREE GPUS", stranded_lines(plan), paint)
    yield from _section("PROBLEMS", plan.problems, paint)


def _section(title: str, lines: Sequence[str], paint: Paint) -> Iterator[str]:
    if lines:
        yield from ("", paint.bold(title))
    for line in lines:
        yield from wrapped(line, indent="", width=paint.width)


def summary_lines(plan: Plan, paint: Paint) -> list[str]:
    """The verdicts in numbers, and what applying does."""
    lines = (verdict_words(plan), applying_words(plan))
    return [part for line in lines for part in textwrap.wrap(line, paint.width)]


def verdict_words(plan: Plan) -> str:
    """Number of workloads and GPUs of each verdict."""
    if not plan.decisions:
        return "No workload matches the filter." if plan.left_out else NOBODY
    counted = []
    for verdict in Verdict:
        chosen = [decision for decision in plan.decisions if decision.verdict is verdict]
        if chosen:
            counted.append(f"{verdict.value} {len(chosen)} (holding {_gpus(chosen)})")
    shown = ", ".join(counted)
    return f"{count(len(plan.decisions), 'workload')}, {_gpus(plan.decisions)} held: {shown}."


def hypothetical_words(plan: Plan) -> str:
    """Why the plan cannot be applied; empty if it can."""
    return f"This plan cannot be applied: {safe(plan.hypothetical)}." if plan.hypothetical else ""


def applying_words(plan: Plan) -> str:
    """Sentence that says what applying the plan does."""
    return hypothetical_words(plan) or _what_applying_does(plan, plan.enforced)


def _what_applying_does(plan: Plan, chosen: Sequence[Decision], *, is_saved: bool = False) -> str:
    what = "Applying the saved plan" if is_saved else "Applying this plan"
    what += " with this filter" if plan.filter else ""
    words = f"{what} {_deeds(chosen)}." if chosen else f"{what} changes nothing."
    if left := len(plan.enforced) - len(chosen):
        words += f" Left out, as the saved plan does not change them: {count(left, 'workload')}."
    return words


def _deeds(decisions: Sequence[Decision]) -> str:
    """Changes of workloads in words; a notice frees nothing yet."""
    noticed = [decision for decision in decisions if decision.action is Action.NOTICE]
    others = [decision for decision in decisions if decision not in noticed]
    stopped = [decision for decision in others if decision.finding.proposal is None]
    changed = len(others) - len(stopped)
    deeds = [f"stops {count(len(stopped), 'workload')}"] if stopped else []
    deeds += [f"changes {count(changed, 'workload')}"] if changed else []
    deeds += [f"gives notice about {count(len(noticed), 'workload')}"] if noticed else []
    if stopped or changed:
        freed = sum(decision.frees for decision in decisions)
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
    "GPUS": lambda row: gpus_number(row.decision.workload.gpus),
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
    "FREES": lambda row: gpus_number(row.frees) if row.frees else "",
    "RULE": lambda row: row.decision.rule,
    "BLOCKED BY": lambda row: "; ".join(row.obstacles),
    "EVIDENCE": lambda row: "; ".join(row.finding.words),
}

_AUTOSCALERS: Mapping[str, Callable[[Row], str]] = {
    "SCALEDOBJECT": lambda row: on_one_line(row.decision, KEDA),
    "HPA": lambda row: on_one_line(row.decision, HPA),
}
"""Columns with manifests; only if an autoscaler is advised."""


def plan_wide(plan: Plan, accounts: CostSummary, prices: Prices) -> str:  # noqa: ARG001 - every form's signature
    """Columns are as wide as their widest cell; nothing is wrapped or cut."""
    if not plan.decisions:
        return f"{verdict_words(plan)}\n"
    is_advised = any(decision.autoscalers for decision in plan.decisions)
    where = {"CLUSTER": lambda _: plan.cluster.words if plan.cluster else ""}
    columns = {**_COLUMNS, **where, **(_AUTOSCALERS if is_advised else {})}
    table = [list(columns), *(list(_cells(row, columns)) for row in rows_of(plan, prices))]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _cells(row: Row, columns: Mapping[str, Callable[[Row], str]]) -> Iterator[str]:
    for tell in columns.values():
        yield safe(tell(row)) or _NOTHING
