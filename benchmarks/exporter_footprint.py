"""Memory, scrape time and CPU share of the exporter on nodes of eight GPUs; nvitop-exporter beside it.

The driver is simulated, or any library: `--library FOLDER` with libnvidia-ml.so.1, whose GPUs the pods then hold.
"""

import argparse
import contextlib
import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping

from benchmarks._node import Process, bench_node, series

SCRAPE_EVERY_S = 10.0
PEER = "nvitop-exporter, beside it"
_SECOND_CYCLE = 1.2  # intervals after which there is all that there will be: accounts begin with the first
_PEER_PORT = 19_871
_ROOT = pathlib.Path(__file__).parent.parent


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """What is measured.

    Attributes:
        name: For people.
        instances: Whether each GPU is cut into seven MIG instances, each with a pod.
        sharers: How many pods share each GPU.
        processes: How many each pod has on its device.
        metrics: Which set is served.
        peer: Whether nvitop-exporter runs beside it.
    """

    name: str
    instances: bool = False
    sharers: int = 1
    processes: int = 1
    metrics: str = "default"
    peer: bool = False


SCENARIOS = (
    Scenario("8 GPUs with pods", peer=True),
    Scenario("56 MIG instances with pods of 8 processes", instances=True, processes=8),
    Scenario("8 GPUs with pods, all metrics", metrics="full"),
    Scenario("8 GPUs, each shared by 12 pods, all metrics", sharers=12, metrics="full"),
    Scenario("8 GPUs, each shared by 7 pods of 8 processes", sharers=7, processes=8),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """What was measured; memory in MiB, times in milliseconds, CPU in percent of one core."""

    scenario: str
    series: int
    resident_mib: float
    peak_mib: float
    scrape_median_ms: float
    scrape_p99_ms: float
    cpu_percent: float
    threads: int


def measure(
    scenario: Scenario,
    *,
    scrapes: int,
    seconds: float,
    interval: str,
    peer: pathlib.Path | None,
    library: pathlib.Path | None,
) -> list[Figures]:
    """Start the node, scrape the exporter and with a peer both, watch them at the same time, and stop them."""
    made = bench_node(
        instances=scenario.instances,
        sharers=scenario.sharers,
        processes=scenario.processes,
        library=library,
    )
    with made as node, node.working(), contextlib.ExitStack() as running:
        found = {
            scenario.name: running.enter_context(
                node.exporting(f"--metrics={scenario.metrics}", interval=interval)
            )
        }
        if peer is not None:
            command = [
                *(str(peer), f"--port={_PEER_PORT}", "--bind-address=127.0.0.1"),
                f"--interval={interval.removesuffix('s')}",
            ]
            found[PEER] = running.enter_context(node.running(command, _PEER_PORT))
        time.sleep(_SECOND_CYCLE * float(interval.removesuffix("s")))
        return _watch(found, scrapes, seconds)


def _watch(processes: Mapping[str, Process], scrapes: int, seconds: float) -> list[Figures]:
    scraped = {name: [process.scrape() for _ in range(scrapes)] for name, process in processes.items()}
    cpu = _cpu_percent(processes, seconds)
    return [
        Figures(
            scenario=name,
            series=series(scraped[name][-1][1]),
            resident_mib=round(process.resident_mib, 1),
            peak_mib=round(process.peak_mib, 1),
            scrape_median_ms=round(statistics.median(took for took, _ in scraped[name]), 2),
            scrape_p99_ms=round(statistics.quantiles((took for took, _ in scraped[name]), n=100)[98], 2),
            cpu_percent=round(cpu[name], 3),
            threads=process.threads,
        )
        for name, process in processes.items()
    ]


def _cpu_percent(processes: Mapping[str, Process], seconds: float) -> dict[str, float]:
    """CPU shares while the GPUs are read at the interval and one Prometheus scrapes."""
    cpu, started = {name: process.cpu_s for name, process in processes.items()}, time.monotonic()
    while (left := started + seconds - time.monotonic()) > 0:
        for process in processes.values():
            process.scrape()
        time.sleep(min(SCRAPE_EVERY_S, left))
    took = time.monotonic() - started
    return {name: 100 * (process.cpu_s - cpu[name]) / took for name, process in processes.items()}


def _peer() -> pathlib.Path | None:
    """Nvitop-exporter in an environment of its own; none where it cannot be installed."""
    home = _ROOT / "build" / "peer"
    uv = pathlib.Path(sys.executable).parent / "uv"
    lock = _ROOT / "requirements" / "peer.lock"
    made = subprocess.run([uv, "venv", "-q", "--clear", "-p", sys.executable, home], check=False)
    installed = made.returncode == 0 and subprocess.run(
        [uv, "pip", "install", "-q", "--python", home / "bin" / "python", "--require-hashes", "-r", lock],
        check=False,
    )
    return home / "bin" / "nvitop-exporter" if installed and installed.returncode == 0 else None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scrapes", type=int, default=500, help="how many scrapes to time (default 500)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to watch the CPU (default 60)")
    parser.add_argument("--interval", default="10s", help="the exporters' interval in seconds (default 10s)")
    parser.add_argument("--library", type=pathlib.Path, metavar="FOLDER", help="of another NVML library")
    parser.add_argument("--only", metavar="WORDS", default="", help="scenarios whose name contains this")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the figures to FILE as well")
    options = parser.parse_args()
    chosen = [scenario for scenario in SCENARIOS if options.only in scenario.name]
    peer = _peer() if any(scenario.peer for scenario in chosen) else None
    print(
        f"{'':44} {'series':>6} {'MiB':>6} {'peak':>6} {'median ms':>9} {'p99 ms':>7} {'CPU %':>6} {'threads':>7}"
    )
    found: list[Figures] = []
    for scenario in chosen:
        figures = measure(
            scenario,
            scrapes=options.scrapes,
            seconds=options.seconds,
            interval=options.interval,
            peer=peer if scenario.peer else None,
            library=options.library,
        )
        for one in figures:
            print(
                f"{one.scenario:44} {one.series:6} {one.resident_mib:6.1f} {one.peak_mib:6.1f} "
                f"{one.scrape_median_ms:9.2f} {one.scrape_p99_ms:7.2f} {one.cpu_percent:6.2f} {one.threads:7}",
                flush=True,
            )
        if len(figures) > 1:
            own, other = figures
            resident, cpu = own.resident_mib / other.resident_mib, own.cpu_percent / other.cpu_percent
            print(
                f"{'its memory and CPU in those of the peer':44} {resident:.2f} and {cpu:.2f} times",
                flush=True,
            )
        found += figures
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(one) for one in found], indent=2) + "\n")


if __name__ == "__main__":
    main()
