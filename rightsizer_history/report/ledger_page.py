"""The account of a ledger as one self-contained HTML page. Pure."""

from collections.abc import Iterator, Mapping

from rightsizer.report.charts import Bar, bar
from rightsizer.report.html import rendered
from rightsizer.text import count, gpus_number, money, number, percent
from rightsizer_history.ledger import BY
from rightsizer_history.ledger.sums import Hours, LedgerAccount
from rightsizer_history.report.ledger import NOBODY, REMARKS, headline, tables


def ledger_html(account: LedgerAccount, *, is_served: bool = False) -> str:
    """The page; it needs no network and no file beside it. A served one links to the other totals."""
    days = {f"{day:%Y-%m-%d}": hours for day, hours in account.trend.items()}
    leaders = {part.name or NOBODY: part.hours for part in account.leaders}
    charts = {"By day": _bars(days), "Owners that held most unused": _bars(leaders)}
    return rendered(
        "ledger.html",
        f"GPU ledger to {account.end:%Y-%m-%d %H:%M} UTC",
        package=__package__,
        headline=tuple(headline(account)),
        is_served=is_served,
        choices=BY,
        shown=account.by,
        tiles=_tiles(account),
        charts=charts if account.total.held > 0 else {},
        totals=tables(account),
        remarks=REMARKS,
        problems=account.problems,
    )


def _tiles(account: LedgerAccount) -> Iterator[tuple[str, str]]:
    total, reclaim = account.total, account.reclaim
    known = total.held - total.unknown
    yield number(total.held), "GPU-hours held"
    yield percent(total.used / known if known > 0 else None), "of them used, where known"
    yield number(total.unused), "GPU-hours unused"
    if account.currency and total.cost:
        yield money(total.unused_cost), f"{account.currency} for unused GPUs"
    yield gpus_number(reclaim.gpus), f"GPUs reclaimed by {count(reclaim.changes, 'change')}"
    yield number(reclaim.hours), "GPU-hours reclaimed"
    yield gpus_number(reclaim.returned), "GPUs returned"


def _bars(parts: Mapping[str, Hours]) -> list[Bar]:
    longest = max((hours.held for hours in parts.values()), default=0.0)
    return [
        (name, bar(hours.held, hours.used, hours.unknown, longest), f"{number(hours.held)} h")
        for name, hours in parts.items()
    ]
