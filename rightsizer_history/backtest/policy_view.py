"""The workloads of a recording as a policy sees them in a replay: which must be judged in a cycle. Pure.

What others tell of a workload is what judging all of them would: see `Alike`.
"""

import dataclasses
import datetime
import itertools
from collections.abc import Mapping, Sequence

from rightsizer.findings import second_signals
from rightsizer.findings.idle_history import longest_pauses
from rightsizer.findings.second_signals import Movements
from rightsizer.kinds.notices import parse_notice
from rightsizer.model import (
    BlockerCode,
    Decision,
    FindingName,
    Fleet,
    FoundChange,
    Measured,
    Mode,
    ObjectRef,
    Workload,
)
from rightsizer.planning.cooldown import change_rate_exceeded, cooling, memory_of
from rightsizer.planning.decide import noticed_until
from rightsizer.planning.measure import Alike
from rightsizer.policy.effective import EffectivePolicy, PolicyEvaluator
from rightsizer.policy.schema import Policy
from rightsizer_history.backtest.recorded_signal import Present, RecordedSignal
from rightsizer_history.backtest.recording import SIGNALS, Grid, Recording, Track, has, tracks
from rightsizer_history.backtest.screening import Outlook, Outlooks, Screen
from rightsizer_history.backtest.standings import Standing, present_workload

MINOR = 36
"""Kubernetes 1.36: what the API server was then is not recorded."""

_Card = tuple[str, bool]
"""The model of a device, and whether it is a MIG instance."""


def _card(track: Track) -> _Card:
    return track.device.model, bool(track.device.instance)


@dataclasses.dataclass(slots=True)
class SeenWorkload:
    """A workload as it is now, and what a policy says of it.

    Attributes:
        key: The state that it was made from.
        windows: Those that are measured for the whole fleet because of it.
        cards: Of its devices.
        outlooks: None if another process judges it.
        told: For each evidence that was judged, whether its history was read, which others are compared with.
        waits: The step in which it was found that its idleness waits, and until when.
        read_pauses: The step in which its pauses were read, and the longest.
    """

    key: tuple[object, ...]
    standing: Standing
    workload: Workload
    effective: EffectivePolicy
    windows: frozenset[datetime.timedelta]
    cards: frozenset[_Card]
    outlooks: Outlooks | None
    told: dict[bytes, bool] = dataclasses.field(default_factory=lambda: {b"": False})
    waits: tuple[int, datetime.datetime] | None = None
    read_pauses: tuple[int, tuple[tuple[str, str, float], ...]] | None = None

    @property
    def history(self) -> tuple[datetime.timedelta, float]:
        """Length of the history to read, and the utilization above which it is busy."""
        idle = [criteria.idle for criteria in self.effective.judged_by]
        return max(part.history for part in idle), min(part.maxUtilizationPercent for part in idle)

    def outlook(self, step: int) -> Outlook:
        """Findings that are possible at the beginning of a step."""
        assert self.outlooks is not None  # noqa: S101 - this process judges it
        return self.outlooks.at(step)

    def may_change(self, step: int, at: datetime.datetime, fleet: Fleet) -> bool:
        """Whether something could be enforced now: no evidence against it, no wait and no limit of changes."""
        outlook, effective = self.outlook(step), self.effective
        if effective.mode is not Mode.ENFORCE or not (
            outlook.other or (outlook.idle and not self._waits(step, at))
        ):
            return False
        memory = memory_of(self.workload, fleet, at)
        limits = (
            *change_rate_exceeded(memory, effective.max_changes),
            *cooling(self.workload, memory, effective),
        )
        return not limits

    def _waits(self, step: int, at: datetime.datetime) -> bool:
        return self.waits is not None and at < self.waits[1] and self._rests(self.waits[0], step)

    def _rests(self, since: int, step: int) -> bool:
        """Whether all of its devices were seen idle in these steps."""
        threshold = self.history[1] / 100
        tracks = (track for member in self.standing.pods for track in member.tracks)
        return all(track.rests(threshold, since, step) for track in tracks)

    def pauses(self, grid: Grid, step: int) -> tuple[tuple[str, str, float], ...]:
        """The longest pause in its history: as before, while it rests and what was then is in reach."""
        span, percent = self.history
        begin = min(max(member.first, self.standing.since) for member in self.standing.pods)
        if (
            self.read_pauses is None
            or begin < step - grid.steps_in(span)
            or not self._rests(self.read_pauses[0], step)
        ):
            at, signal = grid.time(step), recorded_signal(grid, [self])
            pods = {member.key: at for member in self.standing.pods}
            histories = signal.histories(pods, span, at, threshold=percent / 100)
            self.read_pauses = step, tuple(longest_pauses([self.workload], histories, at))
        return self.read_pauses[1]


def recorded_signal(grid: Grid, chosen: Sequence[SeenWorkload]) -> RecordedSignal:
    """Record of these workloads."""
    pods = {
        member.key: Present(member, max(member.first, known.standing.since))
        for known in chosen
        for member in known.standing.pods
    }
    return RecordedSignal(grid, pods)


class PolicyView:
    """A recording's workloads as a policy sees them; most are the same in one cycle as in the one before."""

    def __init__(self, policy: Policy, recording: Recording, *, number: int, of: int) -> None:
        self.recording = recording
        self._mixed = frozenset(group.ref for group in recording.groups if recording.is_mixed(group))
        self._own = frozenset(
            group.ref
            for place, group in enumerate(recording.groups)
            # One process judges all that tell something of one another.
            if (0 if group.ref in self._mixed else place % of) == number
        )
        self._fleet = self.fleet((), ())
        self._evaluator = PolicyEvaluator(policy, self._fleet, at=recording.grid.begin)
        self._longest = max(self._evaluator.windows())
        self._is_compared = any(rule.mode_for(FindingName.STUCK) is Mode.ENFORCE for rule in policy.rules)
        self._known: dict[ObjectRef, SeenWorkload] = {}
        self._unwitnessed: frozenset[_Card] = frozenset()
        self._witnesses: dict[_Card, ObjectRef] = {}
        self._signals = {
            (_card(track), name)
            for track in tracks(recording.groups)
            for name in SIGNALS.values()
            if has(track, name)
        }

    def fleet(self, workloads: tuple[Workload, ...], changes: tuple[FoundChange, ...]) -> Fleet:
        """Fleet of these workloads, with changes of all."""
        return Fleet(workloads, self.recording.nodes, {}, changes=changes, minor=MINOR)

    def of(self, state: Standing) -> SeenWorkload:
        """A workload in its present state."""
        key = (state.pods, state.since, state.gpus, state.annotations, state.changes, state.came_back_after)
        known = self._known.get(state.group.ref)
        if known is None or known.key != key or known.standing is not state:
            known = self._known[state.group.ref] = self._seen(state, key, known)
        return known

    def _seen(self, state: Standing, key: tuple[object, ...], before: SeenWorkload | None) -> SeenWorkload:
        workload = present_workload(state, state.pods, self.recording)
        effective = self._evaluator.evaluate(workload)
        windows = frozenset(window for criteria in effective.judged_by for window in criteria.wide_windows)
        cards = frozenset(_card(track) for member in state.pods for track in member.tracks if track.is_held)
        is_own, same = state.group.ref in self._own, before is not None and before.key[:3] == key[:3]
        if before is not None and same and before.effective.judged_by == effective.judged_by:
            return dataclasses.replace(
                before,
                key=key,
                standing=state,
                workload=workload,
                effective=effective,
                waits=None,
                read_pauses=None,
            )
        enforced = [name for name in FindingName if effective.mode_for(name) is Mode.ENFORCE]
        screen = Screen(
            effective.judged_by, enforced, self.recording.grid, self._longest, is_compared=self._is_compared
        )
        outlooks = screen.outlooks(state.pods, state.since) if is_own else None
        return SeenWorkload(key, state, workload, effective, windows, cards, outlooks)

    def chosen(
        self, present: Mapping[ObjectRef, SeenWorkload], step: int, widest: datetime.timedelta
    ) -> tuple[list[SeenWorkload], Alike]:
        """Workloads of its part that must be judged, and what the others tell of workloads that are like them.

        Those that could be changed, those of which it is not known what they tell, and neighbours on nodes where one
        tells what another lacks.
        """
        at = self.recording.grid.time(step)
        own = [known for known in present.values() if known.outlooks is not None]
        cards = frozenset[_Card]().union(*(known.cards for known in own))
        witnesses = {card: self._witness(card, present, own, at, widest) for card in cards}
        self._unwitnessed = frozenset(card for card, found in witnesses.items() if found is None)
        told = Alike(movements=second_signals.joined(*filter(None, witnesses.values())))
        are_judged = [
            not self.is_told(known, step) or known.may_change(step, at, self._fleet) for known in own
        ]
        mixed = {
            member.place
            for known in itertools.compress(own, are_judged)
            for member in known.standing.pods
            if member.place in self.recording.mixed_nodes
        }
        chosen: list[SeenWorkload] = []
        others: list[SeenWorkload] = []
        for known, is_judged in zip(own, are_judged, strict=True):
            is_near = mixed and any(member.place in mixed for member in known.standing.pods)
            (chosen if is_judged or is_near else others).append(known)
        return chosen, dataclasses.replace(told, pauses=self._pauses(others, step))

    def is_told(self, known: SeenWorkload, step: int) -> bool:
        """Whether it is known what it tells, which gauges of others could change on mixed nodes and silent models."""
        evidence = known.outlook(step).evidence
        if evidence is None or known.cards & self._unwitnessed:
            return False
        return not evidence or (evidence in known.told and known.workload.ref not in self._mixed)

    def _pauses(self, others: Sequence[SeenWorkload], step: int) -> tuple[tuple[str, str, float], ...]:
        """Longest pauses of those whose history would be read."""
        read = (known for known in others if known.told[known.outlook(step).evidence or b""])
        return tuple(itertools.chain.from_iterable(known.pauses(self.recording.grid, step) for known in read))

    def _witness(
        self,
        card: _Card,
        present: Mapping[ObjectRef, SeenWorkload],
        own: Sequence[SeenWorkload],
        at: datetime.datetime,
        widest: datetime.timedelta,
    ) -> Movements | None:
        """Movements of a device of a model that show that its gauges are signals; None if none does."""
        last = present.get(self._witnesses[card]) if card in self._witnesses else None
        for known in itertools.chain([last] if last else [], (other for other in own if card in other.cards)):
            usages = recorded_signal(self.recording.grid, [known]).usages(widest, at).values()
            for key, moved in second_signals.movements(itertools.chain(*usages)).items():
                is_moving = {"traffic": moved.traffic_moved, "power_peak": moved.power_moved}
                needed = [name for name in SIGNALS.values() if (card, name) in self._signals]
                if (key[0], bool(key[2])) == card and all(is_moving[name] for name in needed):
                    self._witnesses[card] = known.workload.ref
                    return {key: moved}
        return None

    def remember(
        self,
        decisions: Sequence[Decision],
        measured: Measured,
        present: Mapping[ObjectRef, SeenWorkload],
        step: int,
    ) -> None:
        """Keep what was judged for as long as the evidence stays the same."""
        for decision in decisions:
            known = present[decision.workload.ref]
            evidence = known.outlook(step).evidence
            if evidence is not None and not known.cards & self._unwitnessed:
                known.told[evidence] = all(member.key in measured.histories for member in known.standing.pods)
            notice = parse_notice(decision.workload.annotations)
            is_waiting = any(block.code is BlockerCode.NOTICE for block in decision.blockers)
            if notice and is_waiting and decision.finding.name in {FindingName.IDLE, FindingName.FINISHED}:
                # No older notice is valid.
                oldest = (
                    notice.at + known.history[0] - 2 * datetime.timedelta(seconds=self.recording.grid.step_s)
                )
                wait = known.effective.notify_before or datetime.timedelta()
                known.waits = step, min(oldest, noticed_until(notice, wait, self._evaluator.policy.maxSnooze))
