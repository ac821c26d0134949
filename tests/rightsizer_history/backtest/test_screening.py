"""What needs no judgement in a cycle is left out; the changes are those of judging everything."""

import array
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from unittest import mock

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rightsizer.model import Mode, ObjectRef
from rightsizer.planning.decide import decide
from rightsizer.policy.match import Match
from rightsizer.policy.schema import Policy
from rightsizer_history.backtest.judges import PolicyJudge
from rightsizer_history.backtest.policy_view import PolicyView
from rightsizer_history.backtest.recording import Group, Recording
from rightsizer_history.backtest.replay import Account, replay
from tests.rightsizer_history.backtest.recordings import (
    BUSY,
    CAREFUL,
    DARK,
    EAGER,
    IDLE,
    PATIENT,
    PER_H,
    SPINS,
    TERMS,
    WIDE,
    fleets,
    hours,
    odd_fleets,
    policy,
    recording,
    workload,
)

_LONG = policy(window="36h").rules[0].model_copy(update={"name": "jobs", "match": Match(kinds=("Job",))})
_KEPT = EAGER.rules[0].model_copy(
    update={"name": "kept", "mode": Mode.PROTECT, "match": Match(kinds=("StatefulSet",))}
)
BY_KIND = EAGER.model_copy(update={"rules": (_LONG, _KEPT, *EAGER.rules)})

HALF_USED = workload("half", [hours(BUSY * 24), hours(IDLE * 24)])
TURNS = workload(
    "turns", *[["".join(BUSY if step % 4 == pod else IDLE for step in range(48))] for pod in range(4)]
)
TRAINER = workload("train", [hours(BUSY * 48)], kind="Job")
LEFT = workload("left", [hours(BUSY * 18 + IDLE * 30)], kind="StatefulSet")
HUNG = workload("hung", [hours(SPINS * 48)])
UNSEEN = workload("unseen", [hours(DARK * 48)])


def _neighbours() -> Group:
    """A pod that does nothing on a GPU that others keep busy."""
    group = workload("idle", [hours(BUSY * 24)])
    for one in group.members[0].tracks:
        one.is_own = True
        one.busy = one.moving = one.unknown = array.array("H", [0]) * len(one.samples)
    return group


def _replayed(fleet: Recording, asked: Policy) -> Sequence[Account]:
    return replay(fleet, PolicyJudge("p", asked), TERMS).accounts


@contextlib.contextmanager
def _all_judged() -> Iterator[None]:
    with mock.patch.object(PolicyView, "is_told", return_value=False):
        yield


@example(recording(HALF_USED), EAGER)
@example(recording(TURNS), EAGER)
@example(recording(_neighbours()), EAGER)
@example(recording(TRAINER, UNSEEN), EAGER)
@example(recording(TRAINER, LEFT, HUNG), BY_KIND)
@given(fleets(), st.sampled_from([EAGER, CAREFUL]))
def test_replay_changes_the_same_as_without_screening(fleet: Recording, asked: Policy) -> None:
    """Whatever the fleet does."""
    found = _replayed(fleet, asked)
    with _all_judged():
        assert _replayed(fleet, asked) == found


@settings(max_examples=25, deadline=None)
@given(odd_fleets(), st.sampled_from([EAGER, CAREFUL, PATIENT, WIDE]))
def test_replay_of_an_odd_fleet_changes_the_same_as_without_screening(
    fleet: Recording, asked: Policy
) -> None:
    """Whatever its metrics lack, its pods share, and its notices and cooldowns wait for."""
    found = _replayed(fleet, asked)
    with _all_judged():
        assert _replayed(fleet, asked) == found


def test_replay_leaves_replicas_of_a_role_alone() -> None:
    """What is kept of one role says nothing of the pods of the others."""
    pods = [[hours(BUSY * 24)]] * 2 + [[hours(IDLE * 24)]] * 4
    group = workload("graph", *pods)
    members = tuple(
        dataclasses.replace(one, labels={"nvidia.com/dynamo-component": "prefill" if place < 2 else "decode"})
        for place, one in enumerate(group.members)
    )
    ref = ObjectRef("nvidia.com/v1alpha1", "DynamoGraphDeployment", "team", "graph", "uid-graph")
    by_role = dataclasses.replace(group, ref=ref, members=members)
    assert replay(recording(group), PolicyJudge("p", EAGER), TERMS).accounts[0].scaled > 0
    assert replay(recording(by_role), PolicyJudge("p", EAGER), TERMS).accounts[0].scaled == 0


def test_screen_leaves_out_what_works() -> None:
    """Most of a fleet works: only what does not is judged."""
    fleet = recording(
        workload("train", [hours(BUSY * 48)] * 4, kind="Job"),
        workload("serve", *[[hours(BUSY * 48)]] * 3),
        workload("left", [hours(BUSY * 4 + IDLE * 44)]),
        workload("waits", [hours(BUSY * 4 + IDLE * 44)], kind="StatefulSet"),
    )
    with mock.patch("rightsizer_history.backtest.judges.decide", side_effect=decide) as deciding:
        _replayed(fleet, PATIENT)
    judged = sum(len(call.args[1].fleet.workloads) for call in deciding.call_args_list)
    assert 0 < judged < fleet.grid.steps * len(fleet.groups) / PER_H / 8
