"""The changes of the last 30 days, kept in ConfigMaps of gpu-rightsizer's own namespace.

An object that is replaced or recreated loses its annotations. If it runs, a change that only the memory has was
reverted. The memory is written before the change, and cleaned if the change is refused: a crash loses nothing. So it
may name a change that was never made, as the unchanged object shows.
"""

import contextlib
import dataclasses
import datetime
import hashlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from rightsizer.changes.record_codec import STOPS, pause_of, required_valid
from rightsizer.errors import ClusterError, RequestRefused
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.configmaps import ConfigMap
from rightsizer.kube.object_names import require_name
from rightsizer.model import (
    UNREADABLE,
    Action,
    ChangeOutcome,
    ChangeRecord,
    Fleet,
    FoundChange,
    ObjectRef,
    Workload,
)
from rightsizer.model.change_record import MOST_GPUS
from rightsizer.text import decoded

MONTH = datetime.timedelta(days=30)
"""Older changes are forgotten."""
NAME = "gpu-rightsizer-memory"
PARTS = 8
"""ConfigMaps; one holds at most 1 MiB (core/v1)."""
NAMES = tuple(f"{NAME}-{part}" for part in range(PARTS))
NAMED_MAP = f"{NAME}-named"
"""ConfigMap of the victims that `extend` named: no changes of its own, but charged to the same budgets."""
MOST = 16
"""Entries of one owner; of more, the oldest scale-downs count together, at the time of the latest of them."""
MOST_BYTES = 768 << 10
"""Maximum of one part: some 1,000 owners. One namespace's take no more than what they leave free."""
MOST_REJECTED_BYTES = MOST_BYTES // 2
"""Maximum of one part for owners with rejections only: no budget limits those."""

_Texts = Mapping[str, str]

log = logging.getLogger(__name__)


class _OwnerChanges(msgspec.Struct):
    """The text of one key: the changes of one owner; `workload` of a record is omitted if it is the owner."""

    owner: ObjectRef
    changes: list[ChangeRecord]

    def __post_init__(self) -> None:
        require_name(self.owner)


ChangeKey = tuple[str, str, str, str]


def change_key(run: str, ref: ObjectRef) -> ChangeKey:
    """One run changes a workload once; a recreated object has the same name."""
    return run, *_name(ref)


@dataclasses.dataclass(frozen=True, slots=True)
class ChangeMemory:
    """The memory, or one part of it."""

    # Changes by `key_of` their owner
    by_key: Mapping[str, tuple[FoundChange, ...]] = dataclasses.field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()  # keys with texts that cannot be read

    @property
    def by_run(self) -> dict[ChangeKey, FoundChange]:
        """The changes by `change_key`."""
        changes = itertools.chain.from_iterable(self.by_key.values())
        return {change_key(change.record.run, change.ref): change for change in changes}


def owner_of(workload: Workload) -> ObjectRef:
    """The object whose changes count together: for Jobs of a CronJob, the CronJob."""
    return workload.starter or workload.ref


def key_of(owner: ObjectRef) -> str:
    """The key of an owner: by its name, which a recreated object also has."""
    return hashlib.sha256("/".join(_name(owner)).encode()).hexdigest()[:20]


def part_of(key: str) -> int:
    """The number of the part with a key."""
    return int(key[:4], 16) % PARTS


def _name(ref: ObjectRef) -> tuple[str, str, str]:
    return ref.full_kind, ref.namespace, ref.name


def parse_memory(texts: _Texts) -> ChangeMemory:
    """One part; a text that cannot be read holds off changes of its owner only."""
    by_key: dict[str, tuple[FoundChange, ...]] = {}
    unreadable = set()
    for key, text in texts.items():
        try:
            by_key[key] = _parsed(key, text)
        except ValueError:
            unreadable.add(key)
    return ChangeMemory(by_key, frozenset(unreadable))


def _parsed(key: str, text: str) -> tuple[FoundChange, ...]:
    kept = decoded(text, _OwnerChanges)
    if key_of(kept.owner) != key:
        message = "is under the key of another owner"
        raise ValueError(message)
    return tuple(_found(required_valid(record), kept.owner) for record in kept.changes)


def _found(record: ChangeRecord, owner: ObjectRef) -> FoundChange:
    ref = record.workload or owner
    starter = None if _name(ref) == _name(owner) else owner
    return FoundChange(
        ref, msgspec.structs.replace(record, edits=(), pending_edits=()), starter=starter, is_on_object=False
    )


def merge_memories(parts: Iterable[ChangeMemory]) -> ChangeMemory:
    """All parts together."""
    parts = list(parts)
    by_key = {key: found for part in parts for key, found in part.by_key.items()}
    return ChangeMemory(by_key, frozenset().union(*(part.unreadable for part in parts)))


def remembered_record(record: ChangeRecord, workload: Workload) -> FoundChange:
    """The summary that the memory keeps of a change that is about to be made to a workload."""
    kept = msgspec.structs.replace(
        record.summary,
        generation=workload.generation,
        idle_seconds=record.idle_seconds,
        priority_class=record.priority_class,
        manifest_digest=record.manifest_digest,
        wanted_by=record.wanted_by,
        cost_per_hour=record.cost_per_hour,
        currency=record.currency,
    )
    return FoundChange(workload.ref, kept, is_on_object=False)


def with_change(
    texts: _Texts, change: FoundChange, workload: Workload, at: datetime.datetime
) -> dict[str, str | None]:
    """The new texts of a part with a change; None for texts that are too old.

    Raises:
        ValueError: There is no room, or the owner's text cannot be read.
    """
    owner = owner_of(workload)
    key = key_of(owner)
    before = _parsed(key, texts[key]) if key in texts else ()
    kept = [
        past
        for past in before
        if at - past.at < MONTH and not was_never_made(past, workload) and not _is_same(past, change)
    ]
    while len(kept) >= MOST:
        kept = [_joined(kept[0], kept[1]), *kept[2:]]
    known = {**parse_memory(texts).by_key, key: (*kept, change)}
    changes: dict[str, str | None] = dict.fromkeys(
        key for key, found in known.items() if all(at - past.at >= MONTH for past in found)
    )
    changes[key] = _text(owner, known[key])
    changes |= dict.fromkeys(_excess_rejections(known, {**texts, **changes}))
    sizes = {key: len(key) + len(text) for key, text in {**texts, **changes}.items() if text}
    namespace = change.ref.namespace
    own = [sizes[key] for key in sizes.keys() & known.keys() if known[key][0].ref.namespace == namespace]
    if sum(sizes.values()) + sum(own) > MOST_BYTES:
        reason = f"changes and rejections of {len(own)} of its owners are kept for {MONTH.days} days"
        message = f"the memory is full for namespace {namespace}: {reason}"
        raise ValueError(message)
    return changes


def _are_rejections(found: Sequence[FoundChange]) -> bool:
    return all(change.record.end is ChangeOutcome.REJECTED for change in found)


def _excess_rejections(
    known: Mapping[str, Sequence[FoundChange]], texts: Mapping[str, str | None]
) -> Iterator[str]:
    """Keys of rejections without room: each time the oldest of the namespace that has most."""
    sizes = {
        key: len(key) + len(texts[key] or "")
        for key, found in known.items()
        if texts[key] and _are_rejections(found)
    }
    latest_first: dict[str, list[str]] = {}
    for key in sorted(sizes, key=lambda key: known[key][-1].at, reverse=True):
        latest_first.setdefault(known[key][0].ref.namespace, []).append(key)
    totals = {namespace: sum(map(sizes.__getitem__, keys)) for namespace, keys in latest_first.items()}
    while sum(totals.values()) > MOST_REJECTED_BYTES:
        largest = max(totals, key=totals.__getitem__)
        key = latest_first[largest].pop()
        totals[largest] -= sizes[key]
        yield key


def without_change(texts: _Texts, change: FoundChange, workload: Workload) -> dict[str, str | None]:
    """The new texts of a part without a change that was refused."""
    owner = owner_of(workload)
    key = key_of(owner)
    if key not in texts:
        return {}
    kept = [known for known in _parsed(key, texts[key]) if not _is_same(known, change)]
    return {key: _text(owner, kept) if kept else None}


def _joined(first: FoundChange, second: FoundChange) -> FoundChange:
    """The second of two changes, with what both took, if both took replicas of the same workload."""
    if first.ref != second.ref or {first.record.action, second.record.action} != {Action.SCALE_DOWN}:
        return second
    gpus = min(first.record.gpus + second.record.gpus, MOST_GPUS)
    is_same = first.record.currency == second.record.currency
    cost = second.record.cost_per_hour + first.record.cost_per_hour * is_same
    return dataclasses.replace(
        second, record=msgspec.structs.replace(second.record, gpus=gpus, cost_per_hour=cost)
    )


def _is_same(past: FoundChange, other: FoundChange) -> bool:
    ends = {past.record.end, other.record.end}
    return past.ref == other.ref and (past.record.run == other.record.run or ends == {ChangeOutcome.REJECTED})


def _text(owner: ObjectRef, changes: Iterable[FoundChange]) -> str:
    records = [
        msgspec.structs.replace(
            change.record,
            at=change.at.astimezone(datetime.UTC),
            workload=None if change.ref == owner else change.ref,
        )
        for change in changes
    ]
    return msgspec.json.encode(_OwnerChanges(owner, records)).decode()


def was_never_made(change: FoundChange, workload: Workload) -> bool:
    """Whether the object is the same generation as before the change, and all its pods are older."""
    if change.record.end is ChangeOutcome.REJECTED:
        return False  # it is kept for that
    is_as_it_was = (change.ref, change.record.generation) == (workload.ref, workload.generation)
    began = [pod.created for pod in workload.pods if not pod.is_terminating]
    return is_as_it_was and bool(began) and all(start and start < change.at for start in began)


def with_remembered_changes(fleet: Fleet, memory: ChangeMemory | None) -> Fleet:
    """The fleet with the changes that only the memory has; without a memory, as it is.

    If an object records a change too, its time and freed GPUs are taken from the memory.
    """
    if memory is None:
        return fleet
    ours = memory.by_run
    recorded = [_compared(change, ours, memory.unreadable) for change in fleet.changes]
    on_objects = {change_key(change.record.run, change.ref) for change in fleet.changes}
    there = {_name(workload.ref): workload for workload in fleet.workloads}
    by_key = {
        key: [change for change in found if not _is_known(change, on_objects, there.get(_name(change.ref)))]
        for key, found in memory.by_key.items()
    }
    changes = [
        dataclasses.replace(past, record=msgspec.structs.replace(past.record, gpus=max(past.record.gpus, 0)))
        for found in by_key.values()
        for past in found
        if past.record.end is not ChangeOutcome.REJECTED
    ]
    problems = [
        f"ConfigMaps {NAME}-*: the key {key[:40]!r} cannot be read; its owner counts as changed right now"
        for key in sorted(memory.unreadable)
    ]
    return dataclasses.replace(
        fleet,
        workloads=tuple(_with_past(workload, by_key, memory.unreadable) for workload in fleet.workloads),
        changes=tuple(sorted((*recorded, *changes), key=lambda change: (change.at, change.ref))),
        problems=(*fleet.problems, *problems),
    )


def _compared(
    change: FoundChange, ours: Mapping[ChangeKey, FoundChange], unreadable: frozenset[str]
) -> FoundChange:
    known = ours.get(change_key(change.record.run, change.ref))
    if known is None:
        is_unreadable = key_of(change.starter or change.ref) in unreadable
        return dataclasses.replace(change, is_remembered=is_unreadable)
    record = msgspec.structs.replace(change.record, at=known.at, gpus=max(known.record.gpus, 0))
    return dataclasses.replace(
        change, record=msgspec.structs.replace(record, wanted_by=known.record.wanted_by)
    )


def _is_known(change: FoundChange, on_objects: set[ChangeKey], workload: Workload | None) -> bool:
    """Whether an object records a change itself, or shows that it was never made."""
    if change_key(change.record.run, change.ref) in on_objects:
        return True
    if workload is None:
        return False
    return change.record.run in {record.run for record in workload.past} or was_never_made(change, workload)


def _with_past(
    workload: Workload, by_key: Mapping[str, Sequence[FoundChange]], unreadable: frozenset[str]
) -> Workload:
    key = key_of(owner_of(workload))
    past = list(workload.past)
    pauses = [workload.came_back_after] if workload.came_back_after else []
    for change in by_key.get(key, ()):
        back = _reverted_at(change, workload)
        if back is None:
            past.append(change.record.summary)
            continue
        past.append(msgspec.structs.replace(change.record.summary, end=ChangeOutcome.REVERTED, ended=back))
        if change.record.action in STOPS:
            pauses.append(pause_of(change.record.idle_seconds, change.at, back))
    if key in unreadable:
        past.append(UNREADABLE)
    if len(past) == len(workload.past):
        return workload
    past.sort(key=lambda change: change.at)
    return dataclasses.replace(workload, past=tuple(past), came_back_after=max(pauses, default=None))


def _reverted_at(change: FoundChange, workload: Workload) -> datetime.datetime | None:
    """Time at which an unrecorded change was reverted; None for other objects or if not made."""
    if _name(change.ref) != _name(workload.ref) or change.record.end is ChangeOutcome.REJECTED:
        return None
    began = [pod.created for pod in workload.pods if not pod.is_terminating and pod.created]
    since = [start for start in began if start >= change.at]
    # After a scale-down or resize there are older and younger pods; which one shows the revert is unknown.
    return min(since, default=change.at) if change.record.action in STOPS else max(since, default=change.at)


class MemoryStore:
    """The ConfigMaps of the memory."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._parts = [ConfigMap(cluster, namespace, name, "the history of changes") for name in NAMES]
        self.place = f"ConfigMaps {namespace}/{NAME}-*"

    def read(self) -> ChangeMemory:
        """The whole memory; raises ClusterError if a part could not be read."""
        return merge_memories(parse_memory(part.read()) for part in self._parts)

    def of(self, workload: Workload) -> ChangeMemory:
        """The part with a workload; raises ClusterError if it could not be read."""
        return parse_memory(self._part(workload).read())

    @contextlib.contextmanager
    def kept(self, workload: Workload, record: ChangeRecord, at: datetime.datetime) -> Iterator[None]:
        """Around the request that makes a change: keeps it before, and drops it if the request is refused.

        Raises:
            ClusterError: It could not be kept; then nothing was sent.
            ValueError: There is no room for it.
        """
        if not record.takes:
            yield
            return
        change = remembered_record(record, workload)
        part = self._part(workload)
        part.change(lambda texts: with_change(texts, change, workload, at))
        try:
            yield
        except RequestRefused:
            try:
                part.change(lambda texts: without_change(texts, change, workload))
            except ClusterError as error:
                log.warning("%s: a refused change stays in the memory: %s", part.place, error)
            raise

    def keep_rejection(self, workload: Workload, record: ChangeRecord) -> None:
        """Record that an object refuses this write, to leave it alone for its cooldown.

        Raises:
            ClusterError: It could not be kept.
            ValueError: There is no room for it.
        """
        change = FoundChange(workload.ref, record)
        self._part(workload).change(lambda texts: with_change(texts, change, workload, record.at))

    def _part(self, workload: Workload) -> ConfigMap:
        return self._parts[part_of(key_of(owner_of(workload)))]
