"""How far the mean of a pod's GPU utilization over an hour is off: gauges read at each scrape, beside our counter.

    workloads ──► truth ──► what NVML shows at an instant ─┬─► gauges at 15, 30 and 60 s
                                                          └─► the exporter's own sampler ──► its counter at 60 s

The gauge is given its best: what NVML says at the very instant of the scrape, not what was sampled some time before.
"""

import argparse
import dataclasses
import math
import random
import re
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks._timelapse import BOOT_S, Timelapse
from benchmarks._workloads import WORKLOADS, Workload
from simulator.gpus.groundtruth import Truth, Work
from simulator.nodes.devices import Container
from simulator.spec import GpuSpec, NodeSpec

DOCS = Path(__file__).parents[1] / "docs" / "attribution.md"
_PART = re.compile(r"(<!-- measured: attribution-error -->\n).*?(<!-- end -->)", re.DOTALL)
_NODE = NodeSpec("h100", (GpuSpec("H100-SXM5-80GB"),))
_START_MS = (BOOT_S + 100_000) * 1000
_WARM_MS = 30_000  # before the hour: what is counted begins with the second look
_HOUR_MS = 3_600_000
_LOOK_MS = 5_000  # the longest that the exporter ever waits between two looks
_SCRAPES_MS = (15_000, 30_000, 60_000)
_COUNTED_MS = 60_000


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """An hour of a workload, as a seed has it."""

    workload: Workload
    seed: int


@dataclasses.dataclass(frozen=True, slots=True)
class Mean:
    """A pod's mean utilization over the hour, in percent: the true one, and what was measured.

    Attributes:
        copies: By the GPU's gauge, for each of _SCRAPES_MS.
        lasts: By a gauge of the newest sample of the pod's process, likewise.
        counted: By our counter.
    """

    true: float
    copies: tuple[float, ...]
    lasts: tuple[float, ...]
    counted: float


def means(case: Case) -> list[Mean]:
    """Of each of its pods."""
    works = _works(case)
    truth = Truth(works)
    counted = _counted(works)
    gauges = [_gauges(truth, works, every_ms) for every_ms in _SCRAPES_MS]
    return [
        Mean(
            true=100 * float(truth.busy_ms(work, _START_MS, _START_MS + _HOUR_MS)) / _HOUR_MS,
            copies=tuple(copy for copy, _ in gauges),
            lasts=tuple(lasts[number] for _, lasts in gauges),
            counted=counted[number],
        )
        for number, work in enumerate(works)
    ]


def _works(case: Case) -> list[Work]:
    begin, end = _START_MS - _WARM_MS, _START_MS + _HOUR_MS + 1_000
    return [
        Work(
            1000 + number,
            begin - 1_000,
            None,
            tuple(bursts(random.Random(f"{case.workload.name} {number} {case.seed}"), begin, end)),
            ((begin - 1_000, 2**30),),
        )
        for number, bursts in enumerate(case.workload.pods)
    ]


def _gauges(truth: Truth, works: Sequence[Work], every_ms: int) -> tuple[float, list[float]]:
    """The mean of the gauge that is the GPU's, and of each pod's that is the last sample of its process.

    As dcgm-exporter has them on a shared GPU: a copy of the GPU's for each pod, or, for two of its metrics, the newest
    sample that the driver's buffer still has of the pod's process.
    """
    copies, lasts = [], []
    for at_ms in range(_START_MS + every_ms, _START_MS + _HOUR_MS + 1, every_ms):
        utilization, samples = truth.buffers(at_ms * 1000)
        copies.append(utilization[-1][1])
        newest = {sample.pid: sample.sm_percent for sample in samples}
        lasts.append([newest.get(work.pid, 0) for work in works])
    return statistics.fmean(copies), [statistics.fmean(column) for column in zip(*lasts, strict=True)]


def _counted(works: Sequence[Work]) -> list[float]:
    """Each pod's mean by the increase of our counter, as the exporter's own code counts."""
    pods = [f"pod-{number}" for number in range(len(works))]
    containers = {
        work: Container("ml", pod, f"00000000-0000-4000-8000-{work.pid:012d}", "main")
        for work, pod in zip(works, pods, strict=True)
    }
    held = {pod: [f"{_NODE.gpu_uuid(0)}::{number}"] for number, pod in enumerate(pods)}
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        lapse = Timelapse(Path(name) / "files", Path(name), spec=_NODE, works=containers, pods=held)
        scraped = []
        with lapse.exporting():
            for at_ms in range(-_WARM_MS, _HOUR_MS + 1, _LOOK_MS):
                if at_ms >= 0 and at_ms % _COUNTED_MS == 0:
                    scraped.append(_busy_s(lapse.look(_START_MS + at_ms)))
                else:
                    lapse.go(_START_MS + at_ms)
    return [100_000 * (scraped[-1][pod] - scraped[0][pod]) / _HOUR_MS for pod in pods]


def _busy_s(samples: Iterable[tuple[str, dict[str, str], float]]) -> dict[str, float]:
    return {labels["pod"]: value for name, labels, value in samples if name == "gpu_pod_busy_seconds_total"}


def table(found: Sequence[tuple[Workload, list[Mean]]], hours: int) -> str:
    """What has been measured, in Markdown."""
    gauges = " | ".join(f"gauge, {every_ms // 1000} s" for every_ms in _SCRAPES_MS)
    lines = [
        f"| workload | true mean | {gauges} | counter, {_COUNTED_MS // 1000} s |",
        f"|{'---|' * (len(_SCRAPES_MS) + 3)}",
    ]
    for workload, pods in found:
        if len(workload.pods) == 1:
            lines.append(_line(workload.name, pods, [pod.copies for pod in pods]))
            continue
        lines.append(_line(f"{workload.name}: the GPU's gauge", pods, [pod.copies for pod in pods]))
        lines.append(_line(f"{workload.name}: last sample of its process", pods, [pod.lasts for pod in pods]))
    note = f"{hours} hours of each, by seed; root mean square of the error / the worst one, in percentage points."
    return "\n".join([*lines, "", f"{note} Made by `python -m benchmarks.attribution_error --write`."])


def _line(name: str, pods: Sequence[Mean], gauges: Sequence[Sequence[float]]) -> str:
    columns = [*zip(*gauges, strict=True), [pod.counted for pod in pods]]
    errors = " | ".join(_error(pods, column) for column in columns)
    true = f"{min(pod.true for pod in pods):.0f} to {max(pod.true for pod in pods):.0f} %"
    return f"| {name} | {true} | {errors} |"


def _error(pods: Sequence[Mean], measured: Sequence[float]) -> str:
    """How far off it is: typically, and at worst."""
    errors = [value - pod.true for value, pod in zip(measured, pods, strict=True)]
    typical, worst = math.sqrt(statistics.fmean(error * error for error in errors)), max(map(abs, errors))
    return " / ".join("< 0.01" if amount < 0.01 else f"{amount:.2g}" for amount in (typical, worst))  # noqa: PLR2004 - as said


def main() -> None:
    """Measure, print, and write into the docs where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=20, help="hours of each workload (default 20)")
    parser.add_argument("--write", action="store_true", help=f"put the table into docs/{DOCS.name}")
    options = parser.parse_args()
    began = time.monotonic()
    cases = [Case(workload, seed) for workload in WORKLOADS for seed in range(options.seeds)]
    with ProcessPoolExecutor() as pool:
        measured = dict(zip(cases, pool.map(means, cases), strict=True))
    found = [
        (workload, [pod for case in cases if case.workload is workload for pod in measured[case]])
        for workload in WORKLOADS
    ]
    text = table(found, options.seeds)
    print(f"{text}\n\nin {time.monotonic() - began:.0f} s")
    if options.write:
        DOCS.write_text(_PART.sub(lambda part: f"{part[1]}\n{text}\n\n{part[2]}", DOCS.read_text()))


if __name__ == "__main__":
    main()
