"""Limits of the changes of a plan together: budgets per run, hour or day, and capacity for reslices. Pure.

Changes for pending pods are charged when their victims are chosen, the others after them in plan order. What does not
fit is blocked, and takes nothing from the rest. A budget is charged with the GPUs that a change frees, before the
change is made. Each reslice was judged alone: in the same order each takes what its pods need, as do pods that other
changes recreate.
"""

import collections
import dataclasses
import datetime
import math
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from rightsizer.findings.free_capacity import FreeCapacity, IncomingPods, incoming_pods, largest
from rightsizer.kinds.advice import command_for
from rightsizer.model import (
    Action,
    Blocker,
    BlockerCode,
    Decision,
    FindingName,
    Fleet,
    FoundChange,
    ObjectRef,
    Proposal,
    Workload,
)
from rightsizer.model.offers import Asks
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.limits import Budget, BudgetScope, Per
from rightsizer.policy.schema import Policy
from rightsizer.text import count
from rightsizer.text import number as number_of

FREE = frozenset({Action.NOTICE, Action.SCALE_UP})
"""Actions that no budget counts: they take nothing away."""

_SECOND, _HOUR = datetime.timedelta(seconds=1), datetime.timedelta(hours=1)


@dataclasses.dataclass(frozen=True, slots=True)
class _Spent:
    gpus: float = 0.0
    workloads: int = 0


_NOTHING = _Spent()


@dataclasses.dataclass(frozen=True, slots=True)
class Left:
    """Remainder of a budget: the minimum over the parts of the fleet that it counts.

    Attributes:
        unit: "workloads" or "gpus".
    """

    scope: BudgetScope
    per: Per
    unit: str
    amount: float


_NEGLIGIBLE = 1e-4
"""GPUs by which sums of parts may differ from whole ones."""


class Purse:
    """The remaining amount of every budget, by held GPUs and recent changes.

    `began`: the begin of the run, if earlier cycles of it made some.
    """

    def __init__(
        self, policy: Policy, fleet: Fleet, at: datetime.datetime, began: datetime.datetime | None = None
    ) -> None:
        self._budgets = policy.budgets
        self._spans = {Per.RUN: at - began + _SECOND if began else None, Per.HOUR: _HOUR, Per.DAY: 24 * _HOUR}
        self._fleet = fleet
        self._pools: dict[ObjectRef, Sequence[str]] = {}
        self._held: dict[tuple[BudgetScope, str], float] = collections.defaultdict(
            float, {(BudgetScope.CLUSTER, ""): 0.0}
        )
        self._spent = collections.ChainMap[tuple[int, str], _Spent]()
        for workload in fleet.workloads:
            for scope in BudgetScope:
                for key in self._keys(scope, workload):
                    self._held[scope, key] += workload.gpus
        for change in fleet.changes:
            self._remember(change, at)
        self._before = dict(self._spent)

    def begin(self) -> None:
        """Begin to charge changes that are made together or not."""
        self._spent = self._spent.new_child()

    def end(self, *, is_made: bool) -> None:
        """Keep what was charged since it began, or take it back."""
        charged, self._spent = self._spent.maps[0], self._spent.parents
        if is_made:
            self._spent.update(charged)

    def against(self, decision: Decision) -> tuple[Blocker, ...]:
        """The budgets that a change would exceed."""
        found = (self._against(*place, frees=decision.frees) for place in self._places(decision))
        return tuple(block for block in found if block is not None)

    def charge(self, decision: Decision) -> None:
        """Charge a change to every budget that counts it."""
        for number, _, key in self._places(decision):
            self._spend(number, key, decision.frees)

    def refund(self, decision: Decision) -> None:
        """Take back that a change was charged."""
        for number, _, key in self._places(decision):
            self._spend(number, key, -decision.frees, workloads=-1)

    def affordable(self, decision: Decision) -> float:
        """The most GPUs that a change of this workload may free."""
        return min(
            (
                gpus - self._spent.get((number, key), _NOTHING).gpus
                for number, budget, key in self._places(decision)
                if (gpus := budget.gpus_of(self._held[budget.scope, key])) is not None
            ),
            default=math.inf,
        )

    def _places(self, decision: Decision) -> Iterator[tuple[int, Budget, str]]:
        """The budgets that count its action, with their numbers, and each part of the fleet in which it counts."""
        action, whole = decision.announced or decision.action or "", decision.whole
        stop = (whole.action if whole else None) or action
        for number, budget in enumerate(self._budgets):
            if _counts(budget, action, stop):
                yield from ((number, budget, key) for key in self._keys(budget.scope, decision.workload))

    def left(self) -> Iterator[Left]:
        """The remaining amount of every limit."""
        for number, budget in enumerate(self._budgets):
            places = [
                (held, self._spent.get((number, key), _NOTHING))
                for (scope, key), held in self._held.items()
                if scope is budget.scope and (held or scope is BudgetScope.CLUSTER)
            ]
            if budget.workloads is not None and places:
                amount = float(min(budget.workloads - spent.workloads for _, spent in places))
                yield Left(budget.scope, budget.per, "workloads", max(amount, 0.0))
            limited = [(gpus, spent) for held, spent in places if (gpus := budget.gpus_of(held)) is not None]
            if limited:
                amount = min(gpus - spent.gpus for gpus, spent in limited)
                yield Left(budget.scope, budget.per, "gpus", max(amount, 0.0))

    def _against(self, number: int, budget: Budget, key: str, *, frees: float) -> Blocker | None:
        spent = self._spent.get((number, key), _NOTHING)
        gpus = budget.gpus_of(self._held[budget.scope, key])
        where = f" of {key}" if key else ""
        if budget.workloads is not None and spent.workloads + 1 > budget.workloads:
            told = _spent_words(self._before.get((number, key), _NOTHING), spent)
            reason = f"{budget.title}{where}: {spent.workloads} of {budget.workloads} workloads {told}"
            return Blocker(BlockerCode.BUDGET, reason)
        if gpus is not None and frees > gpus + _NEGLIGIBLE:
            never = (
                f"this change needs {number_of(frees)} GPUs, and it never allows more than {number_of(gpus)}; "
                "raise it in the policy"
            )
            return Blocker(BlockerCode.BUDGET, f"{budget.title}{where}: {never}")
        if gpus is not None and spent.gpus + frees > gpus + _NEGLIGIBLE:
            told = _spent_words(self._before.get((number, key), _NOTHING), spent)
            taken = f"{number_of(spent.gpus)} of {number_of(gpus)} GPUs {told}"
            words = f"{budget.title}{where}: {taken}; this change needs {number_of(frees)}"
            return Blocker(BlockerCode.BUDGET, words)
        return None

    def _remember(self, change: FoundChange, at: datetime.datetime) -> None:
        for number, budget in enumerate(self._budgets):
            span = self._spans[budget.per]
            # A time in the future comes from a clock that is ahead; it counts.
            action = change.record.action
            stop = Action.SCALE_TO_ZERO if change.record.removed_unused else action
            is_counted = _counts(budget, action, stop)
            if is_counted and span is not None and change.is_remembered and at - change.at < span:
                for key in _keys(budget.scope, change.ref, change.pools):
                    self._spend(number, key, change.record.gpus)

    def _spend(self, number: int, key: str, gpus: float, workloads: int = 1) -> None:
        spent = self._spent.get((number, key), _NOTHING)
        self._spent[number, key] = _Spent(spent.gpus + gpus, spent.workloads + workloads)

    def _keys(self, scope: BudgetScope, workload: Workload) -> Sequence[str]:
        if scope is BudgetScope.NODE_POOL and workload.ref not in self._pools:
            self._pools[workload.ref] = sorted(set(self._pools_of(workload)))
        return _keys(scope, workload.ref, self._pools.get(workload.ref, ()))

    def _pools_of(self, workload: Workload) -> Iterator[str]:
        for pod in workload.pods:
            node = self._fleet.nodes.get(pod.node)
            if pod.holds:
                yield node.pool if node and node.pool else "(no pool)"


def _counts(budget: Budget, action: str, stop: str) -> bool:
    """Whether a budget counts a change; replicas of a workload that could be stopped count like its stop.

    But not by owner: each pending pod may get a replica of the same one.
    """
    return budget.counts(action) or (budget.scope is not BudgetScope.OWNER and budget.counts(stop))


def _spent_words(before: _Spent, now: _Spent) -> str:
    """Changes already made, or other changes of this plan."""
    if now == before:
        return "are used up"
    if not before.workloads:
        return "are used up by other changes of this plan"
    return "are used up, some by other changes of this plan"


def _keys(scope: BudgetScope, ref: ObjectRef, pools: Sequence[str]) -> Sequence[str]:
    match scope:
        case BudgetScope.CLUSTER:
            return ("",)
        case BudgetScope.NAMESPACE:
            return (ref.namespace,)
        case BudgetScope.OWNER:
            return (str(ref),)
        case BudgetScope.NODE_POOL:
            return pools


def within_budgets(
    decisions: Sequence[Decision], evaluator: PolicyEvaluator, account: "BudgetAccount | None" = None
) -> tuple[Decision, ...]:
    """Block changes that budgets or capacity do not allow; a scale-down removes as many replicas as budgets do.

    `account` has charged those that serve pending pods.
    """
    account = account or BudgetAccount(evaluator)
    return tuple(
        _allowed(decision, account) if decision.is_enforced and not decision.serves else decision
        for decision in decisions
    )


def _allowed(decision: Decision, account: "BudgetAccount") -> Decision:
    """Shorten a change to what is affordable, and charge it; blocked if nothing is."""
    is_free = decision.action in FREE
    made = decision if is_free else _shortened(decision, account.affordable(decision))
    blocks = account.take(made)
    return dataclasses.replace(decision, blockers=(*decision.blockers, *blocks)) if blocks else made


class BudgetAccount:
    """Remainder of budgets and capacity after the changes that are made; `began` as for the purse."""

    def __init__(self, evaluator: PolicyEvaluator, began: datetime.datetime | None = None) -> None:
        self._purse = Purse(evaluator.policy, evaluator.fleet, evaluator.at, began)
        self._capacity = _CapacityLeft(evaluator)

    def affordable(self, decision: Decision) -> float:
        """The most GPUs that a change of this workload may free."""
        return self._purse.affordable(decision)

    def against(self, decision: Decision, before: Decision | None = None) -> tuple[Blocker, ...]:
        """The budgets that a change would exceed, in place of a smaller one."""
        if decision.action in FREE:
            return ()
        if before is not None:
            self._purse.refund(before)
        blocks = self._purse.against(decision)
        if before is not None:
            self._purse.charge(before)
        return blocks

    def begin(self) -> None:
        """Begin to charge changes that are made together or not."""
        self._purse.begin()
        self._capacity.begin()

    def end(self, *, is_made: bool) -> None:
        """Keep what was charged since it began, or take it back."""
        self._purse.end(is_made=is_made)
        self._capacity.end(is_made=is_made)

    def take(self, decision: Decision, before: Decision | None = None) -> tuple[Blocker, ...]:
        """Charge a change, in place of a smaller one, unless budgets or capacity do not allow it; then return why."""
        blocks = self.against(decision, before) or self._capacity.take(decision)
        if not (blocks or decision.action in FREE):
            if before is not None:
                self._purse.refund(before)
            self._purse.charge(decision)
        return blocks


def _shortened(decision: Decision, most: float) -> Decision:
    """A scale-down that frees at most `most` GPUs; others, and those that would free none, as they are."""
    proposal, size = decision.finding.proposal, decision.workload.size
    if decision.finding.name is not FindingName.TOO_MANY_REPLICAS or decision.frees <= most + _NEGLIGIBLE:
        return decision
    if proposal is None or proposal.replicas is None or isinstance(size, bool) or not size:
        return decision
    unit = decision.frees / (size - proposal.replicas)
    going = math.floor((most + _NEGLIGIBLE) / unit)
    if going < 1:
        return decision
    words = f"{proposal.words}; the budgets allow {count(going, 'replica')} now"
    pods = proposal.pods[:going] if len(proposal.pods) == size - proposal.replicas else proposal.pods
    shorter = dataclasses.replace(proposal, replicas=size - going, frees=going * unit, words=words, pods=pods)
    finding = dataclasses.replace(
        decision.finding,
        proposal=shorter,
        words=tuple(words if word == proposal.words else word for word in decision.finding.words),
    )
    command = command_for(decision.workload, Action.SCALE_DOWN, shorter) if decision.command else ""
    return dataclasses.replace(decision, finding=finding, frees=going * unit, command=command)


class _CapacityLeft:
    """Remainder of free GPUs after the changes that are made, and who shares them."""

    def __init__(self, evaluator: PolicyEvaluator) -> None:
        self._fleet, self._sharing = evaluator.fleet, evaluator.policy.sharing
        self._granted: dict[frozenset[str], IncomingPods] = {}
        self._brought: dict[frozenset[str], collections.Counter[str]] = {}
        self._sharers: set[str | None] = set()
        self._rolling = 0  # GPUs of pods that start before the former ones of their workload end
        self._before = self._granted, self._brought, self._sharers, self._rolling

    def begin(self) -> None:
        """Begin to count changes that are made together or not."""
        brought = {names: most.copy() for names, most in self._brought.items()}
        self._before = {**self._granted}, brought, {*self._sharers}, self._rolling

    def end(self, *, is_made: bool) -> None:
        """Keep what was counted since it began, or take it back."""
        if not is_made:
            self._granted, self._brought, self._sharers, self._rolling = self._before

    def take(self, decision: Decision) -> tuple[Blocker, ...]:
        """Count the pods that a change creates; a reslice that is not possible any more is not counted: return why."""
        proposal = decision.finding.proposal
        if proposal is None or decision.announced:
            return ()
        names = frozenset(name for name, _ in proposal.asks)
        room = FreeCapacity(self._fleet, decision.workload, proposal.model)
        if proposal.gpus_per_pod is not None:
            if words := room.rollout_blocker(proposal.gpus_per_pod, self._rolling):
                return (Blocker(BlockerCode.NO_CAPACITY, words),)
            self._rolling += room.surge * proposal.gpus_per_pod
        if names:
            is_shared = room.is_shared(proposal.asks)
            sharer = (
                {self._sharing.domain_of(decision.workload, self._fleet)} if is_shared else set[str | None]()
            )
            if words := self._no_capacity_reason(room, proposal.asks, sharer):
                return (Blocker(BlockerCode.NO_CAPACITY, words),)
            pods = incoming_pods(decision.workload, proposal.asks)
            self._granted[names] = pods.joined(self._granted.get(names, IncomingPods()))
            self._sharers |= sharer
        self._brought.setdefault(names, collections.Counter()).update(_brought(decision, proposal))
        return ()

    def _no_capacity_reason(self, room: FreeCapacity, asks: Asks, sharer: AbstractSet[str | None]) -> str:
        """Why a reslice cannot be made beside the changes before it; empty if it can.

        `sharer` is the trust domain of its pods, if they would share GPUs.
        """
        names = frozenset(name for name, _ in asks)
        first = self._granted.get(names, IncomingPods())
        others = sum((most for key, most in self._brought.items() if key != names), collections.Counter())
        if (first.pods or others) and not room.fits(asks, first, others):
            return f"free {_named(asks)} is used by another change of this plan"
        if sharer and self._sharers - sharer and not room.is_sharing:
            return "another change of this plan shares GPUs with pods outside of its trust domain"
        return ""


def _brought(decision: Decision, proposal: Proposal) -> dict[str, int]:
    """Total requests of the pods that a change creates, by resource name."""
    is_larger = decision.action is Action.SCALE_UP and proposal.replicas is not None
    if not (proposal.asks or proposal.gpus_per_pod is not None or is_larger):
        return {}
    holding = decision.workload.holding
    per_pod, pods = largest(pod.resources for pod in holding), len(holding)
    if proposal.asks:
        per_pod = dict(proposal.asks)
    elif proposal.gpus_per_pod is not None:
        per_pod = {name: min(amount, proposal.gpus_per_pod) for name, amount in per_pod.items()}
    else:
        pods = max((proposal.replicas or 0) * decision.pods_each - pods, 0)
    return {name: pods * amount for name, amount in per_pod.items()}


def _named(asks: Asks) -> str:
    return ", ".join(name for name, _ in asks)
