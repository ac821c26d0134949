"""How good the judgement is: fleets whose truth is known, replayed with notices, answers, stops and returns.

    a seed ──► a fleet with parameters of its own ──► at each step: judge ──► what was freed, and what was wrong

Beside our own judgement stand plain rules. Even seeds are for choosing defaults, odd ones are published.
"""

import argparse
import dataclasses
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks._courses import Archetype
from benchmarks._judges import ENFORCING, PLAIN, Ours
from benchmarks._weeks import Outcome, Tally, replay
from rightsizer.policy.policy_file import load
from rightsizer.policy.schema import Policy

DOCS = Path(__file__).parents[1] / "docs" / "judgement.md"
_PART = re.compile(r"(<!-- measured: judgement -->\n).*?(<!-- end -->)", re.DOTALL)
RESAMPLES = 1000
DOUBT = 0.05
ANSWERS = (0.0, 0.5)
MONTH_D = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A fleet under every judge."""

    seed: int
    workloads: int
    days: float | None
    policy: Policy
    answers: tuple[float, ...]


def run(case: Case) -> Mapping[str, Outcome]:
    """What each judge makes of it."""
    ours = (Ours(answers, case.policy) for answers in case.answers)
    return replay(case.seed, case.workloads, (*ours, *PLAIN), case.days)


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A figure of each judge: a ratio of sums over fleets.

    Attributes:
        parts: The numerator and the denominator of one fleet.
        scale: What the ratio is multiplied with.
        text: How it is printed, with its interval.
    """

    head: str
    parts: Callable[[Tally], tuple[float, float]]
    scale: float = 100.0
    text: str = "{0:.0f} % ({1:.0f} to {2:.0f})"


COLUMNS = (
    Column("ended GPU-hours freed", lambda one: (one.ended_freed, one.ended)),
    Column("zombies freed within a day", lambda one: (one.hung_freed, one.hung)),
    Column("of these spinning", lambda one: (one.spun_freed, one.spun)),
    Column("never used GPUs of a pod", lambda one: (one.unused_freed, one.unused)),
    Column("endpoints behind a waker", lambda one: (one.quiet_freed, one.quiet)),
    Column(
        "wrong stops of jobs, notebooks, pods",
        lambda one: (one.wrong, one.stops),
        text="{0:.1f} % ({1:.1f} to {2:.1f})",
    ),
    Column(
        "wrong stops per service and month",
        lambda one: (one.service_wrong, one.service_days),
        MONTH_D,
        "{0:.2f} ({1:.2f} to {2:.2f})",
    ),
)


def overall(fleets: Sequence[Mapping[str, Outcome]]) -> Iterator[str]:
    """A row for each judge, in Markdown."""
    counts = (
        "stopped at work",
        "resizes too far",
        "over-allocated, stopped",
        "services stopped wrongly > 2 times",
    )
    yield f"| judge | {' | '.join([*(column.head for column in COLUMNS), *counts])} |"
    yield f"|{'---|' * (1 + len(COLUMNS) + len(counts))}"
    for name in fleets[0]:
        tallies = [one[name].tally for one in fleets]
        total = sum(tallies[1:], tallies[0])
        cells = [_cell(column, tallies) for column in COLUMNS]
        resizes = f"{total.short:,} of {total.resized:,}" if total.resized else "-"
        cells += [f"{total.at_work:,}", resizes, f"{total.condemned:,}", f"{total.often:,}"]
        yield f"| {' | '.join([name, *cells])} |"


def by_archetype(fleets: Sequence[Mapping[str, Outcome]]) -> Iterator[str]:
    """How often each judge stopped workloads of each archetype, and how often wrongly, in Markdown."""
    names = list(fleets[0])
    yield f"| archetype | {' | '.join(names)} |"
    yield f"|{'---|' * (1 + len(names))}"
    for archetype in Archetype:
        cells = []
        for name in names:
            stops = [one for each in fleets for one in each[name].stops if one.member.archetype is archetype]
            wrong = sum(one.is_wrong for one in stops)
            cells.append(f"{wrong:,} of {len(stops):,}" if stops else "none")
        yield f"| {' | '.join([archetype.value, *cells])} |"


def in_words(fleets: Sequence[Mapping[str, Outcome]]) -> str:
    """What is not in the tables: replicas and wakers, by our judgement."""
    tallies = [one[next(iter(one))].tally for one in fleets]
    total = sum(tallies[1:], tallies[0])
    return (
        f"Advice about replicas would free {_share(total.served_freed, total.served)} of the {total.served:,.0f} "
        f"GPU-hours of replicated services, with too few of them in "
        f"{100 * total.minutes_short / max(1, total.minutes):.2f} % of the minutes. What wakes endpoints did so "
        f"{total.wakes / max(1.0, total.wake_days):.1f} times per endpoint and day."
    )


def report(fleets: Sequence[Mapping[str, Outcome]], case: Case) -> str:
    """All but the stops by archetype, in Markdown."""
    length = f"{case.days:g} days" if case.days else "7 to 14 days"
    return "\n".join(
        [
            *overall(fleets),
            "",
            in_words(fleets),
            "",
            f"{len(fleets)} fleets of {case.workloads} workloads, {length} each, with 95 % intervals over fleets.",
            "Made by `python -m benchmarks.judgement --write`.",
        ]
    )


def _cell(column: Column, tallies: Sequence[Tally]) -> str:
    pairs = [column.parts(one) for one in tallies]
    if not sum(of for _, of in pairs):
        return "-"
    low, high = bounds(pairs)
    return column.text.format(*(column.scale * value for value in (_ratio(pairs), low, high)))


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    of = sum(whole for _, whole in pairs)
    return sum(part for part, _ in pairs) / of if of else 0.0


def bounds(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Between which a ratio of sums lies but for 5 %, by drawing the fleets again and again."""
    draw = random.Random(0)
    found = sorted(_ratio(draw.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    cut = round(RESAMPLES * DOUBT / 2)
    return found[cut], found[-1 - cut]


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def main() -> None:
    """Measure, print, and write into the docs where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fleets", type=int, default=100, help="how many (default 100)")
    parser.add_argument("--even", action="store_true", help="even seeds, for choosing defaults")
    parser.add_argument("--workloads", type=int, default=40, help="of each fleet (default 40)")
    parser.add_argument("--days", type=float, help="of each fleet (default: 7, 10 or 14, by its seed)")
    parser.add_argument("--answers", type=float, help="share of owners who answer (default: 0 and 0.5)")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), help="processes (default: one per core)"
    )
    parser.add_argument("--policy", type=Path, help="judge by this file instead of the defaults")
    parser.add_argument("--write", action="store_true", help=f"put the tables into docs/{DOCS.name}")
    options = parser.parse_args()
    began = time.monotonic()
    policy = load(options.policy).policy if options.policy else ENFORCING
    answers = ANSWERS if options.answers is None else (options.answers,)
    first = 2 if options.even else 1
    seeds = range(first, first + 2 * options.fleets, 2)
    cases = [Case(seed, options.workloads, options.days, policy, answers) for seed in seeds]
    with ProcessPoolExecutor(options.workers) as pool:
        fleets = list(pool.map(run, cases))
    text = report(fleets, cases[0])
    stops = "\n".join(by_archetype(fleets))
    print(f"{text}\n\nWrong stops of all stops:\n\n{stops}\n\nin {time.monotonic() - began:.0f} s")
    if options.write:
        DOCS.write_text(_PART.sub(lambda part: f"{part[1]}\n{text}\n\n{part[2]}", DOCS.read_text()))


if __name__ == "__main__":
    main()
