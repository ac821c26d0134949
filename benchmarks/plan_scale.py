"""What a plan costs for 1,000, 10,000 and 100,000 GPUs: processor time, waiting, memory and questions, stage by stage.

Real are: `gpu-rightsizer plan -o json` in a process of its own, and Prometheus with its answers. Made up are:

- the fleet (`_bigfleet.py`): Jobs, Deployments, StatefulSets, Notebooks and bare pods on nodes of eight GPUs; beside
  them pods without GPUs, so that there are one and a half pods for each GPU;
- what Prometheus holds (`_fleetmetrics.py`): what the recording rules would have recorded, and the samples that are
  asked for besides, put into its storage as blocks (`_tsdb.py`); it scrapes nothing and evaluates no rules meanwhile;
- the API server (`_fleetapi.py`), which lists in pages; its objects have the size of real ones. It speaks without TLS.

All processes share one machine. The own processor time of a stage does not depend on what else runs there; the seconds
that pass do.
"""

import argparse
import contextlib
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks._bigfleet import Fleet, fleet_of
from benchmarks._fleetmetrics import TILE_S, fill
from simulator.prometheus import Prometheus

SIZES = (1_000, 10_000)
"""What is measured unless others are asked for: a hundred thousand take a quarter of an hour."""
_ROOT = Path(__file__).parent.parent


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """What was measured for one size; the stages as `_measured.Stage` has them."""

    gpus: int
    pods: int
    workloads: int
    series: int
    samples: int
    filling_s: float
    seconds: float
    document_bytes: int
    verdicts: dict[str, int]
    stages: list[dict[str, Any]]

    def total(self, field: str) -> float:
        """Over all stages; of memory the most."""
        values = [stage[field] for stage in self.stages]
        return float(max(values) if field == "peak_mib" else sum(values))


def measure(gpus: int, folder: Path, more: Sequence[str] = (), *, is_dra: bool = False) -> Figures:
    """Make a fleet, let it be planned for, and forget it."""
    fleet = fleet_of(gpus)
    with serving(fleet, gpus, folder, is_dra=is_dra) as (prometheus, kubeconfig, filled):
        figures, plan = folder / "figures.json", folder / "plan.json"
        command = [sys.executable, "-m", "benchmarks._measured", str(figures), str(prometheus.pid), "plan"]
        command += ["--prometheus-url", prometheus.url, "--kubeconfig", str(kubeconfig), "-o", "json", *more]
        # What the rules would have recorded is written; the server evaluates none.
        command += ["--recording-rules", "trusted"]
        began = time.monotonic()
        with plan.open("wb") as out:
            subprocess.run(command, stdout=out, check=True, cwd=_ROOT)
        seconds = time.monotonic() - began
    document = json.loads(plan.read_bytes())
    return Figures(
        gpus=document["totals"]["gpus"],
        pods=fleet.pods,
        workloads=len(document["items"]),
        series=filled.series,
        samples=filled.samples,
        filling_s=round(filled.seconds, 1),
        seconds=round(seconds, 1),
        document_bytes=plan.stat().st_size,
        verdicts={name: one["gpus"] for name, one in document["totals"]["verdicts"].items()},
        stages=json.loads(figures.read_text()),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Filled:
    """What was written into Prometheus's storage, and the CPU seconds that this took."""

    series: int
    samples: int
    seconds: float


@contextlib.contextmanager
def serving(
    fleet: Fleet, gpus: int, folder: Path, *, is_dra: bool = False
) -> Iterator[tuple[Prometheus, Path, Filled]]:
    """Prometheus and the API server of a fleet, whose kubeconfig lies in the folder."""
    began = time.process_time()
    now_s = int(time.time()) // TILE_S * TILE_S
    series, samples = fill(fleet, folder / "prometheus" / "data", now_s)
    filled = Filled(series, samples, time.process_time() - began)
    with Prometheus(folder / "prometheus") as prometheus, _api(gpus, is_dra=is_dra) as port:
        prometheus.wait_for("count(gpu_rightsizer:activity:max5m)", timeout_s=120)
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(json.dumps(_kubeconfig(port)))
        yield prometheus, kubeconfig, filled


@contextlib.contextmanager
def _api(gpus: int, *, is_dra: bool) -> Iterator[int]:
    """The API server; its port."""
    command = [sys.executable, "-m", "benchmarks._fleetapi", str(gpus), *(["dra"] if is_dra else [])]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.stdin.close()


def _kubeconfig(port: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fleet",
        "clusters": [{"name": "fleet", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "bench", "user": {}}],
        "contexts": [{"name": "fleet", "context": {"cluster": "fleet", "user": "bench"}}],
    }


_COLUMNS = (
    ("own_s", "own CPU s", ".2f"),
    ("waited_s", "waited s", ".2f"),
    ("wall_s", "passed s", ".2f"),
    ("server_s", "Prom. CPU s", ".2f"),
    ("peak_mib", "peak MiB", ".0f"),
    ("queries", "queries", ".0f"),
    ("calls", "API calls", ".0f"),
    ("bytes", "MB read", ".1f"),
)


def show(one: Figures) -> None:
    """Print a table."""
    print(
        f"{one.gpus:,} GPUs, {one.pods:,} pods, {one.workloads:,} workloads with GPUs; "
        f"{one.series:,} series, {one.samples:,} samples (filled in {one.filling_s:.0f} s of CPU)"
    )
    print(f"{'':20}" + "".join(f"{head:>12}" for _, head, _ in _COLUMNS))
    rows = [*one.stages, {"name": "all", **{field: one.total(field) for field, _, _ in _COLUMNS}}]
    for row in rows:
        cells = [row[field] / (1e6 if field == "bytes" else 1) for field, _, _ in _COLUMNS]
        print(
            f"{row['name']:20}"
            + "".join(f"{cell:12{form}}" for cell, (_, _, form) in zip(cells, _COLUMNS, strict=True))
        )
    told = ", ".join(f"{name} {gpus:,}" for name, gpus in one.verdicts.items())
    print(
        f"in all {one.seconds:.1f} s; JSON of {one.document_bytes / 1e6:.1f} MB; GPUs by verdict: {told}",
        flush=True,
    )
    print()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--gpus", default=",".join(map(str, SIZES)), help="sizes of fleets (default %(default)s)"
    )
    parser.add_argument(
        "--folder", type=Path, help="where Prometheus's data go meanwhile (default: a temporary folder)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as well")
    words = "GPUs in ResourceSlices only, held by ResourceClaims"
    parser.add_argument("--dra", action="store_true", help=words)
    options, more = parser.parse_known_args()
    found = []
    for gpus in map(int, options.gpus.split(",")):
        with tempfile.TemporaryDirectory(prefix="plan-scale-", dir=options.folder) as folder:
            found.append(measure(gpus, Path(folder), more, is_dra=options.dra))
        show(found[-1])
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(one) for one in found], indent=2) + "\n")


if __name__ == "__main__":
    main()
