"""Whether the exporter's memory, threads and files stay flat over many scrapes while its world changes.

All along pods and their processes come and go, a GPU is cut and mended, GPUs fail and recover, and the kubelet is
restarted.
"""

import argparse
import itertools
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks._node import GPUS, BenchNode, Process, bench_node
from simulator.nodes.kubelet import Allocation, PodDevices

_CHURN_S = 0.25
_BLOCKS = 10
_CLIENTS = 4
_GPU_IS_LOST = 15


def _churn(node: BenchNode, stop: threading.Event, draw: random.Random) -> None:
    """One change after the other, until told to stop."""
    for number in itertools.count():
        if stop.wait(_CHURN_S):
            return
        node.tenants.advance()
        match number % 6:
            case 0:
                node.pods[:] = _some_pods(node, draw, number)
                node.tenants.settle(node.pods)
            case 1:
                node.tenants.cut(0, draw.choice([(), ("3g.40gb", "1g.10gb"), ("1g.10gb",) * 7]))
            case 2:
                node.kubelet.stop()
                node.kubelet.start()
            case 3:
                node.board.fault("*", gpu=draw.randrange(1, GPUS), code=_GPU_IS_LOST)
            case 4:
                node.tenants.restart(draw)
            case _:
                node.board.clear_faults()


def _some_pods(node: BenchNode, draw: random.Random, number: int) -> list[PodDevices]:
    """Pods that nobody has heard of before, on some of the GPUs and MIG instances, some of them shared."""
    found = []
    for gpu in draw.sample(range(GPUS), draw.randrange(GPUS)):
        for position, device in enumerate(node.tenants.ids(gpu)):
            for sharer in range(draw.randrange(1, 4)):
                name = f"job-{number}-{gpu}-{position}-{sharer}"
                allocation = Allocation("nvidia.com/gpu", (f"{device}::{sharer}",))
                found.append(PodDevices("team", name, (("main", (allocation,)),)))
    return found


def _scrape_many(process: Process, count: int) -> None:
    def some(share: int) -> None:
        for _ in range(share):
            process.scrape()

    with ThreadPoolExecutor(_CLIENTS) as pool:
        list(pool.map(some, [count // _CLIENTS] * _CLIENTS))


def main() -> None:
    """Scrape, change the world, and print what the exporter holds after each tenth."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scrapes", type=int, default=100_000, help="how many in all (default 100000)")
    parser.add_argument("--seed", type=int, default=1, help="of the changes (default 1)")
    options = parser.parse_args()
    stop = threading.Event()
    with bench_node(processes=2) as node, node.exporting(interval="200ms") as process:
        changing = threading.Thread(target=_churn, args=(node, stop, random.Random(options.seed)))
        changing.start()
        print(f"{'scrapes':>8} {'MiB':>6} {'threads':>8} {'files':>6} {'seconds':>8}")
        began = time.monotonic()
        try:
            for block in range(1, _BLOCKS + 1):
                _scrape_many(process, options.scrapes // _BLOCKS)
                print(
                    f"{block * options.scrapes // _BLOCKS:8} {process.resident_mib:6.1f} {process.threads:8} "
                    f"{process.descriptors:6} {time.monotonic() - began:8.0f}",
                    flush=True,
                )
        finally:
            stop.set()
            changing.join()


if __name__ == "__main__":
    main()
