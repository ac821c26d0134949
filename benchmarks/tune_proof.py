"""Whether `tune` frees more than any fixed window: learned from two weeks of random fleets, judged on the third.

    a seed ──► three weeks of a fleet ──► tune on weeks 1 and 2 ──► replay week 3 ──► GPU-hours freed at equal harm

All judges are the same policy but for its times: its cooldowns, notices and limits of changes hold for each. Harm is
a stop that returns. Between two prices of a mistake, harm and gain are mixed.
"""

import argparse
import dataclasses
import datetime
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

from benchmarks._fleet import fleet
from benchmarks._judges import ENFORCING
from benchmarks._records import STEP_S
from benchmarks.backtest_prediction import RESTART, SETTLES_S, WEEK_S, recording_of
from rightsizer.policy.schema import Defaults, Policy
from rightsizer.policy.thresholds import Thresholds
from rightsizer_history.backtest.judges import Judge, Oracle, PlainRule, PolicyJudge
from rightsizer_history.backtest.recording import Recording
from rightsizer_history.backtest.replay import Terms, replay
from rightsizer_history.backtest.tuning import tuned
from simulator.workloads.draws import DAY_S

EVERY = datetime.timedelta(hours=2)
WINDOWS_H = (1, 4, 12, 24, 48, 72, 96)
PRICES = (1, 4, 12, 24, 48, 96, 192)
"""Of a mistake, in GPU-hours: from careless to careful."""
DRAWS = 1000
BASE = ENFORCING.model_copy(
    update={
        "rules": tuple(rule.model_copy(update={"findings": {}}) for rule in ENFORCING.rules),
        "budgets": (),
    }
)
"""The shipped defaults, where all that is idle is stopped and nothing else happens."""


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """What a judge did in the third week of a fleet, or of several: GPU-hours freed, and workloads hurt."""

    freed: float
    harm: float


def fixed(window_h: float) -> Policy:
    """One window for all kinds, as `defaults.idle` of a policy says it: built-in notices stay."""
    window = datetime.timedelta(hours=window_h)
    idle = Thresholds(window=window, unusedWindow=window, idleFactor=0.0)
    return BASE.model_copy(update={"defaults": Defaults(idle=idle)})


def judges(recording: Recording, stop: int) -> Iterator[Judge]:
    """By name, those that are compared."""
    yield Oracle()
    for hours in (0.5, 24):
        yield PlainRule(f"plain rule, {hours:g} h", datetime.timedelta(hours=hours))
    for window_h in WINDOWS_H:
        yield PolicyJudge(f"fixed window, {window_h:g} h", fixed(window_h))
    yield PolicyJudge("shipped defaults", BASE)
    for price in PRICES:
        policy, _ = tuned(recording, BASE, price, stop=stop)
        yield PolicyJudge(f"tune, price {price:g}", policy)


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A fleet, by its seed and size."""

    seed: int
    workloads: int


def run(case: Case) -> Mapping[str, Point]:
    """Of each judge what it did in the week after those that `tune` learned from."""
    made = fleet(case.seed, case.workloads, (SETTLES_S + 3 * WEEK_S) / DAY_S)
    recording, stop = recording_of(made, 3), int(2 * WEEK_S) // STEP_S
    terms = Terms(EVERY, stop, RESTART)
    return {judge.name: _point(recording, judge, terms) for judge in judges(recording, stop)}


def _point(recording: Recording, judge: Judge, terms: Terms) -> Point:
    replayed = replay(recording, judge, terms)
    changes = [one for account in replayed.accounts for one in account.changes]
    harm = sum(one.needed_after_s is not None for one in changes)
    return Point(sum(account.freed - account.restarts for account in replayed.accounts), harm)


def total(rows: Sequence[Mapping[str, Point]], name: str) -> Point:
    """Of several fleets."""
    return Point(sum(row[name].freed for row in rows), sum(row[name].harm for row in rows))


def gain(rows: Sequence[Mapping[str, Point]], rival: str) -> float:
    """How many times as many GPU-hours `tune` frees as a rival, at the harm of the rival."""
    other = total(rows, rival)
    points = sorted((total(rows, f"tune, price {price:g}") for price in PRICES), key=lambda one: one.harm)
    return freed_at(points, other.harm) / other.freed if other.freed else float("nan")


def freed_at(points: Sequence[Point], harm: float) -> float:
    """The most that judges free by turns with no more harm; doing nothing hurts nobody."""
    known = [Point(0.0, 0.0), *points]
    best = max(one.freed for one in known if one.harm <= harm)
    for one in known:
        for other in known:
            if one.harm <= harm < other.harm:
                share = (harm - one.harm) / (other.harm - one.harm)
                best = max(best, one.freed + share * (other.freed - one.freed))
    return best


def _between(rows: Sequence[Mapping[str, Point]], rival: str) -> str:
    draw = random.Random(1)
    drawn = sorted(gain(draw.choices(rows, k=len(rows)), rival) for _ in range(DRAWS))
    low, high = drawn[DRAWS * 5 // 100], drawn[DRAWS * 95 // 100]
    return f"{gain(rows, rival):.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fleets", type=int, default=16, help="how many (default 16)")
    parser.add_argument("--first", type=int, default=1001, help="the first seed (default 1001)")
    parser.add_argument("--workloads", type=int, default=60, help="of each fleet's five weeks (default 60)")
    options = parser.parse_args()
    began = time.monotonic()
    cases = [Case(seed, options.workloads) for seed in range(options.first, options.first + options.fleets)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        rows = list(pool.map(run, cases))
    print("| judge | GPU-hours freed | hurt | tune at equal harm, times as many (90 %) |\n|---|---|---|---|")
    for name in rows[0]:
        point = total(rows, name)
        times = _between(rows, name) if not name.startswith(("tune", "oracle")) else ""
        print(f"| {name} | {point.freed:,.0f} | {point.harm:,.0f} | {times} |")
    print(f"\nin {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
