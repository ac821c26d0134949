"""What `gpu-rightsizer report` costs for a fleet: 20 clusters, 1,000,000 GPUs, 30 days.

The files are as the ledger writes them: one for each day and cluster, one for each hour of today. Each workload holds
four GPUs; after ten days all are others. The report runs in a process of its own, three times for each form.
"""

import argparse
import datetime
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow

from rightsizer_history.ledger.entries import Holder, UsageEntry
from rightsizer_history.ledger.files import COLUMNS, USAGE, ClusterLedger
from rightsizer_history.ledger.parquet import ParquetFolder

_GPUS_EACH = 4
_LIFE_DAYS = 10
_MODELS = ("NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB", "NVIDIA-L40S")
_CLASSES = ("high", "medium", "low")
_PRICE = 2.5
_RUNS = 3
_REPORT = (
    "import resource, sys\n"
    "from rightsizer.__main__ import main\n"
    "code = main(sys.argv[1:])\n"
    "used = resource.getrusage(resource.RUSAGE_SELF)\n"
    "sys.stderr.write(f'{used.ru_maxrss // 1024} {used.ru_utime + used.ru_stime}')\n"
    "sys.exit(code)\n"
)


def entries(cluster: int, life: int, hours: float, workloads: int) -> Iterator[UsageEntry]:
    """The rows of some hours of one cluster; each life has workloads of its own."""
    draw = random.Random(f"{cluster} {life} {hours}")
    day, fleet = datetime.date(2026, 1, 1), workloads * _GPUS_EACH * hours
    yield UsageEntry(day, Holder(), "USD", recorded_h=hours, fleet_h=fleet)
    for place in range(workloads):
        namespace = f"project-{place % 400:03d}"
        name = f"train-{cluster:02d}-{place:05d}-{life}"
        owner, team = f"{namespace}/Job/{name}", f"team-{place % 60:02d}"
        holder = Holder(namespace, "Job", name, owner, team, _CLASSES[place % 3], _MODELS[place % 3])
        held = _GPUS_EACH * hours
        used = held * draw.random()
        unused = held - used
        yield UsageEntry(day, holder, "USD", held, used, 0.0, unused / 2, held * _PRICE, unused * _PRICE, 0.0)


def fill(folder: Path, now: datetime.datetime, *, clusters: int, gpus: int, days: int) -> None:
    """Write the ledgers: a file for each day, and for each hour of today."""
    workloads = gpus // clusters // _GPUS_EACH
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    files = [
        (midnight - datetime.timedelta(days=back), 24.0, back // _LIFE_DAYS) for back in range(days, 0, -1)
    ]
    files += [(midnight + datetime.timedelta(hours=hour), 1.0, 0) for hour in range(now.hour + 1)]
    for number in range(clusters):
        name = f"cluster-{number:02d}"
        place = ParquetFolder("--ledger", str(folder), name)
        made: dict[tuple[float, int], tuple[dict[str, Any], Any]] = {}
        for at, hours, life in files:
            if (hours, life) not in made:
                with tempfile.TemporaryDirectory() as draft:
                    ClusterLedger(draft, name).write_usage(at, "run", entries(number, life, hours, workloads))
                    (path,) = Path(draft, name).iterdir()
                    made[hours, life] = ParquetFolder("--ledger", draft, name).read(path.name, COLUMNS[USAGE])
            told, table = made[hours, life]
            day = pyarrow.array([at.date()] * len(table), pyarrow.date32())
            table = table.set_column(table.column_names.index("day"), "day", day)
            ending = "" if hours > 1 else f"T{at:%H}Z"
            place.write(f"usage-{at:%Y%m%d}{ending}.parquet", table, told)


def measure(folder: Path, days: int, by: str) -> tuple[float, float, int, dict[str, float]]:
    """Median seconds, elapsed and of CPU, and peak MiB of a report, and its totals."""
    command = [sys.executable, "-c", _REPORT, "report", "--ledger", str(folder), "--since", f"{days}d"]
    took, worked, peak, total = [], [], 0, {}
    for _ in range(_RUNS):
        began = time.perf_counter()
        run = subprocess.run([*command, "--by", by, "-o", "json"], capture_output=True, text=True, check=True)
        took.append(time.perf_counter() - began)
        mib, cpu_s = run.stderr.splitlines()[-1].split()
        peak = max(peak, int(mib))
        worked.append(float(cpu_s))
        total = json.loads(run.stdout)["total"]
    return statistics.median(took), statistics.median(worked), peak, total


def main() -> None:
    """Fill, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clusters", type=int, default=20)
    parser.add_argument("--gpus", type=int, default=1_000_000, help="of all clusters together")
    parser.add_argument("--days", type=int, default=30)
    arguments = parser.parse_args()
    now = datetime.datetime.now(datetime.UTC)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sizes = {"clusters": arguments.clusters, "gpus": arguments.gpus, "days": arguments.days}
        fill(folder, now, **sizes)
        files = list(folder.rglob("*.parquet"))
        size_mb = sum(one.stat().st_size for one in files) / 1e6
        print(f"{sizes}: {len(files)} files, {size_mb:,.0f} MB")
        for by in ("team", "namespace", "owner"):
            seconds, cpu_s, peak, total = measure(folder, arguments.days, by)
            print(
                f"by {by}: {seconds:.1f} s ({cpu_s:.1f} s of CPU), {peak} MiB, {total['gpuHoursHeld']:,.0f} GPU-hours"
            )


if __name__ == "__main__":
    main()
