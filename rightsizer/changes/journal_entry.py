"""Lines of the journal, and Events of changes that the cluster still has. Pure."""

import dataclasses
import datetime

import msgspec

from rightsizer.model import ObjectRef

INTENT = "intent"
OUTCOME = "outcome"
EFFECT = "effect"


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An Event about a change; the cluster keeps it for an hour or so."""

    ref: ObjectRef
    at: datetime.datetime
    reason: str
    message: str


class JournalEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a journal.

    Attributes:
        step: INTENT before the request, OUTCOME after it, EFFECT once that was verified.
        reason: Why (INTENT), or the details of the result.
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
        """Equal for an intent and its outcome."""
        return self.run, self.namespace, self.kind, self.name, self.uid, self.action
