"""The notice that a workload's owner gets before it is changed, as an annotation on it. Pure.

It holds for what it announced, and only as long as the workload has not worked since.
"""

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec

from rightsizer.model import Action, Decision, Finding, FindingName, Workload
from rightsizer.notes import Instant, Text, Word, decoded, require_ours
from rightsizer.observe.records import NOTICE_ANNOTATION

_MAX_REASON = 600
_AT_REST = frozenset({FindingName.IDLE, FindingName.PARKED, FindingName.FINISHED})


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


def holds(notice: Notice, finding: Finding, action: Action, at: datetime.datetime) -> bool:
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
        action=(decision.announced or Action.NOTIFY).value,
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
