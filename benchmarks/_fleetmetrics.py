"""What a fleet's Prometheus would hold by now, as blocks of its storage: samples of late, and what was recorded.

Of every device: fourteen days of recorded activity, a day of the other recorded values and of samples of activity, and
two hours of the other samples; of the first node's devices fourteen days of memory, so that the record begins then.
Other samples that a Prometheus holds (of other metrics, other jobs) nobody asks for, and are left out.
"""

import dataclasses
import functools
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks._bigfleet import NODE_GPUS, Fleet, Habit, Workload
from benchmarks._tsdb import Block, Column, Labels

INTERVAL_S = 15
TILE_S = 300
HOUR_S = 3600
DAY_S = 24 * HOUR_S
VARIANTS = 16
AHEAD_S = HOUR_S
"""So much longer than it takes to fill and to ask, there is something to be asked for."""
_HISTORY_S = 14 * DAY_S + HOUR_S
_MIB = 1 << 20

_ACTIVITY, _TRAFFIC = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL"
_MEMORY, _POWER = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE"
_LEVELS = {
    # Of each habit: utilization while at work in percent, watts while at work, MiB held.
    Habit.TRAINING: (92, 640, 71_000),
    Habit.SERVING: (70, 480, 64_000),
    Habit.SELDOM: (45, 300, 20_000),
    Habit.IDLE: (0, 118, 30_000),
}
_IDLE_W = 118


@dataclasses.dataclass(frozen=True, slots=True)
class Store:
    """How Prometheus's storage holds it.

    Attributes:
        shares_chunks: Whether series with the same values share the chunks that hold them.
        cut_s: The age at which the older of two blocks ends.
        lag_s: The age of the last recorded values when the plan begins; None if there are newer ones.
        has_rules: Whether there are recorded values; else all samples of a day, and of activity for fourteen.
    """

    shares_chunks: bool
    cut_s: int
    lag_s: int | None = None
    has_rules: bool = True

    def kept_s(self, column: str) -> int:
        """How far back a column goes."""
        if column in _RAW and not self.has_rules:
            return _HISTORY_S if column == "activity" else DAY_S + HOUR_S
        return _KEPT_S[column]

    @property
    def series(self) -> Sequence["_Series"]:
        """The series of every device."""
        return (*_RECORDED_OF_LATE, *_RECORDED, *_SAMPLED) if self.has_rules else _SAMPLED


STORES = {
    "shared": Store(shares_chunks=True, cut_s=DAY_S + HOUR_S),
    "separate": Store(shares_chunks=False, cut_s=DAY_S // 2),
    "late": Store(shares_chunks=False, cut_s=DAY_S // 2, lag_s=8 * 60),
    "raw": Store(shares_chunks=True, cut_s=DAY_S // 2, has_rules=False),
}
"""The best moment of a storage; as a real one is, with a day in two blocks; that while rules are late; and no rules."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Series:
    """A metric of every device: the fields of its name, and which column of a habit it shows."""

    name: str
    of: str
    column: str


_RECORDED_OF_LATE = (
    _Series("gpu_rightsizer:activity:mean5m", _ACTIVITY, "activity_mean"),
    _Series("gpu_rightsizer:traffic:mean5m", _TRAFFIC, "traffic_mean"),
    _Series("gpu_rightsizer:traffic:max5m", _TRAFFIC, "traffic_max"),
    _Series("gpu_rightsizer:memory:max5m", _MEMORY, "memory_max"),
    _Series("gpu_rightsizer:power:mean5m", _POWER, "power_mean"),
    _Series("gpu_rightsizer:power:max5m", _POWER, "power_max"),
)
_RECORDED = (
    _Series("gpu_rightsizer:activity:max5m", _ACTIVITY, "activity_max"),
    _Series("gpu_rightsizer:activity:count5m", _ACTIVITY, "count"),
)
_SAMPLED = (
    _Series(_ACTIVITY, "", "activity"),
    _Series(_TRAFFIC, "", "traffic"),
    _Series(_MEMORY, "", "memory"),
    _Series(_POWER, "", "power"),
)


class Courses:
    """The columns of every habit and variant, each made once.

    Args:
        now_s: Unix time at which the plan is to begin, a multiple of five minutes where nothing is late.
        store: Where the older block ends, and the recorded values.
    """

    def __init__(self, now_s: int, store: Store) -> None:
        self._now_s = now_s
        self._kept_s = store.kept_s
        self._cut_s = now_s - store.cut_s
        self._recorded_s = now_s + AHEAD_S if store.lag_s is None else now_s - store.lag_s + 1
        # Each is made once, for as long as these courses last.
        self.late = functools.cache(self._late)
        self.before = functools.cache(self._before)

    def _late(self, column: str, habit: Habit, variant: int) -> Column:
        """In the newer block."""
        first_s = max(self._cut_s, self._now_s - self._kept_s(column))
        return self._between(column, habit, variant, first_s, sys.maxsize)

    def _before(self, column: str, habit: Habit, variant: int) -> Column:
        """In the older block; of memory, which only the first node has there, all samples."""
        first_s = self._now_s - (_HISTORY_S if column == "memory" else self._kept_s(column))
        return self._between(column, habit, variant, first_s, self._cut_s)

    def _between(self, column: str, habit: Habit, variant: int, first_s: int, end_s: int) -> Column:
        step_s = INTERVAL_S if column in _RAW else TILE_S
        last_s = self._now_s + AHEAD_S if column in _RAW else self._recorded_s
        # In step with the last one, whichever block it is in.
        begin_s = last_s - 1 - (last_s - 1 - first_s) // step_s * step_s
        span = range(begin_s, min(last_s, end_s), step_s)
        return Column(span, self._values(column, habit, variant, span) if span else ())

    def _values(self, column: str, habit: Habit, variant: int, seconds: range) -> list[float]:
        chance = random.Random(f"{column} {habit} {variant} {seconds[0]}")
        percent, watts, memory = _LEVELS[habit]
        found = []
        for second in seconds:
            busy = _is_busy(habit, variant, second)
            spread = chance.random()
            match column:
                case "count":
                    value = float(TILE_S // INTERVAL_S)
                case "memory" | "memory_max":
                    value = float(memory + variant) * (1 if column == "memory" else _MIB)
                case "power" | "power_mean" | "power_max":
                    value = round((watts if busy else _IDLE_W - 4) + 3 * spread, 3)
                case _:
                    value = _share(column, percent * busy, spread)
            found.append(value)
        return found


_RAW = {"activity", "traffic", "memory", "power"}
_KEPT_S = {
    "activity_max": _HISTORY_S,
    "count": _HISTORY_S,
    **dict.fromkeys((one.column for one in _RECORDED_OF_LATE), DAY_S + HOUR_S),
    "activity": DAY_S + HOUR_S,
    **dict.fromkeys(("traffic", "memory", "power"), 2 * HOUR_S),
}
"""How far back a column goes."""


def _share(column: str, percent: float, spread: float) -> float:
    """Of activity or of memory traffic, which is half as much; samples are whole percents, what is recorded shares."""
    value = percent * (0.9 + 0.1 * spread) * (0.5 if column.startswith("traffic") else 1.0)
    if column in _RAW:
        return float(round(value))
    return round(value) / 100 if column.endswith("max") else value / 100


def _is_busy(habit: Habit, variant: int, second: int) -> bool:
    match habit:
        case Habit.TRAINING:
            return True
        case Habit.SERVING:
            return (second // TILE_S + variant * 5) % VARIANTS < 6  # noqa: PLR2004 - of sixteen parts of time
        case Habit.SELDOM:
            return (second // HOUR_S + variant) % 5 == 0
        case Habit.IDLE:
            return False


def fill(fleet: Fleet, data: Path, now_s: int, store: Store) -> tuple[int, int]:
    """Write it all into the folder of a Prometheus that is yet to start; how many series and samples that were."""
    courses = Courses(now_s, store)
    early, late = (Block(data, number, shares_chunks=store.shares_chunks) for number in (1, 2))
    early.write(_before(fleet, courses, store))
    late.write(_late(fleet, courses, store))
    return late.series, early.samples + late.samples


def _late(fleet: Fleet, courses: Courses, store: Store) -> Iterator[tuple[Labels, Column]]:
    for workload, variant, owner in _devices(fleet):
        for one in store.series:
            yield _labels(one, owner), courses.late(one.column, workload.row.habit, variant)


def _before(fleet: Fleet, courses: Courses, store: Store) -> Iterator[tuple[Labels, Column]]:
    for place, (workload, variant, owner) in enumerate(_devices(fleet)):
        for one in store.series:
            if one.column == "memory" and place >= NODE_GPUS and store.has_rules:
                continue
            column = courses.before(one.column, workload.row.habit, variant)
            if column.seconds:
                yield _labels(one, owner), column


def _devices(fleet: Fleet) -> Iterator[tuple[Workload, int, dict[str, str]]]:
    """Every device, with the labels that its series have in common: the exporter's own, where honor_labels is false."""
    for workload in fleet.workloads:
        for pod in workload.pods:
            for device in pod.devices:
                owner = {
                    "Hostname": pod.node,
                    "UUID": device,
                    "exported_namespace": workload.namespace,
                    "exported_pod": pod.name,
                    "job": "dcgm-exporter",
                    "modelName": "NVIDIA H100 80GB HBM3",
                    "namespace": "gpu-operator",
                    "pod": f"nvidia-dcgm-exporter-{pod.node[-5:]}",
                }
                yield workload, pod.variant % VARIANTS, owner


def _labels(one: _Series, owner: dict[str, str]) -> Labels:
    if one.of:
        found = {**owner, "__name__": one.name, "metric": one.of}
    else:
        found = {
            **owner,
            "__name__": one.name,
            "container": "nvidia-dcgm-exporter",
            "endpoint": "metrics",
            "exported_container": "main",
            "service": "nvidia-dcgm-exporter",
        }
    return tuple(sorted(found.items()))
