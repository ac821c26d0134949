"""Messages to people about outcomes: what a webhook gets as JSON, and a Slack-compatible one as text. Pure.

Names of workloads come from the cluster and may hold anything: in a Slack text nothing of them is markup.
https://docs.slack.dev/messaging/formatting-message-text/
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rightsizer.model import Action, Outcome, Result
from rightsizer.report.documents import API_VERSION, outcome_document
from rightsizer.text import count, safe

_MOST = 20
"""So many items stand in one text; chats cut longer ones."""
_WORDS = {"notice": "will be changed", "change": "changed", "rollback": "put back", "failure": "went wrong"}
_FAILED = frozenset({Result.REFUSED, Result.UNKNOWN})


def occasion_of(outcome: Outcome) -> str:
    """What an outcome is an occasion for: notice, change, rollback or failure; empty where nobody need be told."""
    if outcome.result in _FAILED:
        return "failure"
    if outcome.result is not Result.DONE:
        return ""
    if outcome.action == Action.NOTIFY:
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


def slack_message(run: str, outcomes: Sequence[Outcome]) -> Mapping[str, Any]:
    """A text of some lines, and how to take it all back."""
    lines = [f"*gpu-rightsizer*, run {run}"]
    for outcome in outcomes[:_MOST]:
        words = _WORDS[occasion_of(outcome)]
        gpus = f" ({count(abs(outcome.gpus))})" if outcome.gpus else ""
        lines.append(
            f"• {_plain(str(outcome.ref))} {words}: {_plain(outcome.action)}{gpus}: {_plain(outcome.detail)}"
        )
    if len(outcomes) > _MOST:
        lines.append(f"… and {len(outcomes) - _MOST} more")
    if any(occasion_of(outcome) == "change" for outcome in outcomes):
        lines.append(f"Undo: `gpu-rightsizer undo --run {run}`")
    return {"text": "\n".join(lines), "unfurl_links": False, "unfurl_media": False}


def _plain(text: str) -> str:
    """Without control characters, mentions and markup."""
    escaped = safe(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\u200b{one}" if one in "*_~`@" else one for one in escaped)
