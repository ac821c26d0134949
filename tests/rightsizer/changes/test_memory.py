"""What is taken is remembered beside the objects: what is replaced, without our notes, is not stopped again soon."""

import dataclasses
import datetime
import itertools
import json
import re
import time
from typing import Any

import pytest

from rightsizer.changes.memory import (
    MONTH,
    MOST,
    MOST_BYTES,
    NAME,
    PARTS,
    key_of,
    parse_memory,
    part_of,
    with_change,
    with_remembered_changes,
    without_change,
)
from rightsizer.model import ChangeOutcome, ChangeRecord, Fleet, FoundChange, ObjectRef, Workload
from simulator.kube import Fault, LoggedRequest, Rule
from tests.rightsizer.build import pod, workload
from tests.rightsizer.commands import Run
from tests.rightsizer.execute.test_reconcile import AT_ONCE
from tests.rightsizer.inventory.test_control_objects import scaled
from tests.rightsizer.world import BUDGETS, DEFAULT_POLICY, World, created

OWN = "gpu-rightsizer"
NOW = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)
_OURS = "gpu-rightsizer.io/"
HELD = (
    """
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
defaults: {idle: {window: 6h, grace: 5m, history: 1d, idleFactor: 0}}
rules:
  - {name: all, match: {everything: true}, mode: enforce, cooldown: 60h}
"""
    + BUDGETS
)


def _apply(world: World, *flags: str, policy: str = AT_ONCE) -> Run:
    return world.run("apply", "--yes", "-o", "json", "--verify-for", "0", *flags, policy=policy)


def _maps(world: World) -> list[dict[str, Any]]:
    found = world.api.list("ConfigMap", OWN)
    return [one for one in found if one["metadata"]["name"].startswith(NAME)]


def _kept(world: World) -> list[dict[str, Any]]:
    """Every change that is remembered in our namespace."""
    texts = [text for one in _maps(world) for text in one.get("data", {}).values()]
    every = map(json.loads, texts)
    return [{"workload": one["owner"], **entry} for one in every for entry in one["changes"]]


def _age(world: World, hours: float) -> None:
    """Let it have been written earlier."""

    def earlier(found: re.Match[str]) -> str:
        at = datetime.datetime.fromisoformat(found[0]) - datetime.timedelta(hours=hours)
        return at.strftime("%Y-%m-%dT%H:%M:%SZ")

    for one in _maps(world):
        data = {key: re.sub(r"\d{4}-\d\d-\d\dT[\d:]+Z", earlier, text) for key, text in one["data"].items()}
        world.api.patch("ConfigMap", OWN, one["metadata"]["name"], {"data": data})


def _without_notes(obj: dict[str, Any]) -> dict[str, Any]:
    """As its people have it in their repository."""
    metadata = obj["metadata"]
    notes = {key: text for key, text in metadata["annotations"].items() if not key.startswith(_OURS)}
    return {**obj, "metadata": {**metadata, "annotations": notes}}


def _replaced(world: World) -> None:
    obj = _without_notes(created(world.api, "Deployment", world.team, "idle"))
    world.api.update({**obj, "spec": {**obj["spec"], "replicas": 2}})


def _made_anew(world: World) -> None:
    obj = _without_notes(created(world.api, "Deployment", world.team, "idle"))
    world.api.delete("Deployment", world.team, "idle")
    world.api.settle()
    kept = {key: obj["metadata"][key] for key in ("name", "namespace", "labels") if key in obj["metadata"]}
    world.api.create({**obj, "metadata": kept, "spec": {**obj["spec"], "replicas": 2}, "status": {}})


def _back(world: World, hours: float, how: Any = _replaced) -> None:
    """Somebody has it back since so long, without our notes; its pods do nothing."""
    world.clock.stand(time.time() - hours * 3600)
    how(world)
    world.api.settle()
    world.clock.run()
    for one in world.pods_of(world.team, "idle"):
        world.record(one, "idle", 1)


@pytest.mark.slow
@pytest.mark.prometheus
@pytest.mark.parametrize("how", [_replaced, _made_anew])
def test_memory_workload_restored_without_record_is_not_restopped(world: World, how: Any) -> None:
    """By `kubectl replace`, or as a new object of its name: it was taken back, and is left alone."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    assert _apply(world).items["idle"]["result"] == "done"
    _age(world, 60)
    _back(world, 50, how)
    (item,) = world.run("plan", "-o", "json", policy=HELD).items.values()
    assert [block["code"] for block in item["blockers"]] == ["cooldown"], item
    assert "reverted by someone" in item["blockers"][0]["message"]
    assert "idle" not in _apply(world, policy=HELD).items
    assert created(world.api, "Deployment", world.team, "idle")["spec"]["replicas"] == 2


@pytest.mark.slow
@pytest.mark.prometheus
def test_memory_two_stops_in_30_days_block_without_records(world: World) -> None:
    """They are stopped twice, and restored without a trace each time; then no more."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    quick = HELD.replace("cooldown: 60h", "cooldown: 1h")
    for _ in range(2):
        assert _apply(world, policy=quick).items["idle"]["result"] == "done"
        _age(world, 200)
        _back(world, 24.8)
    item = world.run("plan", "-o", "json", policy=quick).items["idle"]
    assert (item["action"], "2 times in 30 days" in str(item["reasons"])) == (None, True), item


@pytest.mark.prometheus
def test_memory_entry_is_written_once_before_the_change(world: World) -> None:
    """A crash between the two leaves too much remembered; of what the object tells itself it counts once."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    world.add("Pod", world.team, "shell", {})
    _apply(world)
    paths = [entry.path for entry in world.api.requests.mutating()]
    kept = [place for place, path in enumerate(paths) if path.endswith("/configmaps") or NAME in path]
    idle = next(place for place, path in enumerate(paths) if path.endswith("deployments/idle"))
    evicted = next(place for place, path in enumerate(paths) if path.endswith("shell/eviction"))
    assert any(place < idle for place in kept[1:])  # the first keeps the scope
    assert len([place for place in kept[1:] if place < max(idle, evicted)]) == 2
    assert sorted((one["action"], one["workload"]["name"], one["gpus"]) for one in _kept(world)) == [
        ("evict", "shell", 1),
        ("scale-to-zero", "idle", 2),
    ]
    world.run("undo", "--all", "--yes")
    one_more = AT_ONCE + "  - {scope: namespace, per: day, workloads: 3}\n"
    world.add("Deployment", world.team, "next", {})
    assert world.run("plan", "-o", "json", policy=one_more).items["next"]["blockers"] == []


@pytest.mark.slow
@pytest.mark.prometheus
def test_memory_refused_change_or_dry_run_leaves_no_entry(world: World) -> None:
    """It would count against the workload otherwise."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    world.api.inject(Fault("deployments/idle", "PATCH", 1, delay_s=0.001))  # the dry run goes through
    world.api.inject(Fault("deployments/idle", "PATCH", 1, status=403))
    assert _apply(world).items["idle"]["result"] == "refused"
    assert _kept(world) == []
    assert _maps(world) != []
    world.api.inject(Fault("deployments/idle", "PATCH", 1, status=403))
    assert _apply(world).items["idle"]["result"] == "refused"
    assert _apply(world).items["idle"]["result"] == "done"
    assert len(_kept(world)) == 1


@pytest.mark.prometheus
def test_memory_lost_write_is_not_counted_as_change(world: World) -> None:
    """The write was lost: the object is the one that it was, and the next run makes the change; once, also here."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    world.api.inject(Fault("deployments/idle", "PATCH", 1, delay_s=0.001))
    world.api.inject(Fault("deployments/idle", "PATCH", 1, drop=True))
    assert _apply(world).items["idle"]["result"] == "refused"
    assert len(_kept(world)) == 1
    run = _apply(world)
    assert run.items["idle"]["result"] == "done"
    assert [one["run"] for one in _kept(world)] == [json.loads(run.out)["metadata"]["run"]]


@pytest.mark.prometheus
def test_memory_unreadable_blocks_changes_and_is_reported(world: World) -> None:
    """The plan says so among its problems."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    world.api.inject(Fault(f"configmaps/{NAME}-0", "GET", None, status=403))
    plan = world.run("plan", "-o", "json", policy=DEFAULT_POLICY)
    assert any("what was changed lately is not known" in one for one in json.loads(plan.out)["problems"])
    run = _apply(world)
    assert run.code == 2
    assert f"ConfigMaps {OWN}/{NAME}-*: what was changed lately cannot be known" in run.err
    world.api.clear_faults()
    world.api.inject(Fault(f"configmaps/{NAME}-0", "GET", None, status=500))
    assert _apply(world).code == 1
    assert created(world.api, "Deployment", world.team, "idle")["spec"]["replicas"] == 2


@pytest.mark.prometheus
def test_memory_unwritable_or_full_blocks_changes(world: World) -> None:
    """Without the right, or where there is no room."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    ref = ObjectRef("apps/v1", "Deployment", world.team, "idle")
    name = f"{NAME}-{part_of(key_of(ref))}"
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": OWN}}
    world.api.create({**made, "data": {"full": "x" * MOST_BYTES}})
    outcome = _apply(world).items["idle"]
    assert (outcome["result"], "the memory is full" in outcome["detail"]) == ("blocked", True)
    world.api.patch("ConfigMap", OWN, name, {"data": {"full": None}})
    world.api.inject(Fault(f"configmaps/{name}", "PATCH", None, status=403))
    outcome = _apply(world).items["idle"]
    assert (outcome["result"], "cannot store the history of changes" in outcome["detail"]) == (
        "skipped",
        True,
    )
    assert created(world.api, "Deployment", world.team, "idle")["spec"]["replicas"] == 2
    world.api.clear_faults()
    world.api.inject(Fault(f"configmaps/{name}", "PATCH", 2, status=409))
    assert _apply(world).items["idle"]["result"] == "done"


def _rejections(part: int, number: int, *namespaces: str, days: float) -> dict[str, str]:
    """Texts of one part, oldest first: the owners have the longest names, and their objects allow no write."""
    at = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days)
    texts: dict[str, str] = {}
    for n in itertools.count():
        ref = ObjectRef(
            "apps/v1", "Deployment", namespaces[n % len(namespaces)], f"{n}-{'x' * 240}", "u" * 36
        )
        if len(texts) == number:
            return texts
        if part_of(key_of(ref)) == part:
            item = workload(ref=ref)
            texts |= _texts(_rejected(item, at + n * datetime.timedelta(seconds=1)), item)
    raise AssertionError


@pytest.mark.prometheus
@pytest.mark.parametrize(
    "namespaces", [("flood",), tuple(f"flood-{n}" for n in range(50))], ids=["one", "many"]
)
def test_memory_full_of_rejections_forgets_those_of_largest_namespace(
    world: World, namespaces: tuple[str, ...]
) -> None:
    """Whoever has objects that allow no write delays no change of others, and ends no cooldown of others."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    part = part_of(key_of(ObjectRef("apps/v1", "Deployment", world.team, "idle")))
    other = _rejections(part, 1, "other", days=6)
    flood = _rejections(part, 1500, *namespaces, days=3)
    name = {"name": f"{NAME}-{part}", "namespace": OWN}
    world.api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": {**flood, **other}})
    assert _apply(world).items["idle"]["result"] == "done"
    left = created(world.api, "ConfigMap", **name)["data"]
    assert other.items() <= left.items()
    assert (next(iter(flood)) in left, next(reversed(flood)) in left) == (False, True)
    assert MOST_BYTES // 3 < sum(map(len, left.values())) < MOST_BYTES * 2 // 3


@pytest.mark.slow
@pytest.mark.prometheus
def test_memory_entry_added_after_plan_is_reread_before_write(world: World) -> None:
    """It is read once more with the workload itself."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    idle = created(world.api, "Deployment", world.team, "idle")["metadata"]
    ref = ObjectRef("apps/v1", "Deployment", world.team, "idle", "another")
    at = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=2)
    item = workload(ref=ref)
    texts = with_change(
        {},
        FoundChange(ref, ChangeRecord(at, "r", "scale-to-zero", 2, "me", generation=idle["generation"])),
        item,
        at,
    )
    name = f"{NAME}-{part_of(key_of(ref))}"
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": OWN}}
    add, waiting = world.api.requests.add, [{**made, "data": texts}]

    def noted(entry: LoggedRequest) -> None:
        add(entry)
        if waiting and entry.path == "/apis/policy/v1/poddisruptionbudgets":  # the last that a plan reads
            world.api.create(waiting.pop())

    world.api.requests.add = noted  # type: ignore[method-assign]
    outcome = _apply(world, policy=DEFAULT_POLICY).items["idle"]
    assert (outcome["result"], "cooldown" in outcome["detail"]) == ("changed", True), outcome["detail"]
    assert created(world.api, "Deployment", world.team, "idle")["spec"]["replicas"] == 2


@pytest.mark.prometheus
def test_memory_needs_only_get_create_patch_of_own_configmaps(world: World) -> None:
    """To get, create and patch ConfigMaps of our own namespace; to list or delete them, no."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    world.api.deny(Rule("*", ("list", "delete", "update"), ("configmaps",)))
    assert _apply(world).items["idle"]["result"] == "done"
    assert {entry.path for entry in world.api.requests.mutating() if NAME in entry.path} == set()
    assert len(_kept(world)) == 1


@pytest.mark.prometheus
def test_memory_stop_via_scaledobject_is_kept_by_workload_name(world: World) -> None:
    """The ScaledObject is made anew by whoever deploys it, so that nothing is noted anywhere any more."""
    scaled(world)
    assert _apply(world).items["web"]["result"] == "done"
    assert [one["workload"]["kind"] for one in _kept(world)] == ["Deployment"]
    _age(world, 60)
    scaler = created(world.api, "ScaledObject", world.team, "web")
    world.clock.stand(time.time() - 50 * 3600)
    world.api.delete("ScaledObject", world.team, "web")
    fresh = {"name": "web", "namespace": world.team}
    world.api.create({**scaler, "metadata": fresh})
    world.api.patch("Deployment", world.team, "web", {"spec": {"replicas": 2}})
    world.api.settle()
    world.clock.run()
    for one in world.pods_of(world.team, "web"):
        world.record(one, "idle", 1)
    item = world.run("plan", "-o", "json", policy=HELD).items["web"]
    assert "reverted by someone" in str(item["blockers"]), item


# --- what follows from the texts

_AT = NOW - datetime.timedelta(days=1)


def _taken(ref: ObjectRef, run: str = "r", *, at: datetime.datetime = _AT, **changes: Any) -> FoundChange:
    record = ChangeRecord(at, run, "scale-to-zero", 2, "me", generation=1, **changes)
    return FoundChange(ref, record, is_on_object=False)


def _texts(taken: FoundChange, item: Workload, texts: dict[str, str] | None = None) -> dict[str, str]:
    found = {**(texts or {}), **with_change(texts or {}, taken, item, NOW)}
    return {key: text for key, text in found.items() if text is not None}


def _recalled(item: Workload, texts: dict[str, str]) -> tuple[Workload, Fleet]:
    fleet = with_remembered_changes(Fleet((item,), {}, {}), parse_memory(texts))
    return fleet.workloads[0], fleet


def _since(hours: float) -> datetime.datetime:
    return NOW - datetime.timedelta(hours=hours)


def test_memory_jobs_of_one_cronjob_share_entries() -> None:
    """Also of those that are gone; that another one runs is no sign that it was taken back."""
    starter = ObjectRef("batch/v1", "CronJob", "team-a", "nightly", "c")
    first = workload(pod(), kind="Job", starter=starter)
    gone = ObjectRef("batch/v1", "Job", "team-a", "nightly-0", "gone")
    texts = _texts(_taken(gone), first)
    item, fleet = _recalled(first, texts)
    assert [(one.run, one.end) for one in item.past] == [("r", None)]
    assert [(one.ref, one.starter, one.is_in_effect) for one in fleet.changes] == [(gone, starter, False)]


@pytest.mark.parametrize(
    ("generation", "began_h", "uid", "counts"),
    [
        pytest.param(1, 48, "uid-w", False, id="as-it-was"),
        pytest.param(2, 48, "uid-w", True, id="changed-since"),
        pytest.param(1, 4, "uid-w", True, id="pods-since"),
        pytest.param(1, 48, "another", True, id="another-object"),
        pytest.param(1, None, "uid-w", True, id="since-when-is-not-known"),
    ],
)
def test_memory_only_unchanged_object_discards_entry(
    generation: int, began_h: float | None, uid: str, *, counts: bool
) -> None:
    """Same object, same generation, and all pods older than the change; whatever else there is, it counts."""
    began = _since(began_h) if began_h is not None else None
    item = workload(pod(created=began), pod("w-1", created=_since(90)), generation=generation)
    then = dataclasses.replace(item, ref=dataclasses.replace(item.ref, uid=uid), generation=1)
    again, fleet = _recalled(item, _texts(_taken(then.ref), then))
    assert (len(again.past), len(fleet.changes)) == ((1, 1) if counts else (0, 0))


def test_memory_known_pause_length_requires_longer_idle() -> None:
    """It is not idle before it has paused for longer; by how long it had done nothing when it was stopped."""
    item = workload(pod(created=_since(4)))
    again, _ = _recalled(
        item, _texts(_taken(item.ref, idle_seconds=3600), workload(pod(created=_since(90)), generation=0))
    )
    assert again.came_back_after == datetime.timedelta(hours=1 + 20)
    assert [(one.end, one.ended) for one in again.past] == [(ChangeOutcome.REVERTED, _since(4))]


def test_memory_unreadable_entry_blocks_only_its_owner() -> None:
    """It counts as changed right now, and is told."""
    item, other = workload(pod()), workload(pod("x-0"), kind="StatefulSet")
    key = key_of(item.ref)
    for text in (
        "{",
        "[]",
        json.dumps({"owner": "x", "changes": []}),
        _texts(_taken(other.ref), other)[key_of(other.ref)],
    ):
        again, fleet = _recalled(item, {key: text})
        assert [one.is_readable for one in again.past] == [False]
        assert key in str(fleet.problems)
        assert _recalled(other, {key: text})[0] == other
        with pytest.raises(ValueError, match=r"cannot be read|under the key"):
            with_change({key: text}, _taken(item.ref), item, NOW)


def test_memory_rejection_of_a_bare_pod_is_kept_though_the_pod_is_unchanged() -> None:
    """Its generation is the record's, and it is older: nevertheless it is left alone for its cooldown."""
    item = workload(pod(created=_since(90)), generation=0)
    again, _ = _recalled(item, _texts(_rejected(item), item))
    assert [one.end for one in again.past] == [ChangeOutcome.REJECTED]
    assert len(parse_memory(_texts(_taken(item.ref), item, _texts(_rejected(item), item))).by_run) == 2


def test_memory_rejection_spends_no_budget() -> None:
    """Whoever makes an object that allows no write takes nothing from the budgets of others."""
    item = workload(pod())
    again, fleet = _recalled(item, _texts(_rejected(item), item))
    assert (len(again.past), fleet.changes) == (1, ())


def _rejected(item: Workload, at: datetime.datetime = _AT) -> FoundChange:
    record = ChangeRecord(at, "rejected", "evict", by="me", end=ChangeOutcome.REJECTED, ended=at)
    return FoundChange(item.ref, record, is_on_object=False)


@pytest.mark.parametrize("is_recorded", [True, False], ids=["recorded-by-the-object", "only-remembered"])
def test_memory_negative_gpus_refill_no_budget(*, is_recorded: bool) -> None:
    """Whoever writes in the state namespace cannot pay for a thousand GPUs by a change that added as many."""
    item = workload(pod())
    record = ChangeRecord(_AT, "r", "scale-to-zero", -1000, "me")
    texts = _texts(FoundChange(item.ref, record, is_on_object=False), item)
    changes = (FoundChange(item.ref, record),) if is_recorded else ()
    fleet = with_remembered_changes(Fleet((item,), {}, {}, changes), parse_memory(texts))
    assert [one.record.gpus for one in fleet.changes] == [0]


def test_memory_unreadable_entry_counts_recorded_changes_of_its_owner() -> None:
    """Nothing shows that they are forged, so budgets count them; of a readable memory they would be unknown."""
    item = workload(pod())
    recorded = FoundChange(item.ref, ChangeRecord(_AT, "r", "scale-to-zero", 8, "me"))
    for texts, counts in (({key_of(item.ref): "{"}, True), ({}, False)):
        fleet = with_remembered_changes(Fleet((item,), {}, {}, (recorded,)), parse_memory(texts))
        assert [one.is_remembered for one in fleet.changes] == [counts]


def test_memory_expired_entries_are_pruned_and_size_is_bounded() -> None:
    """Whoever is changed next tidies up; of one owner there are never more than can be made in a month."""
    item, other = workload(pod()), workload(pod("x-0"), kind="StatefulSet")
    old = _texts(_taken(other.ref, at=NOW - MONTH), other)
    texts = _texts(_taken(item.ref, "first", at=NOW - MONTH), item, old)
    texts = _texts(_taken(item.ref, "second"), item, texts)
    assert list(texts) == [key_of(item.ref)]
    assert [one.record.run for one in parse_memory(texts).by_key[key_of(item.ref)]] == ["second"]
    for number in range(2 * MOST):
        texts = _texts(_taken(item.ref, f"r{number}"), item, texts)
    assert len(parse_memory(texts).by_key[key_of(item.ref)]) == MOST
    assert without_change({}, _taken(item.ref), item) == {}


def test_memory_of_many_scale_downs_keeps_what_all_took() -> None:
    """No budget of a day forgets the oldest of them."""
    item = workload(pod())
    texts: dict[str, str] = {}
    for number in range(3 * MOST):
        record = ChangeRecord(NOW + number * datetime.timedelta(hours=1), f"r{number}", "scale-down", 2, "me")
        texts = _texts(FoundChange(item.ref, record), item, texts)
    found = parse_memory(texts).by_key[key_of(item.ref)]
    assert (len(found), sum(one.record.gpus for one in found)) == (MOST, 6 * MOST)


def test_memory_thousands_of_owners_fit_across_shards() -> None:
    """Each changed as often as is ever done; they spread over the parts, whatever they are called."""
    refs = [
        ObjectRef("apps/v1", "Deployment", f"team-{n % 50}", f"a-longish-name-{n}", "u" * 36)
        for n in range(4000)
    ]
    parts = [part_of(key_of(ref)) for ref in refs]
    assert set(parts) == set(range(PARTS))
    item = workload(pod())
    texts: dict[str, str] = {}
    for run in ("20261120-180000-abcdef", "20261121-180000-abcdef", "20261122-180000-abcdef"):
        texts = _texts(
            FoundChange(
                item.ref,
                ChangeRecord(
                    _AT,
                    run,
                    "scale-to-zero",
                    8,
                    "gpu-rightsizer",
                    generation=3,
                    idle_seconds=9,
                    priority_class="low",
                ),
            ),
            item,
            texts,
        )
    (text,) = texts.values()
    assert max(map(parts.count, range(PARTS))) * len(text) < MOST_BYTES


@pytest.mark.prometheus
def test_memory_endless_write_conflicts_block_changes(world: World) -> None:
    """Somebody writes each time between our reading and writing."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    assert (
        world.run("apply", "--yes", policy=DEFAULT_POLICY.replace("mode: enforce", "mode: advise")).code == 0
    )
    world.api.inject(Fault("/configmaps$", "POST", None, status=409))
    outcome = _apply(world).items["idle"]
    assert (outcome["result"], "409" in outcome["detail"]) == ("refused", True)
    assert created(world.api, "Deployment", world.team, "idle")["spec"]["replicas"] == 2
