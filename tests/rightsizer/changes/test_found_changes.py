"""What a history that somebody wrote by hand does to others: nothing."""

import dataclasses
import datetime
import json

import msgspec
import pytest

from rightsizer.changes.found_changes import changes_of, drop_implausible_changes, evictions_of, speaks_for
from rightsizer.changes.memory import MONTH
from rightsizer.changes.record_codec import (
    CLASS_ANNOTATION,
    GPUS_ANNOTATION,
    HISTORY_ANNOTATION,
    MANIFEST_LABEL,
    POD_ANNOTATION,
    UNDO_ANNOTATION,
    encode_record,
    manifest_name,
)
from rightsizer.kube.api_objects import ObjectMeta, OwnerReference
from rightsizer.kube.owner_kinds import ObjectSummary
from rightsizer.model import ChangeRecord, Fleet, FoundChange, Node, ObjectRef
from tests.rightsizer.build import AT, pod
from tests.rightsizer.world import DEFAULT_POLICY, World

REF = ObjectRef("apps/v1", "Deployment", "team", "evil")
DAY, SECOND = datetime.timedelta(days=1), datetime.timedelta(seconds=1)
CASES = {
    "just-now": (AT, 8, True),
    "by-a-clock-that-is-ahead": (AT + 2 * DAY, 8, True),
    "yet-to-come": (AT + 2 * DAY + SECOND, 8, False),
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


@pytest.mark.parametrize(
    ("text", "gpus"), [("8", 8), ("", 0), ("x", 0), ("-8", 0), ("1e9", 0), ("٣", 0), ("9" * 5000, 0)]
)
def test_found_changes_eviction_with_any_number_of_gpus_is_read(text: str, gpus: int) -> None:
    """Whoever writes Secrets of this type in the state namespace ends no plan, and no listing."""
    metadata = ObjectMeta(
        "shell-0f7b3c2a",
        "gpu-rightsizer",
        creation_timestamp=AT,
        annotations={POD_ANNOTATION: "team/shell", GPUS_ANNOTATION: text},
    )
    (found,) = evictions_of([metadata])
    assert (found.ref, found.record.gpus) == (ObjectRef("v1", "Pod", "team", "shell"), gpus)


WEB = ObjectRef("apps/v1", "Deployment", "team", "web", "w")
SCALER = ObjectRef("keda.sh/v1alpha1", "ScaledObject", "team", "scaler", "s")
CRON = ObjectRef("batch/v1", "CronJob", "team", "nightly", "c")
TRAIN = ObjectRef("batch/v1", "Job", "team", "nightly-1", "j")
CUSTOM = ObjectRef("example.com/v1", "Custom", "team", "custom", "x")
COPY = ObjectRef("apps/v1", "ReplicaSet", "team", "web-0", "r")
TAKEN = ChangeRecord(AT, "r", "suspend", 2, priority_class="low")
SUMMARY = ChangeRecord(AT, "r", "suspend", 2)


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
    ("carrier", "found"),
    [
        pytest.param(_carrier(WEB, TAKEN), [FoundChange(WEB, TAKEN)], id="own"),
        pytest.param(_carrier(WEB, SUMMARY, controls=TRAIN), [FoundChange(TRAIN, SUMMARY)], id="controls"),
        pytest.param(
            _carrier(SCALER, msgspec.structs.replace(TAKEN, workload=WEB), controls=TRAIN),
            [FoundChange(WEB, TAKEN)],
            id="control-object-names-a-workload",
        ),
        pytest.param(
            _carrier(SCALER, TAKEN, above=WEB), [FoundChange(SCALER, TAKEN)], id="owned-control-object"
        ),
        pytest.param(
            _carrier(TRAIN, TAKEN, above=CRON), [FoundChange(TRAIN, TAKEN, starter=CRON)], id="started"
        ),
        pytest.param(_carrier(TRAIN, TAKEN, above=CUSTOM), [FoundChange(TRAIN, TAKEN)], id="of-unknown-kind"),
        pytest.param(_carrier(COPY, TAKEN, above=WEB), [], id="copied-from-its-controller"),
        pytest.param(_carrier(WEB, ChangeRecord(AT, "r", "scale-up", -2)), [], id="added"),
    ],
)
def test_found_changes_name_the_changed_workload(carrier: ObjectSummary, found: list[FoundChange]) -> None:
    """Not the object that carries the record, and not twice where controllers copy annotations."""
    assert changes_of([carrier], (), ()) == (found, [])


@pytest.mark.parametrize("ref", [WEB, TRAIN], ids=["web", "train"])
def test_found_changes_record_that_names_another_workload_counts_for_its_carrier(ref: ObjectRef) -> None:
    """A Deployment or Job speaks for itself only."""
    (change,), (problem,) = changes_of([_carrier(ref, msgspec.structs.replace(TAKEN, workload=CRON))], (), ())
    assert change.ref == ref
    assert problem == (
        f"{ref}: its annotation gpu-rightsizer.io/undo names {CRON}, for which it cannot speak"
    )


def _manifest(name: str, **annotations: str) -> ObjectMeta:
    notes = {POD_ANNOTATION: "team/shell", GPUS_ANNOTATION: "8", CLASS_ANNOTATION: "low", **annotations}
    return ObjectMeta(
        name, "state", "s", creation_timestamp=AT, labels={MANIFEST_LABEL: "r"}, annotations=notes
    )


def test_found_changes_evictions_are_what_their_secrets_record() -> None:
    """A Secret that names no possible pod stands for itself; one without a time is being created."""
    new, bare = ObjectMeta("new", "state"), ObjectMeta("bare", "state", "b", creation_timestamp=AT)
    shell, evicted = ObjectRef("v1", "Pod", "team", "shell"), ChangeRecord(AT, "r", "evict", 8)
    assert list(
        evictions_of([new, _manifest("a"), _manifest("b", **{POD_ANNOTATION: "team/x/y"}), bare])
    ) == [
        FoundChange(shell, msgspec.structs.replace(evicted, priority_class="low")),
        FoundChange(
            ObjectRef("v1", "Secret", "state", "b", "s"),
            msgspec.structs.replace(evicted, priority_class="low"),
        ),
        FoundChange(ObjectRef("v1", "Secret", "state", "bare", "b"), ChangeRecord(AT, "", "evict")),
    ]


@pytest.mark.parametrize("is_terminating", [True, False])
def test_found_changes_eviction_of_a_pod_that_runs_never_took_effect(*, is_terminating: bool) -> None:
    """Once it is terminating, it did; another pod of its name says nothing."""
    same = pod("shell", is_terminating=is_terminating)
    others = [pod("shell", ref=dataclasses.replace(same.ref, uid="another-one")), pod("other")]
    saved = _manifest(manifest_name(same.ref), **{POD_ANNOTATION: f"{same.ref.namespace}/shell"})
    found, problems = changes_of((), [saved], [same, *others])
    assert (len(found), problems) == (1 if is_terminating else 0, [])


def test_found_changes_unknown_to_the_memory_are_counted_and_named() -> None:
    """Three of them by name, if they are of the last 30 days."""
    refs = [dataclasses.replace(REF, name=name) for name in "dcba"]
    forged = [FoundChange(ref, ChangeRecord(AT, "r", "", 1), is_remembered=False) for ref in refs]
    old = FoundChange(REF, ChangeRecord(AT - MONTH, "r", "", 1), is_remembered=False)
    found = drop_implausible_changes(Fleet((), {}, {}, (*forged, old)), AT)
    names = ", ".join(sorted(map(str, refs))[:3])
    assert found.problems == (
        f"4 recorded changes unknown to the memory, such as of {names}: charged to no budget",
    )
    assert found.changes == (*forged, old)


def test_found_changes_more_gpus_than_the_only_one_is_implausible() -> None:
    """The time of a problem is in UTC, wherever it was written."""
    one = {"n1": Node("n1", allocatable={"nvidia.com/gpu": 1})}
    late = (AT + 18 * DAY).astimezone(datetime.timezone(datetime.timedelta(hours=2)))
    changes = tuple(FoundChange(REF, ChangeRecord(at, "r", "", 2)) for at in (AT, late))
    many, future = drop_implausible_changes(Fleet((), one, {}, changes), AT).problems
    charged = "; it is charged to no budget"
    assert many == f"{REF}: records a change that freed 2 GPUs, but all nodes together have 1{charged}"
    at = f"{AT + 18 * DAY:%Y-%m-%d %H:%M} UTC"
    assert future == f"{REF}: records a change at {at}, which is in the future{charged}"


def test_found_changes_negative_gpus_refill_no_budget() -> None:
    """Whoever may annotate an object cannot pay for a thousand GPUs by a change that added as many."""
    history = json.dumps([{"at": AT.isoformat(), "run": "r", "action": "resize", "gpus": -1000}])
    metadata = ObjectMeta(REF.name, REF.namespace, annotations={HISTORY_ANNOTATION: history})
    (change,), problems = changes_of([ObjectSummary(REF, metadata)], (), ())
    assert (change.record.gpus, problems) == (0, [])


def test_found_changes_without_node_capacity_accepts_gpu_count() -> None:
    """What is not known disproves nothing."""
    assert drop_implausible_changes(
        Fleet((), {"n1": Node("n1")}, {}, (FoundChange(REF, ChangeRecord(AT, "r", "", 10**5)),)), AT
    ).changes


@pytest.mark.parametrize(("namespace", "speaks"), [("team", True), ("others", False)])
def test_found_changes_record_of_another_workload_is_of_its_namespace(
    namespace: str, *, speaks: bool
) -> None:
    """Whoever may write a CronJob may not say that a Job elsewhere was changed."""
    starter = ObjectRef("batch/v1", "CronJob", "team", "nightly")
    assert speaks_for(starter, ObjectRef("batch/v1", "Job", namespace, "train")) is speaks


@pytest.mark.prometheus
@pytest.mark.parametrize(
    "entry",
    [{"at": "2199-11-20T10:00:00Z", "gpus": 8}, {"gpus": 99_999}, {"gpus": 8}],
    ids=["yet-to-come", "more-than-there-is", "plausible"],
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
    # Since the scale-down that it records it has not been idle for long enough.
    assert (plan.items["evil"]["verdict"], plan.items["evil"]["action"]) == ("keep", None), plan.out
    problems = json.loads(plan.out)["problems"]
    assert any("evil: records a change" in one or one.endswith("charged to no budget") for one in problems)


FULL = DEFAULT_POLICY + "  - {per: day, workloads: 1}\n"


@pytest.mark.prometheus
def test_found_changes_forged_history_without_gpus_spends_no_budget(world: World) -> None:
    """Neither on an object without GPUs, nor on an own workload that gpu-rightsizer did change in that run."""
    for name in ("innocent", "evil"):
        world.add("Deployment", world.team, name, {"replicas": 1})
    world.add("Deployment", world.team, "empty", {"gpus": 0})
    now = datetime.datetime.now(datetime.UTC)
    one = {"run": "r", "action": "resize", "by": "gpu-rightsizer", "gpus": 60}
    many = [
        {**one, "run": f"r{n}", "at": (now + n * datetime.timedelta(hours=4)).isoformat()} for n in range(8)
    ]
    for name in ("evil", "empty"):
        metadata = {"annotations": {"gpu-rightsizer.io/history": json.dumps(many)}}
        world.api.patch("Deployment", world.team, name, {"metadata": metadata})
    plan = world.run("plan", "-o", "json", policy=FULL)
    assert plan.items["innocent"]["blockers"] == [], plan.out
    assert plan.items["evil"]["action"] is None, plan.items["evil"]
    (problem,) = json.loads(plan.out)["problems"]
    assert problem.startswith("16 recorded changes unknown to the memory, such as of ")


@pytest.mark.prometheus
def test_found_changes_real_change_spends_what_the_memory_says(world: World) -> None:
    """Its owner edits the history: another time and more GPUs; the budgets count the change as it was made."""
    world.add("Deployment", world.team, "idle", {"replicas": 1})
    apply = world.run("apply", "--yes", "-o", "json", policy=DEFAULT_POLICY)
    assert apply.items["idle"]["result"] == "done"
    run = json.loads(apply.out)["metadata"]["run"]
    long_ago = {"run": run, "at": "2026-01-01T00:00:00Z", "action": "scale-to-zero", "gpus": 0}
    notes = {"gpu-rightsizer.io/history": json.dumps([long_ago]), "gpu-rightsizer.io/undo": None}
    world.api.patch("Deployment", world.team, "idle", {"metadata": {"annotations": notes}})
    world.add("Deployment", world.team, "next", {})
    (block,) = world.run("plan", "-o", "json", policy=FULL).items["next"]["blockers"]
    assert (block["code"], "1 of 1 workloads" in block["message"]) == ("budget", True)
