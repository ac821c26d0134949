"""How long to wait follows from a workload's own pauses; what is not known of them never shortens the wait."""

import datetime
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from rightsizer.findings.idle_history import needed_s, rhythm_of, rhythm_of_pods
from rightsizer.model import FindingName, Slot, Verdict
from rightsizer.policy.schema import Thresholds
from tests.rightsizer.build import (
    AT,
    DAY,
    HOUR_S,
    MANY,
    all_idle,
    criteria,
    findings,
    history,
    idle_usage,
    pod,
    usages,
    workload,
)

HOUR = datetime.timedelta(hours=1)
POD = pod()
KEY = ("research", "w-0")
FOUR_HOURS = Thresholds(window=4 * HOUR)

# Pauses of the past → window, verdict, and what the words say of them.
WAITS = {
    "never-paused": ("#" * 200 + "." * 24, DAY, Verdict.ACT, "never came back from a pause in 10d"),
    "never-worked": (".", DAY, Verdict.ACT, "idle for 10d; not seen at work in 10d"),
    "paused-for-half-as-long": (
        "#" + "." * 12 + "#" + "." * 24,
        DAY,
        Verdict.ACT,
        "after at most 12h in 10d",
    ),
    "paused-for-more-than-half-as-long": (
        "#" + "." * 13 + "#" + "." * 24,
        DAY,
        Verdict.KEEP,
        "idle for 1d; came back after at most 13h in 10d; will count as idle from 2026-11-21 14:00 UTC",
    ),
    "waited-twice-as-long": ("#" + "." * 20 + "#" + "." * 40, DAY, Verdict.ACT, "after at most 20h in 10d"),
    "a-short-window-and-short-pauses": ("#..#" + "." * 4, 4 * HOUR, Verdict.ACT, "after at most 2h"),
    "a-short-window-and-a-long-pause": ("#" + "." * 9 + "#" + "." * 5, 4 * HOUR, Verdict.KEEP, "at most 9h"),
    "a-gap-that-may-have-been-a-pause": (
        "#" + "?" * 30 + "#" + "." * 24,
        DAY,
        Verdict.UNKNOWN,
        "nothing is known of 1d 6h, and it may have come back after 1d 6h",
    ),
    "nothing-known-of-the-days-before": ("?" * 216 + "." * 24, DAY, Verdict.UNKNOWN, "after 8d 23h"),
    "a-gap-in-the-pause-of-now": ("#" + "." * 40 + "?" + "." * 10, DAY, Verdict.UNKNOWN, "idle for 10h"),
    "an-hour-unknown-among-work": ("#?#" + "." * 24, DAY, Verdict.ACT, "may have come back after 1h"),
}


@pytest.mark.parametrize(("slots", "window", "verdict", "words"), WAITS.values(), ids=WAITS.keys())
def test_idle_for_longer_than_it_ever_came_back_from(
    slots: str, window: datetime.timedelta, verdict: Verdict, words: str
) -> None:
    """Twice its longest pause or the window, whichever is longer; a gap counts as a pause and as a return."""
    item = workload(POD)
    by = criteria(idle=Thresholds(window=window))
    found = all_idle(item)
    known = {KEY: history(slots)}
    finding = findings(item, found, by=by, histories=known, usages={window: found})[0]
    assert finding.verdict is verdict
    assert finding.name is (FindingName.IDLE if verdict is Verdict.ACT else FindingName.IDLE_TOO_BRIEFLY)
    assert words in " | ".join(finding.words)


def test_nothing_is_said_to_last_longer_than_the_record() -> None:
    """Slots are whole hours, the record begins within one."""
    begins = AT - datetime.timedelta(hours=24, minutes=24)
    item = workload(POD)
    known = {KEY: history("." * 26, hours=26)}
    finding = findings(item, all_idle(item), histories=known, begins=begins)[0]
    assert "idle for 1d 24m; not seen at work in 1d 24m" in finding.words


@pytest.mark.parametrize(
    ("idle", "verdict"),
    [
        (Thresholds(), Verdict.UNKNOWN),
        (Thresholds(idleFactor=0), Verdict.ACT),
        (Thresholds(history=DAY), Verdict.ACT),
    ],
    ids=["pauses-matter", "pauses-do-not-matter", "looks-back-no-further-than-the-window"],
)
def test_without_a_history_nothing_is_idle_that_pauses_could_keep(idle: Thresholds, verdict: Verdict) -> None:
    """Less data never leads to action: what was not asked, or is not kept, may have shown a long pause."""
    item = workload(POD)
    finding = findings(item, all_idle(item), by=criteria(idle=idle), histories={})[0]
    assert finding.verdict is verdict
    assert ("not known" in " ".join(finding.words)) is True


def test_nobody_has_to_be_idle_for_longer_than_is_looked_back() -> None:
    """However long it once paused: idle for all of the history is idle."""
    assert needed_s(10 * 86_400, Thresholds()) == 14 * 86_400
    item = workload(pod(started=AT - 100 * DAY))
    known = {KEY: history("." * 14 * 24, hours=14 * 24)}
    assert findings(item, all_idle(item), histories=known)[0].verdict is Verdict.ACT


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ("#" + "." * 100, "." * 100, Verdict.ACT),
        ("#" + "." * 20, "#" + "." * 40, Verdict.KEEP),
        (".", "?" * 30 + "." * 60, Verdict.UNKNOWN),
        ("#" * 60 + "." * 60, "?" * 60 + "." * 60, Verdict.ACT),
    ],
    ids=["one-was-always-idle", "the-last-to-work-counts", "one-is-not-known", "unknown-beside-busy-is-busy"],
)
def test_pods_of_one_workload_have_one_rhythm(first: str, second: str, verdict: Verdict) -> None:
    """It is at work while any of its pods is, and unknown while none is seen at work and one is unknown."""
    item = workload(POD, pod("w-1"))
    known = {KEY: history(first), ("research", "w-1"): history(second)}
    found = usages(*((one, (idle_usage(number),)) for number, one in enumerate(item.pods)))
    assert findings(item, found, histories=known)[0].verdict is verdict


def test_a_pod_says_nothing_of_the_time_before_it_began() -> None:
    """The history of the older pods stands there, alone."""
    young = pod("w-1", started=AT - 30 * HOUR)
    known = {KEY: history("#" + "." * 239), ("research", "w-1"): history("." * 30, hours=30)}
    rhythm = rhythm_of_pods([POD, young], known, since=AT - 14 * DAY, at=AT)
    assert rhythm is not None
    assert (rhythm.span_s, rhythm.idle_s, rhythm.unknown_s) == (864_000, 239 * HOUR_S, 0)


@pytest.mark.parametrize(
    ("changes", "unknown"),
    [
        ({"started": AT - 10 * DAY}, 0),
        ({"started": AT - 12 * DAY}, 47),
        ({"started": AT - 40 * DAY}, 95),
        ({"started": AT - 10 * DAY, "created": AT - 12 * DAY}, 0),
        ({"started": AT - 2 * DAY, "created": AT - 12 * DAY, "restarts": 1}, 47),
    ],
    ids=["whole-life", "two-days-short", "no-longer-than-asked", "waited-for-a-node", "before-a-restart"],
)
def test_a_history_that_does_not_reach_back_is_unknown_before(changes: dict[str, Any], unknown: int) -> None:
    """Where Prometheus keeps less than the pod has lived, a pause may have been; a slot at its edge is no gap."""
    rhythm = rhythm_of_pods([pod(**changes)], {KEY: history()}, since=AT - 14 * DAY, at=AT)
    assert rhythm is not None
    assert rhythm.unknown_s == unknown * HOUR_S


def test_a_history_that_ended_is_unknown_since() -> None:
    """Samples that stopped arriving end the pause of now."""
    rhythm = rhythm_of_pods([POD], {KEY: history()}, since=AT - 14 * DAY, at=AT + 3 * HOUR)
    assert rhythm is not None
    assert rhythm.idle_s == 0


def test_histories_of_different_slots_are_not_mixed() -> None:
    """Half of a slot is nothing that one can tell."""
    known = {KEY: history(), ("research", "w-1"): history(slot_s=1800.0)}
    assert rhythm_of_pods([POD, pod("w-1")], known, since=AT - 14 * DAY, at=AT) is None


_SLOTS = st.lists(st.sampled_from(list(Slot)), max_size=60).map(bytes)


@MANY
@hypothesis.given(_SLOTS, st.data())
def test_a_slot_that_turns_unknown_never_shortens_the_wait(slots: bytes, data: st.DataObject) -> None:
    """Nor does it ever lengthen the pause of now."""
    hypothesis.assume(slots)
    place = data.draw(st.integers(0, len(slots) - 1))
    before = rhythm_of(slots, 1.0)
    after = rhythm_of(slots[:place] + bytes([Slot.UNKNOWN]) + slots[place + 1 :], 1.0)
    assert after.idle_s <= before.idle_s
    assert after.longest_return_s >= before.longest_return_s
    assert after.certain_return_s <= after.longest_return_s


@hypothesis.given(_SLOTS)
def test_pauses_are_as_one_would_count_them(slots: bytes) -> None:
    """Slot by slot: a pause ends where the next slot is at work, or may be."""
    longest = run = idle = 0
    for slot in slots:
        if slot != Slot.IDLE:
            longest = max(longest, run)
        run = 0 if slot == Slot.BUSY else run + 1
        idle = idle + 1 if slot == Slot.IDLE else 0
    rhythm = rhythm_of(slots, 1.0)
    assert (rhythm.longest_return_s, rhythm.idle_s) == (longest, idle)
    assert rhythm.worked is (Slot.BUSY in list(slots))
