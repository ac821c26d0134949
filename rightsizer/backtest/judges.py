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

import msgspec

from rightsizer.backtest.recorded_signal import Present, RecordedSignal
from rightsizer.backtest.recording import Group, Member, Recording
from rightsizer.backtest.screening import Screen
from rightsizer.kinds import kind_of
from rightsizer.kinds.notices import notice_patch
from rightsizer.model import (
    Action,
    ChangeRecord,
    Decision,
    Fleet,
    FoundChange,
    Mode,
    ObjectRef,
    Pod,
    Slot,
    Workload,
)
from rightsizer.planning.budget import FREE, within_budgets
from rightsizer.planning.decide import decide, sort_key
from rightsizer.planning.measure import Alike, measure
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.schema import Policy

MINOR = 36
"""Kubernetes 1.36: what the API server was then is not recorded."""
STOPS = frozenset({Action.SCALE_TO_ZERO, Action.SUSPEND, Action.EVICT})
_SIZED = frozenset({"Deployment", "StatefulSet", "ReplicaSet"})
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


@dataclasses.dataclass(slots=True)
class Standing:
    """A workload in the course of a replay.

    Attributes:
        pods: Those that run in this cycle; none while it is stopped.
        since: The step from which on its samples count: after a return, its pods are new.
        resumes: The step in which a stopped one returns; None while it runs.
        annotations: What was written on it, as a notice.
        changes: What was done to it.
        came_back_after: The longest pause after which it returned.
        gpus: How many GPUs each pod keeps after a resize; None without one.
    """

    group: Group
    pods: tuple[Member, ...] = ()
    since: int = 0
    resumes: int | None = None
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    changes: tuple[ChangeRecord, ...] = ()
    came_back_after: datetime.timedelta | None = None
    gpus: int | None = None


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
class Oracle:
    """Knows the future: stops what pauses for longer than a return takes; the replay adds all else that idles."""

    least: datetime.timedelta
    name: str = "oracle"

    def judge(self, recording: Recording, standings: Sequence[Standing], step: int) -> Iterator[Order]:
        """Its stops."""
        steps = max(1, recording.grid.steps_in(self.least))
        for one in running(standings):
            if one.group.idle_steps(step, one.group.works_next(step)) > steps:
                yield Order(one, _stop_of(one.group), self.name)


class PolicyJudge:
    """A policy, by the stages of a plan."""

    def __init__(self, name: str, policy: Policy, shard: ReplayShard | None = None) -> None:
        self.name = name
        self._policy = policy
        self._shard = shard or ReplayShard()
        self._view: _PolicyView | None = None

    def for_shard(self, shard: ReplayShard) -> "PolicyJudge":
        """The same judge in a process that judges a part of the workloads."""
        return PolicyJudge(self.name, self._policy, shard)

    def judge(self, recording: Recording, standings: Sequence[Standing], step: int) -> Iterator[Order]:
        """What a cycle would do."""
        if not any(rule.mode is Mode.ENFORCE for rule in self._policy.rules):
            return
        if self._view is None or self._view.recording is not recording:
            self._view = _PolicyView(self._policy, recording, self._shard)
        view, at = self._view, recording.grid.time(step)
        present = {one.group.ref: (one, view.of(one)) for one in running(standings)}
        changes = tuple(_spent(standings, at))
        own = self._enforced(view, list(present.values()), changes, step)
        # Without pods, which every process knows.
        bare = [dataclasses.replace(one, workload=dataclasses.replace(one.workload, pods=())) for one in own]
        whole = (
            dataclasses.replace(one, workload=present[one.workload.ref][1].workload)
            for one in itertools.chain(*self._shard.exchange(bare))
        )
        decisions: Sequence[Decision] = sorted(whole, key=sort_key)
        if any(decision.action not in FREE for decision in decisions):
            # Budgets count what all hold.
            workloads = tuple(known.workload for _, known in present.values())
            evaluator = PolicyEvaluator(self._policy, view.fleet(workloads, changes), at=at)
            decisions = within_budgets(decisions, evaluator)
        for decision in decisions:
            if decision.is_enforced:
                yield _order(present[decision.workload.ref][0], decision, at)

    def _enforced(
        self,
        view: "_PolicyView",
        present: Sequence[tuple[Standing, "_Known"]],
        changes: tuple[FoundChange, ...],
        step: int,
    ) -> list[Decision]:
        """Decisions about its part of the workloads, before budgets."""
        chosen, grid = view.chosen(present, step), view.recording.grid
        at = grid.time(step)
        fleet = view.fleet(tuple(known.workload for _, known in chosen), changes)
        evaluator = PolicyEvaluator(self._policy, fleet, at=at)
        pods = {
            member.key: Present(member, max(member.first, one.since))
            for one, _ in chosen
            for member in one.pods
        }
        windows = frozenset().union(*(known.windows for _, known in present))
        measured = measure(fleet, RecordedSignal(grid, pods), evaluator, at, windows, self._joined)
        decisions = decide(measured, evaluator)
        # What one role keeps says nothing of the pods of the others, so it is not replayed.
        return [one for one in decisions if one.is_enforced and not _is_of_role(one)]

    def _joined(self, own: Alike) -> Alike:
        return functools.reduce(Alike.joined, self._shard.exchange(own))


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    """A workload as it is now, and what a policy asks of it.

    Attributes:
        key: The state that it was made from.
        windows: Those that are measured for the whole fleet because of it.
    """

    key: tuple[object, ...]
    workload: Workload
    screen: Screen
    windows: frozenset[datetime.timedelta]


class _PolicyView:
    """A recording's workloads as a policy sees them; most are the same in one cycle as in the one before."""

    def __init__(self, policy: Policy, recording: Recording, shard: ReplayShard) -> None:
        self.recording = recording
        self._own = frozenset(
            group.ref
            for place, group in enumerate(recording.groups)
            # One process judges all that tell something of one another.
            if (0 if recording.is_mixed(group) else place % shard.of) == shard.number
        )
        self._evaluator = PolicyEvaluator(policy, Fleet((), recording.nodes, {}), at=recording.grid.begin)
        self._known: dict[ObjectRef, _Known] = {}
        self._screens: dict[tuple[int, ...], Screen] = {}

    def fleet(self, workloads: tuple[Workload, ...], changes: tuple[FoundChange, ...]) -> Fleet:
        """These workloads, and changes of all."""
        return Fleet(workloads, self.recording.nodes, {}, changes=changes, minor=MINOR)

    def of(self, one: Standing) -> _Known:
        """A workload in its present state."""
        key = (one.pods, one.since, one.gpus, one.annotations, one.changes, one.came_back_after)
        known = self._known.get(one.group.ref)
        if known is None or known.key != key:
            workload = _workload(one, one.pods, self.recording)
            criteria = self._evaluator.evaluate(workload).judged_by
            ids = tuple(map(id, criteria))
            if ids not in self._screens:
                self._screens[ids] = Screen(criteria, self.recording.grid)
            windows = frozenset(window for each in criteria for window in each.wide_windows)
            known = self._known[one.group.ref] = _Known(key, workload, self._screens[ids], windows)
        return known

    def chosen(self, present: Sequence[tuple[Standing, _Known]], step: int) -> list[tuple[Standing, _Known]]:
        """Of its part those that could be changed, and neighbours on nodes where one tells what another lacks."""
        own = [pair for pair in present if pair[0].group.ref in self._own]
        left_out = {one.group.ref for one, known in own if known.screen.leaves_out(one.pods, one.since, step)}
        mixed = {
            member.place
            for one, _ in own
            if one.group.ref not in left_out
            for member in one.pods
            if member.place in self.recording.mixed_nodes
        }
        return [
            (one, known)
            for one, known in own
            if one.group.ref not in left_out or any(member.place in mixed for member in one.pods)
        ]


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


def workload_of(group: Group, recording: Recording) -> Workload:
    """A group as a workload with all of its pods."""
    return _workload(Standing(group), group.members, recording)


def _workload(one: Standing, members: Sequence[Member], recording: Recording) -> Workload:
    """As the API server would have told of it; what it held beyond GPUs is not recorded."""
    pods = tuple(_pod(member, one, recording) for member in members)
    ref = one.group.ref
    return Workload(
        ref=ref,
        generation=1,
        resource_version="1",
        pods=pods,
        size=len(pods) if ref.kind in _SIZED else None,
        labels=pods[0].labels if pods else {},
        annotations=one.annotations,
        namespace_annotations={},
        budgets={},
        created=recording.grid.time(one.group.first),
        past=one.changes,
        came_back_after=one.came_back_after,
        spec=_spec(one.group),
    )


def _spec(group: Group) -> bytes:
    """The images of its containers, which is all that is recorded of what a workload says of itself."""
    images = sorted({image for member in group.members for image in member.images})
    return msgspec.json.encode({"recorded": [{"image": image} for image in images]}) if images else b""


def _pod(member: Member, one: Standing, recording: Recording) -> Pod:
    began = recording.grid.time(max(member.first, one.since))
    gpus = member.devices if one.gpus is None else min(one.gpus, member.devices)
    return Pod(
        ref=ObjectRef("v1", "Pod", *member.key),
        node=member.place,
        phase="Running",
        devices=gpus,
        is_shared=any(track.is_own and track.holders > 1 for track in member.tracks),
        started=began,
        priority_class=member.priority_class,
        priority=0,
        is_ready=True,
        is_terminating=False,
        is_static=False,
        labels=member.labels,
        annotations={},
        resources={"nvidia.com/gpu": gpus},
        created=began,
    )


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
