"""Plans that are recorded cycle after cycle, and what is read of them."""

import dataclasses
import datetime
import pathlib
from collections.abc import Iterable

from rightsizer.model import Outcome, Plan
from rightsizer_history.ledger.entries import Bookkeeper, LedgerPeriod
from rightsizer_history.ledger.files import ClusterLedger
from rightsizer_history.ledger.sums import LedgerAccount, LedgerReader, since_midnight
from tests.rightsizer.reported import PRICES

MINUTE = datetime.timedelta(minutes=1)
HOUR = datetime.timedelta(hours=1)


def record(at: pathlib.Path, plan: Plan, *, cluster: str = "prod", merges: bool = True) -> LedgerPeriod:
    """Record a plan as a cycle does; returns the time that it stands for."""
    ledger = ClusterLedger(str(at), cluster)
    books = Bookkeeper(plan, PRICES, "team")
    period = LedgerPeriod.until(plan.at, ledger.last(plan.at))
    ledger.write_usage(plan.at, plan.run, books.usage(period))
    ledger.write_changes(plan.at, plan.run, books.returns(period))
    if merges:
        ledger.merge(plan.at)
    return period


def record_outcomes(at: pathlib.Path, plan: Plan, outcomes: Iterable[Outcome], cluster: str = "prod") -> None:
    """Record what became of a plan."""
    made = list(Bookkeeper(plan, PRICES, "team").changes([*outcomes]))
    ClusterLedger(str(at), cluster).write_changes(max(one.at for one in made), plan.run, made)


def cycles(plan: Plan, number: int, every: datetime.timedelta) -> list[Plan]:
    """The same plan several times."""
    return [
        dataclasses.replace(plan, at=plan.at + every * place, run=f"run-{place:03d}")
        for place in range(number)
    ]


def account(
    *ledgers: pathlib.Path, end: datetime.datetime, days: int = 30, by: str = "namespace"
) -> LedgerAccount:
    """What they say about the days before."""
    begin = since_midnight(end - datetime.timedelta(days=days))
    with LedgerReader([str(one) for one in ledgers], begin, end) as reader:
        return reader.account(by)
