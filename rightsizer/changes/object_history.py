"""What we did to an object lately, as the object itself remembers it: the annotation `history`. Pure.

It is written in the very patch that makes a change or takes it back, so it is as true as the object. Whoever may
annotate the object can write anything there: what cannot be read counts as a change made right now.
"""

import dataclasses
import datetime
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rightsizer.config import PREFIX
from rightsizer.model import Action, ChangeOutcome, PastChange
from rightsizer.text import Gpus, Instant, Word, decoded, require_ours

HISTORY_ANNOTATION = PREFIX + "history"
MOST = 8
"""Entries that are kept."""
MOST_BYTES = 1024
"""All annotations of an object share 256 KiB (API conventions); what is ours stays far below 4 KiB together."""

UNREADABLE = PastChange(at=None)


class _Entry(msgspec.Struct, omit_defaults=True):
    """One change, as it is written."""

    at: Instant
    run: Word
    action: Word
    gpus: Gpus = 0
    by: Word = ""
    end: ChangeOutcome | None = None
    ended: Instant | None = None

    def __post_init__(self) -> None:
        require_ours(self.at, self.ended)


def read_history(annotations: Mapping[str, str]) -> tuple[PastChange, ...]:
    """What an object remembers, oldest first as it was written; UNREADABLE in place of each that cannot be read."""
    text = annotations.get(HISTORY_ANNOTATION)
    if text is None:
        return ()
    try:
        raws = decoded(text, list[msgspec.Raw])
    except ValueError:
        return (UNREADABLE,)
    return tuple(map(_read, raws))


def _read(raw: msgspec.Raw) -> PastChange:
    try:
        entry = decoded(bytes(raw).decode(), _Entry)
    except ValueError:
        return UNREADABLE
    return PastChange(entry.at, entry.run, entry.action, entry.gpus, entry.by, entry.end, entry.ended)


def write_history(past: Sequence[PastChange]) -> str:
    """The annotation's text, within its bounds.

    The oldest go first, and of all that there is what only gave something back: what took something away is counted.
    """
    kept = [change for change in past if change.at is not None]
    while len(kept) > 1 and (len(kept) > MOST or len(_encoded(kept)) > MOST_BYTES):
        first_grown = (place for place, change in enumerate(kept[:-1]) if not change.takes)
        del kept[next(first_grown, 0)]
    return _encoded(kept).decode()


def _encoded(past: Iterable[PastChange]) -> bytes:
    return msgspec.json.encode([_entry(change, change.at) for change in past if change.at is not None])


def _entry(change: PastChange, at: datetime.datetime) -> _Entry:
    return _Entry(
        at=_second(at),
        run=change.run,
        action=change.action,
        gpus=change.gpus,
        by=change.by,
        end=change.end,
        ended=_second(change.ended) if change.ended else None,
    )


def _second(at: datetime.datetime) -> datetime.datetime:
    return at.astimezone(datetime.UTC).replace(microsecond=0)


def with_record(past: Sequence[PastChange], record: PastChange) -> tuple[PastChange, ...]:
    """What is remembered, and the change that an undo record tells of, should it be missing there."""
    known = any((change.run, change.action) == (record.run, record.action) for change in past)
    return tuple(past) if known else (*past, record)


def with_end(past: Iterable[PastChange], end: ChangeOutcome, at: datetime.datetime) -> tuple[PastChange, ...]:
    """What is remembered once all that still stands was taken back: one undo takes several changes back at once."""
    return tuple(
        change if change.end or change.at is None else dataclasses.replace(change, end=end, ended=at)
        for change in past
    )


STOPS = frozenset({Action.SCALE_TO_ZERO, Action.SUSPEND, Action.EVICT})
"""After these nothing runs, so that a pod which began later says that someone put it back."""


def with_noticed_reverts(
    past: Iterable[PastChange], began: Iterable[datetime.datetime | None]
) -> tuple[PastChange, ...]:
    """What is remembered, where stops that still stand by our notes, but of which pods came back, have ended.

    Args:
        past: As the object remembers it.
        began: When its pods that live were created.
    """
    begins = sorted(begin for begin in began if begin is not None)

    def seen(change: PastChange) -> PastChange:
        if change.end or change.at is None or change.action not in STOPS:
            return change
        back = next((begin for begin in begins if begin >= change.at), None)
        return dataclasses.replace(change, end=ChangeOutcome.REVERTED, ended=back) if back else change

    return tuple(map(seen, past))
