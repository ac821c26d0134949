"""A plan on one screen: inventory → measure → decide → breaker → demand → capacity → budget."""

import collections
import dataclasses
import datetime
import logging

from rightsizer.changes.found_changes import drop_implausible_changes
from rightsizer.changes.memory import ChangeMemory, with_remembered_changes
from rightsizer.findings.data_quality import unknown_resources
from rightsizer.findings.no_requests import servers_without_metrics
from rightsizer.inventory.workload_builder import ClusterState, build_fleet
from rightsizer.kinds.notices import unreadable_notes
from rightsizer.model import ClusterName, ObjectRef, Plan
from rightsizer.planning.breaker import NOTHING, State, held, scope_of, trips
from rightsizer.planning.budget import BudgetAccount, within_budgets
from rightsizer.planning.decide import decide
from rightsizer.planning.measure import measure
from rightsizer.planning.pending_demand import limit_to_pending_demand, unserved_demand
from rightsizer.planning.usage_signal import Signal
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.policy_file import LoadedPolicy, class_problems, namespace_problems, require_classes
from rightsizer.policy.protections import OWN_NAMESPACE
from rightsizer.text import count

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Cycle:
    """The inputs of a plan other than objects and metrics.

    Attributes:
        at: Now, by Prometheus's clock.
        own: The namespace of gpu-rightsizer.
        instance: Unique name of this instance; its namespace by default.
        version: Of the program.
        hypothetical: Why the plan must not be applied; empty if it may be.
        state: Breaker, pauses and accepted scope.
        problems: What could not be read of the state or the change records.
        cluster: Which cluster it is; None for objects from a file.
        remembered: Recent changes, also those whose objects no longer carry a record; None if they are unknown.
        began: The begin of the run, if it has earlier cycles: budgets per run count their changes.
        refused: Workloads whose changes could not be made a moment ago: others go first for pending pods.
    """

    loaded: LoadedPolicy
    at: datetime.datetime
    run: str
    own: str = OWN_NAMESPACE
    instance: str = ""
    version: str = ""
    hypothetical: str = ""
    state: State = NOTHING
    problems: tuple[str, ...] = ()
    remembered: ChangeMemory | None = None
    cluster: ClusterName | None = None
    began: datetime.datetime | None = None
    refused: frozenset[ObjectRef] = frozenset()


def make_plan(objects: ClusterState, signal: Signal, cycle: Cycle) -> Plan:
    """Judge every workload and decide about it.

    Raises:
        PolicyError: The policy names what the cluster does not have.
        PrometheusError: An answer was incomplete; then there is no plan.
    """
    fleet = drop_implausible_changes(
        with_remembered_changes(build_fleet(objects), cycle.remembered), cycle.at
    )
    del objects  # frees half of the memory of a large cluster
    if fleet.classes or not cycle.hypothetical:
        # A file of objects may lack PriorityClasses; the policy is still valid.
        require_classes(cycle.loaded, fleet.classes.keys())
    pods = sum(len(workload.pods) for workload in fleet.workloads)
    log.info("%s of %s ask for GPUs", count(pods, "pod"), count(len(fleet.workloads), "workload"))
    evaluator = PolicyEvaluator(
        cycle.loaded.policy, fleet, at=cycle.at, own=cycle.own, instance=cycle.instance
    )
    measured = measure(fleet, signal, evaluator, cycle.at)
    scope = scope_of(evaluator, cycle.loaded.digest, cycle.version)
    opening = tuple(trips(evaluator.policy.breaker, fleet, now=scope, accepted=cycle.state.scope))
    free = held(decide(measured, evaluator), cycle.state, opening, cycle.at)
    account = BudgetAccount(evaluator, cycle.began)
    limited = limit_to_pending_demand(free, evaluator, account, cycle.refused)
    decisions = within_budgets(limited.decisions, evaluator, account)
    plan = Plan(
        at=cycle.at,
        run=cycle.run,
        policy_source=cycle.loaded.source,
        policy_hash=cycle.loaded.digest,
        decisions=decisions,
        fleet=fleet,
        measured=measured,
        hypothetical=cycle.hypothetical,
        problems=(
            *fleet.problems,
            *measured.ignored.words,
            *servers_without_metrics(fleet.workloads, measured),
            *unknown_resources(fleet, measured),
            *unserved_demand(evaluator, limited.cut_short, limited.unserved),
            *unreadable_notes(fleet.workloads),
            *cycle.problems,
            *class_problems(evaluator),
            *namespace_problems(cycle.loaded, fleet.namespaces),
        ),
        eligible=scope.rules,
        scope_digest=scope.digest,
        opening=opening,
        cluster=cycle.cluster,
    )
    _log_decisions(plan)
    return plan


def _log_decisions(plan: Plan) -> None:
    for decision in plan.decisions:
        ref, verdict, finding = decision.workload.ref, decision.verdict.value, decision.finding.name.value
        log.debug("%s: %s, %s, rule %s", ref, verdict, finding, decision.rule)
    counts = collections.Counter(decision.verdict for decision in plan.decisions)
    told = ", ".join(f"{number} {verdict.value}" for verdict, number in sorted(counts.items()))
    judged = count(len(plan.decisions), "workload")
    log.info("%s judged: %s; %d to be acted upon", judged, told or "none", len(plan.enforced))
