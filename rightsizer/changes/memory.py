"""What we took lately, as our own namespace remembers it beside the objects: texts, and what follows. Pure.

Whoever replaces an object, or creates it anew, drops our annotations with all that they remember. What is remembered
here counts where the object does not tell of it; of an object that runs, it was taken back. It is written before the
change, so it may tell of one that was never made: of an object that is as it was then, it says nothing.
"""

import dataclasses
import datetime
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from rightsizer.changes.object_history import STOPS, UNREADABLE
from rightsizer.changes.records import pause_of
from rightsizer.model import Change, ChangeOutcome, Fleet, ObjectRef, PastChange, Workload
from rightsizer.text import Gpus, Instant, Seconds, Word, decoded, require_name, require_ours

MONTH = datetime.timedelta(days=30)
"""What was longer ago is forgotten."""
NAME = "gpu-rightsizer-memory"
PARTS = 8
"""So many ConfigMaps share it: one holds 1 MiB at most (core/v1), and is written whole."""
NAMES = tuple(f"{NAME}-{part}" for part in range(PARTS))
"""All of them."""
MOST = 16
"""Entries of one owner: more than are ever made in MONTH."""
MOST_BYTES = 768 << 10
"""Of one part; some 1,000 owners, each changed as often as is ever done in MONTH."""

_Texts = Mapping[str, str]


class _Entry(msgspec.Struct, omit_defaults=True):
    """One change, as it is written; `of` says from what it was taken where that is not the owner as it is."""

    at: Instant
    run: Word
    action: Word
    of: ObjectRef | None = None
    gpus: Gpus = 0
    by: Word = ""
    generation: int = 0
    idle: Seconds = 0
    priority_class: str | None = None

    def __post_init__(self) -> None:
        require_ours(self.at)
        require_name(self.of)


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """A change that took something, as it was about to be made.

    Attributes:
        ref: What it was taken from.
        change: As the object itself is to remember it.
        generation: The object's right before.
        idle_s: So long it had not been at work.
        priority_class: Of its pods; None where that is not known.
        starter: What had made it when the time had come.
    """

    ref: ObjectRef
    change: PastChange
    generation: int
    idle_s: int = 0
    priority_class: str | None = None
    starter: ObjectRef | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ChangeMemory:
    """All that is remembered, or that of one part.

    Attributes:
        by_key: What was taken, by `key_of` its owner.
        unreadable: Keys of what cannot be read.
    """

    by_key: Mapping[str, tuple[Taken, ...]] = dataclasses.field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()


NOTHING = ChangeMemory()


def owner_of(workload: Workload) -> ObjectRef:
    """Whose changes count together: of the Jobs of one CronJob those of all."""
    return workload.starter or workload.ref


def key_of(owner: ObjectRef) -> str:
    """The key under which an owner's changes are kept: by its name, which it also has once it is created anew."""
    return hashlib.sha256("/".join(_name(owner)).encode()).hexdigest()[:20]


def part_of(key: str) -> int:
    """In which part a key stands."""
    return int(key[:4], 16) % PARTS


def _name(ref: ObjectRef) -> tuple[str, str, str]:
    return ref.full_kind, ref.namespace, ref.name


class _Kept(msgspec.Struct):
    """The changes of one owner, as they are written."""

    owner: ObjectRef
    taken: list[_Entry]

    def __post_init__(self) -> None:
        require_name(self.owner)


def parse_memory(texts: _Texts) -> ChangeMemory:
    """What one part keeps; what cannot be read keeps its owner from being changed, and nobody else."""
    by_key: dict[str, tuple[Taken, ...]] = {}
    unreadable = set()
    for key, text in texts.items():
        try:
            by_key[key] = _parsed(key, text)
        except ValueError:
            unreadable.add(key)
    return ChangeMemory(by_key, frozenset(unreadable))


def _parsed(key: str, text: str) -> tuple[Taken, ...]:
    kept = decoded(text, _Kept)
    if key_of(kept.owner) != key:
        message = "stands under the key of another"
        raise ValueError(message)
    return tuple(
        Taken(
            one.of or kept.owner,
            PastChange(one.at, one.run, one.action, one.gpus, one.by),
            one.generation,
            one.idle,
            one.priority_class,
            None if one.of is None or _name(one.of) == _name(kept.owner) else kept.owner,
        )
        for one in kept.taken
    )


def merge_memories(parts: Iterable[ChangeMemory]) -> ChangeMemory:
    """All parts together."""
    parts = list(parts)
    by_key = {key: taken for part in parts for key, taken in part.by_key.items()}
    return ChangeMemory(by_key, frozenset().union(*(part.unreadable for part in parts)))


def with_change(
    texts: _Texts, taken: Taken, workload: Workload, at: datetime.datetime
) -> dict[str, str | None]:
    """The texts of a part once a change is remembered; None for those that are too old to matter.

    Args:
        texts: As they stand.
        taken: The change.
        workload: From what it is about to be taken, as it was looked at.
        at: Now.

    Raises:
        ValueError: There is no room, or it cannot be read what stands there.
    """
    owner = owner_of(workload)
    key = key_of(owner)
    before = _parsed(key, texts[key]) if key in texts else ()
    kept = [one for one in before if _is_young(one, at) and not was_never_made(one, workload)]
    kept = [one for one in kept if not _is_same(one, taken)][-(MOST - 1) :]
    changes: dict[str, str | None] = dict.fromkeys(_old(texts, at))
    changes[key] = _text(owner, [*kept, taken])
    after = {**texts, **changes}
    if sum(len(name) + len(text or "") for name, text in after.items()) > MOST_BYTES:
        message = (
            f"there is no room to remember it: {len(texts)} owners were changed in the last {MONTH.days} days"
        )
        raise ValueError(message)
    return changes


def without_change(texts: _Texts, taken: Taken, workload: Workload) -> dict[str, str | None]:
    """The texts of a part once a change that was refused is forgotten."""
    owner = owner_of(workload)
    key = key_of(owner)
    if key not in texts:
        return {}
    kept = [one for one in _parsed(key, texts[key]) if not _is_same(one, taken)]
    return {key: _text(owner, kept) if kept else None}


def _is_same(one: Taken, other: Taken) -> bool:
    return (one.change.run, one.ref) == (other.change.run, other.ref)


def _is_young(taken: Taken, at: datetime.datetime) -> bool:
    return taken.change.at is None or at - taken.change.at < MONTH


def _old(texts: _Texts, at: datetime.datetime) -> Iterator[str]:
    for key, taken in parse_memory(texts).by_key.items():
        if not any(_is_young(one, at) for one in taken):
            yield key


def _text(owner: ObjectRef, taken: Iterable[Taken]) -> str:
    entries = [
        _Entry(
            at=one.change.at.astimezone(datetime.UTC),
            run=one.change.run,
            action=one.change.action,
            of=None if one.ref == owner else one.ref,
            gpus=one.change.gpus,
            by=one.change.by,
            generation=one.generation,
            idle=one.idle_s,
            priority_class=one.priority_class,
        )
        for one in taken
        if one.change.at is not None
    ]
    return msgspec.json.encode(_Kept(owner, entries)).decode()


def was_never_made(taken: Taken, workload: Workload) -> bool:
    """Whether a change was not made: its object is the one that it was, and all its pods are older."""
    at = taken.change.at
    is_as_it_was = (taken.ref, taken.generation) == (workload.ref, workload.generation)
    began = [pod.created for pod in workload.pods if not pod.is_terminating]
    return is_as_it_was and at is not None and bool(began) and all(one and one < at for one in began)


def with_remembered_changes(fleet: Fleet, memory: ChangeMemory) -> Fleet:
    """The fleet with what is remembered here and objects do not tell of, each change once."""
    told = {(change.run, *_name(change.ref)) for change in fleet.changes}
    there = {_name(workload.ref): workload for workload in fleet.workloads}
    by_key = {
        key: [one for one in taken if not _is_told(one, told, there.get(_name(one.ref)))]
        for key, taken in memory.by_key.items()
    }
    changes = [_as_change(one) for taken in by_key.values() for one in taken]
    problems = [
        f"ConfigMaps {NAME}-*: the key {key[:40]!r} cannot be read; whoever it is about counts as changed right now"
        for key in sorted(memory.unreadable)
    ]
    return dataclasses.replace(
        fleet,
        workloads=tuple(_reminded(workload, by_key, memory.unreadable) for workload in fleet.workloads),
        changes=tuple(sorted((*fleet.changes, *changes), key=lambda change: (change.at, change.ref))),
        problems=(*fleet.problems, *problems),
    )


def _is_told(taken: Taken, told: set[tuple[str, str, str, str]], workload: Workload | None) -> bool:
    """Whether an object tells of a change itself, or shows that it was not made."""
    if (taken.change.run, *_name(taken.ref)) in told:
        return True
    if workload is None:
        return False
    return taken.change.run in {one.run for one in workload.past} or was_never_made(taken, workload)


def _as_change(taken: Taken) -> Change:
    change = taken.change
    assert change.at is not None  # noqa: S101 - it was read so
    return Change(
        taken.ref,
        change.at,
        max(change.gpus, 0),
        change.run,
        starter=taken.starter,
        stands=False,
        priority_class=taken.priority_class,
        is_told=False,
    )


def _reminded(
    workload: Workload, by_key: Mapping[str, Sequence[Taken]], unreadable: frozenset[str]
) -> Workload:
    """A workload with what it does not tell of itself."""
    key = key_of(owner_of(workload))
    past = list(workload.past)
    pauses = [workload.came_back_after] if workload.came_back_after else []
    for one in by_key.get(key, ()):
        back = _back(one, workload)
        if back is None:
            past.append(one.change)
            continue
        past.append(dataclasses.replace(one.change, end=ChangeOutcome.REVERTED, ended=back))
        if one.change.action in STOPS and one.change.at is not None:
            pauses.append(pause_of(one.idle_s, one.change.at, back))
    if key in unreadable:
        past.append(UNREADABLE)
    if len(past) == len(workload.past):
        return workload
    past.sort(key=lambda change: change.at.timestamp() if change.at else float("inf"))
    return dataclasses.replace(workload, past=tuple(past), came_back_after=max(pauses, default=None))


def _back(taken: Taken, workload: Workload) -> datetime.datetime | None:
    """When an object had back what it knows nothing of any more; None of what was taken from another one."""
    at = taken.change.at
    if at is None or _name(taken.ref) != _name(workload.ref):
        return None
    began = [pod.created for pod in workload.pods if not pod.is_terminating and pod.created]
    since = [one for one in began if one >= at]
    # What was only shrunk has pods that began before and after: of these nobody knows which one tells of it.
    return min(since, default=at) if taken.change.action in STOPS else max(since, default=at)
