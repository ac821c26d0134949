"""`gpu-rightsizer tune`: the times that cost least with the recorded history, as a policy file. Only reads."""

import math
import sys
from typing import Any

import yaml

from rightsizer import prices
from rightsizer.cli.messages import note, progress
from rightsizer.cli.plan_session import policy_of
from rightsizer.errors import UsageError
from rightsizer.policy.schema import API_VERSION
from rightsizer.text import instant
from rightsizer_history.backtest.headroom import HeadroomChoice, tuned_headroom
from rightsizer_history.backtest.replay import Terms
from rightsizer_history.backtest.tuning import is_short, tuned
from rightsizer_history.cli import TuneOptions
from rightsizer_history.cli.backtest_command import enforced, first_cycle, judges_of, question_of, result_of
from rightsizer_history.cli.recorded_history import record
from rightsizer_history.cli.replays import replays
from rightsizer_history.report.tuned_policy import tuned_policy_text

_MOST = 100_000.0
BUILT_IN_RULES: dict[str, Any] = {
    "apiVersion": API_VERSION,
    "kind": "Policy",
    "rules": [{"name": "advise-only", "match": {"everything": True}, "mode": "advise"}],
}


def run(arguments: TuneOptions) -> int:
    """Learn from the first half of the history, judge on the second, print the policy."""
    asked, price = question_of(arguments), _price(arguments.price_of_a_mistake)
    loaded = policy_of(arguments)
    table = prices.load(arguments.prices)
    with progress():
        recording = record(arguments, asked.span, asked.step, [loaded.policy])
    if recording is None:
        return 0
    half = first_cycle(recording, 2)
    short = is_short(recording, half)
    policy, choices = tuned(recording, loaded.policy, price, stop=half, shortens=not short)
    if not choices:
        note("no kind has enough gaps to learn from: the policy is as it was; a longer --from has more")
    if short:
        note(
            "it learns from less than a week, so nothing waits shorter than before; a longer --from has more"
        )
    headroom: tuple[HeadroomChoice, ...] = ()
    if not short:
        policy, headroom = tuned_headroom(recording, policy, price, stop=half, every=asked.every)
    judged = [("before", enforced(loaded.policy)), ("tuned", enforced(policy))]
    terms = Terms(asked.every, half, asked.restart)
    results = list(replays(recording, list(judges_of(judged, asked)), terms))
    result = result_of(recording, terms, results, dict(judged), table, is_enforced=True)
    grid, reserve = (
        recording.grid,
        ", less than a week, so nothing waits shorter than before" if short else "",
    )
    sys.stdout.write(
        tuned_policy_text(
            yaml.safe_load(arguments.policy.read_text("utf-8")) if arguments.policy else BUILT_IN_RULES,
            policy,
            [*choices, *headroom],
            result,
            learned=f"{instant(grid.time(recording.first))} to {instant(grid.time(half))}{reserve}",
            price=price,
        )
    )
    return 0


def _price(text: str) -> float:
    """GPU-hours.

    Raises:
        UsageError: It is no number that is possible.
    """
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not 0 < price <= _MOST:
        raise UsageError(
            f'--price-of-a-mistake "{text}": write GPU-hours, above 0 and up to {_MOST:,.0f}, such as 24'
        )
    return price
