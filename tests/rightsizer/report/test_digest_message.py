"""What a digest says of the changes of a time."""

import datetime
from collections.abc import Sequence

import pytest

from rightsizer.model import Action, ChangeRecord, FoundChange, ObjectRef
from rightsizer.report.chat_messages import CHATS, digest_message

AT = datetime.datetime(2026, 11, 2, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("prices", "words"),
    [
        (((2.5, "USD"), (0, "")), "2 changes: 4 GPUs (2.50 USD/h, 1,800 USD/month) freed"),
        (((2.5, "USD"), (1, "EUR")), "2 changes: 4 GPUs freed"),
        (((0, ""), (0, "")), "2 changes: 4 GPUs freed"),
    ],
    ids=["one-unknown", "two-currencies", "unknown"],
)
def test_digest_has_the_price_of_what_was_freed(prices: Sequence[tuple[float, str]], words: str) -> None:
    """Not of several currencies, and nothing where no price is known."""
    changes = [
        FoundChange(
            ObjectRef("apps/v1", "Deployment", "team", f"w{place}"),
            ChangeRecord(AT, "r1", Action.SCALE_TO_ZERO, 2, cost_per_hour=price, currency=currency),
        )
        for place, (price, currency) in enumerate(prices)
    ]
    (chat, *_) = CHATS.values()
    assert words in str(digest_message(chat, "prod-eu", changes, AT))
