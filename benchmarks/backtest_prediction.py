"""Whether `backtest` foretells: from two weeks of random fleets, what enforcing frees in the third, and whom it hurts.

    a seed ──► three weeks of a fleet ──► replay week 2, with intervals ──► does week 3, when enforced, lie within?

Workloads that have ended are deleted after some days, so that a fleet is as full in its third week as in its second.
"""

import argparse
import array
import dataclasses
import datetime
import itertools
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

from benchmarks._answers import instant
from benchmarks._fleet import Fleet, Member, fleet
from benchmarks._judges import ENFORCING
from benchmarks._records import SAMPLES, STEP_S, WATTS, Record
from rightsizer.kube.owner_kinds import OWNERS
from rightsizer.model import Device, FindingName, ObjectRef
from rightsizer.usage.step_usage import MEMORY_UNIT, MISSING, PER_SHARE, PER_WATT, Column, missing
from rightsizer_history.backtest.judges import PolicyJudge
from rightsizer_history.backtest.recording import Grid, Group, Recording, Track
from rightsizer_history.backtest.recording import Member as Pod
from rightsizer_history.backtest.replay import Terms, replay
from rightsizer_history.backtest.summary import Interval, Summary, summarize
from simulator.gpus.cards import CARDS
from simulator.workloads.draws import DAY_S, seeded

WEEK_S = 7 * DAY_S
SETTLES_S = 2 * WEEK_S
"""For so long a fleet fills, before its first week."""
DELETED_D = 4.0
"""Mean days after its last work until a workload is deleted."""
EVERY = datetime.timedelta(hours=1)
RESTART = datetime.timedelta(minutes=15)
POLICY = ENFORCING.model_copy(
    update={
        "rules": tuple(
            rule.model_copy(update={"findings": {**rule.findings, FindingName.TOO_MANY_REPLICAS: "enforce"}})
            for rule in ENFORCING.rules
        )
    }
)
"""Services are sized, too."""
_API_VERSIONS = {row.kind: row.api_version for row in reversed(OWNERS)}


def recording_of(made: Fleet, weeks: int) -> Recording:
    """What Prometheus holds of the first weeks after a fleet has filled."""
    begin_s = made.begin_s + SETTLES_S
    grid = Grid(instant(begin_s), STEP_S, int(weeks * WEEK_S) // STEP_S)
    groups = (_group(one, made, begin_s, begin_s + weeks * WEEK_S) for one in made.members)
    return Recording(grid, tuple(filter(None, groups)), "dcgm-exporter")


def _group(one: Member, made: Fleet, begin_s: float, until_s: float) -> Group | None:
    """A workload until it is deleted; None where it does not exist in that time."""
    last_s = min(until_s, one.end_s)
    if one.ended_s is not None:
        draw = seeded("deleted", made.seed, one.name)
        last_s = min(last_s, one.ended_s + draw.expovariate(1 / DELETED_D) * DAY_S)
    first, stop = max(0, int(begin_s - one.start_s) // STEP_S), int(last_s - one.start_s) // STEP_S
    if stop <= first:
        return None
    card = CARDS[one.card]
    at = max(0, int(one.start_s - begin_s) // STEP_S)
    pods = []
    for number, records in enumerate(one.records):
        units = card.memory_bytes / 100 / MEMORY_UNIT
        tracks = tuple(
            _track(
                record,
                Device(f"GPU-{one.name}-{number}-{place}", model=card.name),
                at,
                slice(first, stop),
                units,
            )
            for place, record in enumerate(records)
        )
        pods.append(Pod(("team", f"{one.name}-{number}"), f"node-{one.nodes[number]}", one.gpus, tracks))
    ref = ObjectRef(_API_VERSIONS.get(one.kind, "unknown/v1"), one.kind, "team", one.name, one.name)
    return Group(ref, tuple(pods))


def _track(record: Record, device: Device, at: int, part: slice, units: float) -> Track:
    """The same steps in a backtest's units; where nothing was scraped, nothing is known."""
    first, stop = part.start, min(part.stop, len(record.activity))
    counts = [int(b - a) for a, b in itertools.pairwise(record.samples_sum[first : stop + 1])]

    def column(values: Iterator[float]) -> Column:
        return array.array(
            "H", [round(value) if count else MISSING for value, count in zip(values, counts, strict=True)]
        )

    def means(sums: Sequence[float], scale: float) -> Iterator[float]:
        pairs = zip(itertools.pairwise(sums[first : stop + 1]), counts, strict=True)
        return (scale * (b - a) / max(1, count) for (a, b), count in pairs)

    percent = PER_SHARE / 100
    nothing = missing(len(counts))
    return Track(
        device,
        at,
        expected=SAMPLES,
        peak=column(value * percent for value in record.activity[first:stop]),
        mean=column(means(record.activity_sum, percent)),
        traffic=column(value * percent for value in record.traffic[first:stop]),
        memory=column(value * units for value in record.held[first:stop]),
        power_peak=column(value * WATTS * PER_WATT for value in record.watts[first:stop]),
        power_mean=column(means(record.watts_sum, WATTS * PER_WATT)),
        samples=array.array("H", counts),
        busy=nothing,
        moving=nothing,
        unknown=nothing,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A fleet, by its seed and size."""

    seed: int
    workloads: int


def run(case: Case) -> Mapping[str, tuple[Interval, float]]:
    """Of each figure what was predicted, and what came."""
    made = fleet(case.seed, case.workloads, (SETTLES_S + 3 * WEEK_S) / DAY_S)
    predicted, true = (_replayed(recording_of(made, weeks), weeks - 1) for weeks in (2, 3))
    return {
        "GPU-hours freed": (predicted.freed, true.freed.value),
        "stops that return": (predicted.returned, true.returned.value),
        "% of replicas' time short": (_percent(predicted.short), 100 * true.short.value),
    }


def _percent(share: Interval) -> Interval:
    return Interval(100 * share.value, 100 * share.low, 100 * share.high)


def _replayed(recording: Recording, week: int) -> Summary:
    """Enforced from the end of a week on."""
    terms = Terms(EVERY, int(week * WEEK_S) // STEP_S, RESTART)
    replayed = replay(recording, PolicyJudge("enforced", POLICY), terms)
    return summarize(replayed, random.Random(1), lambda _: None)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fleets", type=int, default=100, help="how many (default 100)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--workloads", type=int, default=60, help="of each fleet's five weeks (default 60)")
    options = parser.parse_args()
    began = time.monotonic()
    cases = [Case(seed, options.workloads) for seed in range(options.first, options.first + options.fleets)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(run, cases))
    print(
        "| figure | within the interval | mean predicted | mean truth | mean width |\n|---|---|---|---|---|"
    )
    for name in found[0]:
        pairs = [one[name] for one in found]
        within = sum(known.low <= truth <= known.high for known, truth in pairs)
        means = [
            sum(values) / len(pairs)
            for values in (
                [known.value for known, _ in pairs],
                [truth for _, truth in pairs],
                [known.high - known.low for known, _ in pairs],
            )
        ]
        print(f"| {name} | {within} of {len(pairs)} | {' | '.join(f'{mean:,.2f}' for mean in means)} |")
    print(f"\nin {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
