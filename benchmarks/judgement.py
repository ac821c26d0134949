"""How good the judgement is: a week of a simulated cluster, whose truth is known, judged every hour.

    population ──► at each step: judge ──► reclaims ──► what each gave back until the workload would next have worked

Beside our own judgement stand plain rules.
"""

import argparse
import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks._fleet import MIX, TRAINING
from benchmarks._judges import ENFORCING, Ours
from benchmarks._weeks import PLAIN, Advice, Holding, Reclaim, Week, week
from rightsizer.policy.policy_file import load
from rightsizer.policy.schema import Policy
from simulator.workloads.draws import DAY_S, HOUR_S, MINUTE_S

DOCS = Path(__file__).parents[1] / "docs" / "judgement.md"
_PART = re.compile(r"(<!-- measured: judgement -->\n).*?(<!-- end -->)", re.DOTALL)
DOUBT = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A week, as a seed has it."""

    seed: int
    workloads: int
    days: float
    policy: Policy


def run(case: Case) -> Week:
    """That week under every judge."""
    return week(case.seed, case.workloads, case.days, (Ours(policy=case.policy), *PLAIN))


def overall(weeks: Sequence[Week]) -> Iterator[str]:
    """What each judge made of all workloads, in Markdown."""
    yield (
        "| judge | GPU-h recovered | of the waste | of what had ended | reclaims | came back (95 %) "
        "| within 15 min | within a day | training stopped | stopped though at work | spinning found |"
    )
    yield f"|{'---|' * 11}"
    wasted, ended = _sum(weeks, lambda one: one.wasted), _sum(weeks, lambda one: one.ended)
    spinning = round(_sum(weeks, lambda one: one.spinning))
    for name in weeks[0].reclaims:
        found = [reclaim for one in weeks for reclaim in one.reclaims[name]]
        gained = sum(one.gpu_s for one in found)
        right = sum(one.gpu_s for one in found if not one.is_wrong)
        spun = len({(one.seed, one.name) for one in found if one.spins})
        cells = (
            name,
            f"{gained / HOUR_S:,.0f}",
            _share(gained, wasted),
            _share(right, ended),
            f"{len(found):,}",
            _came_back(found),
            _count(found, lambda one: one.returns_s <= 15 * MINUTE_S),
            _count(found, lambda one: one.returns_s <= DAY_S),
            _count(found, lambda one: one.archetype in TRAINING),
            _count(found, lambda one: one.has_worked),
            f"{spun} of {spinning}",
        )
        yield f"| {' | '.join(cells)} |"


def by_archetype(weeks: Sequence[Week]) -> Iterator[str]:
    """What each judge made of each archetype, in Markdown."""
    names = list(weeks[0].reclaims)
    yield f"| archetype | GPU-h held | wasted | of it ended | {' | '.join(names)} |"
    yield f"|{'---|' * (4 + len(names))}"
    for archetype in MIX:
        held, wasted, ended = (
            _sum(weeks, lambda one, what=what: getattr(one, what) if one.archetype is archetype else 0.0)  # type: ignore[misc]  # noqa: B023
            for what in ("held", "wasted", "ended")
        )
        cells = [archetype.value, *(f"{amount / HOUR_S:,.0f}" for amount in (held, wasted, ended))]
        for name in names:
            found = [
                reclaim for one in weeks for reclaim in one.reclaims[name] if reclaim.archetype is archetype
            ]
            back = sum(one.is_wrong for one in found)
            cells.append(
                f"{_share(sum(one.gpu_s for one in found), wasted)}; {back:,} of {len(found):,}"
                if found
                else "none"
            )
        yield f"| {' | '.join(cells)} |"


def advised(advices: Sequence[Advice]) -> str:
    """What advice would have given back, in words."""
    total = Advice(*(sum(values) for values in zip(*map(dataclasses.astuple, advices), strict=True)))
    return (
        f"Beyond that, as advice: too-many-replicas would give back {total.replicas / HOUR_S:,.0f} of the "
        f"{total.held / HOUR_S:,.0f} GPU-hours of replicated services, with more replicas at work than were left in "
        f"{total.short:,} of {total.minutes:,} minutes ({100 * total.short / max(1, total.minutes):.2f} %); "
        f"too-many-gpus {total.gpus / HOUR_S:,.0f} GPU-hours."
    )


def report(weeks: Sequence[Week], case: Case) -> str:
    """All that has been measured, in Markdown."""
    scale = f"{len(weeks)} seeds of {case.workloads} workloads over {case.days:g} days, judged every hour."
    return "\n".join(
        [
            *overall(weeks),
            "",
            *by_archetype(weeks),
            "",
            "Of each judge: the share of the waste that it recovered; how many of its reclaims came back.",
            "",
            advised([one.advice for one in weeks]),
            "",
            f"{scale} Made by `python -m benchmarks.judgement --write`.",
        ]
    )


def _sum(weeks: Sequence[Week], what: Callable[[Holding], float]) -> float:
    return sum(what(holding) for one in weeks for holding in one.holdings)


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def _count(found: Sequence[Reclaim], is_so: Callable[[Reclaim], bool]) -> str:
    return f"{sum(map(is_so, found)):,}"


def _came_back(found: Sequence[Reclaim]) -> str:
    wrong = sum(one.is_wrong for one in found)
    if not found:
        return "-"
    low, high = bounds(wrong, len(found))
    return f"{wrong:,}: {100 * wrong / len(found):.0f} % ({100 * low:.0f} to {100 * high:.0f})"


def bounds(hits: int, of: int) -> tuple[float, float]:
    """Clopper and Pearson's interval of a share, 0 to 1, in which it lies but for 5 % of all cases."""
    low = 0.0 if hits == 0 else _root(lambda share: 1 - _at_most(hits - 1, of, share) - DOUBT / 2)
    high = 1.0 if hits == of else _root(lambda share: DOUBT / 2 - _at_most(hits, of, share))
    return low, high


def _root(rising: Callable[[float], float]) -> float:
    """Where a function that rises from 0 to 1 crosses zero, by halves."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2


def _at_most(hits: int, of: int, share: float) -> float:
    """How probable at most so many hits are, where each is with a probability strictly between 0 and 1."""
    logs = (
        math.lgamma(of + 1)
        - math.lgamma(k + 1)
        - math.lgamma(of - k + 1)
        + k * math.log(share)
        + (of - k) * math.log1p(-share)
        for k in range(hits + 1)
    )
    return math.fsum(map(math.exp, logs))


def main() -> None:
    """Measure, print, and write into the docs where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=3, help="weeks (default 3)")
    parser.add_argument("--workloads", type=int, default=200, help="of each week (default 200)")
    parser.add_argument("--days", type=float, default=7.0, help="of each week (default 7)")
    parser.add_argument(
        "--policy", type=Path, help="judge by this file instead of the defaults; windows in whole half hours"
    )
    parser.add_argument("--write", action="store_true", help=f"put the tables into docs/{DOCS.name}")
    options = parser.parse_args()
    began = time.monotonic()
    policy = load(options.policy).policy if options.policy else ENFORCING
    cases = [Case(seed, options.workloads, options.days, policy) for seed in range(1, options.seeds + 1)]
    with ProcessPoolExecutor() as pool:
        weeks = list(pool.map(run, cases))
    text = report(weeks, cases[0])
    print(f"{text}\n\nin {time.monotonic() - began:.0f} s")
    if options.write:
        DOCS.write_text(_PART.sub(lambda part: f"{part[1]}\n{text}\n\n{part[2]}", DOCS.read_text()))


if __name__ == "__main__":
    main()
