"""The required idle time follows from earlier idle periods; unknown slots never shorten it."""

import dataclasses
import datetime
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from rightsizer.changes.record_codec import RESUMED_ANNOTATION as RESUMED
from rightsizer.findings.evidence import Candidate
from rightsizer.findings.idle import find_idle
from rightsizer.findings.idle_history import (
    exceeded_rarely_s,
    history_of_pods,
    history_of_slots,
    longest_pauses,
    pauses_by_kind,
    possible_pause_s,
)
from rightsizer.model import FindingName, Measured, ObjectRef, Slot, Usage, Verdict, Workload
from rightsizer.policy.thresholds import ReturnRate, Thresholds
from tests.rightsizer.build import (
    AT,
    DAY,
    HOUR_S,
    MANY,
    all_idle,
    busy_usage,
    criteria,
    findings,
    fleet,
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
    "never-paused": ("#" * 200 + "." * 24, DAY, Verdict.ACT, "no earlier idle period in the last 10d"),
    "never-worked": (".", DAY, Verdict.ACT, "idle for 10d; no activity in 10d of history"),
    "paused-for-half-as-long": (
        "#" + "." * 12 + "#" + "." * 24,
        DAY,
        Verdict.ACT,
        "before activity: 12h in the last 10d",
    ),
    "paused-for-more-than-half-as-long": (
        "#" + "." * 13 + "#" + "." * 24,
        DAY,
        Verdict.KEEP,
        "before activity: 13h in the last 10d; counts as idle from 2026-11-21 14:00 UTC",
    ),
    "waited-twice-as-long": (
        "#" + "." * 20 + "#" + "." * 40,
        DAY,
        Verdict.ACT,
        "before activity: 20h in the last 10d",
    ),
    "a-short-window-and-short-pauses": ("#..#" + "." * 4, 4 * HOUR, Verdict.ACT, "before activity: 2h"),
    "a-short-window-and-a-long-pause": (
        "#" + "." * 9 + "#" + "." * 5,
        4 * HOUR,
        Verdict.KEEP,
        "before activity: 9h",
    ),
    "a-gap-that-may-have-been-a-pause": (
        "#" + "?" * 30 + "#" + "." * 24,
        DAY,
        Verdict.UNKNOWN,
        "no data for 1d 6h, so an idle period may have lasted 1d 6h",
    ),
    "nothing-known-of-the-days-before": (
        "?" * 216 + "." * 24,
        DAY,
        Verdict.UNKNOWN,
        "may have lasted 8d 23h",
    ),
    "a-gap-in-the-pause-of-now": ("#" + "." * 40 + "?" + "." * 10, DAY, Verdict.UNKNOWN, "idle for 10h"),
    "an-hour-unknown-among-work": ("#?#" + "." * 24, DAY, Verdict.ACT, "may have lasted 1h"),
}


@pytest.mark.parametrize(("slots", "window", "verdict", "words"), WAITS.values(), ids=WAITS.keys())
def test_idle_verdict_requires_twice_the_longest_idle_period(
    slots: str, window: datetime.timedelta, verdict: Verdict, words: str
) -> None:
    """Or the window, whichever is longer; a gap counts as an idle period with a return."""
    item = workload(POD)
    by = criteria(idle=Thresholds(window=window))
    found = all_idle(item)
    known = {KEY: history(slots)}
    finding = findings(item, found, by=by, histories=known, usages={window: found})[0]
    assert finding.verdict is verdict
    assert finding.name is (FindingName.IDLE if verdict is Verdict.ACT else FindingName.IDLE_TOO_BRIEFLY)
    assert words in " | ".join(finding.words)


@pytest.mark.parametrize(
    ("idle_h", "words"),
    [
        (2, ""),
        (5, "30% of the idle periods of its kind of 4h ended with work within 1d"),
        (40, "2.1% of 86 idle periods of its kind of 1d 7h ended with work"),
    ],
)
def test_idle_finding_quotes_how_many_came_back(idle_h: int, words: str) -> None:
    """Of the longest learned time that it has reached; nothing below the shortest."""
    rows = tuple(
        ReturnRate(after=datetime.timedelta(hours=after), percent=percent, gaps=gaps)
        for after, percent, gaps in ((4, 30, None), (31, 2.1, 86))
    )
    item = workload(POD)
    by = criteria(idle=Thresholds(window=HOUR, unusedWindow=HOUR, returns=rows))
    found = all_idle(item)
    known = {KEY: history("#" + "." * idle_h)}
    finding = findings(item, found, by=by, histories=known, usages={HOUR: found})[0]
    told = " | ".join(finding.words)
    assert words in told
    assert ("of its kind" in told) is bool(words)


def test_idle_period_is_limited_to_the_record() -> None:
    """Slots are whole hours, and the record begins within one."""
    begins = AT - datetime.timedelta(hours=24, minutes=24)
    item = workload(POD)
    known = {KEY: history("." * 26, hours=26)}
    finding = findings(item, all_idle(item), histories=known, begins=begins)[0]
    assert "idle for 1d 24m; no activity in 1d 24m of history; Prometheus has" in " ".join(finding.words)


@pytest.mark.parametrize(
    ("idle", "verdict"),
    [
        (Thresholds(), Verdict.UNKNOWN),
        (Thresholds(idleFactor=0), Verdict.ACT),
        (Thresholds(history=DAY), Verdict.ACT),
    ],
    ids=["pauses-matter", "pauses-do-not-matter", "looks-back-no-further-than-the-window"],
)
def test_idle_verdict_without_history_is_unknown_if_it_matters(idle: Thresholds, verdict: Verdict) -> None:
    """Missing history may hide a long idle period."""
    item = workload(POD)
    finding = findings(item, all_idle(item), by=criteria(idle=idle), histories={})[0]
    assert finding.verdict is verdict
    assert ("unknown" in " ".join(finding.words)) is True


def test_required_idle_time_is_limited_to_the_history() -> None:
    """A workload that was idle for the whole history is idle."""
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
def test_histories_of_pods_are_combined(first: str, second: str, verdict: Verdict) -> None:
    """Active if any pod is active; unknown if none is active and one is unknown."""
    item = workload(POD, pod("w-1"))
    known = {KEY: history(first), ("research", "w-1"): history(second)}
    found = usages(*((one, (idle_usage(number),)) for number, one in enumerate(item.pods)))
    assert findings(item, found, histories=known)[0].verdict is verdict


def test_history_before_a_pods_start_comes_from_older_pods() -> None:
    """A pod has no activity before its start."""
    young = pod("w-1", started=AT - 30 * HOUR)
    known = {KEY: history("#" + "." * 239), ("research", "w-1"): history("." * 30, hours=30)}
    rhythm = history_of_pods([POD, young], known, since=AT - 14 * DAY, at=AT)
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
def test_history_shorter_than_the_pod_is_unknown_before(changes: dict[str, Any], unknown: int) -> None:
    """Prometheus may keep less than the pod's life; the slot at the edge is no gap."""
    rhythm = history_of_pods([pod(**changes)], {KEY: history()}, since=AT - 14 * DAY, at=AT)
    assert rhythm is not None
    assert rhythm.unknown_s == unknown * HOUR_S


def test_history_that_ended_is_unknown_since() -> None:
    """A series that ended also ends the present idle period."""
    rhythm = history_of_pods([POD], {KEY: history()}, since=AT - 14 * DAY, at=AT + 3 * HOUR)
    assert rhythm is not None
    assert rhythm.idle_s == 0


def test_histories_with_different_slots_are_not_combined() -> None:
    """Half a slot has no meaning."""
    known = {KEY: history(), ("research", "w-1"): history(slot_s=1800.0)}
    assert history_of_pods([POD, pod("w-1")], known, since=AT - 14 * DAY, at=AT) is None


_SLOTS = st.lists(st.sampled_from(list(Slot)), max_size=60).map(bytes)


@MANY
@hypothesis.given(_SLOTS, st.data())
def test_unknown_slot_never_shortens_the_required_idle_time(slots: bytes, data: st.DataObject) -> None:
    """It never lengthens the present idle period either."""
    hypothesis.assume(slots)
    place = data.draw(st.integers(0, len(slots) - 1))
    before = history_of_slots(slots, 1.0)
    after = history_of_slots(slots[:place] + bytes([Slot.UNKNOWN]) + slots[place + 1 :], 1.0)
    assert after.idle_s <= before.idle_s
    assert after.longest_return_s >= before.longest_return_s
    assert after.certain_return_s <= after.longest_return_s
    assert possible_pause_s(after, Thresholds()) >= possible_pause_s(before, Thresholds())


_PAUSES = st.lists(st.integers(1, 400).map(float), max_size=120).map(
    lambda found: sorted(found, reverse=True)
)
_CAREFUL = st.builds(
    Thresholds,
    idleFactor=st.sampled_from([0.5, 1.0, 2.0, 3.0]),
    rarePausePercent=st.sampled_from([0.0, 1.0, 5.0, 50.0]),
)


@MANY
@hypothesis.given(_PAUSES, _CAREFUL, st.data())
def test_longer_pause_never_shortens_the_required_idle_time(
    pauses: list[float], idle: Thresholds, data: st.DataObject
) -> None:
    """Neither one that lasts longer, nor one more that is as long as any other."""
    before = exceeded_rarely_s(pauses, idle, idle.idleFactor)
    if pauses:
        place = data.draw(st.integers(0, len(pauses) - 1))
        longer = [*pauses[:place], pauses[place] + data.draw(st.integers(1, 400)), *pauses[place + 1 :]]
        assert exceeded_rarely_s(sorted(longer, reverse=True), idle, idle.idleFactor) >= before
    least = max(pauses, default=0.0)
    more = sorted([*pauses, least + data.draw(st.integers(0, 400))], reverse=True)
    assert exceeded_rarely_s(more, idle, idle.idleFactor) >= before - 1e-9


@hypothesis.given(_PAUSES, _CAREFUL)
def test_more_careful_policy_never_shortens_the_required_idle_time(
    pauses: list[float], idle: Thresholds
) -> None:
    """A higher factor, and a lower share of rare pauses; never more than the factor on the longest."""
    found = exceeded_rarely_s(pauses, idle, idle.idleFactor)
    assert found <= idle.idleFactor * max(pauses, default=0.0)
    assert exceeded_rarely_s(pauses, idle, idle.idleFactor + 1) >= found
    careful = idle.model_copy(update={"rarePausePercent": idle.rarePausePercent / 2})
    assert exceeded_rarely_s(pauses, careful, idle.idleFactor) >= found


@pytest.mark.parametrize(
    ("pauses", "required"),
    [
        ([], 0.0),
        ([60.0], 120.0),
        ([60.0] + [2.0] * 39, 120.0),
        ([60.0] + [2.0] * 79, 60.0),
        ([60.0, 60.0] + [14.0] * 98, 69.94),
    ],
    ids=["none", "one", "few", "many", "twice"],
)
def test_rare_long_pause_among_many_counts_less(pauses: list[float], required: float) -> None:
    """Few pauses: the factor on the longest. Many: an upper bound of a high quantile."""
    assert exceeded_rarely_s(pauses, Thresholds(), 2.0) == pytest.approx(required, abs=0.01)


def _slots(known: str) -> bytes:
    return bytes(Slot.BUSY if one == "#" else Slot.IDLE for one in known)


def test_short_breaks_do_not_make_weekends_rare() -> None:
    """A notebook with a break in every other hour, and two weekends in its two weeks."""
    week = "".join("#." * 8 + "." * 8 for _ in range(5)) + "." * 48
    history = history_of_slots(_slots(week * 2 + "#"), HOUR_S)
    required_s = possible_pause_s(history, Thresholds())
    assert required_s == 2 * max(history.pauses_s)
    others_s = sorted([60 * 3600.0] * 40 + [3600.0] * 4000, reverse=True)
    young = history_of_slots(_slots("#" * 5 + "." * 30), HOUR_S)
    assert possible_pause_s(young, Thresholds(), others_s) == 60 * 3600.0


@pytest.mark.parametrize(
    ("known", "alike", "hours"),
    [
        ("#" * 100 + "." * 30, (), 24),
        ("#" * 100 + "." * 30, (60.0,), 60),
        ("#" * 100 + "...#" + "." * 30, (60.0,), 60),
        ("." * 40, (60.0,), 24),
        ("#" * 340 + "." * 30, (60.0,), 24),
    ],
    ids=["none-known", "young", "few-of-its-own", "never-worked", "long-known"],
)
def test_required_idle_time_of_a_young_workload_follows_its_kind(
    known: str, alike: tuple[float, ...], hours: int
) -> None:
    """Others of its kind tell of pauses that it was too young for; not of what never worked."""
    start = AT - len(known) * HOUR
    item = workload(pod(started=start, created=start))
    pauses = {item.ref.full_kind: [one * HOUR_S for one in alike]}
    known_s = {KEY: history(known, hours=len(known))}
    finding = findings(item, all_idle(item), histories=known_s, pauses_s=pauses)[0]
    assert finding.required_idle_s == hours * HOUR_S


def _in(namespace: str, name: str, kind: str = "Deployment", **changes: Any) -> Workload:
    """A workload of one pod, by their common name."""
    item = workload(pod(ref=ObjectRef("v1", "Pod", namespace, name, f"uid-{name}"), **changes), kind=kind)
    return dataclasses.replace(item, ref=dataclasses.replace(item.ref, namespace=namespace, name=name))


def test_longest_pauses_leave_out_gaps() -> None:
    """A history with a gap does not tell how long its pauses were; one without pauses tells of none."""
    texts = {"a-Job": "#..#.#", "b-Job": "#...#", "a-Deployment": "#....#?", "b-Deployment": "#" * 9 + "..."}
    items = [_in(name[0], name, name[2:]) for name in texts]
    known = {(name[0], name): history(text) for name, text in texts.items()}
    job = items[0].ref.full_kind
    assert pauses_by_kind(longest_pauses(items, known, AT)) == {job: (3 * HOUR_S, 2 * HOUR_S)}


@pytest.mark.parametrize("pods", [1, 32, 200])
def test_many_short_pauses_of_a_namespace_stop_nobody_sooner(pods: int) -> None:
    """A young workload of another namespace waits as long as without them."""
    young = workload(pod(started=AT - 130 * HOUR, created=AT - 130 * HOUR))
    honest = [_in("serving", f"nights-{number}") for number in range(3)]
    pulsating = [_in("tenant", f"batch-{number}") for number in range(pods)]
    known = {("serving", item.ref.name): history("#" + "." * 62 + "#") for item in honest}
    known |= {("tenant", item.ref.name): history(("#" + "." * 25) * 9 + "#") for item in pulsating}
    pauses = pauses_by_kind(longest_pauses([*honest, *pulsating], known, AT))
    seen = {KEY: history("#" * 100 + "." * 30, hours=130)}
    finding = findings(young, all_idle(young), histories=seen, pauses_s=pauses)[0]
    assert finding.required_idle_s == 62 * HOUR_S


@MANY
@hypothesis.given(_PAUSES, _PAUSES, _CAREFUL)
def test_pauses_of_another_namespace_shorten_the_required_idle_time_by_its_share(
    others: list[float], own: list[float], idle: Thresholds
) -> None:
    """A namespace beside n others, by a part in n + 1 at most."""
    idle = idle.model_copy(update={"window": datetime.timedelta(seconds=1)})
    young = history_of_slots(_slots("#"), 1.0)
    known = [("Deployment.apps", f"team-{number}", pause_s) for number, pause_s in enumerate(others)]
    more = [*known, *(("Deployment.apps", "tenant", pause_s) for pause_s in own)]
    before, after = (
        possible_pause_s(young, idle, pauses_by_kind(pauses).get("Deployment.apps", ()))
        for pauses in (known, more)
    )
    assert after * (len(known) + 1) >= before * len(known) - 1e-6


def test_longest_pauses_of_a_shorter_history_count() -> None:
    """Each kind's criteria say how far back its histories go: what is before is no gap."""
    items = [_in("research", f"w-{kind}", kind, **OLD) for kind in ("Job", "Deployment")]
    known = {
        ("research", "w-Job"): history("#..#.#", hours=6),
        ("research", "w-Deployment"): history("#", hours=12),
    }
    assert pauses_by_kind(longest_pauses(items, known, AT)) == {items[0].ref.full_kind: (2 * HOUR_S,)}


@hypothesis.given(_SLOTS)
def test_idle_periods_equal_a_slot_by_slot_count(slots: bytes) -> None:
    """An idle period ends where the next slot is, or may be, active."""
    longest = run = idle = 0
    for slot in slots:
        if slot != Slot.IDLE:
            longest = max(longest, run)
        run = 0 if slot == Slot.BUSY else run + 1
        idle = idle + 1 if slot == Slot.IDLE else 0
    rhythm = history_of_slots(slots, 1.0)
    assert (rhythm.longest_return_s, rhythm.idle_s) == (longest, idle)
    assert rhythm.worked is (Slot.BUSY in list(slots))


# --- what a stop loses nothing of

YOUNG = AT - 5 * HOUR
OLD = {"created": AT - 8 * DAY, "started": AT - 8 * DAY}
EMPTY = idle_usage(memory_peak_bytes=4e6)


def _acts(
    now: Usage, day: Usage, known: str, *, of_pod: dict[str, Any] | None = None, **changes: Any
) -> bool:
    """Whether a workload counts as idle, by its last four hours, its last day, and its history."""
    one = pod(**{"created": YOUNG, "started": YOUNG, **(of_pod or {})})
    item = workload(one, **{"created": YOUNG, **changes})
    windows = {DAY: usages((one, (day,))), 4 * HOUR: usages((one, (now,)))}
    seen = Measured(AT, windows, histories={KEY: history(known, hours=len(known))})
    finding = find_idle(Candidate(item, seen, criteria(), fleet(item)))
    is_idle = finding is not None and finding.name is FindingName.IDLE
    assert is_idle is (finding is not None and finding.verdict is Verdict.ACT)
    return is_idle


UNUSED: dict[str, tuple[dict[str, Any], str, bool]] = {
    "never-worked": ({}, "....", True),
    "never-worked-but-a-gap": ({}, ".?..", False),
    "never-worked-but-a-gap-before": ({}, "?....", False),
    "worked-once": ({}, "#....", False),
    "in-place-of-an-older-pod": ({"created": AT - 9 * DAY}, "....", False),
    "creation-unknown": ({"created": None}, "....", False),
    "too-young": ({"of_pod": {"started": AT - 4 * HOUR}}, "....", False),
    "just-resumed": ({"annotations": {RESUMED: (AT - HOUR).isoformat()}}, "....", False),
}


@pytest.mark.parametrize(("changes", "known", "acts"), UNUSED.values(), ids=UNUSED.keys())
def test_idle_never_worked_waits_for_the_short_window(
    changes: dict[str, Any], known: str, acts: bool
) -> None:
    """Only if its whole life is known: the pods that it has now are its first, and no slot is unknown."""
    assert _acts(idle_usage(), idle_usage(coverage=0.2), known, **changes) is acts


EMPTIED: dict[str, tuple[Usage, str, bool]] = {
    "empty": (EMPTY, "#" * 200 + "." * 5, True),
    "a-process-holds-memory": (idle_usage(memory_peak_bytes=500e6), "#" * 200 + "." * 5, False),
    "memory-unknown": (idle_usage(memory_peak_bytes=None), "#" * 200 + "." * 5, False),
    "it-came-back-after-as-long": (EMPTY, "#" * 200 + "....#" + "." * 5, False),
    "it-came-back-after-half-as-long": (EMPTY, "#" * 200 + "..#" + "." * 5, True),
    "a-gap": (EMPTY, "#" * 200 + "?" + "." * 2, False),
}


@pytest.mark.parametrize(("now", "known", "acts"), EMPTIED.values(), ids=EMPTIED.keys())
def test_idle_empty_memory_waits_for_the_short_window_and_pauses(now: Usage, known: str, acts: bool) -> None:
    """A process that ended does not come back by itself; its pauses still count, and unknown memory is not empty."""
    assert _acts(now, busy_usage(), known, of_pod=OLD) is acts


def test_idle_empty_memory_of_a_recreated_pod_waits_for_the_window() -> None:
    """What the older pod did is not known: the node may just have been drained."""
    assert not _acts(EMPTY, busy_usage(), "#....", created=AT - 9 * DAY)
