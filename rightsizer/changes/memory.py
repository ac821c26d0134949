"""The history: the changes of the last 30 days, in ConfigMaps of gpu-rightsizer's own namespace.

It is written before a change, and cleaned if the change is refused: a crash loses nothing. So it may name a change that
was never made, as the unchanged object shows. A change in effect is one of which the object has an undo record. If it
runs without one, somebody reverted the change.
"""

import contextlib
import dataclasses
import datetime
import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from rightsizer.changes.record_codec import STOPS, earlier_ends, pause_of, required_valid
from rightsizer.errors import ClusterError, ConfigurationError, RequestRefused
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
MOST = 16
"""Entries of one owner; of more, the oldest scale-downs count together, at the time of the latest of them."""
MOST_BYTES = 768 << 10
"""Of one part: some 1,000 owners. One namespace's take no more than what they leave free."""
MOST_REJECTED_BYTES = MOST_BYTES // 2
"""Of one part, for owners with rejections only: no budget limits those."""

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
    return run, ref.full_kind, ref.namespace, ref.name


@dataclasses.dataclass(frozen=True, slots=True)
class ChangeMemory:
    """The memory, or one part of it."""

    # Changes by `key_of` their owner
    by_key: Mapping[str, tuple[FoundChange, ...]] = dataclasses.field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()  # keys with texts that cannot be read

    @property
    def by_run(self) -> dict[ChangeKey, FoundChange]:
        """The changes by `change_key`."""
        return {change_key(one.record.run, one.ref): one for found in self.by_key.values() for one in found}


def owner_of(workload: Workload) -> ObjectRef:
    """The object whose changes count together: for Jobs of a CronJob, the CronJob."""
    return workload.starter or workload.ref


def key_of(owner: ObjectRef) -> str:
    """The key of an owner: by its name, which a recreated object also has."""
    return hashlib.sha256(owner.full_name.encode()).hexdigest()[:20]


def part_of(key: str) -> int:
    """The number of the part with a key."""
    return int(key[:4], 16) % PARTS


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
    starter = None if ref.full_name == owner.full_name else owner
    return FoundChange(ref, msgspec.structs.replace(record, edits=(), pending_edits=()), starter=starter)


def merge_memories(parts: Iterable[ChangeMemory]) -> ChangeMemory:
    """All parts together."""
    parts = list(parts)
    by_key = {key: found for part in parts for key, found in part.by_key.items()}
    return ChangeMemory(by_key, frozenset().union(*(part.unreadable for part in parts)))


def remembered_record(record: ChangeRecord, workload: Workload) -> FoundChange:
    """The summary that the memory keeps of a change that is about to be made to a workload.

    A scale-up that leaves nothing to undo ends the changes before it, and itself.
    """
    is_undone = record.action == Action.SCALE_UP and not record.edits
    kept = msgspec.structs.replace(
        record.summary,
        end=ChangeOutcome.SCALE_UP if is_undone else None,
        ended=record.at if is_undone else None,
        generation=workload.generation,
        idle_seconds=record.idle_seconds,
        priority_class=record.priority_class,
        manifest_digest=record.manifest_digest,
        wanted_by=record.wanted_by,
        cost_per_hour=record.cost_per_hour,
        currency=record.currency,
    )
    return FoundChange(workload.ref, kept)


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
        _as_known(one, change, workload)
        for one in before
        if at - one.at < MONTH and not was_never_made(one, workload) and not _is_same(one, change)
    ]
    while len(kept) >= MOST:
        grown = next((place for place, one in enumerate(kept) if one.record.action == Action.SCALE_UP), None)
        kept = [_joined(kept[0], kept[1]), *kept[2:]] if grown is None else kept[:grown] + kept[grown + 1 :]
    known = {**parse_memory(texts).by_key, key: (*kept, change)}
    changes: dict[str, str | None] = dict.fromkeys(
        key for key, found in known.items() if all(at - one.at >= MONTH for one in found)
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
    return all(one.record.end is ChangeOutcome.REJECTED for one in found)


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


def _as_known(one: FoundChange, change: FoundChange, workload: Workload) -> FoundChange:
    """An earlier change before another one of the same workload, with its end as its object shows it until then."""
    shown = {(past.run, past.at): past for past in workload.past}
    if past := shown.get((one.record.run, one.at)):
        one = _ended(one, past.end, past.ended)
    is_undone = change.record.end is ChangeOutcome.SCALE_UP and one.ref == change.ref
    return _ended(one, ChangeOutcome.SCALE_UP, change.at) if is_undone else one


def _ended(change: FoundChange, end: ChangeOutcome | None, at: datetime.datetime | None) -> FoundChange:
    """A change with its end; one that has ended before stays as it is."""
    if change.record.end is not None:
        return change
    return dataclasses.replace(change, record=msgspec.structs.replace(change.record, end=end, ended=at))


def with_end(
    texts: _Texts, ref: ObjectRef, end: ChangeOutcome, at: datetime.datetime
) -> dict[str, str | None]:
    """The new texts of a part in which all changes of a workload have ended."""
    changes: dict[str, str | None] = {}
    for key, found in parse_memory(texts).by_key.items():
        after = tuple(_ended(one, end, at) if one.ref.full_name == ref.full_name else one for one in found)
        if after != found:
            changes[key] = _text(found[0].starter or found[0].ref, after)
    return changes


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


def _is_same(one: FoundChange, other: FoundChange) -> bool:
    ends = {one.record.end, other.record.end}
    return one.ref == other.ref and (one.record.run == other.record.run or ends == {ChangeOutcome.REJECTED})


def _text(owner: ObjectRef, changes: Iterable[FoundChange]) -> str:
    records = [
        msgspec.structs.replace(
            one.record,
            at=one.at.astimezone(datetime.UTC),
            workload=None if one.ref == owner else one.ref,
        )
        for one in changes
    ]
    return msgspec.json.encode(_OwnerChanges(owner, records)).decode()


def was_never_made(change: FoundChange, workload: Workload) -> bool:
    """Whether the object is the same generation as before the change, and all its pods are older."""
    if change.record.end is not None:
        return False  # it ended, or was rejected, which is kept
    is_as_it_was = (change.ref, change.record.generation) == (workload.ref, workload.generation)
    began = [pod.created for pod in workload.pods if not pod.is_terminating]
    return is_as_it_was and bool(began) and all(one and one < change.at for one in began)


def with_remembered_changes(fleet: Fleet, memory: ChangeMemory | None) -> Fleet:
    """The fleet with the changes of the memory, as its objects show how they ended; without a memory, as it is."""
    if memory is None:
        return fleet
    there = {workload.ref.full_name: workload for workload in fleet.workloads}
    by_key: dict[str, list[FoundChange]] = {}
    for key, found in memory.by_key.items():
        names = (one.ref.full_name for one in found)
        shown = [
            _settled(one, there.get(name), fleet.recorded_at.get(name))
            for one, name in zip(found, names, strict=True)
        ]
        by_key[key] = [one for one in shown if one is not None]
    changes = [
        dataclasses.replace(one, record=msgspec.structs.replace(one.record, gpus=max(one.record.gpus, 0)))
        for found in by_key.values()
        for one in found
        if one.record.takes
    ]
    problems = [
        f"ConfigMaps {NAME}-*: the key {key[:40]!r} cannot be read; its owner counts as changed right now"
        for key in sorted(memory.unreadable)
    ]
    return dataclasses.replace(
        fleet,
        workloads=tuple(_with_past(workload, by_key, memory.unreadable) for workload in fleet.workloads),
        changes=tuple(sorted(changes, key=lambda change: (change.at, change.ref))),
        problems=(*fleet.problems, *problems),
    )


def _settled(
    change: FoundChange, workload: Workload | None, recorded_at: datetime.datetime | None
) -> FoundChange | None:
    """A change as objects show it: with its end, or in effect; None if it was never made.

    `recorded_at` is the time of the undo record about its workload; that also undoes all changes before it.
    """
    is_recorded = recorded_at is not None and recorded_at >= change.at
    if change.record.end is not None:
        return change
    if workload is None:
        return dataclasses.replace(change, is_recorded=is_recorded or change.record.action == Action.EVICT)
    if noted := earlier_ends(workload.annotations).get(change.record.run):
        return _ended(change, noted.end, noted.ended)
    began = sorted(pod.created for pod in workload.pods if not pod.is_terminating and pod.created)
    since = [one for one in began if one >= change.at]
    is_stop = change.record.action in STOPS
    if is_recorded and not (since and is_stop):
        return change
    if not is_recorded and was_never_made(change, workload):
        return None
    # After a scale-down or resize there are older and younger pods; which one shows the revert is unknown.
    back = (since[0] if is_stop else since[-1]) if since else change.at
    return _ended(change, ChangeOutcome.REVERTED, back)


def _with_past(
    workload: Workload, by_key: Mapping[str, Sequence[FoundChange]], unreadable: frozenset[str]
) -> Workload:
    key = key_of(owner_of(workload))
    found = [one.record for one in by_key.get(key, ())]
    runs = {one.run for one in found}
    past = [one.summary for one in found] + [one for one in workload.past if one.run not in runs]
    if key in unreadable:
        past.append(UNREADABLE)
    pauses = [workload.came_back_after] if workload.came_back_after else []
    pauses += [
        pause_of(one.idle_seconds, one.at, one.ended)
        for one in found
        if one.action in STOPS and one.end is ChangeOutcome.REVERTED and one.ended is not None
    ]
    past.sort(key=lambda change: change.at)
    return dataclasses.replace(workload, past=tuple(past), came_back_after=max(pauses, default=None))


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
        """Around the request that makes a change: keeps it before, and restores the text if the request is refused.

        Raises:
            ClusterError: It could not be kept; then nothing was sent.
            ValueError: There is no room for it.
        """
        change, key = remembered_record(record, workload), key_of(owner_of(workload))
        part = self._part(workload)
        before: dict[str, str | None] = {}

        def add(texts: _Texts) -> dict[str, str | None]:
            before[key] = texts.get(key)
            return with_change(texts, change, workload, at)

        part.change(add)
        try:
            yield
        except RequestRefused:
            try:
                part.change(lambda _: before)
            except ClusterError as error:
                log.warning("%s: a refused change stays in the memory: %s", part.place, error)
            raise

    def end(self, ref: ObjectRef, end: ChangeOutcome, at: datetime.datetime) -> None:
        """Record how the changes of a workload in effect ended.

        A failure is only logged: then the object, which has no undo record any more, shows that somebody reverted them.
        """
        own = part_of(key_of(ref))
        found: dict[str, str | None] = {}

        def ended(texts: _Texts) -> dict[str, str | None]:
            found.update(with_end(texts, ref, end, at))
            return found

        try:
            # Jobs of a CronJob are under the key of that.
            for part in (self._parts[own], *self._parts[:own], *self._parts[own + 1 :]):
                if not found:
                    part.change(ended)
        except (ClusterError, ConfigurationError) as error:
            log.info("%s: that changes of %s ended is not recorded: %s", self.place, ref, error)

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
