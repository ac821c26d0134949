"""A tuned policy as a file: the base policy with new times; comments say why, and what they free. Pure."""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from rightsizer.config import write_duration
from rightsizer.policy.schema import KindDefaults, Policy
from rightsizer.policy.thresholds import Judging, Thresholds
from rightsizer.report.terminal import Table, wrapped
from rightsizer.text import count, safe, span
from rightsizer_history.backtest.headroom import HeadroomChoice
from rightsizer_history.backtest.summary import Summary
from rightsizer_history.backtest.tuning import VOID_NOTICE, Choice
from rightsizer_history.report.backtest import Backtest, judge_lines, row_of


def tuned_policy_text(
    base: Mapping[str, Any],
    policy: Policy,
    choices: Sequence[Choice | HeadroomChoice],
    result: Backtest,
    *,
    learned: str,
    price: float,
) -> str:
    """The whole file.

    Args:
        base: The document of the policy that was tuned.
        policy: The tuned one.
        choices: What was chosen for which kinds and rules.
        result: A backtest of both over the time after what was learned from.
        learned: That time, in words.
        price: Of a mistake, in GPU-hours.
    """
    lines = [
        f"# {line}".rstrip() for line in _comments(policy, choices, result, learned=learned, price=price)
    ]
    sized = {choice.rule: _changed(choice.part) for choice in choices if isinstance(choice, HeadroomChoice)}
    defaults = {**base.get("defaults", {}), **_defaults(policy)}
    if sized.get("") or ("" in sized and "tooManyReplicas" in defaults):
        defaults["tooManyReplicas"] = sized[""]
    rules = [_rule(rule, sized) for rule in base["rules"]]
    document = {**base, "defaults": defaults, "rules": rules}
    return "\n".join(lines) + "\n" + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


def _rule(rule: Mapping[str, Any], sized: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """A rule with its own headroom: empty where it keeps the built-in one and the defaults have another."""
    return {**rule, "tooManyReplicas": sized[rule["name"]]} if rule["name"] in sized else rule


def _comments(
    policy: Policy,
    choices: Sequence[Choice | HeadroomChoice],
    result: Backtest,
    *,
    learned: str,
    price: float,
) -> Iterator[str]:
    yield from wrapped(
        f"Waiting times and headroom that cost least if the stop of a workload that works again costs {price:g} "
        f"GPU-hours. Learned from {learned}; the table is of the {result.days:g} days after it, which they were not "
        "learned from.",
        "",
    )
    yield ""
    heads = ("policy or rule", "freed GPU-hours", "90 %", "net", "stops", "returned")
    yield from judge_lines(Table(heads, [_row(summary, price) for summary in result.summaries]))
    yield from wrapped(
        f"NET is what is freed, less {price:g} GPU-hours for each return. Plain rules have no notice, cooldown or "
        "budget, and stop what policies protect.",
        "",
    )
    yield ""
    for choice in choices:
        yield from wrapped(_reasons(choice) if isinstance(choice, Choice) else _headroom(choice), "")
    waits = [choice for choice in choices if isinstance(choice, Choice)]
    chosen = sum(choice.part is None for choice in waits)
    rows = len(policy.defaults.kinds) + 1 - (len(waits) - chosen)
    if chosen < rows:
        yield from wrapped(f"{rows - chosen} of {rows} rows have too few gaps, and keep their times.", "")
    if len(choices) == len(waits):
        yield from wrapped(
            "Headroom of replicas stays: too few services have some, or too little time was recorded.", ""
        )
    if own := list(_own(policy, choices)):
        yield from wrapped(f"Rules with times of their own keep them: {', '.join(own)}.", "")
    yield "Not known:"
    for words in result.unknown:
        yield from wrapped(words, "  ")


def _own(policy: Policy, choices: Sequence[Choice | HeadroomChoice]) -> Iterator[str]:
    """Rules with times that nothing was chosen for."""
    sized = {choice.rule for choice in choices if isinstance(choice, HeadroomChoice)}
    for rule in policy.rules:
        if rule.idle or rule.notifyBefore or (rule.tooManyReplicas and rule.name not in sized):
            yield rule.name


def _row(summary: Summary, price: float) -> Sequence[str]:
    name, freed, interval, _, *counts = (summary.judge, *row_of(summary))
    return name, freed, interval, f"{summary.freed.value - price * summary.returned.value:,.0f}", *counts


def _kinds_of(row: KindDefaults | None) -> str:
    if row is None:
        return "all other kinds"
    words = ", ".join(row.kinds)
    words += " with notebooks" * row.onlyNotebooks + " that a request starts" * row.onlyWoken
    if row.onlyPriorityClasses is None:
        return words
    classes = ", ".join(name or "none" for name in row.onlyPriorityClasses)
    return f"{words} of PriorityClass {classes}"


def _reasons(choice: Choice) -> str:
    kinds = _kinds_of(choice.part or choice.row)
    times, cost, before = choice.times, choice.cost, choice.before
    factor = f", and {times.factor:g} times the longest earlier gap" if times.factor else ""
    words = (
        f"{kinds}: {times.window_h:g} h{factor}. {choice.returned} of {choice.gaps} gaps ended with work. "
        f"Idle GPU-hours {cost.idle:,.0f}, {cost.returned:.0f} of {cost.stops} stops wrong "
        f"(before: {before.idle:,.0f}, {before.returned:.0f} of {before.stops}). Break-even "
        f"{choice.break_even_h:.1f} h: to wait for that long never costs more than twice what hindsight would."
    )
    if times.notice_h:
        words += (
            f" Notice after half of that time, at most {times.notice_after_h:g} h, and {times.notice_h:g} h before the "
            f"stop: work made {cost.void:.0f} void (before: {before.void:.0f}), each for {100 * VOID_NOTICE:g} % of a "
            "mistake. It is never shorter than before: what owners would have answered is not recorded."
        )
    return words


def _headroom(choice: HeadroomChoice) -> str:
    part, sized, before = choice.part, choice.sized, choice.before
    whose = f"Replicas under rule {safe(choice.rule)}" if choice.rule else "Replicas"
    return (
        f"{whose}: {part.headroomPercent:g} % more than were active, or the largest jump of "
        f"{span(part.jumpHistory.total_seconds())}. {count(choice.services, 'service')}: {sized.freed:,.0f} GPU-hours "
        f"freed, {sized.short} of {count(sized.days, 'day')} short of replicas (before: {before.freed:,.0f}, "
        f"{before.short} of {before.days}). A day that is short counts as a mistake."
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
    if row.onlyPriorityClasses is not None:
        found["onlyPriorityClasses"] = list(row.onlyPriorityClasses)
    if row.idle is not None:
        found["idle"] = _thresholds(row.idle)
    if row.notifyBefore is not None:
        found["notifyBefore"] = _duration(row.notifyBefore)
    return found


def _duration(span: datetime.timedelta) -> str:
    text = write_duration(span)
    return text.removesuffix("0m") if text.endswith("h0m") else text.removeprefix("0h")


def _thresholds(idle: Thresholds) -> dict[str, Any]:
    return {"window": _written(idle.window), **_changed(idle)}


def _changed(part: Judging) -> dict[str, Any]:
    usual = type(part)()
    return {
        name: _written(value)
        for name in type(part).model_fields
        if (value := getattr(part, name)) != getattr(usual, name)
    }


def _written(value: Any) -> Any:  # noqa: ANN401 - of any field
    if isinstance(value, datetime.timedelta):
        return _duration(value)
    if isinstance(value, tuple):
        return [{"after": _duration(row.after), "percent": row.percent, "gaps": row.gaps} for row in value]
    return value
