"""What a cycle of `run` costs while pods and nodes are watched and slots kept, beside one that asks for all.

The fleet, Prometheus and the API server are those of `plan_scale`. Nothing changes between two cycles, so a watch has
only bookmarks to tell. Each way has a process of its own; the first cycle of one that watches has to list. With
`--against`, cycles of `run` of this checkout, of another one and runs of a naive baseline (`naive_pruner.py`) follow.
"""

import argparse
import contextlib
import dataclasses
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks._bigfleet import fleet_of
from benchmarks._builds import builds, show, warm_cycles
from benchmarks._fleetmetrics import STORES
from benchmarks._node import Process
from benchmarks.plan_scale import DEFAULT_SETUP, asking, serving
from rightsizer import cli
from rightsizer.__main__ import parser
from rightsizer.cli.connection import cluster_settings
from rightsizer.cli.plan_session import NO_STATE, KeptState, PlanSession
from rightsizer.evidence.slot_table import KeptTables
from rightsizer.inventory.cluster_reader import KEPT
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.kept_objects import VERIFIED_EVERY, KeptObjects


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """One cycle: seconds of the processor of our process and of Prometheus's, seconds that passed, and MiB."""

    own_s: float
    server_s: float
    wall_s: float
    peak_mib: float
    calls: int
    api_mb: float


class _Counted(Cluster):
    """Counts what is asked, and the bytes of the answers."""

    calls = 0
    read = 0

    def _send(self, method: str, path: str, *given: object, **named: object) -> bytes:
        data = super()._send(method, path, *given, **named)  # type: ignore[arg-type]
        _Counted.calls += 1
        _Counted.read += len(data)
        return data


def cycles(url: str, kubeconfig: Path, server: int, number: int, *, watches: bool) -> Iterator[Figures]:
    """Consecutive cycles."""
    cli.prepare()
    own, prometheus = Process(os.getpid(), ""), Process(server, url)
    arguments = parser().parse_args(["run", *asking(url, kubeconfig)])

    def connect() -> Cluster:
        return _Counted(cluster_settings(arguments))

    with contextlib.ExitStack() as stack:
        kept = NO_STATE
        if watches:
            objects = stack.enter_context(KeptObjects(KEPT, connect, print))
            kept = KeptState(objects, KeptTables(print, print, verified_every=VERIFIED_EVERY), {})
        for _ in range(number):
            _Counted.calls = _Counted.read = 0
            began, own_s, server_s = time.monotonic(), own.cpu_s, prometheus.cpu_s
            session = PlanSession(arguments, kept=kept)
            session.cluster = connect()
            with contextlib.closing(session):
                session.account(session.observe())
            yield Figures(
                own.cpu_s - own_s,
                prometheus.cpu_s - server_s,
                time.monotonic() - began,
                own.peak_mib,
                _Counted.calls,
                _Counted.read / 1e6,
            )


def _show(url: str, kubeconfig: Path, server: int, number: int, watches: bool) -> None:  # noqa: FBT001 - a process's
    for place, one in enumerate(cycles(url, kubeconfig, server, number, watches=watches), 1):
        name = "watched" if watches else "listed"
        print(
            f"{name:8} {place:5} {one.own_s:10.1f} {one.server_s:10.1f} {one.wall_s:9.1f} {one.peak_mib:9.0f} "
            f"{one.calls:9} {one.api_mb:9.1f}",
            flush=True,
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gpus", type=int, default=10_000, help="size of the fleet (default %(default)s)")
    parser.add_argument("--cycles", type=int, default=3, help="of each way (default %(default)s)")
    words = "compare with another checkout and with the naive baseline"
    parser.add_argument("--against", type=Path, metavar="PATH", help=words)
    words = f"how storage holds the samples: {', '.join(STORES)} (default %(default)s)"
    parser.add_argument("--store", default=DEFAULT_SETUP.store, choices=STORES, metavar="NAME", help=words)
    options = parser.parse_args()
    setup = dataclasses.replace(DEFAULT_SETUP, store=options.store)
    with (
        tempfile.TemporaryDirectory(prefix="cycle-scale-") as folder,
        serving(fleet_of(options.gpus), options.gpus, Path(folder), setup) as (prometheus, kubeconfig, _),
    ):
        if options.against:
            process = Process(prometheus.pid, prometheus.url)
            arguments = asking(prometheus.url, kubeconfig)
            costs = warm_cycles(builds(options.against), arguments, process, options.cycles)
            show(f"cycle, {options.gpus:,} GPUs", costs)
            return
        print("pods,    cycle  own CPU s Prom. CPU s passed s  peak MiB API calls API MB read", flush=True)
        context = multiprocessing.get_context("spawn")
        for watches in (False, True):
            given = (prometheus.url, kubeconfig, prometheus.pid, options.cycles, watches)
            one = context.Process(target=_show, args=given)
            one.start()
            one.join()


if __name__ == "__main__":
    main()
