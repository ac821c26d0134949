"""Reconciliations of one change on an API server: what each writes, and what it says if the server refuses."""

import dataclasses
import datetime
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import yaml

from rightsizer.changes.record_codec import HISTORY_ANNOTATION, UNDO_ANNOTATION, decode_record, read_history
from rightsizer.config import ClusterSettings
from rightsizer.errors import RequestRefused
from rightsizer.execute.reconcile_actions import (
    RecordedObject,
    check_health,
    complete,
    confirm,
    read_recorded_object,
    record_revert,
    roll_back,
)
from rightsizer.execute.run_context import RunContext
from rightsizer.kinds import kind_of
from rightsizer.kinds.health import Health
from rightsizer.kinds.patches import edit_text
from rightsizer.kube.cluster import Cluster
from rightsizer.model import ChangeOutcome, ChangeRecord, Edit, ObjectRef, Outcome, ReconcileAction, Result
from simulator.kube import ApiServer, Fault
from tests.rightsizer.build import AT

MINUTE = datetime.timedelta(minutes=1)
RECORD = ChangeRecord(AT, "run-1", "scale-down", 3, "me", edits=(Edit(("spec", "replicas"), 4, 1),))
NOW = AT + 5 * MINUTE
Act = Callable[[RecordedObject, str, RunContext], Outcome]


class Rig:
    """A Deployment that was scaled down by an earlier run, and what a later run reconciles it with."""

    def __init__(self, api: ApiServer, directory: pathlib.Path) -> None:
        path = directory / "kubeconfig"
        path.write_text(yaml.safe_dump(api.kubeconfig()))
        self.api = api
        self.context = RunContext(
            cluster=Cluster(ClusterSettings(kubeconfig=path)),
            run="run-2",
            state_namespace="gpu-rightsizer",
            instance="me",
            clock=lambda: NOW,
            evicts=False,
            bind_within=datetime.timedelta(minutes=15),
        )
        labels = {"app": "web"}
        self.template = {
            "metadata": {"labels": labels},
            "spec": {"containers": [{"name": "main", "image": "i"}]},
        }
        made = api.create(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {
                    "name": "web",
                    "namespace": "team",
                    "annotations": {UNDO_ANNOTATION: msgspec.json.encode(RECORD).decode()},
                },
                "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": self.template},
            }
        )
        self.ref = ObjectRef("apps/v1", "Deployment", "team", "web", made["metadata"]["uid"])

    def read(self) -> RecordedObject:
        """The Deployment with its record."""
        row = kind_of(self.ref)
        assert row is not None
        found = read_recorded_object(self.ref, row, self.context)
        assert found is not None
        return found

    @property
    def now(self) -> dict[str, Any]:
        """The Deployment."""
        found = self.api.get("Deployment", "team", "web")
        assert found is not None
        return found

    @property
    def events(self) -> list[tuple[str, str, str, str]]:
        """Type, reason, message and name of the object of each Event."""
        return [
            (one["type"], one["reason"], one["message"], one["involvedObject"]["name"])
            for one in self.api.list("Event", "team")
            if one["source"]["component"] == "gpu-rightsizer"
        ]


@pytest.fixture
def rig(tmp_path: pathlib.Path) -> Iterator[Rig]:
    """An API server with that Deployment."""
    with ApiServer() as api:
        for name in ("team", "gpu-rightsizer"):
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        made = Rig(api, tmp_path)
        api.settle()  # or the controllers change the object between a test's read and its write
        yield made


DONE: dict[str, tuple[Act, ReconcileAction, str, tuple[str, str, str]]] = {
    "confirm": (
        confirm,
        ReconcileAction.CONFIRM,
        "WHY",
        ("Normal", "Confirmed", "Healthy after the change by run run-1: WHY"),
    ),
    "roll-back": (
        roll_back,
        ReconcileAction.ROLLBACK,
        "WHY; spec.replicas: 1 → 4",
        (
            "Warning",
            "RolledBack",
            "The change of run run-1 was rolled back, because the workload was unhealthy: WHY; spec.replicas: 1 → 4",
        ),
    ),
    "record-revert": (
        record_revert,
        ReconcileAction.RECORD_REVERT,
        "somebody reverted it: WHY",
        ("Normal", "Reverted", "Someone reverted the change of run run-1, so it is not repeated soon: WHY"),
    ),
}


@pytest.mark.parametrize(("act", "action", "detail", "event"), DONE.values(), ids=DONE.keys())
def test_reconcile_action_done_is_told_in_outcome_and_event(
    rig: Rig, act: Act, action: ReconcileAction, detail: str, event: tuple[str, str, str]
) -> None:
    """With the run that made the change, and the time of now."""
    outcome = act(rig.read(), "WHY", rig.context)
    assert outcome == Outcome(rig.ref, action.value, Result.DONE, detail, 0, NOW, is_reconciliation=True)
    assert rig.events == [(*event, "web")]


def test_reconcile_actions_leave_record_and_history_of_what_happened(rig: Rig) -> None:
    """A confirmed change can be undone; one that was rolled back is history."""
    confirm(rig.read(), "", rig.context)
    notes = rig.now["metadata"]["annotations"]
    assert decode_record(notes[UNDO_ANNOTATION]) == msgspec.structs.replace(RECORD, confirmed=True)
    roll_back(rig.read(), "", rig.context)
    notes = rig.now["metadata"]["annotations"]
    assert (rig.now["spec"]["replicas"], UNDO_ANNOTATION in notes) == (4, False)
    (past,) = read_history({HISTORY_ANNOTATION: notes[HISTORY_ANNOTATION]})
    assert (past.run, past.end, past.ended) == ("run-1", ChangeOutcome.ROLLBACK, NOW)


def test_reconcile_record_revert_ends_the_change_in_its_history(rig: Rig) -> None:
    """How long a scaled-down workload was idle is unknown, so nothing is noted of that."""
    record_revert(rig.read(), "", rig.context)
    notes = rig.now["metadata"]["annotations"]
    (past,) = read_history({HISTORY_ANNOTATION: notes[HISTORY_ANNOTATION]})
    assert (past.end, past.ended) == (ChangeOutcome.REVERTED, NOW)
    assert [key for key in notes if key.startswith("gpu-rightsizer.io/")] == [HISTORY_ANNOTATION]


OUT_OF_POLICY = (
    "deployments.apps \"web\" is forbidden: ValidatingAdmissionPolicy 'gpu-rightsizer-deployments.apps'"
)
FAULTS: dict[str, tuple[dict[str, Any], Result]] = {
    "refused": ({"status": 403}, Result.REFUSED),
    "out-of-policy": (
        {
            "status": 403,
            "body": {"kind": "Status", "reason": "Forbidden", "code": 403, "message": OUT_OF_POLICY},
        },
        Result.REFUSED,
    ),
    "lost": ({"drop": True}, Result.UNKNOWN),
}


@pytest.mark.parametrize(("fault", "result"), FAULTS.values(), ids=FAULTS.keys())
@pytest.mark.parametrize("name", DONE)
def test_reconcile_action_failed_says_why_and_publishes_nothing(
    rig: Rig, name: str, fault: dict[str, Any], result: Result
) -> None:
    """The next run reads the object again; the owner may have changed its record, so no breaker opens."""
    act, action, *_ = DONE[name]
    found = rig.read()
    rig.api.inject(Fault("deployments/web", "PATCH", None, **fault))
    outcome = act(found, "WHY", rig.context)
    assert (outcome.ref, outcome.action, outcome.result) == (rig.ref, action.value, result)
    assert (outcome.is_out_of_policy, outcome.is_reconciliation) == (False, True)
    starts = {
        "confirm": "left to the next run: ",
        "roll-back": "WHY; ",
        "record-revert": "WHY; not recorded: ",
    }
    assert outcome.detail.startswith(starts[name])
    assert "deployments/web" in outcome.detail
    assert rig.events == []
    assert rig.now["spec"]["replicas"] == 1


def test_reconcile_rollback_of_what_somebody_changed_is_left_alone(rig: Rig) -> None:
    """Their number stays; so does a record that was replaced meanwhile."""
    found = rig.read()
    rig.api.patch("Deployment", "team", "web", {"spec": {"replicas": 2}})
    outcome = roll_back(found, "WHY", rig.context)
    assert outcome.result is Result.CHANGED
    assert outcome.detail == (
        "WHY; left alone: spec.replicas is 2; gpu-rightsizer had set it to 1; --force sets it to 4"
    )
    assert (rig.now["spec"]["replicas"], rig.events) == (2, [])


def test_reconcile_confirm_of_an_object_changed_meanwhile_is_no_error(rig: Rig) -> None:
    """Its next run confirms it."""
    found = rig.read()
    rig.api.patch("Deployment", "team", "web", {"spec": {"replicas": 2}})
    outcome = confirm(found, "", rig.context)
    assert (outcome.result, outcome.action) == (Result.CHANGED, "confirm")
    assert outcome.detail.startswith("left to the next run: ")


# --- a Job that is suspended for its change

_RESOURCES = ("spec", "template", "spec", "containers", "name=main", "resources")
FEWER = Edit((*_RESOURCES, "limits", "nvidia.com/gpu"), "2", "1")
SUSPENDED = ChangeRecord(
    AT,
    "run-1",
    "resize",
    1,
    edits=(Edit(("spec", "suspend"), before=False, after=True),),
    pending_edits=(FEWER,),
    healthy_within_seconds=300,
)
EARLY = msgspec.structs.replace(SUSPENDED, healthy_within_seconds=301)


def _job(rig: Rig, record: ChangeRecord, status: dict[str, Any], *, suspend: bool = True) -> RecordedObject:
    """A Job with two GPUs as it was read, which its controller, that says how it is, does not change."""
    main = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    spec = {"containers": [main], "restartPolicy": "Never"}
    notes = {UNDO_ANNOTATION: msgspec.json.encode(record).decode()}
    rig.api.create(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "train", "namespace": "team", "annotations": notes},
            "spec": {"suspend": suspend, "managedBy": "example.com/none", "template": {"spec": spec}},
        }
    )
    rig.api.patch("Job", "team", "train", {"status": status}, subresource="status")
    made = rig.api.get("Job", "team", "train")
    assert made is not None
    rig.ref = ObjectRef("batch/v1", "Job", "team", "train", made["metadata"]["uid"])
    return rig.read()


GONE = {"conditions": [{"type": "Suspended", "status": "True"}]}
STEPS: dict[str, tuple[tuple[ChangeRecord, dict[str, Any], bool], str, str, ChangeOutcome | None]] = {
    "pods-gone": (
        (SUSPENDED, GONE, True),
        "complete",
        f"its pods are gone, and it is resumed: {edit_text(FEWER)}",
        None,
    ),
    "resumed-by-somebody": (
        (SUSPENDED, {"active": 1}, False),
        "rollback",
        "somebody resumed it meanwhile; it is resumed without the change",
        ChangeOutcome.REVERTED,
    ),
    "pods-do-not-go": (
        (SUSPENDED, {"active": 1}, True),
        "rollback",
        "its pods are not gone after 5m; it is resumed without the change",
        ChangeOutcome.ROLLBACK,
    ),
}


@pytest.mark.parametrize(("given", "action", "detail", "end"), STEPS.values(), ids=STEPS.keys())
def test_reconcile_suspended_job_is_completed_or_resumed(
    rig: Rig,
    given: tuple[ChangeRecord, dict[str, Any], bool],
    action: str,
    detail: str,
    end: ChangeOutcome | None,
) -> None:
    """In one patch, with the end of the change in its history; the Event names the run that suspended it."""
    record, status, suspend = given
    outcome = complete(_job(rig, record, status, suspend=suspend), rig.context)
    assert outcome == Outcome(rig.ref, action, Result.DONE, detail, 0, NOW, is_reconciliation=True)
    made = rig.api.get("Job", "team", "train")
    assert made is not None
    gpus = made["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    assert (made["spec"]["suspend"], gpus) == (False, "2" if end else "1")
    past = read_history(made["metadata"]["annotations"])
    assert [(one.run, one.end) for one in past] == ([("run-1", end)] if end else [])
    ((_, reason, message, name),) = rig.events
    assert (reason, name) == ("RolledBack" if end else "Shrunk", "train")
    assert message.startswith("Run run-1 suspended it to change it")
    assert message.endswith(detail)


@pytest.mark.parametrize(
    "status", [{"active": 1}, {"terminating": 1, **GONE}, {"startTime": "2026-11-01T00:00:00Z"}]
)
def test_reconcile_suspended_job_waits_for_its_pods(rig: Rig, status: dict[str, Any]) -> None:
    """Until its time is over."""
    assert complete(_job(rig, EARLY, status), rig.context) is None
    assert rig.events == []


def test_reconcile_suspended_job_is_resumed_if_its_change_is_refused_for_good(rig: Rig) -> None:
    """After a conflict, the next run tries again."""
    found = _job(rig, SUSPENDED, GONE)
    rig.api.inject(Fault("jobs/train", "PATCH", status=409))
    with pytest.raises(RequestRefused):
        complete(found, rig.context)
    rig.api.inject(Fault("jobs/train", "PATCH", status=403))
    outcome = complete(found, rig.context)
    assert outcome is not None
    assert (outcome.action, outcome.result, outcome.is_out_of_policy) == ("rollback", Result.DONE, False)
    assert outcome.detail.endswith("; it is resumed without the change")


@pytest.mark.parametrize(("later_s", "is_failed"), [(0, True), (1, False)])
def test_reconcile_job_whose_pod_failed_since_its_change_is_unhealthy(
    rig: Rig, later_s: int, *, is_failed: bool
) -> None:
    """A pod that was created in the second of the change counts; an older one says nothing about it."""
    found = _job(rig, SUSPENDED, {})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": rig.ref.uid, "controller": True}
    metadata = {"name": "train-x", "namespace": "team", "ownerReferences": [owner]}
    made = rig.api.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": rig.template["spec"]}
    )
    rig.api.patch("Pod", "team", "train-x", {"status": {"phase": "Failed"}}, subresource="status")
    created = datetime.datetime.fromisoformat(made["metadata"]["creationTimestamp"])
    at = created + datetime.timedelta(seconds=later_s)
    found = dataclasses.replace(found, record=msgspec.structs.replace(found.record, at=at))
    health, words = check_health(found, rig.context)
    assert (health is Health.FAILED, words == "pod train-x failed since") == (is_failed, is_failed)
