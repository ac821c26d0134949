"""Plans and outcomes as text for people: aligned, 80 columns, colour only where it is seen. Pure.

Names and reasons come from a cluster that we do not control: what a terminal could take for a command is removed.
"""

import json
import re
import textwrap
from collections.abc import Iterable, Sequence

from rightsizer.model import Decision, Mode, Outcome, Plan, Result, Verdict
from rightsizer.report.words import count, safe
from rightsizer.workloads.changes import Undoable

WIDTH = 80
_INDENT = " " * 11
_NAME_COLUMN = 17
_NAME_WIDTH = 43

_COLOURS = {
    Verdict.ACT: "\x1b[33m",
    Verdict.KEEP: "\x1b[32m",
    Verdict.PROTECTED: "\x1b[34m",
    Verdict.UNKNOWN: "\x1b[35m",
}
_RESULT_COLOURS = {
    Result.DONE: "\x1b[32m",
    Result.GONE: "\x1b[32m",
    Result.REFUSED: "\x1b[31m",
    Result.UNKNOWN: "\x1b[31m",
}
_DIM = "\x1b[2m"
_BOLD = "\x1b[1m"
_PLAIN = "\x1b[0m"


def plan_text(plan: Plan, *, colour: bool, approved: Sequence[Decision] | None = None) -> str:
    """The whole plan: each workload with its evidence, then the totals and what can be done next.

    Args:
        plan: Made now.
        colour: Whether to colour it.
        approved: What is carried out of it, where a saved plan limits that.
    """
    paint = _Paint(colour)
    lines = [paint.bold(f"{'VERDICT':<11}{'GPUS':>4}  {'WORKLOAD':<{_NAME_WIDTH}}{'FINDING'}")]
    for decision in plan.decisions:
        lines.extend(_decision_lines(decision, paint))
    lines.extend(["", *_summary(plan, approved)])
    return "\n".join(lines) + "\n"


def _decision_lines(decision: Decision, paint: "_Paint") -> list[str]:
    workload, finding = decision.workload, decision.finding
    name = safe(str(workload.ref))
    verdict = paint.verdict(decision.verdict, f"{decision.verdict.value:<11}")
    head = f"{verdict}{workload.gpus:>4}  "
    if len(name) < _NAME_WIDTH:
        lines = [f"{head}{name:<{_NAME_WIDTH}}{finding.name.value}"]
    else:
        first, *rest = textwrap.wrap(name, WIDTH - _NAME_COLUMN, break_on_hyphens=False)
        lines = [head + first, *(" " * _NAME_COLUMN + more for more in rest)]
        lines.append(" " * (_NAME_COLUMN + _NAME_WIDTH) + finding.name.value)
    lines.extend(paint.dim(line) for line in _wrapped(_standing(decision)))
    for words in (*finding.words[:3], *(veto.reason for veto in decision.vetoes[:3])):
        lines.extend(paint.dim(line) for line in _wrapped(words))
    return lines


def _standing(decision: Decision) -> str:
    """Class, rule, and what would be done."""
    workload = decision.workload
    class_name = workload.priority_class or "no PriorityClass"
    standing = f"{class_name} ({workload.priority})"
    if decision.verdict is Verdict.PROTECTED:
        return standing
    standing += f", rule {decision.rule}"
    if decision.verdict is not Verdict.ACT:
        return standing
    if decision.action is None:
        return f"{standing}: advice only"
    verb = "advises to" if decision.mode is Mode.ADVISE else "will"
    return f"{standing}: {verb} {decision.action.value}"


def _summary(plan: Plan, approved: Sequence[Decision] | None) -> list[str]:
    counted = []
    for verdict in Verdict:
        chosen = [decision for decision in plan.decisions if decision.verdict is verdict]
        if chosen:
            counted.append(f"{verdict.value} {len(chosen)} ({_gpus(chosen)})")
    lines = [
        f"{count(len(plan.decisions), 'workload')}, {_gpus(plan.decisions)}: {', '.join(counted) or 'none'}."
    ]
    lines.append(_what_applying_does(plan, approved))
    return [part for line in lines for part in textwrap.wrap(line, WIDTH)]


def _what_applying_does(plan: Plan, approved: Sequence[Decision] | None) -> str:
    carried_out = plan.enforced if approved is None else approved
    what = "Applying this plan" if approved is None else "Applying what the saved plan approves of it"
    if not carried_out:
        words = f"{what} changes nothing."
    else:
        words = f"{what} stops {count(len(carried_out), 'workload')} and frees {_gpus(carried_out)}."
    if left := len(plan.enforced) - len(carried_out):
        words += f" {count(left, 'workload')} more would be stopped, but the saved plan does not say so."
    return words


def _gpus(decisions: Iterable[Decision]) -> str:
    return count(sum(decision.workload.gpus for decision in decisions))


def outcome_text(outcome: Outcome, *, colour: bool) -> str:
    """One outcome, as it becomes known."""
    paint = _Paint(colour)
    head = paint.result(outcome.result, f"{outcome.result.value:<11}")
    lines = [f"{head}{outcome.action}  {safe(str(outcome.ref))}"]
    lines.extend(paint.dim(line) for line in _wrapped(outcome.detail))
    return "\n".join(lines) + "\n"


def outcomes_summary(outcomes: Sequence[Outcome], *, undo: str) -> str:
    """What a run came to; `undo` is the command that takes it back."""
    done = [outcome for outcome in outcomes if outcome.result is Result.DONE]
    doubtful = [outcome for outcome in outcomes if outcome.result is Result.UNKNOWN]
    left = [outcome for outcome in outcomes if outcome.result is Result.SKIPPED]
    words = f"{len(done)} of {len(outcomes)} done"
    if done and undo:
        words += f", {count(sum(outcome.gpus for outcome in done))} given back"
    if doubtful:
        words += f", {len(doubtful)} unknown"
    if left:
        words += f", {len(left)} not attempted"
    if len(done) < len(outcomes) and not doubtful:
        words += "; nothing else was changed"
    # On a line of its own, to be copied.
    take_back = f"Undo: {undo}\n" if undo and (done or doubtful) else ""
    return "\n".join(textwrap.wrap(f"{words}.", WIDTH)) + "\n" + take_back


def undoable_text(items: Sequence[Undoable]) -> str:
    """What can be put back, latest first."""
    if not items:
        return "Nothing in the cluster carries a record of a change by gpu-rightsizer.\n"
    lines = []
    for item in items:
        lines.append(safe(str(item.ref)))
        if item.record is None:
            lines.extend(_wrapped(item.problem))
            continue
        record = item.record
        lines.extend(_wrapped(f"{record.action} at {record.time:%Y-%m-%d %H:%M:%S} UTC, run {record.run}"))
        lines.extend(_wrapped(f"rule {record.rule}, {record.finding}: {record.reason}"))
        if record.field:
            lines.extend(_wrapped(f"{record.field} was {json.dumps(record.before)}"))
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    """Indented lines; a number and its unit stay together (textwrap breaks at ASCII blanks only)."""
    joined = re.sub(r"(?<=\d) (?=[A-Za-z])", "\u00a0", safe(text))
    lines = textwrap.wrap(joined, WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT + "  ")
    return [line.replace("\u00a0", " ") for line in lines]


class _Paint:
    """Colours, or none."""

    def __init__(self, colour: bool) -> None:  # noqa: FBT001
        self._colour = colour

    def verdict(self, verdict: Verdict, text: str) -> str:
        return self._in(_COLOURS[verdict], text)

    def result(self, result: Result, text: str) -> str:
        return self._in(_RESULT_COLOURS.get(result, ""), text)

    def bold(self, text: str) -> str:
        return self._in(_BOLD, text)

    def dim(self, text: str) -> str:
        return self._in(_DIM, text)

    def _in(self, code: str, text: str) -> str:
        return f"{code}{text}{_PLAIN}" if self._colour and code else text
