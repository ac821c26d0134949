"""What needs no judgement in a cycle is left out; the changes are those of judging everything."""

import array
import dataclasses
from unittest import mock

from hypothesis import example, given
from hypothesis import strategies as st

from rightsizer.backtest.judges import PolicyJudge
from rightsizer.backtest.recording import Group, Recording
from rightsizer.backtest.replay import Change, replay
from rightsizer.backtest.screening import Screen
from rightsizer.model import Mode, ObjectRef
from rightsizer.policy.match import Match
from rightsizer.policy.schema import Policy
from tests.rightsizer.backtest.recordings import (
    BUSY,
    CAREFUL,
    DARK,
    EAGER,
    IDLE,
    SPINS,
    TERMS,
    fleets,
    hours,
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


def _changes(fleet: Recording, asked: Policy) -> list[tuple[list[Change], float, int]]:
    accounts = replay(fleet, PolicyJudge("p", asked), TERMS).accounts
    return [(account.changes, account.scaled, account.notices) for account in accounts]


@example(recording(HALF_USED), EAGER)
@example(recording(TURNS), EAGER)
@example(recording(_neighbours()), EAGER)
@example(recording(TRAINER, UNSEEN), EAGER)
@example(recording(TRAINER, LEFT, HUNG), BY_KIND)
@given(fleets(), st.sampled_from([EAGER, CAREFUL]))
def test_replay_changes_the_same_as_without_screening(fleet: Recording, asked: Policy) -> None:
    """Whatever the fleet does."""
    found = _changes(fleet, asked)
    with mock.patch.object(Screen, "leaves_out", return_value=False):
        assert _changes(fleet, asked) == found


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
    judged = []

    def leaves_out(self: Screen, *arguments: object) -> bool:
        judged.append(original(self, *arguments))  # type: ignore[arg-type]
        return judged[-1]

    original = Screen.leaves_out
    fleet = recording(
        workload("train", [hours(BUSY * 48)] * 4, kind="Job"),
        workload("serve", *[[hours(BUSY * 48)]] * 3),
        workload("left", [hours(BUSY * 4 + IDLE * 44)]),
    )
    with mock.patch.object(Screen, "leaves_out", leaves_out):
        _changes(fleet, CAREFUL)
    assert judged.count(True) > judged.count(False) > 0
