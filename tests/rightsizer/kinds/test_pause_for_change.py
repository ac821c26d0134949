"""The two halves of a change for which a Job is stopped: when the second may come, and what becomes of the record."""

import copy
import datetime
from typing import Any

import msgspec
import pytest

from rightsizer.changes.record_codec import UNDO_ANNOTATION, encode_record, read_history
from rightsizer.kinds.core import KINDS
from rightsizer.kinds.patches import parse_record
from rightsizer.kinds.pause_for_change import (
    completing_patch,
    end_condition,
    expected_job_pods,
    is_changeable,
    needs_pause,
    resuming_patch,
    stop_and_restore_patch,
)
from rightsizer.model import Action, ChangeOutcome, ChangeRecord, Edit
from tests.rightsizer.build import AT

Object = dict[str, Any]
(JOB,) = (row for row in KINDS if row.kind == "Job")
GPU = ("spec", "template", "spec", "containers", "name=main", "resources", "limits", "nvidia.com/gpu")
SUSPEND = ("spec", "suspend")
STOPPED = Edit(SUSPEND, before=False, after=True)
MINUTE = datetime.timedelta(minutes=1)


def _job(gpus: int = 4, *, suspend: bool = True, **status: Any) -> Object:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    return {
        "metadata": {"uid": "u", "resourceVersion": "7", "annotations": {}},
        "spec": {"suspend": suspend, "template": {"spec": {"containers": [container]}}},
        "status": status,
    }


def _record(*edits: Edit, then: tuple[Edit, ...] = (), end: ChangeOutcome | None = None) -> ChangeRecord:
    return ChangeRecord(
        AT,
        "r1",
        Action.RESIZE,
        rule="all",
        finding="too-many-gpus",
        reason="why",
        edits=edits,
        pending_edits=then,
        pending_end=end,
        healthy_within_seconds=60,
    )


def _after(obj: Object, patch: Object) -> tuple[bool, str, ChangeRecord | None]:
    """Whether it is suspended then, its GPUs, and its record."""
    spec = copy.deepcopy(obj["spec"]) | patch.get("spec", {})
    (container,) = spec["template"]["spec"]["containers"]
    text = patch["metadata"]["annotations"].get(UNDO_ANNOTATION)
    record = parse_record(text, JOB) if text else None
    return spec["suspend"], container["resources"]["limits"]["nvidia.com/gpu"], record


SUSPENDED = [{"type": "Suspended", "status": "True"}]


@pytest.mark.parametrize(
    ("obj", "is_late", "may"),
    [
        (_job(conditions=SUSPENDED), False, True),
        (_job(), False, True),
        (_job(startTime="then"), False, False),
        (_job(startTime="then", conditions=SUSPENDED), False, True),
        (_job(conditions=SUSPENDED, active=1), True, False),
        (_job(conditions=SUSPENDED, terminating=1), False, False),
        (_job(conditions=SUSPENDED, terminating=1), True, True),
        (_job(suspend=False, conditions=SUSPENDED), True, False),
        ({**_job(), "status": None}, False, True),
    ],
    ids=[
        "suspended", "never-ran", "not-seen-yet", "start-is-remembered", "active", "terminating",
        "terminating-for-long", "resumed", "no-status",
    ],
)  # fmt: skip
def test_pause_for_change_second_step_waits_for_pods_to_free_gpus(
    obj: Object, is_late: bool, may: bool
) -> None:
    """As the API server decides it, and not while pods that are being deleted hold their GPUs."""
    assert is_changeable(JOB, obj, is_late=is_late) is may


def test_pause_for_change_second_step_records_only_the_difference() -> None:
    """That it was stopped meanwhile is not part of it; time is counted from there."""
    record = _record(STOPPED, then=(Edit(GPU, "4", "2"),))
    suspended, gpus, left = _after(_job(), completing_patch(_job(), record, JOB, AT + MINUTE))
    assert (suspended, gpus) == (False, "2")
    assert left == msgspec.structs.replace(_record(Edit(GPU, "4", "2")), at=AT + MINUTE)


def test_pause_for_change_second_shrink_keeps_original_size() -> None:
    """Undo leads back to what there was before both."""
    record = _record(Edit(GPU, "8", "4"), STOPPED, then=(Edit(GPU, "4", "2"),))
    *_, left = _after(_job(), completing_patch(_job(), record, JOB, AT))
    assert left is not None
    assert left.edits == (Edit(GPU, "8", "2"),)


@pytest.mark.parametrize("end", [ChangeOutcome.UNDONE, ChangeOutcome.ROLLBACK])
def test_pause_for_change_undo_restores_size_and_removes_record(end: ChangeOutcome) -> None:
    """First it is stopped, with a record that says as what it ends; then it has what it had, and remembers the end."""
    running = _job(2, suspend=False)
    patch, record = stop_and_restore_patch(running, _record(Edit(GPU, "4", "2")), JOB, at=AT, end=end)
    assert _after(running, patch) == (True, "2", record)
    assert (record.pending_end, record.is_unfinished) == (end, True)
    stopped = _job(2)
    last = completing_patch(stopped, record, JOB, AT + MINUTE)
    assert _after(stopped, last) == (False, "4", None)
    assert [past.end for past in read_history(last["metadata"]["annotations"])] == [end]


def test_pause_for_change_aborted_change_restores_previous_record() -> None:
    """Without a record where there was nothing before, and with that of before where there was."""
    record = _record(STOPPED, then=(Edit(GPU, "4", "2"),))
    patch = resuming_patch(_job(), record, JOB, at=AT, end=ChangeOutcome.REFUSED)
    assert _after(_job(), patch) == (False, "4", None)
    assert [past.end for past in read_history(patch["metadata"]["annotations"])] == [ChangeOutcome.REFUSED]
    both = msgspec.structs.replace(record, edits=(Edit(GPU, "8", "4"), STOPPED))
    *_, left = _after(_job(), resuming_patch(_job(), both, JOB, at=AT, end=ChangeOutcome.REFUSED))
    assert left == _record(Edit(GPU, "8", "4"))


def test_pause_for_change_step_records_stay_small() -> None:
    """Also with long names, and where they tell of the way back."""
    path = (*GPU[:4], f"name={'c' * 63}", *GPU[5:])
    edits = [Edit((*path[:6], part, path[-1]), "8", "1") for part in ("limits", "requests")]
    for record in (
        _record(STOPPED, then=tuple(edits)),
        _record(*edits, STOPPED, end=ChangeOutcome.ROLLBACK),
    ):
        assert len(encode_record(msgspec.structs.replace(record, reason="x" * 600)).encode()) < 2048


@pytest.mark.parametrize(
    "then",
    [
        Edit(("spec", "parallelism"), 1, 9),
        Edit((*GPU[:5], "image"), "a", "b"),
        Edit((*GPU[:-1], "cpu"), "1", "2"),
    ],
)
def test_pause_for_change_forged_pending_step_is_refused(then: Edit) -> None:
    """Whoever may annotate a Job can write a record: nothing of it that we never do is done."""
    with pytest.raises(ValueError, match="was not written by gpu-rightsizer"):
        parse_record(encode_record(_record(STOPPED, then=(then,))), JOB)


def test_pause_for_change_deployment_changes_in_one_write() -> None:
    """A Deployment changes by one write."""
    (row,) = (one for one in KINDS if one.kind == "Deployment")
    edits = (Edit(("spec", "replicas"), 2, 0),)
    with pytest.raises(ValueError, match="changed by one write"):
        parse_record(encode_record(_record(*edits, then=edits)), row)
    assert not needs_pause(row, [Edit(GPU, "4", "2")])
    assert needs_pause(JOB, [Edit(GPU, "4", "2")])
    assert not needs_pause(JOB, [STOPPED])


@pytest.mark.parametrize(
    ("spec", "status", "wanted"),
    [({}, {}, 1), ({"parallelism": 3}, {}, 3), ({"parallelism": 3, "completions": 4}, {"succeeded": 3}, 1)],
)
def test_job_expected_pods_limited_to_remaining_completions(
    spec: Object, status: Object, wanted: int
) -> None:
    """Not more than are still to succeed."""
    assert expected_job_pods({"spec": spec, "status": status}) == wanted


def test_job_outcome_is_read_from_its_condition() -> None:
    """By its own condition."""
    assert end_condition(_job(conditions=[{"type": "Failed", "status": "True"}])) == "Failed"
    assert end_condition(_job(conditions=[{"type": "Failed", "status": "False"}])) == ""
