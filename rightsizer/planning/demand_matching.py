"""Matches what waits with victims, the most urgent first, and charges those of each before the next is served. Pure.

In place of what budgets refuse others are tried; a demand that is not served leaves its victims to the next. A workload
that has to get a notice first is a victim only of what nobody serves who can go now.
"""

import bisect
import collections
import dataclasses
import itertools
import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence

from rightsizer.model import Action, Blocker, BlockerCode, Decision, ObjectRef, Unserved, WaitingPod
from rightsizer.planning.budget import BudgetAccount
from rightsizer.planning.demand_places import place_cheapest, shape_of, together, undo
from rightsizer.planning.earlier_victims import held_back
from rightsizer.planning.placement import Placement, Places, shortage
from rightsizer.planning.victims import (
    Victim,
    most_going,
    standing,
    victims_of,
    whole_victim,
    with_replicas,
)
from rightsizer.policy.effective import PolicyEvaluator

MOST_OTHERS = 8
"""Maximum number of times that others are tried for one demand in place of what budgets refuse."""
_MOST_REFUSALS = 3
"""Workloads of a namespace that refused a moment ago, after which others go before all of it.

Not 1: else one that refuses would save all others of its team. But a pod must not wait for each of many that refuse.
"""
_MOST_EXPLAINED = 20
"""Number of different requests of which it is said why nobody goes for them."""


def _victims(decision: Decision, evaluator: PolicyEvaluator) -> tuple[Victim, ...]:
    """Parts of a workload that may go, one by one; all of it if its queue gets back its quota only then."""
    held = evaluator.fleet.queues.held
    workload = decision.workload
    uids = (workload.ref.uid, *(pod.ref.uid for pod in workload.pods))
    if any(f"{workload.ref.namespace}/{uid}" in held for uid in uids):
        return (whole_victim(decision),)
    return victims_of(decision, evaluator)


class _ChangeOnDemand:
    """Part of a workload that goes for pending pods.

    Attributes:
        charged: What the budgets count of it; None if nothing goes.
    """

    def __init__(self, decision: Decision) -> None:
        self.charged: Decision | None = None
        self._decision = decision
        self._victims: list[Victim] = []

    def also(self, victims: Sequence[Victim], pod: WaitingPod) -> Decision:
        """The change for the budgets if these went, too; parts differ only in GPUs, as far as budgets count."""
        if self._decision.action is Action.NOTICE or not victims[0].is_replica:
            return self._decision
        before = self.charged
        if before is None or len(self._victims) + len(victims) == most_going(self._decision):
            going = [(pod, victim.pods, victim.frees) for victim in (*self._victims, *victims)]
            return with_replicas(self._decision, going)
        return dataclasses.replace(before, frees=before.frees + sum(victim.frees for victim in victims))

    def add(self, victims: Sequence[Victim], charged: Decision) -> None:
        """Let these go, too."""
        self._victims += victims
        self.charged = charged


@dataclasses.dataclass(frozen=True, slots=True)
class _Refusal:
    """Why the victims of a demand do not go.

    Attributes:
        ref: The workload whose change budgets or capacity refuse.
        before: The victims that were charged before it.
        spared: What these leave no room for.
    """

    ref: ObjectRef
    blocks: tuple[Blocker, ...]
    before: frozenset[Victim]
    spared: frozenset[Victim]


class Matching:
    """The victims of what waits, the most urgent first, each charged before those of the next are chosen.

    Attributes:
        wanted: By workload, the pending pod that each victim serves.
        blocks: By workload, why budgets or capacity refuse the most urgent demand that needed it.
        cut_short: As Limited has it.
        unserved: Likewise.
    """

    def __init__(
        self,
        decisions: Collection[Decision],
        evaluator: PolicyEvaluator,
        account: BudgetAccount,
        refused: Collection[ObjectRef] = (),
    ) -> None:
        self.wanted: dict[ObjectRef, dict[Victim, WaitingPod]] = collections.defaultdict(dict)
        self.blocks: dict[ObjectRef, tuple[Blocker, ...]] = {}
        self.cut_short: dict[str, ObjectRef] = {}
        self.unserved: tuple[Unserved, ...] = ()
        self._refused: set[ObjectRef] = set()
        self._account = account
        self._changes = {decision.workload.ref: _ChangeOnDemand(decision) for decision in decisions}
        self._is_dropped, self._is_now = False, True
        waiting = evaluator.fleet.waiting
        if not waiting:
            return
        self._victims = {decision.workload.ref: _victims(decision, evaluator) for decision in decisions}
        candidates = itertools.chain(*self._victims.values())
        self._places = Places(evaluator.fleet, sorted(candidates, key=standing))
        self._places.free_what_terminates(evaluator.at)
        self._held_back = held_back(evaluator)
        self._drop_unaffordable(waiting[0])
        self._later = self._victims_of(decision for decision in decisions if decision.action is Action.NOTICE)
        # Room that was made for one is taken by no other.
        left: Sequence[Sequence[WaitingPod]] = sorted(
            together(waiting), key=lambda pods: not self._has_room(pods[0].demand)
        )
        by_namespace = collections.Counter(ref.namespace for ref in refused)
        last = self._victims_of(
            change
            for change in decisions
            if change.workload.ref in refused or by_namespace[change.workload.ref.namespace] >= _MOST_REFUSALS
        )
        # Who can go now serves all that it can, then who refused a moment ago; only then others get a notice.
        for spared in dict.fromkeys((self._later | last, self._later, frozenset[Victim]())):
            self._is_now = self._later <= spared
            left = self._serve_all(left, spared)
        self.unserved = tuple(self._explained(left))

    def _explained(self, left: Iterable[Sequence[WaitingPod]]) -> Iterator[Unserved]:
        """Why demand is not served, as far as no blocker says so; of a few that ask alike, once."""
        by_shape: dict[Hashable, str] = {}
        self._places.spare(frozenset())
        for pods in left:
            first, shape = pods[0], shape_of(pods)
            is_told = first.demand in self._refused or first.ref.namespace in self.cut_short
            if not is_told and (shape in by_shape or len(by_shape) < _MOST_EXPLAINED):
                why = by_shape.setdefault(shape, by_shape.get(shape) or shortage(first, self._places))
                yield Unserved(str(first.demand), why)

    def _victims_of(self, decisions: Iterable[Decision]) -> frozenset[Victim]:
        return frozenset(victim for decision in decisions for victim in self._victims[decision.workload.ref])

    def _serve_all(
        self, demands: Sequence[Sequence[WaitingPod]], spared: frozenset[Victim]
    ) -> list[Sequence[WaitingPod]]:
        """Serve what these do not have to go for, and return the rest."""
        left: list[Sequence[WaitingPod]] = []
        lowest = min((victim.priority for victim in self._places.candidates), default=math.inf)
        # Thousands of pods or gangs may ask alike: what was not served is not served either while nothing is placed.
        in_vain: set[Hashable] = set()
        for pods in demands:
            shape, first = shape_of(pods), pods[0]
            if max(pod.priority for pod in pods) <= lowest or shape in in_vain:  # nobody could go for them
                left.append(pods)
            elif self._serve(pods, spared):
                in_vain.clear()
            else:
                left.append(pods)
                if self._places.tries[first.ref.namespace].left > 0:
                    in_vain.add(shape)
                else:
                    self.cut_short.setdefault(first.ref.namespace, first.demand)
        return left

    def _serve(self, pods: Sequence[WaitingPod], spared: frozenset[Victim]) -> bool:
        """Choose and charge victims; if budgets have no room for some, others in place of these.

        If there are none, once in place of those that left them no room.
        """
        if pods[0].demand in self._held_back:
            if self._has_room(pods[0].demand):
                place_cheapest(pods, self._places, frozenset(self._places.candidates))
            return True
        first: tuple[list[Placement], _Refusal] | None = None
        instead: frozenset[Victim] | None = None
        refusals = 0
        while (placed := place_cheapest(pods, self._places, spared)) is not None or instead:
            if placed is None:
                spared, instead = instead or spared, frozenset()
                continue
            if not (refused := self._charge(placed)):
                self._want(placed)
                return True
            undo(placed, self._places)
            if self._drop_unaffordable(pods[0]):
                continue
            first, refusals = first or (placed, refused), refusals + 1
            if refusals > MOST_OTHERS:
                break
            if instead is None and refused.before:
                instead = spared | refused.before
            spared |= refused.spared
        if first is not None:
            self._refused.add(pods[0].demand)
            self._note_refusal(pods[0].demand, *first)
        return False

    def _has_room(self, demand: ObjectRef) -> bool:
        """Whether victims went for it a moment ago."""
        known = self._held_back.get(demand)
        return known is not None and known.is_room_made

    def _drop_unaffordable(self, pod: WaitingPod) -> bool:
        """Let nothing go of workloads of which the budgets allow no more, and return whether there are new ones.

        Budgets are charged only where a demand is served, so that otherwise there are none.
        """
        if self._is_dropped:
            return False
        self._is_dropped = True
        dropped: list[Victim] = []
        for ref, left, blocks in tuple(self._unaffordable(self._changes, pod)):
            self.blocks.setdefault(ref, blocks)
            dropped += left
            del self._changes[ref]
        self._places.drop(dropped)
        return bool(dropped)

    def _unaffordable(
        self, refs: Iterable[ObjectRef], pod: WaitingPod
    ) -> Iterator[tuple[ObjectRef, list[Victim], tuple[Blocker, ...]]]:
        """The workloads of which the budgets allow no more, what could go of each, and why it does not."""
        for ref in refs:
            change = self._changes[ref]
            left = [victim for victim in self._victims[ref] if victim not in self._places.victims]
            if left and (blocks := self._account.against(change.also(left[:1], pod), change.charged)):
                yield ref, left, blocks

    def _charge(self, placed: Sequence[Placement]) -> _Refusal | None:
        """Charge all victims of a demand, or none."""
        needed = _by_workload(placed)
        self._account.begin()
        parts: dict[ObjectRef, Decision] = {}
        for ref, victims in needed.items():
            change = self._changes.get(ref)
            if change is None:  # it has a notice: nothing goes yet
                continue
            part = change.also(victims, placed[0].pod)
            if blocks := self._account.take(part, change.charged):
                before = frozenset(victim for part in parts for victim in needed[part])
                spared = self._refused_beside(placed, parts, ref, victims)
                self._account.end(is_made=False)
                return _Refusal(ref, blocks, before, spared)
            parts[ref] = part
        self._account.end(is_made=self._is_now)
        for ref, part in parts.items() if self._is_now else ():
            self._changes[ref].add(needed[ref], part)
            self._is_dropped = False
        return None

    def _want(self, placed: Sequence[Placement]) -> None:
        """Note for whom victims go, or get a notice; before its end, nobody goes for a pod that would not fit yet."""
        for pod, victim in ((place.pod, victim) for place in placed for victim in place.victims):
            ref, is_notice = victim.decision.workload.ref, victim.decision.action is Action.NOTICE
            if self._is_now or (is_notice and ref in self._changes):
                self.wanted[ref][victim] = pod
            elif victim not in self._later:
                words = f"{pod.demand} also needs GPUs of a workload whose notice has to end first"
                self.blocks.setdefault(ref, (Blocker(BlockerCode.ONLY_FOR_PENDING_PODS, words),))

    def _refused_beside(
        self, placed: Sequence[Placement], made: Collection[ObjectRef], ref: ObjectRef, victims: list[Victim]
    ) -> frozenset[Victim]:
        """Victims beyond the budgets beside what is charged, of this workload and of others near the pods."""
        pod, change = placed[0].pod, self._changes[ref]
        victims = sorted(victims, key=lambda victim: victim.place)
        allowed = bisect.bisect_left(
            range(1, len(victims)),
            1,
            key=lambda number: len(self._account.against(change.also(victims[:number], pod), change.charged)),
        )
        nodes = frozenset[str]().union(*(place.pod.nodes for place in placed))
        near = {victim.decision.workload.ref for node in nodes for victim in self._places.lower(pod, node)}
        others = self._unaffordable(sorted((near & self._changes.keys()) - {ref, *made}), pod)
        return frozenset(victims[allowed:]).union(*(left for _, left, _ in others))

    def _note_refusal(self, demand: ObjectRef, placed: Sequence[Placement], refused: _Refusal) -> None:
        """Note why a demand is not served: it needs a change of this workload, which is not possible."""
        why = refused.blocks
        words = f"{demand} also needs {refused.ref}: {why[0].message}"
        for workload in _by_workload(placed):
            told = why if workload == refused.ref else (Blocker(why[0].code, words),)
            self.blocks.setdefault(workload, told)


def _by_workload(placed: Iterable[Placement]) -> dict[ObjectRef, list[Victim]]:
    found: dict[ObjectRef, list[Victim]] = collections.defaultdict(list)
    for victim in (victim for place in placed for victim in place.victims):
        found[victim.decision.workload.ref].append(victim)
    return found
