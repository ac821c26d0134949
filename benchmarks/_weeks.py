"""A week of the made-up cluster under a judge: what it takes back, what that was worth, and what was wrong with it.

Whoever is condemned stops until it would next have worked, and is resumed then; whoever works again, by the truth
beyond the end, was condemned wrongly. Notices are given, and nobody answers them.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence

from benchmarks._answers import Standing
from benchmarks._fleet import BEGIN_S, MIX, Member, population
from benchmarks._judges import Judge, Plain, Word
from simulator.spec import Archetype
from simulator.workloads.draws import DAY_S

EVERY_S = 3600
"""How often is judged."""
PLAIN: tuple[Judge, ...] = (
    Plain("max 0 for 30 min, any GPU", 1800, 1800, is_any=True),
    Plain("max 0 for 24 h, all GPUs", 86400, 0, is_any=False),
)
"""The first is gpu-pruner's, whose grace of 300 s ends by the next time that is judged."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reclaim:
    """A workload that was made to give its GPUs back.

    Attributes:
        gpu_s: GPU-seconds given back until it would next have worked, or the week ended.
        returns_s: Seconds until it would next have worked; inf where it never does.
        has_worked: Whether any of its GPUs worked in the window that was looked at.
        spins: Whether it was spinning.
    """

    seed: int
    archetype: Archetype
    name: str
    finding: str
    gpu_s: float
    returns_s: float
    has_worked: bool
    spins: bool

    @property
    def is_wrong(self) -> bool:
        """Whether it ever worked again."""
        return math.isfinite(self.returns_s)


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """What the workloads of one archetype hold in a week, in GPU-seconds.

    Attributes:
        wasted: In which a GPU did no work.
        ended: Of these, after a workload had worked for the last time.
        spinning: Workloads that spin sooner or later.
    """

    archetype: Archetype
    workloads: int
    held: float
    wasted: float
    ended: float
    spinning: int


@dataclasses.dataclass(slots=True)
class Advice:
    """What advice would give back: of replicas, of GPUs of each pod (GPU-seconds), and what it would cost."""

    replicas: float = 0.0
    gpus: float = 0.0
    minutes: int = 0
    short: int = 0
    held: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Week:
    """What each judge made of one seed's week; by the judge's name."""

    holdings: tuple[Holding, ...]
    reclaims: dict[str, list[Reclaim]]
    advice: Advice


def week(seed: int, workloads: int, days: float, judges: Sequence[Judge]) -> Week:
    """A week under each judge; advice is the first one's."""
    members = population(seed, workloads, days)
    end_s = BEGIN_S + days * DAY_S
    advice = Advice()
    return Week(
        holdings=tuple(_holding(kind, members, end_s) for kind in MIX),
        reclaims={
            judge.name: list(
                _walk(judge, members, end_s, advice if judge.name == judges[0].name else Advice())
            )
            for judge in judges
        },
        advice=advice,
    )


def _holding(archetype: Archetype, members: Sequence[Member], end_s: float) -> Holding:
    mine = [member for member in members if member.spec.archetype is archetype]
    held = sum((min(one.end_s, end_s) - max(one.start_s, BEGIN_S)) * one.gpus for one in mine)
    return Holding(
        archetype=archetype,
        workloads=len(mine),
        held=held,
        wasted=held - sum(one.worked_gpu_s for one in mine),
        ended=sum(max(0.0, min(one.end_s, end_s) - _last_s(one)) * one.gpus for one in mine),
        spinning=sum(one.spins is not None for one in mine),
    )


def _last_s(member: Member) -> float:
    """When it had worked for the last time, and not before the week."""
    last_s = member.works[-1][1] if member.works else member.start_s
    return max(last_s, member.start_s, BEGIN_S)


def _walk(judge: Judge, members: Sequence[Member], end_s: float, advice: Advice) -> Iterator[Reclaim]:
    standings = [Standing(member, member.start_s) for member in members]
    for at_s in range(BEGIN_S, int(end_s), EVERY_S):
        for one in standings:
            if one.resumes_s is not None and one.resumes_s <= at_s:
                one.since_s, one.resumes_s = one.resumes_s, None
        present = [
            one for one in standings if one.resumes_s is None and one.since_s < at_s < one.member.end_s
        ]
        words = list(judge.judge(present, at_s))
        condemned = {word.standing.member.spec.name: word for word in words if word.finding}
        for one in present:
            word = condemned.get(one.member.spec.name)
            if word is not None:
                yield _reclaim(one, word, at_s, end_s)
        for word in words:
            if word.notice:
                word.standing.notice = word.notice, at_s
        _take(advice, words, present, at_s)


def _reclaim(one: Standing, word: Word, at_s: int, end_s: float) -> Reclaim:
    member = one.member
    resumes_s = member.resumes_s(at_s)
    one.changed_s, one.resumes_s, one.notice = at_s, resumes_s, None
    one.came_back_s = max(one.came_back_s, word.idle_s + resumes_s - at_s)
    return Reclaim(
        seed=member.seed,
        archetype=member.spec.archetype,
        name=member.spec.name,
        finding=word.finding,
        gpu_s=(min(resumes_s, member.end_s, end_s) - at_s) * member.gpus,
        returns_s=resumes_s - at_s,
        has_worked=member.has_worked(at_s - word.window_s, at_s),
        spins=member.spins is not None and member.spins <= at_s,
    )


def _take(advice: Advice, words: Iterable[Word], present: Sequence[Standing], at_s: int) -> None:
    """What the hour until the next judgement would be like if advice were followed."""
    left = {word.standing.member.spec.name: word.replicas for word in words if word.replicas is not None}
    advice.gpus += EVERY_S * sum(word.frees for word in words)
    for one in present:
        replicas = one.member.spec.replicas
        if replicas == 1 or one.resumes_s is not None:
            continue
        kept = left.get(one.member.spec.name, replicas)
        start = int((at_s - one.member.start_s) // 60)
        demand = one.member.demand[start : start + EVERY_S // 60]
        advice.minutes += len(demand)
        advice.short += sum(busy > kept for busy in demand)
        advice.held += EVERY_S * one.member.gpus
        advice.replicas += EVERY_S * (replicas - kept) * one.member.spec.gpus
