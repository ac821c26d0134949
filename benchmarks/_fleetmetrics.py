"""What a fleet's Prometheus would hold by now, as blocks of its storage: samples of late, and what was recorded.

Of every device: fourteen days of recorded activity, a day of the other recorded values, two hours of samples. Of
serving pods also the samples of the coming hour on each of the seven days before, and an hour around it; of the first
node's devices all of memory, so that the record begins fourteen days ago. All samples that a Prometheus holds besides
(of other hours, other metrics, other jobs) nobody asks for, and are left out.
"""

import dataclasses
import functools
import random
from collections.abc import Iterator
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
_HISTORY_DAYS = 14
_EARLIER_DAYS = 7
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
        now_s: Unix time, a multiple of five minutes.
    """

    def __init__(self, now_s: int) -> None:
        self._end_s = now_s + AHEAD_S
        self._day_s = now_s - DAY_S - HOUR_S
        self._first_s = now_s - _HISTORY_DAYS * DAY_S - HOUR_S
        self._now_s = now_s
        # Each is made once, for as long as these courses last.
        self.late = functools.cache(self._late)
        self.before = functools.cache(self._before)

    def _late(self, column: str, habit: Habit, variant: int) -> Column:
        """Of the last day, or two hours where they are samples; of what serves also the coming hour of yesterday."""
        if column in _RAW:
            spans = [range(self._now_s - 2 * HOUR_S, self._end_s, INTERVAL_S)]
            if column == "activity" and habit is Habit.SERVING:
                spans.insert(0, range(self._day_s, self._day_s + 4 * HOUR_S, INTERVAL_S))
        else:
            spans = [range(self._day_s, self._end_s, TILE_S)]
        return Column(tuple((span, self._values(column, habit, variant, span)) for span in spans))

    def _before(self, column: str, habit: Habit, variant: int) -> Column:
        """Of the days before."""
        if column == "activity":
            earlier = [self._now_s - day * DAY_S for day in range(_EARLIER_DAYS, 0, -1)]
            spans = [range(at - HOUR_S, min(at + 3 * HOUR_S, self._day_s), INTERVAL_S) for at in earlier]
        else:
            step = INTERVAL_S if column == "memory" else TILE_S
            spans = [range(self._first_s, self._day_s, step)]
        return Column(tuple((span, self._values(column, habit, variant, span)) for span in spans if span))

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


def fill(fleet: Fleet, data: Path, now_s: int) -> tuple[int, int]:
    """Write it all into the folder of a Prometheus that is yet to start; how many series and samples that were."""
    courses = Courses(now_s)
    early, late = Block(data, 1), Block(data, 2)
    early.write(_before(fleet, courses))
    late.write(_late(fleet, courses))
    return late.series, early.samples + late.samples


def _late(fleet: Fleet, courses: Courses) -> Iterator[tuple[Labels, Column]]:
    for workload, variant, owner in _devices(fleet):
        for one in (*_RECORDED_OF_LATE, *_RECORDED, *_SAMPLED):
            yield _labels(one, owner), courses.late(one.column, workload.row.habit, variant)


def _before(fleet: Fleet, courses: Courses) -> Iterator[tuple[Labels, Column]]:
    for place, (workload, variant, owner) in enumerate(_devices(fleet)):
        habit = workload.row.habit
        for one in _RECORDED:
            yield _labels(one, owner), courses.before(one.column, habit, variant)
        if habit is Habit.SERVING:
            yield _labels(_SAMPLED[0], owner), courses.before("activity", habit, variant)
        if place < NODE_GPUS:
            yield _labels(_SAMPLED[2], owner), courses.before("memory", habit, 0)


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
