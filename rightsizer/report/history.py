"""What was changed earlier, as text for people and as documents for programs. Pure."""

import datetime
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from rightsizer.changes.journal_entry import INTENT, OUTCOME, JournalEntry, RecordedEvent
from rightsizer.kinds.patches import describe
from rightsizer.model import FoundChange
from rightsizer.report.documents import API_VERSION, stamp
from rightsizer.report.terminal import wrapped
from rightsizer.text import count, safe


def history_text(items: Sequence[FoundChange], told: Sequence[RecordedEvent]) -> str:
    """Each change with what became of it, latest first; then the Events that there still are."""
    if not items and not told:
        return "Nothing in the cluster tells of a change by gpu-rightsizer.\n"
    lines = []
    for item in items:
        by = f" by {item.carrier.kind} {item.carrier.name}" if item.carrier else ""
        lines.append(safe(f"{_clock(item.record.at)}  {item.record.action or '?'}  {item.ref}{by}"))
        lines.extend(wrapped(_words(item)))
    if told:
        lines += ["", "Events"]
    for event in told:
        lines.append(safe(f"{_clock(event.at)}  {event.reason}  {event.ref}"))
        lines.extend(wrapped(event.message))
    return "\n".join(lines) + "\n"


def _words(item: FoundChange) -> str:
    change = item.record
    if not change.is_readable:
        return "what its annotations say cannot be read, and counts as a change made right now"
    given = f"{count(abs(change.gpus))} {'given back' if change.gpus >= 0 else 'taken back'}"
    parts = [f"{given}, run {change.run or '?'}" + (f" of instance {change.by}" if change.by else "")]
    if change.end:
        ended = f" at {_clock(change.ended)}" if change.ended else ""
        parts.append(f"{change.end.value}{ended}")
    elif not item.is_on_object:
        parts.append("its object does not tell of it: it was replaced or is gone, or the change was not made")
    elif change.edits:
        parts.append(f"rule {change.rule}, {change.finding}: {change.reason}")
        parts.append(describe(change))
    return "; ".join(parts)


def history_document(items: Iterable[FoundChange], told: Iterable[RecordedEvent]) -> dict[str, Any]:
    """The same as plain values; `at` is null where a note cannot be read, `end` while a change stands.

    `isOnObject` is false where the object does not remember, only our own namespace.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": "History",
        "items": [_item(item) for item in items],
        "events": [
            {
                **_named(event.ref.namespace, event.ref.kind, event.ref.name),
                "at": stamp(event.at),
                "reason": event.reason,
                "message": event.message,
            }
            for event in told
        ],
    }


def _item(item: FoundChange) -> dict[str, Any]:
    change = item.record
    return {
        **_named(item.ref.namespace, item.ref.kind, item.ref.name),
        "at": stamp(change.at) if change.is_readable else None,
        "run": change.run,
        "action": change.action,
        "gpus": change.gpus,
        "by": change.by or None,
        "end": change.end.value if change.end else None,
        "ended": stamp(change.ended) if change.ended else None,
        "isOnObject": item.is_on_object,
        "record": msgspec.to_builtins(change) if change.edits else None,
        "through": _named(item.carrier.namespace, item.carrier.kind, item.carrier.name)
        if item.carrier
        else None,
    }


def _named(namespace: str, kind: str, name: str) -> dict[str, str]:
    return {"namespace": namespace, "kind": kind, "name": name}


def journal_text(steps: Sequence[JournalEntry], problems: Sequence[str]) -> str:
    """Each step, oldest first; what was begun and of which nothing more is told is named at the end."""
    lines = []
    for step in steps:
        result = f" {step.result}" if step.result else ""
        head = f"{_clock(step.at)}  {step.step}{result}  {step.action}"
        lines.append(safe(f"{head}  {step.namespace}/{step.kind}/{step.name}  run {step.run}"))
        lines.extend(wrapped(step.reason))
    for step in unfinished(steps):
        words = f"{step.action} of {step.namespace}/{step.kind}/{step.name} was begun in run {step.run}"
        lines.append(
            safe(f"{words}, and no outcome is recorded; the object itself says whether it took effect")
        )
    lines.extend(safe(problem) for problem in problems)
    return "\n".join(lines or ["The journal tells of nothing."]) + "\n"


def unfinished(steps: Iterable[JournalEntry]) -> list[JournalEntry]:
    """Intents of which no outcome is told."""
    open_: dict[tuple[str, ...], JournalEntry] = {}
    for step in steps:
        if step.step == INTENT:
            open_[step.key] = step
        elif step.step == OUTCOME:
            open_.pop(step.key, None)
    return list(open_.values())


def journal_document(steps: Sequence[JournalEntry], problems: Sequence[str]) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Journal",
        "items": [{**msgspec.to_builtins(step), "at": stamp(step.at)} for step in steps],
        "unfinished": [{**msgspec.to_builtins(step), "at": stamp(step.at)} for step in unfinished(steps)],
        "problems": list(problems),
    }


def _clock(at: datetime.datetime | None) -> str:
    return f"{at.astimezone(datetime.UTC):%Y-%m-%d %H:%M:%S}" if at else "when is not known"
