"""The account of a ledger as one self-contained HTML page. Pure."""

import datetime
from collections.abc import Iterator, Mapping, Sequence

from rightsizer.report.charts import Markup, bar, element, legend
from rightsizer.report.html import page, tile, total_card
from rightsizer.text import count, gpus_number, money, number, percent
from rightsizer_history.ledger import BY
from rightsizer_history.ledger.sums import Hours, LedgerAccount
from rightsizer_history.report.ledger import REMARKS, headline, tables


def ledger_html(account: LedgerAccount, *, is_served: bool = False) -> str:
    """The page; it needs no network and no file beside it. A served one links to the other totals."""
    first, *others = headline(account)
    return page(
        f"GPU ledger to {account.end:%Y-%m-%d %H:%M} UTC",
        element(
            "header",
            element("h1", "GPU ledger"),
            element("p", first, class_="soft"),
            *(element("p", words) for words in others),
            *([element("nav", "Totals by: ", *_links(account.by))] if is_served else []),
            element("div", *_tiles(account), class_="tiles"),
        ),
        element("main", *_sections(account)),
    )


def _links(shown: str) -> Iterator[Markup]:
    for by in BY:
        yield element("b", by) if by == shown else element("a", by, href=f"?by={by}")
        yield Markup(" ")


def _tiles(account: LedgerAccount) -> Iterator[Markup]:
    total, reclaim = account.total, account.reclaim
    known = total.held - total.unknown
    yield tile(number(total.held), "GPU-hours held")
    yield tile(percent(total.used / known if known > 0 else None), "of them used, where known")
    yield tile(number(total.unused), "GPU-hours unused")
    if account.currency and total.cost:
        yield tile(money(total.unused_cost), f"{account.currency} for unused GPUs")
    yield tile(gpus_number(reclaim.gpus), f"GPUs reclaimed by {count(reclaim.changes, 'change')}")
    yield tile(number(reclaim.hours), "GPU-hours reclaimed")
    yield tile(gpus_number(reclaim.returned), "GPUs returned")


def _sections(account: LedgerAccount) -> Iterator[Markup]:
    if account.total.held > 0:
        yield element("h2", "Held against used")
        leaders = {part.name or "(none)": part.hours for part in account.leaders}
        yield element(
            "div",
            _chart("By day", {_day(day): hours for day, hours in account.trend.items()}),
            _chart("Owners that held most unused", leaders),
            class_="cards",
        )
    yield element("h2", "Totals")
    yield element("div", *map(total_card, tables(account)), class_="cards")
    yield from (element("p", words, class_="note") for words in REMARKS)
    if account.problems:
        yield element("h2", "Problems")
        yield element("ul", *(element("li", words) for words in account.problems))


def _day(day: datetime.date) -> str:
    return f"{day:%Y-%m-%d}"


def _chart(title: str, parts: Mapping[str, Hours]) -> Markup:
    longest = max((hours.held for hours in parts.values()), default=0.0)
    cells: Sequence[Markup] = [
        cell
        for name, hours in parts.items()
        for cell in (
            element("span", name),
            bar(hours.held, hours.used, hours.unknown, longest),
            element("span", f"{number(hours.held)} h", class_="number"),
        )
    ]
    return element(
        "div", element("h3", title), element("div", *cells, class_="bars"), legend(), class_="card"
    )
