"""How many GPU-hours sizing frees: inference fleets with parameters drawn at random, each sized in closed loop.

    fleet ──► minute by minute: replicas at work ──► each cycle: sizer ──► replicas, once started ──► short minutes

Defaults were chosen on fleets of even seeds; the figures are of odd ones.
"""

import argparse
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks._serving import Outcome, live, service
from benchmarks._sizers import EVERY, SIZERS, Ours, all_replicas
from rightsizer.policy.policy_file import load
from rightsizer.policy.schema import Policy

DOCS = Path(__file__).parents[1] / "docs" / "judgement.md"
_PART = re.compile(r"(<!-- measured: serving -->\n).*?(<!-- end -->)", re.DOTALL)
_DRAWS = 1000
_HUNDRED = 100

Row = dict[str, Outcome]
"""What came of one fleet, by who sized it."""


def run(seed: int, days: int, policy: Policy | None, names: Sequence[str]) -> Row:
    """One fleet under each sizer; minutes that are short with all replicas too are nobody's fault."""
    of = service(seed, days)
    whole = live(of, all_replicas, every=EVERY, days=days)
    found = {}
    for name in names:
        make, every = SIZERS[name]
        sizer = Ours(policy) if policy and make is Ours else make()
        outcome = live(of, sizer, every=every, days=days)
        found[name] = outcome.beyond(whole)
    return found


def table(rows: Sequence[Row]) -> Iterator[str]:
    """All sizers, in Markdown."""
    yield (
        "| sized by | GPU-hours freed (95 %) | minutes short (95 %) | worst tenth of the fleets "
        "| changes a day for 100 replicas |"
    )
    yield f"|{'---|' * 5}"
    for name in rows[0]:
        found = [row[name] for row in rows]
        tenth = sorted(one.short for one in found)[len(found) * 9 // 10]
        cells = (
            name,
            _between(found, _freed),
            _between(found, _short, digits=2),
            f"{_HUNDRED * tenth:.2f} %",
            f"{_changes(found):.0f}",
        )
        yield f"| {' | '.join(cells)} |"


def _freed(found: Sequence[Outcome]) -> float:
    return sum(one.freed * one.replicas for one in found) / sum(one.replicas for one in found)


def _short(found: Sequence[Outcome]) -> float:
    return sum(one.short for one in found) / len(found)


def _changes(found: Sequence[Outcome]) -> float:
    return _HUNDRED * sum(one.changes for one in found) / sum(one.replicas for one in found)


def _between(found: Sequence[Outcome], what: Callable[[Sequence[Outcome]], float], *, digits: int = 1) -> str:
    """A figure, and where it lies in 95 % of as many fleets drawn from these with replacement."""
    draw = random.Random(1)
    drawn = sorted(what(draw.choices(found, k=len(found))) for _ in range(_DRAWS))
    low, high = drawn[_DRAWS * 25 // 1000], drawn[_DRAWS * 975 // 1000]
    return f"{100 * what(found):.{digits}f} % ({100 * low:.{digits}f} to {100 * high:.{digits}f})"


def _one(case: tuple[int, int, Policy | None, Sequence[str]]) -> Row:
    return run(*case)


def main() -> None:
    """Measure, print, and write into the docs where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fleets", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--days", type=int, default=1, help="of each, from all replicas on (default 1)")
    parser.add_argument("--even", action="store_true", help="those on which defaults are chosen")
    parser.add_argument("--only", action="append", choices=SIZERS, help="one of the sizers; several times")
    parser.add_argument("--policy", type=Path, help="size by this file instead of the defaults")
    parser.add_argument("--processes", type=int, default=1, help="(default 1)")
    parser.add_argument("--write", action="store_true", help=f"put the table into docs/{DOCS.name}")
    options = parser.parse_args()
    began = time.monotonic()
    policy = load(options.policy).policy if options.policy else None
    seeds = range(0 if options.even else 1, 2 * options.fleets, 2)
    cases = [(seed, options.days, policy, options.only or list(SIZERS)) for seed in seeds]
    if options.processes == 1:
        rows = list(map(_one, cases))
    else:
        with ProcessPoolExecutor(options.processes) as pool:
            rows = list(pool.map(_one, cases))
    text = "\n".join(
        [
            *table(rows),
            "",
            (
                f"{len(rows)} fleets of 5 to 150 replicas over {options.days * 24} hours, a cycle in {EVERY} minutes. "
                "Made by `python -m benchmarks.serving --write`."
            ),
        ]
    )
    print(f"{text}\n\nin {time.monotonic() - began:.0f} s")
    if options.write:
        DOCS.write_text(_PART.sub(lambda part: f"{part[1]}\n{text}\n\n{part[2]}", DOCS.read_text()))


if __name__ == "__main__":
    main()
