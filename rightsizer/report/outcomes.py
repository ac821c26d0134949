"""What became of a run, and what can be put back, as text for people: aligned, 80 columns. Pure."""

import collections
import textwrap
from collections.abc import Sequence

from rightsizer.kinds.health import Health
from rightsizer.kinds.patches import UndoItem, describe
from rightsizer.model import Outcome, Plan, Result
from rightsizer.report.terminal import WIDTH, Paint, wrapped
from rightsizer.text import count, safe


def outcome_text(outcome: Outcome, *, colour: bool) -> str:
    """One outcome, as it becomes known."""
    paint = Paint(colour=colour)
    head = paint.result(outcome.result, f"{outcome.result.value:<11}")
    lines = [f"{head}{outcome.action}  {safe(str(outcome.ref))}"]
    lines.extend(paint.dim(line) for line in wrapped(outcome.detail))
    return "\n".join(lines) + "\n"


def effect_text(outcome: Outcome, *, colour: bool) -> str:
    """What an outcome came to, once that was looked at."""
    if outcome.effect is None:
        return ""
    paint = Paint(colour=colour)
    words = outcome.effect.words or "nothing had to go"
    lines = [f"{'verified':<11}{outcome.action}  {safe(str(outcome.ref))}"]
    return "\n".join([*lines, *map(paint.dim, wrapped(words))]) + "\n"


def outcomes_summary(outcomes: Sequence[Outcome], *, undo: str) -> str:
    """What a run came to; `undo` is the command that takes it back."""
    repairs = [outcome for outcome in outcomes if outcome.is_repair]
    outcomes = [outcome for outcome in outcomes if not outcome.is_repair]
    if not outcomes:
        return f"{count(len(repairs), 'leftover')} looked after; nothing else was changed.\n"
    done = [outcome for outcome in outcomes if outcome.result is Result.DONE]
    doubtful = [outcome for outcome in outcomes if outcome.result is Result.UNKNOWN]
    left = [outcome for outcome in outcomes if outcome.result is Result.SKIPPED]
    words = f"{len(done)} of {len(outcomes)} done"
    if done and undo:
        kept = (one for one in done if not (one.effect and one.effect.health == Health.FAILED))
        words += f", {count(sum(outcome.gpus for outcome in kept))} given back"
    if doubtful:
        words += f", {len(doubtful)} unknown"
    if left:
        words += f", {len(left)} not attempted"
    if len(done) < len(outcomes) and not doubtful:
        words += "; nothing else was changed"
    # On a line of its own, to be copied.
    take_back = f"Undo: {undo}\n" if undo and (done or doubtful) else ""
    return "\n".join(textwrap.wrap(f"{words}.", WIDTH)) + "\n" + take_back


def cycle_words(plan: Plan) -> str:
    """What a cycle has planned, on one line."""
    verdicts = collections.Counter(decision.verdict.value for decision in plan.decisions)
    told = ", ".join(f"{number} {verdict}" for verdict, number in sorted(verdicts.items())) or "none"
    frees = sum(decision.frees for decision in plan.enforced)
    judged = count(len(plan.decisions), "workload")
    return (
        f"run {plan.run}: {judged} ({told}); {len(plan.enforced)} to be changed, {count(frees)} freed by that"
    )


def undoable_text(items: Sequence[UndoItem]) -> str:
    """What can be put back, latest first."""
    if not items:
        return "Nothing in the cluster carries a record of a change by gpu-rightsizer.\n"
    lines = []
    for item in items:
        about = f", for {item.workload}" if item.workload != item.ref else ""
        lines.append(safe(f"{item.ref}{about}"))
        if item.record is None:
            lines.extend(wrapped(item.problem))
            continue
        record = item.record
        lines.extend(wrapped(f"{record.action} at {record.at:%Y-%m-%d %H:%M:%S} UTC, run {record.run}"))
        lines.extend(wrapped(f"rule {record.rule}, {record.finding}: {record.reason}"))
        if record.edits:
            lines.extend(wrapped(describe(record)))
    return "\n".join(lines) + "\n"
