"""Processes that each judge a part of the workloads find the same as one that judges all."""

import concurrent.futures
import threading
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import example, given
from hypothesis import strategies as st

from rightsizer.policy.schema import Policy
from rightsizer_history.backtest.judges import Exchange, PolicyJudge, ReplayShard
from rightsizer_history.backtest.recording import Recording
from rightsizer_history.backtest.replay import Replayed, replay
from tests.rightsizer_history.backtest.recordings import (
    BUSY,
    CAREFUL,
    EAGER,
    IDLE,
    SPINS,
    TERMS,
    fleets,
    hours,
    recording,
    workload,
)

T = TypeVar("T")
SHARDS = 3


class _Hall:
    """Where threads tell each other something."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(SHARDS, timeout=60)
        self._told: dict[int, object] = {}

    def exchange(self, number: int) -> Exchange:
        """For one of them."""

        def exchange(own: T, /) -> Sequence[T]:
            self._told[number] = own
            self._barrier.wait()
            every: list[T] = [self._told[place] for place in range(SHARDS)]  # type: ignore[misc]
            self._barrier.wait()
            return every

        return exchange


def _together(fleet: Recording, asked: Policy) -> list[Replayed]:
    """What each of several threads finds."""
    hall = _Hall()
    judges = [
        PolicyJudge("p", asked, ReplayShard(number, SHARDS, hall.exchange(number)))
        for number in range(SHARDS)
    ]
    with concurrent.futures.ThreadPoolExecutor(SHARDS) as pool:
        return list(pool.map(replay, [fleet] * SHARDS, judges, [TERMS] * SHARDS))


NEW_PAUSES = recording(
    workload("old", [hours(BUSY * 6 + IDLE * 10 + BUSY * 6 + IDLE * 26)], kind="StatefulSet"),
    workload("new", [hours(BUSY * 2 + IDLE * 18)], kind="StatefulSet", first=28),
    workload("other", [hours(BUSY * 2 + IDLE * 28)], kind="StatefulSet", first=18),
)
HUNG = recording(
    workload("hung", [hours(BUSY * 6 + SPINS * 42)], kind="Job"),
    workload("idle", [hours(IDLE * 48)], kind="Job"),
    workload("works", [hours(BUSY * 48)], kind="Job"),
)


@example(NEW_PAUSES, EAGER)
@example(HUNG, EAGER)
@example(HUNG, CAREFUL)
@given(fleets(), st.sampled_from([EAGER, CAREFUL]))
def test_replay_by_shards_changes_the_same(fleet: Recording, asked: Policy) -> None:
    """Budgets count the changes of all, and a pause of one workload tells of others of its kind."""
    whole = replay(fleet, PolicyJudge("p", asked), TERMS)
    assert _together(fleet, asked) == [whole] * SHARDS
