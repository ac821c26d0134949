"""Notes that others can write, our annotations and our ConfigMap: whatever stands there spoils that object alone."""

import dataclasses
import json
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from rightsizer.changes.found_changes import changes_of
from rightsizer.changes.record_codec import came_back_after, recorded_changes
from rightsizer.kinds import CONTROL_OBJECT_KINDS, KINDS
from rightsizer.kinds.notices import unreadable_notes
from rightsizer.kinds.patches import original_replicas, read_record
from rightsizer.kube.api_objects import ObjectMeta
from rightsizer.kube.owner_kinds import ObjectSummary
from rightsizer.model import Finding, Fleet
from rightsizer.planning.breaker import parse_state, state_texts, stop_reason
from rightsizer.text import decoded, read_instant
from tests.rightsizer.build import AT, all_idle, judged, policy, rule, workload
from tests.rightsizer.world import DEFAULT_POLICY, World

OURS = "gpu-rightsizer.io/"
KEYS: tuple[str, ...] = (
    *(
        "undo",
        "history",
        "notice",
        "resumed-at",
        "came-back-after",
        "snooze-until",
        "release",
        "order",
        "deletion-cost-by",
    ),
    *("exclude-until", "min-replicas", "mode", "exclude"),
)
OFTEN = 30_000


def _record(**changes: Any) -> str:
    values = {
        "run": "r1",
        "at": "2026-11-20T10:00:00Z",
        "action": "scale-down",
        "rule": "x",
        "finding": "idle",
    }
    edits = [{"path": ["spec", "replicas"], "before": 4, "after": 1}]
    return json.dumps({**values, "reason": "x", "edits": edits, **changes})


def _edit(*path: str) -> list[dict[str, Any]]:
    return [{"path": path, "before": 4, "after": 1}]


def _entry(**changes: Any) -> str:
    return json.dumps([{"at": "2026-11-20T10:00:00Z", "run": "r", "action": "scale-down", **changes}])


DEEP = '{"x": ' + "[" * OFTEN + "]" * OFTEN + "}"
NASTY = {
    "no-zone": ("undo", _record(at="2026-11-20T10:00:00")),
    "healthy-within-huge": ("undo", _record(healthyWithinSeconds=10**15)),
    "healthy-within-negative": ("undo", _record(healthyWithinSeconds=-(10**15))),
    "no-path": ("undo", _record(edits=_edit())),
    "no-key": ("undo", _record(edits=_edit("spec", ""))),
    "nested": ("undo", _record()[:-1] + ', "x": ' + DEEP + "}"),
    "nested-value": ("undo", _record(edits=[{"path": ["spec", "replicas"], "after": 1}])[:-2]),
    "idle-huge": ("undo", _record(idleSeconds=10**30)),
    "year-1": ("undo", _record(at="0001-01-01T00:00:00+14:00")),
    "year-9999": ("undo", _record(at="9999-12-31T23:59:59-14:00")),
    "of-nothing": ("undo", _record(workload={"api_version": "", "kind": "", "namespace": "", "name": ""})),
    "of-odd": (
        "undo",
        _record(workload={"api_version": "v1", "kind": "X", "namespace": "\u202e", "name": "a\n", "uid": ""}),
    ),
    "surrogate": ("undo", _record(run="\ud800")),
    "gpus-huge": ("undo", _record(gpus=10**9)),
    "gpus-400-digits": ("history", _entry(at="2026-11-21T23:00:00Z", gpus=10**400)),
    "history-deep": ("history", DEEP),
    "history-year": ("history", _entry(at="9999-12-31T23:59:59-14:00")),
    "resumed-year-1": ("resumed-at", "0001-01-01T00:00:00+14:00"),
    "resumed-no-zone": ("resumed-at", "2026-11-20T10:00:00"),
    "pause-huge": ("came-back-after", "9" * 5000 + "d"),
    "snooze-year": ("snooze-until", "9999-12-31T23:59:59-14:00"),
    "release-misspelt": ("release", "True"),
    "notice-half": ("notice", '{"at":"2026-11-20T10:00:00","run":"r"}'),
    "notice-deep": ("notice", DEEP),
}


def _whatever(key: str, text: str) -> list[str]:
    """Read it in every way in which it is read, and judge what carries it; what is told of it."""
    annotations = {OURS + key: text}
    for row in (*KINDS, *CONTROL_OBJECT_KINDS):
        try:
            read_record(annotations, row)
        except ValueError as error:
            assert OURS in str(error)  # noqa: PT017 - what is said, not that it is raised
    original_replicas(annotations)
    item = workload()
    metadata = ObjectMeta(name=item.ref.name, namespace=item.ref.namespace, annotations=annotations)
    changes, problems = changes_of([ObjectSummary(item.ref, metadata)], (), ())
    spoiled = dataclasses.replace(
        item,
        annotations=annotations,
        past=recorded_changes(annotations),
        came_back_after=came_back_after(annotations, [item.pods[0].created]),
    )
    fleet = Fleet(workloads=(spoiled,), nodes={}, classes={}, changes=tuple(changes))
    rules = policy(rule("all", notifyBefore="1h"))
    assert isinstance(judged(spoiled, all_idle(spoiled), rules).finding, Finding)
    return [*problems, *unreadable_notes(fleet.workloads)]


@pytest.mark.parametrize(("key", "text"), NASTY.values(), ids=NASTY.keys())
def test_annotations_unreadable_are_reported_by_object_name(key: str, text: str) -> None:
    """By name, among the plan's problems."""
    (problem,) = _whatever(key, text)
    assert str(workload().ref) in problem
    assert "cannot be read" in problem


_times = st.sampled_from(
    ["2026-11-20T10:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "x"]
)
_numbers = st.integers() | st.sampled_from([10**15, -(10**15), 10**400]) | st.floats(allow_nan=False)
_json = st.recursive(
    st.none() | st.booleans() | _numbers | st.text(max_size=20) | _times,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_fields = st.dictionaries(
    st.sampled_from(
        [
            "at",
            "run",
            "action",
            "edits",
            "gpus",
            "idleSeconds",
            "workload",
            "by",
            "healthyWithinSeconds",
            "pendingEdits",
            "pendingEnd",
            "end",
            "version",
        ]
    ),
    _json,
    max_size=3,
)
_TEXTS = st.one_of(
    st.text(max_size=200),
    _times,
    _json.map(json.dumps),
    _fields.map(lambda fields: _record(**fields)),
    _fields.map(lambda fields: _entry(**fields)),
    st.integers(1, OFTEN).map(lambda depth: "[" * depth),
    st.sampled_from([text for _, text in NASTY.values()]),
)


@hypothesis.given(st.sampled_from(KEYS), _TEXTS)
def test_annotations_with_any_text_never_raise(key: str, text: str) -> None:
    """Under any of our annotations; what is told of it is about the object that carries it."""
    assert all(str(workload().ref) in problem for problem in _whatever(key, text))


@hypothesis.given(st.sampled_from(["breaker.json", "pauses.json", "scope.json"]), _TEXTS)
def test_state_document_with_any_text_never_raises(key: str, text: str) -> None:
    """Then nothing is done, or less; what is read of it can be written again."""
    state = parse_state({key: text})
    stop_reason(state, "team", AT)
    assert parse_state({name: told for name, told in state_texts(state).items() if told}) == state


@pytest.mark.parametrize("until", ["2026-12-01T10:00:00", "9999-12-31T23:59:59-14:00"])
def test_pause_with_unreadable_end_stays_active(until: str) -> None:
    """Without a zone, or beyond all time, it is not known when it is over."""
    pause = {"at": "2026-11-20T10:00:00Z", "reason": "x", "until": until}
    block = stop_reason(parse_state({"pauses.json": json.dumps([pause])}), "team", AT)
    assert block is not None
    assert "pauses.json cannot be read" in block.message


def test_decode_brackets_in_strings_do_not_count_as_nesting() -> None:
    """Nor are many lists beside each other."""
    text = json.dumps({"reason": '["' * 40, "lists": [[]] * 40})
    assert decoded(text, dict[str, Any])["lists"] == [[]] * 40
    with pytest.raises(ValueError, match="nested more than 16 deep"):
        decoded("[" * 17 + "]" * 17, list[Any])
    with pytest.raises(ValueError, match="longer than 16 KiB"):
        decoded(json.dumps("x" * 20_000), str)


@pytest.mark.parametrize("text", ["1999-12-30", "2201-01-01T00:00:00Z", "2026-12-01T00:00:00", "9999-12-31"])
def test_read_instant_without_zone_is_none(text: str) -> None:
    """What does not is none."""
    assert read_instant(text) is None


@pytest.mark.prometheus
def test_annotations_unreadable_do_not_block_other_workloads(world: World) -> None:
    """Plan, apply, undo and history go on, and tell which objects cannot be read; those are left as they are."""
    world.add("Deployment", world.team, "innocent", {"replicas": 1})
    spoilt = {
        name: value for name, value in NASTY.items() if not name.startswith(("notice", "release", "snooze"))
    }
    for name, (key, text) in spoilt.items():
        world.add("Deployment", world.team, name, {"replicas": 1})
        metadata = {"annotations": {OURS + key: text}}
        world.api.patch("Deployment", world.team, name, {"metadata": metadata})
    plan = json.loads(world.run("plan", "-o", "json", policy=DEFAULT_POLICY).out)
    for name in spoilt:
        assert any(f"{name}:" in problem for problem in plan["problems"]), (name, plan["problems"])
    run = world.run("apply", "--yes", "-o", "json", "--verify-for", "0", policy=DEFAULT_POLICY)
    assert {name for name, item in run.items.items() if item["result"] == "done"} == {"innocent"}, run.out
    assert "internal error" not in run.err
    for arguments in (("undo", "-o", "json"), ("history", "-o", "json"), ("undo", "--all", "--yes")):
        told = world.run(*arguments)
        assert "internal error" not in told.err, told.err
    replicas = {
        one["metadata"]["name"]: one["spec"]["replicas"] for one in world.api.list("Deployment", world.team)
    }
    assert set(replicas.values()) == {1}
