"""Demand for which room was made before: none follows until it is bound, and ever later if it is not."""

import datetime
from typing import Any

import pytest

from rightsizer.model import ChangeOutcome, ChangeRecord, Fleet, FoundChange, ObjectRef, WaitingPod
from rightsizer.planning.earlier_victims import held_back
from rightsizer.policy.effective import PolicyEvaluator
from tests.rightsizer.build import AT, policy

MINUTE = datetime.timedelta(minutes=1)
POD = ObjectRef("v1", "Pod", "research", "waits", "uid-waits")
WAITING = WaitingPod(POD, {"nvidia.com/gpu": 1}, 5_000, "high", frozenset({"a"}))


def _change(run: str, minutes_ago: float, *, back: float | None = None, ref: ObjectRef = POD) -> FoundChange:
    """A change for the pod so long ago, that was rolled back so long ago, if it was."""
    record = ChangeRecord(
        AT - minutes_ago * MINUTE,
        run,
        "suspend",
        wanted_by=(ref,),
        end=None if back is None else ChangeOutcome.ROLLBACK,
        ended=None if back is None else AT - back * MINUTE,
    )
    return FoundChange(ObjectRef("batch/v1", "Job", "research", f"idle-{run}", "uid"), record)


def _evaluator(*changes: FoundChange, **settings: Any) -> PolicyEvaluator:
    fleet = Fleet((), {}, {}, changes=changes, waiting=(WAITING,))
    return PolicyEvaluator(policy(**settings), fleet, at=AT)


@pytest.mark.parametrize(
    ("changes", "is_room_made"),
    [
        pytest.param([], None, id="never"),
        pytest.param([_change("a", 14)], True, id="a-moment-ago"),
        pytest.param([_change("a", 16)], False, id="not-bound"),
        pytest.param([_change("a", 80)], None, id="not-bound-long-ago"),
        pytest.param([_change("a", 80, back=50)], False, id="came-back"),
        pytest.param([_change("a", 90, back=61)], None, id="the-first-pause-is-over"),
        pytest.param(
            [_change("a", 400, back=380), _change("b", 90, back=61)], False, id="the-second-is-longer"
        ),
        pytest.param([_change("a", 400, back=380), _change("b", 150, back=121)], None, id="and-ends"),
        pytest.param([_change("a", 400, back=380), _change("b", 5)], True, id="once-more"),
        pytest.param(
            [_change("a", 5, ref=ObjectRef("v1", "Pod", "research", "waits", "another"))],
            None,
            id="an-earlier-pod",
        ),
    ],
)
def test_held_back_after_victims_until_the_pod_is_bound(
    changes: list[FoundChange], is_room_made: bool | None
) -> None:
    """None where others may be stopped."""
    found = held_back(_evaluator(*changes))
    assert [one.is_room_made for one in found.values()] == ([] if is_room_made is None else [is_room_made])


def test_held_back_by_a_record_that_the_memory_lacks_is_nobody() -> None:
    """Anybody may write one: others' demand would get nothing."""
    forged = FoundChange(POD, _change("a", 5).record, is_remembered=False)
    assert held_back(_evaluator(forged)) == {}


@pytest.mark.parametrize(("minutes", "is_room_made"), [(4, True), (6, False), (14, False), (16, None)])
def test_held_back_as_long_as_the_policy_says(minutes: float, is_room_made: bool | None) -> None:
    """First until the pod should be bound, then until the next try."""
    times = {"bindWithin": 5 * MINUTE, "retryAfter": 10 * MINUTE}
    found = held_back(_evaluator(_change("a", minutes), demand=times))
    assert [one.is_room_made for one in found.values()] == ([] if is_room_made is None else [is_room_made])
