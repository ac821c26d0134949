"""Second signals of idleness that are measured at all: some gauges stand still, whatever the GPU does. Pure.

Unified-memory GPUs (Jetson, GB10) report a memory traffic of 0 at full utilization. So a gauge that never moved on a
board whose activity did is no signal there, whatever other boards show. Where that did not, the other boards of the
model decide. If none of them worked, nothing speaks against it, except that boards without memory of their own have no
memory traffic either.
"""

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Sequence

from rightsizer.model import SecondSignal, Usage, Usages

WORKED = 0.05
"""Activity above which memory traffic and power move; less may round to no percent."""
BURST = 0.001
"""Mean activity of a board up to which samples of its other gauges may have missed the work."""

DeviceKey = tuple[str, str, str]
"""The model, the UUID, and the MIG instance."""
BoardKey = tuple[str, str, bool]
"""The model, the UUID (empty for all boards of a known model), and whether these are MIG instances."""


def device_key(usage: Usage) -> DeviceKey:
    """The device, without what other series of it may lack."""
    return usage.device.model, usage.device.uuid, usage.device.instance


def _groups(key: DeviceKey) -> tuple[BoardKey, BoardKey]:
    """The device's board, and all boards whose gauges are alike; again its own if the model is unknown."""
    model, uuid, instance = key
    return (model, uuid, bool(instance)), (model, "" if model else uuid, bool(instance))


@dataclasses.dataclass(frozen=True, slots=True)
class Movement:
    """Movement of the gauges of one device: of two devices, only one may work."""

    lowest_activity: float = math.inf  # of means
    highest_activity: float = 0.0  # of samples
    highest_mean: float = 0.0
    traffic_moved: bool = False
    has_memory: bool = False  # whether memory in use is measured, so that it is the board's own
    lowest_w: float = math.inf
    highest_w: float = 0.0

    @property
    def worked(self) -> bool:
        """Whether a kernel ran."""
        return self.highest_activity > WORKED

    @property
    def activity_moved(self) -> bool:
        """Whether the device worked at times: one that spins all the time may not work."""
        return self.worked and self.lowest_activity < self.highest_activity / 2

    @property
    def power_moved(self) -> bool:
        """Whether power was not the same all the time."""
        return self.highest_w > self.lowest_w + 0.1

    def joined(self, other: "Movement") -> "Movement":
        """Movement of the device in both parts of the record."""
        return Movement(
            min(self.lowest_activity, other.lowest_activity),
            max(self.highest_activity, other.highest_activity),
            max(self.highest_mean, other.highest_mean),
            self.traffic_moved or other.traffic_moved,
            self.has_memory or other.has_memory,
            min(self.lowest_w, other.lowest_w),
            max(self.highest_w, other.highest_w),
        )

    def is_open(self, *, has_idle_power: bool) -> bool:
        """Whether a longer record may show more than what decides now."""
        if self.worked:
            return not (self.traffic_moved and (self.power_moved or not self.highest_w))
        return not self.traffic_moved and not (has_idle_power and self.power_moved)


Movements = dict[DeviceKey, Movement]


def movements(usages: Iterable[Usage]) -> Movements:
    """Movement of each device; a device that is judged by its board says nothing."""
    by_device: dict[DeviceKey, list[Usage]] = {}
    for usage in usages:
        if not (usage.is_by_board or usage.invalid):
            by_device.setdefault(device_key(usage), []).append(usage)
    return {key: _movement(shared) for key, shared in by_device.items()}


def _movement(usages: Sequence[Usage]) -> Movement:
    """Movement of a device, by the usages of all pods on it; of several, each may be the pod's own part."""
    means = [usage.activity_mean for usage in usages if usage.activity_mean is not None]
    mean = min(math.fsum(means), 1.0)
    return Movement(
        mean if means else math.inf,
        max(usage.activity_peak or 0.0 for usage in usages),
        mean,
        any(usage.traffic_peak for usage in usages),
        any(usage.memory_peak_bytes is not None for usage in usages),
        min(math.inf if usage.power_mean_w is None else usage.power_mean_w for usage in usages),
        max(usage.power_peak_w or 0.0 for usage in usages),
    )


def joined(*parts: Movements) -> Movements:
    """Movements in several parts of a fleet or of the record."""
    found: Movements = {}
    for key, movement in (pair for part in parts for pair in part.items()):
        found[key] = found[key].joined(movement) if key in found else movement
    return found


Silent = Collection[tuple[BoardKey, SecondSignal]]
"""Gauges that are no signal, by board and by model."""


def silent_signals(found: Movements) -> Silent:
    """The gauges of each board and model that are no signal."""
    groups: dict[BoardKey, list[Movement]] = {}
    for key, movement in found.items():
        for group in set(_groups(key)):
            groups.setdefault(group, []).append(movement)
    return frozenset(
        (group, signal)
        for group, devices in groups.items()
        for signal in _silent(devices, is_model=not all(group[:2]))
    )


def _silent(devices: Sequence[Movement], *, is_model: bool) -> Iterator[SecondSignal]:
    """The gauges that are no signal; memory of a board that is not measured may be on others of its model."""
    worked = [board for board in devices if board.activity_moved and (is_model or board.highest_mean > BURST)]
    may_lack = bool(worked) or (is_model and not any(board.has_memory for board in devices))
    if may_lack and not any(board.traffic_moved for board in devices):
        yield SecondSignal.TRAFFIC
    if any(board.highest_w for board in worked) and not any(board.power_moved for board in devices):
        yield SecondSignal.POWER


def silent_of(usage: Usage, silent: Silent) -> list[SecondSignal]:
    """The gauges of the device that are no signal, by its board or by its model."""
    groups = _groups(device_key(usage))
    return [signal for signal in SecondSignal if any((group, signal) in silent for group in groups)]


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
