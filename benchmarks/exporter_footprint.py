"""Memory, scrape time and CPU share of the exporter on a simulated node of eight GPUs, each held by a pod.

The exporter runs as it does in production: its own process, the real pynvml on a simulated driver, real gRPC to a
simulated kubelet, scraped over HTTP. What differs from a real node is the time that the driver itself takes.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator

from simulator.driver import Board, Reading, environment
from simulator.kubelet import Allocation, Kubelet, PodDevices
from simulator.spec import GpuSpec, NodeSpec

GPUS = 8
START_S = 20.0
SCRAPE_EVERY_S = 15.0
PROMETHEUS = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"


@dataclasses.dataclass(frozen=True)
class Figures:
    """What was measured; memory in MiB, times in milliseconds, CPU in percent of one core."""

    gpus: int
    series: int
    resident_mib: float
    peak_mib: float
    scrape_median_ms: float
    scrape_p99_ms: float
    cpu_percent: float
    threads: int


def _node() -> NodeSpec:
    return NodeSpec("bench", tuple(GpuSpec("H100-SXM5-80GB") for _ in range(GPUS)))


def _arrange(board: Board) -> None:
    for index in range(GPUS):
        reading = Reading(50 + index, 30, 40 * 2**30, 60, 70, 412.345, 98765.4, 1980, 2619)
        board.set_gpu(index, reading)


def _pods(node: NodeSpec) -> list[PodDevices]:
    return [
        PodDevices(
            "training",
            f"llama-{index}",
            (("trainer", (Allocation("nvidia.com/gpu", (node.gpu_uuid(index),)),)),),
        )
        for index in range(GPUS)
    ]


@contextlib.contextmanager
def _exporter(folder: pathlib.Path, socket: pathlib.Path, interval: str) -> Iterator[tuple[int, str]]:
    """A running exporter's process id and URL."""
    command = [
        sys.executable, "-m", "exporter", "--listen=127.0.0.1:0", f"--interval={interval}",
        f"--pod-resources-socket={socket}", "--node-name=bench", "--log-format=json",
    ]  # fmt: skip
    variables = {**os.environ, **environment(folder / "board")}
    with subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                _, serves, url = json.loads(line)["message"].partition(" serves ")
                if serves:
                    _wait_ready(url.removesuffix("/metrics"))
                    yield process.pid, url
                    break
        finally:
            process.terminate()


def _wait_ready(url: str) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(f"{url}/readyz"):
            return
        time.sleep(0.05)
    raise SystemExit(f"the exporter at {url} was not ready within {START_S:g} s")


def _scrape(url: str) -> tuple[float, bytes]:
    request = urllib.request.Request(url, headers={"Accept": PROMETHEUS, "Accept-Encoding": "identity"})
    before = time.perf_counter()
    with urllib.request.urlopen(request) as reply:
        body: bytes = reply.read()
    return (time.perf_counter() - before) * 1000, body


def _cpu_s(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _status(pid: int, name: str) -> int:
    """A number of /proc/PID/status: KiB for memory."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _cpu_percent(pid: int, url: str, seconds: float) -> float:
    """CPU share while the GPUs are read at the interval and one Prometheus scrapes."""
    cpu, started = _cpu_s(pid), time.monotonic()
    while (left := started + seconds - time.monotonic()) > 0:
        _scrape(url)
        time.sleep(min(SCRAPE_EVERY_S, left))
    return 100 * (_cpu_s(pid) - cpu) / (time.monotonic() - started)


def measure(*, scrapes: int, seconds: float, interval: str) -> Figures:
    """Start the node, scrape it, watch it, and stop it."""
    node = _node()
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        folder = pathlib.Path(name)
        socket = folder / "kubelet.sock"
        with Board(folder / "board", node) as board, Kubelet(socket, capacity=(), pods=lambda: _pods(node)):
            _arrange(board)
            with _exporter(folder, socket, interval) as (pid, url):
                times, body = [], b""
                for _ in range(scrapes):
                    took, body = _scrape(url)
                    times.append(took)
                cpu = _cpu_percent(pid, url, seconds)
                return Figures(
                    gpus=GPUS,
                    series=sum(not line.startswith(b"#") for line in body.splitlines()),
                    resident_mib=round(_status(pid, "VmRSS") / 1024, 1),
                    peak_mib=round(_status(pid, "VmHWM") / 1024, 1),
                    scrape_median_ms=round(statistics.median(times), 2),
                    scrape_p99_ms=round(statistics.quantiles(times, n=100)[98], 2),
                    cpu_percent=round(cpu, 2),
                    threads=_status(pid, "Threads"),
                )
    raise SystemExit("the exporter ended before it could be measured; run it by hand to see why")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scrapes", type=int, default=1000, help="how many scrapes to time (default 1000)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to watch the CPU (default 60)")
    parser.add_argument("--interval", default="10s", help="the exporter's --interval (default 10s)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the figures to FILE as well")
    options = parser.parse_args()
    figures = measure(scrapes=options.scrapes, seconds=options.seconds, interval=options.interval)
    if options.json:
        options.json.write_text(json.dumps(dataclasses.asdict(figures), indent=2) + "\n")
    print(f"exporter on {figures.gpus} simulated GPUs, each held by a pod; {figures.series} series")
    print(f"  resident memory    {figures.resident_mib:6.1f} MiB   (peak {figures.peak_mib:.1f})")
    print(f"  scrape, median     {figures.scrape_median_ms:6.2f} ms")
    print(f"  scrape, p99        {figures.scrape_p99_ms:6.2f} ms    ({options.scrapes} scrapes)")
    print(
        f"  CPU                {figures.cpu_percent:6.2f} %     of a core at an interval of {options.interval}"
    )
    print(f"  threads            {figures.threads:6d}")


if __name__ == "__main__":
    main()
