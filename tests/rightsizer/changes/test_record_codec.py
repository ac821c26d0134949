"""What objects remember of our changes, within bounds and whatever anybody writes there, and what follows from it."""

import dataclasses
import datetime
import json
import re
from typing import Any

import hypothesis
import hypothesis.strategies as st
import msgspec
import pytest

from rightsizer.changes.found_changes import AHEAD
from rightsizer.changes.record_codec import (
    HISTORY_ANNOTATION,
    MANIFEST_NAME,
    MOST,
    MOST_BYTES,
    UNDO_ANNOTATION,
    came_back_after,
    decode_record,
    encode_record,
    manifest_name,
    pause_of,
    read_history,
    recorded_changes,
    with_end,
    with_noticed_reverts,
    write_history,
)
from rightsizer.kinds.patches import record_of
from rightsizer.model import (
    UNREADABLE,
    Action,
    BlockerCode,
    ChangeOutcome,
    ChangeRecord,
    Decision,
    Edit,
    FindingName,
    Fleet,
    FoundChange,
    Mode,
    ObjectRef,
    Verdict,
)
from rightsizer.planning.cooldown import Memory, cooling, memory_of
from rightsizer.policy.effective import EffectivePolicy, PolicyEvaluator
from tests.rightsizer.build import (
    AT,
    DAY,
    all_idle,
    busy_usage,
    concurrency,
    fleet,
    judged,
    pod,
    policy,
    rule,
    usages,
    workload,
)

HOUR = datetime.timedelta(hours=1)
MINUTE = datetime.timedelta(minutes=1)
WEEK = datetime.timedelta(days=7)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=63)
TIMES = st.datetimes(
    datetime.datetime(2001, 1, 1),  # noqa: DTZ001 - the strategy wants naive ends
    datetime.datetime(2200, 1, 1),  # noqa: DTZ001
    timezones=st.just(datetime.UTC),
)


@st.composite
def _changes(draw: st.DrawFn) -> ChangeRecord:
    end = draw(st.none() | st.sampled_from(ChangeOutcome))
    return ChangeRecord(
        at=draw(TIMES).replace(microsecond=0),
        run=draw(NAMES),
        action=draw(st.sampled_from(Action)).value,
        gpus=draw(st.integers(-64, 4096)),
        by=draw(NAMES),
        end=end,
        ended=draw(TIMES).replace(microsecond=0) if end else None,
    )


def _read(text: str) -> tuple[ChangeRecord, ...]:
    return read_history({HISTORY_ANNOTATION: text})


@hypothesis.given(st.lists(_changes(), min_size=1, max_size=12, unique_by=lambda one: one.run))
def test_record_codec_history_over_limit_drops_oldest_first(past: list[ChangeRecord]) -> None:
    """At most so many entries and bytes; the last always stays, and what was taken outlasts what was given back."""
    text = write_history(past)
    kept = _read(text)
    assert len(kept) <= MOST
    assert len(text.encode()) <= MOST_BYTES
    assert kept[-1] == past[-1]
    places = [past.index(change) for change in kept]
    assert places == sorted(places)
    lost = [change for change in past if change not in kept and change.takes]
    assert not lost or all(change.takes for change in kept[:-1])


@hypothesis.given(st.lists(_changes(), max_size=3))
def test_record_codec_short_history_round_trip_is_lossless(past: list[ChangeRecord]) -> None:
    """Writing and reading lose nothing, so that two takings of a month always count."""
    hypothesis.assume(all(len(change.by) + len(change.run) < 80 for change in past))
    assert _read(write_history(past)) == tuple(past)


@pytest.mark.parametrize("count", [MOST, MOST + 1])
def test_record_codec_history_holds_most_entries_in_whole_seconds_of_utc(count: int) -> None:
    """Of changes that took GPUs the oldest is dropped."""
    at = (AT + MINUTE / 7).astimezone(datetime.timezone(HOUR))
    text = write_history(
        [ChangeRecord(at, f"r{n}", "evict", end=ChangeOutcome.UNDONE, ended=at) for n in range(count)]
    )
    assert [one.run for one in _read(text)] == [f"r{n}" for n in range(count)][-MOST:]
    second = (AT + MINUTE / 7).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert {(one["at"], one["ended"]) for one in json.loads(text)} == {(second, second)}


@pytest.mark.parametrize("which", ["at", "ended"])
def test_record_codec_record_of_an_impossible_year_is_refused(which: str) -> None:
    """Arithmetic with it would fail."""
    times = {"at": "2026-11-20T00:00:00Z", "ended": "2026-11-20T00:00:00Z", which: "9999-12-31T23:59:59Z"}
    with pytest.raises(ValueError, match="names no time zone, or no year from"):
        decode_record(json.dumps({"run": "r", "action": "evict", **times}))


def test_record_codec_name_of_a_manifest_is_short_and_allowed() -> None:
    """With the start of the UID, by which the guardrails know it."""
    name = manifest_name(ObjectRef("v1", "Pod", "team", "x" * 250, "0f7b3c2a-9d"))
    assert name == f"{'x' * 200}-0f7b3c2a"
    assert re.fullmatch(MANIFEST_NAME, name)


def test_record_codec_pause_lasts_from_the_last_activity_to_the_first_pod() -> None:
    """A pod of the same second ends it; a record from the future adds nothing."""
    notes = {UNDO_ANNOTATION: encode_record(ChangeRecord(AT, "r", "suspend", idle_seconds=60))}
    assert came_back_after(notes, [AT + HOUR, AT, None]) == MINUTE
    assert pause_of(0, AT, AT - HOUR) == datetime.timedelta()


HOSTILE = st.one_of(
    st.text(max_size=200),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=12,
    ).map(json.dumps),
    st.lists(
        st.fixed_dictionaries(
            {"at": st.text(max_size=30) | st.just("0001-01-01T00:00:00+14:00")},
            optional={"run": st.text(max_size=90), "action": st.text(max_size=9), "end": st.text(max_size=9)},
        ),
        max_size=4,
    ).map(json.dumps),
    st.integers(1, 3000).map(lambda depth: "[" * depth),
)


NOT_OURS = {
    "empty": "",
    "no-json": "{",
    "no-list": '{"at": "2026-11-20T00:00:00Z"}',
    "no-entry": "[7]",
    "no-zone": '[{"at": "2026-11-20T00:00:00", "run": "r", "action": "scale-down"}]',
    "no-year": '[{"at": "0001-01-01T00:00:00+14:00", "run": "r", "action": "scale-down"}]',
    "no-end": '[{"at": "2026-11-20T00:00:00Z", "run": "r", "action": "scale-down", "end": "allowed"}]',
    "no-name": '[{"at": "2026-11-20T00:00:00Z", "run": "\\u001b[2J", "action": "scale-down"}]',
    "deep": "[" * 3000,
    "long": json.dumps(["x" * 20_000]),
}


@pytest.mark.parametrize("text", NOT_OURS.values(), ids=NOT_OURS.keys())
def test_record_codec_unreadable_entry_still_counts(text: str) -> None:
    """An entry that cannot be read stands as one; so does an undo record, of whatever time it claims to be."""
    assert _read(text) == (UNREADABLE,)
    assert UNREADABLE in recorded_changes({"gpu-rightsizer.io/undo": text})
    record = '{"run": "r", "at": "0001-01-01T00:00:00+14:00", "action": "scale-down"}'
    assert recorded_changes({"gpu-rightsizer.io/undo": record}) == (UNREADABLE,)


@hypothesis.given(HOSTILE, st.sampled_from(["history", "undo"]))
def test_record_codec_arbitrary_annotation_allows_nothing_extra(text: str, which: str) -> None:
    """An idle workload is acted upon without the annotation; with any text in its place, at most that."""
    item = workload(annotations={})
    annotated = {f"gpu-rightsizer.io/{which}": text}
    spoiled = dataclasses.replace(item, annotations=annotated, past=recorded_changes(annotated))
    if spoiled.past:
        decision = judged(spoiled, all_idle(spoiled), policy())
        unreadable = UNREADABLE in spoiled.past
        assert not (unreadable and decision.is_enforced)
        assert write_history(spoiled.past)


def _effective() -> EffectivePolicy:
    item = workload()
    return PolicyEvaluator(policy(), fleet(item), at=AT).evaluate(item)


def _idle(*past: ChangeRecord, **changes: Any) -> Decision:
    item = workload(pod(created=AT - 10 * DAY), past=past)
    return judged(item, all_idle(item), policy(rule("all", **changes)))


def _past(
    ago: datetime.timedelta, end: ChangeOutcome | None = ChangeOutcome.UNDONE, **changes: Any
) -> ChangeRecord:
    values: dict[str, Any] = {"run": "r", "action": "scale-to-zero", "gpus": 1, "by": "gpu-rightsizer"}
    return ChangeRecord(at=AT - ago, end=end, ended=AT - ago + HOUR if end else None, **{**values, **changes})


def test_record_codec_unreadable_annotation_starts_full_cooldown() -> None:
    """It waits for the whole cooldown, for as long as nobody mends the annotation."""
    decision = _idle(UNREADABLE)
    assert [block.code for block in decision.blockers] == [BlockerCode.COOLDOWN]
    assert "unreadable" in decision.blockers[0].message


@pytest.mark.parametrize(("times", "held"), [(1, 24), (2, 48), (3, 96), (4, 168), (9, 168)], ids=str)
@pytest.mark.parametrize("end", [ChangeOutcome.UNDONE, ChangeOutcome.REVERTED, ChangeOutcome.ROLLBACK])
def test_hold_off_doubles_with_each_revert(times: int, held: int, end: ChangeOutcome) -> None:
    """From the rule's cooldown to a week."""
    memory = Memory(tuple(_past(number * DAY, end) for number in range(1, times + 1)), AT)
    assert memory.hold_off(DAY, WEEK) == held * HOUR


@hypothesis.given(
    st.lists(_changes(), max_size=8), st.timedeltas(HOUR, 20 * DAY), st.timedeltas(HOUR, 20 * DAY)
)
def test_hold_off_any_history_stays_between_cooldown_and_longest(
    past: list[ChangeRecord], cooldown: datetime.timedelta, longest: datetime.timedelta
) -> None:
    """Whatever there was; and one more return never shortens it."""
    memory = Memory(tuple(past), AT)
    held = memory.hold_off(cooldown, longest)
    assert cooldown <= held <= max(longest, cooldown)
    assert Memory((*past, _past(DAY)), AT).hold_off(cooldown, longest) >= held


@hypothesis.given(st.lists(_changes(), max_size=6), _changes())
def test_hold_off_longer_history_never_allows_more(past: list[ChangeRecord], more: ChangeRecord) -> None:
    """What waits by less memory waits by more."""
    item = workload()
    before = list(cooling(item, Memory(tuple(past), AT), _effective()))
    after = list(cooling(item, Memory((*past, more), AT), _effective()))
    assert len(after) >= len(before)


def test_hold_off_month_old_revert_is_ignored() -> None:
    """After a month the cooldown is the rule's own again."""
    memory = Memory((_past(40 * DAY), _past(35 * DAY), _past(2 * DAY)), AT)
    assert memory.hold_off(DAY, WEEK) == DAY


@pytest.mark.parametrize(
    ("before", "most", "enforced"), [(2, 3, True), (3, 3, False), (3, 4, True), (0, 0, False)]
)
def test_change_limit_three_per_month_blocks_fourth(before: int, most: int, enforced: bool) -> None:
    """Then its people are to be talked to; changes of replicas are not counted, unless someone reverted them."""
    past = [_past((8 + 8 * number) * DAY, None, run=f"r{number}") for number in range(before)]
    past = [change for change in past if AT - change.at < 30 * DAY]
    sized = [
        _past(9 * DAY, end, action=action, run=f"{action}{end}{number}")
        for action, end in (("scale-up", None), ("scale-down", None), ("scale-down", ChangeOutcome.SCALE_UP))
        for number in range(3)
    ]
    decision = _idle(*past, *sized, cooldown=HOUR, maxChanges=most)
    assert decision.is_enforced is enforced, decision
    assert decision.verdict is Verdict.ACT
    assert enforced or f"it was changed {before} times in 30 days" in decision.restrictions[0].message


@pytest.mark.parametrize("end", [ChangeOutcome.REVERTED, ChangeOutcome.ROLLBACK])
def test_change_limit_counts_scale_downs_that_did_harm(end: ChangeOutcome) -> None:
    """Only those that held may come all day."""
    past = [_past((8 + 8 * number) * DAY, end, action="scale-down", run=f"r{number}") for number in range(2)]
    decision = _idle(*past, cooldown=HOUR, maxChanges=2)
    assert not decision.is_enforced
    assert "it was changed 2 times in 30 days" in decision.restrictions[0].message


@pytest.mark.parametrize(("hours", "enforced"), [(3, False), (5, True)])
def test_cooldown_shorter_than_window_waits_for_full_window(hours: int, enforced: bool) -> None:
    """Where the cooldown is shorter than the window, the window has to fill anew; giving back is no such change."""
    idle = {"window": 4 * HOUR, "idleFactor": 0}
    for action in ("resize", "scale-down"):
        decision = _idle(_past(hours * HOUR, None, action=action), cooldown=HOUR, idle=idle)
        assert decision.is_enforced is enforced, decision
    assert decision.is_enforced is enforced, decision
    assert (
        enforced
        or "it was changed 3h ago, and the evidence covers the last 4h" in decision.blockers[0].message
    )
    assert _idle(_past(hours * HOUR, None, action="scale-up"), cooldown=HOUR, idle=idle).is_enforced


@pytest.mark.parametrize(
    ("past", "waits"),
    [
        (_past(5 * MINUTE, None, action="scale-down"), False),
        (_past(5 * MINUTE, None, action="scale-up"), False),
        (_past(5 * MINUTE, ChangeOutcome.SCALE_UP, action="scale-down"), False),
        (_past(5 * MINUTE, ChangeOutcome.ROLLBACK, action="scale-down"), True),
        (_past(5 * MINUTE, ChangeOutcome.REVERTED, action="scale-down"), True),
        (_past(5 * MINUTE, None, action="resize"), True),
        (_past(5 * MINUTE, ChangeOutcome.REJECTED, action="scale-down"), True),
    ],
    ids=["down", "up", "down-and-up", "unhealthy", "reverted", "resized", "rejected"],
)
def test_cooldown_after_a_change_of_replicas_follows_only_harm(past: ChangeRecord, waits: bool) -> None:
    """Demand decides about the next one, also by the minutes before the last."""
    item = workload(*(pod(f"w-{number}") for number in range(6)), kind="Deployment", past=(past,))
    used = usages(*((one, (busy_usage(place),)) for place, one in enumerate(item.pods)))
    rules = policy(rule("all", findings={FindingName.TOO_MANY_REPLICAS: Mode.ENFORCE}))
    decision = judged(item, used, rules, concurrency={"uid-w": concurrency(2)})
    assert decision.action is Action.SCALE_DOWN
    assert [block.code for block in decision.blockers] == [BlockerCode.COOLDOWN] * waits


@pytest.mark.parametrize(
    ("by", "minutes", "enforced"),
    [("other", 59, False), ("other", 61, True), ("gpu-rightsizer", 59, True), ("", 59, True)],
)
def test_other_instance_change_within_hour_blocks_ours(by: str, minutes: int, enforced: bool) -> None:
    """Another instance's change of the last hour keeps us away, also from growing; our own does not."""
    past = _past(datetime.timedelta(minutes=minutes), None, by=by, action="scale-up")
    assert _idle(past, cooldown=datetime.timedelta(minutes=1)).is_enforced is enforced


def test_advice_with_any_history_is_still_given() -> None:
    """Who only asks is told."""
    decision = _idle(*(_past(DAY, run=f"r{number}") for number in range(5)), mode="advise")
    assert (decision.verdict, decision.action) == (Verdict.ACT, Action.SCALE_TO_ZERO)


def test_revert_detection_pods_newer_than_stop_count_as_revert() -> None:
    """Of a shrunk workload they tell nothing."""
    stop, shrink = _past(5 * HOUR, None), _past(5 * HOUR, None, action="scale-down")
    seen = with_noticed_reverts((stop, shrink), [AT - 2 * HOUR, AT - HOUR, AT - 9 * HOUR, None])
    assert [(change.end, change.ended) for change in seen] == [
        (ChangeOutcome.REVERTED, AT - 2 * HOUR),
        (None, None),
    ]


def test_revert_detection_pod_in_same_second_counts_as_newer() -> None:
    """GitOps may be as quick as that; what was stopped is old."""
    (seen,) = with_noticed_reverts((_past(HOUR, None),), [AT - HOUR])
    assert (seen.end, seen.ended) == (ChangeOutcome.REVERTED, AT - HOUR)


@pytest.mark.parametrize(
    ("replicas", "keda", "enforced"), [(4, None, False), (2, None, True), (1, None, True), (4, "keda", True)]
)
def test_revert_detection_revert_since_last_cycle_is_held_off(
    replicas: int, keda: str | None, enforced: bool
) -> None:
    """Also where it could not be noted before: a record that is not in effect says so. Going on further is not that."""
    edits = (Edit(("spec", "replicas"), 4, 2),)
    record = record_of(judged(workload(), all_idle(workload()), policy()), edits, run="r1", at=AT - 3 * DAY)
    notes = {UNDO_ANNOTATION: encode_record(record), HISTORY_ANNOTATION: write_history([record.summary])}
    item = workload(
        pod(created=AT - 10 * DAY),
        annotations=notes,
        past=(
            *recorded_changes({HISTORY_ANNOTATION: write_history([_past(9 * DAY)])}),
            *recorded_changes(notes),
        ),
        spec=json.dumps({"replicas": replicas}).encode(),
        control_object=keda and ObjectRef("keda.sh/v1alpha1", "ScaledObject", "research", keda, "uid"),
    )
    decision = judged(item, all_idle(item), policy(rule("all", cooldown=6 * HOUR, maxChanges=3)))
    assert decision.is_enforced is enforced, decision.blockers
    words = f"it was reverted by someone at {AT:%Y-%m-%d %H:%M} UTC; cooldown ends in 12h"
    assert [block.message for block in decision.blockers] == ([] if enforced else [words])


def test_record_codec_undo_closes_all_open_changes() -> None:
    """What had ended before stays as it was."""
    ended = with_end((_past(9 * DAY), _past(DAY, None), _past(HOUR, None)), ChangeOutcome.UNDONE, AT)
    assert [change.ended for change in ended] == [AT - 9 * DAY + HOUR, AT, AT]


def test_eviction_history_of_pod_name_applies_to_its_successor() -> None:
    """Its manifests are what is left of those before it: it came back, so it is held off from then on."""
    item = workload(pod("shell", created=AT - 10 * DAY), kind="Pod")
    item = dataclasses.replace(item, ref=item.pods[0].ref)
    changes = (
        FoundChange(item.ref, ChangeRecord(AT - 11 * DAY, "r0", "", 1)),
        FoundChange(item.ref, ChangeRecord(AT - 10 * DAY - HOUR, "r1", "", 1)),
    )
    around = Fleet((item,), {}, {}, changes)
    week: dict[str, Any] = {"cooldown": 6 * DAY, "actions": ("evict",), "maxChanges": 3}
    assert judged(item, all_idle(item), policy(rule("all", **week)), around=around).is_enforced
    month = week | {"cooldown": 11 * DAY}
    decision = judged(item, all_idle(item), policy(rule("all", **month)), around=around)
    assert any("reverted by someone" in block.message for block in decision.blockers)


@pytest.mark.parametrize("field", ["at", "ended"])
@pytest.mark.parametrize(
    ("ahead", "is_read"), [(AHEAD, True), (AHEAD + datetime.timedelta(seconds=1), False)]
)
def test_cooldown_change_in_the_future_counts_as_unreadable(
    field: str, ahead: datetime.timedelta, is_read: bool
) -> None:
    """Beyond what clocks differ by, nobody made it: it holds off its own workload, as any unreadable one."""
    change = ChangeRecord(AT, "r", "scale-down", 1, end=ChangeOutcome.UNDONE, ended=AT)
    item = workload(past=(msgspec.structs.replace(change, **{field: AT + ahead}),))
    memory = memory_of(item, fleet(item), AT)
    assert (memory.past[0] != UNREADABLE) is is_read
    assert list(cooling(item, memory, _effective()))


@pytest.mark.parametrize("place", ["namespace", "name"])
def test_record_codec_impossible_workload_is_unreadable(place: str) -> None:
    """No path is ever made of it; whoever may annotate an object can write it."""
    there = {"api_version": "apps/v1", "kind": "Deployment", "namespace": "team", "name": "web"}
    for text, is_possible in (("web", True), ("../prod", False), ("..", False), ("a;b", False)):
        record = ChangeRecord(AT, "r", "scale-to-zero", workload=ObjectRef(**{**there, place: text}))
        if is_possible:
            assert decode_record(encode_record(record)) == record
            continue
        with pytest.raises(ValueError, match="names no object"):
            decode_record(encode_record(record))
