"""The exporter's sampling on a simulated node, in time that is made: hours pass in a moment, and to the microsecond.

Started as a program it is the exporter's own sampler with clocks that read what they are told: a cycle for each instant
that it is sent, and an exposition where one is asked for. Imported, it is the side of tests and benchmarks.
"""

import contextlib
import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from simulator.gpus import Board, environment
from simulator.gpus.groundtruth import Truth, Work
from simulator.nodes.devices import Container
from simulator.nodes.hostfiles import HostFiles
from simulator.nodes.kubelet import Allocation, Kubelet, PodDevices
from simulator.spec import NodeSpec

BOOT_S = 1_700_000_000
"""When the made-up machine was started, in Unix seconds."""
Sample = tuple[str, dict[str, str], float]
"""A series' name, labels and value."""


@dataclasses.dataclass(frozen=True)
class Options:
    """How the exporter is started.

    Attributes:
        shared_gpus: As --shared-gpus.
        naming: As --naming.
        collectors: What it reads.
    """

    shared_gpus: str = "dcgm"
    naming: str = "dcgm"
    collectors: tuple[str, ...] = ("memory", "processes", "utilization")


class Timelapse:
    """A node whose GPU 0 does what a truth says, and the exporter on it.

    Args:
        folder: For its files; the kubelet's socket is made in `short`, for it must have a short name.
        spec: The node.
        works: What each process does, and in which pod's container; without one, it is a service of the host's.
        commands: What those processes are called that are not called as most are.
        pods: Which pods there are, and the device ids that each holds.
    """

    def __init__(
        self,
        folder: Path,
        short: Path,
        *,
        spec: NodeSpec,
        works: Mapping[Work, Container | None],
        pods: Mapping[str, Sequence[str]],
        commands: Mapping[int, str] | None = None,
    ) -> None:
        folder.mkdir()
        self.works = works
        self._commands = commands or {}
        self.truth = Truth(list(works))
        self.spec = spec
        self.board = Board(folder / "board", spec)
        self.host = HostFiles(folder / "proc", folder / "log", boot_s=BOOT_S)
        for container in works.values():
            if container is not None:
                self.host.admit(container)
        self.pods = dict(pods)
        self.kubelet = Kubelet(short / "kubelet.sock", capacity=(), pods=self._listing)
        self._running: set[Work] = set()
        self._program: subprocess.Popen[str] | None = None
        self._environment = {**os.environ, **environment(folder / "board")}

    def _listing(self) -> list[PodDevices]:
        return [
            PodDevices("ml", name, (("main", (Allocation("nvidia.com/gpu", tuple(ids)),)),))
            for name, ids in self.pods.items()
        ]

    @contextlib.contextmanager
    def exporting(self, options: Options | None = None) -> Iterator[None]:
        """The exporter runs."""
        paths = [str(self.kubelet.socket), str(self.host.proc), str(self.host.logs)]
        how = json.dumps(dataclasses.asdict(options or Options()))
        command = [sys.executable, "-m", "benchmarks._timelapse", *paths, how]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        # from the folder that this file's packages are in: the exporter to be tested is the one beside it
        there: dict[str, Any] = {"env": self._environment, "cwd": Path(__file__).parents[1]}
        with self.kubelet, self.board, subprocess.Popen(command, **pipes, **there) as program:
            self._program = program
            try:
                yield
            finally:
                program.stdin.close()  # type: ignore[union-attr]
                program.wait(20)

    def show(self, now_ms: int) -> None:
        """Let the node be as it is at an instant, in Unix milliseconds."""
        alive = {work for work in self.works if work.lives(now_ms)}
        for work in self._running - alive:
            self.host.end(work.pid)
        for work in sorted(alive - self._running, key=lambda work: work.start_ms):
            container, started_s = self.works[work], work.start_ms / 1000
            if container is None:
                command = self._commands.get(work.pid, "dcgmi")
                self.host.start_service(work.pid, command, unit="some.service", started_s=started_s)
            else:
                command = self._commands.get(work.pid, "python")
                self.host.start(work.pid, container, started_s=started_s, command=command)
        self._running = alive
        begun = [work for work in self.works if work.start_ms <= now_ms]
        if begun:
            self.host.give_out(max(begun, key=lambda work: work.start_ms).pid)
        now_us = now_ms * 1000
        self.board.set_processes(0, self.truth.processes(now_ms))
        if self.spec.gpus[0].mig:
            for instance in (None, *range(len(self.spec.gpus[0].mig))):
                busy_us = self.truth.counters(now_us, instance)
                self.board.set_busy(0, busy_us=busy_us, at_us=now_us, instance=instance)
        else:
            self.board.set_samples(0, *self.truth.buffers(now_us))

    def look(self, now_ms: int) -> list[Sample]:
        """What is served of a cycle at an instant, at which the node is as the truth says."""
        self.show(now_ms)
        return self.read(now_ms)

    def read(self, now_ms: int, *, shift_ms: int = 0) -> list[Sample]:
        """What is served of a cycle at an instant.

        Args:
            now_ms: When, by the clock that is never set, from the same beginning as Unix time.
            shift_ms: By how much the clock that shows Unix time has been set forward.
        """
        return list(samples(self._cycle(now_ms, "scrape", shift_ms=shift_ms)))

    def go(self, now_ms: int) -> None:
        """Let the exporter have a cycle at an instant, at which the node is as the truth says; nobody scrapes it."""
        self.show(now_ms)
        self._cycle(now_ms, "go")

    def _cycle(self, now_ms: int, what: str, *, shift_ms: int = 0) -> str:
        assert self._program is not None
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(f"{what} {now_ms} {shift_ms}\n")
        self._program.stdin.flush()
        text: str = json.loads(self._program.stdout.readline())
        return text


def samples(text: str) -> Iterator[Sample]:
    """What an exposition says, as prometheus_client reads it; of a series that was there before, only the value is."""
    family, kind = "", "untyped"
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
        elif line and not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name, labels = _named(family, kind, series)
            yield name, labels, float(value)


@functools.lru_cache(maxsize=2**16)
def _named(family: str, kind: str, series: str) -> tuple[str, dict[str, str]]:
    """Name and labels of a series; its reader costs more than all else that a test does."""
    text = f"# TYPE {family} {kind}\n{series} 0\n"
    (sample,) = [each for found in text_string_to_metric_families(text) for each in found.samples]
    return sample.name, sample.labels


def values(series: Sequence[Sample], name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """The values of one metric, by the values of these labels ("" where one is absent); none stands twice."""
    found = [
        (tuple(has.get(label, "") for label in labels), value) for had, has, value in series if had == name
    ]
    assert len(dict(found)) == len(found), f"{name}: {found}"
    return dict(found)


def _export(socket: str, proc: str, logs: str, how: str) -> None:
    """The program under test."""
    from exporter.attribution.attributor import HostContext  # noqa: PLC0415
    from exporter.attribution.podnames import PodLogFolders  # noqa: PLC0415
    from exporter.attribution.procfs import ProcessScanner  # noqa: PLC0415
    from exporter.model import Naming, SharedGpus  # noqa: PLC0415
    from exporter.nvml.meter import Clocks  # noqa: PLC0415
    from exporter.nvml.session import Session  # noqa: PLC0415
    from exporter.pods.podresources import Kubelet  # noqa: PLC0415
    from exporter.pods.tracker import PodTracker  # noqa: PLC0415
    from exporter.render.exposition import BuildInfo, Scrape, families  # noqa: PLC0415
    from exporter.render.textformat import Format, encode  # noqa: PLC0415
    from exporter.sampling import catalogue  # noqa: PLC0415 - in the program alone
    from exporter.sampling.catalogue import EnabledCollectors  # noqa: PLC0415
    from exporter.sampling.sampler import Sampler, SamplingConfig  # noqa: PLC0415

    now_ns, shift_ns = BOOT_S * 10**9, 0
    options = Options(**json.loads(how))

    def boot_ns() -> int:
        return now_ns - BOOT_S * 10**9

    def unix_ns() -> int:
        return now_ns + shift_ns

    known = catalogue.collectors()
    enabled = EnabledCollectors(tuple(known[name] for name in options.collectors), labels=())
    host = HostContext(
        ProcessScanner(Path(proc)), PodLogFolders(Path(logs)), boot_ns, unix_ns, os.sysconf("SC_CLK_TCK")
    )
    plan = SamplingConfig(enabled, interval_s=1.0, give_up_s=1e9, proc_root=Path(proc), host=host)
    pods = PodTracker(Kubelet(Path(socket), required=True, clock=lambda: boot_ns() / 1e9))
    session = Session(Clocks(boot_ns, unix_ns))
    sampler = Sampler(session, pods, plan, clock=lambda: boot_ns() / 1e9)
    sampler.open().result()
    for line in sys.stdin:
        what, *numbers = line.split()
        now_ns, shift_ns = (int(number) * 10**6 for number in numbers)
        snapshot = sampler.cycle()
        text = ""
        if what == "scrape":
            scrape = Scrape(
                boot_ns() / 1e9,
                "node",
                BuildInfo("0", "3"),
                stale_after_s=10,
                naming=Naming(options.naming),
                shared_gpus=SharedGpus(options.shared_gpus),
            )
            text = encode(families(snapshot, scrape), Format.TEXT).decode()
        sys.stdout.write(json.dumps(text) + "\n")
        sys.stdout.flush()
    sampler.close()


if __name__ == "__main__":
    _export(*sys.argv[1:])
