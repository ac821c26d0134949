"""Builds a recording: steps of usage as they arrive day by day, and what owned the pods. Pure."""

import collections
import datetime
import re
from collections.abc import Iterator, Mapping, Sequence

from rightsizer.kube.pod_names import HASHED, ORDINAL, RANDOM
from rightsizer.model import ObjectRef, PodKey
from rightsizer.model.gpu_fractions import mig_part
from rightsizer.usage.source_metrics import DeviceKey, UseKey
from rightsizer.usage.step_usage import COLUMNS, MISSING, Column, StepsByUse, missing
from rightsizer_history.backtest.pod_facts import PodFacts
from rightsizer_history.backtest.recording import Grid, Group, Member, Recording, Track

_UNKNOWN = PodFacts()


class Recorder:
    """Collects the chunks of a history."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._tracks: dict[UseKey, tuple[str, int, Track]] = {}

    def add(self, steps: range, found: StepsByUse) -> None:
        """Add one chunk; chunks come in order, and steps without samples before the first are left out."""
        for key, entry in found.items():
            pairs = zip(entry.columns["samples"], entry.columns["busy"], strict=True)
            seen = [place for place, pair in enumerate(pairs) if not set(pair) <= {0, MISSING}]
            if not seen:
                continue
            if key not in self._tracks:
                self._tracks[key] = entry.job, entry.rank, Track(entry.device, steps.start + seen[0])
            track = self._tracks[key][2]
            gap, skipped = max(0, steps.start - track.end), max(0, track.end - steps.start)
            for name in COLUMNS:
                column: Column = getattr(track, name)
                column.extend(missing(gap))
                column.extend(entry.columns[name][skipped : seen[-1] + 1])

    def recording(self, facts: Mapping[PodKey, PodFacts], *, source: str, unchecked: int = 0) -> Recording:
        """The whole recording, by workload."""
        by_pod: dict[PodKey, list[Track]] = collections.defaultdict(list)
        for use, track in self._of_workloads():
            by_pod[use[:2]].append(track)
        groups: dict[ObjectRef, list[Member]] = collections.defaultdict(list)
        guessed: set[ObjectRef] = set()
        for key, tracks in sorted(by_pod.items()):
            if not (held := sum(track.is_held for track in tracks)):
                continue
            known = facts.get(key, _UNKNOWN)
            owner = known.owner or owner_by_name(key)
            if known.owner is None:
                guessed.add(owner)
            gpus = known.gpus or held
            groups[owner].append(
                Member(key, known.node, gpus, tuple(tracks), known.priority_class, known.labels, known.images)
            )
        found = (Group(owner, tuple(members), owner in guessed) for owner, members in groups.items())
        return Recording(self._grid, tuple(found), source, unchecked)

    def _of_workloads(self) -> Iterator[tuple[UseKey, Track]]:
        """Tracks but exporters' own: where a job names pods by the first choice of label, only that counts."""
        best: dict[str, int] = {}
        counts: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
        for job, rank, track in self._tracks.values():
            best[job] = min(rank, best.get(job, rank))
            counts[job].update(track.samples)
        usual = {job: _usual(counted) for job, counted in counts.items()}
        kept = {
            use: (job, track) for use, (job, rank, track) in sorted(self._tracks.items()) if rank == best[job]
        }
        sharers: dict[DeviceKey, list[Track]] = collections.defaultdict(list)
        for use, (_, track) in kept.items():
            sharers[use[2:]].append(track)
        for tracks in sharers.values():
            if not any(_sum(track.moving) for track in tracks) and any(_sum(track.busy) for track in tracks):
                for track in tracks:  # its driver does not measure it
                    track.moving = missing(len(track.moving))
        for use, (job, track) in kept.items():
            track.expected = usual[job]
            users = sharers[use[2:]]
            held = [user for user in users if any(count not in {0, MISSING} for count in user.samples)]
            track.holders = _at_once(track, held) if track in held else 0
            has_counters = any(busy != MISSING for busy in track.busy)
            is_visited = len(held) < len(users)
            track.is_own = has_counters and (track.holders > 1 or is_visited)
            part = mig_part(f"mig-{track.device.instance_profile}", track.device.model)
            track.gpus = (1.0 if part is None else part) / track.holders if track.is_held else 0.0
            yield use, track


def _sum(values: Column) -> int:
    return sum(values) - values.count(MISSING) * MISSING


def _at_once(track: Track, sharers: Sequence[Track]) -> int:
    """Number of pods that held the device in the middle of its time."""
    middle = (track.first + track.end) // 2
    return max(1, sum(other.first <= middle < other.end for other in sharers))


def _usual(counts: collections.Counter[int]) -> int:
    """The most frequent number of samples in a step: edges of steps make it one more at times."""
    del counts[MISSING]
    return max(1, max(counts, key=lambda count: (counts[count], count), default=1))


def owner_by_name(pod: PodKey) -> ObjectRef:
    """Owner by a pod's name: a Deployment, a StatefulSet, a Job, or none."""
    namespace, name = pod
    for pattern, api_version, kind in _NAMES:
        match = re.fullmatch(f"(.+)-(?:{pattern})", name)
        if match:
            return ObjectRef(api_version, kind, namespace, match[1], f"{namespace}/{kind}/{match[1]}")
    return ObjectRef("v1", "Pod", namespace, name, f"{namespace}/Pod/{name}")


_NAMES = (
    (HASHED, "apps/v1", "Deployment"),
    (ORDINAL, "apps/v1", "StatefulSet"),
    (RANDOM, "batch/v1", "Job"),
)


def grid_of(end: datetime.datetime, span: datetime.timedelta, step: datetime.timedelta) -> Grid:
    """The whole steps of a span that ends at the last whole step before `end`."""
    step_s = int(step.total_seconds())
    last = int(end.timestamp()) // step_s * step_s
    steps = max(1, int(span.total_seconds()) // step_s)
    begin = datetime.datetime.fromtimestamp(last - steps * step_s, datetime.UTC)
    return Grid(begin, step_s, steps)
