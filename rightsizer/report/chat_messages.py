"""Messages about changes for chats: one text, in each chat's markup. Pure.

Names of workloads may hold anything: none of it is markup or a mention.
https://docs.slack.dev/messaging/formatting-message-text/
"""

import collections
import dataclasses
import datetime
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rightsizer.model import FoundChange, ObjectRef, Outcome
from rightsizer.report.events import occasion_of
from rightsizer.text import count, per_hour_and_month, safe

MOST = 20
"""Maximum number of items per message; chats cut longer ones."""
_WORDS = {
    "change": "changed",
    "rollback": "rolled back",
    "failure": "went wrong",
}
_Message = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Chat:
    """Markup of a chat.

    Attributes:
        bold: Of a word of gpu-rightsizer.
        link: Of an address and its text.
        special: Characters that it may take for markup.
        escapes: What it needs in place of characters.
        message: The document, of the lines.
    """

    bold: str
    link: str
    special: str
    escapes: Mapping[str, str]
    message: Callable[[Sequence[str]], _Message]

    def plain(self, text: str) -> str:
        """Without control characters, mentions and markup."""
        escapes = {**self.escapes, **{char: f"\u200b{char}" for char in self.special}}
        return "".join(escapes.get(char, char) for char in safe(text))

    def head(self, cluster: str, what: str) -> str:
        """The first line of a message, of what it is about."""
        where = f" on {self.plain(cluster)}" if cluster else ""
        return f"{self.bold.format('gpu-rightsizer')}{where}, {what}"

    def answer(self, template: str, ref: ObjectRef) -> str:
        """The link to where the owner of a workload answers."""
        for field in ("namespace", "kind", "name"):
            template = template.replace(f"{{{field}}}", urllib.parse.quote(getattr(ref, field), safe=""))
        url = "".join(self.escapes.get(char, char) for char in template)
        return " " + self.link.format(url=url, text="Answer")


def _slack(lines: Sequence[str]) -> _Message:
    return {"text": "\n".join(lines), "unfurl_links": False, "unfurl_media": False}


def _titled(lines: Sequence[str]) -> _Message:
    return {"title": lines[0], "body": "\n".join(lines[1:])}


CHATS: Mapping[str, Chat] = {
    "slack": Chat("*{}*", "<{url}|{text}>", "*_~`@", {"&": "&amp;", "<": "&lt;", ">": "&gt;"}, _slack),
    "apprise": Chat("{}", "{text}: {url}", "*_~`@[]()<>#!|\\", {}, _titled),
}
"""Apprise sends the same text to each service, some of which take it for Markdown."""


def changes_message(
    chat: Chat, cluster: str, run: str, outcomes: Sequence[Outcome], *, answer_url: str = ""
) -> _Message:
    """The cluster, a line for each outcome, and the command that undoes the changes.

    A notice ends with a link by the template `answer_url`: a button would need an endpoint that the chat can reach.
    """
    lines = [chat.head(cluster, f"run {run}")]
    for outcome in outcomes[:MOST]:
        occasion, name = occasion_of(outcome), chat.plain(str(outcome.ref))
        gpus = f" ({count(abs(outcome.gpus))})" if outcome.gpus else ""
        link = chat.answer(answer_url, outcome.ref) if answer_url and occasion == "notice" else ""
        # The detail of a notice says what will be done.
        what = "" if occasion == "notice" else f" {_WORDS[occasion]}: {chat.plain(outcome.action)}"
        lines.append(f"• {name}{what}{gpus}: {chat.plain(outcome.detail)}{link}")
    if len(outcomes) > MOST:
        lines.append(f"… and {len(outcomes) - MOST} more")
    if any(occasion_of(outcome) == "change" for outcome in outcomes):
        lines.append(f"Undo: `gpu-rightsizer undo --run {run}`")
    return chat.message(lines)


def digest_message(
    chat: Chat, cluster: str, changes: Sequence[FoundChange], since: datetime.datetime
) -> _Message:
    """Message about the changes since a time: the sums, and a line for each change with how it ended."""
    records = [change.record for change in changes]
    freed = sum(max(record.gpus, 0) for record in records)
    returned = sum(max(record.gpus, 0) for record in records if record.end and record.end.returns)
    back = f", of which {count(returned)} returned" if returned else ""
    ended = collections.Counter(record.end.value for record in records if record.end)
    ends = "".join(f", {number} {chat.plain(end)}" for end, number in sorted(ended.items()))
    lines = [
        chat.head(cluster, f"changes since {since:%Y-%m-%d %H:%M} UTC"),
        f"{count(len(changes), 'change')}{ends}: {count(freed)}{_worth(chat, changes)} freed{back}",
    ]
    for change, record in zip(changes[:MOST], records, strict=False):
        end = f", {record.end.value}" if record.end else ""
        words = f"{record.action or '?'} ({count(abs(record.gpus))}){end}"
        lines.append(f"• {chat.plain(str(change.ref))}: {chat.plain(words)}, run {chat.plain(record.run)}")
    if len(changes) > MOST:
        lines.append(f"… and {len(changes) - MOST} more")
    return chat.message(lines)


def _worth(chat: Chat, changes: Sequence[FoundChange]) -> str:
    """The price of what changes freed; empty where none is known, or in several currencies."""
    priced = [change.record for change in changes if change.record.cost_per_hour and change.record.gpus > 0]
    currencies = {record.currency for record in priced}
    if len(currencies) != 1:
        return ""
    words = per_hour_and_month(sum(record.cost_per_hour for record in priced), chat.plain(min(currencies)))
    return f" ({words})"
