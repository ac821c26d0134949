"""What the changes of a plan may do together: budgets per run, hour or day, and capacity for reslices. Pure.

Changes are counted in plan order; one that does not fit is blocked, and takes nothing from later ones. A budget is
charged with the GPUs that a change frees, before the change is made. Each reslice was judged alone: in plan order each
takes what its pods need, as do pods that other changes recreate.
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
from rightsizer.planning.victims import within
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.limits import Budget, BudgetScope, Per
from rightsizer.policy.schema import Policy
from rightsizer.text import count
from rightsizer.text import number as number_of

FREE = frozenset({Action.NOTICE, Action.SCALE_UP})
"""Actions that no budget counts: they take nothing away."""

_SPANS = {Per.RUN: None, Per.HOUR: datetime.timedelta(hours=1), Per.DAY: datetime.timedelta(days=1)}


@dataclasses.dataclass(slots=True)
class _Spent:
    gpus: float = 0.0
    workloads: int = 0


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
        self._held: dict[tuple[BudgetScope, str], float] = collections.defaultdict(
            float, {(BudgetScope.CLUSTER, ""): 0.0}
        )
        self._spent: dict[tuple[int, str], _Spent] = collections.defaultdict(_Spent)
        for workload in fleet.workloads:
            for scope in BudgetScope:
                for key in self._keys(scope, workload):
                    self._held[scope, key] += workload.gpus
        for change in fleet.changes:
            self._remember(change, at)
        self._before = {place: dataclasses.replace(spent) for place, spent in self._spent.items()}

    def against(self, decision: Decision) -> tuple[Blocker, ...]:
        """The budgets that a change would exceed."""
        found = (self._against(*place, frees=decision.frees) for place in self._places(decision))
        return tuple(block for block in found if block is not None)

    def charge(self, decision: Decision) -> None:
        """Charge a change to every budget that counts it."""
        for number, _, key in self._places(decision):
            self._spend(number, key, decision.frees)

    def affordable(self, decision: Decision) -> float:
        """The most GPUs that a change of this workload may free."""
        return min(
            (
                gpus - self._spent[number, key].gpus
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
                (held, self._spent.get((number, key), _Spent()))
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
        spent = self._spent[number, key]
        gpus = budget.gpus_of(self._held[budget.scope, key])
        where = f" of {key}" if key else ""
        if budget.workloads is not None and spent.workloads + 1 > budget.workloads:
            told = _spent_words(self._before.get((number, key), _Spent()), spent)
            reason = f"{budget.title}{where}: {spent.workloads} of {budget.workloads} workloads {told}"
            return Blocker(BlockerCode.BUDGET, reason)
        if gpus is not None and frees > gpus + _NEGLIGIBLE:
            never = (
                f"this change needs {number_of(frees)} GPUs, and it never allows more than {number_of(gpus)}; "
                "raise it in the policy"
            )
            return Blocker(BlockerCode.BUDGET, f"{budget.title}{where}: {never}")
        if gpus is not None and spent.gpus + frees > gpus + _NEGLIGIBLE:
            told = _spent_words(self._before.get((number, key), _Spent()), spent)
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

    def _spend(self, number: int, key: str, gpus: float) -> None:
        spent = self._spent[number, key]
        spent.gpus += gpus
        spent.workloads += 1

    def _keys(self, scope: BudgetScope, workload: Workload) -> Sequence[str]:
        pools = sorted(set(self._pools(workload))) if scope is BudgetScope.NODE_POOL else ()
        return _keys(scope, workload.ref, pools)

    def _pools(self, workload: Workload) -> Iterator[str]:
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
    """Changes already made, or earlier changes of this plan."""
    if now == before:
        return "are used up"
    if not before.workloads:
        return "are used up by earlier changes of this plan"
    return "are used up, some by earlier changes of this plan"


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


def within_budgets(decisions: Sequence[Decision], evaluator: PolicyEvaluator) -> tuple[Decision, ...]:
    """Block changes that budgets or capacity do not allow; a scale-down removes as many replicas as budgets do.

    Pending pods and gangs are served whole or not: of one for which the budgets do not allow all changes, none is made.
    """
    in_part: set[ObjectRef] = set()
    while True:
        allowed = _charged(decisions, evaluator, in_part)
        served = {one for each in allowed if each.is_enforced for one in each.serves}
        pairs = zip(decisions, allowed, strict=True)
        lacking = {
            one
            for before, after in pairs
            if before.is_enforced
            for one in set(before.serves) - (set(after.serves) if after.is_enforced else set())
        }
        if not (more := (served & lacking) - in_part):
            return allowed
        in_part |= more


def _charged(
    decisions: Sequence[Decision], evaluator: PolicyEvaluator, in_part: AbstractSet[ObjectRef]
) -> tuple[Decision, ...]:
    """Charge the changes in order, without what would serve a demand only in part."""
    purse, capacity = Purse(evaluator.policy, evaluator.fleet, evaluator.at), _CapacityLeft(evaluator)
    allowed = []
    for decision in decisions:
        if not decision.is_enforced:
            allowed.append(decision)
            continue
        is_free = decision.action in FREE
        made = decision if is_free else _fitting(decision, purse.affordable(decision), in_part)
        if made is None:
            words = f"budgets do not allow all changes that {decision.serves[0]} needs"
            blocks: tuple[Blocker, ...] = (Blocker(BlockerCode.BUDGET, words),)
        else:
            blocks = (() if is_free else purse.against(made)) or capacity.take(made)
        if made is None or blocks:
            allowed.append(dataclasses.replace(decision, blockers=(*decision.blockers, *blocks)))
            continue
        if not is_free:
            purse.charge(made)
        allowed.append(made)
    return tuple(allowed)


def _fitting(decision: Decision, most: float, in_part: AbstractSet[ObjectRef]) -> Decision | None:
    """A change that frees at most `most` GPUs, if it can be smaller; None if all that it serves is in `in_part`."""
    if decision.going:
        asked = within(decision, math.inf, in_part)
        return asked and (within(asked, most + _NEGLIGIBLE) or asked)
    if decision.serves and in_part >= set(decision.serves):
        return None
    return decision if decision.serves else _shortened(decision, most)


def fitting_alternatives(
    decisions: Sequence[Decision],
    evaluator: PolicyEvaluator,
    made: Sequence[Decision],
    not_made: Sequence[Decision],
) -> tuple[Decision, ...]:
    """The changes of a plan that only budgets block, and that fit in place of changes that were not made.

    None in the namespaces of those: whoever has many workloads that refuse changes holds up others no longer for it.
    None for a pending pod or gang that one of those was to serve: it would not be served whole.
    """
    tried = {one.workload.ref for one in (*made, *not_made)}
    namespaces = {one.workload.ref.namespace for one in not_made}
    failed = {one for each in not_made for one in each.serves}
    untried = [one for one in decisions if one.workload.ref not in tried]
    # These are decided: nothing is taken back of them.
    charged = [
        dataclasses.replace(one, serves=(), going=())
        for one in (*made, *(one for one in untried if one.is_enforced))
    ]
    waiting = (
        dataclasses.replace(one, blockers=())
        for one in untried
        if one.is_blocked
        and {block.code for block in one.blockers} == {BlockerCode.BUDGET}
        and one.workload.ref.namespace not in namespaces
        and failed.isdisjoint(one.serves)
    )
    fitting = within_budgets((*charged, *waiting), evaluator)[len(charged) :]
    return tuple(one for one in fitting if one.is_enforced)


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

    def take(self, decision: Decision) -> tuple[Blocker, ...]:
        """Count the pods that a change creates, unless it is a reslice that no longer fits; then return why.

        Or one that could share a GPU outside of its trust domain.
        """
        proposal = decision.finding.proposal
        if proposal is None or decision.announced:
            return ()
        names = frozenset(name for name, _ in proposal.asks)
        if names and (words := self._problem(decision, proposal, names)):
            return (Blocker(BlockerCode.NO_CAPACITY, words),)
        self._brought.setdefault(names, collections.Counter()).update(_brought(decision, proposal))
        return ()

    def _problem(self, decision: Decision, proposal: Proposal, names: frozenset[str]) -> str:
        """Why a reslice cannot be made beside the earlier changes; empty if it is counted with them."""
        first = self._granted.get(names, IncomingPods())
        others = sum((most for key, most in self._brought.items() if key != names), collections.Counter())
        room = FreeCapacity(self._fleet, decision.workload, proposal.model)
        domain = self._sharing.domain_of(decision.workload, self._fleet)
        is_shared = room.is_shared(proposal.asks)
        if (first.pods or others) and not room.fits(proposal.asks, first, others):
            return f"free {_named(proposal.asks)} is used by an earlier change of this plan"
        if is_shared and self._sharers - {domain} and not room.is_sharing:
            return "an earlier change of this plan shares GPUs with pods outside of its trust domain"
        self._sharers.update({domain} if is_shared else ())
        self._granted[names] = incoming_pods(decision.workload, proposal.asks).joined(first)
        return ""


def _brought(decision: Decision, proposal: Proposal) -> dict[str, int]:
    """Total requests of the pods that a change creates, by resource name."""
    holding = decision.workload.holding
    each, pods = largest(pod.resources for pod in holding), len(holding)
    if proposal.asks:
        each = dict(proposal.asks)
    elif proposal.gpus_per_pod is not None:
        each = {name: min(amount, proposal.gpus_per_pod) for name, amount in each.items()}
    elif decision.action is Action.SCALE_UP and proposal.replicas is not None:
        pods = max(proposal.replicas * decision.pods_each - pods, 0)
    else:
        return {}
    return {name: pods * amount for name, amount in each.items()}


def _named(asks: Asks) -> str:
    return ", ".join(name for name, _ in asks)
