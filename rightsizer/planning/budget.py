"""What the changes of a plan may do together: budgets per run, hour or day, and capacity for reslices. Pure.

Demand comes first, by the priority of its pods: all changes that a pod or gang needs are charged together, or none of
them. The other changes follow in plan order. What does not fit is blocked, and takes nothing from the rest. A budget is
charged with the GPUs that a change frees, before the change is made. Each reslice was judged alone: in the same order
each takes what its pods need, as do pods that other changes recreate.
"""

import collections
import dataclasses
import datetime
import functools
import math
from collections.abc import Iterable, Iterator, Sequence
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
from rightsizer.planning.pending_demand import still_served
from rightsizer.planning.victims import GOES_AFTER, skips_none, without_demands
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.limits import Budget, BudgetScope, Per
from rightsizer.policy.schema import Policy
from rightsizer.text import count
from rightsizer.text import number as number_of

FREE = frozenset({Action.NOTICE, Action.SCALE_UP})
"""Actions that no budget counts: they take nothing away."""

_SPANS = {Per.RUN: None, Per.HOUR: datetime.timedelta(hours=1), Per.DAY: datetime.timedelta(days=1)}


@dataclasses.dataclass(frozen=True, slots=True)
class _Spent:
    gpus: float = 0.0
    workloads: int = 0


_NOTHING = _Spent()


@dataclasses.dataclass(frozen=True, slots=True)
class Left:
    """What a budget still allows: the minimum over the parts of the fleet that it counts.

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
    """The remaining amount of every budget, by held GPUs and recent changes."""

    def __init__(self, policy: Policy, fleet: Fleet, at: datetime.datetime) -> None:
        self._budgets = policy.budgets
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
            span = _SPANS[budget.per]
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
    """The parts of the fleet in which a change counts."""
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
    decisions: Sequence[Decision], evaluator: PolicyEvaluator, made: Iterable[Decision] = ()
) -> tuple[Decision, ...]:
    """Block changes that budgets or capacity do not allow; a scale-down removes as many replicas as budgets do.

    Pending pods and gangs are served whole or not, those of the highest priority first. `made` are charged before.
    """
    account = _Account(Purse(evaluator.policy, evaluator.fleet, evaluator.at), _CapacityLeft(evaluator))
    for one in made:
        account.charge(one)
    on_demand = {
        one.workload.ref: _OnDemand(one)
        for one in decisions
        if one.is_enforced and one.serves and one.action not in FREE
    }
    _serve(on_demand.values(), account, evaluator.fleet)
    return tuple(_allowed(one, on_demand.get(one.workload.ref), account) for one in decisions)


def _allowed(decision: Decision, change: "_OnDemand | None", account: "_Account") -> Decision:
    """What is made of a change, charged; blocked if that is nothing."""
    if not decision.is_enforced:
        return decision
    if change is not None:
        made, blocks = change.made(), change.blocks
    else:
        is_free = decision.action in FREE
        made = decision if is_free else _shortened(decision, account.purse.affordable(decision))
        blocks = account.take(made)
        made = None if blocks else made
    return made or dataclasses.replace(decision, blockers=(*decision.blockers, *blocks))


def _serve(changes: Iterable["_OnDemand"], account: "_Account", fleet: Fleet) -> None:
    """Charge what pending pods and gangs need, one after another."""
    needed: dict[ObjectRef, list[_OnDemand]] = collections.defaultdict(list)
    for one in changes:
        for demand in one.decision.serves:
            needed[demand].append(one)
    for demand in dict.fromkeys(pod.demand for pod in fleet.waiting if pod.demand in needed):
        _serve_whole(demand, needed[demand], account)


def _serve_whole(demand: ObjectRef, changes: Sequence["_OnDemand"], account: "_Account") -> None:
    """Charge all changes that a demand needs, or none of them."""
    account.begin()
    parts: list[tuple[_OnDemand, Decision]] = []
    for one in changes:
        part = one.also_for(demand)
        blocks = account.take(part, one.charged) if part else (Blocker(BlockerCode.BUDGET, GOES_AFTER),)
        if part is None or blocks:
            account.end(is_made=False)
            for each in changes:
                each.refuse(demand, one.decision.workload.ref, blocks)
            return
        parts.append((one, part))
    account.end(is_made=True)
    for one, part in parts:
        one.serve(demand, part)


class _OnDemand:
    """A change for pending pods, as far as those need it that are served.

    Attributes:
        charged: What the budgets count of it; None if it serves nobody.
        blocks: Why it does not serve the most urgent of those that it does not serve.
    """

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.charged: Decision | None = None
        self.blocks: tuple[Blocker, ...] = ()
        self._served: set[ObjectRef] = set()
        self._frees: dict[ObjectRef, float] = collections.defaultdict(float)
        for pod, _, frees in decision.going:
            self._frees[pod.demand] += frees

    @functools.cached_property
    def _part(self) -> Decision | None:
        """What goes for the first demand. What goes for others differs only in GPUs, as far as budgets count."""
        return without_demands(self.decision, {*self.decision.serves[1:]})

    def also_for(self, demand: ObjectRef) -> Decision | None:
        """What the budgets would count if it served a demand, too; None if replicas stay that would go before."""
        number, serves = len(self._served), self.decision.serves
        if not self.decision.going or number + 1 == len(serves):
            return self.decision
        if self._part is None or (skips_none(self.decision) and demand != serves[number]):
            return None
        before = self.charged.frees if self.charged else 0.0
        return dataclasses.replace(self._part, frees=before + self._frees[demand])

    def serve(self, demand: ObjectRef, charged: Decision) -> None:
        """Note that a demand is served."""
        self._served.add(demand)
        self.charged = charged

    def refuse(self, demand: ObjectRef, ref: ObjectRef, blocks: tuple[Blocker, ...]) -> None:
        """Note why a demand is not served: it needs a change of this workload, which is not possible."""
        if ref != self.decision.workload.ref:
            blocks = (Blocker(blocks[0].code, f"{demand} also needs {ref}: {blocks[0].message}"),)
        self.blocks = self.blocks or blocks

    def made(self) -> Decision | None:
        """The change for those that are served; None if nobody is."""
        return without_demands(self.decision, {*self.decision.serves} - self._served)


class _Account:
    """What the changes that are made leave of budgets and capacity."""

    def __init__(self, purse: Purse, capacity: "_CapacityLeft") -> None:
        self.purse, self._capacity = purse, capacity

    def begin(self) -> None:
        """Begin to charge changes that are made together or not."""
        self.purse.begin()
        self._capacity.begin()

    def end(self, *, is_made: bool) -> None:
        """Keep what was charged since it began, or take it back."""
        self.purse.end(is_made=is_made)
        self._capacity.end(is_made=is_made)

    def charge(self, decision: Decision) -> None:
        """Charge a change that is made in any case."""
        if decision.action not in FREE:
            self.purse.charge(decision)
        self._capacity.take(decision)

    def take(self, decision: Decision, before: Decision | None = None) -> tuple[Blocker, ...]:
        """Charge a change, in place of a smaller one, unless budgets or capacity do not allow it; then return why."""
        if decision is before:
            return ()
        if before is not None:
            self.purse.refund(before)
        is_free = decision.action in FREE
        blocks = (() if is_free else self.purse.against(decision)) or self._capacity.take(decision)
        if not (blocks or is_free):
            self.purse.charge(decision)
        return blocks


@dataclasses.dataclass(frozen=True, slots=True)
class Tried:
    """The changes of a run so far.

    Attributes:
        made: Those that were made, or perhaps were.
        refused: Those that their objects refused, or that are not needed anymore.
        spared: Those that were not attempted, because others that the same demand needs were refused.
    """

    made: Sequence[Decision]
    refused: Sequence[Decision]
    spared: Sequence[Decision] = ()


def fitting_alternatives(
    decisions: Sequence[Decision], evaluator: PolicyEvaluator, tried: Tried
) -> tuple[Decision, ...]:
    """The changes of a plan that only budgets block, and that fit in place of changes that were not made.

    None in the namespaces of refused ones, so that many workloads that refuse changes hold up others only once. Pending
    pods and gangs are served whole or not, so none for those that need something else.
    """
    refs = {one.workload.ref for one in (*tried.made, *tried.refused, *tried.spared)}
    namespaces = {one.workload.ref.namespace for one in tried.refused}
    untried = [one for one in decisions if one.workload.ref not in refs]
    waiting = {
        one.workload.ref: dataclasses.replace(one, blockers=())
        for one in untried
        if one.is_blocked
        and {block.code for block in one.blockers} == {BlockerCode.BUDGET}
        and one.workload.ref.namespace not in namespaces
    }
    others = (
        one.whole or one
        for one in decisions
        if one.workload.ref not in waiting and one.action is not Action.NOTICE
    )
    lost = {demand: "" for one in others for demand in one.serves}
    possible = [one for one in still_served([*waiting.values()], lost).values() if isinstance(one, Decision)]
    made = (*tried.made, *(one for one in untried if one.is_enforced))
    return tuple(one for one in within_budgets(possible, evaluator, made) if one.is_enforced)


def _shortened(decision: Decision, most: float) -> Decision:
    """A scale-down that frees at most `most` GPUs; others, and those that would free none, as they are."""
    proposal, size = decision.finding.proposal, decision.workload.size
    if decision.finding.name is not FindingName.TOO_MANY_REPLICAS or decision.frees <= most + _NEGLIGIBLE:
        return decision
    if proposal is None or proposal.replicas is None or isinstance(size, bool) or not size:
        return decision
    each = decision.frees / (size - proposal.replicas)
    going = math.floor((most + _NEGLIGIBLE) / each)
    if going < 1:
        return decision
    words = f"{proposal.words}; the budgets allow {count(going, 'replica')} now"
    pods = proposal.pods[:going] if len(proposal.pods) == size - proposal.replicas else proposal.pods
    shorter = dataclasses.replace(proposal, replicas=size - going, frees=going * each, words=words, pods=pods)
    finding = dataclasses.replace(
        decision.finding,
        proposal=shorter,
        words=tuple(words if one == proposal.words else one for one in decision.finding.words),
    )
    command = command_for(decision.workload, Action.SCALE_DOWN, shorter) if decision.command else ""
    return dataclasses.replace(decision, finding=finding, frees=going * each, command=command)


class _CapacityLeft:
    """What the changes that are made leave of free GPUs, and who shares them."""

    def __init__(self, evaluator: PolicyEvaluator) -> None:
        self._fleet, self._sharing = evaluator.fleet, evaluator.policy.sharing
        self._granted: dict[frozenset[str], IncomingPods] = {}
        self._brought: dict[frozenset[str], collections.Counter[str]] = {}
        self._sharers: set[str | None] = set()
        self._before = self._granted, self._brought, self._sharers

    def begin(self) -> None:
        """Begin to count changes that are made together or not."""
        brought = {names: most.copy() for names, most in self._brought.items()}
        self._before = {**self._granted}, brought, {*self._sharers}

    def end(self, *, is_made: bool) -> None:
        """Keep what was counted since it began, or take it back."""
        if not is_made:
            self._granted, self._brought, self._sharers = self._before

    def take(self, decision: Decision) -> tuple[Blocker, ...]:
        """Count the pods that a change creates; a reslice that is not possible any more is not counted: return why."""
        proposal = decision.finding.proposal
        if proposal is None or decision.announced:
            return ()
        names = frozenset(name for name, _ in proposal.asks)
        if names:
            room = FreeCapacity(self._fleet, decision.workload, proposal.model)
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
    each, pods = largest(pod.resources for pod in holding), len(holding)
    if proposal.asks:
        each = dict(proposal.asks)
    elif proposal.gpus_per_pod is not None:
        each = {name: min(amount, proposal.gpus_per_pod) for name, amount in each.items()}
    else:
        pods = max((proposal.replicas or 0) * decision.pods_each - pods, 0)
    return {name: pods * amount for name, amount in each.items()}


def _named(asks: Asks) -> str:
    return ", ".join(name for name, _ in asks)
