"""What the memory writes and reads: each text, each limit, and what an entry says about a workload."""

import bisect
import dataclasses
import datetime
import itertools
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from rightsizer.changes.memory import (
    MONTH,
    MOST,
    MOST_BYTES,
    ChangeMemory,
    MemoryStore,
    key_of,
    merge_memories,
    parse_memory,
    part_of,
    remembered_record,
    with_change,
    with_remembered_changes,
    without_change,
)
from rightsizer.config import ClusterSettings
from rightsizer.errors import ClusterUnreachable, RequestRefused
from rightsizer.kube.cluster import Cluster
from rightsizer.model import ChangeOutcome, ChangeRecord, Edit, Fleet, FoundChange, ObjectRef, Workload
from simulator.kube import ApiServer
from tests.rightsizer.build import AT, DAY, pod, workload

HOUR = datetime.timedelta(hours=1)
STATE = "gpu-rightsizer"
ITEM = workload()
CRON = ObjectRef("batch/v1", "CronJob", "research", "nightly", "c")
JOB = workload(kind="Job", starter=CRON)
EARLIER = dataclasses.replace(JOB.ref, name="nightly-1")


def _record(run: str = "r", action: str = "scale-to-zero", **changes: Any) -> ChangeRecord:
    return ChangeRecord(**{"at": AT, "run": run, "action": action, "gpus": 2, "by": "me", **changes})


def _found(ref: ObjectRef = ITEM.ref, **changes: Any) -> FoundChange:
    return FoundChange(ref, _record(**changes), is_on_object=False)


def _kept(
    *changes: FoundChange, item: Workload = ITEM, texts: dict[str, str] | None = None
) -> dict[str, str]:
    texts = dict(texts or {})
    for one in changes:
        texts |= {key: text for key, text in with_change(texts, one, item, AT).items() if text is not None}
    return texts


def _runs(texts: dict[str, str]) -> list[tuple[str, float]]:
    return [
        (one.record.run, one.record.gpus) for found in parse_memory(texts).by_key.values() for one in found
    ]


def test_memory_keys_are_those_of_earlier_releases() -> None:
    """Under another key nothing that was kept would be found again."""
    assert key_of(CRON) == KEY
    assert [part_of(key) for key in (KEY, "00071000000000000000", "a0100000000000000000")] == [7, 7, 0]


KEY = "2cc73e166c40fe410504"


def test_memory_text_names_the_owner_once_and_times_in_utc() -> None:
    """As earlier releases wrote it; a Job of a CronJob is named in its entry."""
    east = AT.astimezone(datetime.timezone(2 * HOUR))
    texts = _kept(_found(EARLIER, at=east), _found(CRON, run="s"), item=JOB)
    first, second = json.loads(texts[key_of(CRON)])["changes"]
    assert first["at"] == AT.isoformat().replace("+00:00", "Z")
    assert (first["workload"]["name"], "workload" in second) == (EARLIER.name, False)
    found = parse_memory(texts).by_key[key_of(CRON)]
    assert [(one.ref, one.starter) for one in found] == [(EARLIER, CRON), (CRON, None)]


def test_memory_entry_with_edits_restores_nothing() -> None:
    """Whoever may write in the state namespace gives `undo` no values to write."""
    edit = (Edit(("spec", "replicas"), 1, 0),)
    texts = _kept(_found(edits=edit, pending_edits=edit))
    (found,) = parse_memory(texts).by_key[key_of(ITEM.ref)]
    assert (found.record.edits, found.record.pending_edits) == ((), ())


def test_memory_entry_for_an_impossible_owner_is_unreadable() -> None:
    """Its name could not be shown, and no object has it."""
    owner = dataclasses.replace(ITEM.ref, name="\x1b[2J")
    text = json.dumps({"owner": dataclasses.asdict(owner), "changes": []})
    assert parse_memory({key_of(owner): text}).unreadable == {key_of(owner)}


def test_memory_parts_merge_into_one() -> None:
    """Each part holds other owners."""
    one = parse_memory({**_kept(_found()), "a": "{"})
    other = parse_memory({**_kept(_found(EARLIER), item=JOB), "b": "{"})
    both = merge_memories([one, other])
    assert both == ChangeMemory({**one.by_key, **other.by_key}, frozenset("ab"))
    assert len(both.by_key) == 2


def test_memory_keeps_of_a_record_what_decisions_need() -> None:
    """No edits; the generation is that of the object before."""
    needed: dict[str, Any] = {"idle_seconds": 9, "priority_class": "low", "manifest_digest": "0" * 64}
    record = _record(**needed, rule="all", reason="why", edits=(Edit(("spec", "replicas"), 1, 0),))
    item = workload(generation=7)
    assert remembered_record(record, item) == _found(item.ref, generation=7, **needed)


def test_memory_is_full_at_its_limit_exactly() -> None:
    """ConfigMaps hold 1 MiB, and as much as a namespace has stays free; without a memory no change is made."""
    left = MOST_BYTES - 2 * _size(_kept(_found()))
    assert _kept(_found(), texts={"filler": "x" * (left - 6)})
    words = (
        f"^the memory is full for namespace {ITEM.ref.namespace}: .* 1 of its owners .* {MONTH.days} days$"
    )
    with pytest.raises(ValueError, match=words):
        _kept(_found(), texts={"filler": "x" * (left - 5)})


@pytest.mark.parametrize("rejected", [0, 300], ids=["changes", "rejections-too"])
def test_memory_full_of_one_namespace_has_room_for_others(rejected: int) -> None:
    """Whoever chooses names of one part fills half of it, and each other namespace half of the rest."""
    texts: dict[str, str] = {}
    for namespace in ("flood", "also", "team"):
        left = MOST_BYTES - _size(texts)
        for item in _owners(namespace, rejected, "r") if namespace == "flood" else ():
            texts |= _kept(_found(item.ref, **REJECTED), item=item)
        texts = _filled(namespace, texts)
        assert (MOST_BYTES - _size(texts)) / left == pytest.approx(0.5, abs=0.05)
    (late,) = _owners("team", 1, "r")
    with pytest.raises(ValueError, match="the memory is full for namespace team: "):
        _kept(_found(late.ref, **REJECTED), item=late, texts=texts)


REJECTED: dict[str, Any] = {"end": ChangeOutcome.REJECTED, "ended": AT}


def _owners(namespace: str, count: int, prefix: str = "") -> list[Workload]:
    names = [f"{'w' * 220}-{prefix}{number}" for number in range(count)]
    return [workload(ref=ObjectRef("apps/v1", "Deployment", namespace, name, "u" * 36)) for name in names]


def _filled(namespace: str, texts: dict[str, str]) -> dict[str, str]:
    """With as many owners of a namespace as there is room for."""
    owners = _owners(namespace, 1200)
    known = [_kept(_found(item.ref), item=item) for item in owners]

    def before(number: int) -> dict[str, str]:
        return dict(itertools.chain(texts.items(), *(text.items() for text in known[:number])))

    def is_refused(number: int) -> bool:
        item = owners[number]
        try:
            return not _kept(_found(item.ref), item=item, texts=before(number))
        except ValueError as error:
            return f"the memory is full for namespace {namespace}: " in str(error)

    return before(bisect.bisect_left(range(len(owners)), x=True, key=is_refused))


def _size(texts: dict[str, str]) -> int:
    return sum(len(key) + len(text) for key, text in texts.items())


def test_memory_same_run_is_kept_once_and_so_is_a_rejection() -> None:
    """A write that is tried again is one change; of rejections the last one counts."""
    assert _runs(_kept(_found(), _found(gpus=3), _found(run="s"))) == [("r", 3), ("s", 2)]
    assert _runs(_kept(_found(EARLIER), _found(), item=JOB)) == [("r", 2), ("r", 2)]
    rejected = [_found(run=run, **REJECTED) for run in "rs"]
    assert _runs(_kept(*rejected)) == [("s", 2)]


@pytest.mark.parametrize("same", [True, False], ids=["one-workload", "several-jobs"])
def test_memory_over_its_limit_joins_scale_downs_of_one_workload(*, same: bool) -> None:
    """Of several Jobs of a CronJob the oldest is forgotten."""
    refs = [EARLIER if same else dataclasses.replace(EARLIER, name=f"n-{n}") for n in range(MOST + 1)]
    changes = [_found(ref, run=f"r{n}", action="scale-down") for n, ref in enumerate(refs)]
    later = [(f"r{n}", 2) for n in range(2, MOST + 1)]
    assert _runs(_kept(*changes, item=JOB)) == [("r1", 4 if same else 2), *later]


def test_memory_without_a_refused_change_keeps_the_others() -> None:
    """The last one leaves no text."""
    texts = _kept(_found(), _found(run="s"))
    key = key_of(ITEM.ref)
    (left,) = without_change(texts, _found(run="s"), ITEM).values()
    assert left is not None
    assert _runs({key: left}) == [("r", 2)]
    assert without_change({key: left}, _found(), ITEM) == {key: None}


def test_memory_pod_created_with_the_change_shows_that_it_was_made() -> None:
    """In the same second: what replaced the stopped pods is not older than the change."""
    item = workload(pod(created=AT))
    fleet = with_remembered_changes(Fleet((item,), {}, {}), parse_memory(_kept(_found(generation=1))))
    assert len(fleet.changes) == 1


def test_memory_time_and_gpus_of_a_recorded_change_are_those_remembered() -> None:
    """The owner of an object can edit its history."""
    forged = FoundChange(ITEM.ref, _record(at=AT - 90 * DAY, gpus=0))
    (found,) = with_remembered_changes(Fleet((), {}, {}, (forged,)), parse_memory(_kept(_found()))).changes
    assert (found.at, found.record.gpus, found.is_on_object) == (AT, 2, True)


@pytest.mark.parametrize(
    ("action", "began_h", "ended_h"),
    [
        ("scale-to-zero", (2, 5), 2),
        ("scale-to-zero", (0,), 0),
        ("scale-to-zero", (-9,), 0),
        ("scale-down", (2, 5), 5),
        ("scale-down", (-9,), 0),
    ],
)
def test_memory_revert_is_dated_by_the_first_pod_after_a_stop_else_by_the_last(
    action: str, began_h: tuple[int, ...], ended_h: int
) -> None:
    """After a scale-down, old pods run on: which of the new ones shows the revert is unknown."""
    item = workload(*(pod(f"w-{n}", created=AT + n * HOUR) for n in began_h), came_back_after=99 * DAY)
    texts = _kept(_found(EARLIER, run="s"), _found(action=action))
    again = with_remembered_changes(Fleet((item,), {}, {}), parse_memory(texts)).workloads[0]
    assert [(one.run, one.end, one.ended) for one in again.past] == [
        ("s", None, None),
        ("r", ChangeOutcome.REVERTED, AT + ended_h * HOUR),
    ]
    assert again.came_back_after == 99 * DAY


# --- ConfigMaps


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """An API server with the state namespace."""
    with ApiServer() as running:
        running.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": STATE}})
        yield running


@pytest.fixture
def store(api: ApiServer, tmp_path: pathlib.Path) -> MemoryStore:
    """The memory in that namespace."""
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(api.kubeconfig()))
    return MemoryStore(Cluster(ClusterSettings(kubeconfig=path)), STATE)


def test_memory_store_reads_what_it_keeps(api: ApiServer, store: MemoryStore) -> None:
    """In the part of the owner, which is also read alone; what only adds GPUs is not kept."""
    for item, run in ((ITEM, "r"), (JOB, "s")):
        with store.kept(item, _record(run), AT):
            pass
    with store.kept(ITEM, _record("t", "scale-up"), AT):
        pass
    parts = {part_of(key_of(owner)) for owner in (ITEM.ref, CRON)}
    assert {one["metadata"]["name"] for one in api.list("ConfigMap", STATE)} == {
        f"gpu-rightsizer-memory-{part}" for part in parts
    }
    assert store.place == f"ConfigMaps {STATE}/gpu-rightsizer-memory-*"
    found = store.read()
    assert sorted(run for run, *_ in found.by_run) == ["r", "s"]
    assert store.of(ITEM).by_key.items() <= found.by_key.items()
    assert key_of(ITEM.ref) in store.of(ITEM).by_key


@pytest.mark.parametrize(
    ("error", "runs"),
    [(RequestRefused("writing", code=403, reason="", detail=""), []), (ClusterUnreachable("lost"), ["r"])],
)
def test_memory_store_drops_only_what_was_refused(
    store: MemoryStore, error: Exception, runs: list[str]
) -> None:
    """If the answer is lost, the change may have been made."""
    with pytest.raises(type(error)), store.kept(ITEM, _record(), AT):
        raise error
    assert [run for run, *_ in store.read().by_run] == runs


def test_memory_store_keeps_a_rejection(store: MemoryStore) -> None:
    """For the cooldown of the object that refuses writes, beside what its CronJob has started before."""
    with store.kept(JOB, _record("s"), AT):
        pass
    record = _record(end=ChangeOutcome.REJECTED, ended=AT)
    store.keep_rejection(JOB, record)
    found = store.read().by_run.values()
    assert [(one.ref, one.starter, one.record.end) for one in found] == [
        (JOB.ref, CRON, None),
        (JOB.ref, CRON, ChangeOutcome.REJECTED),
    ]
