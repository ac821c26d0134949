"""Which workload an undo record is about; what a record that somebody wrote by hand does to others: nothing."""

import datetime
import json

import msgspec
import pytest

from rightsizer.changes.found_changes import recorded_changes, speaks_for
from rightsizer.changes.record_codec import UNDO_ANNOTATION, encode_record
from rightsizer.kube.api_objects import ObjectMeta, OwnerReference
from rightsizer.kube.owner_kinds import ObjectSummary
from rightsizer.model import UNREADABLE, ChangeRecord, Edit, ObjectRef
from tests.rightsizer.build import AT, DAY
from tests.rightsizer.world import DEFAULT_POLICY, World

WEB = ObjectRef("apps/v1", "Deployment", "team", "web", "w")
SCALER = ObjectRef("keda.sh/v1alpha1", "ScaledObject", "team", "scaler", "s")
CRON = ObjectRef("batch/v1", "CronJob", "team", "nightly", "c")
TRAIN = ObjectRef("batch/v1", "Job", "team", "nightly-1", "j")
CUSTOM = ObjectRef("example.com/v1", "Custom", "team", "custom", "x")
COPY = ObjectRef("apps/v1", "ReplicaSet", "team", "web-0", "r")
TAKEN = ChangeRecord(AT, "r", "suspend", 2, priority_class="low")


def _carrier(
    ref: ObjectRef, record: ChangeRecord, above: ObjectRef | None = None, controls: ObjectRef | None = None
) -> ObjectSummary:
    owners = (
        [OwnerReference(above.api_version, above.kind, above.name, above.uid, controller=True)]
        if above
        else None
    )
    notes = {UNDO_ANNOTATION: encode_record(record)}
    metadata = ObjectMeta(ref.name, ref.namespace, ref.uid, annotations=notes, owner_references=owners)
    return ObjectSummary(ref, metadata, controls=controls)


@pytest.mark.parametrize(
    ("carrier", "about"),
    [
        pytest.param(_carrier(WEB, TAKEN), WEB, id="own"),
        pytest.param(_carrier(WEB, TAKEN, controls=TRAIN), TRAIN, id="controls"),
        pytest.param(
            _carrier(SCALER, msgspec.structs.replace(TAKEN, workload=WEB), controls=TRAIN),
            WEB,
            id="control-object-names-a-workload",
        ),
        pytest.param(_carrier(SCALER, TAKEN, above=WEB), SCALER, id="owned-control-object"),
        pytest.param(_carrier(TRAIN, TAKEN, above=CRON), TRAIN, id="started"),
        pytest.param(_carrier(TRAIN, TAKEN, above=CUSTOM), TRAIN, id="of-unknown-kind"),
        pytest.param(_carrier(COPY, TAKEN, above=WEB), None, id="copied-from-its-controller"),
    ],
)
def test_found_changes_record_is_about_the_changed_workload(
    carrier: ObjectSummary, about: ObjectRef | None
) -> None:
    """Not about the object that carries it, and not twice where controllers copy annotations."""
    assert recorded_changes([carrier]) == ({about.full_name: AT} if about else {}, [])


@pytest.mark.parametrize("ref", [WEB, TRAIN], ids=["web", "train"])
def test_found_changes_record_that_names_another_workload_counts_for_its_carrier(ref: ObjectRef) -> None:
    """A Deployment or Job speaks for itself only."""
    found, (problem,) = recorded_changes([_carrier(ref, msgspec.structs.replace(TAKEN, workload=CRON))])
    assert found == {ref.full_name: AT}
    assert problem == (
        f"{ref}: its annotation gpu-rightsizer.io/undo names {CRON}, for which it cannot speak"
    )


def test_found_changes_latest_record_about_a_workload_counts() -> None:
    """One that cannot be read may be of any time, so its change may be in effect."""
    early, late = (
        _carrier(WEB, TAKEN),
        _carrier(SCALER, msgspec.structs.replace(TAKEN, at=AT + DAY, workload=WEB)),
    )
    assert recorded_changes([late, early]) == ({WEB.full_name: AT + DAY}, [])
    torn = ObjectSummary(WEB, ObjectMeta(WEB.name, WEB.namespace, annotations={UNDO_ANNOTATION: "{"}))
    found, (problem,) = recorded_changes([torn, late])
    assert (found, UNREADABLE.at > AT + DAY) == ({WEB.full_name: UNREADABLE.at}, True)
    assert problem.endswith("cannot be read; it counts as changed right now")


@pytest.mark.parametrize(("namespace", "speaks"), [("team", True), ("others", False)])
def test_found_changes_record_of_another_workload_is_of_its_namespace(
    namespace: str, *, speaks: bool
) -> None:
    """Whoever may write a CronJob may not say that a Job elsewhere was changed."""
    starter = ObjectRef("batch/v1", "CronJob", "team", "nightly")
    assert speaks_for(starter, ObjectRef("batch/v1", "Job", namespace, "train")) is speaks


FULL = DEFAULT_POLICY + "  - {per: day, workloads: 1}\n"


@pytest.mark.prometheus
def test_found_changes_forged_records_spend_no_budget(world: World) -> None:
    """Neither the history of earlier releases, nor an undo record of today: only the memory counts changes."""
    for name in ("innocent", "evil"):
        world.add("Deployment", world.team, name, {"replicas": 1})
    now = datetime.datetime.now(datetime.UTC)
    entry = {"run": "r", "action": "resize", "by": "gpu-rightsizer", "gpus": 60}
    many = [
        {**entry, "run": f"r{n}", "at": (now + n * datetime.timedelta(hours=4)).isoformat()} for n in range(8)
    ]
    record = encode_record(
        ChangeRecord(now, "r", "scale-down", 60, edits=(Edit(("spec", "replicas"), 9, 1),))
    )
    notes = {"gpu-rightsizer.io/history": json.dumps(many), UNDO_ANNOTATION: record}
    world.api.patch("Deployment", world.team, "evil", {"metadata": {"annotations": notes}})
    plan = world.run("plan", "-o", "json", policy=FULL)
    assert plan.items["innocent"]["blockers"] == [], plan.out
    assert plan.items["innocent"]["action"] == "scale-to-zero"
    assert plan.items["evil"]["action"] is None, plan.items["evil"]


@pytest.mark.prometheus
def test_found_changes_real_change_spends_what_the_memory_says(world: World) -> None:
    """Its owner removes the undo record, or writes another time: the budgets count the change as it was made."""
    world.add("Deployment", world.team, "idle", {"replicas": 1})
    apply = world.run("apply", "--yes", "-o", "json", policy=DEFAULT_POLICY)
    assert apply.items["idle"]["result"] == "done"
    run = json.loads(apply.out)["metadata"]["run"]
    long_ago = {"run": run, "at": "2026-01-01T00:00:00Z", "action": "scale-to-zero", "gpus": 0}
    notes = {"gpu-rightsizer.io/history": json.dumps([long_ago]), UNDO_ANNOTATION: None}
    world.api.patch("Deployment", world.team, "idle", {"metadata": {"annotations": notes}})
    world.add("Deployment", world.team, "next", {})
    (block,) = world.run("plan", "-o", "json", policy=FULL).items["next"]["blockers"]
    assert (block["code"], "1 of 1 workloads" in block["message"]) == ("budget", True)
