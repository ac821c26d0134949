"""What a replay of a policy costs: a random fleet over weeks, replayed by one process, and by two.

The fleet is that of `backtest_prediction`; the policy is the built-in one, as `backtest --enforce` asks it.
"""

import argparse
import datetime
import os
import resource
import time
from collections.abc import Mapping, Sequence
from unittest import mock

from benchmarks._fleet import fleet
from benchmarks.backtest_prediction import EVERY, RESTART, SETTLES_S, WEEK_S, recording_of
from rightsizer.policy.policy_file import BUILT_IN
from rightsizer_history.backtest.judges import PolicyJudge
from rightsizer_history.backtest.recording import Recording
from rightsizer_history.backtest.replay import Terms
from rightsizer_history.cli.backtest_command import WARM_UP, enforced
from rightsizer_history.cli.replays import replays
from simulator.workloads.draws import DAY_S

GPUS_OF_WORKLOAD = 1.2
"""In such a fleet, of those that exist at a time."""


def measure(recording: Recording, processes: int) -> Mapping[str, float]:
    """Seconds by the wall, CPU seconds, and the largest process in MiB."""
    terms = Terms(EVERY, recording.grid.steps // WARM_UP, RESTART)
    judge = PolicyJudge("built-in policy", enforced(BUILT_IN.policy))
    began, cpu_s = time.monotonic(), _cpu_s()
    with mock.patch.object(os, "sched_getaffinity", return_value=set(range(processes))):
        replays(recording, [judge], terms)
    # Of processes of their own, the peak is without that of making the fleet.
    who = resource.RUSAGE_CHILDREN if processes > 1 else resource.RUSAGE_SELF
    peak = resource.getrusage(who).ru_maxrss
    return {"wall_s": time.monotonic() - began, "cpu_s": _cpu_s() - cpu_s, "peak_mib": peak / 1024}


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main(arguments: Sequence[str] | None = None) -> None:
    """The table of one fleet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=500, help="roughly so many [500]")
    parser.add_argument("--days", type=int, default=30, help="[30]")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], help="[1 2]")
    parser.add_argument("--seed", type=int, default=7, help="[7]")
    asked = parser.parse_args(arguments)
    recording = recording_of(
        fleet(asked.seed, round(asked.gpus / GPUS_OF_WORKLOAD), SETTLES_S / DAY_S + asked.days),
        asked.days * DAY_S / WEEK_S,
    )
    length = datetime.timedelta(days=asked.days)
    print(f"{recording.most_gpus:,.0f} GPUs at most, {len(recording.groups):,} workloads, {length.days} days")
    print(f"{'processes':>9} {'elapsed s':>10} {'CPU s':>8} {'peak MiB':>9}")
    for processes in asked.processes:
        found = measure(recording, processes)
        print(f"{processes:9} {found['wall_s']:10.1f} {found['cpu_s']:8.1f} {found['peak_mib']:9.0f}")


if __name__ == "__main__":
    main()
