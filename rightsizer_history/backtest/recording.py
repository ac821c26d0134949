"""Recorded history: what each device did for each pod, step by step, and which workload each pod belongs to. Pure."""

import dataclasses
import datetime
import functools
import itertools
import math
from collections.abc import Iterable, Mapping

from rightsizer.model import Device, Node, ObjectRef, PodKey, SecondSignal, Slot, strongest
from rightsizer.usage.step_usage import MISSING, PER_SHARE, Column, missing

IDLE = 0.01
"""Activity above it is work, where no policy says otherwise."""


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """Equal steps of time; step 0 begins at `begin`.

    Attributes:
        step_s: Length of a step in seconds.
        steps: How many there are.
    """

    begin: datetime.datetime
    step_s: int
    steps: int

    @property
    def end(self) -> datetime.datetime:
        """End of the last step."""
        return self.time(self.steps)

    def time(self, step: float) -> datetime.datetime:
        """Beginning of a step."""
        return self.begin + datetime.timedelta(seconds=step * self.step_s)

    def step(self, at: datetime.datetime) -> int:
        """Number of steps that are over at `at`; one that has begun is not."""
        return math.floor((at - self.begin).total_seconds() / self.step_s)

    def steps_in(self, span: datetime.timedelta) -> int:
        """Number of steps that hold a span; one that it cuts counts."""
        return math.ceil(span.total_seconds() / self.step_s)


def _empty() -> Column:
    return missing(0)


@dataclasses.dataclass(slots=True)
class Track:
    """Activity of one device for one pod, from step `first` on.

    Attributes:
        expected: Samples of activity in a step that lacks none.
        gpus: Whole GPUs: less than one for a MIG instance or a share.
        holders: How many pods held it at once; 0 if the kubelet did not give it to the pod, and only counters name it.
        is_own: Whether other pods held it or worked on it, too, and only counters tell what this one did.
        samples: How many samples of activity each step has.
        busy, moving: Share of the step in which a kernel ran, and in which memory was moved, for the pod, by counters;
            missing where there are none.
        unknown: Share of the step in which the device worked for nobody who is known.
    """

    device: Device
    first: int
    expected: int = 1
    gpus: float = 1.0
    holders: int = 1
    is_own: bool = False
    peak: Column = dataclasses.field(default_factory=_empty)
    mean: Column = dataclasses.field(default_factory=_empty)
    traffic: Column = dataclasses.field(default_factory=_empty)
    memory: Column = dataclasses.field(default_factory=_empty)
    power_peak: Column = dataclasses.field(default_factory=_empty)
    power_mean: Column = dataclasses.field(default_factory=_empty)
    samples: Column = dataclasses.field(default_factory=_empty)
    busy: Column = dataclasses.field(default_factory=_empty)
    moving: Column = dataclasses.field(default_factory=_empty)
    unknown: Column = dataclasses.field(default_factory=_empty)
    known: dict[tuple[str, float], bytes] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    def states(self, threshold: float = IDLE) -> bytes:
        """Activity in each step: by samples above `threshold` (0 to 1), or by counters."""
        found = self.known.get(("states", threshold))
        if found is None:
            row = self.above(threshold) if self.is_held else bytes([Slot.IDLE]) * len(self.busy)
            found = self.known["states", threshold] = self._with_counters(row)
        return found

    def rests(self, threshold: float, first: int, stop: int) -> bool:
        """Whether it was seen idle in each of these steps of the grid."""
        places = max(0, first - self.first), max(0, stop - self.first)
        return self.states(threshold).count(Slot.IDLE, *places) == stop - first

    def above(self, threshold: float) -> bytes:
        """Steps whose samples of activity were above `threshold`."""
        return self._compared("peak", threshold)

    def moved(self, threshold: float) -> bytes:
        """Steps in which it moved memory."""
        return self._compared("traffic", threshold)

    def _compared(self, name: str, threshold: float) -> bytes:
        found = self.known.get((name, threshold))
        if found is None:
            limit, column = threshold * PER_SHARE, getattr(self, name)
            found = self.known[name, threshold] = bytes(
                [
                    Slot.UNKNOWN if value == MISSING else (Slot.BUSY if value > limit else Slot.IDLE)
                    for value in column
                ]
            )
        return found

    def _with_counters(self, row: bytes) -> bytes:
        if self.busy.count(MISSING) == len(self.busy):
            return row
        counted = bytearray(row)
        for place, busy in enumerate(self.busy):
            if busy not in (0, MISSING):
                counted[place] = Slot.BUSY
            elif busy == 0 and self.is_own and row[place] == Slot.BUSY:
                counted[place] = Slot.UNKNOWN if self.unknown[place] else Slot.IDLE
        return bytes(counted)

    @property
    def is_held(self) -> bool:
        """Whether the kubelet gave the device to the pod."""
        return self.holders > 0

    @property
    def elsewhen(self) -> bytes:
        """The state of any other step: only of a device that it held something is missing."""
        return bytes([Slot.UNKNOWN if self.is_held else Slot.IDLE])

    @property
    def end(self) -> int:
        """The step after its last."""
        return self.first + len(self.samples)

    def part(self, column: Column, first: int, stop: int) -> Column:
        """Values of these steps of the grid, as far as there are any."""
        return column[max(0, first - self.first) : max(0, stop - self.first)]


@dataclasses.dataclass(frozen=True)
class Member:
    """A pod that held GPUs at some time.

    Attributes:
        node: Where it ran; empty if unknown.
        devices: GPUs, shares or MIG instances that it held.
        labels, images: As recorded by kube-state-metrics; empty if unknown.
    """

    key: PodKey
    node: str
    devices: int
    tracks: tuple[Track, ...]
    priority_class: str = ""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    images: tuple[str, ...] = ()

    @functools.cached_property
    def first(self) -> int:
        """The first step."""
        return min(track.first for track in self.tracks)

    @functools.cached_property
    def end(self) -> int:
        """The step after its last."""
        return max(track.end for track in self.tracks)

    @functools.cached_property
    def gpus(self) -> float:
        """Whole GPUs that it held; devices without series count as whole."""
        known = sum(track.is_held for track in self.tracks)
        return sum(track.gpus for track in self.tracks) + max(0, self.devices - known)

    def held_steps(self, first: int, stop: int) -> float:
        """Steps of whole GPUs that it held in these steps."""
        return self.gpus * max(0, min(self.end, stop) - max(self.first, first))

    def seen_steps(self, first: int, stop: int) -> float:
        """The same without steps of which there is no sample."""
        found = 0.0
        for track, row in zip(self.tracks, self.rows, strict=True):
            places = max(0, first - track.first), max(0, min(stop - track.first, len(row)))
            found += track.gpus * (max(0, places[1] - places[0]) - row.count(Slot.UNKNOWN, *places))
        return found

    @property
    def place(self) -> str:
        """Name of the node; where that is unknown, a name that all pods on such devices share."""
        return self.node or f"unknown {self.model}"

    @property
    def model(self) -> str:
        """Model of the devices; empty if unknown."""
        return next((track.device.model for track in self.tracks if track.device.model), "")

    @functools.cached_property
    def rows(self) -> tuple[bytes, ...]:
        """States of the steps of each track."""
        return tuple(track.states() for track in self.tracks)


@dataclasses.dataclass(frozen=True)
class Group:
    """A workload: the pods that one controller had over time.

    Attributes:
        is_guessed: Whether only the names of its pods say what owns them.
    """

    ref: ObjectRef
    members: tuple[Member, ...]
    is_guessed: bool = False

    @property
    def first(self) -> int:
        """The first step."""
        return min(member.first for member in self.members)

    @property
    def end(self) -> int:
        """The step after its last."""
        return max(member.end for member in self.members)

    @property
    def priority_class(self) -> str:
        """PriorityClass of the pods; empty if unknown."""
        return next((member.priority_class for member in self.members if member.priority_class), "")

    @property
    def model(self) -> str:
        """Model of the pods' devices; empty if unknown."""
        return next((member.model for member in self.members if member.model), "")

    def present(self, step: int) -> tuple[Member, ...]:
        """Pods at the beginning of a step: those with samples before and from then on."""
        return tuple(member for member in self.members if member.first < step <= member.end)

    @functools.cached_property
    def works(self) -> bytes:
        """Activity of any device in each step from `first` on, UNKNOWN where one was not seen."""
        row = bytearray(bytes([Slot.IDLE]) * (self.end - self.first))
        for member in self.members:
            for track, known in zip(member.tracks, member.rows, strict=True):
                part = slice(track.first - self.first, track.end - self.first)
                row[part] = strongest((row[part], known))
        return bytes(row)

    def idle_gpus(self, first: int, stop: int) -> list[float]:
        """Whole GPUs of its pods that were seen idle, in each of these steps."""
        found = [0.0] * (stop - first)
        for member in self.members:
            for track, row in zip(member.tracks, member.rows, strict=True):
                for at in range(max(first, track.first), min(stop, track.first + len(row))):
                    if row[at - track.first] == Slot.IDLE:
                        found[at - first] += track.gpus
        return found

    def last_gpus(self, first: int, stop: int) -> list[float]:
        """Whole GPUs that only a stop frees, in each of these steps: its smallest device, where all idle."""
        held = (track.gpus for member in self.members for track in member.tracks if track.is_held)
        least = min(held, default=0.0)
        return [
            least if idle and self.works[at - self.first] == Slot.IDLE else 0.0
            for at, idle in enumerate(self.idle_gpus(first, stop), first)
        ]

    def works_next(self, step: int) -> int | None:
        """The first step from `step` on in which it was active; None where it never was again."""
        place = self.works.find(Slot.BUSY, max(0, step - self.first))
        return None if place < 0 else place + self.first


@dataclasses.dataclass(frozen=True)
class Recording:
    """The history of a fleet.

    Attributes:
        source: Which metrics it is from.
        unchecked: Days of which series of every scraped target count, since the exporters were unknown.
    """

    grid: Grid
    groups: tuple[Group, ...]
    source: str = ""
    unchecked: int = 0

    @property
    def first(self) -> int:
        """The first step with samples; 0 without any."""
        return min((group.first for group in self.groups), default=0)

    @functools.cached_property
    def nodes(self) -> Mapping[str, Node]:
        """Nodes with the models of their GPUs, by name."""
        members = (member for group in self.groups for member in group.members)
        return {member.place: Node(member.place, member.model) for member in members if member.model}

    @functools.cached_property
    def mixed_nodes(self) -> frozenset[str]:
        """Nodes with shared GPUs, or with power or memory traffic of some GPUs only: their pods tell of each other."""
        shared: set[str] = set()
        lacking: set[tuple[str, str]] = set()
        having: set[tuple[str, str]] = set()
        for member in (member for group in self.groups for member in group.members):
            for track in member.tracks:
                lacking.update((member.place, name) for name in SIGNALS.values() if _lacks(track, name))
                having.update((member.place, name) for name in SIGNALS.values() if has(track, name))
                if track.is_own or track.holders != 1:
                    shared.add(member.place)
        return frozenset(shared | {place for place, _ in lacking & having})

    def is_mixed(self, group: Group) -> bool:
        """Whether one of its pods was on a mixed node."""
        return any(member.place in self.mixed_nodes for member in group.members)

    @functools.cached_property
    def most_gpus(self) -> float:
        """The most whole GPUs that were held at once.

        A pod's last step may also be the first of the pod that follows it: there only the latter counts.
        """
        changes = [0.0] * (self.grid.steps + 1)
        for member in (member for group in self.groups for member in group.members):
            is_left = member.end < self.grid.steps and member.end - member.first > 1
            changes[member.first] += member.gpus
            changes[member.end - is_left] -= member.gpus
        return round(max(itertools.accumulate(changes)), 2)

    @property
    def has_counters(self) -> bool:
        """Whether busy time is counted, so that nothing between two scrapes is missed."""
        return any(busy != MISSING for track in tracks(self.groups) for busy in track.busy)


SIGNALS = {SecondSignal.POWER: "power_peak", SecondSignal.TRAFFIC: "traffic"}
"""The columns of second signals."""


def has(track: Track, name: str) -> bool:
    """Whether anything of one of SIGNALS is recorded."""
    column: Column = getattr(track, name)
    return column.count(MISSING) < len(column)


def _lacks(track: Track, name: str) -> bool:
    column: Column = getattr(track, name)
    return MISSING in column and any(
        value == MISSING and count not in {0, MISSING}
        for value, count in zip(column, track.samples, strict=True)
    )


def tracks(groups: Iterable[Group]) -> Iterable[Track]:
    """Tracks of all members."""
    return (track for group in groups for member in group.members for track in member.tracks)
