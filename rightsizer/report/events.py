"""Kubernetes Events and notifications about changes, for the owners of workloads, and about backtests. Pure.

Names of workloads may hold anything: in a Slack text nothing of them is markup.
https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/
https://docs.slack.dev/messaging/formatting-message-text/
"""

import dataclasses
import datetime
import hashlib
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from rightsizer.config import FIELD_MANAGER
from rightsizer.kinds import CONTROL_OBJECT_KINDS, KINDS
from rightsizer.kinds.kind import Kind
from rightsizer.kinds.notices import answers
from rightsizer.kube.object_names import api_path, shell_command
from rightsizer.model import Action, Decision, ObjectRef, Outcome, Result
from rightsizer.report.backtest import Backtest, backtest_document, share_of
from rightsizer.report.documents import API_VERSION, outcome_document, stamp
from rightsizer.text import count, money, number, safe

MAX_MESSAGE = 1000
"""The API server refuses more than 1024 characters."""


def event_of(decision: Decision, row: Kind, *, run: str, at: datetime.datetime) -> tuple[str, dict[str, Any]]:
    """Collection path and Event for a change that was made."""
    ref, words = decision.workload.ref, "; ".join(decision.finding.words)
    why = f"({decision.finding.name}; rule {decision.rule}): {words}"
    if decision.announced and decision.due:
        when = decision.due.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        told = answers(ref, decision.due)
        message = f"{count(decision.workload.gpus)} will be freed by {decision.announced} after {when}"
        message = f"{message}; {told} {why}" if told else f"{message} {why}"
        return _event(ref, _NOTICE, message, run=run, at=at)
    freed = decision.frees
    message = f"{f'frees {count(freed)}' if freed >= 0 else f'adds {count(-freed)}'} {why}"
    if decision.action is not Action.SCALE_UP:
        message += ". Undo: " + shell_command("gpu-rightsizer", "undo", str(ref))
    return _event(ref, _reason(decision, row), message, run=run, at=at)


_NOTICE = "Notice"
_REASONS = {
    Action.SCALE_DOWN: "ScaledDown",
    Action.SCALE_UP: "ScaledUp",
    Action.RESIZE: "Resized",
    Action.RESLICE: "Resliced",
}


def _reason(decision: Decision, row: Kind) -> str:
    """Reason of the Event, in Kubernetes's CamelCase."""
    of_stop = row.stop.reason if row.stop else ""
    return _REASONS.get(decision.action, of_stop) if decision.action else of_stop


@dataclasses.dataclass(frozen=True, slots=True)
class ChangeEvent:
    """An Event about an earlier change: its reason, and its message with `run` and `what` to fill in."""

    reason: str
    message: str
    is_warning: bool = False

    def of(self, ref: ObjectRef, what: str, *, run: str, at: datetime.datetime) -> tuple[str, dict[str, Any]]:
        """Collection path and Event."""
        message = self.message.format(run=run, what=what)
        return _event(ref, self.reason, message, run=run, at=at, is_warning=self.is_warning)


RESTORED = ChangeEvent("Restored", "The change of run {run} was undone: {what}")
REVERTED = ChangeEvent(
    "Reverted", "Someone reverted the change of run {run}, so it is not repeated soon: {what}"
)
CONFIRMED = ChangeEvent("Confirmed", "Healthy after the change by run {run}: {what}")
COMPLETED = ChangeEvent("Shrunk", "Run {run} suspended it to change it; it runs again: {what}")
ROLLED_BACK = ChangeEvent(
    "RolledBack",
    "The change of run {run} was rolled back, because the workload was unhealthy: {what}",
    is_warning=True,
)
CANCELLED = ChangeEvent(
    "RolledBack", "Run {run} suspended it to change it, but did not change it: {what}", is_warning=True
)
NOT_FREED = ChangeEvent(
    "NotFreed", "The change of run {run} has not freed the GPUs yet: {what}", is_warning=True
)
_CHANGE_EVENTS = (RESTORED, REVERTED, CONFIRMED, COMPLETED, ROLLED_BACK, CANCELLED, NOT_FREED)
REASONS = frozenset(
    {
        _NOTICE,
        *_REASONS.values(),
        *(event.reason for event in _CHANGE_EVENTS),
        *(row.stop.reason for row in (*KINDS, *CONTROL_OBJECT_KINDS) if row.stop is not None),
    }
)
"""Reasons of all Events; the admission guardrails allow no other."""


def _event(
    ref: ObjectRef, reason: str, message: str, *, run: str, at: datetime.datetime, is_warning: bool = False
) -> tuple[str, dict[str, Any]]:
    suffix = hashlib.sha256(f"{run}/{reason}/{ref}/{at.isoformat()}".encode()).hexdigest()[:16]
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{ref.name[:230]}.{suffix}", "namespace": ref.namespace},
        "involvedObject": {
            "apiVersion": ref.api_version,
            "kind": ref.kind,
            "namespace": ref.namespace,
            "name": ref.name,
            "uid": ref.uid,
        },
        "type": "Warning" if is_warning else "Normal",
        "reason": reason,
        "message": message[:MAX_MESSAGE],
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "firstTimestamp": stamp(at),
        "lastTimestamp": stamp(at),
        "count": 1,
    }
    return api_path("v1", ref.namespace, "events"), event


_MOST = 20
"""Maximum number of items per message; chats cut longer ones."""
_WORDS = {
    "notice": "will be changed",
    "change": "changed",
    "rollback": "rolled back",
    "failure": "went wrong",
}
_FAILED = frozenset({Result.REFUSED, Result.UNKNOWN})


def occasion_of(outcome: Outcome) -> str:
    """What an outcome is an occasion for: notice, change, rollback or failure; empty if it is none."""
    if outcome.result in _FAILED:
        return "failure"
    if outcome.result is not Result.DONE:
        return ""
    if outcome.action == Action.NOTICE:
        return "notice"
    return "rollback" if outcome.action in {"undo", "rollback"} else "change"


def webhook_message(run: str, outcomes: Sequence[Outcome]) -> Mapping[str, Any]:
    """A document of kind Notification, with the items of an Outcome document and the occasion of each."""
    document = outcome_document(run, outcomes, at=outcomes[-1].at)
    items = [
        {**item, "occasion": occasion_of(outcome)}
        for item, outcome in zip(document["items"], outcomes, strict=True)
    ]
    return {**document, "apiVersion": API_VERSION, "kind": "Notification", "items": items}


def slack_message(run: str, outcomes: Sequence[Outcome], *, answer_url: str = "") -> Mapping[str, Any]:
    """A text of some lines, and the command that undoes the changes.

    A notice ends with a link by the template `answer_url`: a button would need an endpoint that answers Slack.
    """
    lines = [f"*gpu-rightsizer*, run {run}"]
    for outcome in outcomes[:_MOST]:
        words = _WORDS[occasion_of(outcome)]
        gpus = f" ({count(abs(outcome.gpus))})" if outcome.gpus else ""
        link = _link(answer_url, outcome.ref) if answer_url and occasion_of(outcome) == "notice" else ""
        lines.append(
            f"• {_plain(str(outcome.ref))} {words}: {_plain(outcome.action)}{gpus}: {_plain(outcome.detail)}{link}"
        )
    if len(outcomes) > _MOST:
        lines.append(f"… and {len(outcomes) - _MOST} more")
    if any(occasion_of(outcome) == "change" for outcome in outcomes):
        lines.append(f"Undo: `gpu-rightsizer undo --run {run}`")
    return _slack(lines)


def _slack(lines: Sequence[str]) -> Mapping[str, Any]:
    return {"text": "\n".join(lines), "unfurl_links": False, "unfurl_media": False}


def backtest_webhook_message(result: Backtest, place: str) -> Mapping[str, Any]:
    """A document of kind Notification: the sums of each policy, and where the report is."""
    document = backtest_document(result)
    head = ("apiVersion", "begin", "end", "source", "workloads", "gpus", "currency", "unknown")
    sums = ("name", "heldGpuHours", "freedGpuHours", "saved", "stops", "returned", "mayReturn")
    items = [
        {**{key: judge[key] for key in sums}, "occasion": "backtest"}
        for judge in document["judges"]
        if judge["name"] in result.policies
    ]
    return {
        **{key: document[key] for key in head},
        "kind": "Notification",
        "days": result.days,
        "report": place,
        "items": items,
    }


def backtest_slack_message(result: Backtest, place: str) -> Mapping[str, Any]:
    """A line for each policy, and where the report is."""
    lines = [f"*gpu-rightsizer*, backtest of {result.days:g} days to {result.end}"]
    for one in result.judged[:_MOST]:
        worth = "of unknown price" if one.saved is None else f"{money(one.saved)} {_plain(result.currency)}"
        by_day = f"{number(one.freed.value / result.days)} a day, " if result.days else ""
        freed = f"{number(one.freed.value)} GPU-hours ({by_day}{share_of(one)} of those held, {worth})"
        stops = count(round(one.stops.value), "stop")
        lines.append(
            f"• {_plain(one.judge)} would have freed {freed}: {stops}, {one.returned.value:.0f} returned"
        )
    if len(result.judged) > _MOST:
        lines.append(f"… and {len(result.judged) - _MOST} more")
    lines.append(f"Report: {_plain(place)}")
    return _slack(lines)


def _link(template: str, ref: ObjectRef) -> str:
    fields = {"namespace": ref.namespace, "kind": ref.kind, "name": ref.name}
    for field, value in fields.items():
        template = template.replace(f"{{{field}}}", urllib.parse.quote(value, safe=""))
    return f" <{template.replace('&', '&amp;')}|Answer>"


def _plain(text: str) -> str:
    """Without control characters, mentions and markup."""
    escaped = safe(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\u200b{one}" if one in "*_~`@" else one for one in escaped)
