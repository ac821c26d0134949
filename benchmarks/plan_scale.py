"""What a plan costs for 1,000, 10,000 and 100,000 GPUs: processor time, waiting, memory and questions, stage by stage.

Real are: `gpu-rightsizer plan -o json` in a process of its own, and Prometheus or VictoriaMetrics with its answers.
Made up are:

- the fleet (`_bigfleet.py`): Jobs, Deployments, StatefulSets, Notebooks and bare pods on nodes of eight GPUs; beside
  them pods without GPUs, so that there are one and a half pods for each GPU;
- what Prometheus holds (`_fleetmetrics.py`): what the recording rules would have recorded, and the samples that are
  asked for besides, put into its storage as blocks (`_tsdb.py`); it scrapes nothing and evaluates no rules meanwhile;
  VictoriaMetrics imports the blocks (vmctl);
- the API server (`_fleetapi.py`), which lists in pages; its objects have the size of real ones. It speaks without TLS.

All processes share one machine. The own processor time of a stage does not depend on what else runs there; the seconds
that pass do. With `--against`, plans of this checkout, of another one and a naive baseline (`naive_pruner.py`) take
turns in one run (`_builds.py`): compare only figures of one run.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks._bigfleet import Fleet, fleet_of
from benchmarks._builds import builds, plans
from benchmarks._builds import show as show_costs
from benchmarks._fleetmetrics import STORES, TILE_S, fill
from benchmarks._node import Process
from simulator.prometheus import Prometheus
from simulator.series_store import SeriesStore
from simulator.victoria_metrics import VictoriaMetrics

SIZES = (1_000, 10_000)
"""What is measured unless others are asked for: a hundred thousand take a quarter of an hour."""
_FILLING_S_PER_GPU, _IMPORT_S_PER_GPU = 0.01, 0.03
"""Enough for the records of a late store to have their age when the plan begins."""
_ROOT = Path(__file__).parent.parent


@dataclasses.dataclass(frozen=True, slots=True)
class Setup:
    """What answers: the name or path of the server's program, and how its storage holds the samples (`STORES`)."""

    server: str = "prometheus"
    store: str = "shared"
    is_dra: bool = False


DEFAULT_SETUP = Setup()


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """What was measured for one size; the stages as `_measured.Stage` has them."""

    server: str
    store: str
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


def measure(gpus: int, folder: Path, setup: Setup, more: Sequence[str] = ()) -> Figures:
    """Make a fleet, let it be planned for, and forget it."""
    fleet = fleet_of(gpus)
    with serving(fleet, gpus, folder, setup) as (server, kubeconfig, filled):
        figures, plan = folder / "figures.json", folder / "plan.json"
        command = [sys.executable, "-m", "benchmarks._measured", str(figures), str(server.pid), "plan"]
        command += [*asking(server.url, kubeconfig), "-o", "json", *more]
        began = time.monotonic()
        with plan.open("wb") as out:
            subprocess.run(command, stdout=out, check=True, cwd=_ROOT)
        seconds = time.monotonic() - began
    document = json.loads(plan.read_bytes())
    return Figures(
        server=Path(setup.server).name,
        store=setup.store,
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


def compare(
    gpus: int, folder: Path, setup: Setup, against: Path, turns: int, more: Sequence[str] = ()
) -> None:
    """Let builds plan for the same fleet, in turns, and print what each costs."""
    with serving(fleet_of(gpus), gpus, folder, setup) as (server, kubeconfig, _):
        process = Process(server.pid, server.url)
        costs = plans(builds(against), [*asking(server.url, kubeconfig), *more], process, turns)
    show_costs(f"plan, {gpus:,} GPUs", costs)


def asking(url: str, kubeconfig: Path) -> list[str]:
    """The arguments with which a build asks; what the rules would have recorded is written, and none is evaluated."""
    return ["--prometheus-url", url, "--kubeconfig", str(kubeconfig), "--recording-rules", "trusted"]


@dataclasses.dataclass(frozen=True, slots=True)
class Filled:
    """What was written into Prometheus's storage, and the CPU seconds that this took."""

    series: int
    samples: int
    seconds: float


@contextlib.contextmanager
def serving(
    fleet: Fleet, gpus: int, folder: Path, setup: Setup = DEFAULT_SETUP
) -> Iterator[tuple[SeriesStore, Path, Filled]]:
    """The server and the API server of a fleet, whose kubeconfig lies in the folder."""
    began, store, now_s = time.process_time(), STORES[setup.store], int(time.time()) // TILE_S * TILE_S
    is_victoria = Path(setup.server).name.startswith("victoria")
    if store.lag_s is not None:
        now_s = int(time.time() + gpus * (_FILLING_S_PER_GPU + _IMPORT_S_PER_GPU * is_victoria))
    data = folder / "prometheus" / "data"
    series, samples = fill(fleet, data, now_s, store)
    filled = Filled(series, samples, time.process_time() - began)
    server: SeriesStore = Prometheus(folder / "prometheus", binary=setup.server)
    if is_victoria:
        server = VictoriaMetrics(folder / "victoria", binary=setup.server, flags=_VICTORIA_FLAGS)
    with contextlib.ExitStack() as stack:
        stack.enter_context(server)
        if isinstance(server, VictoriaMetrics):
            _import_blocks(data, server)
        port = stack.enter_context(_api(gpus, is_dra=setup.is_dra))
        server.wait_for("count(DCGM_FI_DEV_GPU_UTIL)", timeout_s=120)
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(json.dumps(_kubeconfig(port)))
        if store.lag_s is not None:
            time.sleep(max(0.0, now_s - time.time()))
        yield server, kubeconfig, filled


_VICTORIA_FLAGS = {"retentionPeriod": "40d", "search.maxUniqueTimeseries": 2_000_000}


def _import_blocks(blocks: Path, server: VictoriaMetrics) -> None:
    command = f"vmctl prometheus -s --prom-snapshot={blocks} --vm-addr={server.url}"
    # Its progress bar needs a terminal.
    subprocess.run(["script", "-qec", command, "/dev/null"], check=True, stdout=subprocess.DEVNULL)
    server.flush()


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
        f"{one.server}, store {one.store}: {one.gpus:,} GPUs, {one.pods:,} pods, "
        f"{one.workloads:,} workloads with GPUs; {one.series:,} series, {one.samples:,} samples "
        f"(filled in {one.filling_s:.0f} s of CPU)"
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
    words = "programs that answer: Prometheus or victoria-metrics (default %(default)s)"
    parser.add_argument("--server", default="prometheus", metavar="NAMES", help=words)
    words = f"how their storage holds the samples: {', '.join(STORES)} (default %(default)s)"
    parser.add_argument("--store", default="shared", metavar="NAMES", help=words)
    words = "compare with another checkout and with the naive baseline, in turns"
    parser.add_argument("--against", type=Path, metavar="PATH", help=words)
    parser.add_argument("--turns", type=int, default=3, help="of each build (default %(default)s)")
    options, more = parser.parse_known_args()
    found = []
    sizes = map(int, options.gpus.split(","))
    for gpus, server, store in itertools.product(sizes, options.server.split(","), options.store.split(",")):
        setup = Setup(server, store, options.dra)
        with tempfile.TemporaryDirectory(prefix="plan-scale-", dir=options.folder) as folder:
            if options.against:
                compare(gpus, Path(folder), setup, options.against, options.turns, more)
                continue
            found.append(measure(gpus, Path(folder), setup, more))
        show(found[-1])
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(one) for one in found], indent=2) + "\n")


if __name__ == "__main__":
    main()
