"""Small phrases that reports, messages and Events have in common, and what may reach a terminal. Pure."""

from collections.abc import Iterator

from rightsizer.config import format_duration
from rightsizer.model import Block, Cause, Decision
from rightsizer.notes import tidy

GIB = 1 << 30
_TENTHS_BELOW = 10
_WHOLE_FROM = 100
_MILLION = 1_000_000

_CAUSES = {
    Cause.BUDGET: "blocked by budget",
    Cause.DISRUPTION_BUDGET: "blocked by PodDisruptionBudget",
    Cause.WINDOW: "waits for maintenance window",
    Cause.FREEZE: "waits for the end of a freeze",
    Cause.NOTICE: "waits after its notice",
    Cause.COOLDOWN: "waits after an earlier change",
    Cause.MANAGED_ELSEWHERE: "managed elsewhere",
    Cause.ON_DEMAND: "only on demand",
    Cause.NO_ROOM: "no room left",
    Cause.PAUSED: "paused",
    Cause.BREAKER: "the breaker is open",
}


def count(number: float, thing: str = "GPU") -> str:
    """A number of things in words; of GPUs there may be parts."""
    return f"1 {thing}" if number == 1 else f"{tidy(number)} {thing}s"


def block_words(block: Block) -> str:
    """What stands against a change now, each cause told from the others."""
    return f"{_CAUSES[block.cause]}: {block.reason}"


def wanted_words(decision: Decision) -> Iterator[str]:
    """For whom something is done that is done only on demand."""
    if decision.wanted_by:
        first, *others = decision.wanted_by
        more = f" and {len(others)} more" if others else ""
        wait = "wait" if others else "waits"
        yield f"for {first.namespace}/{first.name}{more}, of a higher priority, which {wait} for GPUs"


def number(value: float) -> str:
    """A number with as many digits as say something: 3, 0.5, 12.3, 1,234."""
    digits = 2 if abs(value) < _TENTHS_BELOW else 1 if abs(value) < _WHOLE_FROM else 0
    text = f"{value:,.{digits}f}"
    text = text.rstrip("0").rstrip(".") if digits else text
    return "0" if text == "-0" else text


def short(value: float) -> str:
    """A large number in at most seven characters: 0.85, 1,234, 16.8M."""
    return f"{value / _MILLION:.1f}M" if abs(value) >= _MILLION - 1 else number(value)


def money(value: float) -> str:
    """An amount, with cents where they matter."""
    return f"{value:,.2f}" if abs(value) < _WHOLE_FROM else f"{value:,.0f}"


def percent(ratio: float | None, unknown: str = "?") -> str:
    """A share from 0 to 1 in percent; what is not zero never reads as 0%."""
    if ratio is None:
        return unknown
    value = ratio * 100
    if 0 < value < 0.1:  # noqa: PLR2004 - a tenth is the last digit shown
        return "<0.1%"
    return f"{value:.1f}".removesuffix(".0") + "%"


def memory(value: float | None, unknown: str = "?") -> str:
    """Bytes in GiB."""
    return unknown if value is None else f"{value / GIB:.1f} GiB"


def power(value: float | None, unknown: str = "?") -> str:
    """Watts."""
    return unknown if value is None else f"{value:.0f} W"


def span(seconds: float | None, unknown: str = "?") -> str:
    """A duration."""
    return unknown if seconds is None else format_duration(seconds)


def safe(text: str) -> str:
    """Text without control characters, which a terminal would obey (CSI, OSC, carriage return)."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def safe_lines(text: str) -> str:
    """The same, of a text whose lines are our own."""
    return "\n".join(map(safe, text.split("\n")))
