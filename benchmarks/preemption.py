"""Who goes for an urgent pod, and how soon it runs: kube-scheduler alone, the extender, onlyForPendingPods.

Random clusters on a real control plane, each three times: nodes filled with idle and busy jobs of lower priority, and
one pod that asks for more than is free.
"""

import argparse
import contextlib
import dataclasses
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from simulator.prometheus import Prometheus
from tests.controlplane.extended import Extended
from tests.controlplane.world import RealWorld, uids

_WAIT_S = 60.0
_POLL_S = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """A job that fills a part of a node."""

    name: str
    node: int
    gpus: int
    is_idle: bool
    priority_class: str


@dataclasses.dataclass(frozen=True, slots=True)
class Drawn:
    """A cluster without a free GPU, and how many the urgent pod asks for."""

    nodes: tuple[int, ...]
    jobs: tuple[Job, ...]
    asked: int

    @property
    def would_idle_do(self) -> bool:
        """Whether the idle jobs of one node hold enough."""
        idle = (
            sum(job.gpus for job in self.jobs if job.node == node and job.is_idle)
            for node in range(len(self.nodes))
        )
        return max(idle) >= self.asked


@dataclasses.dataclass(frozen=True, slots=True)
class Went:
    """What became of a cluster: seconds until the urgent pod ran (None: it did not), and who went."""

    drawn: Drawn
    took_s: float | None
    gone: tuple[Job, ...]

    def gpus(self, *, idle: bool) -> int:
        """GPUs of the idle, or of the busy, jobs that went."""
        return sum(job.gpus for job in self.gone if job.is_idle == idle)


def drawn(source: random.Random) -> Drawn:
    """A cluster at random."""
    nodes = tuple(source.choice((4, 8)) for _ in range(source.randint(1, 3)))
    jobs: list[Job] = []
    for node, gpus in enumerate(nodes):
        left = gpus
        while left:
            size = source.choice([size for size in (1, 2, 4) if size <= left])
            name, rank = f"job-{len(jobs)}", source.choice(("low-priority", "medium-priority"))
            jobs.append(Job(name, node, size, source.choice((False, True)), rank))
            left -= size
    return Drawn(nodes, tuple(jobs), source.choice((1, 2, 4)))


Mode = Callable[[RealWorld], contextlib.AbstractContextManager[str]]
"""While entered, what helps is running; the PriorityClass of the urgent pod."""


def modes(extended: Extended) -> Mapping[str, Mode]:
    """Each by its name."""

    @contextlib.contextmanager
    def alone(_: RealWorld) -> Iterator[str]:
        yield "high-priority"

    @contextlib.contextmanager
    def extender(world: RealWorld) -> Iterator[str]:
        with extended.extending(world, world.on_demand_policy("suspend"), every="2m"):
            yield "high-priority"

    @contextlib.contextmanager
    def pending(world: RealWorld) -> Iterator[str]:
        patient = world.priority_class("patient-high", 100_000, preemptionPolicy="Never")
        with world.loop(world.on_demand_policy("suspend")):
            yield patient

    return {"kube-scheduler alone": alone, "with the extender": extender, "onlyForPendingPods": pending}


def played(cluster: Drawn, mode: Mode, extended: Extended, prometheus: Prometheus, folder: Path) -> Went:
    """A cluster in one mode."""
    folder.mkdir()
    with RealWorld(extended.plane, prometheus, folder) as world:
        for number, gpus in enumerate(cluster.nodes):
            world.node(gpus=gpus, labels={"slot": str(number)})
        before = {}
        for job in cluster.jobs:
            place = {"slot": str(job.node)}
            usage = "idle" if job.is_idle else "busy"
            pods = world.add(
                "Job", job.name, usage, gpus=job.gpus, priorityClass=job.priority_class, nodeSelector=place
            )
            before[job.name] = uids(pods)
        with mode(world) as urgent:
            began = time.monotonic()
            world.create("Job", "urgent", gpus=cluster.asked, priorityClass=urgent)
            took_s = _until_running(world, began)
            gone = [job for job in cluster.jobs if not before[job.name] <= _left(world, job.name)]
    return Went(cluster, took_s, tuple(gone))


def _until_running(world: RealWorld, began: float) -> float | None:
    while time.monotonic() - began < _WAIT_S:
        if any(pod["status"]["phase"] == "Running" for pod in world.pods("urgent")):
            return time.monotonic() - began
        time.sleep(_POLL_S)
    return None


def _left(world: RealWorld, name: str) -> set[str]:
    return uids([pod for pod in world.pods(name) if "deletionTimestamp" not in pod["metadata"]])


def _row(name: str, found: Sequence[Went]) -> str:
    times = sorted(one.took_s for one in found if one.took_s is not None)
    half = f"{statistics.median(times):.1f}" if times else "-"
    last = f"{times[min(len(times) - 1, int(0.99 * len(times)))]:.1f}" if times else "-"
    avoidable = [one for one in found if one.drawn.would_idle_do]
    spared = sum(one.gpus(idle=False) for one in avoidable)
    busy, idle = (sum(one.gpus(idle=is_idle) for one in found) for is_idle in (False, True))
    return f"{name:<22} {len(times):>4} of {len(found):<4} {half:>7} {last:>7} {spared:>10} {busy:>10} {idle:>10}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clusters", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    found: dict[str, list[Went]] = {}
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        extended = Extended(folder)
        with extended.plane, Prometheus(folder / "prometheus") as prometheus:
            for number in range(arguments.clusters):
                cluster = drawn(random.Random(arguments.seed + number))
                for place, (name, mode) in enumerate(modes(extended).items()):
                    made = played(cluster, mode, extended, prometheus, folder / f"{number}-{place}")
                    found.setdefault(name, []).append(made)
    able = sum(one.drawn.would_idle_do for one in next(iter(found.values())))
    print(f"{arguments.clusters} clusters; in {able} the idle jobs of one node hold enough")
    print("                             served  median s  99 %  busy GPUs  busy GPUs  idle GPUs")
    print("                                                     where idle     in all")
    print("                                                       would do")
    for name, rows in found.items():
        print(_row(name, rows))


if __name__ == "__main__":
    main()
