"""What a history that somebody wrote by hand does to others: nothing."""

import datetime
import json

import pytest

from rightsizer.changes.found_changes import AHEAD, drop_implausible_changes
from rightsizer.model import ChangeRecord, Fleet, FoundChange, Node, ObjectRef
from tests.rightsizer.build import AT
from tests.rightsizer.test_scenarios import DEFAULT_POLICY
from tests.rightsizer.world import World

REF = ObjectRef("apps/v1", "Deployment", "team", "evil")
SECOND = datetime.timedelta(seconds=1)
CASES = {
    "just-now": (AT, 8, True),
    "by-a-clock-that-is-ahead": (AT + AHEAD, 8, True),
    "yet-to-come": (AT + AHEAD + SECOND, 8, False),
    "more-than-there-is": (AT, 9, False),
}


@pytest.mark.parametrize(("at", "gpus", "counts"), CASES.values(), ids=CASES.keys())
def test_found_changes_implausible_record_is_reported_not_counted(
    at: datetime.datetime, gpus: int, counts: bool
) -> None:
    """Anything else is told with its object, once."""
    nodes = {"n1": Node("n1", allocatable={"nvidia.com/gpu": 8})}
    found = drop_implausible_changes(
        Fleet((), nodes, {}, (FoundChange(REF, ChangeRecord(at, "r", "", gpus)),), problems=("other",)), AT
    )
    assert bool(found.changes) is counts
    assert len(found.problems) == (1 if counts else 2)
    assert counts or str(REF) in found.problems[-1]


def test_found_changes_without_node_capacity_accepts_gpu_count() -> None:
    """What is not known disproves nothing."""
    assert drop_implausible_changes(
        Fleet((), {"n1": Node("n1")}, {}, (FoundChange(REF, ChangeRecord(AT, "r", "", 10**5)),)), AT
    ).changes


@pytest.mark.prometheus
@pytest.mark.parametrize(
    "entry",
    [{"at": "2199-11-20T10:00:00Z", "gpus": 8}, {"gpus": 99_999}],
    ids=["yet-to-come", "more-than-there-is"],
)
def test_found_changes_forged_history_blocks_only_its_workload(
    world: World, entry: dict[str, object]
) -> None:
    """Another one is stopped as before; the problem is named."""
    now = datetime.datetime.now(datetime.UTC).isoformat()
    for name in ("innocent", "evil"):
        world.add("Deployment", world.team, name, {"replicas": 1})
    text = json.dumps([{"at": now, "run": "r", "action": "scale-down", "by": "gpu-rightsizer", **entry}])
    metadata = {"annotations": {"gpu-rightsizer.io/history": text}}
    world.api.patch("Deployment", world.team, "evil", {"metadata": metadata})
    plan = world.run("plan", "-o", "json", policy=DEFAULT_POLICY)
    assert plan.items["innocent"]["blockers"] == [], plan.out
    assert plan.items["innocent"]["action"] == "scale-to-zero"
    assert plan.items["evil"]["blockers"], plan.out
    assert any("evil: records a change" in problem for problem in json.loads(plan.out)["problems"])
