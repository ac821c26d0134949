"""Sums over a replay, with intervals: what was freed, whom it hurt, what it cost. Pure: randomness is passed in."""

import collections
import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rightsizer.model import FindingName
from rightsizer_history.backtest.judges import STOPS
from rightsizer_history.backtest.replay import Account, Change, Replayed

RESAMPLES = 500
DOUBT = 0.1
"""Share of the samples that lies outside of a printed interval."""
MOST_DAYS = 2000
"""Most days of services that are drawn; where there are more, only services are."""
WATCHED_S = 7 * 86400.0
"""A stop that the record follows for less time, without a return, may yet return."""

PriceOf = Callable[[str], float | None]
"""Price of one GPU-hour of a workload; None if unknown."""


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """A figure, and between which values it lies for other workloads of the same sort.

    Attributes:
        low, high: Of 90 % of the samples that are drawn from the workloads, with replacement.
    """

    value: float
    low: float
    high: float


@dataclasses.dataclass(slots=True)
class GroupTotals:
    """Totals of a kind, namespace, class or finding: freed GPU-hours, stops, and how many of these returned."""

    freed: float = 0.0
    stops: int = 0
    returned: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """One judge's figures.

    Attributes:
        held, used: GPU-hours that the workloads held, and in which their GPUs were active.
        unseen: GPU-hours that they held without samples.
        freed: GPU-hours that would have been free.
        saved: Their price, less that of `restarts`; None if no price is known.
        restarts: GPU-hours that returns would have cost.
        stops, returned: Stops, and those whose workload would have worked again within the recording.
        open_stops: Stops without a return that the recording follows for less than a week.
        at_work: Stops of what worked in that step.
        delayed_h: Hours by which returns would have delayed work.
        replica_hours: Hours of services that ran with fewer replicas.
        short: Share of these with fewer replicas than were active.
        resizes, resizes_needed: Changes of the GPUs of each pod, and those that were needed again.
        median_return_h: Half of those that returned did so earlier.
        groups: By kind, namespace, class, finding and owner, which is the workload.
        changes: All, in order.
        hurt: Changes of workloads that worked again, soonest first.
    """

    judge: str
    held: float
    used: float
    unseen: float
    freed: Interval
    saved: Interval | None
    restarts: Interval
    stops: Interval
    returned: Interval
    open_stops: int
    at_work: int
    delayed_h: float
    replica_hours: float
    short: Interval
    resizes: int
    resizes_needed: int
    notices: int
    median_return_h: float | None
    groups: Mapping[str, Mapping[str, GroupTotals]]
    changes: Sequence[Change]
    hurt: Sequence[Change]


def summarize(replayed: Replayed, draw: random.Random, price_of: PriceOf) -> Summary:
    """The sums and their intervals."""
    accounts = replayed.accounts
    changes = [change for account in accounts for change in account.changes]
    stops = list(_stops(changes))
    resizes = [change for change in changes if change.action not in STOPS]
    hurt = _hurt(changes)
    returns = [change.needed_after_s or 0.0 for change in hurt if change.action in STOPS]
    places = range(len(accounts))
    samples = [draw.choices(places, k=len(accounts)) for _ in range(RESAMPLES if accounts else 0)]

    def interval(of: Callable[[Account], float]) -> Interval:
        values = [of(account) for account in accounts]
        return _interval(sum(values), (sum(values[place] for place in sample) for sample in samples))

    priced = [account for account in accounts if price_of(account.model) is not None]
    return Summary(
        judge=replayed.judge,
        held=sum(account.held for account in accounts),
        used=sum(account.used for account in accounts),
        unseen=sum(account.unseen for account in accounts),
        freed=interval(lambda account: account.freed),
        saved=interval(lambda account: _saved(account, price_of)) if priced else None,
        restarts=interval(lambda account: account.restarts),
        stops=interval(lambda account: len(list(_stops(account.changes)))),
        returned=_of_trials(interval(_returned), len(stops)),
        open_stops=sum(change.needed_after_s is None and change.watched_s < WATCHED_S for change in stops),
        at_work=sum(change.was_at_work for change in changes),
        delayed_h=len(returns) * replayed.restart_s / 3600,
        replica_hours=sum(account.replica_s for account in accounts) / 3600,
        short=_short(accounts, draw),
        resizes=len(resizes),
        resizes_needed=sum(change.needed_after_s is not None for change in resizes),
        notices=sum(account.notices for account in accounts),
        median_return_h=returns[len(returns) // 2] / 3600 if returns else None,
        groups=_groups(replayed),
        changes=sorted(changes, key=lambda change: (change.at, str(change.ref))),
        hurt=hurt,
    )


def _returned(account: Account) -> int:
    return sum(change.needed_after_s is not None for change in _stops(account.changes))


def _stops(changes: Sequence[Change]) -> Iterator[Change]:
    return (change for change in changes if change.action in STOPS)


def _hurt(changes: Sequence[Change]) -> Sequence[Change]:
    needed = [change for change in changes if change.needed_after_s is not None]
    return sorted(needed, key=lambda change: (change.needed_after_s, str(change.ref), change.at))


def _saved(account: Account, price_of: PriceOf) -> float:
    """Net of restarts; 0 where the price is unknown."""
    return (price_of(account.model) or 0.0) * (account.freed - account.restarts)


def _of_trials(interval: Interval, trials: int) -> Interval:
    """The interval of a number out of `trials`: samples of none, or of all, do not show that it could be otherwise.

    The bound is that of Clopper and Pearson, https://en.wikipedia.org/wiki/Binomial_proportion_confidence_interval
    """
    if not trials:
        return interval
    doubt = trials * (1 - (DOUBT / 2) ** (1 / trials))
    if interval.value <= 0:
        return Interval(interval.value, interval.low, max(interval.high, doubt))
    if interval.value >= trials:
        return Interval(interval.value, min(interval.low, trials - doubt), interval.high)
    return interval


def _short(accounts: Sequence[Account], draw: random.Random) -> Interval:
    """The share, and where it lies in another such time: few services have most of it, so by their days, too."""
    units = [list(account.shrunk.values()) for account in accounts if account.shrunk]
    if sum(map(len, units)) > MOST_DAYS:
        units = [[_total(days)] for days in units]

    def drawn() -> float:
        services = draw.choices(units, k=len(units))
        return _share(_total(_total(draw.choices(days, k=len(days))) for days in services))

    value, days = _share(_total(map(_total, units))), sum(map(len, units))
    if not days:
        return Interval(value, value, value)
    found = _interval(value, (max(0.0, value + drawn() - drawn()) for _ in range(RESAMPLES)))
    # Where no day had a short minute, their share may be no larger than that of days that could have had one.
    return Interval(value, found.low, _of_trials(found, days).high / days) if value == 0 else found


def _total(days: Iterable[tuple[float, float]]) -> tuple[float, float]:
    pairs = list(days)
    return sum(replica_s for replica_s, _ in pairs), sum(short_s for _, short_s in pairs)


def _share(seconds: tuple[float, float]) -> float:
    replica_s, short_s = seconds
    return short_s / replica_s if replica_s else 0.0


def _interval(value: float, drawn: Iterator[float]) -> Interval:
    found = sorted(drawn)
    if not found:
        return Interval(value, value, value)
    cut = round(len(found) * DOUBT / 2)
    return Interval(value, found[cut], found[-1 - cut])


def _groups(replayed: Replayed) -> dict[str, dict[str, GroupTotals]]:
    found: dict[str, dict[str, GroupTotals]] = {
        name: collections.defaultdict(GroupTotals)
        for name in ("kind", "namespace", "class", "finding", "owner")
    }
    for account in replayed.accounts:
        if not account.freed and not account.changes:
            continue
        names = {
            "kind": account.ref.kind,
            "namespace": account.ref.namespace,
            "class": account.priority_class or "none",
            "owner": str(account.ref),
        }
        for by, name in names.items():
            found[by][name].freed += account.freed
        if account.scaled:
            found["finding"][FindingName.TOO_MANY_REPLICAS.value].freed += account.scaled
        if account.rest:
            found["finding"][replayed.judge].freed += account.rest
        for change in account.changes:
            found["finding"][change.finding].freed += change.gpu_hours
            for by, name in {**names, "finding": change.finding}.items():
                found[by][name].stops += change.action in STOPS
                found[by][name].returned += change.action in STOPS and change.needed_after_s is not None
    return {by: dict(sorted(parts.items())) for by, parts in found.items()}
