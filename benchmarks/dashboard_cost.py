"""What the dashboard costs Prometheus at 10,000 GPUs: each query of its default six hours, and each group of rules.

Real are Prometheus, the rules and the queries. Made up are the fleet (`_bigfleet.py`) and what exporters and
kube-state-metrics serve of it. The rules are evaluated once over that, which is timed and tells what they record; what
they would have recorded in six hours goes into a second Prometheus's storage as blocks (`_tsdb.py`).

A line has as many points as Grafana asks for on a screen of 1,920 pixels, but no more than its panel's step allows.
Prometheus is asked one question at a time; the best of some tries counts. On a crowded machine the seconds that pass
are more than the processor's, which a quiet machine with a core to spare needs.
"""

import argparse
import itertools
import os
import random
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks._bigfleet import Fleet, fleet_of
from benchmarks._tsdb import Block, Column, Labels
from dashboards.__main__ import RULES
from dashboards.panels import Kind, Panel
from dashboards.rows import ROWS, VARIABLES
from rightsizer.report.metrics import METRICS
from simulator.prometheus import Prometheus
from simulator.series_store import Series

_HOURS = 6
_VARIANTS = 64
_SCREEN = 1920
_GRID = 24
_SCRAPE_S = 30
_RAW = {
    "DCGM_FI_DEV_FB_USED": 40_000.0,
    "DCGM_FI_DEV_FB_FREE": 40_000.0,
    "DCGM_FI_DEV_GPU_UTIL": 50.0,
    "DCGM_FI_DEV_GPU_TEMP": 60.0,
    "DCGM_FI_DEV_POWER_USAGE": 400.0,
    "DCGM_FI_DEV_SM_CLOCK": 1_900.0,
    "DCGM_FI_DEV_XID_ERRORS": 0.0,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 0.0,
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 0.0,
    "gpu_busy_seconds_total": 0.0,
    "gpu_pod_busy_seconds_total": 0.0,
    "gpu_pod_memory_used_bytes": 4e10,
    "gpu_throttle_seconds_total": 0.0,
}
_LABEL_VALUES = {
    "priority_class": ("training", "serving", "interactive", "batch-low"),
    "verdict": ("act", "keep", "protected", "unknown"),
    "finding": ("idle", "stuck", "busy"),
    "cause": ("budget", "errors"),
    "action": ("scale-to-zero", "suspend", "evict", "record-revert", "rollback"),
    "result": ("done", "refused"),
}


def measure(gpus: int, folder: Path, tries: int) -> None:
    """Make a fleet, let the rules be evaluated and the dashboard be asked, and print what each took."""
    now_s = int(time.time()) // 60 * 60
    fleet = fleet_of(gpus)
    scraped = range(now_s - 600, now_s + 1, _SCRAPE_S)
    Block(folder / "raw" / "data", 1, shares_chunks=True).write(
        itertools.chain(_served(fleet, scraped), _rightsizers(scraped))
    )
    with Prometheus(folder / "raw") as prometheus:
        recorded = _evaluate(prometheus, now_s)
    minutes = range(now_s - _HOURS * 3600, now_s + 1, 60)
    block = Block(folder / "recorded" / "data", 1, shares_chunks=True)
    block.write(itertools.chain(_kept(recorded, minutes), _rightsizers(minutes)))
    print(f"\n{gpus:,} GPUs: {block.series:,} recorded series, {_HOURS} hours of them")
    with Prometheus(folder / "recorded") as prometheus:
        _show(prometheus, minutes, tries)


def _served(fleet: Fleet, scraped: range) -> Iterator[tuple[Labels, Column]]:
    columns = {
        name: Column(
            scraped,
            [base + (second - scraped[0]) / 2 * name.endswith("seconds_total") for second in scraped],
        )
        for name, base in {**_RAW, "one": 1.0}.items()
    }
    for node in fleet.nodes:
        yield _sorted({"__name__": "up", **_target(node)}), columns["one"]
    for workload in fleet.workloads:
        for pod in workload.pods:
            names = {"namespace": workload.namespace, "pod": pod.name}
            info = {
                "__name__": "kube_pod_info",
                "node": pod.node,
                "priority_class": workload.row.priority_class,
            }
            yield _sorted(info | names), columns["one"]
            owner = {
                "__name__": "kube_pod_owner",
                "owner_kind": workload.row.kind,
                "owner_name": workload.name,
            }
            yield _sorted(owner | names), columns["one"]
            for place, device in enumerate(pod.devices):
                about = {"UUID": device, "gpu": str(place), "hostname": pod.node, **_target(pod.node)}
                moved = {f"exported_{name}": value for name, value in names.items()}
                for name in _RAW:
                    own = {} if name.startswith("gpu_") and "_pod_" not in name else moved
                    model = {} if name.startswith("gpu_") else {"modelName": "NVIDIA H100 80GB HBM3"}
                    reason = {"reason": "power"} if "throttle" in name else {}
                    yield _sorted({"__name__": name, **about, **own, **model, **reason}), columns[name]


def _target(node: str) -> dict[str, str]:
    pod = f"gpu-exporter-{node[-5:]}"
    return {"job": "gpu-exporter", "instance": f"{node}:9400", "namespace": "gpu-rightsizer", "pod": pod}


def _sorted(labels: dict[str, str]) -> Labels:
    return tuple(sorted(labels.items()))


def _evaluate(prometheus: Prometheus, now_s: int) -> list[tuple[dict[str, str], float]]:
    """What the rules record of an instant; prints what each group took."""
    found: list[tuple[dict[str, str], float]] = []
    print("| group of rules | series | Prometheus's CPU s |\n|---|---|---|")
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        took, count = 0.0, 0
        for rule in group["rules"]:
            began = _cpu_s(prometheus.pid)
            answers = prometheus.query(rule["expr"], at_s=now_s)
            took += _cpu_s(prometheus.pid) - began
            rows = [
                (
                    {**one["metric"], **rule.get("labels", {}), "__name__": rule["record"]},
                    float(one["value"][1]),
                )
                for one in answers
            ]
            prometheus.write(Series(labels, range(now_s, now_s + 1), [value]) for labels, value in rows)
            found += rows
            count += len(rows)
        print(f"| `{group['name']}` | {count:,} | {took:.2f} |", flush=True)
    return found


def _cpu_s(pid: int) -> float:
    """The processor time that a process has had."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _kept(recorded: list[tuple[dict[str, str], float]], minutes: range) -> Iterator[tuple[Labels, Column]]:
    """Values that differ from minute to minute and from device to device, as those of a fleet do."""
    chance = random.Random(1)
    columns: dict[tuple[str, float, int], Column] = {}
    for number, (labels, value) in enumerate(recorded):
        key = (labels["__name__"], value, number % _VARIANTS)
        if key not in columns:
            columns[key] = Column(minutes, [value * chance.uniform(0.5, 1.0) for _ in minutes])
        yield _sorted(labels), columns[key]


def _rightsizers(minutes: range) -> Iterator[tuple[Labels, Column]]:
    column = Column(minutes, [float(place) for place in range(len(minutes))])
    for row in METRICS:
        for values in itertools.product(*(_LABEL_VALUES.get(label, ("x",)) for label in row.labels)):
            labels = dict(zip(row.labels, values, strict=True))
            yield _sorted({"__name__": row.full_name, "job": "gpu-rightsizer", **labels}), column


def _show(prometheus: Prometheus, minutes: range, tries: int) -> None:
    print("\n| row | panel | queries | slowest: s | CPU s |\n|---|---|---|---|---|")
    slowest = 0.0
    for row in ROWS:
        for panel in row.panels:
            took = [_timed(prometheus, panel, query.expr, minutes, tries) for query in panel.queries]
            if took:
                slowest = max(slowest, max(took)[0])
                where = f"{row.title.partition(':')[0]} | {panel.title} | {len(took)}"
                print(f"| {where} | {max(took)[0]:.2f} | {max(took)[1]:.2f} |", flush=True)
    took = [
        _timed(prometheus, None, f"group by ({one.label}) ({one.series})", minutes, tries)
        for one in VARIABLES
    ]
    print(f"| variables | | {len(took)} | {max(took)[0]:.2f} | {max(took)[1]:.2f} |")
    print(f"\nslowest: {slowest:.2f} s", flush=True)


def _timed(
    prometheus: Prometheus, panel: Panel | None, expression: str, minutes: range, tries: int
) -> tuple[float, float]:
    """Seconds that passed, and those of the processor."""
    for variable in VARIABLES:
        expression = expression.replace(f'"${variable.name}"', '".*"')
    query: dict[str, Any] = {"query": expression.replace("$__range", f"{_HOURS}h")}
    path = "query"
    if panel is not None and panel.kind is Kind.LINES:
        path = "query_range"
        step = max(
            60 * int(panel.step.removesuffix("m")), round(_HOURS * 3600 / (_SCREEN * panel.width / _GRID))
        )
        query |= {"start": minutes[0], "end": minutes[-1], "step": step}
    else:
        query |= {"time": minutes[-1]}
    best, cpu = float("inf"), float("inf")
    for _ in range(tries):
        began, before = time.perf_counter(), _cpu_s(prometheus.pid)
        with urllib.request.urlopen(
            f"{prometheus.url}/api/v1/{path}", urllib.parse.urlencode(query).encode()
        ) as got:
            got.read()
        best, cpu = min(best, time.perf_counter() - began), min(cpu, _cpu_s(prometheus.pid) - before)
    return best, cpu


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gpus", type=int, default=10_000, help="size of the fleet (default %(default)s)")
    parser.add_argument(
        "--tries", type=int, default=3, help="the best of so many counts (default %(default)s)"
    )
    parser.add_argument(
        "--folder", type=Path, help="where Prometheus's data go meanwhile (default: a temporary folder)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dashboard-cost-", dir=options.folder) as folder:
        measure(options.gpus, Path(folder), options.tries)


if __name__ == "__main__":
    main()
