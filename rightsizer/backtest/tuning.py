"""Which waiting times cost least by recorded gaps: GPU-hours that idle, against stops of what works again. Pure."""

import dataclasses
import datetime
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from rightsizer.backtest.judges import workload_of
from rightsizer.backtest.recording import Group, Recording
from rightsizer.backtest.replay import HOUR_S
from rightsizer.backtest.survival import Survival
from rightsizer.model import Slot
from rightsizer.policy.effective import kind_defaults
from rightsizer.policy.schema import KindDefaults, Policy
from rightsizer.policy.thresholds import ReturnRate, Thresholds

WINDOWS_H = (0.5, 1, 2, 4, 6, 8, 12, 16, 24, 36, 48, 72, 96, 168)
FACTORS = (0.0, 1.5, 2.0, 3.0)
"""Multiples of the longest earlier gap."""
LEAST_GAPS = 30
"""With fewer gaps of its own, a row keeps its times."""
FLEET_GAPS = 20
"""Each row also counts the fleet's mean gap so often: a row with few gaps of its own waits as the fleet."""


@dataclasses.dataclass(frozen=True, slots=True)
class Gap:
    """A time without work.

    Attributes:
        hours: How long; until the end of the record where it goes on.
        gpus: Whole GPUs that were held.
        chance: The probability that work follows: 1 if it did, 0 if the pods ended, None where the record ends.
        before_h: The longest earlier gap of the same workload.
    """

    hours: float
    gpus: float
    chance: float | None
    before_h: float


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """What a waiting time costs.

    Attributes:
        idle: GPU-hours that nobody used before the stop, or where there was none.
        stops: How many.
        returned: Those of them whose workload works again, as far as it can be expected.
    """

    idle: float
    stops: int
    returned: float

    def total(self, price: float) -> float:
        """In GPU-hours; a stop that returned costs `price` of them."""
        return self.idle + price * self.returned


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """A row of the defaults, and what was chosen for it.

    Attributes:
        row: The row; None for all other kinds.
        cost, before: Of the chosen and of the present times, on the same gaps.
        break_even_h: Waiting that costs as much as a mistake: it never costs twice as much as the best that
            hindsight could do, whatever comes (ski rental).
        returns: Of gaps that have lasted for some hours, the share that work ends within the break-even time, 0 to 1.
    """

    row: KindDefaults | None
    window_h: float
    factor: float
    gaps: int
    returned: int
    cost: Cost
    before: Cost
    break_even_h: float
    returns: tuple[tuple[float, float], ...] = ()

    def thresholds(self, old: Thresholds) -> Thresholds:
        """The old ones with the chosen times."""
        window = datetime.timedelta(hours=self.window_h)
        changes: dict[str, object] = {
            "window": window,
            "unusedWindow": min(window, old.unusedWindow),
            "minIdleTime": None,
            "idleFactor": self.factor,
            "history": max(old.history, window),
            "returnsWithin": datetime.timedelta(minutes=max(1, round(self.break_even_h * 60))),
            "returns": tuple(
                ReturnRate(after=datetime.timedelta(hours=hours), percent=round(100 * share, 1))
                for hours, share in self.returns
            ),
        }
        return old.model_copy(update=changes)


def tuned(
    recording: Recording, policy: Policy, price: float, *, stop: int
) -> tuple[Policy, tuple[Choice, ...]]:
    """The policy with the waiting times that cost least in the steps before `stop`, and how they were found.

    `price` is what a stop of a workload costs that works again, in GPU-hours. Rows with few gaps keep their times.
    """
    gaps: dict[int, list[Gap]] = {}
    rows: dict[int, KindDefaults | None] = {}
    for group in recording.groups:
        row = _row(group, recording, policy)
        rows[id(row)] = row
        gaps.setdefault(id(row), []).extend(gaps_of(group, recording, stop))
    fleet = [gap for found in gaps.values() for gap in found]
    everyone = _expected(fleet, _survival(fleet, fleet))
    choices = tuple(
        _choice(rows[key], found, everyone, policy, price)
        for key, found in sorted(gaps.items(), key=_size)
        if len(found) >= LEAST_GAPS
    )
    return _applied(policy, choices), choices


def _survival(gaps: Sequence[Gap], fleet: Sequence[Gap]) -> Survival:
    """Of gaps, leaning towards the fleet's."""
    weight = FLEET_GAPS / len(fleet)
    return Survival([*map(_seen, gaps), *((*_seen(gap)[:2], weight) for gap in fleet)])


def _expected(gaps: Sequence[Gap], survival: Survival) -> list[Gap]:
    """The gaps with the chance of work after those that the record cuts off."""
    return [
        gap if gap.chance is not None else dataclasses.replace(gap, chance=survival.ends_after(gap.hours))
        for gap in gaps
    ]


def _seen(gap: Gap) -> tuple[float, bool, float]:
    """What is known of how long it lasts: one whose pods ended lasts for ever."""
    return math.inf if gap.chance == 0 else gap.hours, gap.chance == 1, 1.0


def _size(item: tuple[int, Sequence[Gap]]) -> int:
    return -len(item[1])


def gaps_of(group: Group, recording: Recording, stop: int) -> Iterator[Gap]:
    """Its times without work before `stop`; where a step is unknown, a gap is left out."""
    works, step_h = group.works[: max(0, stop - group.first)], recording.grid.step_s / HOUR_S
    before_h, begin = 0.0, None
    for place, state in enumerate((*works, None)):
        if state == Slot.IDLE:
            begin = place if begin is None else begin
            continue
        if begin is not None and state != Slot.UNKNOWN:
            hours = (place - begin) * step_h
            gpus = sum(member.gpus for member in group.present(group.first + begin + 1))
            if gpus:
                chance = 1.0 if state is not None else (None if group.end >= stop else 0.0)
                yield Gap(hours, gpus, chance, before_h)
            before_h = max(before_h, hours)
        begin = None


def cost_of(gaps: Sequence[Gap], window_h: float, factor: float) -> Cost:
    """What it costs to wait for a time, or a multiple of the longest earlier gap if that is longer."""
    idle, stops, returned = 0.0, 0, 0.0
    for gap in gaps:
        wait_h = max(window_h, factor * gap.before_h)
        idle += gap.gpus * min(gap.hours, wait_h)
        if gap.hours > wait_h:
            stops += 1
            returned += gap.chance or 0.0
    return Cost(idle, stops, returned)


def _row(group: Group, recording: Recording, policy: Policy) -> KindDefaults | None:
    return kind_defaults(workload_of(group, recording), policy)


def _choice(
    row: KindDefaults | None, found: Sequence[Gap], fleet: Sequence[Gap], policy: Policy, price: float
) -> Choice:
    survival, weight = _survival(found, fleet), FLEET_GAPS / len(fleet)
    gaps = _expected(found, survival)
    break_even_h = price / statistics.fmean(gap.gpus for gap in gaps)

    def total(times: tuple[float, float]) -> float:
        return cost_of(gaps, *times).total(price) + weight * cost_of(fleet, *times).total(price)

    # Of equal ones the longest: what frees no more shall not hurt more.
    window_h, factor = min(((w, f) for w in reversed(WINDOWS_H) for f in reversed(FACTORS)), key=total)
    old = _thresholds(row, policy)
    return Choice(
        row=row,
        window_h=window_h,
        factor=factor,
        gaps=len(gaps),
        returned=sum(gap.chance == 1 for gap in found),
        cost=cost_of(gaps, window_h, factor),
        before=cost_of(gaps, old.shortest_s / HOUR_S, old.idleFactor),
        break_even_h=break_even_h,
        returns=tuple(
            (hours, survival.ends_after(hours, break_even_h))
            for hours in WINDOWS_H
            if hours <= max(gap.hours for gap in gaps)
        ),
    )


def _thresholds(row: KindDefaults | None, policy: Policy) -> Thresholds:
    return (row.idle if row else None) or policy.defaults.idle


def _applied(policy: Policy, choices: Sequence[Choice]) -> Policy:
    by_row: Mapping[int, Choice] = {id(one.row): one for one in choices}
    kinds = tuple(
        row.model_copy(update={"idle": by_row[id(row)].thresholds(_thresholds(row, policy))})
        if id(row) in by_row
        else row
        for row in policy.defaults.kinds
    )
    changes: dict[str, object] = {"kinds": kinds}
    if id(None) in by_row:
        changes["idle"] = by_row[id(None)].thresholds(policy.defaults.idle)
    return policy.model_copy(update={"defaults": policy.defaults.model_copy(update=changes)})
