"""Who is asked in each cycle of a replay which workloads give their GPUs back: policies, and plain rules beside them.

A policy is judged by the stages of `plan`, with a recording in place of Prometheus and of the API server. Several
processes can replay it together: each judges its part of the workloads, and hears what the others decide.
"""

import dataclasses
import datetime
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from rightsizer.kinds import kind_of
from rightsizer.kinds.notices import notice_patch
from rightsizer.model import Action, Decision, FoundChange, Mode, ObjectRef, Slot
from rightsizer.planning.budget import FREE, within_budgets
from rightsizer.planning.decide import decide, sort_key
from rightsizer.planning.measure import Alike, measure
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.schema import Policy
from rightsizer_history.backtest.policy_view import PolicyView, SeenWorkload, recorded_signal
from rightsizer_history.backtest.recording import Group, Member, Recording
from rightsizer_history.backtest.standings import Standing

STOPS = frozenset({Action.SCALE_TO_ZERO, Action.SUSPEND, Action.EVICT})
DAY = datetime.timedelta(days=1)
T = TypeVar("T")


class Exchange(Protocol):
    """How the processes that replay a policy together tell each other something."""

    def __call__(self, own: T, /) -> Sequence[T]:
        """What each of them hands over, in their order."""
        ...


def _alone(own: T, /) -> Sequence[T]:
    return [own]


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayShard:
    """The part of a recording's workloads that one process judges, of several that replay the same."""

    number: int = 0
    of: int = 1
    exchange: Exchange = _alone


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """What a judge wants done.

    Attributes:
        finding: Why; the rule's name where a plain rule says it.
        idle_s: For how long it had been idle.
        kept: Replicas or GPUs per pod that a smaller one keeps; None for a stop.
        annotations: What a notice writes.
    """

    standing: Standing
    action: Action
    finding: str
    rule: str = ""
    idle_s: float = 0.0
    kept: int | None = None
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)


def running(standings: Sequence[Standing]) -> Iterator[Standing]:
    """Those that run in this cycle."""
    return (one for one in standings if one.pods)


class Judge(Protocol):
    """Someone who says which workloads give their GPUs back."""

    @property
    def name(self) -> str:
        """In tables."""
        ...

    def judge(self, recording: Recording, standings: Sequence[Standing], step: int) -> Iterator[Order]:
        """What is to be done at the beginning of a step."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Nothing:
    """Nobody is ever stopped."""

    name: str = "do nothing"

    def judge(self, recording: Recording, standings: Sequence[Standing], step: int) -> Iterator[Order]:  # noqa: ARG002
        """Nothing."""
        return iter(())


def _stop_of(group: Group) -> Action:
    """What stops a workload of its kind; an eviction where that is unknown."""
    row = kind_of(group.ref)
    action = row.action if row else None
    return action if action in STOPS else Action.EVICT


@dataclasses.dataclass(frozen=True, slots=True)
class PlainRule:
    """Stops what was idle on all GPUs for a time, whatever it is."""

    name: str
    window: datetime.timedelta

    def judge(self, recording: Recording, standings: Sequence[Standing], step: int) -> Iterator[Order]:
        """Its stops."""
        steps = recording.grid.steps_in(self.window)
        for one in running(standings):
            first = max(one.since, one.group.first)
            seen = one.group.works[step - steps - one.group.first : step - one.group.first]
            if step - steps >= first and len(seen) == steps and not any(seen):
                yield Order(one, _stop_of(one.group), self.name, idle_s=steps * recording.grid.step_s)


@dataclasses.dataclass(frozen=True, slots=True)
class Oracle(Nothing):
    """Knows the future: the replay frees whatever idles, by what costs least, without orders."""

    name: str = "oracle"


class PolicyJudge:
    """A policy, by the stages of a plan."""

    def __init__(self, name: str, policy: Policy, shard: ReplayShard | None = None) -> None:
        self.name = name
        self._policy = policy
        self._shard = shard or ReplayShard()
        self._view: PolicyView | None = None

    def for_shard(self, shard: ReplayShard) -> "PolicyJudge":
        """The same judge in a process that judges a part of the workloads."""
        return PolicyJudge(self.name, self._policy, shard)

    def judge(self, recording: Recording, standings: Sequence[Standing], step: int) -> Iterator[Order]:
        """What a cycle would do."""
        if not any(rule.mode is Mode.ENFORCE for rule in self._policy.rules):
            return
        if self._view is None or self._view.recording is not recording:
            self._view = PolicyView(self._policy, recording, number=self._shard.number, of=self._shard.of)
        view, at = self._view, recording.grid.time(step)
        present = {one.group.ref: view.of(one) for one in running(standings)}
        own = self._enforced(view, present, step)
        # Without pods, which every process knows.
        bare = [dataclasses.replace(one, workload=dataclasses.replace(one.workload, pods=())) for one in own]
        whole = (
            dataclasses.replace(one, workload=present[one.workload.ref].workload)
            for one in itertools.chain(*self._shard.exchange(bare))
        )
        decisions: Sequence[Decision] = sorted(whole, key=sort_key)
        if any(decision.action not in FREE for decision in decisions):
            # Budgets count what all hold.
            workloads = tuple(known.workload for known in present.values())
            fleet = view.fleet(workloads, tuple(_spent(standings, at)))
            decisions = within_budgets(decisions, PolicyEvaluator(self._policy, fleet, at=at))
        for decision in decisions:
            if decision.is_enforced:
                yield _order(present[decision.workload.ref].standing, decision, at)

    def _enforced(
        self, view: PolicyView, present: Mapping[ObjectRef, SeenWorkload], step: int
    ) -> list[Decision]:
        """Decisions about its part of the workloads, before budgets."""
        grid, at = view.recording.grid, view.recording.grid.time(step)
        windows = frozenset().union(*(known.windows for known in present.values()))
        chosen, told = view.chosen(present, step, max(windows, default=DAY))
        # Every earlier change of a workload is in its own record.
        fleet = view.fleet(tuple(known.workload for known in chosen), ())
        evaluator = PolicyEvaluator(self._policy, fleet, at=at)
        signal = recorded_signal(grid, chosen)
        measured = measure(fleet, signal, evaluator, at, windows, lambda own: self._joined(own.joined(told)))
        decisions = decide(measured, evaluator)
        view.remember(decisions, measured, present, step)
        # What one role keeps says nothing of the pods of the others, so it is not replayed.
        return [one for one in decisions if one.is_enforced and not _is_of_role(one)]

    def _joined(self, own: Alike) -> Alike:
        return functools.reduce(Alike.joined, self._shard.exchange(own))


def _is_of_role(decision: Decision) -> bool:
    proposal = decision.finding.proposal
    return proposal is not None and bool(proposal.role)


def _order(standing: Standing, decision: Decision, at: datetime.datetime) -> Order:
    finding, proposal = decision.finding, decision.finding.proposal
    assert decision.action is not None  # noqa: S101 - it is enforced
    kept = None
    if proposal is not None and decision.action not in STOPS:
        kept = proposal.gpus_per_pod if decision.action is Action.RESIZE else proposal.replicas
    notes: Mapping[str, str] = {}
    if decision.action is Action.NOTICE:
        notes = notice_patch(decision, decision.workload, run="backtest", at=at)["metadata"]["annotations"]
    return Order(
        standing,
        decision.action,
        finding.name.value,
        decision.rule,
        finding.idle_s or 0.0,
        kept,
        annotations=notes,
    )


def _spent(standings: Sequence[Standing], at: datetime.datetime) -> Iterator[FoundChange]:
    """The changes of the last day, which budgets count."""
    for one in standings:
        for record in one.changes:
            if at - record.at < DAY:
                yield FoundChange(one.group.ref, record)


def active_replicas(group: Group, step: int) -> int:
    """How many of its pods were active in a step."""
    return sum(
        any(_state(member, place, step) == Slot.BUSY for place in range(len(member.tracks)))
        for member in group.present(step + 1)
    )


def active_devices(group: Group, step: int) -> int:
    """The most devices of one of its pods that were active in a step."""
    return max(
        (
            sum(_state(member, place, step) == Slot.BUSY for place in range(len(member.tracks)))
            for member in group.present(step + 1)
        ),
        default=0,
    )


def _state(member: Member, place: int, step: int) -> int:
    row = member.rows[place]
    at = step - member.tracks[place].first
    return row[at] if 0 <= at < len(row) else Slot.UNKNOWN
