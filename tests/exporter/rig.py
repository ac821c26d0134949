"""A GPU node under test: a simulated driver, a simulated kubelet, and the real exporter as a process beside them."""

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from benchmarks._timelapse import samples
from simulator.gpus import Board, Process, Reading, environment
from simulator.nodes.devices import Container
from simulator.nodes.hostfiles import HostFiles
from simulator.nodes.kubelet import Allocation, Kubelet, PodDevices
from simulator.spec import GpuSpec, NodeSpec, Sharing

T = TypeVar("T")
PATIENCE_S = 60.0


def eventually(look: Callable[[], T]) -> T:
    """What `look` returns once it is true; fails after some patience with what it returned last.

    The longer it has waited, the longer it waits: a scrape each 20 ms is work for the exporter that is waited for.
    """
    until, pause_s = time.monotonic() + PATIENCE_S, 0.02
    while not (found := look()):
        assert time.monotonic() < until, f"still {found!r} after {PATIENCE_S} s"
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.2, 0.2)
    return found


def pod(name: str, *device_ids: str, resource: str = "nvidia.com/gpu", container: str = "main") -> PodDevices:
    """A pod of namespace "ml" whose one container holds these devices."""
    return PodDevices("ml", name, ((container, (Allocation(resource, device_ids),)),))


def container(name: str, container: str = "main") -> Container:
    """A container of a pod of namespace "ml"."""
    return Container("ml", name, str(uuid.uuid5(uuid.NAMESPACE_DNS, name)), container)


@dataclasses.dataclass(frozen=True)
class Runs:
    """A process on a GPU and its owner: a pod of namespace "ml", or the host if there is no pod."""

    process: Process
    pod: str = ""
    container: str = "main"
    command: str = "Xorg"
    started_s: float = dataclasses.field(default_factory=lambda: time.time() - 3600)


def reading(**changes: Any) -> Reading:
    """A GPU at work, with some values changed."""
    busy = Reading(
        gpu_util_percent=87,
        memory_util_percent=41,
        memory_used_bytes=20 * 2**30 + 12345,
        temperature_c=61,
        memory_temperature_c=70,
        power_w=412.345,
        energy_j=98765.432,
        sm_clock_mhz=1980,
        mem_clock_mhz=2619,
    )
    return dataclasses.replace(busy, **changes)


@dataclasses.dataclass
class Ended:
    """How a process ended."""

    code: int
    out: str
    err: str


class Exporter:
    """A running exporter."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log: list[dict[str, str]] = []
        self._urls: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(process.stderr,), daemon=True).start()
        self.url = self._urls.get(timeout=PATIENCE_S)

    def _read(self, stream: IO[str]) -> None:
        for line in _lines(stream):
            # The final error is plain text on stderr, not a log line.
            entry = json.loads(line) if line.startswith("{") else {"message": line.strip()}
            self.log.append(entry)
            if " serves " in entry["message"]:
                self._urls.put(entry["message"].split(" serves ")[1].removesuffix("/metrics"))

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Status and body of a GET."""
        request = urllib.request.Request(self.url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def families(self) -> dict[str, Metric]:
        """One scrape, by family."""
        status, text = self.get("/metrics")
        assert status == 200
        return {family.name: family for family in text_string_to_metric_families(text)}

    def series(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """The values of one metric in one scrape, by the values of these labels ("" where one is absent)."""
        _, text = self.get("/metrics")
        # the parser gives counters the suffix that DCGM does not
        return {
            tuple(has.get(label, "") for label in labels): value
            for found, has, value in samples(text)
            if found in {name, f"{name}_total"}
        }

    def messages(self, part: str) -> list[str]:
        """The log messages that contain `part`."""
        return [entry["message"] for entry in list(self.log) if part in entry["message"]]

    def process_threads(self) -> int:
        """How many threads it has."""
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


def _lines(stream: IO[str]) -> Iterator[str]:
    """Until its end, or until the process is killed."""
    with contextlib.suppress(ValueError):
        yield from stream


class Node:
    """A node with simulated GPUs and, if wanted, a kubelet."""

    def __init__(self, folder: Path, spec: NodeSpec, kubelet_folder: Path) -> None:
        self.spec = spec
        self.board_file = folder / "board"
        self.board = Board(self.board_file, spec)
        self.pods: list[PodDevices] = []
        self.kubelet = Kubelet(
            kubelet_folder / "kubelet.sock", capacity=_capacity(spec), pods=lambda: list(self.pods)
        )
        self.host = HostFiles(folder / "proc", folder / "log")
        self.proc = self.host.proc

    def command(self, *flags: str) -> list[str]:
        """The command that starts the exporter on this node."""
        return [
            sys.executable,
            "-m",
            "exporter",
            "--proc-root",
            str(self.proc),
            "--pod-logs",
            str(self.host.logs),
            *flags,
        ]

    def environment(self, **variables: str) -> dict[str, str]:
        """The environment in which the exporter finds this node's driver."""
        return {**_clean_environment(), **environment(self.board_file), **variables}

    def once(self, *flags: str, **variables: str) -> Ended:
        """Run the exporter to its end."""
        return ended(self.command(*flags), self.environment(**variables))

    @contextlib.contextmanager
    def exporting(
        self, *flags: str, ready: bool = True, pods: bool = True, variables: Mapping[str, str] | None = None
    ) -> Iterator[Exporter]:
        """A running exporter, killed in the end if it still runs.

        Args:
            flags: Further flags.
            ready: Wait until it has read the GPUs.
            pods: Point it to this node's kubelet.
            variables: Further variables of its environment.
        """
        socket = str(self.kubelet.socket) if pods else ""
        command = self.command(
            "--listen=127.0.0.1:0", "--interval=200ms", "--log-format=json", "--node-name=node-1",
            f"--pod-resources-socket={socket}", *flags,
        )  # fmt: skip
        surroundings = self.environment(**(variables or {}))
        with subprocess.Popen(command, env=surroundings, stderr=subprocess.PIPE, text=True) as process:
            try:
                exporter = Exporter(process)
                if ready:
                    eventually(lambda: exporter.get("/readyz")[0] == 200)
                yield exporter
            finally:
                process.kill()

    def run(self, gpu: int, *processes: Runs) -> None:
        """Let exactly these processes hold a GPU; a process without a pod is a service of the host."""
        for one in processes:
            if (self.proc / str(one.process.pid)).exists():
                continue
            if one.pod:
                self.host.start(one.process.pid, container(one.pod, one.container), started_s=one.started_s)
            else:
                unit, command = "some.service", one.command
                self.host.start_service(one.process.pid, command, unit=unit, started_s=one.started_s)
        self.board.set_processes(gpu, [one.process for one in processes])

    def close(self) -> None:
        """Stop the kubelet and the driver."""
        self.kubelet.stop()
        self.board.close()


def _capacity(spec: NodeSpec) -> list[Allocation]:
    """What NVIDIA's device plugin offers on such a node (MIG: strategy mixed)."""
    shared = spec.sharing is not Sharing.NONE
    found = []
    for index, gpu in enumerate(spec.gpus):
        for instance, profile in enumerate(gpu.mig):
            found.append(Allocation(f"nvidia.com/mig-{profile}", (spec.mig_uuid(index, instance),)))
        if not gpu.mig:
            uuid = spec.gpu_uuid(index)
            ids = tuple(f"{uuid}::{n}" for n in range(spec.replicas)) if shared else (uuid,)
            found.append(Allocation("nvidia.com/gpu" + ".shared" * shared, ids))
    return found


def ended(command: Sequence[str], variables: dict[str, str]) -> Ended:
    """Run a command to its end."""
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=PATIENCE_S * 2, check=False
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def _clean_environment() -> dict[str, str]:
    drop = ("GPU_EXPORTER_", "DCGM_", "NODE_NAME", "LD_LIBRARY_PATH", "COLUMNS", "NOTIFY_SOCKET", "LISTEN_")
    return {name: value for name, value in os.environ.items() if not name.startswith(drop)}


def without_driver() -> dict[str, str]:
    """An environment in which there is no NVIDIA driver to be found."""
    return _clean_environment()


def h100(count: int) -> NodeSpec:
    """A node of whole H100s."""
    return NodeSpec("h100", tuple(GpuSpec("H100-SXM5-80GB") for _ in range(count)))
