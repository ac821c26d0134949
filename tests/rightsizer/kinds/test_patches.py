"""Changes of objects: what is patched, what is recorded with it, and that undo gives back what was."""

import contextlib
import copy
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import hypothesis
import hypothesis.strategies as st
import msgspec
import pytest

from rightsizer.changes.record_codec import UNDO_ANNOTATION, encode_record
from rightsizer.kinds import KINDS
from rightsizer.kinds.change_edits import proposal_edits, stop_edits
from rightsizer.kinds.edits import Path, edit_of, is_as, patch_of, places, shown, value_at
from rightsizer.kinds.kind import PLAIN, Kind, Value
from rightsizer.kinds.patches import (
    MOST_BYTES,
    change_patch,
    merged_with_earlier,
    parse_record,
    read_record,
    record_of,
    require_recordable,
    undo_patch,
)
from rightsizer.model import Action, Decision, Edit, ObjectRef, Proposal
from tests.rightsizer.build import AT, judged, policy, workload

Object = dict[str, Any]
EDITED = [row for row in KINDS if any(row.fields())]
GPU = "nvidia.com/gpu"


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386, as it is written there."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def _decision(action: Action, words: str = "it did nothing", proposal: Proposal | None = None) -> Decision:
    decision = judged(workload(), {}, policy())
    finding = dataclasses.replace(decision.finding, words=(words,), proposal=proposal)
    return dataclasses.replace(decision, action=action, finding=finding)


def _at(path: Path, value: Any) -> Any:
    """The least object that holds a value at a path; lists where the path names an item of one."""
    for step in reversed(path):
        key, is_item, name = step.partition("=")
        value = [{**(value or {}), key: name}] if is_item else {step: value}
    return value


def _an_object(row: Kind, fields: Mapping[Path, Any]) -> Object:
    obj: Object = {
        "apiVersion": row.of.api_version,
        "kind": row.kind,
        "metadata": {"name": "w", "namespace": "team", "uid": "uid-w", "resourceVersion": "7"},
    }
    for path, value in fields.items():
        if value is not None:
            obj = _together(obj, _at(path, value))
    return obj


def _together(one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: _together(one.get(key), other.get(key)) for key in {**one, **other}}
    if isinstance(one, list) and isinstance(other, list):
        return [_together(one[0], other[0])]
    return one if other is None else other


_VALUES = {
    Value.COUNT: st.integers(0, 10_000),
    Value.SWITCH: st.booleans(),
    Value.TEXT: st.from_regex(PLAIN, fullmatch=True).map(lambda text: text[:40]),
    Value.TEMPLATE: st.text("abc-1", min_size=1, max_size=8).filter(lambda text: text.strip("-") == text),
    Value.NAMES: st.lists(st.text("ab-", min_size=1, max_size=8), max_size=3),
    Value.QUANTITY: st.integers(0, 64) | st.integers(0, 64).map(str),
}


@st.composite
def _changes(draw: st.DrawFn) -> tuple[Kind, Object, list[Edit]]:
    """An object of a kind that we change, and edits of any of its fields."""
    row = draw(st.sampled_from(EDITED))
    fields = draw(st.lists(st.sampled_from(list(row.fields())), min_size=1, unique=True))
    paths = {tuple("name=main" if step == "*" else step for step in field.path): field for field in fields}
    paths = {(*path[:-1], GPU) if path[-1] == "name=main" else path: field for path, field in paths.items()}
    was = {path: draw(st.none() | _VALUES[field.value]) for path, field in paths.items()}
    obj = _an_object(row, {**{path[:-1]: {"kept": "1"} for path in paths if path[-1] == GPU}, **was})
    return row, obj, [edit_of(obj, path, draw(_VALUES[field.value])) for path, field in paths.items()]


@hypothesis.given(_changes(), st.text(max_size=2_000))
def test_patch_undo_restores_original_object(case: tuple[Kind, Object, list[Edit]], words: str) -> None:
    """Applying the patch of a change and then the undo patch gives the object back, field for field."""
    row, obj, edits = case
    record = record_of(_decision(Action.SCALE_DOWN, words), edits, run="r1", at=AT)
    before = copy.deepcopy(obj)
    changed = merged(obj, change_patch(obj, edits, record, came_back=None))
    assert all(value_at(changed, edit.path) == edit.after for edit in edits)
    carried = read_record(changed["metadata"]["annotations"], row)
    assert carried == record
    assert carried is not None
    restored = merged(changed, undo_patch(changed, carried, at=AT))
    assert _bare(restored) == _bare(before)
    assert obj == before


def _bare(obj: Any) -> Any:
    """Without our own annotations and what becomes empty with them, or with a field that was not there."""
    if isinstance(obj, dict):
        kept = {key: _bare(value) for key, value in obj.items() if not key.startswith("gpu-rightsizer.io/")}
        return {key: value for key, value in kept.items() if value != {}}
    return [_bare(item) for item in obj] if isinstance(obj, list) else obj


@hypothesis.given(_changes(), st.data())
def test_patch_undo_after_two_changes_restores_first_state(
    case: tuple[Kind, Object, list[Edit]], data: st.DataObject
) -> None:
    """The second record takes both back; where the second is the way back, nothing is left to undo."""
    row, obj, edits = case
    first = record_of(_decision(Action.SCALE_DOWN), edits, run="r1", at=AT)
    changed = merged(obj, change_patch(obj, edits, first, came_back=None))
    again = [
        edit_of(changed, edit.path, data.draw(st.sampled_from([edit.before, edit.after]))) for edit in edits
    ]
    again = [edit for edit in again if edit.after is not None]
    second = merged_with_earlier(
        record_of(_decision(Action.SCALE_UP), again, run="r2", at=AT), first, changed
    )
    twice = merged(changed, change_patch(changed, again, second, came_back=None))
    carried = read_record(twice["metadata"]["annotations"], row)
    assert (carried is None) == (not second.edits)
    back = merged(twice, undo_patch(twice, carried, at=AT)) if carried else twice
    assert _bare(back) == _bare(obj)


LIES = {
    "another-order": '{"edits":[{"before":9,"path":["spec","replicas"],"after":1}]}',
    "spaces": '{"edits": [{"path": ["spec", "replicas"], "before": 9, "after": 1}]}',
    "an-earlier-text": '{"reason":"[spec,replicas],before:1,",'
    '"edits":[{"path":["spec","replicas"],"before":9,"after":1}]}',
    "an-escape": '{"edits":[{"path":["spec","replic\\u0061s"],"before":9,"after":1}]}',
}


@pytest.mark.parametrize("name", LIES)
def test_record_that_guardrails_read_otherwise_is_unreadable(name: str) -> None:
    """The API server would refuse what it restores, and that opens the breaker for all workloads."""
    row = next(row for row in KINDS if row.kind == "Deployment")
    head = '{"at":"2026-11-01T00:00:00Z","run":"r","action":"scale-down",'
    text = head + LIES[name][1:]
    assert parse_record(text, row).edits == (Edit(("spec", "replicas"), 9, 1),)
    with pytest.raises(ValueError, match="not in the form that gpu-rightsizer writes"):
        read_record({UNDO_ANNOTATION: text}, row)


@pytest.mark.parametrize(
    ("value", "is_allowed"),
    [
        ("2", True),
        ("0", True),
        ("8192", True),
        ("3000", True),
        ("007", False),
        ("8k", True),
        ("8x", False),
        (8, True),
    ],
)
def test_record_amount_is_as_the_server_stores_it(value: object, is_allowed: bool) -> None:
    """Otherwise neither undo nor the admission guardrails find the value that the record names."""
    assert Value.QUANTITY.allows(value) is is_allowed


def test_record_reason_has_no_brackets() -> None:
    """Words come from measurements, too: in brackets they could be read as a path of the record."""
    edits = [Edit(("spec", "replicas"), 9, 1)]
    record = record_of(_decision(Action.SCALE_DOWN, "[spec,replicas],before:1,"), edits, run="r", at=AT)
    assert "[" not in record.reason
    row = next(row for row in KINDS if row.kind == "Deployment")
    assert read_record({UNDO_ANNOTATION: encode_record(record)}, row) is not None


def test_patch_record_no_longer_in_effect_is_ignored() -> None:
    """An earlier record that is not in effect any more says nothing about what a later change found."""
    obj: Object = {"spec": {"replicas": 3}}
    earlier = record_of(_decision(Action.SCALE_DOWN), [Edit(("spec", "replicas"), 8, 2)], run="r1", at=AT)
    later = record_of(_decision(Action.SCALE_TO_ZERO), [Edit(("spec", "replicas"), 3, 0)], run="r2", at=AT)
    assert merged_with_earlier(later, earlier, obj).edits == (Edit(("spec", "replicas"), 3, 0),)


@pytest.mark.parametrize("row", EDITED, ids=lambda row: row.kind)
def test_patch_stop_sets_kind_field_and_readable_record(row: Kind) -> None:
    """And can be read back as a record of ours."""
    if row.stop is None:
        pytest.skip("nothing stops it")
    before: dict[str, dict[tuple[str, ...], Any]] = {
        "RayJob": {("spec", "shutdownAfterJobFinishes"): True},
        "DynamoGraphDeployment": {("spec", "services", "decode", "replicas"): 2},
    }
    obj = _an_object(row, before.get(row.kind, {}))
    edits = stop_edits(row, obj, AT)
    record = record_of(_decision(row.stop.action), edits, run="r1", at=AT)
    assert [value_at(merged(obj, patch_of(obj, edits)), edit.path) for edit in edits] == [edits[0].after]
    assert parse_record(encode_record(record), row) == record
    assert len(encode_record(record).encode()) < 2048


def _forged(edits: Sequence[Edit]) -> str:
    return encode_record(record_of(_decision(Action.SCALE_DOWN), edits, run="r1", at=AT))


@pytest.mark.parametrize(
    "edit",
    [
        Edit(("spec", "template", "spec", "serviceAccountName"), "admin", None),
        Edit(("spec", "template", "spec", "containers", "name=main", "image"), "evil", "good"),
        Edit(
            ("spec", "template", "spec", "containers", "name=main", "resources", "limits", "cpu"), "64", "1"
        ),
        Edit(("metadata", "labels", "owner"), "me", "you"),
        Edit(("spec", "replicas"), -1, 0),
        Edit(("spec", "replicas"), "9", 0),
        Edit(("spec", "replicas"), 3.5, 0),
        Edit(("spec", "replicas"), True, 0),  # noqa: FBT003 - JSON
        Edit(("spec",), {"replicas": 3}, None),
    ],
    ids=lambda edit: shown(edit.path) + f"={edit.before!r}",
)
def test_patch_undo_forged_record_is_refused(edit: Edit) -> None:
    """Who may only annotate a workload cannot have undo write what they may not."""
    deployment = next(row for row in KINDS if row.kind == "Deployment")
    with pytest.raises(ValueError, match="was not written by gpu-rightsizer"):
        parse_record(_forged([edit]), deployment)


TEMPLATE = ("spec", "template", "spec", "containers")


def test_record_of_a_newer_version_is_refused() -> None:
    """Its fields may mean something else."""
    row = next(row for row in KINDS if row.kind == "Deployment")
    record = record_of(_decision(Action.SCALE_DOWN), [Edit(("spec", "replicas"), 9, 1)], run="r1", at=AT)
    text = encode_record(msgspec.structs.replace(record, version=2))
    with pytest.raises(ValueError, match="is of version 2, written by a newer gpu-rightsizer"):
        read_record({UNDO_ANNOTATION: text}, row)


def _deployment(*containers: Object) -> Object:
    return {"spec": {"template": {"spec": {"containers": list(containers)}}}}


def _container(name: str, limits: Object, requests: Object | None = None) -> Object:
    resources = {"limits": limits, **({} if requests is None else {"requests": requests})}
    return {"name": name, "image": "i", "resources": resources}


def _proposed(obj: Object, proposal: Proposal, resources: Sequence[str] = (GPU,)) -> Object:
    deployment = next(row for row in KINDS if row.kind == "Deployment")
    found: Object = merged(obj, patch_of(obj, proposal_edits(deployment, obj, proposal, resources=resources)))
    return found


def test_patch_fewer_gpus_changes_requests_and_limits_only() -> None:
    """Of the one container that has them; everything else in the list stays as it was."""
    obj = _deployment(_container("side", {"cpu": "1"}), _container("main", {GPU: 8, "cpu": "4"}, {GPU: 8}))
    changed = _proposed(obj, Proposal(Action.RESIZE, 4.0, "", gpus_per_pod=4))
    side, main = value_at(changed, TEMPLATE)
    assert side == obj["spec"]["template"]["spec"]["containers"][0]
    assert main["resources"] == {"limits": {GPU: "4", "cpu": "4"}, "requests": {GPU: "4"}}
    assert main["image"] == "i"


def test_patch_gpu_to_mig_slice_replaces_resource_name() -> None:
    """The old name goes from requests and limits, the new one comes."""
    obj = _deployment(_container("main", {GPU: "1"}, {GPU: "1", "memory": "1Gi"}))
    changed = _proposed(obj, Proposal(Action.RESLICE, 0.9, "", asks=(("nvidia.com/mig-1g.10gb", 1),)))
    resources = value_at(changed, (*TEMPLATE, "name=main", "resources"))
    assert resources == {
        "limits": {"nvidia.com/mig-1g.10gb": "1"},
        "requests": {"nvidia.com/mig-1g.10gb": "1", "memory": "1Gi"},
    }


@pytest.mark.parametrize(
    ("obj", "resources", "words"),
    [
        (_deployment(_container("a", {GPU: 1}), _container("b", {GPU: 1})), (GPU,), "2 of its containers"),
        (_deployment(_container("a", {})), (GPU,), "none of its containers"),
        (_deployment(_container("a", {GPU: 1})), (GPU, "nvidia.com/gpumem"), "not for one GPU resource"),
        (_deployment(_container("a", {GPU: 1})), (), "no GPU resource"),
    ],
)
def test_patch_ambiguous_container_is_refused(obj: Object, resources: Sequence[str], words: str) -> None:
    """It is refused in words."""
    with pytest.raises(ValueError, match=words):
        _proposed(obj, Proposal(Action.RESIZE, 1.0, "", gpus_per_pod=1), resources)


_SET = {"podManagementPolicy": "Parallel"}
ROLLS = {
    "deployment": ("Deployment", {}, None),
    "paused": ("Deployment", {"paused": True}, "its pods stay as they are"),
    "set": ("StatefulSet", {}, "a pod that cannot start stays as it is"),
    "parallel": ("StatefulSet", _SET, None),
    "on-delete": (
        "StatefulSet",
        {**_SET, "updateStrategy": {"type": "OnDelete"}},
        "until somebody deletes them",
    ),
    "partition": (
        "StatefulSet",
        {**_SET, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}},
        "the pods below it stay",
    ),
    "rollout": ("Rollout", {"paused": True}, "its pods stay as they are"),
}


@pytest.mark.parametrize(("kind", "more", "words"), ROLLS.values(), ids=ROLLS.keys())
def test_patch_template_only_if_it_reaches_all_pods_and_is_reversible(
    kind: str, more: Object, words: str | None
) -> None:
    """Otherwise it is said why not, for fewer GPUs as for parts of them."""
    obj = _deployment(_container("main", {GPU: "2"}))
    obj["spec"].update(more)
    row = next(row for row in KINDS if row.kind == kind)
    for proposal in (
        Proposal(Action.RESIZE, 1.0, "", gpus_per_pod=1),
        Proposal(Action.RESLICE, 0.9, "", asks=(("nvidia.com/mig-1g.10gb", 1),)),
    ):
        with contextlib.nullcontext() if words is None else pytest.raises(ValueError, match=words):
            assert proposal_edits(row, obj, proposal, resources=(GPU,))


@pytest.mark.parametrize("size", [None, 1, 2])
def test_patch_pod_group_gets_whole_gpus_only(size: int | None) -> None:
    """Between two parts of GPUs there is no way for a group's traffic; fewer whole GPUs are."""
    container = _container("main", {GPU: "2"})
    template = {"size": size, "workerTemplate": {"spec": {"containers": [container]}}}
    obj = {"spec": {"leaderWorkerTemplate": template}}
    row = next(row for row in KINDS if row.kind == "LeaderWorkerSet")
    part = Proposal(Action.RESLICE, 0.9, "", asks=(("nvidia.com/mig-1g.10gb", 1),))
    with pytest.raises(ValueError, match="work together") if size == 2 else contextlib.nullcontext():
        assert proposal_edits(row, obj, part, resources=(GPU,))
    assert proposal_edits(row, obj, Proposal(Action.RESIZE, 1.0, "", gpus_per_pod=1), resources=(GPU,))


def test_patch_template_with_gpu_init_container_is_refused() -> None:
    """A pod gets the most that any of its containers asks for: nothing would be freed, or nothing fit any more."""
    obj = _deployment(_container("main", {GPU: "2"}))
    obj["spec"]["template"]["spec"]["initContainers"] = [_container("warm", {GPU: "1"})]
    with pytest.raises(ValueError, match=r"its init container warm asks for nvidia\.com/gpu, too"):
        _proposed(obj, Proposal(Action.RESIZE, 1.0, "", gpus_per_pod=1))


def test_patch_unchanged_value_is_not_recorded_as_edit() -> None:
    """HAMi's number of GPUs stays one: neither record nor outcome tells of it."""
    obj = _deployment(_container("main", {GPU: "1"}))
    deployment = next(row for row in KINDS if row.kind == "Deployment")
    part = Proposal(Action.RESLICE, 0.9, "", asks=((GPU, 1), ("nvidia.com/gpumem", 4096)))
    edits = proposal_edits(deployment, obj, part, resources=(GPU,))
    assert [(edit.path[-1], edit.before, edit.after) for edit in edits] == [
        ("nvidia.com/gpumem", None, "4096")
    ]


def test_patch_missing_list_item_is_not_created() -> None:
    """An item of a list that is not there any more cannot be edited."""
    edit = Edit((*TEMPLATE, "name=gone", "resources", "limits", GPU), "8", "4")
    with pytest.raises(ValueError, match="there is no spec"):
        patch_of(_deployment(_container("main", {})), [edit])


def test_patch_pattern_skips_unnamed_list_items() -> None:
    """A pattern means named items only."""
    obj = {"items": [{"name": "a"}, {"other": 1}, "text"], "map": {"x": 1, "y": None}}
    assert places(obj, ("items", "name=*")) == [("items", "name=a")]
    assert places(obj, ("map", "*")) == [("map", "x")]


def _graph_of(services: Sequence[str]) -> tuple[Kind, Object, list[Edit]]:
    """A DynamoGraphDeployment, and the edits that stop it."""
    row = next(one for one in KINDS if one.kind == "DynamoGraphDeployment")
    obj = _an_object(row, {("spec", "services", name, "replicas"): 1 for name in services})
    return row, obj, stop_edits(row, obj, AT)


@pytest.mark.parametrize(("services", "is_recordable"), [(120, True), (150, False)])
def test_patch_record_too_long_for_guardrails_is_refused(services: int, *, is_recordable: bool) -> None:
    """Nothing is sent that the guardrails refuse: the breaker would open for everybody."""
    row, obj, edits = _graph_of([f"{'s' * 50}{number}" for number in range(services)])
    record = record_of(_decision(Action.SCALE_TO_ZERO), edits, run="r1", at=AT)
    allowed = (
        contextlib.nullcontext() if is_recordable else pytest.raises(ValueError, match="15,872 characters")
    )
    with allowed:
        require_recordable(row, edits)
    with allowed:
        changed = merged(obj, change_patch(obj, edits, record, came_back=None))
        assert read_record(changed["metadata"]["annotations"], row) == record


def test_patch_record_of_two_changes_too_long_for_guardrails_is_refused() -> None:
    """Each change alone is short enough; the record that undoes both is not."""
    first, second = ([f"{side}{'s' * 50}{number}" for number in range(80)] for side in "ab")
    row, obj, edits = _graph_of([*first, *second])
    early, late = edits[:80], edits[80:]
    earlier = record_of(_decision(Action.SCALE_TO_ZERO), early, run="r1", at=AT)
    changed = merged(obj, change_patch(obj, early, earlier, came_back=None))
    record = merged_with_earlier(
        record_of(_decision(Action.SCALE_TO_ZERO), late, run="r2", at=AT), earlier, changed
    )
    require_recordable(row, late)
    with pytest.raises(ValueError, match="its undo record is longer than"):
        change_patch(changed, late, record, came_back=None)


@pytest.mark.parametrize("name", ["", "s" * 513, 'a"b'])
def test_patch_name_that_no_record_holds_is_refused(name: str) -> None:
    """The record would be unreadable, so that nothing could undo the change."""
    row, _, edits = _graph_of([name])
    with pytest.raises(ValueError, match="no undo record can hold this change"):
        require_recordable(row, edits)


_OTHER = {"name": "side"}


@pytest.mark.parametrize(
    "others",
    [[{"name": "main"}], [{"image": "x"}], [{"name": 7}], [None], [_OTHER, {**_OTHER, "image": "x"}]],
    ids=["same-name", "no-name", "number", "null", "others-of-one-name"],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_patch_list_without_unique_names_is_refused(others: list[Any], *, is_first: bool) -> None:
    """A path leads to the first item of a name, and the guardrails find the items of a list by name."""
    row = next(one for one in KINDS if one.kind == "Rollout")
    path = ("spec", "template", "spec", "containers", "name=main", "resources", "limits", GPU)
    obj = _an_object(row, {path: "4"})
    edits = [edit_of(obj, path, "2")]
    items = obj["spec"]["template"]["spec"]["containers"]
    obj["spec"]["template"]["spec"]["containers"] = [*items, *others] if is_first else [*others, *items]
    with pytest.raises(
        ValueError, match=r"not each item of spec.template.spec.containers has a name of its own"
    ):
        patch_of(obj, edits)


def test_patch_resize_of_unequal_requests_and_limits_is_refused() -> None:
    """Requests would rise to the new limits, which the guardrails refuse."""
    row = next(one for one in KINDS if one.kind == "Rollout")
    place = ("spec", "template", "spec", "containers", "name=main", "resources")
    obj = _an_object(row, {(*place, "limits", GPU): "4", (*place, "requests", GPU): "0"})
    with pytest.raises(ValueError, match="requests another amount than its limits allow"):
        proposal_edits(row, obj, Proposal(Action.RESIZE, 2.0, "", gpus_per_pod=2), resources=[GPU])


def test_patch_record_is_compact_plain_json() -> None:
    """As kubectl shows them."""
    record = record_of(
        _decision(Action.SCALE_DOWN, "x" * 5_000), [Edit(("spec", "replicas"), 4, 2)], run="r1", at=AT
    )
    document = json.loads(encode_record(record))
    assert document["edits"] == [{"path": ["spec", "replicas"], "before": 4, "after": 2}]
    assert len(encode_record(record).encode()) < 2048


REASONS = {"long": "ж" * 600, "quotes": '"\\' * 400, "controls": "\x01" * 300, "short": "it did nothing"}


@pytest.mark.parametrize("words", REASONS.values(), ids=REASONS.keys())
def test_patch_record_with_sixty_workers_stays_below_2_kib(words: str) -> None:
    """With sixty workers that go by name and a reason of any script; undo gives back what was, all the same."""
    (row,) = (one for one in KINDS if one.kind == "RayCluster")
    names = [f"training-worker-of-the-large-group-{number:05d}-abcdefgh" for number in range(60)]
    group: Object = {"groupName": "gpus", "replicas": 64, "minReplicas": 62}
    obj: Object = {"metadata": {"uid": "u", "resourceVersion": "1"}, "spec": {"workerGroupSpecs": [group]}}
    place = ("spec", "workerGroupSpecs", "groupName=gpus")
    wanted = {"replicas": 4, "minReplicas": 4}
    edits = [edit_of(obj, (*place, key), value) for key, value in wanted.items()]
    edits.append(edit_of(obj, (*place, "scaleStrategy", "workersToDelete"), names))
    decision = _decision(Action.SCALE_DOWN, words)
    record = record_of(decision, edits, run="r" * 63, at=AT, by="i" * 63)
    of = ObjectRef("kueue.x-k8s.io/v1beta2", "Workload", "n" * 63, "w" * 200, "u" * 36)
    assert len(encode_record(msgspec.structs.replace(record, workload=of)).encode()) <= MOST_BYTES
    assert record.reason
    changed = merged(obj, change_patch(obj, edits, record, came_back=None))
    assert value_at(changed, edits[-1].path) == names
    carried = read_record(changed["metadata"]["annotations"], row)
    assert carried == record
    assert carried is not None
    assert is_as(changed, carried.edits)
    restored = merged(changed, undo_patch(changed, carried, at=AT))
    assert _bare(restored) == _bare(obj)
    other = merged(changed, patch_of(changed, [edit_of(changed, edits[-1].path, names[:-1])]))
    assert not is_as(other, carried.edits)
