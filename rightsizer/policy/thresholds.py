"""Thresholds of a policy file for each finding, with their units and defaults. Pure."""

import datetime
import fnmatch
import itertools
from collections.abc import Callable
from typing import Annotated, Any, Final, Self

import pydantic

from rightsizer.policy.values import Duration, Name, Part, duration_text, within

IDLE_POWER_W: Final = {
    "*H100*": 160.0,
    "*H200*": 170.0,
    "*A100*": 110.0,
    "*L40S*": 110.0,
    "*L4": 40.0,
    "*T4": 40.0,
}
"""An H100 draws about 70 W without a context and 116 to 123 W with a model loaded and idle (measured on serving
fleets); the other rows keep the same distance to their card's idle draw. Models without a row are judged by memory
traffic."""

_MINUTE = datetime.timedelta(minutes=1)
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
MAX_WINDOW = 366 * _DAY
"""Longest window; nobody keeps samples of every pod for longer, and Prometheus refuses ranges of centuries."""

Window = Annotated[Duration, within(5 * _MINUTE, MAX_WINDOW)]
Delay = Annotated[Duration, within(0 * _DAY, MAX_WINDOW, "; to never touch workloads, write mode: protect")]
_FromAnHour = Annotated[Duration, within(_HOUR, MAX_WINDOW)]
_LeadTime = Annotated[Duration, within(_MINUTE, _DAY)]
_JumpHistory = Annotated[Duration, within(_MINUTE, 7 * _DAY)]
"""Busy replicas are counted in each minute of it: a range query of more than 11,000 steps is refused."""

MAX_IDLE_PERCENT = 20.0
MIN_COVERAGE = 0.5
MAX_IDLE_POWER_W = 400.0
"""Highest idle power; more would silently switch the signal off, and the other one alone would decide."""

Percent = Annotated[float, pydantic.Field(ge=0.0, le=100.0)]
Margin = Annotated[float, pydantic.Field(ge=0.0, le=1000.0)]
Limit = Annotated[float, pydantic.Field(ge=0.0, lt=100.0)]
"""A percentage that counts as nothing up to itself; at 100 % everything would."""


def _at_most(limit: float, unit: str, why: str) -> Callable[[float], float]:
    def check(value: float) -> float:
        if value > limit:
            message = f"{value:g} is above {limit:g} {unit}: {why}"
            raise ValueError(message)
        return value

    return check


def _covered(share: float) -> float:
    if share < MIN_COVERAGE:
        message = f"{share:g} is below {MIN_COVERAGE:g}: unobserved time may have been active"
        raise ValueError(message)
    return share


IdlePercent = Annotated[
    float,
    pydantic.Field(ge=0.0, allow_inf_nan=False, json_schema_extra={"maximum": MAX_IDLE_PERCENT}),
    pydantic.AfterValidator(_at_most(MAX_IDLE_PERCENT, "percent", "such a device is not idle")),
]
"""A percentage that counts as nothing up to itself."""

IdlePower = Annotated[
    float,
    pydantic.Field(gt=0.0, allow_inf_nan=False, json_schema_extra={"maximum": MAX_IDLE_POWER_W}),
    pydantic.AfterValidator(_at_most(MAX_IDLE_POWER_W, "watts", "no idle board draws that much")),
]
"""Watts of a board."""


def _or_learned(schema: dict[str, Any]) -> None:
    pattern = schema.pop("pattern")
    schema["anyOf"] = [{"type": schema.pop("type"), "pattern": pattern}, {"const": LEARNED}]


class Judging(Part):
    """Thresholds of every finding."""

    window: Window = pydantic.Field(
        datetime.timedelta(hours=24),
        description="Evidence window, 5m to 366d; younger workloads are not judged.",
    )
    grace: Delay = pydantic.Field(
        datetime.timedelta(minutes=30),
        description="Time added to the window after a start, restart or resume.",
    )
    minCoverage: Annotated[float, pydantic.AfterValidator(_covered)] = pydantic.Field(
        0.9,
        le=1.0,
        allow_inf_nan=False,
        json_schema_extra={"minimum": MIN_COVERAGE},
        description="Minimum share of the window with samples, 0.5 to 1; below it the verdict is unknown.",
    )


LEARNED: Final = "learned"
"""Word in place of a window: the one that `returns` calls for."""


class ReturnRate(Part):
    """Share of the idle periods of some length that end with work soon after."""

    after: Window = pydantic.Field(description="Idle time, 5m to 366d.")
    percent: Percent = pydantic.Field(
        description="Share of them that work ends within returnsWithin, 0 to 100."
    )
    gaps: int | None = pydantic.Field(
        None, ge=0, description="How many have lasted so long; null if unknown."
    )


class Thresholds(Judging):
    """Thresholds for idle or finished workloads."""

    window: Window = pydantic.Field(
        datetime.timedelta(hours=24),
        description="Evidence window, 5m to 366d; younger workloads are not judged. learned: the shortest idle time "
        "in returns from which on at most maxReturnPercent return.",
        json_schema_extra=_or_learned,
    )
    returns: tuple[ReturnRate, ...] = pydantic.Field(
        (),
        strict=False,
        max_length=100,
        description="How often idle periods ended with work, as tune learns it; shortest first.",
    )
    returnsWithin: Duration = pydantic.Field(
        datetime.timedelta(days=1), description="Time in which work counts as a return in returns."
    )
    maxReturnPercent: Percent = pydantic.Field(
        5.0, description="Highest share of returns with window: learned; percent, 0 to 100."
    )
    maxUtilizationPercent: IdlePercent = pydantic.Field(
        1.0,
        description="Highest utilization sample of an idle device; percent, 0 to 20.",
    )
    maxMemoryTrafficPercent: IdlePercent = pydantic.Field(
        1.0,
        description="Highest memory traffic of an idle device; percent, 0 to 20.",
    )
    maxBusySecondsPerHour: float = pydantic.Field(
        1.0,
        ge=0.0,
        le=36.0,
        description="Highest mean busy time by counters, in seconds per hour, 0 to 36. A health check takes "
        "milliseconds.",
    )
    maxUnattributedSecondsPerHour: float = pydantic.Field(
        1.0,
        ge=0.0,
        le=36.0,
        description="Highest mean busy time of a shared GPU without a known pod, in seconds per hour, 0 to 36; above "
        "it the verdict is unknown.",
    )
    idlePowerWatts: dict[Name, IdlePower] = pydantic.Field(
        default_factory=lambda: dict(IDLE_POWER_W),
        json_schema_extra={"additionalProperties": False},
        description="Highest board power of an idle GPU by model pattern, in watts, up to 400. Other models are "
        "judged by memory traffic.",
    )

    maxBoardPowerPercent: float = pydantic.Field(
        115.0,
        ge=0.0,
        le=150.0,
        description="Highest power of an idle board with MIG instances without utilization, in percent of idle power, "
        "0 to 150; the lowest of all rules.",
    )
    minIdleTime: Delay | None = pydantic.Field(
        None, description="Shortest required idle time, up to 366d. Default: window."
    )
    unusedWindow: Window = pydantic.Field(
        datetime.timedelta(hours=4),
        description="Required idle time of what never worked, or whose GPUs hold no memory of a process; notices need "
        "evidence of as long. 5m to 366d.",
    )
    noticeAfter: Duration = pydantic.Field(
        datetime.timedelta(hours=24),
        description="Idle time after which a notice is given, at least unusedWindow; at most half of the required idle "
        "time.",
    )
    maxEmptyMemoryMiB: float = pydantic.Field(
        64.0,
        ge=0.0,
        le=512.0,
        description="Highest memory use of a GPU without a process, in MiB, 0 to 512. A process takes 300 or more.",
    )
    history: Duration = pydantic.Field(
        datetime.timedelta(days=14),
        description="History to search for earlier idle periods.",
    )
    idleFactor: float = pydantic.Field(
        2.0,
        ge=0.0,
        le=100.0,
        description="Required idle time as a multiple of the longest earlier idle period, 0 to 100; 0 ignores them.",
    )
    rarePausePercent: Percent = pydantic.Field(
        5.0,
        description="Share of earlier idle periods, in percent, below which long ones count with less than idleFactor; "
        "0: the longest decides.",
    )

    @property
    def short_window(self) -> datetime.timedelta:
        """The evidence window before the required idle time is over."""
        return min(self.unusedWindow, self.window)

    @property
    def shortest_s(self) -> float:
        """The shortest required idle time, in seconds."""
        return max(self.window, self.minIdleTime or self.window).total_seconds()

    def return_rate(self, idle_s: float) -> ReturnRate | None:
        """The row of `returns` with the longest time that an idle period has reached; None below all of them."""
        reached = [row for row in self.returns if row.after.total_seconds() <= idle_s]
        return reached[-1] if reached else None

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _learned_window(cls, data: object, handler: pydantic.ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(data, dict) or data.get("window") != LEARNED:
            return handler(data)
        known = handler({key: data[key] for key in ("returns", "maxReturnPercent") if key in data})
        most = known.maxReturnPercent
        rows = list(itertools.takewhile(lambda row: row.percent <= most, reversed(known.returns)))
        if not rows:
            least = f"at most {most:g}% (maxReturnPercent)"
            message = f"window: learned needs rows of returns that end with {least}; gpu-rightsizer tune writes them"
            raise ValueError(message)
        return handler({**data, "window": duration_text(rows[-1].after)})

    @pydantic.model_validator(mode="after")
    def _times_are_possible(self) -> Self:
        if "noticeAfter" in self.model_fields_set and self.noticeAfter < self.short_window:
            least = duration_text(self.short_window)
            message = (
                f"noticeAfter must be at least {least}, as evidence takes that long (unusedWindow, window)"
            )
            raise ValueError(message)
        if any(rate.after >= other.after for rate, other in itertools.pairwise(self.returns)):
            message = "returns must be in order of after, shortest first"
            raise ValueError(message)
        return self

    @pydantic.model_validator(mode="after")
    def _history_reaches_back(self) -> Self:
        if self.minIdleTime is not None and self.minIdleTime > self.history:
            message = "minIdleTime must be at most history"
            raise ValueError(message)
        if "history" in self.model_fields_set and self.idleFactor and self.history < self.window:
            message = "history must be at least as long as window; write idleFactor: 0 to ignore pauses"
            raise ValueError(message)
        return self

    def idle_power_w(self, model: str) -> float | None:
        """Highest board power in watts at which a GPU of this model may count as idle; None where none is known."""
        for pattern, watts in self.idlePowerWatts.items():
            if fnmatch.fnmatchcase(model, pattern):
                return watts
        return None


class NoRequests(Part):
    """Thresholds for inference servers without requests, by their own metrics."""

    window: _FromAnHour = pydantic.Field(
        datetime.timedelta(days=3),
        description="Time without any request, 1h to 366d; younger pods are not judged.",
    )
    maxMeanPercent: IdlePercent = pydantic.Field(
        5.0,
        description="Highest mean utilization of its GPUs in idle.window; percent, 0 to 20. More is work of another "
        "kind.",
    )


class Underutilized(Judging):
    """Thresholds for workloads that use far less than they hold."""

    maxMeanPercent: Percent = pydantic.Field(
        20.0, description="Highest mean utilization of each GPU; percent, 0 to 100."
    )


class TooManyGpus(Judging):
    """Thresholds for pods that never use some of their GPUs."""

    window: Window = pydantic.Field(
        datetime.timedelta(hours=4),
        description="Evidence window, 5m to 366d; use within idle.window counts, too.",
    )
    maxUtilizationPercent: Limit = pydantic.Field(
        1.0,
        description="Highest utilization sample of an unused GPU; percent, 0 to below 100.",
    )


class TooManyReplicas(Judging):
    """Thresholds for how many replicas suffice: those of the busiest minute, plus headroom.

    The defaults are those that free most at 0.5 % of minutes short (`python -m benchmarks.serving`).
    """

    window: Window = pydantic.Field(
        datetime.timedelta(minutes=10),
        description="Window in which the busiest minute is searched, 5m to 366d.",
    )
    grace: Delay = pydantic.Field(
        datetime.timedelta(minutes=10),
        description="Time after its start in which a replica counts as busy.",
    )
    jumpHistory: _JumpHistory = pydantic.Field(
        datetime.timedelta(hours=3),
        description="History in which the largest jump is searched: how far the busy replicas exceeded those of the "
        "window before. 1m to 7d.",
    )
    leadTime: _LeadTime = pydantic.Field(
        datetime.timedelta(minutes=25),
        description="Time until an added replica serves: the interval of cycles and the start of a pod. Jumps within "
        "it count. 1m to 1d.",
    )
    busyPercent: Limit = pydantic.Field(
        1.0, description="Utilization above which a replica is busy; percent, 0 to below 100."
    )
    headroomPercent: Margin = pydantic.Field(
        10.0,
        description="Minimum added to the replicas of the busiest minute, rounded up; percent, 0 to 1000. The "
        "largest jump is added if it is larger.",
    )
    minHeadroom: int = pydantic.Field(1, ge=0, le=10_000, description="Minimum number of replicas added.")
    idleBefore: _LeadTime = pydantic.Field(
        datetime.timedelta(minutes=2),
        description="Time for which a replica must have been idle right before it is removed, 1m to 1d; the longest "
        "of all rules.",
    )
    minSavingPercent: Limit = pydantic.Field(
        10.0,
        description="A scale-down that removes a smaller share of the replicas is not made; percent, 0 to below 100.",
    )

    maxCachePercent: float = pydantic.Field(
        50.0,
        gt=0.0,
        le=100.0,
        description="Use of the KV cache by which advice sizes inference servers; percent, above 0 and up to 100.",
    )


class OversizedGpu(Judging):
    """Thresholds for pods that need only a part of a GPU."""

    memoryMarginPercent: Margin = pydantic.Field(
        20.0, description="Margin on the highest memory use; percent, 0 to 1000."
    )
    activityMarginPercent: Margin = pydantic.Field(
        20.0, description="Margin on the highest utilization; percent, 0 to 1000."
    )
    minSavingPercent: Limit = pydantic.Field(
        10.0,
        description="A slice that frees a smaller share of a GPU per pod is not proposed; percent, 0 to below 100.",
    )


class Stuck(Judging):
    """Thresholds for full utilization without work: no memory traffic, and too little power."""

    window: Window = pydantic.Field(
        datetime.timedelta(hours=2),
        description="How long it must look stuck, 5m to 366d.",
    )
    minMeanPercent: float = pydantic.Field(
        95.0,
        gt=0.0,
        le=100.0,
        description="Lowest mean utilization; percent, above 0 and up to 100.",
    )
    maxIdlePowerPercent: float = pydantic.Field(
        130.0,
        ge=100.0,
        le=200.0,
        description="Idle power: up to this percentage of the lowest of idle GPUs of its model, 100 to 200, or up to "
        "idlePowerWatts.",
    )
    maxWorkPowerPercent: float = pydantic.Field(
        75.0,
        ge=0.0,
        le=95.0,
        description="More than idle power: highest mean power, as a percentage of that of its best hour with memory "
        "traffic, 0 to 95; 0: only idle power is stuck.",
    )
    withoutTraffic: _FromAnHour = pydantic.Field(
        datetime.timedelta(hours=9),
        description="More than idle power: time without memory traffic, 1h to 366d, and idleFactor times its longest "
        "earlier one.",
    )


class InputBound(Judging):
    """Thresholds for workloads that wait for something other than GPUs."""

    maxMeanPercent: Percent = pydantic.Field(50.0, description="Highest mean utilization; percent, 0 to 100.")
    minWaitPercent: float = pydantic.Field(
        25.0,
        gt=0.0,
        le=100.0,
        description="Minimum share of time throttled, or waiting for CPU, disk or network; percent, above 0 and up "
        "to 100.",
    )


class NotStarting(Part):
    """Thresholds for pods that hold GPUs without running."""

    after: Duration = pydantic.Field(
        datetime.timedelta(minutes=30), description="How long a pod may hold GPUs without running."
    )


class Sections(Part):
    """Thresholds of every finding that has some, by the name of its section in the file."""

    idle: Thresholds = pydantic.Field(default_factory=Thresholds)
    noRequests: NoRequests = pydantic.Field(default_factory=NoRequests)
    underutilized: Underutilized = pydantic.Field(default_factory=Underutilized)
    tooManyGpus: TooManyGpus = pydantic.Field(default_factory=TooManyGpus)
    tooManyReplicas: TooManyReplicas = pydantic.Field(default_factory=TooManyReplicas)
    oversizedGpu: OversizedGpu = pydantic.Field(default_factory=OversizedGpu)
    stuck: Stuck = pydantic.Field(default_factory=Stuck)
    inputBound: InputBound = pydantic.Field(default_factory=InputBound)
    notStarting: NotStarting = pydantic.Field(default_factory=NotStarting)
