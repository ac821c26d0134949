"""Breaker, pauses and accepted scope, as text for people and as a document for programs. Pure."""

import datetime
from typing import Any

import msgspec

from rightsizer.planning.breaker import State, is_over
from rightsizer.report.documents import API_VERSION
from rightsizer.report.terminal import wrapped
from rightsizer.text import count, safe


def state_text(state: State, at: datetime.datetime) -> str:
    """What stands against everything now, and since when."""
    latch = state.latch
    lines = [f"breaker: {'open' if latch.trip else 'closed'}"]
    if latch.trip:
        where = f" in run {latch.trip.run}" if latch.trip.run else ""
        lines.extend(
            wrapped(f"since {_clock(latch.trip.at)}{where}, {latch.trip.cause}: {latch.trip.reason}")
        )
    elif latch.errors:
        lines.extend(wrapped(f"{count(latch.errors, 'error')} in a row"))
    if latch.cleared:
        lines.extend(wrapped(f"last cleared at {_clock(latch.cleared.at)}: {latch.cleared.reason}"))
    pauses = [pause for pause in state.pauses if not is_over(pause, at)]
    lines.append(f"paused: {'' if pauses else 'nothing'}".rstrip())
    for pause in pauses:
        lines.extend(wrapped(pause.words))
    if state.scope is None:
        lines.append("scope: none was accepted yet; the first apply with a policy accepts its own")
    else:
        lines.append(f"scope: accepted at {_clock(state.scope.at)}")
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


def _clock(at: datetime.datetime) -> str:
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
