"""A fleet under a judge: what it takes back, what that was worth, and what was wrong with it.

Whoever is stopped stays stopped until it would next have worked, and is put back then; whoever works again, by the
truth beyond the end, was stopped wrongly. Some owners answer a notice some hours later: who is done lets the GPUs go,
who will be back says until when.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import msgspec

from benchmarks._answers import Standing, instant
from benchmarks._courses import FRIDAY, Archetype
from benchmarks._fleet import JOBS, MOST_ENDED_S, WAKER_S, Fleet, Member, fleet
from benchmarks._judges import Judge, Step, Word, sampled_lately
from benchmarks._records import Spans
from rightsizer.changes import record_codec
from rightsizer.model import Action, ChangeOutcome, ChangeRecord
from simulator.workloads import draws
from simulator.workloads.draws import DAY_S, HOUR_S

EVERY_S = 3600
"""How often is judged."""
REST_S = 3 * EVERY_S
"""How often what has just worked is judged: only its size could change. Services are sized at every step."""
OPENS_S, CLOSES_S = 8 * HOUR_S, 19 * HOUR_S
"""When owners answer."""
SERVICES = frozenset({Archetype.SERVICE, Archetype.ENDPOINT})
STATEFUL = JOBS | {"Notebook", "Pod"}
"""Kinds of which a wrong stop loses work."""
OFTEN = 2
KEEP_ANNOTATION = record_codec.SNOOZE_ANNOTATION
"""With which an owner says until when the GPUs are needed."""
RELEASE_ANNOTATION: str = getattr(record_codec, "RELEASE_ANNOTATION", "")
"""With which an owner lets the GPUs go at once; without it, the owner stops the workload by hand."""


@dataclasses.dataclass(slots=True)
class Tally:
    """What one judge made of one fleet, or of several together: sums, of which the tables show shares.

    GPU-hours are those of the fleet's time.

    Attributes:
        ended, ended_freed: After a workload's last work, a week of it at most; `freed` is of these.
        stops, wrong: Of jobs, notebooks and bare pods, also by owners after a notice; and how many would have worked
            again.
        at_work: Stops of whatever worked at that moment.
        jobs: Wrong stops of jobs.
        service_days, service_wrong: Of services that no request wakes, and stops of these that were needed again.
        often: Services that were wrongly stopped more than twice in 30 days.
        unused, unused_freed: By GPUs of pods that never use them.
        condemned: Over-allocated workloads that were stopped as a whole though they worked again.
        resized, short: Workloads that were given fewer GPUs per pod, and those that would have needed all again.
        hung, hung_freed: By zombies; `freed` by those that were stopped within a day.
        spun, spun_freed: Of those that spin.
        quiet, quiet_freed: Of endpoints without a request, where one wakes them.
        wakes, wake_days: How often these were woken, and their days.
        served, served_freed: Of replicated services, and what advice about replicas would free of it.
        minutes, minutes_short: Of these services, and those with more requests than replicas then.
        notices, replies: Given, and answered.
    """

    ended: float = 0.0
    ended_freed: float = 0.0
    stops: int = 0
    wrong: int = 0
    at_work: int = 0
    jobs: int = 0
    service_days: float = 0.0
    service_wrong: int = 0
    often: int = 0
    unused: float = 0.0
    unused_freed: float = 0.0
    condemned: int = 0
    resized: int = 0
    short: int = 0
    hung: float = 0.0
    hung_freed: float = 0.0
    spun: float = 0.0
    spun_freed: float = 0.0
    quiet: float = 0.0
    quiet_freed: float = 0.0
    wakes: int = 0
    wake_days: float = 0.0
    served: float = 0.0
    served_freed: float = 0.0
    minutes: int = 0
    minutes_short: int = 0
    notices: int = 0
    replies: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        """Both together."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Tally(*(mine + its for mine, its in pairs))


@dataclasses.dataclass(frozen=True, slots=True)
class Stop:
    """A workload that was stopped.

    Attributes:
        by_owner: Whether its owner did that, after a notice.
        returns_s: When it would next have worked; inf where it never does.
    """

    member: Member
    at_s: float
    finding: str
    by_owner: bool
    returns_s: float
    window_s: float

    @property
    def is_wrong(self) -> bool:
        """Whether it ever worked again."""
        return math.isfinite(self.returns_s)

    @property
    def has_worked(self) -> bool:
        """Whether any of its GPUs worked in the window that was looked at."""
        return self.member.has_worked(self.at_s - self.window_s, self.at_s)


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What one judge made of one fleet."""

    tally: Tally
    stops: tuple[Stop, ...]


def replay(
    seed: int, workloads: int, judges: Sequence[Judge], days: float | None = None
) -> dict[str, Outcome]:
    """What each judge makes of a fleet, by the judge's name."""
    made = fleet(seed, workloads, days)
    return {judge.name: _Replay(judge, made).run() for judge in judges}


@dataclasses.dataclass(frozen=True, slots=True)
class _Freed:
    """GPUs that a workload gave back for a while."""

    from_s: float
    until_s: float
    gpus: int
    is_whole: bool

    def within(self, from_s: float, until_s: float) -> float:
        """GPU-seconds in a span."""
        return self.gpus * max(0.0, min(self.until_s, until_s) - max(self.from_s, from_s))


class _Replay:
    def __init__(self, judge: Judge, made: Fleet) -> None:
        self._judge = judge
        self._fleet = made
        self._tally = Tally()
        self._stops: list[Stop] = []
        self._standings = [Standing(one, one.gpus, one.start_s) for one in made.members]
        self._freed: dict[str, list[_Freed]] = {one.name: [] for one in made.members}

    def run(self) -> Outcome:
        """From the fleet's beginning to its end."""
        for at_s in range(self._fleet.begin_s, self._fleet.end_s, EVERY_S):
            present = [one for one in self._standings if self._is_present(one, at_s)]
            asked = [one for one in present if self._is_asked(one, at_s)]
            words = list(self._judge.judge(self._fleet, asked, at_s))
            for word in words:
                self._carry_out(word, at_s)
            self._advise(words, present, at_s)
        for one in self._fleet.members:
            self._weigh(one)
        return Outcome(self._tally, tuple(self._stops))

    def _is_asked(self, one: Standing, at_s: int) -> bool:
        is_sized = one.member.archetype is Archetype.SERVICE or at_s % REST_S == 0
        return is_sized or not sampled_lately(one, at_s)

    def _is_present(self, one: Standing, at_s: int) -> bool:
        """Whether it runs now, after whatever has brought it back and whatever its owner did."""
        member = one.member
        if one.resumes_s is not None and one.resumes_s <= at_s:
            one.since_s, one.resumes_s = one.resumes_s, None
            self._revert(one, one.since_s)
        if one.is_asleep or one.resumes_s is not None or not one.since_s < at_s < member.end_s:
            return False
        if one.gpus < member.gpus and (needed_s := member.needs_all_s(at_s - EVERY_S)) <= at_s:
            self._widen(one, needed_s)
        if one.replies_s is not None and one.replies_s <= at_s:
            return self._reply(one, at_s)
        return True

    def _revert(self, one: Standing, at_s: float) -> None:
        last = msgspec.structs.replace(one.changes[-1], end=ChangeOutcome.REVERTED, ended=instant(at_s))
        one.changes[-1] = last

    def _carry_out(self, word: Word, at_s: int) -> None:
        one = word.standing
        match word.step:
            case Step.NOTICE:
                self._tally.notices += 1
                one.annotations.update(word.annotations)
                one.replies_s = self._replies_s(one, at_s)
            case Step.STOP:
                self._stop(one, at_s, word)
            case Step.RESIZE:
                self._resize(one, at_s, word)
            case Step.ADVICE:
                pass

    def _replies_s(self, one: Standing, at_s: int) -> float | None:
        """When the owner answers: some hours later, by day and on a weekday; None for those who never do."""
        draw = draws.seeded("owner", self._fleet.seed, one.member.name)
        if draw.random() >= self._judge.answers:
            return None
        replies_s = at_s + draw.uniform(0.2, 8) * HOUR_S
        while (replies_s // DAY_S + 3) % 7 > FRIDAY or not OPENS_S <= replies_s % DAY_S < CLOSES_S:
            replies_s += HOUR_S
        return replies_s

    def _reply(self, one: Standing, at_s: int) -> bool:
        """The owner's answer; returns whether the workload still runs."""
        one.replies_s = None
        resumes_s = one.member.resumes_s(at_s)
        self._tally.replies += 1
        if math.isfinite(resumes_s):
            until = instant(resumes_s + HOUR_S).strftime("%Y-%m-%dT%H:%M:%SZ")
            one.annotations[KEEP_ANNOTATION] = until
        elif RELEASE_ANNOTATION:
            one.annotations[RELEASE_ANNOTATION] = "true"
        else:
            self._stop(one, at_s, None)
            return False
        return True

    def _stop(self, one: Standing, at_s: int, word: Word | None) -> None:
        member, end_s = one.member, min(one.member.end_s, float(self._fleet.end_s))
        resumes_s = member.resumes_s(at_s)
        self._stops.append(
            Stop(
                member,
                at_s,
                word.finding if word else "",
                word is None,
                resumes_s,
                word.window_s if word else 0.0,
            )
        )
        if member.wakes:
            one.is_asleep = True
            self._sleep(member, at_s, end_s)
            return
        gpus = one.gpus * member.replicas
        one.resumes_s = resumes_s
        one.changes.append(ChangeRecord(instant(at_s), f"r{at_s}", Action.SUSPEND, gpus))
        one.came_back_s = max(one.came_back_s, (word.idle_s if word else 0.0) + resumes_s - at_s)
        one.annotations.clear()
        one.replies_s = None
        self._freed[member.name].append(_Freed(at_s, min(resumes_s, end_s), gpus, is_whole=True))

    def _sleep(self, member: Member, at_s: float, end_s: float) -> None:
        """From now on it holds GPUs only while it works, and shortly after."""
        while at_s < end_s:
            begins_s = member.resumes_s(at_s)
            gpus = member.gpus * member.replicas
            self._freed[member.name].append(_Freed(at_s, min(begins_s, end_s), gpus, is_whole=True))
            if begins_s >= end_s:
                return
            self._tally.wakes += 1
            at_s = begins_s
            while (next_s := member.resumes_s(at_s)) < min(end_s, at_s + WAKER_S):
                at_s = member.idle_from_s(next_s)
            at_s += WAKER_S

    def _resize(self, one: Standing, at_s: int, word: Word) -> None:
        freed = (one.gpus - word.kept) * one.member.replicas
        one.changes.append(ChangeRecord(instant(at_s), f"r{at_s}", Action.RESIZE, freed))
        one.gpus, one.since_s = word.kept, at_s
        self._tally.resized += 1
        end_s = min(one.member.end_s, one.member.needs_all_s(at_s), float(self._fleet.end_s))
        self._freed[one.member.name].append(_Freed(at_s, end_s, freed, is_whole=False))

    def _widen(self, one: Standing, at_s: float) -> None:
        """It needed them: its owner takes them back."""
        self._tally.short += 1
        one.gpus, one.since_s = one.member.gpus, at_s
        self._revert(one, at_s)

    def _advise(self, words: Iterable[Word], present: Sequence[Standing], at_s: int) -> None:
        """What the hour until the next judgement would be like if advice about replicas were followed."""
        left = {
            word.standing.member.name: word.kept for word in words if word.step is Step.ADVICE and word.kept
        }
        for one in present:
            member = one.member
            if member.archetype is not Archetype.SERVICE or member.replicas == 1 or one.resumes_s is not None:
                continue
            kept = left.get(member.name, member.replicas)
            start = int((at_s - member.start_s) // 60)
            demand = member.demand[start : start + EVERY_S // 60]
            self._tally.minutes += len(demand)
            self._tally.minutes_short += sum(kept < wanted <= member.replicas for wanted in demand)
            self._tally.served += EVERY_S / HOUR_S * member.gpus * member.replicas
            self._tally.served_freed += EVERY_S / HOUR_S * (member.replicas - kept) * member.gpus

    def _weigh(self, member: Member) -> None:
        """What was freed of one workload, and how often that was wrong."""
        tally, gpus = self._tally, member.gpus * member.replicas
        begin_s, end_s = max(self._fleet.begin_s, member.start_s), min(self._fleet.end_s, member.end_s)
        stops = [one for one in self._stops if one.member is member]
        wrong = sum(one.is_wrong for one in stops)
        freed = self._freed[member.name]
        days = (end_s - begin_s) / DAY_S
        tally.at_work += sum(one.returns_s <= one.at_s for one in stops)
        if member.wakes:
            idle_s = end_s - begin_s - _worked_s(member.works, begin_s, end_s)
            tally.quiet += idle_s * gpus / HOUR_S
            tally.quiet_freed += sum(one.within(begin_s, end_s) for one in freed) / HOUR_S
            tally.wake_days += days
        elif member.archetype in SERVICES:
            tally.service_days += days
            tally.service_wrong += wrong
            tally.often += wrong > OFTEN
        elif member.kind in STATEFUL or member.archetype in {Archetype.NOTEBOOK, Archetype.OVERALLOCATED}:
            tally.stops += len(stops)
            tally.wrong += wrong
            tally.jobs += wrong if member.kind in JOBS else 0
        if member.used < member.gpus:
            tally.condemned += wrong
            if not member.needs:
                tally.unused += (end_s - begin_s) * (member.gpus - member.used) * member.replicas / HOUR_S
                tally.unused_freed += (
                    sum(0 if one.is_whole else one.within(begin_s, end_s) for one in freed) / HOUR_S
                )
        if member.ended_s is not None and not member.wakes:
            self._weigh_ended(member, member.ended_s, begin_s, end_s)

    def _weigh_ended(self, member: Member, ended_s: float, begin_s: float, end_s: float) -> None:
        tally, freed = self._tally, self._freed[member.name]
        from_s, until_s = max(ended_s, begin_s), min(end_s, max(ended_s, begin_s) + MOST_ENDED_S)
        if until_s <= from_s:  # it ends before its last work would
            return
        held = (until_s - from_s) * member.gpus * member.replicas / HOUR_S
        tally.ended += held
        tally.ended_freed += sum(one.within(from_s, until_s) for one in freed) / HOUR_S
        if member.archetype is Archetype.ZOMBIE:
            first_s = min(
                (one.from_s for one in freed if one.is_whole and one.until_s > from_s), default=math.inf
            )
            in_time = held if first_s <= from_s + DAY_S else 0.0
            tally.hung += held
            tally.hung_freed += in_time
            tally.spun += held if member.spins_s is not None else 0.0
            tally.spun_freed += in_time if member.spins_s is not None else 0.0


def _worked_s(works: Spans, from_s: float, until_s: float) -> float:
    return sum(max(0.0, min(b, until_s) - max(a, from_s)) for a, b in works)
