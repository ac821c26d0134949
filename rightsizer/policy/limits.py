"""How much may be changed, and when: budgets, maintenance windows, freezes, as they stand in the file. Pure.

`calendar` says whether an instant is open; counting against budgets is the business of the stage of that name.
"""

import decimal
import enum
from typing import Annotated, Final, Self

import pydantic

from rightsizer.policy.values import DAYS, Date, Days, Minutes, Part, Share, Zone


class Scope(enum.StrEnum):
    """Of what a budget counts the changes together."""

    CLUSTER = "cluster"
    NAMESPACE = "namespace"
    OWNER = "owner"
    NODE_POOL = "nodePool"


class Per(enum.StrEnum):
    """Over what time a budget counts."""

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
    scope: Scope = pydantic.Field(
        Scope.CLUSTER,
        strict=False,
        description="Changes that count together: cluster, namespace, owner (the topmost controller) or nodePool.",
    )
    per: Per = pydantic.Field(
        Per.RUN,
        strict=False,
        description="Period: run, hour or day (the 60 minutes and 24 hours before each change).",
    )
    gpus: Amount | None = pydantic.Field(None, description="Maximum number of GPUs; 0 allows nothing.")
    workloads: Amount | None = pydantic.Field(
        None, description="Maximum number of workloads; 0 allows nothing."
    )
    share: Share | None = pydantic.Field(
        None,
        description="Maximum percentage of the GPUs held in the scope, rounded up, above 0% and up to 100%.",
    )

    @pydantic.model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.gpus is None and self.workloads is None and self.share is None:
            message = "limits nothing: give gpus, workloads or share"
            raise ValueError(message)
        return self

    @property
    def title(self) -> str:
        """What people know it by."""
        return self.name or f"{self.scope.value}/{self.per.value}"

    def gpus_of(self, held: int) -> int | None:
        """The most GPUs that may be freed where so many are held in the scope; None where it does not limit GPUs.

        A share is rounded up, so that a small cluster is not closed by it; the lower of the two amounts wins.
        """
        amounts = [] if self.gpus is None else [self.gpus]
        if self.share is not None:
            amounts.append(int((held * self.share / 100).to_integral_value(decimal.ROUND_CEILING)))
        return min(amounts, default=None)


DEFAULT_BUDGETS: Final = (
    # A mistake in a policy shall cost little before someone sees it: a handful of workloads in a run, a team not more
    # than two, a cluster not more than a tenth of its GPUs in an hour, and nobody twice in a day.
    Budget(scope=Scope.CLUSTER, per=Per.RUN, workloads=5),
    Budget(scope=Scope.NAMESPACE, per=Per.RUN, workloads=2),
    Budget(scope=Scope.CLUSTER, per=Per.HOUR, workloads=20, share=decimal.Decimal(10)),
    Budget(scope=Scope.OWNER, per=Per.DAY, workloads=1),
)


def with_defaults(written: tuple[Budget, ...]) -> tuple[Budget, ...]:
    """The budgets of a file and, of what they do not speak of, the defaults: writing one never removes another."""
    seen: set[tuple[Scope, Per]] = set()
    for budget in written:
        if (budget.scope, budget.per) in seen:
            message = f"two budgets for scope {budget.scope.value} per {budget.per.value}; combine them"
            raise ValueError(message)
        seen.add((budget.scope, budget.per))
    return (*written, *(budget for budget in DEFAULT_BUDGETS if (budget.scope, budget.per) not in seen))


class NewlyEligible(Part):
    """How much the number of enforced workloads may grow; both limits must be exceeded."""

    share: Share = pydantic.Field(
        decimal.Decimal(20), description="Percentage above the accepted number, above 0% and up to 100%."
    )
    workloads: Amount = pydantic.Field(10, description="Number of workloads above the accepted number.")


class Breaker(Part):
    """What stops all changes until an operator resets the breaker."""

    maxErrors: int = pydantic.Field(
        3, ge=1, le=1000, description="Consecutive refused or unknown outcomes, over all runs."
    )
    maxNodesNotReady: Share = pydantic.Field(
        decimal.Decimal(10),
        description="Percentage of GPU nodes that are not ready, above 0% and up to 100%; at least 3 nodes.",
    )
    maxNewlyEligible: NewlyEligible = pydantic.Field(
        default_factory=NewlyEligible,
        description="Growth of the number of enforced workloads since it was accepted; both limits must be exceeded.",
    )


class MaintenanceWindow(Part):
    """When changes may be made; one of several windows must be open."""

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
        """As people say it."""
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
        """As people say it."""
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.from_} to {self.to} {self.zone}{why}"
