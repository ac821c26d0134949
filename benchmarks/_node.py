"""A simulated GPU node for benchmarks, and an exporter on it as it runs in production: its own process, over HTTP.

On the node there are pods with processes, whose work goes on.

What differs from a real node is the time that the driver itself takes.
"""

import contextlib
import dataclasses
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence

from benchmarks._tenants import Tenants
from simulator.gpus import Board, Reading, environment
from simulator.nodes.kubelet import Allocation, Kubelet, PodDevices
from simulator.spec import GpuSpec, NodeSpec

GPUS = 8
START_S = 30.0
_ADVANCE_S = 1.0
PROMETHEUS = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
MIB = 1024 * 1024
_SHOW = """
import pynvml
pynvml.nvmlInit()
for index in range(pynvml.nvmlDeviceGetCount()):
    print(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index)))
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """A running exporter."""

    pid: int
    url: str

    def scrape(self) -> tuple[float, bytes]:
        """How long a scrape took in milliseconds, and what it said."""
        request = urllib.request.Request(
            self.url, headers={"Accept": PROMETHEUS, "Accept-Encoding": "identity"}
        )
        before = time.perf_counter()
        with urllib.request.urlopen(request) as reply:
            body: bytes = reply.read()
        return (time.perf_counter() - before) * 1000, body

    @property
    def cpu_s(self) -> float:
        """CPU time used so far, in seconds: by the process's own clock, CPUCLOCK_SCHED of clock_getcpuclockid(3)."""
        return time.clock_gettime((~self.pid << 3) | 2)

    @property
    def resident_mib(self) -> float:
        """Resident memory."""
        return self._status("VmRSS") / 1024

    @property
    def peak_mib(self) -> float:
        """The most that it has been."""
        return self._status("VmHWM") / 1024

    @property
    def threads(self) -> int:
        """How many there are."""
        return self._status("Threads")

    @property
    def descriptors(self) -> int:
        """How many files and sockets are open."""
        return sum(1 for _ in pathlib.Path(f"/proc/{self.pid}/fd").iterdir())

    def _status(self, name: str) -> int:
        """A number of /proc/PID/status: KiB for memory."""
        lines = pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def series(body: bytes) -> int:
    """How many series an exposition has."""
    return sum(bool(line) and not line.startswith(b"#") for line in body.splitlines())


class BenchNode:
    """Eight H100s at work, whole or cut into seven instances each, with a kubelet.

    Args:
        folder: For the board, the kubelet's socket, the host's files and logs.
        instances: Whether the GPUs are cut.
        sharers: How many pods share each GPU; with instances, one pod holds each of them.
        processes: How many each pod has on a device.
        library: The folder of another NVML library; the pods hold the GPUs that it shows.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        instances: bool = False,
        sharers: int = 1,
        processes: int = 1,
        library: pathlib.Path | None = None,
    ) -> None:
        cut = ("1g.10gb",) * 7 if instances else ()
        self.spec = NodeSpec("bench", tuple(GpuSpec("H100-SXM5-80GB", cut) for _ in range(GPUS)))
        self.folder = folder
        self.board = Board(folder / "board", self.spec)
        for index in range(GPUS):
            self.board.set_gpu(
                index, Reading(50 + index, 30, 40 * 2**30, 60, 70, 412.345, 98765.4, 1980, 2619)
            )
        self.tenants = Tenants(folder, self.spec, self.board, each=processes)
        self._library = library
        self.pods = self._holders(sharers)
        self.tenants.settle(self.pods)
        if library is not None:
            self.pods = _holding(_shown(self.variables))
        self.kubelet = Kubelet(folder / "kubelet.sock", capacity=(), pods=lambda: self.pods)

    def _holders(self, sharers: int) -> list[PodDevices]:
        devices = [name for gpu in range(GPUS) for name in self.tenants.ids(gpu)]
        ids: Sequence[str] = devices
        if sharers > 1 and not self.spec.gpus[0].mig:
            ids = [f"{name}::{number}" for name in devices for number in range(sharers)]
        return _holding(ids)

    @property
    def variables(self) -> dict[str, str]:
        """The environment in which a program finds this node's driver."""
        if self._library is not None:
            return {**os.environ, "LD_LIBRARY_PATH": str(self._library)}
        return {**os.environ, **environment(self.folder / "board")}

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """The driver's samples go on as time does."""
        stop = threading.Event()

        def work() -> None:
            while not stop.wait(_ADVANCE_S):
                self.tenants.advance()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    @contextlib.contextmanager
    def exporting(self, *flags: str, interval: str = "10s") -> Iterator[Process]:
        """Our exporter on this node."""
        port = _free_port()
        command = [
            sys.executable, "-m", "exporter", f"--listen=127.0.0.1:{port}", f"--interval={interval}",
            f"--pod-resources-socket={self.kubelet.socket}", f"--proc-root={self.tenants.host.proc}",
            f"--pod-logs={self.tenants.host.logs}", "--node-name=bench", "--log-level=warning", *flags,
        ]  # fmt: skip
        with self.running(command, port, ready="readyz") as process:
            yield process

    @contextlib.contextmanager
    def running(self, command: Sequence[str], port: int, *, ready: str = "metrics") -> Iterator[Process]:
        """Any exporter on this node, once it answers under the path `ready`; its output goes into a log."""
        with (
            (self.folder / "exporter.log").open("wb") as log,
            subprocess.Popen(command, env=self.variables, stdout=log, stderr=log) as process,
        ):
            try:
                _wait(f"http://127.0.0.1:{port}/{ready}", process)
                yield Process(process.pid, f"http://127.0.0.1:{port}/metrics")
            finally:
                process.terminate()

    def close(self) -> None:
        """Put kubelet and driver away."""
        self.kubelet.stop()
        self.board.close()


def _holding(ids: Sequence[str]) -> list[PodDevices]:
    """A pod for each device."""
    return [
        PodDevices("training", f"llama-{number}", (("trainer", (Allocation("nvidia.com/gpu", (name,)),)),))
        for number, name in enumerate(ids)
    ]


def _shown(variables: Mapping[str, str]) -> list[str]:
    """The UUIDs of the GPUs that a library shows."""
    shown = subprocess.run(
        [sys.executable, "-c", _SHOW], env=variables, check=True, capture_output=True, text=True
    )
    return shown.stdout.split()


@contextlib.contextmanager
def bench_node(
    *, instances: bool = False, sharers: int = 1, processes: int = 1, library: pathlib.Path | None = None
) -> Iterator[BenchNode]:
    """A node with a running kubelet."""
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        node = BenchNode(
            pathlib.Path(name), instances=instances, sharers=sharers, processes=processes, library=library
        )
        node.kubelet.start()
        try:
            yield node
        finally:
            node.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait(url: str, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(url):
            return
        time.sleep(0.05)
    raise SystemExit(f"nothing answers at {url} within {START_S:g} s; run it by hand to see why")
