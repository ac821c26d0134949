"""What became of a run, and what can be put back, as text for people: aligned, 80 columns. Pure."""

import json
import textwrap
from collections.abc import Sequence

from rightsizer.model import Outcome, Result
from rightsizer.report.paint import WIDTH, Paint, wrapped
from rightsizer.report.words import count, safe
from rightsizer.workloads.changes import Undoable


def outcome_text(outcome: Outcome, *, colour: bool) -> str:
    """One outcome, as it becomes known."""
    paint = Paint(colour=colour)
    head = paint.result(outcome.result, f"{outcome.result.value:<11}")
    lines = [f"{head}{outcome.action}  {safe(str(outcome.ref))}"]
    lines.extend(paint.dim(line) for line in wrapped(outcome.detail))
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
            lines.extend(wrapped(item.problem))
            continue
        record = item.record
        lines.extend(wrapped(f"{record.action} at {record.time:%Y-%m-%d %H:%M:%S} UTC, run {record.run}"))
        lines.extend(wrapped(f"rule {record.rule}, {record.finding}: {record.reason}"))
        if record.field:
            lines.extend(wrapped(f"{record.field} was {json.dumps(record.before)}"))
    return "\n".join(lines) + "\n"
