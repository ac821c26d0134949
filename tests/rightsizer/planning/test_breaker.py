"""The breaker, pauses and the accepted scope, by values alone."""

import dataclasses
import datetime
import json
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from rightsizer.model import (
    Action,
    Blocker,
    BlockerCode,
    FindingName,
    Fleet,
    Mode,
    Node,
    PriorityClass,
    Result,
)
from rightsizer.planning.breaker import (
    NOTHING,
    AcceptedScope,
    BreakerTrip,
    Latch,
    Pause,
    Scope,
    State,
    accepted,
    accepted_scope,
    closed,
    counted,
    followed,
    held,
    opened,
    parse_state,
    paused,
    scope_of,
    state_texts,
    stop_reason,
    trips,
    with_pause,
    without_pause,
)
from rightsizer.policy.limits import Breaker
from tests.rightsizer.build import (
    ALWAYS,
    AT,
    DAY,
    SHRUNK,
    all_idle,
    busy_usage,
    concurrency,
    evaluator,
    judged,
    pod,
    policy,
    rule,
    usages,
    workload,
)

HOUR = datetime.timedelta(hours=1)
ERROR = BreakerTrip(AT, BlockerCode.REFUSED, "too many")
SETTINGS = Breaker()


def _after(results: list[Result], latch: Latch | None = None) -> Latch:
    latch = latch or Latch()
    for result in results:
        latch = counted(latch, result, SETTINGS, ERROR)
    return latch


@pytest.mark.parametrize(
    ("results", "is_open"),
    [
        ([Result.REFUSED] * 2, False),
        ([Result.REFUSED, Result.UNKNOWN, Result.REFUSED], True),
        ([Result.REFUSED, Result.REFUSED, Result.DONE, Result.REFUSED], False),
        ([Result.REFUSED, Result.BLOCKED, Result.REFUSED, Result.CHANGED, Result.REFUSED], True),
        ([Result.CHANGED, Result.SKIPPED, Result.BLOCKED, Result.CHANGED] * 5, False),
    ],
)
def test_breaker_consecutive_errors_opens(results: list[Result], is_open: bool) -> None:
    """Three by default; anything done ends the row, and what is no error of ours is not counted."""
    assert (_after(results).trip is not None) is is_open


@hypothesis.given(st.lists(st.sampled_from(Result), max_size=30))
def test_breaker_once_open_keeps_first_reason(results: list[Result]) -> None:
    """Whatever comes after, the first reason stays."""
    first = BreakerTrip(AT - HOUR, BlockerCode.NODES, "nodes are away")
    latch = _after(results, opened(Latch(), first))
    assert latch.trip == first
    assert opened(latch, ERROR).trip == first
    assert closed(latch, AT, "looked").trip is None


def _fleet(ready: int, away: int) -> Fleet:
    names = {f"n{number}": number < ready for number in range(ready + away)}
    return Fleet((), {name: Node(name, is_ready=is_ready) for name, is_ready in names.items()}, {})


@pytest.mark.parametrize(
    ("ready", "away", "opens"), [(27, 3, False), (26, 3, True), (0, 2, False), (0, 3, True), (18, 2, False)]
)
def test_breaker_too_many_unready_nodes_opens(ready: int, away: int, opens: bool) -> None:
    """More than a tenth of them, and three at least."""
    found = list(trips(SETTINGS, _fleet(ready, away), now=Scope({}, "new"), accepted=None))
    assert [trip.code for trip in found] == ([BlockerCode.NODES] if opens else [])


@pytest.mark.parametrize(
    ("before", "now", "opens"),
    [
        ({"a": 20}, {"a": 30}, False),
        ({"a": 20}, {"a": 31}, True),
        ({"a": 100}, {"a": 120}, False),
        ({"a": 100}, {"a": 121}, True),
        ({"a": 100}, {"a": 0, "b": 100}, True),
        ({"a": 100}, {"b": 100}, False),
        ({"a": 60, "b": 50}, {"c": 110}, False),
        ({"a": 60, "b": 50}, {"c": 133}, True),
        ({}, {"a": 11}, True),
        ({}, {"a": 10}, False),
        ({"a": 500}, {"a": 1}, False),
    ],
)
def test_breaker_growth_over_accepted_scope_opens(
    before: dict[str, int], now: dict[str, int], opens: bool
) -> None:
    """By rule: one that is renamed or merged makes up for its successor; one that shrinks for nothing."""
    for digest in ("", "old"):
        scope = AcceptedScope(AT, before, before, digest)
        found = list(trips(SETTINGS, _fleet(1, 0), now=Scope(now, "new"), accepted=scope))
        assert [trip.code for trip in found] == ([BlockerCode.GROWTH] if opens else [])
    scope = AcceptedScope(AT, before, before, "new")
    assert list(trips(SETTINGS, _fleet(1, 0), now=Scope(now, "new"), accepted=scope)) == []


def test_breaker_growth_by_upgrade_opens_and_names_it() -> None:
    """A version that reaches more workloads under the same policy is no doing of users, nor of the policy."""
    book = evaluator(policy())
    old, new = (scope_of(book, "policy", version).digest for version in ("0.1.0", "0.2.0"))
    state = followed(State(scope=accepted_scope(Scope({"a": 20}, old), AT)), Scope({"a": 30}, new))
    assert state.scope is not None
    assert state.scope.rules == {"a": 20}
    scope = accepted_scope(Scope({"a": 20}, old), AT)
    (trip,) = trips(SETTINGS, _fleet(1, 0), now=Scope({"a": 31}, new), accepted=scope)
    assert "since the upgrade to 0.2.0, under the same policy; go back to 0.1.0, or run" in trip.message
    other = scope_of(book, "edited", "0.2.0").digest
    (trip,) = trips(SETTINGS, _fleet(1, 0), now=Scope({"a": 31}, other), accepted=scope)
    assert "fix the policy" in trip.message


def test_breaker_workloads_of_users_follow_and_rules_do_not() -> None:
    """What users create is accepted; what an edit of the policy adds counts until somebody accepts it."""
    state = State(scope=accepted_scope(Scope({"a": 20}, "old"), AT))
    users = followed(state, Scope({"a": 500}, "old"))
    assert users.scope == accepted_scope(Scope({"a": 500}, "old"), AT)
    edited = followed(users, Scope({"a": 600}, "new"))
    fewer = followed(edited, Scope({"a": 590}, "new"))
    assert fewer.scope is not None
    assert fewer.scope.rules == {"a": 490}
    assert list(trips(SETTINGS, _fleet(1, 0), now=Scope({"a": 700}, "new"), accepted=fewer.scope)) == []
    (trip,) = trips(SETTINGS, _fleet(1, 0), now=Scope({"a": 590}, "newer"), accepted=fewer.scope)
    assert "100 more workloads are eligible than the 490" in trip.message


def test_scope_digest_covers_policy_and_priority_classes_only() -> None:
    """Pods and labels, which users write, decide nothing that opens the breaker."""
    book = evaluator(policy())
    digest = scope_of(book, "policy", "1").digest
    more = dataclasses.replace(book.fleet, workloads=(workload(), *book.fleet.workloads))
    assert scope_of(evaluator(policy(), around=more), "policy", "1").digest == digest
    assert scope_of(book, "another", "1").digest != digest
    for one in (
        PriorityClass("c", 1),
        PriorityClass("c", 2),
        PriorityClass("c", 1, {"gpu-rightsizer.io/x": ""}),
    ):
        classes = dataclasses.replace(book.fleet, classes={"c": one})
        other = scope_of(evaluator(policy(), around=classes), "policy", "1").digest
        assert other != digest
        digest = other


def test_breaker_without_accepted_scope_stays_closed() -> None:
    """The first run's scope is its operator's wish."""
    assert list(trips(SETTINGS, _fleet(1, 0), now=Scope({"a": 500}, "new"), accepted=None)) == []


def test_breaker_accepted_scope_closes_growth_only() -> None:
    """A breaker that is open for errors stays open."""
    scope = AcceptedScope(AT, {"a": 40})
    by_scope = State(Latch(BreakerTrip(AT, BlockerCode.GROWTH, "more")), scope=AcceptedScope(AT, {}))
    assert accepted(by_scope, scope).latch.trip is None
    by_errors = State(Latch(ERROR))
    assert accepted(by_errors, scope) == State(Latch(ERROR), scope=scope)


def _pause(namespace: str = "", until: datetime.datetime | None = None) -> Pause:
    return Pause(AT - HOUR, "incident", namespace, until)


def test_pause_of_a_namespace_affects_only_it() -> None:
    """And one of everything is of all."""
    state = with_pause(NOTHING, _pause("a"))
    assert (paused(state, "a", AT), paused(state, "b", AT)) == ([_pause("a")], [])
    both = with_pause(state, _pause())
    assert paused(both, "b", AT) == [_pause()]
    assert paused(both, "a", AT) == [_pause(), _pause("a")]
    assert without_pause(both, "") == state
    assert without_pause(state, "") == state


@pytest.mark.parametrize(("ago", "holds"), [(-1, True), (0, False), (1, False)])
def test_pause_past_its_end_is_over(ago: int, holds: bool) -> None:
    """At the moment that was said."""
    state = with_pause(NOTHING, _pause(until=AT - ago * HOUR))
    assert (stop_reason(state, "a", AT) is not None) is holds


def _others(hours: int | None, reason: str = "other") -> Pause:
    return Pause(AT, reason, "", None if hours is None else AT + hours * HOUR)


@pytest.mark.parametrize(
    ("standing", "second"),
    [
        pytest.param(_others(None, "first"), _others(1), id="a-short-one-after-one-without-end"),
        pytest.param(_others(8, "first"), _others(1), id="a-short-one-after-a-long-one"),
        pytest.param(_others(None), _others(1), id="for-the-same-reason"),
    ],
)
def test_pause_second_shortens_none(standing: Pause, second: Pause) -> None:
    """Both hold, and both are told, until each is over."""
    state = with_pause(with_pause(NOTHING, standing), second)
    now, later = stop_reason(state, "a", AT), stop_reason(state, "a", AT + 2 * HOUR)
    assert now is not None
    assert (standing.words in now.message, second.words in now.message) == (True, True)
    assert later is not None
    assert later.message == standing.words
    assert without_pause(state, "").pauses == ()


def test_pause_repeated_is_kept_once() -> None:
    """Whatever pauses every hour for an hour leaves one, and what is over goes."""
    state = with_pause(with_pause(NOTHING, _others(1)), _others(2))
    assert state.pauses == (_others(2),)
    assert with_pause(state, _others(None)).pauses == (_others(None),)
    over = Pause(AT - 2 * HOUR, "over", "", AT - HOUR)
    assert with_pause(with_pause(NOTHING, over), _others(1)).pauses == (_others(1),)


BROKEN = [
    "",
    "{",
    "null",
    "[1]",
    '{"trip": 7}',
    '"text"',
    '{"at": "now"}',
    "[" * 3000,
    pytest.param("{}" + " " * (256 << 10), id="longer-than-256-KiB"),
]


@pytest.mark.parametrize("text", BROKEN)
@pytest.mark.parametrize("key", ["breaker.json", "pauses.json"])
def test_state_unreadable_stops_everything(key: str, text: str) -> None:
    """Nothing is guessed; the words say which document it is."""
    block = stop_reason(parse_state({key: text}), "a", AT)
    assert block is not None
    assert f"{key} cannot be read" in block.message


@pytest.mark.parametrize("text", BROKEN)
def test_state_unreadable_scope_accepts_nothing(text: str) -> None:
    """So whatever is eligible is more than was accepted."""
    assert parse_state({"scope.json": text}).scope == AcceptedScope(
        datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC), {}
    )


def test_state_written_and_parsed_is_equal() -> None:
    """Through its documents; what is not there is left out."""
    state = State(opened(Latch(errors=2), ERROR), (_pause("a", AT + HOUR),), AcceptedScope(AT, {"a": 1}))
    texts = {key: text for key, text in state_texts(state).items() if text is not None}
    assert all(json.loads(text) for text in texts.values())
    assert parse_state(texts) == state
    assert state_texts(NOTHING)["pauses.json"] is None
    assert parse_state({}) == NOTHING


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(
    ("state", "opening", "cause"),
    [
        (with_pause(NOTHING, _pause("research")), (), BlockerCode.PAUSED),
        (State(Latch(ERROR)), (), BlockerCode.PAUSED),
        (NOTHING, (Blocker(BlockerCode.NODES, "nodes"),), BlockerCode.PAUSED),
        (with_pause(NOTHING, _pause("another")), (), None),
    ],
    ids=["paused", "open", "opening", "paused-elsewhere"],
)
def test_held_decision_while_paused_is_blocked(
    mode: Mode, state: State, opening: Any, cause: BlockerCode | None
) -> None:
    """Only what would be done is blocked; advice stays advice."""
    item = workload()
    decision = judged(item, all_idle(item), policy(rule("all", mode)))
    (after,) = held([decision], state, opening, AT)
    is_stopped = cause is not None and mode is Mode.ENFORCE
    assert [block.code for block in after.blockers] == ([cause] if is_stopped else [])
    assert after.is_enforced is (decision.is_enforced and not is_stopped)
    assert dataclasses.replace(after, blockers=()) == decision


@pytest.mark.parametrize(
    ("state", "opening", "is_blocked"),
    [
        (with_pause(NOTHING, _pause()), (), False),
        (State(Latch(BreakerTrip(AT, BlockerCode.NODES, "nodes"))), (), False),
        (State(Latch(BreakerTrip(AT, BlockerCode.GROWTH, "growth"))), (), False),
        (NOTHING, (Blocker(BlockerCode.NODES, "nodes"),), False),
        (State(Latch(ERROR)), (), True),
        (parse_state({"breaker.json": "["}), (), True),
    ],
    ids=["paused", "nodes", "growth", "opening", "errors", "unreadable"],
)
def test_scale_up_is_held_only_by_doubts_about_writes(state: State, opening: Any, is_blocked: bool) -> None:
    """A pause for days must not keep a service as small as it was made."""
    pods = [pod(f"w-{number}") for number in range(2)]
    item = workload(*pods, annotations=SHRUNK, created=AT - 30 * DAY)
    every = policy(rule("all", findings={FindingName.TOO_MANY_REPLICAS: Mode.ENFORCE}))
    used = usages(*((one, (busy_usage(place),)) for place, one in enumerate(pods)))
    decision = judged(item, used, every, histories=ALWAYS, concurrency={"uid-w": concurrency(2)})
    assert decision.action is Action.SCALE_UP
    (after,) = held([decision], state, opening, AT)
    assert after.is_enforced is not is_blocked
    assert (stop_reason(state, "research", AT, Action.SCALE_UP) is not None) is is_blocked
