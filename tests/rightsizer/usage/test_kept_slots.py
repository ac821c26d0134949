"""Slots of earlier cycles, with those that are new, are what a question from scratch answers."""

import array
import dataclasses
import datetime
import hashlib
import random
import zlib
from collections.abc import Collection, Mapping
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st

from rightsizer.kube.pod_names import HASHES, ORDINALS
from rightsizer.model import PodKey, Slot
from rightsizer.usage import kept_slots
from rightsizer.usage.active_replicas import ReplicaQuery
from rightsizer.usage.kept_slots import KeptSlots, SlotRows
from rightsizer.usage.slot_grid import COUNT, SlotGrid
from tests.rightsizer.metrics import DAY, HOUR, UTIL, Metrics, idle, within

AT = datetime.datetime(2026, 3, 2, 12, 0, tzinfo=datetime.UTC)
QUARTER = datetime.timedelta(minutes=15)
SLOTS = 12


@dataclasses.dataclass
class Truth:
    """Samples in each quarter of an hour, by device: a count, and whether it was busy; and what was asked."""

    devices: dict[tuple[str, str, str, str], dict[int, tuple[int, bool]]]
    asked: list[tuple[frozenset[PodKey], int]] = dataclasses.field(default_factory=list)

    def read(self, pods: Collection[PodKey], grid: SlotGrid) -> SlotRows:
        """As Prometheus answers: no row of a device without samples."""
        self.asked.append((frozenset(pods), grid.slots))
        found = SlotRows({}, {})
        end, width = round((grid.end - AT) / QUARTER), round(grid.slot / QUARTER)
        for key, samples in self.devices.items():
            if key[:2] not in pods:
                continue
            parts = [
                [
                    samples.get(end - (grid.slots - 1 - slot) * width - part, (0, False))
                    for part in range(width)
                ]
                for slot in range(grid.slots)
            ]
            counts = [sum(count for count, _ in part) for part in parts]
            if any(counts):
                busy = (any(is_busy for _, is_busy in part) for part in parts)
                found.rows[key] = bytes(Slot.BUSY if one else Slot.IDLE for one in busy)
                found.counts[(*key, "exporter")] = array.array(COUNT, counts)
        return found


def _kept() -> KeptSlots:
    """Not compared with anything but by the tests."""
    return KeptSlots(lambda *_: None, verified_every=1_000_000)


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=200)
def test_kept_slots_are_those_of_a_question_from_scratch(data: st.DataObject) -> None:
    """Pods come, go and restart, samples arrive late, and cycles begin at any quarter of an hour."""
    truth, kept, starts = Truth({}), _kept(), dict[PodKey, datetime.datetime]()
    now, slot = 0, data.draw(st.sampled_from([HOUR, QUARTER]))
    for _ in range(data.draw(st.integers(2, 8))):
        passed = data.draw(st.sampled_from([0, 1, 2, 4, 4, 8, 60]))
        for quarter in range(now - 1, now + passed + 1):  # the last two again: what comes late
            for key, samples in truth.devices.items():
                if data.draw(st.booleans()):
                    samples[quarter] = (
                        data.draw(st.integers(1, 3)),
                        key[2] == "g" and data.draw(st.booleans()),
                    )
        now += passed
        for name in data.draw(st.sets(st.sampled_from("abc"))):
            pod = ("team", name)
            if pod in starts and data.draw(st.booleans()):
                del starts[pod]
                continue
            starts[pod] = AT + now * QUARTER
            for key in [key for key in truth.devices if key[:2] == pod]:
                del truth.devices[key]
            for device in data.draw(st.sets(st.sampled_from("gh"))):
                truth.devices[*pod, device, ""] = {now: (1, False)}
        if data.draw(st.booleans()):
            kept = _restored(kept.saved("us"))
        grid = SlotGrid(AT + now * QUARTER, slot, SLOTS)
        found = kept.extended("activity", grid, dict(starts), truth.read)
        assert found == truth.read(starts, grid)


def _restored(data: bytes, owner: str = "us") -> KeptSlots:
    kept = _kept()
    kept.restore(data, owner)
    return kept


def test_kept_slots_that_are_not_ours_are_discarded() -> None:
    """Damaged, cut off, of another version, or larger than it may be: an error, and everything is asked."""
    truth, kept = Truth({("team", "a", "g", ""): {-8: (1, True)}}), _kept()
    starts = {("team", "a"): AT - 20 * HOUR}
    kept.extended("x", _grid(0), starts, truth.read)
    data = kept.saved("us")
    changed = bytes([*data[:-1], data[-1] ^ 1])
    content = zlib.compress(bytes(kept_slots.MOST_BYTES + 1), level=1)
    too_large = hashlib.sha256(content).digest() + content
    truth.asked.clear()
    for each, owner, words in (
        (b"", "us", "damaged"),
        (data[:-3], "us", "damaged"),
        (changed, "us", "damaged"),
        (data, "them", "another version"),
        (too_large, "us", "larger than"),
        (hashlib.sha256(b"").digest(), "us", "cannot be read"),
    ):
        other = _kept()
        with pytest.raises(ValueError, match=words):
            other.restore(each, owner)
        other.extended("x", _grid(1), starts, truth.read)
        assert _asked(truth) == [(["a"], SLOTS)]
    _restored(data).extended("x", _grid(1), starts, truth.read)
    assert _asked(truth) == [(["a"], 2)]


_FORGED: dict[str, tuple[int, Any]] = {
    "time-without-zone": (0, datetime.datetime(2026, 3, 2, 12)),  # noqa: DTZ001 - that is forged
    "negative-answers": (1, -1),
    "answers-without-end": (1, (1 << 64) - 1),
    "shorter-rows": (3, [bytes(3)]),
    "unknown-slots": (3, [bytes([7]) * SLOTS]),
    "negative-number-of-a-row": (4, [(("team", "a", "g", ""), -1)]),
    "number-of-no-row": (4, [(("team", "a", "g", ""), 1)]),
    "half-a-count": (5, [bytes(2 * SLOTS - 1)]),
}


@pytest.mark.parametrize(("field", "value"), _FORGED.values(), ids=_FORGED.keys())
def test_kept_slots_with_forged_field_are_discarded(field: int, value: Any) -> None:
    """Whoever may write the file knows its digest, and what the program would never write."""
    with pytest.raises(ValueError, match=r"cannot be read|damaged|multiple"):
        _restored(_forged({field: value}))


def test_kept_slots_of_another_length_are_asked_for_again() -> None:
    """Shorter histories than the question's would count as less idle time, or as none."""
    starts, truth = {("team", "a"): AT - 20 * HOUR}, Truth({})
    kept = _restored(_forged({3: [bytes(3)], 5: [bytes(2 * 3)]}))
    assert kept.extended("x", _grid(1), starts, truth.read) == SlotRows({}, {})
    assert _asked(truth) == [(["a"], SLOTS)]


def _forged(fields: Mapping[int, Any]) -> bytes:
    """Saved slots of one device, with other values of these fields of the table."""
    truth, kept = Truth({("team", "a", "g", ""): {-8: (1, True)}}), _kept()
    kept.extended("x", _grid(0), {("team", "a"): AT - 20 * HOUR}, truth.read)
    data = kept.saved("us")
    owner, tables = msgspec.msgpack.decode(zlib.decompress(data[hashlib.sha256().digest_size :]))
    for table in tables.values():
        for field, value in fields.items():
            table[field] = value
    content = zlib.compress(msgspec.msgpack.encode((owner, tables)))
    return hashlib.sha256(content).digest() + content


def _grid(hours: float) -> SlotGrid:
    return SlotGrid(AT + hours * HOUR, HOUR, SLOTS)


def _asked(truth: Truth) -> list[tuple[list[str], int]]:
    found = [(sorted(name for _, name in pods), slots) for pods, slots in truth.asked]
    truth.asked.clear()
    return found


def test_kept_slots_are_asked_for_once() -> None:
    """Of known pods the new slots and the one before, of a new pod all of them; a question by itself, too."""
    truth, kept = Truth({}), _kept()
    starts = {("team", "a"): AT - 20 * HOUR}
    kept.extended("x", _grid(0), starts, truth.read)
    assert _asked(truth) == [(["a"], SLOTS)]
    kept.extended("x", _grid(1), {**starts, ("team", "b"): AT}, truth.read)
    assert _asked(truth) == [(["b"], SLOTS), (["a"], 2)]
    kept.extended("x", _grid(2), {**starts, ("team", "b"): AT + HOUR}, truth.read)
    assert _asked(truth) == [(["b"], SLOTS), (["a"], 2)]
    for other in (_grid(2.25), _grid(1)):  # slots that begin at another minute, and a clock that went back
        kept.extended("x", other, starts, truth.read)
        assert _asked(truth) == [(["a"], SLOTS)]
    kept.extended("y", _grid(2), starts, truth.read)
    assert _asked(truth) == [(["a"], SLOTS)]


def test_kept_slots_of_which_an_answer_lacked_the_states_are_unknown() -> None:
    """As by Thanos without one of its stores: their samples were counted, and nothing says that they were idle."""
    key = ("team", "a", "g", "")
    starts, truth = (
        {key[:2]: AT - 20 * HOUR},
        Truth({key: dict.fromkeys(range(-48, 8), (1, False))}),
    )
    kept = _kept()
    kept.extended("x", _grid(0), starts, truth.read)

    def without_states(pods: Collection[PodKey], grid: SlotGrid) -> SlotRows:
        return dataclasses.replace(truth.read(pods, grid), rows={})

    found = kept.extended("x", _grid(1), starts, without_states)
    assert found.rows[key] == bytes([Slot.IDLE]) * (SLOTS - 2) + bytes([Slot.UNKNOWN]) * 2


@pytest.mark.parametrize("is_lost", [False, True])
def test_kept_slots_that_differ_from_scratch_do_not_count(*, is_lost: bool) -> None:
    """Each answer is compared, where that is asked for."""
    key = ("team", "a", "g", "")
    truth, found = Truth({key: dict.fromkeys(range(-60, 9), (1, True))}), list[int]()
    kept = KeptSlots(lambda _, number: found.append(number), verified_every=1)
    starts = {("team", "a"): AT - 20 * HOUR}
    kept.extended("x", _grid(0), starts, truth.read)
    if is_lost:  # as from a store that was filled later
        truth.devices[key][-20] = (7, True)
    rows = kept.extended("x", _grid(1), starts, truth.read)
    assert found == [int(is_lost)]
    assert rows == truth.read(starts, _grid(1))


@pytest.mark.prometheus
def test_histories_by_kept_slots_are_those_from_scratch(metrics: Metrics) -> None:
    """On Prometheus, at three moments, with a pod that worked in between and one that came."""
    metrics.write(idle(**{UTIL: within(130, 100, 90)}), pod="works")
    metrics.write(idle(), pod="idle")
    metrics.write(idle(), pod="new", since=HOUR)
    pods: Mapping[PodKey, datetime.datetime] = {
        (metrics.space, name): metrics.at - DAY for name in ("works", "idle")
    }
    kept = _kept()
    for left in (3 * HOUR, HOUR, 0 * HOUR):
        at = metrics.at - left
        given = pods if left else {**pods, (metrics.space, "new"): metrics.at - HOUR}
        signals = (metrics.signal(kept=kept), metrics.signal())
        found, scratch = (one.histories(given, 12 * HOUR, at, threshold=0.01) for one in signals)
        assert found == scratch
    assert Slot.BUSY in found[metrics.space, "works"].slots


MINUTE = datetime.timedelta(minutes=1)


@pytest.mark.prometheus
@pytest.mark.parametrize("seed", range(6))
def test_replicas_by_kept_minutes_are_those_from_scratch(metrics: Metrics, seed: int) -> None:
    """On Prometheus, in five cycles: replicas come and go, some lose samples, all of a minute or of one device."""
    draw = random.Random(seed)
    since: dict[str, dict[str, datetime.datetime]] = {"web": {}, "db": {}}
    for number in range(9):
        name = draw.choice(["web", "db"])
        pod = f"web-7d9fc8b5b4-bcdf{number}" if name == "web" else f"db-{number}"
        begin, end = draw.choice([(180, 0), (180, 0), (180, 60), (70, 0), (25, 0), (90, 40)])
        since[name][pod] = metrics.at - begin * MINUTE
        for device in range(draw.choice([1, 1, 2])):
            gap = draw.choice([end, end, draw.randint(end, begin)])
            period, share = draw.choice([7, 11, 30]), draw.random()
            values = {UTIL: lambda left, period=period, share=share: 90.0 * (left % period < share * period)}
            given = {"pod": pod, "UUID": f"GPU-{number}-{device}"}
            metrics.write(values, given, since=begin * MINUTE, until=gap * MINUTE, step_s=15)
            if gap > end + 3:
                metrics.write(values, given, since=(gap - 2) * MINUTE, until=end * MINUTE, step_s=15)
    kept, asked = _kept(), [100, 83, 65.5, 20, 0]
    for left in asked:
        at = metrics.at - left * MINUTE
        queries = [
            ReplicaQuery(name, metrics.space, names, pods, window=HOUR)
            for name, names in (("web", HASHES), ("db", ORDINALS))
            if (pods := {pod: start for pod, start in since[name].items() if start < at})
        ]
        found, scratch = (
            one.concurrency(queries, at) for one in (metrics.signal(kept=kept), metrics.signal())
        )
        assert found == scratch
        kept = _restored(kept.saved("us"))
