"""Which second signals of idleness are measured at all: some gauges stand still, whatever the GPU does. Pure.

Unified-memory GPUs (Jetson, GB10) report a memory traffic of 0 at full utilization. So a gauge that never moved on a
board whose activity did is no signal there, whatever other boards show. Where that did not, all boards of the model
decide likewise. If no board worked, nothing speaks against it, except that boards without memory of their own have no
memory traffic either.
"""

import dataclasses
import math
from collections.abc import Collection, Iterable, Sequence

from rightsizer.model import SecondSignal, Usage, Usages

WORKED = 0.05
"""Activity above which memory traffic and power move; less may round to no percent."""
BURST = 0.001
"""Mean activity of a board up to which samples of its other gauges may have missed the work."""

BoardKey = tuple[str, str, bool]
"""The model, the UUID (empty for all boards of a known model), and whether these are MIG instances."""


def board_key(usage: Usage) -> BoardKey:
    """The board of the device."""
    return usage.device.model, usage.device.uuid, bool(usage.device.instance)


def _of_model(key: BoardKey) -> BoardKey:
    """All boards whose gauges are alike; only the board itself if its model is unknown."""
    model, uuid, is_mig = key
    return model, "" if model else uuid, is_mig


@dataclasses.dataclass(frozen=True, slots=True)
class Movement:
    """What the gauges of a board, or of all boards of a model, showed."""

    lowest_activity: float = math.inf  # of means
    highest_activity: float = 0.0  # of samples
    traffic_moved: bool = False
    has_memory: bool = False  # whether memory in use is measured, so that it is the board's own
    lowest_w: float = math.inf
    highest_w: float = 0.0
    highest_mean: float = 0.0

    @property
    def worked(self) -> bool:
        """Whether any board did."""
        return self.highest_activity > WORKED

    @property
    def activity_moved(self) -> bool:
        """Whether boards worked at times: one that spins all the time may not work."""
        return self.worked and self.lowest_activity < self.highest_activity / 2

    @property
    def power_moved(self) -> bool:
        """Whether power was not the same all the time."""
        return self.highest_w > self.lowest_w + 0.1

    def joined(self, other: "Movement") -> "Movement":
        """That of the boards of both."""
        return Movement(
            min(self.lowest_activity, other.lowest_activity),
            max(self.highest_activity, other.highest_activity),
            self.traffic_moved or other.traffic_moved,
            self.has_memory or other.has_memory,
            min(self.lowest_w, other.lowest_w),
            max(self.highest_w, other.highest_w),
            max(self.highest_mean, other.highest_mean),
        )

    def is_open(self, *, has_idle_power: bool) -> bool:
        """Whether a longer record may show more than what decides now."""
        if self.worked:
            return not (self.traffic_moved and (self.power_moved or not self.highest_w))
        return not self.traffic_moved and not (has_idle_power and self.power_moved)

    def silent(self, *, is_of_model: bool) -> Iterable[SecondSignal]:
        """The gauges that are no signal; memory of a board that is not measured may be on others of its model."""
        has_worked = self.activity_moved and (is_of_model or self.highest_mean > BURST)
        if not self.traffic_moved and (has_worked or (is_of_model and not self.has_memory)):
            yield SecondSignal.TRAFFIC
        if has_worked and not self.power_moved and self.highest_w:
            yield SecondSignal.POWER


Movements = dict[BoardKey, Movement]


def movements(usages: Iterable[Usage]) -> Movements:
    """By board and by model; what is judged by its board says nothing."""
    by_device: dict[tuple[str, str], list[Usage]] = {}
    for usage in usages:
        if not (usage.is_by_board or usage.invalid):
            by_device.setdefault((usage.device.uuid, usage.device.instance), []).append(usage)
    found: Movements = {}
    for shared in by_device.values():
        one, key = _movement(shared), board_key(shared[0])
        for each in {key, _of_model(key)}:
            found[each] = found[each].joined(one) if each in found else one
    return found


def _movement(usages: Sequence[Usage]) -> Movement:
    """That of a device, by the usages of all pods on it; of several, each may be the pod's own part."""
    means = [usage.activity_mean for usage in usages if usage.activity_mean is not None]
    mean = min(math.fsum(means), 1.0)
    return Movement(
        mean if means else math.inf,
        max(usage.activity_peak or 0.0 for usage in usages),
        any(usage.traffic_peak for usage in usages),
        any(usage.memory_peak_bytes is not None for usage in usages),
        min(math.inf if usage.power_mean_w is None else usage.power_mean_w for usage in usages),
        max(usage.power_peak_w or 0.0 for usage in usages),
        mean,
    )


def joined(*parts: Movements) -> Movements:
    """Those of several parts of a fleet or of the record."""
    found: Movements = {}
    for key, one in (pair for part in parts for pair in part.items()):
        found[key] = found[key].joined(one) if key in found else one
    return found


Silent = Collection[tuple[BoardKey, SecondSignal]]
"""Gauges that are no signal, by board and by model."""


def silent_signals(found: Movements) -> Silent:
    """The gauges of each board and model that are no signal."""
    return frozenset(
        (key, signal)
        for key, one in found.items()
        for signal in one.silent(is_of_model=key == _of_model(key))
    )


def silent_of(usage: Usage, silent: Silent) -> list[SecondSignal]:
    """The gauges of the device that are no signal, by its board or by its model."""
    key = board_key(usage)
    return [one for one in SecondSignal if (key, one) in silent or (_of_model(key), one) in silent]


def without_silent(usages: Usages, silent: Silent) -> Usages:
    """The usages without the readings of these gauges, which are unknown."""
    if not silent:
        return usages
    return {pod: tuple([_without(usage, silent) for usage in known]) for pod, known in usages.items()}


def _without(usage: Usage, silent: Silent) -> Usage:
    if usage.is_by_board:
        return usage
    signals = silent_of(usage, silent)
    if SecondSignal.TRAFFIC in signals:
        usage = dataclasses.replace(usage, traffic_peak=None, traffic_s=None)
    if SecondSignal.POWER in signals:
        usage = dataclasses.replace(usage, power_mean_w=None, power_peak_w=None)
    return usage
