"""Builds of gpu-rightsizer side by side, measured from outside: what each takes of the processor, and its server.

Nothing is imported from a build, so that any two can be compared. They take turns, as the machine may become busier
meanwhile; of several turns the median counts.
"""

import contextlib
import dataclasses
import os
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks._node import Process

ROOT = Path(__file__).parent.parent
_CYCLE = re.compile(r"run \S+: [\d,]+ workloads? ")
_ASKED = re.compile(
    r'^(?:prometheus|vm)_http_requests_total\{[^}]*"/api/v1/query(?:_range)?"[^}]*\} (\S+)', re.MULTILINE
)


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of a build and of the server, MiB of memory of the build at most, and queries."""

    own_s: float
    server_s: float
    wall_s: float
    peak_mib: float
    queries: int

    @property
    def both_s(self) -> float:
        """CPU seconds of both."""
        return self.own_s + self.server_s


@dataclasses.dataclass(frozen=True, slots=True)
class Build:
    """A checkout and its interpreter; the module that is run there."""

    name: str
    root: Path
    module: str = "rightsizer"

    def begin(self, arguments: Sequence[str], output: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        """Begin a command."""
        own = self.root / ".venv/bin/python"
        python = str(own) if own.exists() else sys.executable
        return subprocess.Popen(
            [python, "-m", self.module, *arguments],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root)},
            stdout=output,
            stderr=subprocess.DEVNULL,
            text=True,
        )


def builds(against: Path | None) -> list[Build]:
    """This build and another one, and what asks one question and lists pods once."""
    other = [Build("against", against.absolute())] if against else []
    return [Build("this", ROOT), *other, Build("naive", ROOT, "benchmarks.naive_pruner")]


def plans(found: Sequence[Build], arguments: Sequence[str], server: Process, turns: int) -> dict[str, Cost]:
    """The cost of a plan from scratch of each build; raises CalledProcessError if one fails."""
    costs: dict[str, list[Cost]] = {build.name: [] for build in found}
    for _ in range(turns):
        for build in found:
            own = ["plan", "-o", "json"] if build.module == "rightsizer" else []
            costs[build.name].append(_plan(build, [*own, *arguments], server))
    return {name: _median(each) for name, each in costs.items()}


def _plan(build: Build, arguments: Sequence[str], server: Process) -> Cost:
    began, server_s, queries = time.monotonic(), server.cpu_s, _queries(server)
    with build.begin(arguments) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, [build.name, *arguments])
    return Cost(
        used.ru_utime + used.ru_stime,
        server.cpu_s - server_s,
        time.monotonic() - began,
        used.ru_maxrss / 1024,
        _queries(server) - queries,
    )


def warm_cycles(
    found: Sequence[Build], arguments: Sequence[str], server: Process, number: int
) -> dict[str, Cost]:
    """The cost of a cycle of `run` of each build after its first one, which reads all."""
    return {build.name: _median([*_cycles(build, arguments, server, number)][1:]) for build in found}


def _cycles(build: Build, arguments: Sequence[str], server: Process, number: int) -> Iterator[Cost]:
    """Cycles, one after the other; of what has none, as many runs."""
    if build.module != "rightsizer":
        for _ in range(number):
            yield _plan(build, arguments, server)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    process = build.begin(["run", "--every", "1s", "--listen", address, *arguments], subprocess.PIPE)
    with process, contextlib.ExitStack() as stack:
        stack.callback(process.terminate)
        own = Process(process.pid, "")
        began, own_s, server_s, queries = time.monotonic(), own.cpu_s, server.cpu_s, _queries(server)
        assert process.stdout is not None
        for line in process.stdout:
            if not _CYCLE.search(line):
                continue
            ended = time.monotonic(), own.cpu_s, server.cpu_s, _queries(server)
            yield Cost(
                ended[1] - own_s, ended[2] - server_s, ended[0] - began, own.peak_mib, ended[3] - queries
            )
            began, own_s, server_s, queries = ended
            if not (number := number - 1):
                return
    raise subprocess.CalledProcessError(process.returncode, [build.name, "run"])


def _queries(server: Process) -> int:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as reply:
        return sum(int(float(count)) for count in _ASKED.findall(reply.read().decode()))


def _median(costs: Sequence[Cost]) -> Cost:
    """The cost with the median sum."""
    return statistics.median_low([_ByBoth(cost.both_s, cost) for cost in costs]).cost


@dataclasses.dataclass(order=True, frozen=True, slots=True)
class _ByBoth:
    both_s: float
    cost: Cost = dataclasses.field(compare=False)


_COLUMNS: Mapping[str, tuple[Callable[[Cost], float], str]] = {
    "own CPU s": (lambda cost: cost.own_s, ".2f"),
    "server's": (lambda cost: cost.server_s, ".2f"),
    "both": (lambda cost: cost.both_s, ".2f"),
    "passed s": (lambda cost: cost.wall_s, ".1f"),
    "peak MiB": (lambda cost: cost.peak_mib, ".0f"),
    "queries": (lambda cost: cost.queries, ".0f"),
}


def show(what: str, costs: Mapping[str, Cost]) -> None:
    """Print a table, with the cost of this build as a part of each one's."""
    print(f"{what:24}" + "".join(f"{head:>12}" for head in _COLUMNS) + f"{'this is':>12}")
    for name, cost in costs.items():
        cells = "".join(f"{of(cost):12{form}}" for of, form in _COLUMNS.values())
        print(f"{name:24}{cells}{costs['this'].both_s / max(cost.both_s, 0.01):10.2f} x", flush=True)
    print()
