"""The account of a ledger as text, Markdown, CSV and a document. Pure.

CSV has the columns of FOCUS 1.2 (https://focus.finops.org/focus-specification/v1-2/), with a row for each workload and
day. Prices are list prices, and nobody sends an invoice: so all four costs are the same amount, and empty if unknown.
"""

import datetime
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rightsizer.config import FIELD_MANAGER, PREFIX
from rightsizer.report.csv import Value, csv_lines
from rightsizer.report.documents import API_VERSION, render, stamp
from rightsizer.report.markdown import escaped, table_markdown
from rightsizer.report.rows import ROWS
from rightsizer.report.terminal import WIDTH, Table, table_lines, wrapped
from rightsizer.text import count, instant, money, number, percent, short
from rightsizer_history.ledger.sums import Hours, LedgerAccount, LedgerPart, Reclaim

NOBODY = "(none)"
_DIGITS = 4
_CELL = 8
_UNKNOWN = "?"


def headline(account: LedgerAccount) -> Iterator[str]:
    """Summary of the period, a line each."""
    hours, total = sum(cluster.recorded_h for cluster in account.clusters), account.total
    length = (account.end - account.begin).total_seconds() / 3600 * len(account.clusters)
    names = [cluster.name for cluster in account.clusters]
    where = f"cluster {names[0]}" if len(names) == 1 else count(len(names), "cluster")
    yield (
        f"{instant(account.begin)} to {instant(account.end)}, {where}: "
        f"{number(hours)} of {number(length)} hours recorded."
    )
    known = total.held - total.unknown
    words = f"GPU-hours: {number(total.held)} held, {number(total.used)} used"
    words += f" ({percent(total.used / known)})" if known > 0 else ""
    yield f"{words}, {number(total.unused)} unused, {number(total.unknown)} unknown."
    if account.currency and total.cost:
        cost, unused = money(total.cost), money(total.unused_cost)
        words = f"Cost: {cost} {account.currency}, of which {unused} {account.currency} for unused GPUs"
        yield f"{words}; unknown for {number(total.unpriced)} GPU-hours." if total.unpriced else f"{words}."
    yield from _reclaim_words(account.reclaim, account.currency)


def _reclaim_words(reclaim: Reclaim, currency: str) -> Iterator[str]:
    earlier = f"Returned of earlier changes: {count(reclaim.returned_earlier)}."
    if not reclaim.changes:
        yield f"No change was made. {earlier}" if reclaim.returned_earlier else "No change was made."
        return
    words = f"Reclaimed: {count(reclaim.gpus)} by {count(reclaim.changes, 'change')}, {number(reclaim.hours)} GPU-hours"
    words += f", {money(reclaim.cost)} {currency}" if currency and reclaim.cost else ""
    words += f"; {count(reclaim.unverified)} not verified as free" if reclaim.unverified else ""
    yield f"{words}. Returned: {count(reclaim.returned)}."
    if reclaim.returned_earlier:
        yield earlier


def tables(account: LedgerAccount) -> Iterator[Table]:
    """Parts, leaders and trend."""
    money_head = (account.currency, "WASTED") if account.currency and account.total.cost else ()
    hours_head = ("HELD", "USED", "UNUSED", "UNKNOWN")

    def cells(hours: Hours, *freed: str) -> tuple[str, ...]:
        found = map(short, (hours.held, hours.used, hours.unused, hours.unknown))
        amounts = (hours.cost, hours.unused_cost) if money_head else ()
        costs = (_UNKNOWN if hours.has_no_price else short(amount) for amount in amounts)
        return (*found, *freed, *costs)

    def part_table(title: str, parts: Sequence[LedgerPart], more: int) -> Table:
        rows = [(part.name or NOBODY, *cells(part.hours, short(part.reclaimed))) for part in parts[:ROWS]]
        return Table((title, *hours_head, "FREED", *money_head), rows, more)

    yield part_table(account.by, account.parts, max(len(account.parts) - ROWS, 0))
    if account.by != "owner":
        yield part_table("held most unused", account.leaders, account.more_leaders)
    days = [(f"{day}", *cells(hours)) for day, hours in account.trend.items()]
    yield Table(("day", *hours_head, *money_head), days)


REMARKS = (
    "GPU-hours, by the pods that each plan saw. USED: by mean utilization.",
    "FREED: not held because of changes of this period, until they were returned.",
)


def ledger_table(account: LedgerAccount) -> str:
    """80 columns."""
    lines = [line for words in headline(account) for line in wrapped(words, "")]
    if account.problems:
        lines += ["", "PROBLEMS", *(line for words in account.problems for line in wrapped(words, "  "))]
    for table in tables(account):
        figures = len(table.head) - 1
        lines += ["", *table_lines(table, (WIDTH - _CELL * figures, *[_CELL - 1] * figures))]
    lines += ["", *(line for words in REMARKS for line in wrapped(words, ""))]
    return "\n".join(lines) + "\n"


def ledger_markdown(account: LedgerAccount) -> str:
    """Text for merge requests and wikis."""
    blocks = ["# GPU ledger", "\n".join(f"{escaped(words)}  " for words in headline(account)).rstrip()]
    blocks += [table_markdown(table) for table in tables(account)]
    blocks += [escaped(words) for words in REMARKS]
    if account.problems:
        blocks += ["## Problems", "\n".join(f"- {escaped(words)}" for words in account.problems)]
    return "\n\n".join(blocks) + "\n"


def ledger_json(account: LedgerAccount) -> str:
    """The document."""
    return render(ledger_document(account), "json")


def ledger_yaml(account: LedgerAccount) -> str:
    """The same document."""
    return render(ledger_document(account), "yaml")


def ledger_document(account: LedgerAccount) -> dict[str, Any]:
    """GPU-hours and money for programs; null where nothing is known. A test holds it to docs/ledger.schema.json."""
    reclaim = account.reclaim
    return {
        "apiVersion": API_VERSION,
        "kind": "Ledger",
        "begin": stamp(account.begin),
        "end": stamp(account.end),
        "currency": account.currency or None,
        "clusters": [
            {
                "name": cluster.name,
                "recordedHours": _rounded(cluster.recorded_h),
                "fleetGpuHours": _rounded(cluster.fleet_h),
            }
            for cluster in account.clusters
        ],
        "total": _hours(account, account.total),
        "reclaimed": {
            "changes": reclaim.changes,
            "gpus": _rounded(reclaim.gpus),
            "gpusNotVerified": _rounded(reclaim.unverified),
            "gpuHours": _rounded(reclaim.hours),
            "cost": _rounded(reclaim.cost) if account.currency else None,
            "unpricedGpuHours": _rounded(reclaim.unpriced),
            "gpusReturned": _rounded(reclaim.returned),
            "gpusReturnedOfEarlierChanges": _rounded(reclaim.returned_earlier),
        },
        "by": account.by,
        "parts": [_part(account, part) for part in account.parts],
        "heldMostUnused": [_part(account, part) for part in account.leaders],
        "trend": [{"day": str(day), **_hours(account, hours)} for day, hours in account.trend.items()],
        "problems": list(account.problems),
    }


def _part(account: LedgerAccount, part: LedgerPart) -> dict[str, Any]:
    return {
        "name": part.name or None,
        **_hours(account, part.hours),
        "gpuHoursReclaimed": _rounded(part.reclaimed),
        "gpusReturned": _rounded(part.returned),
    }


def _hours(account: LedgerAccount, hours: Hours) -> dict[str, Any]:
    is_known = account.currency and not hours.has_no_price
    return {
        "gpuHoursHeld": _rounded(hours.held),
        "gpuHoursUsed": _rounded(hours.used),
        "gpuHoursUnused": _rounded(hours.unused),
        "gpuHoursUnknown": _rounded(hours.unknown),
        "gpuHoursReclaimable": _rounded(hours.reclaimable),
        "cost": _rounded(hours.cost) if is_known else None,
        "unusedCost": _rounded(hours.unused_cost) if is_known else None,
        "unpricedGpuHours": _rounded(hours.unpriced),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)


_Charge = Mapping[str, Any]
_TAGS = {"team": "team", "owner": "owner", "priority-class": "priority_class", "model": "model"}


def focus_csv(charges: Iterable[_Charge]) -> Iterator[str]:
    """Line by line: a fleet has millions."""
    return csv_lines(FOCUS, charges)


def _cost(charge: _Charge) -> float | None:
    return None if charge["hours"].unpriced > 0 else charge["hours"].cost


def _name(charge: _Charge, *keys: str) -> str:
    return "/".join(charge[key] for key in keys)


def _tags(charge: _Charge) -> str:
    """JSON, as FOCUS has it; a provider's own tags have a prefix."""
    found = {f"{PREFIX}{key}": charge[column] for key, column in _TAGS.items() if charge[column]}
    return json.dumps(found, sort_keys=True)


def _midnight(day: datetime.date) -> str:
    return f"{day}T00:00:00Z"


def _next_month(day: datetime.date) -> datetime.date:
    return (day.replace(day=28) + datetime.timedelta(days=4)).replace(day=1)


FOCUS: Mapping[str, Callable[[_Charge], Value]] = {
    "BilledCost": _cost,
    "BillingAccountId": lambda charge: charge["cluster"],
    "BillingCurrency": lambda charge: charge["currency"],
    "BillingPeriodEnd": lambda charge: _midnight(_next_month(charge["day"])),
    "BillingPeriodStart": lambda charge: _midnight(charge["day"].replace(day=1)),
    "ChargeCategory": lambda _: "Usage",
    "ChargeDescription": lambda _: "GPU-hours held",
    "ChargeFrequency": lambda _: "Usage-Based",
    "ChargePeriodEnd": lambda charge: _midnight(charge["day"] + datetime.timedelta(days=1)),
    "ChargePeriodStart": lambda charge: _midnight(charge["day"]),
    "ConsumedQuantity": lambda charge: charge["hours"].held,
    "ConsumedUnit": lambda _: "GPU-Hours",
    "ContractedCost": _cost,
    "EffectiveCost": _cost,
    "InvoiceIssuerName": lambda _: FIELD_MANAGER,
    "ListCost": _cost,
    "PricingQuantity": lambda charge: charge["hours"].held,
    "PricingUnit": lambda _: "GPU-Hours",
    "ProviderName": lambda _: FIELD_MANAGER,
    "PublisherName": lambda _: FIELD_MANAGER,
    "ResourceId": lambda charge: _name(charge, "cluster", "namespace", "kind", "name"),
    "ResourceName": lambda charge: charge["name"],
    "ResourceType": lambda charge: charge["kind"],
    "ServiceCategory": lambda _: "Compute",
    "ServiceName": lambda _: "Kubernetes GPUs",
    "SkuId": lambda charge: charge["model"],
    "SubAccountId": lambda charge: _name(charge, "cluster", "namespace"),
    "SubAccountName": lambda charge: charge["namespace"],
    "Tags": _tags,
    "x_UnknownQuantity": lambda charge: charge["hours"].unknown,
    "x_UnusedCost": lambda charge: None if _cost(charge) is None else charge["hours"].unused_cost,
    "x_UnusedQuantity": lambda charge: charge["hours"].unused,
    "x_UsedQuantity": lambda charge: charge["hours"].used,
}
"""The columns, and each one's value of a charge."""
