"""What a run changes in place of what it could not: budgets have room left, and pending pods still wait. Pure."""

import collections
import dataclasses
from collections.abc import Collection, Sequence

from rightsizer.model import Decision, ObjectRef
from rightsizer.planning.budget import BudgetAccount, within_budgets
from rightsizer.planning.demand_matching import EarlierRounds
from rightsizer.planning.pending_demand import is_on_demand, limit_to_pending_demand, without_demand
from rightsizer.planning.placement import TriesByNamespace
from rightsizer.policy.effective import PolicyEvaluator


@dataclasses.dataclass(frozen=True, slots=True)
class Tried:
    """The changes of a run so far.

    Attributes:
        made: Those that were made, or perhaps were.
        refused: Those that their objects refused, or that are not needed anymore.
        spared: Those that were not attempted, because others that the same demand needs were refused.
        started: What refused ones were for and is not pending anymore.
        displaced: Those that were planned, until others before them had their place in the budgets.
        rest: Those that have yet to be tried.
    """

    made: Sequence[Decision]
    refused: Sequence[Decision]
    spared: Sequence[Decision] = ()
    started: Collection[ObjectRef] = ()
    displaced: Collection[Decision] = ()
    rest: Sequence[Decision] = ()


def fitting_alternatives(
    decisions: Sequence[Decision], evaluator: PolicyEvaluator, tried: Tried, tries: TriesByNamespace
) -> tuple[Decision, ...]:
    """The changes that fit in place of those that were not made, with other victims for the pods that still wait.

    Other changes are those that only budgets block, none in the namespaces of refused ones: many workloads that refuse
    changes hold up others only once. `tries` are what is left of those to find places. While some have yet to be tried,
    these are chosen again, as if the refused ones had not been planned: what pending pods need is kept for them.
    """
    for_pods = [one for one in tried.rest if one.serves]
    again = {one.workload.ref for one in (*tried.displaced, *tried.rest) if not one.serves}
    refs = {one.workload.ref for one in (*tried.made, *tried.refused, *tried.spared, *for_pods)} | again
    made = [*tried.made, *(one for one in decisions if one.is_enforced and one.workload.ref not in refs)]
    settled = {one.workload.ref for one in (*made, *for_pods, *tried.refused)}
    refusals = collections.Counter(
        one.workload.ref.namespace
        for one in tried.refused
        if not one.wanted_by or not {*one.wanted_by} <= {*tried.started}
    )
    most = evaluator.policy.demand.maxRefusals
    left = (without_demand(one) for one in decisions if one.workload.ref not in settled)
    possible = [
        one
        for one in left
        if one.workload.ref in again
        or refusals[one.workload.ref.namespace] < (most if is_on_demand(one, evaluator) else 1)
    ]
    if tried.rest:
        not_made = [one for one in (*tried.refused, *tried.spared) if one.serves]
        account = BudgetAccount(evaluator, [*made, *for_pods, *not_made])
        plain = [one for one in possible if not is_on_demand(one, evaluator)]
        return (*for_pods, *_enforced(plain, evaluator, account))
    account = BudgetAccount(evaluator, made)
    earlier = EarlierRounds(made, tried.started, tries)
    limited = limit_to_pending_demand(possible, evaluator, account, earlier)
    return _enforced(limited.decisions, evaluator, account)


def _enforced(
    decisions: Sequence[Decision], evaluator: PolicyEvaluator, account: BudgetAccount
) -> tuple[Decision, ...]:
    return tuple(one for one in within_budgets(decisions, evaluator, account) if one.is_enforced)
