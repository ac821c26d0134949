"""The notice that a workload's owner gets before it is changed, as an annotation on it. Pure.

It holds for what it announced, and only as long as the workload has not worked since.
"""

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from rightsizer.changes.record_codec import (
    CAME_BACK_ANNOTATION,
    NOTICE_ANNOTATION,
    RESUMED_ANNOTATION,
    SNOOZE_ANNOTATION,
)
from rightsizer.config import parse_duration
from rightsizer.kinds.patches import resumed_at
from rightsizer.model import Action, Decision, Finding, FindingName, Workload
from rightsizer.model.change_record import Instant, Text, Word
from rightsizer.text import decoded, read_instant, require_ours

_MAX_REASON = 600
_AT_REST = frozenset({FindingName.IDLE, FindingName.FINISHED})


class Notice(msgspec.Struct, frozen=True, rename="camel"):
    """What was announced, and when.

    Attributes:
        at: When it was given.
        due: From when on it may be acted upon.
        action: What will be done.
    """

    at: Instant
    due: Instant
    action: Word
    finding: Word
    reason: Text
    run: Word

    def __post_init__(self) -> None:
        require_ours(self.at, self.due)


def read_notice(annotations: Mapping[str, str]) -> Notice | None:
    """The notice that a workload carries; None where there is none.

    Raises:
        ValueError: It cannot be read.
    """
    text = annotations.get(NOTICE_ANNOTATION)
    return decoded(text, Notice) if text else None


def parse_notice(annotations: Mapping[str, str]) -> Notice | None:
    """The notice that a workload carries; None where there is none, or none that can be read: it is given anew."""
    try:
        return read_notice(annotations)
    except ValueError:
        return None


def is_notice_valid(notice: Notice, finding: Finding, action: Action, at: datetime.datetime) -> bool:
    """Whether a notice announced this, and the workload has not worked since.

    Where that is not what the finding is about (it spins, or has too much), the notice must have been about the same.
    """
    if notice.action != action.value or notice.at > at:
        return False
    if finding.idle_s is None or finding.name not in _AT_REST:
        return notice.finding == finding.name.value
    return notice.at >= at - datetime.timedelta(seconds=finding.idle_s)


def notice_patch(
    decision: Decision, fresh: Workload, *, run: str, at: datetime.datetime
) -> Mapping[str, Any]:
    """The one patch that gives the notice of a decision, to the object as it was read a moment ago."""
    notice = Notice(
        at=at.replace(microsecond=0),
        due=(decision.due or at).replace(microsecond=0),
        action=(decision.announced or Action.NOTICE).value,
        finding=decision.finding.name.value,
        reason="; ".join(decision.finding.words)[:_MAX_REASON],
        run=run,
    )
    text = msgspec.json.encode(notice).decode()
    metadata = {
        "uid": fresh.ref.uid,
        "resourceVersion": fresh.resource_version,
        "annotations": {NOTICE_ANNOTATION: text},
    }
    return {"metadata": metadata}


_Annotations = Mapping[str, str]


def _came_back(annotations: _Annotations) -> None:
    parse_duration(annotations[CAME_BACK_ANNOTATION])


def _snooze(annotations: _Annotations) -> None:
    if read_instant(annotations[SNOOZE_ANNOTATION], zone=datetime.UTC) is None:
        message = "no instant"
        raise ValueError(message)


_READERS: Mapping[str, tuple[Callable[[_Annotations], object], str]] = {
    CAME_BACK_ANNOTATION: (_came_back, "it counts as the longest pause there is"),
    NOTICE_ANNOTATION: (read_notice, "a new notice is given"),
    RESUMED_ANNOTATION: (resumed_at, "it counts as put back right now"),
    SNOOZE_ANNOTATION: (_snooze, "it counts as the longest time that the policy grants"),
}


def unreadable_notes(workloads: Iterable[Workload]) -> Iterator[str]:
    """What cannot be read, by object and annotation, in words."""
    for workload in workloads:
        for key, (read, instead) in _READERS.items():
            if key not in workload.annotations:
                continue
            try:
                read(workload.annotations)
            except ValueError:
                yield f"{workload.ref}: its annotation {key} cannot be read; {instead}"
