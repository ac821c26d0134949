"""Times that cost least by recorded gaps: GPU-hours that idle, against stops of what works again. Pure."""

import dataclasses
import datetime
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence

from rightsizer.model import Fleet, Slot
from rightsizer.policy.effective import EffectivePolicy, PolicyEvaluator, kind_defaults
from rightsizer.policy.schema import KindDefaults, Policy
from rightsizer.policy.thresholds import ReturnRate, Thresholds
from rightsizer_history.backtest.recording import Group, Recording
from rightsizer_history.backtest.replay import HOUR_S
from rightsizer_history.backtest.rhythm import WEEK_H, Rhythm, Tally, tally_of
from rightsizer_history.backtest.standings import workload_of
from rightsizer_history.backtest.survival import Survival

WINDOWS_H = (0.5, 1, 2, 4, 6, 8, 12, 16, 24, 36, 48, 72, 96, 168)
FACTORS = (0.0, 1.5, 2.0, 3.0)
"""Multiples of the longest earlier gap."""
NOTICES_AFTER_H = (4.0, 12.0, 24.0, 48.0)
LONGER_NOTICES = (1.0, 1.5, 2.0, 4.0)
"""Multiples of the present notice. None is shorter: what owners would have answered is not recorded."""
VOID_NOTICE = 0.02
"""Cost of a notice that work makes void, in mistakes: somebody reads it for nothing."""
LEAST_GAPS = 10
"""Least number of its own gaps with which a row gets other times."""
LEAST_CLASS_GAPS = 30
"""Least number of its own gaps with which a PriorityClass gets times of its own."""
LEAST_LASTED = 5
"""The least number of gaps that have lasted for a time, for a share of returns."""
LEAST_LEARNED = datetime.timedelta(days=7)
"""A record without a weekend makes nothing wait shorter."""
FLEET_GAPS = 20
"""Number of times that each row also counts the fleet's mean gap: with few gaps of its own it waits as the fleet."""
MONTH_H = 30 * 24.0
"""Hours of the month in which a workload's changes are counted."""


@dataclasses.dataclass(frozen=True, slots=True)
class Gap:
    """A time without work.

    Attributes:
        hours: How long; until the end of the record where it goes on.
        gpus: Whole GPUs that were held.
        chance: The probability that work follows: 1 if it did, 0 if the pods ended, None where the record ends.
        before_h: The longest earlier gap of the same workload.
        at_h: When it began, in hours since a Monday 00:00 UTC.
    """

    hours: float
    gpus: float
    chance: float | None
    before_h: float
    at_h: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a workload's rules, whatever the times are.

    Attributes:
        cooldown_h, longest_h: Time without a stop after one returned, doubled for each, and up to what.
        changes: The most in 30 days.
        notice_h: Of the notice, where a rule says it; None where the kind does.
    """

    cooldown_h: float = 0.0
    longest_h: float = 0.0
    changes: float = math.inf
    notice_h: float | None = None

    @classmethod
    def of(cls, effective: EffectivePolicy) -> "Limits":
        """Limits of the rules that apply."""
        named = [rule.notifyBefore for rule in effective.rules if rule.notifyBefore is not None]
        return cls(
            cooldown_h=_hours(effective.cooldown),
            longest_h=_hours(max(effective.cooldown, effective.max_cooldown)),
            changes=effective.max_changes,
            notice_h=_hours(max(named)) if named else None,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Life:
    """A workload's gaps, in order, what its rules allow, its kind, and its PriorityClass if known."""

    gaps: Sequence[Gap]
    limits: Limits = dataclasses.field(default_factory=Limits)
    kind: str = ""
    priority_class: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Times:
    """Waiting times.

    Attributes:
        window_h, factor: The required idle time, and how many times the longest earlier gap it must be.
        notice_after_h, notice_h: When a notice is given at the earliest, and how long before the stop; 0 for none.
    """

    window_h: float
    factor: float
    notice_after_h: float = 0.0
    notice_h: float = 0.0

    def of(self, gap: Gap, limits: Limits) -> tuple[float, float]:
        """Hours of a gap after which the notice is given (as the stop where there is none), and the stop due."""
        required_h = max(self.window_h, self.factor * gap.before_h)
        notice_h = self.notice_h if limits.notice_h is None else limits.notice_h
        if not notice_h:
            return required_h, required_h
        noticed_h = min(required_h / 2, self.notice_after_h)
        return noticed_h, max(required_h, noticed_h + notice_h)


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """Cost of waiting times.

    Attributes:
        idle: GPU-hours that nobody used before the stop, or where there was none.
        stops: How many.
        returned: Those of them whose workload works again, as far as it can be expected.
        void: Notices that work made void.
    """

    idle: float
    stops: int
    returned: float
    void: float = 0.0

    def total(self, price: float) -> float:
        """Total in GPU-hours; a stop that returned costs `price` of them."""
        return self.idle + price * (self.returned + VOID_NOTICE * self.void)


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """A row of the defaults, and what was chosen for it.

    Attributes:
        row: The row; None for all other kinds.
        part: The row of one PriorityClass of it that the choice is for; None if it is for all others.
        cost, before: Of the chosen and of the present times, on the same gaps.
        break_even_h: Waiting that costs as much as a mistake: it never costs twice as much as the best that
            hindsight could do, whatever comes (ski rental).
        returns: Hours; of gaps that have lasted so long, the share that work ends within the break-even time, 0 to 1;
            and how many have.
    """

    row: KindDefaults | None
    times: Times
    gaps: int
    returned: int
    cost: Cost
    before: Cost
    break_even_h: float
    returns: tuple[tuple[float, float, int], ...] = ()
    part: KindDefaults | None = None

    def thresholds(self, old: Thresholds) -> Thresholds:
        """The old ones with the chosen times; a notice needs evidence of no more than the time before it."""
        required = datetime.timedelta(hours=self.times.window_h)
        window = required
        changes: dict[str, object] = {}
        if self.times.notice_h and self.times.notice_after_h < self.times.window_h:
            window = datetime.timedelta(hours=self.times.notice_after_h)
        if self.times.notice_h:
            changes["noticeAfter"] = datetime.timedelta(hours=self.times.notice_after_h)
        changes |= {
            "window": window,
            "unusedWindow": min(required, old.unusedWindow),
            "minIdleTime": None if window == required else required,
            "idleFactor": self.times.factor,
            "history": max(old.history, required),
            "returnsWithin": datetime.timedelta(minutes=max(1, round(self.break_even_h * 60))),
            "returns": tuple(
                ReturnRate(after=datetime.timedelta(hours=hours), percent=round(100 * share, 1), gaps=gaps)
                for hours, share, gaps in self.returns
            ),
        }
        return old.model_copy(update=changes)

    def tuned_row(self, row: KindDefaults, policy: Policy) -> KindDefaults:
        """The row with the chosen times."""
        changes: dict[str, object] = {"idle": self.thresholds(_thresholds(row, policy))}
        if row.notifyBefore is not None:
            changes["notifyBefore"] = datetime.timedelta(hours=self.times.notice_h)
        return row.model_copy(update=changes)


def tuned(
    recording: Recording, policy: Policy, price: float, *, stop: int, shortens: bool = True
) -> tuple[Policy, tuple[Choice, ...]]:
    """The policy with the times that cost least in the steps before `stop`, and how they were found.

    `price` is what a stop of a workload costs that works again, in GPU-hours. Rows with few gaps keep their times, and
    unless it `shortens` none gets shorter ones.
    """
    lives: dict[int, list[Life]] = {}
    rows: dict[int, KindDefaults | None] = {}
    evaluator = PolicyEvaluator(policy, Fleet((), recording.nodes, {}), at=recording.grid.begin)
    for group in recording.groups:
        workload = workload_of(group, recording)
        row = kind_defaults(workload, policy)
        rows[id(row)] = row
        limits = Limits.of(evaluator.evaluate(workload))
        life = Life(tuple(gaps_of(group, recording, stop)), limits, group.ref.full_kind, group.priority_class)
        lives.setdefault(id(row), []).append(life)
    fleet = _Fleet(tuple(itertools.chain.from_iterable(lives.values())))
    choices = tuple(
        choice
        for key, found in sorted(lives.items(), key=_size)
        if -_size((key, found)) >= LEAST_GAPS
        for choice in _choices(rows[key], found, fleet, policy, price, shortens=shortens)
    )
    return _applied(policy, choices), choices


def _choices(
    row: KindDefaults | None,
    lives: Sequence[Life],
    fleet: "_Fleet",
    policy: Policy,
    price: float,
    *,
    shortens: bool,
) -> Iterator[Choice]:
    """Choice for a row, and for those of its PriorityClasses for which other times cost less."""
    everyone = _choice(row, lives, fleet, policy, price, shortens=shortens)
    yield everyone
    by_class: dict[str, list[Life]] = {}
    for life in lives:
        by_class.setdefault(life.priority_class, []).append(life)
    if len(by_class) == 1 or (row is not None and row.onlyPriorityClasses is not None):
        return
    whole = _Fleet(lives)
    for name, own in sorted(by_class.items()):
        if len(_gaps(own)) < LEAST_CLASS_GAPS:
            continue
        choice = _choice(row, own, whole, policy, price, shortens=shortens)
        if choice.times != everyone.times:
            base = KindDefaults(kinds=tuple(sorted({life.kind for life in own}))) if row is None else row
            part = base.model_copy(update={"onlyPriorityClasses": (name,)})
            yield dataclasses.replace(choice, part=part)


def is_short(recording: Recording, stop: int) -> bool:
    """Whether what was recorded before `stop` is too short to make anything wait shorter."""
    return recording.grid.time(stop) - recording.grid.time(recording.first) < LEAST_LEARNED


@dataclasses.dataclass(frozen=True, slots=True)
class _Weighted:
    """Gaps, in which hours of the week they were idle and ended, and how much each of them counts."""

    gaps: Sequence[Gap]
    tally: Tally
    weight: float

    @classmethod
    def of(cls, gaps: Sequence[Gap]) -> "_Weighted":
        return cls(gaps, tally_of((gap.at_h, gap.hours, gap.chance == 1) for gap in gaps), 1.0)


class _Hazard:
    """Ends of gaps, by how long they have lasted and in which hours of the week."""

    def __init__(self, *parts: _Weighted) -> None:
        tally = Tally()
        for part in parts:
            tally.add_part(part.tally, part.weight)
        self._rhythm = Rhythm(tally)
        self._survival = Survival(
            (self._lasts_h(gap), gap.chance == 1, part.weight) for part in parts for gap in part.gaps
        )

    def _lasts_h(self, gap: Gap) -> float:
        """Known length of a gap in hours; one whose pods ended lasts for ever."""
        return math.inf if gap.chance == 0 else self._rhythm.counted_h(gap.at_h, gap.hours)

    def expected(self, life: Life) -> Life:
        """The gaps with the chance of work after those that the record cuts off."""
        gaps = [
            gap
            if gap.chance is not None
            else dataclasses.replace(gap, chance=self._survival.ends_after(self._lasts_h(gap)))
            for gap in life.gaps
        ]
        return dataclasses.replace(life, gaps=gaps)

    def returns(self, gaps: Sequence[Gap], within_h: float) -> Iterator[tuple[float, float, int]]:
        """Share of the gaps of some length that work ends in the next hours, and how many have lasted so long."""
        for hours in WINDOWS_H:
            lasted = [gap for gap in gaps if gap.hours >= hours]
            if len(lasted) >= LEAST_LASTED:
                yield hours, statistics.fmean(self._ends(gap, hours, within_h) for gap in lasted), len(lasted)

    def _ends(self, gap: Gap, hours: float, within_h: float) -> float:
        begin_h, end_h = (self._rhythm.counted_h(gap.at_h, to_h) for to_h in (hours, hours + within_h))
        return self._survival.ends_after(begin_h, end_h - begin_h)


class _Fleet:
    """Lives of all rows, towards which each row leans."""

    def __init__(self, lives: Sequence[Life]) -> None:
        whole = _Weighted.of(_gaps(lives))
        self.weight = FLEET_GAPS / max(1, len(whole.gaps))
        self._leaning = dataclasses.replace(whole, weight=self.weight)
        expected = tuple(map(_Hazard(whole).expected, lives))
        self.cost: Callable[[Times], Cost] = functools.cache(functools.partial(cost_of, expected))

    def hazard(self, gaps: Sequence[Gap]) -> _Hazard:
        """Ends of gaps, leaning towards the fleet's."""
        return _Hazard(_Weighted.of(gaps), self._leaning)


def _gaps(lives: Sequence[Life]) -> list[Gap]:
    return [gap for life in lives for gap in life.gaps]


def _size(pair: tuple[int, Sequence[Life]]) -> int:
    return -sum(len(life.gaps) for life in pair[1])


def gaps_of(group: Group, recording: Recording, stop: int) -> Iterator[Gap]:
    """Times without work before `stop`; where a step is unknown, a gap is left out."""
    works, step_h = group.works[: max(0, stop - group.first)], recording.grid.step_s / HOUR_S
    before_h, begin, from_h = 0.0, None, _since_monday_h(recording.grid.begin) + group.first * step_h
    for place, state in enumerate((*works, None)):
        if state == Slot.IDLE:
            begin = place if begin is None else begin
            continue
        if begin is not None and state != Slot.UNKNOWN:
            hours = (place - begin) * step_h
            gpus = sum(member.gpus for member in group.present(group.first + begin + 1))
            if gpus:
                chance = 1.0 if state is not None else (None if group.end >= stop else 0.0)
                yield Gap(hours, gpus, chance, before_h, from_h + begin * step_h)
            before_h = max(before_h, hours)
        begin = None


def _since_monday_h(at: datetime.datetime) -> float:
    return (at.timestamp() - _MONDAY_S) / HOUR_S % WEEK_H


_MONDAY_S = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC).timestamp()


def cost_of(lives: Sequence[Life], times: Times) -> Cost:
    """Cost of times, under the limits that hold for each workload whatever they are."""
    idle, stops, returned, void = 0.0, 0, 0.0, 0.0
    for life in lives:
        limits, free_h, made = life.limits, 0.0, list[float]()
        for gap in life.gaps:
            noticed_h, due_h = times.of(gap, limits)
            wait_h = max(due_h, free_h - gap.at_h)
            chance = gap.chance or 0.0
            while made and made[0] <= gap.at_h + wait_h - MONTH_H:
                made.pop(0)
            if gap.hours <= wait_h or len(made) >= limits.changes:
                idle += gap.gpus * gap.hours
                void += chance if noticed_h < min(gap.hours, due_h) else 0.0
                continue
            idle += gap.gpus * wait_h
            stops += 1
            returned += chance
            made.append(gap.at_h + wait_h)
            pause_h = min(limits.cooldown_h * 2 ** (len(made) - 1), limits.longest_h)
            free_h = gap.at_h + gap.hours + pause_h
    return Cost(idle, stops, returned, void)


def _choice(
    row: KindDefaults | None,
    lives: Sequence[Life],
    fleet: _Fleet,
    policy: Policy,
    price: float,
    *,
    shortens: bool,
) -> Choice:
    found = _gaps(lives)
    hazard = fleet.hazard(found)
    expected = [hazard.expected(life) for life in lives]
    gaps = _gaps(expected)
    break_even_h = price / statistics.fmean(gap.gpus for gap in gaps)

    def total(times: Times) -> float:
        return cost_of(expected, times).total(price) + fleet.weight * fleet.cost(times).total(price)

    before = _present(row, policy)
    # Of equal ones the longest: what frees no more shall not hurt more.
    times = min(
        (
            dataclasses.replace(before, window_h=w, factor=f)
            for w, f in (*_WAITS, (before.window_h, before.factor))
            if shortens or (w >= before.window_h and f >= before.factor)
        ),
        key=total,
    )
    if times.notice_h:
        earliest_h = 0.0 if shortens else before.notice_after_h
        times = min(_notices(times, earliest_h), key=total)
    return Choice(
        row=row,
        times=times,
        gaps=len(gaps),
        returned=sum(gap.chance == 1 for gap in found),
        cost=cost_of(expected, times),
        before=cost_of(expected, before),
        break_even_h=break_even_h,
        returns=tuple(hazard.returns(gaps, break_even_h)),
    )


_WAITS = tuple(itertools.product(reversed(WINDOWS_H), reversed(FACTORS)))


def _notices(times: Times, earliest_h: float) -> Iterator[Times]:
    """The same with other notices, the longest first, and none given before `earliest_h`."""
    for longer in reversed(LONGER_NOTICES):
        for after_h in (*reversed(NOTICES_AFTER_H), times.notice_after_h):
            if after_h >= earliest_h:
                yield dataclasses.replace(times, notice_after_h=after_h, notice_h=longer * times.notice_h)


def _present(row: KindDefaults | None, policy: Policy) -> Times:
    """Times of the policy as it is."""
    idle = _thresholds(row, policy)
    return Times(
        window_h=idle.shortest_s / HOUR_S,
        factor=idle.idleFactor,
        notice_after_h=_hours(max(idle.noticeAfter, idle.short_window)),
        notice_h=_hours(row.notifyBefore) if row and row.notifyBefore else 0.0,
    )


def _hours(span: datetime.timedelta) -> float:
    return span.total_seconds() / HOUR_S


def _thresholds(row: KindDefaults | None, policy: Policy) -> Thresholds:
    return (row.idle if row else None) or policy.defaults.idle


def _applied(policy: Policy, choices: Sequence[Choice]) -> Policy:
    whole = {id(choice.row): choice for choice in choices if choice.part is None}
    kinds: list[KindDefaults] = []
    for row in (*policy.defaults.kinds, None):
        # A row of one class comes before that of all.
        parts = [(choice, choice.part) for choice in choices if choice.part is not None and choice.row is row]
        kinds += [choice.tuned_row(part, policy) for choice, part in parts]
        if row is not None:
            kinds.append(whole[id(row)].tuned_row(row, policy) if id(row) in whole else row)
    changes: dict[str, object] = {"kinds": tuple(kinds)}
    if id(None) in whole:
        changes["idle"] = whole[id(None)].thresholds(policy.defaults.idle)
    return policy.model_copy(update={"defaults": policy.defaults.model_copy(update=changes)})
