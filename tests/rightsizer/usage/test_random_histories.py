"""Usage and histories of random series on a real Prometheus are what a plain reference reads from the raw samples.

Equal: peaks, means, holes, impossible values, busy slots. Where the promise is one-sided, so is the reference:
- What a store had before its samples came late is not asked for again after 20 minutes: kept slots say what was there
  then, and the second look (`sampled`) all of it.
- Samples that everything of a job lacks are gaps, or another scrape interval: coverage is between both.
- Two targets of a job that overlap for a moment follow each other, or are copies: the mean is between both.
- Recorded means have one weight for each slot, or that of its samples: the mean is between both.
- Counters are extrapolated by Prometheus: what they rose by between two samples is the least that a pod worked.
"""

import bisect
import collections
import dataclasses
import datetime
import functools
import itertools
import math
import pathlib
import random
from collections.abc import Collection, Iterator, Mapping, Sequence

import pytest

from rightsizer.evidence import slot_table
from rightsizer.evidence.slot_table import SLOT, KeptTables
from rightsizer.model import History, PodKey, Slot, Usage, Usages
from rightsizer.planning.measure import with_samples
from rightsizer.usage.exporter_counters import POD_BUSY, SLACK_S
from rightsizer.usage.recording_rules import RecordingRules
from rightsizer.usage.source_metrics import DCGM, DCGM_49, MetricKind
from rightsizer.usage.usage_source import PrometheusUsage
from simulator.prometheus import Prometheus
from tests.rightsizer.metrics import DAY, HOUR, Metrics
from tests.rightsizer.relay import Relay
from tests.rightsizer.usage.random_histories import SLOT_S, WITNESS, Faults, Track, random_history

pytestmark = pytest.mark.prometheus

MINUTE = datetime.timedelta(minutes=1)
WINDOWS = DAY, HOUR, 30 * MINUTE
CYCLES_S = 62 * 60 + 13, 45 * 60, 24 * 60 + 7.5, 2 * 60 + 17
"""Before the end of the series. What came late is there from the third one on."""
LATE_S, LATEST_S = 20 * 60, 10 * 60
THRESHOLD = 0.05
LATE_CYCLE = 2
MANY = 1_000_000
METRICS = {metric.name: metric for metric in (*DCGM.metrics, *DCGM_49.metrics)}
PRESENCE = MetricKind.ACTIVITY
HALF = 0.5

UseKey = tuple[str, str, str]
Row = Sequence[tuple[int, float]]
"""Samples: seconds and values."""
Span = tuple[float, float]
"""The lowest and the highest value that is right."""


def _between(track: Track, begin: float, end: float) -> Row:
    """The samples after the begin."""
    left, right = (bisect.bisect_right(track.seconds, at) for at in (begin, end))
    return list(zip(track.seconds[left:right], track.values[left:right], strict=True))


def _key(track: Track) -> UseKey:
    return track.labels["namespace"], track.labels["pod"], track.labels["UUID"]


# --- the reference


@dataclasses.dataclass(frozen=True)
class Reference:
    """What raw samples say of the pods of one history in a window, the slow and plain way.

    Attributes:
        tracks: With the samples that were asked for.
        end: Of the window, and of the slots that it is made of.
        latest: The same until the moment of the question: its last minutes count as well.
        at: That moment.
        by_slot: Whether the mean of a slot counts as one sample.
        is_closed: Whether a sample at the begin of the window may be in it.
    """

    tracks: Sequence[Track]
    end: float
    window: float
    latest: Sequence[Track]
    at: float
    by_slot: bool = False
    is_closed: bool = False

    @functools.cached_property
    def uses(self) -> dict[UseKey, tuple[list[Track], list[Track]]]:
        """The gauges of each use: as they were asked for, and now."""
        found: dict[UseKey, tuple[list[Track], list[Track]]] = {}
        for place, tracks in enumerate((self.tracks, self.latest)):
            for track in tracks:
                if track.name in METRICS:
                    found.setdefault(_key(track), ([], []))[place].append(track)
        return found

    def rows(self, key: UseKey, kind: MetricKind) -> list[tuple[Track, Row]]:
        """The series of a use that have samples in the window."""
        found = [
            (track, _between(track, self.end - self.window, self.end))
            for track in self.uses[key][0]
            if METRICS[track.name].kind is kind
        ]
        return [each for each in found if each[1]]

    def seen(self, key: UseKey, *, most: bool) -> Iterator[tuple[Track, Row]]:
        """The samples that a peak must be as high as, or that one may be as high as."""
        begin = self.end - self.window - (0.5 if most and self.is_closed else 0)
        spans = (begin, self.end), (self.at - LATEST_S, self.at)
        for tracks, (since, until) in zip(self.uses[key], spans, strict=True):
            yield from ((track, row) for track in tracks if (row := _between(track, since, until)))

    def keys(self, *, most: bool) -> set[UseKey]:
        """Those of the uses that have samples."""
        return {key for key in self.uses if any(self.seen(key, most=most))}

    def peak(self, key: UseKey, kind: MetricKind, *, most: bool) -> float | None:
        """The highest sample."""
        rows = [each for each in self.seen(key, most=most) if METRICS[each[0].name].kind is kind]
        return max(
            (METRICS[one.name].scale * max(value for _, value in row) for one, row in rows), default=None
        )

    def impossible(self, key: UseKey, *, most: bool) -> set[str]:
        """Metrics with a value that cannot be."""
        return {
            track.name
            for track, row in self.seen(key, most=most)
            if not all(
                0 <= value * METRICS[track.name].scale <= METRICS[track.name].highest for _, value in row
            )
        }

    def means(self, key: UseKey, kind: MetricKind) -> tuple[list[Span], list[Span]]:
        """The mean of each source: targets that follow each other are one, and copies several."""
        jobs: dict[tuple[str, str], dict[str, list[Row]]] = {}
        for track, row in self.rows(key, kind):
            targets = jobs.setdefault((track.name, track.labels["job"]), {})
            targets.setdefault(track.labels["instance"], []).append(row)
        joined: list[Span] = []
        copies: list[Span] = []
        for (name, _), targets in jobs.items():
            scale = METRICS[name].scale
            means, weights, cells = [], [], []
            for replicas in targets.values():
                spans = [self._mean(row, scale) for row in replicas]
                means.append((max(low for low, _ in spans), max(high for _, high in spans)))
                weights.append(max(map(len, replicas)))
                cells.append({self._cell(at) for row in replicas for at, _ in row})
            at_once = sum(count > 1 for count in collections.Counter(itertools.chain(*cells)).values())
            both = [
                sum(each[place] * weight for each, weight in zip(means, weights, strict=True)) / sum(weights)
                for place in (0, 1)
            ]
            edges = sorted((rows[0][0][0], rows[0][-1][0]) for rows in targets.values())
            follow = all(one[1] < other[0] for one, other in itertools.pairwise(edges))
            joined += means if at_once > 2 * len(targets) else [(both[0], both[1])]
            copies += [(both[0], both[1])] if follow else means
        return joined, copies

    def is_apart(self, key: UseKey) -> bool:
        """Whether counters may tell the pod's work from that of others on the device."""
        has_counters = any(track.name == POD_BUSY for track in self.latest)
        return has_counters and sum(one[2] == key[2] for one in self.uses) > 1

    def states(self, pod: PodKey, slot: int, end: float) -> set[Slot]:
        """What a slot of the history may be, by its number from the end.

        It is unknown without half of the samples of the densest series.
        """
        found: list[set[Slot]] = []
        for key in (one for one in self.uses if one[:2] == pod and self.counts.get(one)):
            values = self._by_slot[key].get(slot, [])
            is_busy = any(share > THRESHOLD for share in values if share <= 1)
            count, least = (
                self.counts[key][slot],
                max(1, HALF * max(row[slot] for row in self.counts.values())),
            )
            most = max(map(max, self.counts.values()))
            states = {Slot.UNKNOWN} if count < max(least, HALF * HALF * most) else set[Slot]()
            states |= {Slot.IDLE} if count >= max(least, HALF * 0.1 * most) else set()
            states = {Slot.BUSY} if is_busy else states
            if not all(0 <= share <= 1 for share in values):
                states = set(Slot)
            rise = self.counted_s(key, end - (slot + 1) * SLOT_S, end - slot * SLOT_S)
            if self.is_apart(key):
                states |= {Slot.IDLE, Slot.UNKNOWN}
            states |= {Slot.BUSY} if rise > 0 else set()
            found.append({Slot.BUSY} if rise > SLACK_S else states)
        together = {
            Slot.BUSY if Slot.BUSY in each else max(each, default=Slot.UNKNOWN)
            for each in itertools.product(*found)
        }
        return together if found else {Slot.UNKNOWN}

    @functools.cached_property
    def counts(self) -> dict[UseKey, list[int]]:
        """The samples of each use in each five minutes, the last first; the highest of all series."""
        return {
            key: [
                max(each)
                for each in zip(*(rows[key] for rows in self.jobs.values() if key in rows), strict=True)
            ][::-1]
            for key in {key for rows in self.jobs.values() for key in rows}
        }

    @functools.cached_property
    def _by_slot(self) -> dict[UseKey, dict[int, list[float]]]:
        found: dict[UseKey, dict[int, list[float]]] = {}
        for key in self.uses:
            for track, row in self.rows(key, PRESENCE):
                for at, value in row:
                    slots = found.setdefault(key, {})
                    slots.setdefault(self._cell(at), []).append(value * METRICS[track.name].scale)
        return found

    def _mean(self, row: Row, scale: float) -> Span:
        slots: dict[int, list[float]] = {}
        for at, value in row:
            slots.setdefault(self._cell(at), []).append(value * scale)
        every = [value for values in slots.values() for value in values]
        mean = sum(every) / len(every)
        of_slots = sum(sum(values) / len(values) for values in slots.values()) / len(slots)
        return (min(mean, of_slots), max(mean, of_slots)) if self.by_slot else (mean, mean)

    def _cell(self, at: float) -> int:
        """The number of the five minutes of a sample, from the end."""
        return math.floor((self.end - at) / SLOT_S)

    @functools.cached_property
    def jobs(self) -> dict[str, dict[UseKey, list[int]]]:
        """By job the samples of each use in each five minutes; of several series the highest number."""
        cells = round(self.window / SLOT_S)
        found: dict[str, dict[UseKey, list[int]]] = {}
        for key in self.uses:
            for track, row in self.rows(key, PRESENCE):
                counts = collections.Counter(self._cell(at) for at, _ in row)
                known = found.setdefault(track.labels["job"], {}).setdefault(key, [0] * cells)
                known[:] = [max(old, counts[cells - 1 - cell]) for cell, old in enumerate(known)]
        return found

    def coverage(self, key: UseKey) -> "Covered":
        """Slot by slot against the densest series of each job; of several jobs the highest share counts."""
        told = [
            _JobReference(list(rows.values()), rows[key], self.by_slot)
            for rows in self.jobs.values()
            if key in rows
        ]
        if not told:
            return Covered((0.0, 0.0), 0, (False, False), None)
        low, high = (
            [max(each) for each in zip(*(one.shares(is_high=is_high) for one in told), strict=True)]
            for is_high in (False, True)
        )
        coarsest = min((one.edges for one in told), key=len)
        holes = sum(not any(high[first:last]) for first, last in itertools.pairwise(coarsest))
        # Kept slots may have ended five minutes ago.
        recent = [one for one in self.uses[key][1] if METRICS[one.name].kind is PRESENCE]
        is_seen = not self.is_closed or any(_between(one, self.at - LATEST_S, self.at) for one in recent)
        return Covered(
            (sum(low) / len(low), sum(high) / len(high)),
            holes,
            (low[-1] >= HALF and is_seen, high[-1] >= HALF and is_seen),
            max(one.samples for one in told),
        )

    def counted_s(self, key: UseKey, begin: float | None = None, end: float | None = None) -> float:
        """Seconds that a pod worked at least, by its own counters now; what a target of a job adds to another's."""
        jobs: dict[str, dict[str, float]] = {}
        for track in self.latest:
            if track.name == POD_BUSY and _key(track) == key:
                values = [
                    value for _, value in _between(track, begin or self.at - self.window, end or self.at)
                ]
                rise = sum(after - before * (after >= before) for before, after in itertools.pairwise(values))
                targets, target = jobs.setdefault(track.labels["job"], {}), track.labels["instance"]
                targets[target] = max(rise, targets.get(target, 0.0))
        return max((sum(targets.values()) for targets in jobs.values()), default=0.0)


@dataclasses.dataclass(frozen=True)
class Covered:
    """The share of a window, at least and at most; slots without a sample; whether it is fresh; expected samples."""

    share: Span
    holes: int
    is_fresh: tuple[bool, bool]
    samples: int | None


@dataclasses.dataclass(frozen=True)
class _JobReference:
    """The samples of all uses of a job in each five minutes, and those of one of them."""

    rows: Sequence[Sequence[int]]
    own: Sequence[int]
    may_lag: bool  # whether the last five minutes may be recorded later

    @functools.cached_property
    def samples(self) -> int:
        return max(map(sum, self.rows))

    @functools.cached_property
    def densest(self) -> list[int]:
        return [max(column) for column in zip(*self.rows, strict=True)]

    @functools.cached_property
    def edges(self) -> list[int]:
        """At most 96 slots, with 20 samples each where there are any."""
        cells, filled = len(self.own), sum(map(bool, self.densest))
        number = max(2, min(96, cells, self.samples * cells // filled // 20))
        return [place * cells // number for place in range(number + 1)]

    def shares(self, *, is_high: bool) -> list[float]:
        """The share of its slot's samples that each five minutes have; what all lack are gaps, or hardly any are."""
        found: list[float] = []
        least = max(self.densest) * (0.1 if is_high else 0.5)
        for first, last in itertools.pairwise(self.edges):
            lost = sum(max(0.0, least - count) for count in self.densest[first:last])
            if is_high and self.may_lag and last == len(self.own) and not self.densest[-1]:
                lost -= least
            full = lost + max(sum(row[first:last]) for row in self.rows)
            found += [min(1.0, sum(self.own[first:last]) / full) if full else 0.0] * (last - first)
        return found


# --- the comparison


def _is_in(value: float | None, low: float | None, high: float | None, what: object) -> None:
    """A value that exists if it must, and lies between what is right."""
    if value is None:
        assert low is None, (what, low)
    else:
        assert high is not None, (what, value)
        slack = 1e-5 * max(abs(high), 1e-3)
        assert (0.0 if low is None else low) - slack <= value <= high + slack, (what, value, low, high)


def _check(found: Mapping[UseKey, Usage], reference: Reference) -> None:
    """All of it."""
    assert reference.keys(most=False) <= found.keys() <= reference.keys(most=True)
    for key, usage in found.items():
        spoilt = _check_peaks(key, usage, reference)
        if PRESENCE not in spoilt and not reference.is_apart(key):
            joined, copies = reference.means(key, PRESENCE)
            _is_in(usage.activity_mean, *_highest(joined, copies), (key, "mean"))
            _is_in(usage.activity_floor, *_lowest(joined, copies), (key, "floor"))
        if MetricKind.POWER not in spoilt:
            _is_in(usage.power_mean_w, *_highest(*reference.means(key, MetricKind.POWER)), (key, "power"))
        _check_coverage(key, usage, reference)
        if not spoilt and (counted_s := reference.counted_s(key)) > SLACK_S:
            assert _shows_work(usage), (key, counted_s, usage)


def _check_peaks(
    key: UseKey, usage: Usage, reference: Reference, kinds: Collection[MetricKind] = tuple(MetricKind)
) -> set[MetricKind]:
    """Those of some kinds; returns the kinds with a value that cannot be, of which nothing else counts."""
    least, most = (
        {name for name in reference.impossible(key, most=most) if METRICS[name].kind in kinds}
        for most in (False, True)
    )
    assert least <= {name for name in usage.invalid if name in METRICS} <= most, (key, usage.invalid)
    spoilt = {METRICS[name].kind for name in most}
    values = {
        PRESENCE: usage.activity_peak,
        MetricKind.TRAFFIC: usage.traffic_peak,
        MetricKind.MEMORY: usage.memory_peak_bytes,
        MetricKind.POWER: usage.power_peak_w,
    }
    for kind in values.keys() & set(kinds) - spoilt:
        if not (kind is PRESENCE and reference.is_apart(key)):
            low, high = (reference.peak(key, kind, most=most) for most in (False, True))
            _is_in(values[kind], low, high, (key, kind))
    return spoilt


def _check_coverage(key: UseKey, usage: Usage, reference: Reference) -> None:
    covered = reference.coverage(key)
    _is_in(usage.coverage, *covered.share, (key, "coverage"))
    assert (usage.holes, usage.samples_expected) == (covered.holes, covered.samples), key
    assert covered.is_fresh[0] <= usage.is_fresh <= covered.is_fresh[1], key


def _check_history(pod: PodKey, history: History, reference: Reference, end: float) -> None:
    """Slot by slot; `end` is that of the slots by counters, which are always of samples."""
    assert len(history.slots) == round(reference.window / SLOT_S)
    for slot, state in enumerate(reversed(history.slots)):
        allowed = reference.states(pod, slot, end)
        assert state in allowed, (pod, slot, Slot(state), allowed)


def _shows_work(usage: Usage) -> bool:
    """Whether a rule that acts on idle GPUs could see that it worked, or that it is unknown."""
    return usage.activity_peak is None or usage.activity_peak > 0 or (usage.busy_s or 0.0) > SLACK_S


def _highest(joined: Sequence[Span], copies: Sequence[Span]) -> tuple[float | None, float | None]:
    return max((low for low, _ in joined), default=None), max((high for _, high in copies), default=None)


def _lowest(joined: Sequence[Span], copies: Sequence[Span]) -> tuple[float | None, float | None]:
    return min((low for low, _ in copies), default=None), min((high for _, high in joined), default=None)


def _by_use(usages: Usages, space: str) -> dict[UseKey, Usage]:
    return {
        (*pod, usage.device.uuid): usage for pod, each in usages.items() if pod[0] == space for usage in each
    }


# --- the worlds


@dataclasses.dataclass(frozen=True)
class Fleet:
    """Histories in one Prometheus."""

    metrics: Metrics
    histories: Mapping[str, Sequence[Track]]

    def write(self, *, late: bool) -> None:
        """What is late, or the rest."""
        self.metrics.prometheus.write(
            series
            for tracks in self.histories.values()
            for each in tracks
            for series in each.series(late=late)
        )

    def now(self, space: str, cycle: int) -> Sequence[Track]:
        """The samples that are there at a cycle."""
        tracks = self.histories[space]
        return tracks if cycle >= LATE_CYCLE else [track.without(track.late) for track in tracks]

    def kept(self, space: str, cycle: int, ends: Sequence[float]) -> Sequence[Track]:
        """Those that are known at a cycle if each asks for 20 minutes again.

        By series, a new one is asked for whole, and with it all series of the metric that name its pod.
        """
        tracks, since = self.now(space, cycle), ends[LATE_CYCLE - 1] - LATE_S
        whole = {
            (_key(track)[:2], track.name)
            for track in tracks
            for number in range(LATE_CYCLE, cycle + 1)
            if track.name in METRICS
            and not _between(self._seen(track, number - 1), 0, ends[number - 1])
            and _between(track, ends[number - 1] - LATE_S, ends[number])
        }
        return [
            track
            if cycle < LATE_CYCLE or (_key(track)[:2], track.name) in whole
            else track.without(frozenset(at for at in track.late if at <= since))
            for track in tracks
            if track.name in METRICS
        ]

    @staticmethod
    def _seen(track: Track, cycle: int) -> Track:
        return track if cycle >= LATE_CYCLE else track.without(track.late)

    def pods(self, space: str) -> list[PodKey]:
        """Those of a history."""
        return sorted({_key(track)[:2] for track in self.histories[space] if track.name in METRICS})


@pytest.fixture
def metrics(tmp_path: pathlib.Path) -> Iterator[Metrics]:
    """A Prometheus of its own: the recording rules know no label of a test's."""
    with Prometheus(tmp_path / "own") as own:
        yield Metrics(own, mark=False)


def _floor(at: datetime.datetime) -> float:
    """When rules recorded last."""
    return at.timestamp() // SLOT_S * SLOT_S


@pytest.fixture(autouse=True)
def _of_a_large_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    """New series are asked for by the names of their pods, as where they are few of many."""
    monkeypatch.setattr(slot_table, "_FEW", 1.0)


@pytest.mark.parametrize("recording", [RecordingRules.OFF, RecordingRules.TRUSTED])
def test_random_histories_are_what_raw_samples_say(metrics: Metrics, recording: RecordingRules) -> None:
    """From scratch, and by slots that are kept over four cycles."""
    _Comparison(metrics, recording, 1, 4).run()


@pytest.mark.slow
@pytest.mark.parametrize("recording", [RecordingRules.OFF, RecordingRules.TRUSTED])
@pytest.mark.parametrize("seed", range(2, 5))
def test_many_random_histories_are_what_raw_samples_say(
    metrics: Metrics, recording: RecordingRules, seed: int
) -> None:
    """The same of more of them."""
    _Comparison(metrics, recording, seed, 8).run()


class _Comparison:
    """Some histories, and four cycles that ask for them."""

    def __init__(self, metrics: Metrics, recording: RecordingRules, seed: int, number: int) -> None:
        self.metrics, self.recording = metrics, recording
        self.ats = [metrics.at - datetime.timedelta(seconds=ago) for ago in CYCLES_S]
        end, late = round(metrics.at.timestamp()), math.floor(self.ats[LATE_CYCLE - 1].timestamp())
        may_lag = recording is RecordingRules.OFF
        made = {
            f"h{seed}-{each}": random_history(
                random.Random(f"{seed} {each}"), f"h{seed}-{each}", end, Faults(late, may_lag)
            )
            for each in range(number)
        }
        self.fleet = Fleet(metrics, made)
        self.fleet.write(late=False)
        if recording is RecordingRules.TRUSTED:
            metrics.record(DAY + 2 * HOUR)
        first = self.ats[0].replace(second=0, microsecond=0)
        self.ends = [at - (at - first) % SLOT for at in self.ats]
        self.tables = KeptTables(print, print, verified_every=MANY)

    def run(self) -> None:
        """Each cycle asks by tables, the last one from scratch, too."""
        with Relay(self.metrics.prometheus.url) as relay:
            for cycle in range(len(self.ats)):
                if cycle == LATE_CYCLE:
                    self.fleet.write(late=True)
                self._usages(relay, cycle, is_kept=True)
            self._usages(relay, cycle, is_kept=False)
            self._histories(relay, cycle)
            self._others(relay)

    def _signal(self, relay: Relay, tables: KeptTables | None) -> PrometheusUsage:
        relay.asked.clear()
        return self.metrics.signal(url=relay.url, tables=tables, recording=self.recording)

    def _usages(self, relay: Relay, cycle: int, *, is_kept: bool) -> None:
        at, signal = self.ats[cycle], self._signal(relay, self.tables if is_kept else None)
        for window in WINDOWS:
            usages = signal.usages(window, at)
            is_of_slots = is_kept and window >= HOUR
            end = self.ends[cycle] if is_of_slots else at
            is_recorded = window >= HOUR and _is_recorded(relay)
            for space in self.fleet.histories:
                now = self.fleet.now(space, cycle)
                tracks = now
                if is_recorded:
                    tracks = self.fleet.now(space, 0)
                elif is_of_slots:
                    tracks = self.fleet.kept(space, cycle, [each.timestamp() for each in self.ends])
                reference = Reference(
                    tracks,
                    _floor(end) if is_recorded else end.timestamp(),
                    window.total_seconds(),
                    now,
                    at.timestamp(),
                    by_slot=is_recorded,
                    is_closed=is_of_slots,
                )
                _check(_by_use(usages, space), reference)
            if window == DAY:
                self._second_look(signal, usages, cycle)

    def _second_look(self, signal: PrometheusUsage, usages: Usages, cycle: int) -> None:
        """No peak is lower than the highest sample, however late that came."""
        at = self.ats[cycle]
        pods = [pod for space in self.fleet.histories for pod in self.fleet.pods(space)]
        found = with_samples(usages, signal.sampled(DAY, at, of=pods))
        for space in self.fleet.histories:
            now = self.fleet.now(space, cycle)
            reference = Reference(now, at.timestamp(), DAY.total_seconds(), now, at.timestamp())
            for key, usage in _by_use(found, space).items():
                peak = reference.peak(key, PRESENCE, most=False)
                if peak is not None and not usage.invalid and not reference.is_apart(key):
                    assert usage.activity_peak is not None, key
                    assert usage.activity_peak >= peak * (1 - 1e-6), key

    def _histories(self, relay: Relay, cycle: int) -> None:
        at = self.ats[cycle]
        for space in self.fleet.histories:
            signal = self._signal(relay, None)
            pods = dict.fromkeys(self.fleet.pods(space), self.metrics.at - 9 * DAY)
            found = signal.histories(pods, DAY, at, threshold=THRESHOLD)
            now = self.fleet.now(space, cycle)
            end, is_recorded = at.timestamp(), _is_recorded(relay)
            tracks = self.fleet.now(space, 0) if is_recorded else now
            reference = Reference(tracks, _floor(at) if is_recorded else end, DAY.total_seconds(), now, end)
            for pod, history in found.items():
                assert history.end.timestamp() == end
                _check_history(pod, history, reference, end)

    def _others(self, relay: Relay) -> None:
        """Peaks of the last minutes, and activity alone, which are always of samples."""
        at, signal = self.ats[-1], self._signal(relay, self.tables)
        recent, activity = signal.recent(at), signal.activity(HOUR, at, with_coverage=True)
        for space, now in self.fleet.histories.items():
            for usages, length_s, kinds in (
                (recent, LATEST_S, tuple(MetricKind)),
                (activity, HOUR.total_seconds(), (PRESENCE,)),
            ):
                reference = Reference(now, at.timestamp(), length_s, now, at.timestamp())
                for key, usage in _by_use(usages, space).items():
                    # Only peaks are asked for, which hide NaN and negative values.
                    if not reference.impossible(key, most=True):
                        _check_peaks(key, usage, reference, kinds)
                    if usages is activity:
                        _check_coverage(key, usage, reference)


def _is_recorded(relay: Relay) -> bool:
    """Whether a signal has asked for recorded values."""
    return any("gpu_rightsizer:activity:max5m" in query for query in relay.asked)


@pytest.mark.parametrize("recording", [RecordingRules.OFF, RecordingRules.TRUSTED])
def test_random_histories_with_fewer_samples_are_no_idler(
    metrics: Metrics, recording: RecordingRules
) -> None:
    """Work that is not seen any more leaves less coverage; unknown time never becomes idle."""
    _compare_with_less(metrics, recording, 1, 4)


@pytest.mark.slow
@pytest.mark.parametrize("recording", [RecordingRules.OFF, RecordingRules.TRUSTED])
def test_many_random_histories_with_fewer_samples_are_no_idler(
    metrics: Metrics, recording: RecordingRules
) -> None:
    """The same of more of them."""
    _compare_with_less(metrics, recording, 2, 14)


def _compare_with_less(metrics: Metrics, recording: RecordingRules, seed: int, number: int) -> None:
    """A pod that loses nothing keeps the job's densest series as they are; one target at a time names each pod."""
    end, whole, less = round(metrics.at.timestamp()), dict[str, list[Track]](), dict[str, list[Track]]()
    faults = Faults(kinds=["one", "moves"], has_witness=True)
    for each in range(number):
        for name, made in ((f"w{each}", whole), (f"l{each}", less)):
            draw = random.Random(f"{seed} {each}")
            made[name] = random_history(draw, name, end, faults)
        less[f"l{each}"] = list(_fewer(random.Random(f"less {seed} {each}"), less[f"l{each}"]))
    for made in (whole, less):
        Fleet(metrics, made).write(late=False)
    if recording is RecordingRules.TRUSTED:
        metrics.record(DAY + 2 * HOUR)
    at = metrics.at - datetime.timedelta(seconds=CYCLES_S[-1])
    for tables in (KeptTables(print, print, verified_every=MANY), None):
        signal = metrics.signal(tables=tables, recording=recording)
        for window in WINDOWS:
            usages = signal.usages(window, at)
            for one, other in zip(whole, less, strict=True):
                before = {key[1:]: usage for key, usage in _by_use(usages, one).items()}
                for key, usage in _by_use(usages, other).items():
                    _check_less(before[key[1].replace("l", "w", 1), key[2].replace("-l", "-w", 1)], usage)
    signal = metrics.signal(recording=recording)
    for tracks in zip(whole.values(), less.values(), strict=True):
        earlier, later = (_histories(signal, each, metrics.at - 9 * DAY, at) for each in tracks)
        assert (Slot.UNKNOWN, Slot.IDLE) not in list(zip(earlier, later, strict=True))


def _histories(
    signal: PrometheusUsage, tracks: Sequence[Track], start: datetime.datetime, at: datetime.datetime
) -> bytes:
    """The slots of all pods."""
    pods = {_key(track)[:2]: start for track in tracks if track.name in METRICS}
    found = signal.histories(pods, DAY, at, threshold=THRESHOLD)
    return b"".join(found[pod].slots for pod in sorted(found))


def _fewer(draw: random.Random, tracks: Sequence[Track]) -> Iterator[Track]:
    """Without some scrapes of all pods but one: any, a stretch, or just those that show work."""
    lost: dict[PodKey, frozenset[int]] = {}
    for track in tracks:
        if track.name not in METRICS or track.labels["pod"].endswith(WITNESS):
            continue
        seconds, chosen = track.seconds, lost.get(_key(track)[:2], frozenset())
        kind, at = draw.choice(["any", "stretch", "work"]), draw.choice(seconds)
        share, length = draw.choice([0.01, 0.1, 0.5]), draw.choice([300, 900, 7200])
        if kind == "any":
            chosen |= {second for second in seconds if draw.random() < share}
        elif kind == "stretch":
            chosen |= {second for second in seconds if at <= second < at + length}
        elif METRICS[track.name].kind is PRESENCE:
            chosen |= {second for second, value in zip(seconds, track.values, strict=True) if value > 0}
        lost[_key(track)[:2]] = chosen
    for track in tracks:
        is_gauge = track.name in METRICS or track.name == POD_BUSY
        yield track.without(lost.get(_key(track)[:2], frozenset())) if is_gauge else track


def _check_less(before: Usage, usage: Usage) -> None:
    """No peak is lower, nor is anything unknown idle, with the whole window covered."""
    assert usage.coverage <= before.coverage + 1e-9
    assert usage.holes >= before.holes
    assert usage.is_fresh <= before.is_fresh
    is_whole = usage.coverage > 1 - 1e-9 and not usage.holes and usage.is_fresh
    if is_whole and not usage.invalid and not _shows_work(usage):
        assert not _shows_work(before), (before, usage)
        assert not before.invalid
