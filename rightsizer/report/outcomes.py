"""Outcomes, past changes, breaker and pauses: as text in 80 columns, and as documents for programs. Pure."""

import collections
import datetime
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from rightsizer.changes.record_codec import RecordedEvent
from rightsizer.kinds.health import Health, is_verified
from rightsizer.kinds.patches import UNKNOWN_CHANGE, UndoItem, describe
from rightsizer.model import Action, ChangeRecord, FoundChange, ObjectRef, Outcome, Plan, Result
from rightsizer.planning.breaker import State, is_over
from rightsizer.report.documents import API_VERSION, stamp
from rightsizer.report.terminal import WIDTH, Paint, wrapped
from rightsizer.text import count, instant, per_hour_and_month, safe


def intent_text(ref: ObjectRef, action: str, reason: str) -> str:
    """A change that is about to be made."""
    return "\n".join([f"{'begin':<11}{action}  {safe(str(ref))}", *wrapped(reason)]) + "\n"


def outcome_text(outcome: Outcome, *, colour: bool) -> str:
    """One outcome, as it becomes known."""
    paint = Paint(colour=colour)
    head = paint.result(outcome.result, f"{outcome.result.value:<11}")
    lines = [f"{head}{outcome.action}  {safe(str(outcome.ref))}"]
    lines.extend(paint.dim(line) for line in wrapped(outcome.detail))
    return "\n".join(lines) + "\n"


def effect_text(outcome: Outcome, *, colour: bool) -> str:
    """The verified effect of an outcome; empty if it was not verified."""
    if outcome.effect is None:
        return ""
    paint = Paint(colour=colour)
    head = "verified" if outcome.result is Result.DONE else outcome.result.value
    lines = [f"{head:<11}{outcome.action}  {safe(str(outcome.ref))}"]
    return "\n".join([*lines, *map(paint.dim, wrapped(outcome_words(outcome)))]) + "\n"


def outcome_words(outcome: Outcome) -> str:
    """The verified effect of an outcome, or its details before that."""
    if outcome.effect is None:
        return outcome.detail
    words = outcome.effect.words or "no pod had to terminate"
    return f"{words}; {outcome.detail}" if outcome.result is Result.NO_EFFECT else words


def freed_per_hour(outcomes: Iterable[Outcome], rates: Mapping[ObjectRef, float]) -> float:
    """The known price of the GPUs that were verified as free, for an hour, by the price of one of each workload."""
    freed = (outcome for outcome in outcomes if is_verified(outcome) and not outcome.is_reconciliation)
    taken = (outcome for outcome in freed if outcome.action != Action.SCALE_UP)
    return sum(outcome.gpus * rates.get(outcome.ref, 0.0) for outcome in taken)


def outcomes_summary(outcomes: Sequence[Outcome], *, undo: str, saved: str = "") -> str:
    """The totals of a run; `undo` is the command that reverts it, `saved` the price of what was freed."""
    reconciliations = [outcome for outcome in outcomes if outcome.is_reconciliation]
    outcomes = [outcome for outcome in outcomes if not outcome.is_reconciliation]
    if not outcomes:
        return f"{count(len(reconciliations), 'earlier change')} reconciled; nothing else was changed.\n"
    done = [outcome for outcome in outcomes if outcome.result is Result.DONE]
    doubtful = [outcome for outcome in outcomes if outcome.result is Result.UNKNOWN]
    untrusted = [outcome for outcome in outcomes if outcome.result is Result.UNTRUSTED]
    left = [outcome for outcome in outcomes if outcome.result is Result.SKIPPED]
    words = f"{len(done)} of {len(outcomes)} done"
    if done and undo:
        less = [outcome for outcome in done if outcome.action != Action.SCALE_UP]
        kept = [
            outcome for outcome in less if not (outcome.effect and outcome.effect.health == Health.FAILED)
        ]
        verified = [outcome for outcome in kept if is_verified(outcome)]
        freed = sum(outcome.gpus for outcome in verified)
        if verified or (less and not kept):
            words += f", {count(freed)} freed" + (f" ({saved})" if saved else "")
        if asked := sum(outcome.gpus for outcome in kept) - freed:
            words += f", {count(asked)} not verified as free"
        if added := sum(abs(outcome.gpus) for outcome in done if outcome.action == Action.SCALE_UP):
            words += f", {count(added)} added"
    if doubtful:
        words += f", {len(doubtful)} unknown"
    if untrusted:
        words += f", {len(untrusted)} untrusted"
    if left:
        words += f", {len(left)} not attempted"
    if len(done) < len(outcomes) and not doubtful:
        words += "; nothing else was changed"
    has_changed = any(outcome.action != Action.NOTICE for outcome in (*done, *doubtful))
    # On a line of its own, to be copied.
    take_back = f"Undo: {undo}\n" if undo and has_changed else ""
    return "\n".join(textwrap.wrap(f"{words}.", WIDTH)) + "\n" + take_back


def cycle_words(plan: Plan) -> str:
    """The plan of a cycle, on one line."""
    verdicts = collections.Counter(decision.verdict.value for decision in plan.decisions)
    by_verdict = ", ".join(f"{number} {verdict}" for verdict, number in sorted(verdicts.items())) or "none"
    frees = sum(decision.frees for decision in plan.enforced)
    judged = count(len(plan.decisions), "workload")
    return f"run {plan.run}: {judged} ({by_verdict}); {len(plan.enforced)} to be changed, which frees {count(frees)}"


def undoable_text(items: Sequence[UndoItem]) -> str:
    """The changes that can be reverted, latest first."""
    if not items:
        return "The cluster has no record of a change by gpu-rightsizer.\n"
    lines = []
    for undo in items:
        about = f", for {undo.workload}" if undo.workload != undo.ref else ""
        lines.append(safe(f"{undo.ref}{about}"))
        if not undo.is_known:
            lines.extend(wrapped(f"untrusted: {undo.problem or UNKNOWN_CHANGE}"))
        elif undo.problem:
            lines.extend(wrapped(undo.problem))
        if undo.pod is not None:
            lines.extend(wrapped(undo.pod.words))
        if undo.record is None:
            continue
        record = undo.record
        lines.extend(wrapped(f"{record.action} at {record.at:%Y-%m-%d %H:%M:%S} UTC, run {record.run}"))
        lines.extend(wrapped(f"rule {record.rule}, {record.finding}: {record.reason}"))
        if record.edits:
            lines.extend(wrapped(describe(record)))
    return "\n".join(lines) + "\n"


def history_text(
    items: Sequence[FoundChange], events: Sequence[RecordedEvent], *, is_chosen: bool = False
) -> str:
    """Each change with its outcome, latest first; then the Events that still exist. They may be chosen of more."""
    if not items and not events:
        chosen = " that the flags choose" if is_chosen else ""
        return f"The cluster has no record of a change by gpu-rightsizer{chosen}.\n"
    lines = []
    for found in items:
        by = f" by {found.carrier.kind} {found.carrier.name}" if found.carrier else ""
        lines.append(safe(f"{_clock(found.record.at)}  {found.record.action or '?'}  {found.ref}{by}"))
        lines.extend(wrapped(_description(found)))
    if events:
        lines += ["", "Events"]
    for event in events:
        lines.append(safe(f"{_clock(event.at)}  {event.reason}  {event.ref}"))
        lines.extend(wrapped(event.message))
    return "\n".join(lines) + "\n"


def _price(change: ChangeRecord) -> str:
    is_known = change.cost_per_hour and change.end is None
    return f" ({per_hour_and_month(abs(change.cost_per_hour), change.currency)})" if is_known else ""


def _description(found: FoundChange) -> str:
    change = found.record
    if not change.is_readable:
        return "its annotations cannot be read; this counts as a change made right now"
    given = f"{count(abs(change.gpus))} {'freed' if change.gpus >= 0 else 'added'}"
    parts = [
        f"{given}{_price(change)}, run {change.run or '?'}"
        + (f" of instance {change.by}" if change.by else "")
    ]
    if change.end:
        ended = f" at {_clock(change.ended)}" if change.ended else ""
        parts.append(f"{change.end.value}{ended}")
    elif not found.is_on_object:
        parts.append("its object has no record of it: it was replaced or deleted, or the change was not made")
    elif change.edits:
        parts.append(f"rule {change.rule}, {change.finding}: {change.reason}")
        parts.append(describe(change))
    return "; ".join(parts)


def history_document(items: Iterable[FoundChange], events: Iterable[RecordedEvent]) -> dict[str, Any]:
    """The same as plain values; `at` is null if a record cannot be read, `end` while a change is in effect.

    `isOnObject` is false if only the state namespace has the record. `costPerHour` is null without a
    known price.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": "History",
        "items": [_item(found) for found in items],
        "events": [
            {
                **_named(event.ref.namespace, event.ref.kind, event.ref.name),
                "at": stamp(event.at),
                "reason": event.reason,
                "message": event.message,
            }
            for event in events
        ],
    }


def _item(found: FoundChange) -> dict[str, Any]:
    change = found.record
    return {
        **_named(found.ref.namespace, found.ref.kind, found.ref.name),
        "at": stamp(change.at) if change.is_readable else None,
        "run": change.run,
        "action": change.action,
        "gpus": change.gpus,
        "costPerHour": change.cost_per_hour if change.currency else None,
        "currency": change.currency or None,
        "by": change.by or None,
        "end": change.end.value if change.end else None,
        "ended": stamp(change.ended) if change.ended else None,
        "isOnObject": found.is_on_object,
        "record": msgspec.to_builtins(change) if change.edits else None,
        "through": _named(found.carrier.namespace, found.carrier.kind, found.carrier.name)
        if found.carrier
        else None,
    }


def _named(namespace: str, kind: str, name: str) -> dict[str, str]:
    return {"namespace": namespace, "kind": kind, "name": name}


def _clock(at: datetime.datetime | None) -> str:
    return f"{at.astimezone(datetime.UTC):%Y-%m-%d %H:%M:%S}" if at else "unknown time"


def state_text(state: State, at: datetime.datetime) -> str:
    """Breaker, pauses and accepted scope, with their times."""
    latch = state.latch
    lines = [f"breaker: {'open' if latch.trip else 'closed'}"]
    if latch.trip:
        where = f" in run {latch.trip.run}" if latch.trip.run else ""
        lines.extend(
            wrapped(f"since {instant(latch.trip.at)}{where}, {latch.trip.cause}: {latch.trip.reason}")
        )
    elif latch.errors:
        lines.extend(wrapped(f"{count(latch.errors, 'error')} in a row"))
    if latch.cleared:
        lines.extend(wrapped(f"last cleared at {instant(latch.cleared.at)}: {latch.cleared.reason}"))
    pauses = [pause for pause in state.pauses if not is_over(pause, at)]
    lines.append(f"paused: {'' if pauses else 'nothing'}".rstrip())
    for pause in pauses:
        lines.extend(wrapped(pause.words))
    if state.scope is None:
        lines.append(
            "scope: none accepted yet; the first apply accepts the number of workloads of its policy"
        )
    else:
        lines.append(f"scope: accepted at {instant(state.scope.at)}")
        for rule, number in sorted(state.scope.rules.items()):
            lines.extend(wrapped(f"{rule}: {count(number, 'workload')}"))
    return "\n".join(map(safe, lines)) + "\n"


def state_document(state: State, at: datetime.datetime) -> dict[str, Any]:
    """The same as plain values."""
    pauses = [pause for pause in state.pauses if not is_over(pause, at)]
    return {
        "apiVersion": API_VERSION,
        "kind": "State",
        "breaker": {"isOpen": state.latch.trip is not None, **msgspec.to_builtins(state.latch)},
        "pauses": msgspec.to_builtins(pauses),
        "scope": msgspec.to_builtins(state.scope) if state.scope else None,
    }
