"""Budgets, maintenance windows and freezes, and whether changes are allowed at an instant. Pure.

Times are wall-clock times of their zone. A time that does not exist on a day (clocks go forward) is the first instant
after it. A time that occurs twice (clocks go back) is the first of the two.
"""

import datetime
import decimal
import enum
import functools
import zoneinfo
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Protocol, Self

import pydantic

from rightsizer.model import Action, Blocker, BlockerCode
from rightsizer.policy.rule import ACTIONS, NamedAction
from rightsizer.policy.values import DAYS, Date, Days, Minutes, Part, Share, Zone


class BudgetScope(enum.StrEnum):
    """Group of workloads whose changes a budget counts together."""

    CLUSTER = "cluster"
    NAMESPACE = "namespace"
    OWNER = "owner"
    NODE_POOL = "nodePool"


class Per(enum.StrEnum):
    """Period over which a budget counts."""

    RUN = "run"
    HOUR = "hour"
    DAY = "day"


Amount = Annotated[int, pydantic.Field(ge=0, le=1_000_000)]


class Budget(Part):
    """Maximum of changes; of several amounts or budgets the lowest applies."""

    model_config = pydantic.ConfigDict(
        json_schema_extra={"anyOf": [{"required": [amount]} for amount in ("gpus", "workloads", "share")]}
    )

    name: str | None = pydantic.Field(
        None,
        min_length=1,
        max_length=63,
        description="Name in plans; default: scope/per.",
    )
    scope: BudgetScope = pydantic.Field(
        BudgetScope.CLUSTER,
        strict=False,
        description="Changes that count together: cluster, namespace, owner (the topmost controller) or nodePool.",
    )
    per: Per = pydantic.Field(
        Per.RUN,
        strict=False,
        description="Period: run, hour or day (the 60 minutes and 24 hours before each change).",
    )
    actions: tuple[NamedAction, ...] = pydantic.Field(
        ACTIONS,
        strict=False,
        min_length=1,
        json_schema_extra={"uniqueItems": True},
        description="Actions that it counts; by default all that take GPUs.",
    )
    gpus: Amount | None = pydantic.Field(None, description="Maximum number of whole GPUs; 0 allows nothing.")
    workloads: Amount | None = pydantic.Field(
        None, description="Maximum number of workloads; 0 allows nothing."
    )
    share: Share | None = pydantic.Field(
        None,
        description="Maximum percentage of the GPUs held in the scope, rounded up, above 0% and up to 100%.",
    )

    atLeastGPUs: Annotated[int, pydantic.Field(ge=1, le=1_000_000)] = pydantic.Field(
        1, description="GPUs that share allows, however few are held; 1 or more."
    )

    @pydantic.model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.gpus is None and self.workloads is None and self.share is None:
            message = "limits nothing: give gpus, workloads or share"
            raise ValueError(message)
        return self

    @property
    def title(self) -> str:
        """Name that people know it by."""
        return self.name or f"{self.scope.value}/{self.per.value}"

    @property
    def counted(self) -> str:
        """The actions that it counts, in words."""
        takes = [action for action in ACTIONS if action is not Action.SCALE_UP]
        others = [action.value for action in takes if action not in self.actions]
        if not others:
            return "all"
        named = ", ".join(action.value for action in takes if action in self.actions)
        return f"all but {', '.join(others)}" if len(others) < len(takes) / 2 else named

    def counts(self, action: str) -> bool:
        """Whether it counts an action; an unknown one too."""
        return action in self.actions or action not in ACTIONS

    def gpus_of(self, held: float) -> float | None:
        """The most GPUs that may be freed of those held in the scope; None where it does not limit GPUs.

        A share is rounded up, and `atLeastGPUs` keeps it from closing a small cluster; the lower of two amounts wins.
        """
        amounts: list[float] = [] if self.gpus is None else [self.gpus]
        if self.share is not None:
            part = decimal.Decimal(str(round(held, 6))) * self.share / 100
            share = int(part.to_integral_value(decimal.ROUND_CEILING))
            amounts.append(max(share, min(self.atLeastGPUs, held)))
        return min(amounts, default=None)


_ABRUPT: Final = tuple(action for action in ACTIONS if action not in {Action.SCALE_DOWN, Action.SCALE_UP})

DEFAULT_BUDGETS: Final = (
    # A mistake in a policy shall cost little before someone sees it: a handful of workloads in a run, a team not more
    # than two, a cluster not more than a tenth of its GPUs in an hour or one node's, and nobody twice in a day.
    Budget(scope=BudgetScope.CLUSTER, per=Per.RUN, workloads=5, actions=_ABRUPT),
    Budget(scope=BudgetScope.NAMESPACE, per=Per.RUN, workloads=2, actions=_ABRUPT),
    Budget(
        scope=BudgetScope.CLUSTER,
        per=Per.HOUR,
        workloads=20,
        share=decimal.Decimal(10),
        atLeastGPUs=8,
        actions=_ABRUPT,
    ),
    Budget(scope=BudgetScope.OWNER, per=Per.DAY, workloads=1, actions=_ABRUPT),
    # Replicas follow demand all day, and come back with it; wrong metrics shall not take all in one run.
    Budget(scope=BudgetScope.CLUSTER, per=Per.RUN, share=decimal.Decimal(25), actions=(Action.SCALE_DOWN,)),
)


def with_defaults(written: tuple[Budget, ...]) -> tuple[Budget, ...]:
    """The budgets of a file, and the defaults that they do not replace: those of actions that they do not count."""
    seen: dict[tuple[BudgetScope, Per], Budget] = {}
    for budget in written:
        if (budget.scope, budget.per) in seen:
            message = f"two budgets for scope {budget.scope.value} per {budget.per.value}; combine them"
            raise ValueError(message)
        seen[budget.scope, budget.per] = budget
    return (*written, *(default for default in DEFAULT_BUDGETS if not _is_replaced(default, seen)))


def _is_replaced(default: Budget, seen: Mapping[tuple[BudgetScope, Per], Budget]) -> bool:
    written = seen.get((default.scope, default.per))
    return written is not None and set(default.actions) <= set(written.actions)


class NewlyEligible(Part):
    """Limits on the growth of the number of enforced workloads; both must be exceeded."""

    share: Share = pydantic.Field(
        decimal.Decimal(20), description="Percentage above the accepted number, above 0% and up to 100%."
    )
    workloads: Amount = pydantic.Field(10, description="Number of workloads above the accepted number.")


class Breaker(Part):
    """Conditions that stop all changes until an operator resets the breaker."""

    maxErrors: int = pydantic.Field(
        3, ge=1, le=1000, description="Consecutive refused or unknown outcomes, over all runs."
    )
    maxNodesNotReady: Share = pydantic.Field(
        decimal.Decimal(10),
        description="Percentage of GPU nodes that are not ready, above 0% and up to 100%; at least 3 nodes.",
    )
    maxNewlyEligible: NewlyEligible = pydantic.Field(
        default_factory=NewlyEligible,
        description="Growth of the number of enforced workloads by new rules or classes; both limits must be exceeded.",
    )


class MaintenanceWindow(Part):
    """Times at which changes may be made; one of several windows must be open."""

    days: Days = pydantic.Field(
        tuple(range(7)),
        description="Days on which it begins, such as [mon-fri] or [sat, sun].",
    )
    from_: Minutes = pydantic.Field(alias="from", description="Time of day when it begins, 00:00 to 24:00.")
    to: Minutes = pydantic.Field(
        description="Time of day when it ends, 00:00 to 24:00; on the next day if not after from."
    )
    zone: Zone = pydantic.Field("UTC", description="Time zone: UTC or an IANA name such as Europe/Berlin.")

    @pydantic.model_validator(mode="after")
    def _lasts(self) -> Self:
        if self.from_ == self.to:
            message = "from and to are the same time; a whole day is from 00:00 to 24:00"
            raise ValueError(message)
        if self.from_ == _MIDNIGHT:
            message = "from is 24:00, the end of the day; write 00:00 of the next day"
            raise ValueError(message)
        return self

    def __str__(self) -> str:
        """Days, times and zone, as people say them."""
        days = ", ".join(DAYS[day] for day in self.days) if len(self.days) < len(DAYS) else "every day"
        return f"{days} {_clock(self.from_)}-{_clock(self.to)} {self.zone}"


_MIDNIGHT = 24 * 60


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


class Freeze(Part):
    """Days without changes, from the first to the last."""

    from_: Date = pydantic.Field(alias="from", description="First day, such as 2026-12-20.")
    to: Date = pydantic.Field(description="Last day, such as 2027-01-06.")
    zone: Zone = pydantic.Field("UTC", description="Time zone: UTC or an IANA name such as Europe/Berlin.")
    reason: str | None = pydantic.Field(None, max_length=200, description="Shown in plans.")

    @pydantic.model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.from_ > self.to:
            message = f"from {self.from_} is after to {self.to}"
            raise ValueError(message)
        return self

    def __str__(self) -> str:
        """Days, zone and reason, as people say them."""
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.from_} to {self.to} {self.zone}{why}"


_DAY = datetime.timedelta(days=1)
_NOW = range(-2, 2)
"""Days, from today's, on which a window may begin that is open now."""
_SOON = range(-2, 15)
"""The same, with the next beginning of any weekly window, even where a zone left out a day."""


class Calendar(Protocol):
    """The fields of a policy that say when changes are allowed."""

    @property
    def maintenanceWindows(self) -> tuple[MaintenanceWindow, ...]: ...  # noqa: D102, N802 - a field of the policy

    @property
    def freezes(self) -> tuple[Freeze, ...]: ...  # noqa: D102 - a field of the policy


def closed_reason(calendar: Calendar, at: datetime.datetime) -> Blocker | None:
    """Why nothing may be changed at an instant; None in an open maintenance window."""
    for freeze in calendar.freezes:
        if _contains(_frozen(freeze), at):
            return Blocker(
                BlockerCode.CALENDAR,
                f"frozen from {freeze}{_again(calendar, at)}",
                until=next_opening(calendar, at),
            )
    windows = calendar.maintenanceWindows
    if not windows or any(_contains(span, at) for window in windows for span in _spans(window, at, _NOW)):
        return None
    shown = "; ".join(map(str, windows))
    return Blocker(BlockerCode.CALENDAR, f"outside the maintenance windows ({shown}){_again(calendar, at)}")


def next_opening(calendar: Calendar, at: datetime.datetime) -> datetime.datetime | None:
    """The first instant, not before this one, at which changes may be made; None where there will be none."""
    instant = at.astimezone(datetime.UTC)
    # Each turn leaves a freeze for good, or reaches the beginning of a window.
    for _ in range(2 * len(calendar.freezes) + 2):
        ends = [
            end
            for begin, end in map(_frozen, calendar.freezes)
            if begin <= instant < end  # several may follow upon each other
        ]
        if ends:
            instant = max(ends)
            continue
        windows = calendar.maintenanceWindows
        if not windows or any(
            _contains(span, instant) for window in windows for span in _spans(window, instant, _NOW)
        ):
            return instant
        starts = [
            begin for window in windows for begin, _ in _spans(window, instant, _SOON) if begin > instant
        ]
        if not starts:
            return None
        instant = min(starts)
    return None


def _again(calendar: Calendar, at: datetime.datetime) -> str:
    opening = next_opening(calendar, at)
    return f"; next opening {opening:%Y-%m-%d %H:%M} UTC" if opening else ""


_Span = tuple[datetime.datetime, datetime.datetime]


def _contains(span: _Span, at: datetime.datetime) -> bool:
    return span[0] <= at < span[1]


def _frozen(freeze: Freeze) -> _Span:
    zone = _zone(freeze.zone)
    return instant_of(freeze.from_, 0, zone), instant_of(freeze.to + _DAY, 0, zone)


def _spans(window: MaintenanceWindow, at: datetime.datetime, days: range) -> Iterator[_Span]:
    """Times at which the window is open, of those that begin on these days from today's; empty ones are left out."""
    zone = _zone(window.zone)
    today = at.astimezone(zone).date()
    minutes = window.to if window.to > window.from_ else window.to + _DAY // datetime.timedelta(minutes=1)
    for offset in days:
        day = today + offset * _DAY
        if day.weekday() in window.days:
            begin, end = instant_of(day, window.from_, zone), instant_of(day, minutes, zone)
            if begin < end:
                yield begin, end


def instant_of(day: datetime.date, minutes: int, zone: datetime.tzinfo) -> datetime.datetime:
    """The first instant (UTC) at which a zone's wall clock shows this many minutes after a day's midnight, or more."""
    wall = datetime.datetime.combine(day, datetime.time()) + datetime.timedelta(minutes=minutes)
    instant = wall.replace(tzinfo=zone).astimezone(datetime.UTC)
    if _wall(instant, zone) == wall:
        return instant
    # It is left out. With fold=1 the offset after the gap is taken, which leads to an instant before it (PEP 495).
    before = wall.replace(tzinfo=zone, fold=1).astimezone(datetime.UTC)
    seconds = round((instant - before).total_seconds())
    low, high = 0, seconds
    while low < high:
        middle = (low + high) // 2
        if _wall(before + datetime.timedelta(seconds=middle), zone) >= wall:
            high = middle
        else:
            low = middle + 1
    return before + datetime.timedelta(seconds=low)


def _wall(instant: datetime.datetime, zone: datetime.tzinfo) -> datetime.datetime:
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


@functools.lru_cache(maxsize=64)
def _zone(name: str) -> zoneinfo.ZoneInfo:
    return zoneinfo.ZoneInfo(name)
