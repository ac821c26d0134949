"""Whatever holds the samples, the plan is the same."""

import bisect
import datetime
import functools
import json
import pathlib
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
import yaml

from rightsizer.model import Slot
from simulator.prometheus import Prometheus
from simulator.series_store import Series, SeriesStore
from tests.rightsizer.both_stores import EACH_OTHER, BothStores, Start
from tests.rightsizer.metrics import DAY, HOUR, Metrics, idle
from tests.rightsizer.test_scenarios import FOLDER, give
from tests.rightsizer.world import DEFAULT_POLICY, World

STORIES = (
    "idle-of-every-kind",
    "missing-data-is-not-idleness",
    "one-device-of-many",
    "shared-gpus",
    "two-signals-must-agree",
)
NEVER_STORED = frozenset({"not-a-number"})
"""VictoriaMetrics does not keep a NaN: what is doubted elsewhere is a missing sample there."""


@pytest.mark.prometheus
@EACH_OTHER
@pytest.mark.parametrize(("counted_s", "spans_h"), [(5, [(2, 0)]), (500, [(2, 0)]), (50, [(25, 5), (4, 0)])])
def test_history_with_counters_that_begin_is_busy_then_at_most(
    start: Start, counted_s: float, spans_h: Sequence[tuple[int, int]], tmp_path: pathlib.Path
) -> None:
    """VictoriaMetrics takes a small first value for an increase, here of one slot, and none after a gap."""
    counters = ("gpu_busy_seconds_total", "gpu_pod_busy_seconds_total")
    with start(tmp_path / "store") as store:
        metrics = Metrics(store)
        metrics.write(idle(), pod="a", since=25 * HOUR)
        for since, until in spans_h:
            metrics.write(dict.fromkeys(counters, counted_s), pod="a", since=since * HOUR, until=until * HOUR)
        pod = (metrics.space, "a")
        found = metrics.signal().histories({pod: metrics.at - DAY}, DAY, metrics.at, threshold=0.01)[pod]
    begins = len(found.slots) - 24
    slots = [number for number, state in enumerate(found.slots) if state != Slot.IDLE]
    assert slots in ([], [begins] if counted_s < 50 else [])


class _Staggered(BothStores):
    """Takes the samples of every other GPU half a minute earlier."""

    def write(self, series: Iterable[Series]) -> int:
        """Store them in both."""
        return super().write(map(_staggered, series))


def _staggered(series: Series) -> Series:
    earlier_s = 30 * (zlib.crc32(series.labels.get("UUID", "").encode()) % 2)
    seconds = tuple(second - earlier_s for second in series.seconds)
    return Series(series.labels, seconds, series.values)


@pytest.mark.slow
@pytest.mark.prometheus
@EACH_OTHER
@pytest.mark.parametrize("story", STORIES)
def test_plan_of_the_same_history_is_equal_on_every_store(
    story: str, start: Start, tmp_path: pathlib.Path, prometheus: Prometheus
) -> None:
    """Item for item: as of a full minute, which is when half of the GPUs have samples."""
    scenario: dict[str, Any] = yaml.safe_load((FOLDER / f"{story}.yaml").read_text())
    with start(tmp_path / "other") as other:
        both = _Staggered(prometheus, other)
        with World(tmp_path, both) as world:
            give(world, scenario["given"], f"{story}-{uuid.uuid4().hex[:8]}")
            at = datetime.datetime.fromtimestamp(time.time() // 60 * 60, tz=datetime.UTC).isoformat()
            plans = []
            for store in (prometheus, other):
                both.answering = store
                policy = scenario.get("policy", DEFAULT_POLICY)
                run = world.run("plan", "-o", "json", "--at", at, policy=policy)
                assert run.code == 0, run.err
                plans.append({name: item for name, item in run.items.items() if name not in NEVER_STORED})
    assert plans[0] == plans[1]
    assert plans[0]


@pytest.mark.slow
@pytest.mark.prometheus
@EACH_OTHER
def test_apply_work_of_the_last_seconds_is_seen_by_every_store(start: Start, tmp_path: pathlib.Path) -> None:
    """By default VictoriaMetrics leaves out 30 seconds: work that began after the plan is seen all the same."""
    with start(tmp_path / "store") as store, World(tmp_path, store) as world:
        for name in ("a", "b"):
            world.add("Deployment", world.team, name, {})

        def work() -> None:
            now = int(time.time())
            (pod,) = world.pods_of(world.team, "b")
            selected = f'DCGM_FI_DEV_GPU_UTIL{{exported_pod="{pod["metadata"]["name"]}"}}'
            (found,) = store.query(selected, at_s=now)
            store.write([Series(found["metric"], range(now, now + 1), [95.0])])

        world.after("events", work)
        items = world.run("apply", "--yes", "-o", "json", policy=DEFAULT_POLICY).items
    assert {name: item["result"] for name, item in items.items()} == {"a": "done", "b": "changed"}, items
    assert "was active" in items["b"]["detail"]


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
