"""Replays a recording cycle by cycle: what a judge stops stays stopped until it would next have worked. Pure."""

import dataclasses
import datetime
import math
from collections.abc import Callable

import msgspec

from rightsizer.model import Action, ChangeOutcome, ChangeRecord, ObjectRef, Slot
from rightsizer_history.backtest.judges import STOPS, Judge, Oracle, Order, active_devices, active_replicas
from rightsizer_history.backtest.recording import Group, Recording
from rightsizer_history.backtest.standings import Standing

HOUR_S = 3600.0
DAY_S = 86400


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One change that a judge made.

    Attributes:
        gpus: Whole GPUs that it freed.
        gpu_hours: What it freed beside earlier changes, until it was needed again, would have ended anyway, or the
            recording ends: GPUs that were seen idle.
        needed_after_s: After how long it would have worked again; None if never within the recording.
        watched_s: How long the recording goes on after it, less the time without samples.
    """

    ref: ObjectRef
    at: datetime.datetime
    action: Action
    finding: str
    rule: str
    gpus: float
    gpu_hours: float
    needed_after_s: float | None
    watched_s: float
    priority_class: str = ""

    @property
    def was_at_work(self) -> bool:
        """Whether it worked in that very step."""
        return self.needed_after_s == 0


@dataclasses.dataclass(slots=True)
class Account:
    """One workload's totals.

    Attributes:
        priority_class, model: Of its pods and their GPUs; empty if unknown.
        held, used: GPU-hours that it held, and in which its GPUs were active.
        unseen: GPU-hours that it held without samples.
        scaled: GPU-hours in which fewer replicas ran.
        rest: GPU-hours that an oracle frees.
        restarts: GPU-hours that its returns cost.
        shrunk: By day, seconds in which fewer replicas ran than before, and those with fewer than were active.
        changes: What was done.
        notices: How many notices it got.
    """

    ref: ObjectRef
    priority_class: str = ""
    model: str = ""
    held: float = 0.0
    used: float = 0.0
    unseen: float = 0.0
    scaled: float = 0.0
    rest: float = 0.0
    restarts: float = 0.0
    shrunk: dict[int, tuple[float, float]] = dataclasses.field(default_factory=dict)
    changes: list[Change] = dataclasses.field(default_factory=list)
    notices: int = 0

    @property
    def freed(self) -> float:
        """GPU-hours that changes of it freed."""
        return self.scaled + self.rest + sum(one.gpu_hours for one in self.changes)

    @property
    def replica_s(self) -> float:
        """Seconds in which fewer replicas ran than before."""
        return sum(seconds for seconds, _ in self.shrunk.values())


@dataclasses.dataclass(frozen=True, slots=True)
class Replayed:
    """What one judge made of a recording; a return takes `restart_s`."""

    judge: str
    accounts: tuple[Account, ...]
    restart_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Terms:
    """How a recording is replayed.

    Attributes:
        every: Time between two cycles.
        first: The step of the first cycle; what is before is only history.
        restart: What a return costs: each of its GPUs for this time.
    """

    every: datetime.timedelta
    first: int
    restart: datetime.timedelta


def replay(
    recording: Recording, judge: Judge, terms: Terms, told: Callable[[float], None] = lambda _: None
) -> Replayed:
    """Every cycle of the recording; `told` hears which share of them is done, 0 to 1."""
    course = _Course(recording, judge, terms)
    every = max(1, round(terms.every.total_seconds() / recording.grid.step_s))
    cycles = range(terms.first, recording.grid.steps, every)
    for number, step in enumerate(cycles, 1):
        course.cycle(step, min(step + every, recording.grid.steps))
        told(number / len(cycles))
    if isinstance(judge, Oracle):
        course.free_all()
    return Replayed(judge.name, course.accounts(), terms.restart.total_seconds())


class _Course:
    def __init__(self, recording: Recording, judge: Judge, terms: Terms) -> None:
        self._recording = recording
        self._judge = judge
        self._terms = terms
        self._standings = [Standing(group) for group in recording.groups]
        self._accounts = {one.group.ref: _account(one.group, recording, terms) for one in self._standings}
        self._step_h = recording.grid.step_s / HOUR_S
        self._restart_h = terms.restart.total_seconds() / HOUR_S
        self._sized: dict[ObjectRef, list[float]] = {}  # GPUs in each step that are free without a stop

    def accounts(self) -> tuple[Account, ...]:
        return tuple(self._accounts.values())

    def free_all(self) -> None:
        """Free all that idles, at the lowest price: nobody frees or saves more, by stops, sizes, scales or slices."""
        for one in self._standings:
            account = self._accounts[one.group.ref]
            account.rest = max(0.0, account.held - account.used - account.unseen)
            account.restarts = self._least_restarts(one.group)

    def _least_restarts(self, group: Group) -> float:
        """GPU-hours of returns, each with the smallest device; a pause is never stopped for more than it frees."""
        last = group.last_gpus(0, self._recording.grid.steps)
        most, cost, step = self._restart_h * max(last), 0.0, self._terms.first
        while (needed := group.works_next(step)) is not None:
            cost += min(most, sum(last[step:needed]) * self._step_h)
            step = needed + 1
        return cost

    def cycle(self, step: int, until: int) -> None:
        """Judge once; sizes of replicas hold until the next cycle."""
        for one in self._standings:
            self._bring_back(one, step)
            one.pods = one.group.present(step) if one.resumes is None else ()
        for order in self._judge.judge(self._recording, self._standings, step):
            self._carry_out(order, step, until)

    def _bring_back(self, one: Standing, step: int) -> None:
        """Return it, if the record shows it at work by now."""
        if one.resumes is not None and one.resumes <= step:
            one.since, one.resumes = one.resumes, None
            ended = self._recording.grid.time(one.since)
            last = msgspec.structs.replace(one.changes[-1], end=ChangeOutcome.REVERTED, ended=ended)
            one.changes = (*one.changes[:-1], last)

    def _carry_out(self, order: Order, step: int, until: int) -> None:
        one = order.standing
        if order.action is Action.NOTICE:
            self._accounts[one.group.ref].notices += 1
            one.annotations = {**one.annotations, **order.annotations}
        elif order.action in STOPS:
            self._stop(order, step)
        elif order.action is Action.RESIZE and order.kept is not None:
            self._resize(order, step, order.kept)
        elif order.action is Action.SCALE_DOWN and order.kept is not None:
            self._shrink(order, step, until, order.kept)

    def _stop(self, order: Order, step: int) -> None:
        one, group = order.standing, order.standing.group
        needed = group.works_next(step)
        stop = self._recording.grid.steps if needed is None else needed
        idle = sum(member.seen_steps(step, stop) for member in group.members)
        freed = (idle - sum(self._sized.get(group.ref, [])[step:stop])) * self._step_h
        gpus = self._gpus(one, step)
        self._note(order, step, gpus, freed, needed)
        account = self._accounts[group.ref]
        if needed is not None:
            account.restarts += gpus * self._restart_h
            paused_s = order.idle_s + (needed - step) * self._recording.grid.step_s
            paused = datetime.timedelta(seconds=paused_s)
            one.came_back_after = max(paused, one.came_back_after or paused)
        one.resumes = self._recording.grid.steps if needed is None else max(needed, step + 1)
        one.annotations = {}

    def _resize(self, order: Order, step: int, kept: int) -> None:
        one, group = order.standing, order.standing.group
        ends = max(member.end for member in group.present(step))
        needed = next((at for at in range(step, ends) if active_devices(group, at) > kept), None)
        before, gpus, one.gpus = one.gpus, self._gpus(one, step), kept
        gpus -= self._gpus(one, step)
        self._note(order, step, gpus, self._free(group, gpus, step, needed or ends), needed)
        one.gpus, one.since = (kept, step) if needed is None else (before, needed)

    def _shrink(self, order: Order, step: int, until: int, kept: int) -> None:
        """Fewer replicas until the next cycle, which sizes them again."""
        group, account = order.standing.group, self._accounts[order.standing.group.ref]
        gpus = self._gpus(order.standing, step) * (1 - kept / max(1, len(group.present(step))))
        if gpus <= 0:
            return
        step_s = self._recording.grid.step_s
        short = sum(active_replicas(group, at) > kept for at in range(step, until))
        day = step * step_s // DAY_S
        replica_s, short_s = account.shrunk.get(day, (0.0, 0.0))
        account.shrunk[day] = replica_s + (until - step) * step_s, short_s + short * step_s
        account.scaled += self._free(group, gpus, step, until)

    @staticmethod
    def _gpus(one: Standing, step: int) -> float:
        """Whole GPUs that its pods hold, after a resize."""
        return sum(
            member.gpus * (1 if one.gpus is None else min(one.gpus, member.devices) / member.devices)
            for member in one.group.present(step)
        )

    def _free(self, group: Group, gpus: float, step: int, stop: int) -> float:
        """Free GPUs of a workload that runs, in each step as many as idle; the GPU-hours."""
        idle, last = group.idle_gpus(step, stop), group.last_gpus(step, stop)
        sized = self._sized.setdefault(group.ref, [0.0] * self._recording.grid.steps)
        now = [
            max(0.0, min(before + gpus, most - kept))
            for before, most, kept in zip(sized[step:stop], idle, last, strict=True)
        ]
        freed = sum(now) - sum(sized[step:stop])
        sized[step:stop] = now
        return freed * self._step_h

    def _note(self, order: Order, step: int, gpus: float, freed: float, needed: int | None) -> None:
        group, grid = order.standing.group, self._recording.grid
        account = self._accounts[group.ref]
        at = grid.time(step)
        after_s = None if needed is None else float((needed - step) * grid.step_s)
        unseen = group.works.count(Slot.UNKNOWN, max(0, step - group.first))
        account.changes.append(
            Change(
                ref=group.ref,
                at=at,
                action=order.action,
                finding=order.finding,
                rule=order.rule,
                gpus=gpus,
                gpu_hours=freed,
                needed_after_s=after_s,
                watched_s=float((grid.steps - step - unseen) * grid.step_s),
                priority_class=account.priority_class,
            )
        )
        change = ChangeRecord(at, f"backtest-{step}", order.action, math.ceil(gpus))
        order.standing.changes = (*order.standing.changes, change)


def _account(group: Group, recording: Recording, terms: Terms) -> Account:
    """What it held and used in the replayed time."""
    hours, steps = recording.grid.step_s / HOUR_S, (terms.first, recording.grid.steps)
    held = sum(member.held_steps(*steps) for member in group.members) * hours
    seen = sum(member.seen_steps(*steps) for member in group.members) * hours
    used = sum(
        track.gpus * row.count(Slot.BUSY, max(0, terms.first - track.first))
        for member in group.members
        for track, row in zip(member.tracks, member.rows, strict=True)
    )
    return Account(group.ref, group.priority_class, group.model, held, used * hours, held - seen)
