"""Ticks that come while another holds the Lease: made up for once, by whoever has it then, unless that was done."""

import threading

import pytest

from rightsizer.cli.scheduler import MissedTicks
from rightsizer.kube.lease import LEASE_DURATION_S, RETRY_PERIOD_S, LeaderElector
from tests.rightsizer.kube.test_lease import Clock, lease_of
from tests.rightsizer.world import World

JITTER_S = 60.0


@pytest.fixture
def clock() -> Clock:
    """One for all, so that a test says what time it is."""
    return Clock()


class Replica:
    """One of several: it asks for the Lease all along, and has ticks."""

    def __init__(self, world: World, name: str, clock: Clock) -> None:
        self.lease = lease_of(world, name, clock)
        self.turns = MissedTicks(self.lease, clock, JITTER_S)
        self.lease.try_acquire()


def _pass(clock: Clock, *alive: Replica, seconds: float = LEASE_DURATION_S + 2 * RETRY_PERIOD_S) -> None:
    """Let time pass, in which those who live ask for the Lease."""
    end = clock.now + seconds
    while clock.now < end:
        clock.now += RETRY_PERIOD_S
        for one in alive:
            one.lease.try_acquire()


def test_ticks_holder_acts_and_misses_nothing(world: World, clock: Clock) -> None:
    """The other one has, and cannot do anything about it for now."""
    first, second = Replica(world, "a", clock), Replica(world, "b", clock)
    assert (first.turns.tick(), second.turns.tick()) == (True, False)
    assert (first.turns.is_due, second.turns.is_due) == (False, False)
    assert (first.turns.take(), second.turns.take()) == (False, False)


@pytest.mark.parametrize("way", ["died", "ended"])
def test_ticks_missed_ticks_run_once_when_lease_is_free(world: World, clock: Clock, way: str) -> None:
    """Run out or given back; once, however many ticks there were."""
    first, second = Replica(world, "a", clock), Replica(world, "b", clock)
    for _ in range(3):
        assert not second.turns.tick()
        _pass(clock, first, second)
    if way == "ended":
        first.lease.release()
    _pass(clock, second)
    assert (second.turns.take(), second.turns.take(), second.turns.is_due) == (True, False, False)
    assert second.turns.tick()


def test_ticks_tick_done_by_other_holder_is_not_repeated(world: World, clock: Clock) -> None:
    """Its cycle ended well after the tick, and then it died: that tick is nobody's any more; the next one is."""
    first, second = Replica(world, "a", clock), Replica(world, "b", clock)
    assert not second.turns.tick()
    first.lease.record_cycle()
    _pass(clock, first, second)
    _pass(clock, second)
    assert second.lease.is_held
    assert (second.turns.is_due, second.turns.take()) == (False, False)
    third = Replica(world, "c", clock)
    assert not third.turns.tick()
    _pass(clock, third)
    assert third.turns.take()


def test_ticks_other_cycle_before_tick_does_not_count(world: World, clock: Clock) -> None:
    """But for the jitter, by which one's ticks come later than another's."""
    first, second = Replica(world, "a", clock), Replica(world, "b", clock)
    first.lease.record_cycle()
    _pass(clock, first, second)
    _pass(clock, first, second, seconds=2 * JITTER_S)
    assert not second.turns.tick()
    first.lease.record_cycle()
    _pass(clock, first, second, seconds=10)
    assert not second.turns.tick()  # that one's own tick of the same moment came a little earlier
    _pass(clock, second)
    assert not second.turns.take()
    late = Replica(world, "c", clock)
    _pass(clock, second, late, seconds=2 * JITTER_S)
    assert not late.turns.tick()
    _pass(clock, late)
    assert late.turns.take()


def test_ticks_cycle_before_start_is_ignored(world: World, clock: Clock) -> None:
    """When that was nobody knows; nor does a holder that tells of no cycles, such as one run by hand, hide one."""
    first = Replica(world, "a", clock)
    first.lease.record_cycle()
    _pass(clock, first)
    second = Replica(world, "b", clock)
    assert not second.turns.tick()
    first.lease.release()
    by_hand = Replica(world, "hand", clock)
    _pass(clock, second, by_hand)
    by_hand.lease.release()
    _pass(clock, second)
    assert second.turns.take()


def test_lease_keeper_each_acquisition_is_notified(world: World, clock: Clock) -> None:
    """So that what is missed in a moment without it is not left until the next tick."""
    lease, told = lease_of(world, "a", clock), list[bool]()

    twice = threading.Event()

    def held() -> None:
        told.append(lease.is_held)
        if len(told) > 1:
            twice.set()

    with LeaderElector(lease, is_optional=True, on_held=held):
        assert twice.wait(30)
    assert all(told)
