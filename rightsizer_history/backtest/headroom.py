"""Headroom of replicas that costs least by recorded use: GPU-hours held, against days with too few replicas. Pure.

replicas active in each step ──► the need of each cycle, as the finding has it ──► freed, or short before the next
"""

import collections
import dataclasses
import datetime
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from rightsizer.findings.evidence import has_replicas
from rightsizer.findings.replicas import is_worth_it, jumps
from rightsizer.model import Fleet, Mode, Slot, strongest
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.rule import Rule
from rightsizer.policy.schema import Policy
from rightsizer.policy.thresholds import TooManyReplicas
from rightsizer_history.backtest.recording import Group, Member, Recording
from rightsizer_history.backtest.replay import DAY_S, HOUR_S
from rightsizer_history.backtest.standings import workload_of

JUMPS = tuple(datetime.timedelta(hours=hours) for hours in (24, 12, 6, 3, 1))
PERCENTS = (100.0, 50.0, 25.0, 10.0)
"""The largest headroom first: of equal ones it is chosen."""
LEAST_SERVICES = 5
"""Least number of services for which a rule's headroom is chosen."""


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """A workload with replicas, by the steps before the record's end.

    Attributes:
        first: Its first step.
        certain, possible: Replicas that were active in each step, without and with those that were not seen.
        replicas, gpus: Its pods at the beginning of each step, and their whole GPUs.
        least: Replicas that its rules keep.
    """

    first: int
    certain: Sequence[int]
    possible: Sequence[int]
    replicas: Sequence[int]
    gpus: Sequence[float]
    least: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Sized:
    """Result of a headroom.

    Attributes:
        freed: GPU-hours.
        days: Of services, those with fewer replicas than there were.
        short: Those of these on which more replicas were active than were kept.
    """

    freed: float
    days: int
    short: int

    def total(self, price: float) -> float:
        """Cost in GPU-hours; a day that was short costs `price` of them."""
        return price * self.short - self.freed


@dataclasses.dataclass(frozen=True, slots=True)
class HeadroomChoice:
    """Choice for the services of a rule.

    Attributes:
        rule: Its name; empty for the defaults.
        sized, before: By the chosen and by the present headroom.
    """

    rule: str
    part: TooManyReplicas
    services: int
    sized: Sized
    before: Sized


def tuned_headroom(
    recording: Recording, policy: Policy, price: float, *, stop: int, every: datetime.timedelta
) -> tuple[Policy, tuple[HeadroomChoice, ...]]:
    """The policy with the headroom that costs least in the steps before `stop`, for all rules and for each.

    A day on which a service had fewer replicas than were active costs `price` GPU-hours, as one mistake; it is sized
    `every` so often. Rules with a headroom of their own keep it, and so do those with few services.
    """
    by_rule = _services(recording, policy, stop)
    cycle, step_s = max(1, round(every.total_seconds() / recording.grid.step_s)), recording.grid.step_s
    present = policy.defaults.tooManyReplicas
    services = list(itertools.chain.from_iterable(by_rule.values()))
    if len(services) < LEAST_SERVICES:
        return policy, ()
    everyone = _choice("", services, present, price, (cycle, step_s))
    found = [everyone]
    for name, own in by_rule.items():
        if LEAST_SERVICES <= len(own) < len(services):
            choice = _choice(name, own, present, price, (cycle, step_s))
            found += [choice] if choice.part != everyone.part else []
    return _applied(policy, found), tuple(found)


def _services(recording: Recording, policy: Policy, stop: int) -> dict[str, list[Service]]:
    """Services by the rule that applies, unless it has a headroom of its own."""
    evaluator = PolicyEvaluator(policy, Fleet((), recording.nodes, {}), at=recording.grid.begin)
    found: dict[str, list[Service]] = collections.defaultdict(list)
    for group in recording.groups:
        workload = workload_of(group, recording)
        if group.first >= stop or len(group.members) == 1 or not has_replicas(workload):
            continue
        effective = evaluator.evaluate(workload)
        is_own = any(rule.tooManyReplicas is not None for rule in effective.rules)
        if effective.mode is not Mode.PROTECT and not is_own:
            service = service_of(group, stop, effective.min_replicas)
            if max(service.replicas, default=0) > 1:
                found[effective.rule].append(service)
    return found


def service_of(group: Group, stop: int, least: int = 0) -> Service:
    """Record of a workload before `stop`."""
    first, length = group.first, max(0, min(group.end, stop) - group.first)
    certain, possible, replicas, gpus = [0] * length, [0] * length, [0] * length, [0.0] * length
    for member in group.members:
        for at in range(member.first + 1 - first, min(member.end + 1 - first, length)):
            replicas[at] += 1
            gpus[at] += member.gpus
        for at, state in enumerate(
            _states(member)[: max(0, length + first - member.first)], member.first - first
        ):
            certain[at] += state == Slot.BUSY
            possible[at] += state != Slot.IDLE
    return Service(first, certain, possible, replicas, gpus, least)


def _states(member: Member) -> bytes:
    """States of the member's steps: whether any of its devices was active."""
    length = member.end - member.first
    pairs = zip(member.tracks, member.rows, strict=True)
    return strongest(
        [
            (track.elsewhen * (track.first - member.first) + row).ljust(length, track.elsewhen)
            for track, row in pairs
        ]
    )


def sizes(services: Sequence[Service], part: TooManyReplicas, cycle: int, step_s: int) -> Sized:
    """Result of a headroom in cycles of this many steps."""
    freed, days, short = 0.0, 0, 0
    for service in services:
        found = list(_scaled(service, part, cycle, step_s))
        freed += sum(gpus for _, gpus, _ in found) * cycle * step_s / HOUR_S
        days += len({day for day, *_ in found})
        short += len({day for day, _, is_short in found if is_short})
    return Sized(freed, days, short)


def _scaled(
    service: Service, part: TooManyReplicas, cycle: int, step_s: int
) -> Iterator[tuple[int, float, bool]]:
    """Day, free GPUs, and whether it is short before the next, of each cycle with fewer replicas."""
    window, lead, history = (
        max(1, math.ceil(span.total_seconds() / step_s))
        for span in (part.window, part.leadTime, part.jumpHistory)
    )
    rises = jumps(service.possible, service.certain, window, lead)
    begin = window + lead + history
    for at in range(begin + -(service.first + begin) % cycle, len(service.certain) - cycle + 1, cycle):
        replicas = service.replicas[at]
        jump = max(0, *rises[at - begin : at - window - lead + 1])
        busy = max(service.possible[at - window : at])
        share = math.ceil(busy * part.headroomPercent / 100)
        kept = max(1, service.least, busy + max(share, jump, part.minHeadroom))
        if is_worth_it(part, replicas, kept):
            day = (service.first + at) * step_s // DAY_S
            yield day, service.gpus[at] * (1 - kept / replicas), max(service.certain[at : at + cycle]) > kept


def _choice(
    rule: str, services: Sequence[Service], present: TooManyReplicas, price: float, terms: tuple[int, int]
) -> HeadroomChoice:
    parts = [
        present.model_copy(update={"jumpHistory": jump, "headroomPercent": percent})
        for jump in JUMPS
        for percent in PERCENTS
    ]
    sized = [sizes(services, part, *terms) for part in parts]
    best = min(range(len(parts)), key=lambda place: sized[place].total(price))
    return HeadroomChoice(rule, parts[best], len(services), sized[best], sizes(services, present, *terms))


def _applied(policy: Policy, choices: Sequence[HeadroomChoice]) -> Policy:
    parts: Mapping[str, TooManyReplicas] = {choice.rule: choice.part for choice in choices}
    rules = tuple(_with(rule, parts.get(rule.name)) for rule in policy.rules)
    defaults = policy.defaults.model_copy(update={"tooManyReplicas": parts[""]})
    return policy.model_copy(update={"defaults": defaults, "rules": rules})


def _with(rule: Rule, part: TooManyReplicas | None) -> Rule:
    return rule if part is None else rule.model_copy(update={"tooManyReplicas": part})
