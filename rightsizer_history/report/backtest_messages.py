"""Messages about a backtest for chats and webhooks. Pure."""

from collections.abc import Mapping
from typing import Any

from rightsizer.report.chat_messages import MOST, Chat
from rightsizer.text import count, instant, money, number
from rightsizer_history.report.backtest import Backtest, backtest_document, returns_words, share_of

_Message = Mapping[str, Any]


def backtest_message(chat: Chat, cluster: str, result: Backtest, place: str) -> _Message:
    """A line for each policy, and where the report is."""
    days = count(result.days, "day")
    lines = [chat.head(cluster, f"backtest of {days} to {instant(result.end)}")]
    for summary in result.judged[:MOST]:
        worth = (
            "of unknown price"
            if summary.saved is None
            else f"{money(summary.saved.value)} {chat.plain(result.currency)}"
        )
        by_day = f"{number(summary.freed.value / result.days)} a day, " if result.days else ""
        part = f"{by_day}{share_of(summary)} of those held, {worth}"
        freed = f"{number(summary.freed.value)} GPU-hours ({part})"
        stops = returns_words(summary) if summary.stops.value else "no stops"
        lines.append(f"• {chat.plain(summary.judge)} would have freed {freed}: {chat.plain(stops)}")
    if len(result.judged) > MOST:
        lines.append(f"… and {len(result.judged) - MOST} more")
    lines.append(f"Report: {chat.plain(place)}")
    return chat.message(lines)


def backtest_webhook_message(cluster: str, result: Backtest, place: str) -> _Message:
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
        "cluster": cluster or None,
        "days": result.days,
        "report": place,
        "items": items,
    }
