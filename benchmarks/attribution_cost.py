"""CPU time that finding out who uses the GPUs of a node takes, for each look at them: of 8, 448 and 448 processes."""

import argparse
import contextlib
import dataclasses
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks._node import BenchNode, bench_node

_WARM = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """A node of eight GPUs.

    Attributes:
        name: For people.
        instances: Whether each GPU is cut into seven MIG instances.
        sharers: How many pods share each GPU.
        processes: How many each pod has.
    """

    name: str
    instances: bool = False
    sharers: int = 1
    processes: int = 1


SCENARIOS = (
    Scenario("8 GPUs with 1 process each"),
    Scenario("8 GPUs x 7 MIG instances x 8 processes", instances=True, processes=8),
    Scenario("8 time-sliced GPUs x 56 processes in 7 pods", sharers=7, processes=8),
)


@contextlib.contextmanager
def _looking(node: BenchNode) -> Iterator[Callable[[str], float]]:
    """A program that looks when told how, and returns the CPU seconds of that."""
    command = [
        sys.executable, "-m", "benchmarks._looks",
        str(node.kubelet.socket), str(node.tenants.host.proc), str(node.tenants.host.logs),
    ]  # fmt: skip
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=node.variables, stdin=pipe, stdout=pipe, text=True) as program:

        def look(what: str) -> float:
            assert program.stdin is not None
            assert program.stdout is not None
            node.tenants.advance()
            program.stdin.write(f"{what}\n")
            program.stdin.flush()
            return float(program.stdout.readline())

        yield look


def _mean_ms(look: Callable[[str], float], what: str, *, every_s: float, times: int) -> float:
    """Of looks so far apart."""
    taken = []
    for _ in range(times):
        time.sleep(every_s)
        taken.append(look(what))
    return 1000 * statistics.fmean(taken)


def measure(scenario: Scenario, *, times: int) -> tuple[float, float, float, float]:
    """CPU milliseconds of a look each second, of one each 5 s, of one after 16 s, and of a cycle each second."""
    node = bench_node(instances=scenario.instances, sharers=scenario.sharers, processes=scenario.processes)
    with node as made, _looking(made) as look:
        _mean_ms(look, "cycle", every_s=0.2, times=_WARM)
        each_second = _mean_ms(look, "look", every_s=1.0, times=times)
        each_5_s = _mean_ms(look, "look", every_s=5.0, times=max(1, times // 3))
        full = _mean_ms(look, "look", every_s=16.0, times=1)
        return each_second, each_5_s, full, _mean_ms(look, "cycle", every_s=1.0, times=times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--times", type=int, default=15, help="looks to take the mean of (default 15)")
    parser.add_argument("--only", metavar="WORDS", default="", help="scenarios whose name contains this")
    options = parser.parse_args()
    print(f"{'CPU ms':44} {'look, 1 s':>10} {'5 s':>8} {'16 s':>8} {'cycle':>8}")
    for scenario in SCENARIOS:
        if options.only in scenario.name:
            cells = measure(scenario, times=options.times)
            print(
                f"{scenario.name:44} {cells[0]:10.1f} " + " ".join(f"{cell:8.1f}" for cell in cells[1:]),
                flush=True,
            )


if __name__ == "__main__":
    main()
