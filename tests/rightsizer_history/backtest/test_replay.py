"""A recording is replayed cycle by cycle; what is stopped stays stopped until it would next have worked."""

import dataclasses
import datetime
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rightsizer.model import Action
from rightsizer_history.backtest.judges import (
    Judge,
    Nothing,
    Oracle,
    Order,
    PlainRule,
    PolicyJudge,
    running,
)
from rightsizer_history.backtest.recording import Recording
from rightsizer_history.backtest.replay import Change, Terms, replay
from rightsizer_history.backtest.standings import Standing
from tests.rightsizer_history.backtest.recordings import (
    BEGIN,
    BUSY,
    DARK,
    EAGER,
    HOUR,
    IDLE,
    PER_H,
    STEP_S,
    TERMS,
    UNKNOWN,
    hours,
    policy,
    recording,
    workload,
)
from tests.rightsizer_history.backtest.recordings import fleets as recorded_fleets

STEP = datetime.timedelta(seconds=STEP_S)


def changes(recorded: Recording, judge: Judge, terms: Terms = TERMS) -> list[Change]:
    """All of a judge, in order."""
    done = [one for account in replay(recorded, judge, terms).accounts for one in account.changes]
    return sorted(done, key=lambda one: (one.at, str(one.ref)))


RULE = PlainRule("idle 4h", 4 * HOUR)
POLICY = PolicyJudge("mine", policy())


@pytest.mark.parametrize("judge", [RULE, POLICY], ids=lambda one: one.name)
def test_replay_stopped_workload_returns_when_it_would_have_worked(judge: Judge) -> None:
    """It frees its GPUs until then, and can be stopped again later."""
    line = hours(BUSY * 30 + IDLE * 10 + BUSY * 30 + IDLE * 20)
    first, second = changes(recording(workload("notes", [line])), judge)
    assert (first.needed_after_s, first.gpu_hours) == (6 * 3600, 6)
    assert (second.needed_after_s, second.gpu_hours) == (None, 16)


def test_replay_tells_how_far_it_is() -> None:
    """After each cycle, up to the last."""
    shares: list[float] = []
    replay(recording(workload("train", [hours(BUSY * 4)])), Nothing(), TERMS, shares.append)
    assert shares == [0.25, 0.5, 0.75, 1.0]


def test_replay_nothing_changes_nothing() -> None:
    """And what was held and used is counted."""
    done = replay(recording(workload("train", [hours(BUSY * 3 + IDLE)] * 2)), Nothing(), TERMS)
    (account,) = done.accounts
    assert (account.held, account.used, account.freed) == (8, 6, 0)


def test_replay_policy_waits_for_an_answer_to_its_notice() -> None:
    """A notice is given once; the stop follows when its time is over."""
    line = hours(BUSY * 30 + IDLE * 40)
    judge = PolicyJudge("mine", policy(notifyBefore="6h"))
    (account,) = replay(recording(workload("notes", [line])), judge, TERMS).accounts
    assert account.notices == 1
    (stop,) = account.changes
    assert stop.gpu_hours <= 40 - 6


def test_replay_budget_of_the_policy_holds() -> None:
    """What does not fit today waits for tomorrow."""
    groups = [workload(f"left-{number}", [hours(BUSY * 6 + IDLE * 60)]) for number in range(3)]
    judge = PolicyJudge("mine", policy(budgets=[{"per": "day", "workloads": 1}]))
    days = [one.at.date() for one in changes(recording(*groups), judge)]
    assert len(days) == 3
    assert len(set(days)) >= 2


def test_replay_unknown_steps_are_never_idle() -> None:
    """Neither a rule of thumb nor a policy stops what was not seen."""
    line = hours((BUSY * 2 + UNKNOWN * 10) * 6)
    assert not changes(recording(workload("dark", [line])), RULE)
    assert not changes(recording(workload("dark", [line])), POLICY)


def test_replay_power_that_covers_a_part_of_the_window_shows_no_idleness() -> None:
    """As in plans: power that is published from some time on covers the window of four hours that much later."""
    lines = [hours(BUSY * 10 + DARK * dark + IDLE * (30 - dark)) for dark in (0, 3)]
    first, later = (changes(recording(workload("w", [line])), POLICY)[0].at for line in lines)
    assert later - first == 3 * HOUR


@pytest.mark.parametrize("judge", [RULE, POLICY], ids=lambda judge: judge.name)
def test_replay_time_without_samples_is_not_freed(judge: Judge) -> None:
    """What was stopped before it may have worked then, so it is watched for the rest only."""
    line = hours(BUSY * 10 + IDLE * 20 + UNKNOWN * 30 + IDLE * 10)
    (stop,) = changes(recording(workload("left", [line])), judge)
    begin_h = (stop.at - BEGIN) / HOUR
    assert stop.gpu_hours == 30 - begin_h + 10
    assert stop.watched_s == stop.gpu_hours * 3600


@pytest.mark.parametrize(
    ("kind", "action"), [("Job", Action.SUSPEND), ("Deployment", Action.SCALE_TO_ZERO), ("Pod", Action.EVICT)]
)
def test_replay_plain_rule_stops_as_the_kind_is_stopped(kind: str, action: Action) -> None:
    """A Job has no replicas."""
    recorded = recording(workload("left", [hours(BUSY + IDLE * 20)], kind=kind))
    assert {one.action for one in changes(recorded, RULE)} == {action}


def test_replay_unused_gpus_of_a_pod_are_resized() -> None:
    """Until more are used than were kept; only the rest is freed."""
    busy, unused = hours(BUSY * 60), hours(IDLE * 50 + BUSY * 10)
    done = changes(recording(workload("wide", [busy, unused, unused, unused])), POLICY)
    resizes = [one for one in done if one.action is Action.RESIZE]
    assert resizes
    assert resizes[0].gpus == 3
    assert resizes[0].needed_after_s is not None


lines = st.lists(st.sampled_from([BUSY * 3, BUSY, IDLE * 2, IDLE * 9, UNKNOWN]), min_size=2, max_size=10).map(
    lambda parts: hours("".join(parts))
)
kinds = st.sampled_from(["Deployment", "StatefulSet", "Job", "Pod"])
fleets = st.lists(st.tuples(kinds, st.lists(lines, min_size=1, max_size=2)), min_size=1, max_size=4).map(
    lambda drawn: recording(
        *(workload(f"w{place}", found, kind=kind) for place, (kind, found) in enumerate(drawn))
    )
)
judges = st.sampled_from([RULE, POLICY, Oracle(), Nothing(), PlainRule("idle 30m", HOUR / 2)])


@given(fleets, judges)
def test_replay_frees_no_more_than_was_held_and_not_used(recorded: Recording, judge: Judge) -> None:
    """Of each workload; what is stopped at work is free at no time."""
    for account in replay(recorded, judge, TERMS).accounts:
        assert account.freed <= account.held - account.used + 1e-6
        for one in account.changes:
            assert not one.was_at_work or one.gpu_hours == 0


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Orders by cycle and workload: an action, and how much it keeps."""

    orders: Mapping[tuple[int, int], tuple[Action, int]]
    name: str = "drawn"

    def judge(self, recording: Recording, standings: Sequence[Standing], step: int) -> Iterator[Order]:
        """Those of the cycle, of what runs."""
        refs = [group.ref for group in recording.groups]
        for one in running(standings):
            if order := self.orders.get((step // PER_H, refs.index(one.group.ref))):
                yield Order(one, order[0], "drawn", kept=order[1])


ACTIONS = st.sampled_from([Action.SCALE_TO_ZERO, Action.RESIZE, Action.SCALE_DOWN])
drawn = st.dictionaries(
    st.tuples(st.integers(0, 40), st.integers(0, 4)), st.tuples(ACTIONS, st.integers(1, 2)), max_size=12
).map(Drawn)
RESTARTS = st.sampled_from([HOUR / 4, 6 * HOUR])
WIDE = recording(workload("wide", [hours(BUSY * 8 + IDLE * 12), hours(IDLE * 20)]))
ENDS = recording(workload("ends", [hours(BUSY * 20), hours(IDLE * 20)], [hours(BUSY * 4), hours(IDLE * 4)]))
PART = recording(workload("part", [hours(BUSY * 8 + IDLE * 8 + BUSY * 4), *[hours(IDLE * 20)] * 3]))
TURNS = recording(workload("turns", *([hours((BUSY + IDLE * 3) * 4)] for _ in range(3))))


@example(WIDE, Drawn({(4, 0): (Action.RESIZE, 1), (10, 0): (Action.SCALE_TO_ZERO, 0)}), HOUR / 4, 0)
@example(PART, Drawn({(2, 0): (Action.RESIZE, 1), (9, 0): (Action.SCALE_TO_ZERO, 0)}), 6 * HOUR, 0)
@example(ENDS, Drawn({(2, 0): (Action.RESIZE, 1)}), HOUR / 4, 0)
@example(TURNS, Drawn({(hour, 0): (Action.SCALE_DOWN, 1) for hour in range(1, 16)}), HOUR / 4, 0)
@given(
    recorded_fleets(),
    st.one_of(judges, drawn, st.just(PolicyJudge("eager", EAGER))),
    RESTARTS,
    st.integers(0, 9),
)
def test_replay_oracle_frees_and_saves_most(
    recorded: Recording, judge: Judge, restart: datetime.timedelta, first: int
) -> None:
    """Of each workload, whatever others stop, resize and scale, and how long returns take."""
    terms = dataclasses.replace(TERMS, restart=restart, first=first)
    best, other = (replay(recorded, one, terms) for one in (Oracle(), judge))
    for most, account in zip(best.accounts, other.accounts, strict=True):
        assert -1e-6 <= account.freed <= most.freed + 1e-6
        assert max(0, account.freed - account.restarts) <= most.freed - most.restarts + 1e-6
        assert most.freed <= account.held - account.used - account.unseen + 1e-6


def test_replay_resized_workload_frees_the_rest_when_it_is_stopped() -> None:
    """What the resize freed is not freed again, and returns to what was kept."""
    orders = {(4, 0): (Action.RESIZE, 1), (10, 0): (Action.SCALE_TO_ZERO, 0)}
    resize, stop = changes(WIDE, Drawn(orders))
    assert (resize.gpu_hours, stop.gpu_hours) == (16, 10)
    assert (resize.gpus, stop.gpus) == (1, 1)


@pytest.mark.parametrize(
    ("line", "freed", "restarts"),
    [("#????#", 0, 0), ("#.........", 9, 0), ("#.........#", 9, 4), ("#...#", 3, 3)],
    ids=["unseen", "not-needed-again", "long", "shorter-than-a-return"],
)
def test_replay_oracle_pays_for_returns(line: str, freed: float, restarts: float) -> None:
    """Of what pauses and works again, at most as much as that frees."""
    terms = dataclasses.replace(TERMS, restart=4 * HOUR)
    (account,) = replay(recording(workload("train", [hours(line)])), Oracle(), terms).accounts
    assert (account.freed, account.restarts) == (freed, restarts)


@pytest.mark.parametrize(("recorded", "restarts"), [(WIDE, 0), (ENDS, 0), (TURNS, 0.75), (PART, 0.25)])
def test_replay_oracle_frees_gpus_of_what_works(recorded: Recording, restarts: float) -> None:
    """Unused ones of a pod, and replicas that are idle while others work; what returns is as small as can be."""
    (account,) = replay(recorded, Oracle(), TERMS).accounts
    assert (account.freed, account.restarts) == (account.held - account.used, restarts)


@given(fleets)
def test_replay_longer_window_stops_no_more(recorded: Recording) -> None:
    """Of rules of thumb: whoever waits longer is wrong less often."""
    short, long = (changes(recorded, PlainRule("x", hours_ * HOUR)) for hours_ in (2, 6))
    assert len(long) <= len(short)


@pytest.mark.slow
@given(fleets)
def test_replay_is_deterministic(recorded: Recording) -> None:
    """The same recording gives the same changes."""
    assert changes(recorded, POLICY) == changes(recorded, POLICY)
