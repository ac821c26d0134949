"""What is known of earlier changes: as objects remember it, as Events told it, as a journal has it. Pure."""

import dataclasses
import datetime

import msgspec

from rightsizer.kinds.patches import UndoRecord
from rightsizer.model import ObjectRef, PastChange

INTENT = "intent"
OUTCOME = "outcome"
EFFECT = "effect"


@dataclasses.dataclass(frozen=True, slots=True)
class Recalled:
    """A change that is remembered.

    Attributes:
        ref: What was stopped or changed.
        record: What undoes it, where it still can be undone.
        by: The object that was changed in its place, where it is another one; it carries the record.
        is_told: Whether the object itself remembers; otherwise our own namespace does, since before the change.
    """

    ref: ObjectRef
    change: PastChange
    record: UndoRecord | None = None
    by: ObjectRef | None = None
    is_told: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An Event of ours, which the cluster keeps for an hour or so."""

    ref: ObjectRef
    at: datetime.datetime
    reason: str
    message: str


class JournalEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a journal.

    Attributes:
        step: Intent before the call, outcome after it, effect once it was looked at what it came to.
        reason: Of an intent, why; of an outcome, what became of it.
    """

    at: datetime.datetime
    run: str
    step: str
    namespace: str
    kind: str
    name: str
    action: str
    uid: str = ""
    gpus: float = 0
    result: str = ""
    rule: str = ""
    reason: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """What an intent and its outcome have in common."""
        return self.run, self.namespace, self.kind, self.name, self.uid, self.action
