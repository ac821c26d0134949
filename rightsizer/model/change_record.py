"""A change that gpu-rightsizer made, as it is stored everywhere, and where the record of it was found."""

import dataclasses
import datetime
from typing import Annotated, Any, Final

import msgspec

from rightsizer.model.cluster_objects import ObjectRef
from rightsizer.model.names import Action, ChangeOutcome, FindingName

MOST_WANTED: Final = 4
"""Pending pods that a record names."""
LONGEST_WORD: Final = 63
"""The length of a label value, which `run` and `instance` are."""
MOST_GPUS: Final = 100_000
"""Maximum of one change; the largest clusters have fewer."""
LONGEST_PATH: Final = 24
"""Keys that lead to a field of an object."""
LONGEST_KEY: Final = 512
"""Characters of each."""

Instant = Annotated[datetime.datetime, msgspec.Meta(tz=True)]
Word = Annotated[str, msgspec.Meta(max_length=LONGEST_WORD, pattern=r"^[ -~]*\Z")]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Price = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
Currency = Annotated[str, msgspec.Meta(pattern=r"^([A-Z]{3})?\Z")]
Gpus = Annotated[float, msgspec.Meta(ge=-MOST_GPUS, le=MOST_GPUS)]
Pods = Annotated[int, msgspec.Meta(ge=0, le=MOST_GPUS)]
Seconds = Annotated[int, msgspec.Meta(ge=0, le=36525 * 86400)]
Digest = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")]
Steps = Annotated[
    tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_KEY)], ...],
    msgspec.Meta(min_length=1, max_length=LONGEST_PATH),
]

UNKNOWN_TIME: Final = datetime.datetime.max.replace(tzinfo=datetime.UTC)


class Edit(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One field of an object before and after a change: JSON values, None where it is absent.

    Attributes:
        created_parents: How many mappings above the field the edit creates; undoing it removes them if empty.
    """

    path: Steps
    before: Any
    after: Any
    created_parents: Annotated[int, msgspec.Meta(ge=0, le=LONGEST_PATH)] = 0

    @property
    def reversed(self) -> "Edit":
        """The edit that undoes it."""
        return Edit(self.path, self.after, self.before, self.created_parents)


class ChangeRecord(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One change, as the undo record, the history, the memory and saved manifests store it.

    Attributes:
        at: When it was made; UNKNOWN_TIME if the stored record cannot be read.
        action: The value of an `Action`.
        gpus: GPUs that it freed; negative if it added some.
        by: The instance that made it; empty if unknown.
        end: How it was reverted; None while it is in effect.
        ended: When it was reverted, or when that was noticed.
        workload: The changed workload, if another object carries the record.
        generation: `metadata.generation` of the object right before the change.
        idle_seconds: How long the workload had been idle.
        priority_class: Of its pods, empty if they had none; None if unknown.
        edits: The changed fields; empty for an evicted pod.
        pending_edits: Edits that are made once the pods of a stopped workload are gone.
        pending_end: How the change ends once the pods of a workload that was stopped for a rollback are gone.
        healthy_within_seconds: Time in which a workload that was made smaller must become healthy.
        confirmed: Whether it was seen healthy.
        pods: Pods that the workload should then have, per replica if its kind has replicas; 0 if unknown.
        manifest_digest: SHA-256 of the saved manifest of an evicted pod; only the memory has it.
        wanted_by: Pending pods for which it was made; the history lacks them.
        cost_per_hour: Of these GPUs in `currency` when it was made; 0 without a known price. Only the memory has it.
    """

    at: Instant
    run: Word
    action: Word
    gpus: Gpus = 0
    by: Word = ""
    end: ChangeOutcome | None = None
    ended: Instant | None = None
    workload: ObjectRef | None = None
    generation: int = 0
    idle_seconds: Seconds = 0
    priority_class: str | None = None
    rule: Text = ""
    finding: Text = ""
    reason: Text = ""
    edits: tuple[Edit, ...] = ()
    pending_edits: tuple[Edit, ...] = ()
    pending_end: ChangeOutcome | None = None
    healthy_within_seconds: Seconds = 0
    confirmed: bool = False
    pods: Pods = 0
    manifest_digest: Digest = ""
    wanted_by: Annotated[tuple[ObjectRef, ...], msgspec.Meta(max_length=MOST_WANTED)] = ()
    cost_per_hour: Price = 0
    currency: Currency = ""
    version: int = 1

    @property
    def is_readable(self) -> bool:
        """False for the record that stands in for one that cannot be read."""
        return self.at != UNKNOWN_TIME

    @property
    def takes(self) -> bool:
        """Whether it took GPUs away."""
        return self.action != Action.SCALE_UP and self.end is not ChangeOutcome.REJECTED

    @property
    def is_unfinished(self) -> bool:
        """Whether the workload is only stopped until its pods are gone."""
        return bool(self.pending_edits) or self.pending_end is not None

    @property
    def leaves_some(self) -> bool:
        """Whether the workload runs on with fewer GPUs."""
        return self.action in {Action.SCALE_DOWN, Action.RESIZE, Action.RESLICE}

    @property
    def removed_unused(self) -> bool:
        """Whether it removed replicas of a workload that used none of them, so those that stay were unused before."""
        of_some = {"", FindingName.TOO_MANY_REPLICAS.value}
        return self.action == Action.SCALE_DOWN and self.finding not in of_some

    @property
    def summary(self) -> "ChangeRecord":
        """The record for the history: no fields that only an undo needs."""
        finding = self.finding if self.removed_unused else ""
        return ChangeRecord(
            self.at, self.run, self.action, self.gpus, self.by, self.end, self.ended, finding=finding
        )


UNREADABLE: Final = ChangeRecord(UNKNOWN_TIME, "", "")
"""Substitute for a record that cannot be read: it counts as a change made right now."""


@dataclasses.dataclass(frozen=True, slots=True)
class FoundChange:
    """A change record, and where it was found.

    Attributes:
        ref: The changed workload; the Secret with the manifest of an evicted pod, if that names no pod.
        carrier: The object that carries the record, if it is another one.
        starter: The CronJob or the like that created the workload.
        pools: The node pools of its pods.
        is_on_object: Whether an object or a saved manifest has the record; otherwise only the memory ConfigMaps do.
        is_remembered: Whether the memory has it, or was not read: what only an object records, anybody can forge.
    """

    ref: ObjectRef
    record: ChangeRecord
    carrier: ObjectRef | None = None
    starter: ObjectRef | None = None
    pools: tuple[str, ...] = ()
    is_on_object: bool = True
    is_remembered: bool = True

    @property
    def at(self) -> datetime.datetime:
        """The time of the change."""
        return self.record.at

    @property
    def is_in_effect(self) -> bool:
        """Whether it was made and nobody reverted it, as far as is known."""
        return self.is_on_object and self.is_remembered and self.record.end is None
