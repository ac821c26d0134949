"""Whatever holds the samples, the plan is the same."""

import bisect
import functools
import json
import pathlib
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import yaml

from simulator.prometheus import Prometheus
from simulator.series_store import Series, SeriesStore
from simulator.victoria_metrics import PROGRAM, VictoriaMetrics
from tests.rightsizer.both_stores import BothStores
from tests.rightsizer.test_scenarios import DEFAULT_POLICY, FOLDER, give
from tests.rightsizer.world import World

STORIES = (
    "idle-of-every-kind",
    "missing-data-is-not-idleness",
    "one-device-of-many",
    "shared-gpus",
    "two-signals-must-agree",
)
NEVER_STORED = frozenset({"not-a-number"})
"""VictoriaMetrics does not keep a NaN: what is doubted elsewhere is a missing sample there."""


@pytest.mark.slow
@pytest.mark.prometheus
@pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"no {PROGRAM} on the path")
@pytest.mark.parametrize("story", STORIES)
def test_plan_victoriametrics_and_prometheus_are_equal(
    story: str, tmp_path: pathlib.Path, prometheus: Prometheus
) -> None:
    """Item for item, but for the numbers' last digits: the same verdicts for the same reasons."""
    scenario: dict[str, Any] = yaml.safe_load((FOLDER / f"{story}.yaml").read_text())
    with VictoriaMetrics(tmp_path / "victoria") as victoria:
        both = BothStores(prometheus, victoria)
        with World(tmp_path, both) as world:
            give(world, scenario["given"], f"{story}-twice")
            plans, coverages = [], []
            for store in (prometheus, victoria):
                both.answering = store
                run = world.run("plan", "-o", "json", policy=scenario.get("policy", DEFAULT_POLICY))
                assert run.code == 0, run.err
                items = json.loads(run.out)["items"]
                stored = [item for item in items if item["name"] not in NEVER_STORED]
                plans.append([_told(item) for item in stored])
                coverages.append([item["coverage"] for item in stored])
    assert plans[0] == plans[1]
    # Prometheus 2 counts a sample on either edge of a slot of twenty, where it is on the very millisecond.
    assert coverages[0] == pytest.approx(coverages[1], abs=0.06)
    assert plans[0]


def _until(series: Series, age_s: float) -> Series:
    """What is older than that."""
    kept = bisect.bisect_left(series.seconds, time.time() - age_s)
    return Series(series.labels, series.seconds[:kept], series.values[:kept])


def _since(series: Series, age_s: float) -> Series:
    """What is younger than that."""
    first = bisect.bisect_left(series.seconds, time.time() - age_s)
    return Series(series.labels, series.seconds[first:], series.values[first:])


def _unless(series: Series, lost: str) -> Series:
    """The series, or no sample of it if this is in its metric's name."""
    return _since(series, 0) if lost in series.labels["__name__"] else series


def _of_some(series: Series) -> Series:
    """Those of about half of the GPUs."""
    return series if zlib.crc32(series.labels.get("UUID", "").encode()) % 2 else _since(series, 0)


LEFT: Mapping[str, Callable[[Series], Series]] = {
    "of the last two hours": functools.partial(_until, age_s=2 * 3600),
    "of before the last two hours": functools.partial(_since, age_s=2 * 3600),
    "of some GPUs": _of_some,
    "of memory traffic": functools.partial(_unless, lost="MEM_COPY"),
    "of power": functools.partial(_unless, lost="POWER"),
    "of memory": functools.partial(_unless, lost="FB_USED"),
    "of activity": functools.partial(_unless, lost="GPU_UTIL"),
    "of counters": functools.partial(_unless, lost="gpu_"),
    "of inference servers": functools.partial(_unless, lost="vllm:"),
}
"""What is left of series where Thanos leaves out a store: by its time range, its Prometheus, or what that scrapes."""


class _WithoutStore(SeriesStore):
    """Takes what the other stores hold."""

    def __init__(self, store: SeriesStore, left: Callable[[Series], Series]) -> None:
        super().__init__(store._server)  # noqa: SLF001 - the same process
        self._left = left

    def write(self, series: Iterable[Series]) -> int:
        """Store what is left."""
        return super().write([one for one in map(self._left, series) if one.seconds])


@pytest.mark.slow
@pytest.mark.covers("P4")
@pytest.mark.prometheus
@pytest.mark.parametrize("story", ["idle-of-every-kind", "shared-gpus", "no-requests-is-advised-on"])
@pytest.mark.parametrize("lost", LEFT)
def test_plan_without_a_store_acts_on_nothing_more(
    lost: str, story: str, tmp_path: pathlib.Path, prometheus: Prometheus
) -> None:
    """An answer of Thanos without an unhealthy store says nothing of it: HTTP 200, and no warning."""
    scenario: dict[str, Any] = yaml.safe_load((FOLDER / f"{story}.yaml").read_text())
    with Prometheus(tmp_path / "left") as other:
        both = BothStores(prometheus, _WithoutStore(other, LEFT[lost]))
        with World(tmp_path, both) as world:
            give(world, scenario["given"], f"{story}-{zlib.crc32(lost.encode())}")
            acts = []
            for store in (prometheus, other):
                both.answering = store
                run = world.run("plan", "-o", "json", policy=scenario.get("policy", DEFAULT_POLICY))
                items = json.loads(run.out)["items"] if run.code == 0 else []
                acts.append({item["name"] for item in items if item["verdict"] == "act"})
    assert acts[0]
    assert acts[1] <= acts[0]


def _told(item: dict[str, Any]) -> dict[str, Any]:
    """What is said of a workload, without what changes from one second to the next."""
    kept = (
        "namespace",
        "kind",
        "name",
        "verdict",
        "finding",
        "action",
        "rule",
        "confidence",
        "frees",
        "command",
    )
    evidence = item["evidence"]
    return {
        **{key: item[key] for key in kept},
        "blockers": [block["code"] for block in item["blockers"]],
        "busy": evidence["busyGpus"],
        "activity": _rounded(evidence["activityPeak"]),
        "power": _rounded(evidence["powerPeakWatts"]),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
