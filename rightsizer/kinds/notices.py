"""The notice to a workload's owner before a change, as an annotation on the workload. Pure.

It is valid for the announced action, and only until the workload is active again.
"""

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from rightsizer.changes.record_codec import (
    CAME_BACK_ANNOTATION,
    NOTICE_ANNOTATION,
    RELEASE_ANNOTATION,
    RESUMED_ANNOTATION,
    SNOOZE_ANNOTATION,
)
from rightsizer.config import parse_duration
from rightsizer.kinds.patches import resumed_at
from rightsizer.kube.object_names import kubectl
from rightsizer.model import Action, Decision, Finding, FindingName, ObjectRef, Workload
from rightsizer.model.change_record import Instant, Text, Word
from rightsizer.text import decoded, read_instant, require_ours

_MAX_REASON = 600
_AT_REST = frozenset({FindingName.IDLE, FindingName.FINISHED})
_LAPSES = datetime.timedelta(days=7)
"""Time past its due date after which a notice is about an earlier episode; it outlasts a weekly maintenance window."""


class Notice(msgspec.Struct, frozen=True, rename="camel"):
    """An announced action; it is carried out from `due` on."""

    at: Instant
    due: Instant
    action: Word
    finding: Word
    reason: Text
    run: Word

    def __post_init__(self) -> None:
        require_ours(self.at, self.due)


def read_notice(annotations: Mapping[str, str]) -> Notice | None:
    """The notice that a workload carries, if any.

    Raises:
        ValueError: It cannot be read.
    """
    text = annotations.get(NOTICE_ANNOTATION)
    return decoded(text, Notice) if text else None


def parse_notice(annotations: Mapping[str, str]) -> Notice | None:
    """The notice that a workload carries; None without a readable one, so that a new one is given."""
    try:
        return read_notice(annotations)
    except ValueError:
        return None


def is_notice_valid(notice: Notice, finding: Finding, action: Action, at: datetime.datetime) -> bool:
    """Whether a notice announced this action, and the workload was not active since.

    For findings other than idleness, the notice must be about the same finding, and due for no more than a week.
    """
    if notice.action != action.value or notice.at > at:
        return False
    if finding.idle_s is None or finding.name not in _AT_REST:
        return notice.finding == finding.name.value and at < notice.due + _LAPSES
    return notice.at >= at - datetime.timedelta(seconds=finding.idle_s)


def notice_patch(
    decision: Decision, fresh: Workload, *, run: str, at: datetime.datetime
) -> Mapping[str, Any]:
    """The one patch that puts the notice of a decision on the object as it was read."""
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
        "annotations": {
            NOTICE_ANNOTATION: text,
            # An answer counts for the notice that it follows, so an earlier one goes.
            **({RELEASE_ANNOTATION: None} if RELEASE_ANNOTATION in fresh.annotations else {}),
        },
    }
    return {"metadata": metadata}


def is_released(annotations: Mapping[str, str], at: datetime.datetime) -> bool:
    """Whether the owner answered the notice that the change may be made at once; who still snoozes it did not."""
    text = annotations.get(SNOOZE_ANNOTATION)
    until = None if text is None else read_instant(text, zone=datetime.UTC)
    is_snoozed = text is not None and (until is None or until > at)
    return annotations.get(RELEASE_ANNOTATION) == "true" and not is_snoozed


def answers(ref: ObjectRef, due: datetime.datetime) -> str:
    """The owner's answers to a notice, as commands to copy; empty if the object cannot be named."""
    until = (due + datetime.timedelta(days=1)).date().isoformat()
    commands = [
        kubectl(ref, "annotate", f"{key}={text}")
        for key, text in ((RELEASE_ANNOTATION, "true"), (SNOOZE_ANNOTATION, until))
    ]
    return f"free it now: {commands[0]}; keep it longer: {commands[1]}" if all(commands) else ""


_Annotations = Mapping[str, str]


def _came_back(annotations: _Annotations) -> None:
    parse_duration(annotations[CAME_BACK_ANNOTATION])


def _snooze(annotations: _Annotations) -> None:
    if read_instant(annotations[SNOOZE_ANNOTATION], zone=datetime.UTC) is None:
        message = "no instant"
        raise ValueError(message)


def _release(annotations: _Annotations) -> None:
    if annotations[RELEASE_ANNOTATION] not in {"true", "false"}:
        message = "neither true nor false"
        raise ValueError(message)


_READERS: Mapping[str, tuple[Callable[[_Annotations], object], str]] = {
    CAME_BACK_ANNOTATION: (_came_back, "it counts as the longest possible pause"),
    NOTICE_ANNOTATION: (read_notice, "a new notice is given"),
    RELEASE_ANNOTATION: (_release, "it is no answer; true frees the GPUs"),
    RESUMED_ANNOTATION: (resumed_at, "it counts as restored just now"),
    SNOOZE_ANNOTATION: (_snooze, "it counts as the longest time that the policy allows"),
}


def unreadable_notes(workloads: Iterable[Workload]) -> Iterator[str]:
    """A message for each unreadable annotation."""
    for workload in workloads:
        for key, (read, instead) in _READERS.items():
            if key not in workload.annotations:
                continue
            try:
                read(workload.annotations)
            except ValueError:
                yield f"{workload.ref}: its annotation {key} cannot be read; {instead}"
