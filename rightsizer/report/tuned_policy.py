"""A tuned policy as a file: the base policy with new waiting times; comments say why, and what they free. Pure."""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from rightsizer.backtest.summary import Summary
from rightsizer.backtest.tuning import Choice
from rightsizer.config import write_duration
from rightsizer.policy.schema import KindDefaults, Policy
from rightsizer.policy.thresholds import Thresholds
from rightsizer.report.backtest import Backtest, between, share_of
from rightsizer.report.terminal import wrapped
from rightsizer.text import safe


def tuned_policy_text(
    base: Mapping[str, Any],
    policy: Policy,
    choices: Sequence[Choice],
    result: Backtest,
    *,
    learned: str,
    price: float,
) -> str:
    """The whole file.

    Args:
        base: The document of the policy that was tuned.
        policy: The tuned one.
        choices: What was chosen for which kinds.
        result: A backtest of both over the time after what was learned from.
        learned: That time, in words.
        price: Of a mistake, in GPU-hours.
    """
    lines = [
        f"# {line}".rstrip() for line in _comments(policy, choices, result, learned=learned, price=price)
    ]
    document = {**base, "defaults": {**base.get("defaults", {}), **_defaults(policy)}}
    return "\n".join(lines) + "\n" + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


def _comments(
    policy: Policy, choices: Sequence[Choice], result: Backtest, *, learned: str, price: float
) -> Iterator[str]:
    yield from wrapped(
        f"Waiting times that cost least if the stop of a workload that works again costs {price:g} GPU-hours. Learned "
        f"from {learned}; the table is of the {result.days:g} days after it, which they were not learned from.",
        "",
    )
    yield ""
    yield f"{'JUDGE':<18}{'FREED GPU-HOURS':>17}{'90 %':>17}{'STOPS':>7}{'RETURNED':>10}"
    for one in result.summaries:
        yield _row(one)
    yield ""
    for choice in choices:
        yield from _reasons(choice)
    rows = len(policy.defaults.kinds) + 1
    if len(choices) < rows:
        yield from wrapped(
            f"{rows - len(choices)} of {rows} rows have too few gaps, and keep their times.", ""
        )
    if own := [rule.name for rule in policy.rules if rule.idle]:
        yield from wrapped(f"Rules with times of their own keep them: {', '.join(own)}.", "")


def _row(one: Summary) -> str:
    freed = f"{one.freed.value:,.0f} ({share_of(one)})"
    counts = f"{one.stops.value:>7,.0f}{one.returned.value:>10,.0f}"
    return f"{safe(one.judge)[:17]:<18}{freed:>17}{between(one.freed):>17}{counts}"


def _reasons(choice: Choice) -> Iterator[str]:
    kinds = ", ".join(choice.row.kinds) if choice.row else "all other kinds"
    times = "" if not choice.factor else f", and {choice.factor:g} times the longest earlier gap"
    yield from wrapped(
        f"{kinds}: {choice.window_h:g} h{times}. {choice.returned} of {choice.gaps} gaps ended with work. "
        f"Idle GPU-hours {choice.cost.idle:,.0f}, {choice.cost.returned:.0f} of {choice.cost.stops} stops wrong "
        f"(before: {choice.before.idle:,.0f}, {choice.before.returned:.0f} of {choice.before.stops}). Break-even "
        f"{choice.break_even_h:.1f} h: to wait for that long never costs more than twice what hindsight would.",
        "",
    )


def _defaults(policy: Policy) -> dict[str, Any]:
    return {
        "idle": _thresholds(policy.defaults.idle),
        "kinds": [_kind(row) for row in policy.defaults.kinds],
    }


def _kind(row: KindDefaults) -> dict[str, Any]:
    found: dict[str, Any] = {"kinds": list(row.kinds)}
    if row.onlyNotebooks:
        found["onlyNotebooks"] = True
    if row.onlyWoken:
        found["onlyWoken"] = True
    if row.idle is not None:
        found["idle"] = _thresholds(row.idle)
    if row.notifyBefore is not None:
        found["notifyBefore"] = _duration(row.notifyBefore)
    return found


def _duration(span: datetime.timedelta) -> str:
    text = write_duration(span)
    return text.removesuffix("0m") if text.endswith("h0m") else text.removeprefix("0h")


def _thresholds(idle: Thresholds) -> dict[str, Any]:
    """What differs from the built-in defaults, and always the window."""
    usual = Thresholds()
    return {
        name: _written(value)
        for name in Thresholds.model_fields
        if (value := getattr(idle, name)) != getattr(usual, name) or name == "window"
    }


def _written(value: Any) -> Any:  # noqa: ANN401 - of any field
    if isinstance(value, datetime.timedelta):
        return _duration(value)
    if isinstance(value, tuple):
        return [{"after": _duration(row.after), "percent": row.percent} for row in value]
    return value
