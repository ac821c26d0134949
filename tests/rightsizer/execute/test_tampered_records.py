"""Undo records that owners changed at random, of each kind and of known changes: nothing that reads them ends a run."""

import datetime
import pathlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from rightsizer.changes.record_codec import UNDO_ANNOTATION, encode_record
from rightsizer.config import ClusterSettings
from rightsizer.execute.control_state import ActionGate, ControlStateStore
from rightsizer.execute.reconcile import ReconcilePolicy, find_reconciliations, make_reconciliations
from rightsizer.execute.run_context import Deadline, RunContext
from rightsizer.execute.undo import find_undoable, undo_changes
from rightsizer.kinds import kind_of
from rightsizer.kinds.edits import ANY, value_at
from rightsizer.kinds.kind import SUSPEND, Field, Kind, Value
from rightsizer.kube.cluster import Cluster
from rightsizer.model import Action, ChangeOutcome, ChangeRecord, Edit, ObjectRef
from rightsizer.policy.policy_file import parse
from simulator.kube import ApiServer
from tests.rightsizer.given import manifest
from tests.rightsizer.kind_cases import CASES
from tests.rightsizer.memory import remember
from tests.rightsizer.world import DEFAULT_POLICY, stamp

TEAM, OWN = "team", "gpu-rightsizer"
OBJECTS = (
    *((kind, "w") for kind in (*CASES, "Deployment", "StatefulSet")),
    *(("Job", f"j{n}") for n in range(12)),
)
"""More Jobs than others, as they are changed in two steps."""
NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
IN_EFFECT = 0.7
"""Share of edits that the object shows, and of paused changes that stopped it."""
AGES_MIN = (0, 10, 200, 100_000)
NAMES = ("main", "main", "x", "gpu")
PARTS = ("nvidia.com/gpu", "nvidia.com/gpu", "decode", "0")
VALUES: dict[Value, tuple[Any, ...]] = {
    Value.COUNT: (None, 0, 1, 2, 5_000),
    Value.SWITCH: (None, True, False),
    Value.TEXT: (None, "true", "x"),
    Value.QUANTITY: (None, "1", "2", "64", 1),
    Value.NAMES: (None, [], ["x"]),
    Value.TEMPLATE: (None, "x"),
}


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """An API server with an object of each kind, in a namespace."""
    with ApiServer() as running:
        for name in (TEAM, OWN):
            running.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for kind, name in OBJECTS:
            running.create(manifest(kind, TEAM, name, {"gpus": 2}))
        running.settle()
        yield running


def _edits(row: Kind, obj: Mapping[str, Any], dice: random.Random) -> tuple[Edit, ...]:
    """Edits of fields that this kind may have changed; most are in effect."""

    def part(one: str) -> str:
        names = PARTS if one == ANY else NAMES
        return one.replace(ANY, dice.choice(names))

    def edit(field: Field) -> Edit:
        path = tuple(map(part, field.path))
        before, after = (dice.choice(VALUES[field.value]) for _ in range(2))
        return Edit(path, before, value_at(obj, path) if dice.random() < IN_EFFECT else after)

    fields = tuple(row.fields())
    drawn = [edit(dice.choice(fields)) for _ in range(dice.choice([1, 1, 2, 3])) if fields]
    return tuple({one.path: one for one in drawn}.values())


def _record(row: Kind, obj: Mapping[str, Any], dice: random.Random) -> ChangeRecord:
    edits, is_paused = _edits(row, obj, dice), row.pause is not None
    if is_paused and dice.random() < IN_EFFECT:
        rest = [one for one in edits if one.path != SUSPEND.path]
        edits = (Edit(SUSPEND.path, before=False, after=True), *rest[1:])
    return ChangeRecord(
        NOW - datetime.timedelta(minutes=dice.choice(AGES_MIN)),
        "run-1",
        dice.choice([*Action]),
        dice.choice([0, 1, 1_000]),
        edits=edits,
        pending_edits=_edits(row, obj, dice) if is_paused else (),
        pending_end=dice.choice([None, None, *ChangeOutcome]) if is_paused else None,
        healthy_within_seconds=dice.choice([0, 900, 10**6]),
        confirmed=dice.random() < 0.2,
    )


def _tamper(api: ApiServer, dice: random.Random) -> list[ObjectRef]:
    """Each object gets a record of a change that the memory has; some are suspended."""
    refs = []
    for kind, name in OBJECTS:
        found = api.get(kind, TEAM, name)
        assert found is not None
        ref = ObjectRef(found["apiVersion"], found["kind"], TEAM, name, found["metadata"]["uid"])
        row = kind_of(ref)
        if row is None:  # of a kind with only a scale
            continue
        text = encode_record(_record(row, found, dice))
        patch: dict[str, Any] = {"metadata": {"annotations": {UNDO_ANNOTATION: text}}}
        if row.pause is not None:
            patch["spec"] = {"suspend": dice.choice([True, False])}
        api.patch(kind, TEAM, name, patch)
        remember(api, ref, {"run": "run-1", "at": stamp(NOW), "action": "resize"})
        refs.append(ref)
    api.settle()
    return refs


@pytest.mark.parametrize("seed", range(12))
def test_tampered_records_end_neither_a_run_nor_an_undo(
    api: ApiServer, tmp_path: pathlib.Path, seed: int
) -> None:
    """Each outcome is of the object that carries the record, and says what is wrong with it."""
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(api.kubeconfig()))
    cluster = Cluster(ClusterSettings(kubeconfig=path))
    policy = parse(DEFAULT_POLICY.encode(), source="policy").policy
    gate = ActionGate(ControlStateStore(cluster, OWN), policy.breaker, "run-2", lambda: NOW)
    context = RunContext(
        cluster,
        "run-2",
        OWN,
        "me",
        lambda: NOW,
        evicts=True,
        bind_within=datetime.timedelta(minutes=15),
    )
    refs = _tamper(api, random.Random(seed))
    found = find_reconciliations(context)
    outcomes = list(make_reconciliations(found, context, ReconcilePolicy(policy, gate)))
    assert found
    assert {one.ref for one in outcomes} <= {*refs}
    assert all(one.detail for one in outcomes)
    assert not gate.trip()
    items = find_undoable(cluster, OWN, at=NOW)
    deadline = Deadline(0.0, lambda: 0.0, lambda _: None, lambda: False)
    undone = list(undo_changes(items, cluster, force=seed % 2 == 0, clock=lambda: NOW, deadline=deadline))
    assert items
    assert {one.ref for one in undone} <= {*refs}
