"""One cycle of `apply` and `run`: state, Lease, plan, writes, verification and notifications."""

import contextlib
import dataclasses
import functools
import http
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from rightsizer.changes.memory import MemoryStore
from rightsizer.cli.connection import cluster_settings
from rightsizer.cli.ledger_parts import CycleRecorder
from rightsizer.cli.messages import complain, progress
from rightsizer.cli.options import ClusterStateOptions
from rightsizer.cli.plan_session import PlanSession, utc_now
from rightsizer.errors import ClusterError, ConfigurationError, RequestRefused, RightsizerError
from rightsizer.execute.control_state import ActionGate, ControlStateStore
from rightsizer.execute.deletion_cost import clear_deletion_costs
from rightsizer.execute.executor import NOT_MADE, carry_out, skipped, try_others
from rightsizer.execute.notify import notify
from rightsizer.execute.preflight import UseSincePlan
from rightsizer.execute.reconcile import (
    ReconcilePolicy,
    Reconciliation,
    find_reconciliations,
    find_stops_without_effect,
    make_reconciliations,
)
from rightsizer.execute.run_context import ApplySession, Deadline, RunContext
from rightsizer.execute.verify import verify
from rightsizer.kinds import pause_for
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.configmaps import Changes, ConfigMap, Texts
from rightsizer.kube.lease import Lease
from rightsizer.model import Action, BlockerCode, Decision, Outcome, Plan, ReconcileAction, Result
from rightsizer.planning.breaker import Scope, State, accepted, accepted_scope, followed
from rightsizer.planning.kept_sizes import NAME as SIZES
from rightsizer.planning.kept_sizes import kept_sizes
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.prices import Prices
from rightsizer.report.rows import rates_of

log = logging.getLogger(__name__)

_LEASE_TIMEOUT_S = 5.0
_SHOWN = 10
"""Workloads in a message."""


class People(Protocol):
    """Who is shown a cycle, and asked: a person at a terminal, or those who read log and metrics.

    Attributes:
        outcomes: All that was reported.
    """

    outcomes: list[Outcome]

    def agrees(self, rollbacks: Sequence[Reconciliation]) -> bool:
        """Whether earlier changes may be rolled back."""
        ...

    def reconciled(self, outcomes: Iterable[Outcome]) -> None:
        """Report each reconciliation as it is made; raises an exception to end the cycle."""
        ...

    def chosen(self, plan: Plan, prices: Prices) -> Sequence[Decision] | None:
        """Show the plan, and return what is to be carried out of it; None if a person refuses."""
        ...

    def changed(self, steps: Callable[[Deadline], Iterator[Outcome]], pending: list[Outcome]) -> None:
        """Report each change as it is made, with its effect until a deadline; `pending` are those to come."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class ActingCycle:
    """One cycle of `apply` and `run`.

    Attributes:
        context: Of every write; the Lease is held.
        recorder: None without a ledger.
        accept_growth: Whether the plan's scope is accepted, however large it is.
        sizes_ended: Whether an earlier cycle found that no sizes are kept any more.
    """

    session: PlanSession
    context: RunContext
    people: People
    recorder: CycleRecorder | None = None
    accept_growth: bool = False
    sizes_ended: bool = False

    def run(self) -> bool:
        """Reconcile, plan, show, ask, carry out, verify; at the end record it and tell people, whatever happened.

        Returns whether no sizes are kept any more.

        Raises:
            RightsizerError: Something could not be read; nothing was changed from then on.
        """
        session, people, context = self.session, self.people, self.context
        gate = ActionGate(session.store, session.policy.policy.breaker, session.run, session.clock)
        require_state(session)
        with _counted(gate), contextlib.ExitStack() as at_end:
            at_end.callback(self._notify)
            guard = ReconcilePolicy(session.policy.policy, gate)
            self._reconcile(find_reconciliations(context), guard)
            with progress():
                plan = self._planned(gate)
            self._reconcile(find_stops_without_effect(plan.fleet, context), guard)
            prices = session.prices(plan.at)
            decisions = people.chosen(plan, prices)
            at_end.callback(self._record, plan, prices)  # when all is done: no change waits for a bucket
            if decisions is None:
                return self.sizes_ended
            self._follow_scope(plan)
            sizes_ended = keep_sizes(session, plan, are_ended=self.sizes_ended)
            acting = acting_on(session, plan, context, gate, prices)
            pending = [skipped(one, acting, "not attempted: the run was interrupted") for one in decisions]
            people.changed(functools.partial(steps, acting, plan, decisions), pending)
        return sizes_ended

    def _reconcile(self, due: Sequence[Reconciliation], guard: ReconcilePolicy) -> None:
        rollbacks = [one for one in due if one.action is ReconcileAction.ROLLBACK]
        if rollbacks and not self.people.agrees(rollbacks):
            due = [one for one in due if one not in rollbacks]
        self.people.reconciled(make_reconciliations(due, self.context, guard))

    def _planned(self, gate: ActionGate) -> Plan:
        """The plan, within the accepted scope; opens the breaker if the plan has a reason to."""
        session = self.session
        plan = session.observe_to_act()
        if self.accept_growth:
            session.store.change(lambda state: accepted(state, accepted_scope(_scope(plan), utc_now())))
            plan = session.observe_to_act()
        for trip in plan.opening:
            gate.open(trip)
        return plan

    def _follow_scope(self, plan: Plan) -> None:
        """Accept the scope of the first run of a policy; later growth by its rules needs an operator."""
        scope = _scope(plan)

        def follow(state: State) -> State:
            first = state.scope is None
            return accepted(state, accepted_scope(scope, utc_now())) if first else followed(state, scope)

        if plan.policy_hash and not any(trip.code is BlockerCode.GROWTH for trip in plan.opening):
            self.session.store.change(follow)

    def _record(self, plan: Plan, prices: Prices) -> None:
        if self.recorder is not None:
            self.recorder.plan(plan, prices)
            self.recorder.outcomes(plan, prices, self.people.outcomes)

    def _notify(self) -> None:
        """Send the notifications of the policy; log a warning for each that fails."""
        session = self.session
        for problem in notify(
            session.policy.policy.notifications,
            session.cluster_name,
            session.run,
            self.people.outcomes,
            session.fleet,
        ):
            log.warning("%s", problem)


@contextlib.contextmanager
def _counted(gate: ActionGate) -> Iterator[None]:
    """Count a run that ends with an internal error for the breaker."""
    try:
        yield
    except (RightsizerError, KeyboardInterrupt):
        raise
    except Exception as error:
        with contextlib.suppress(RightsizerError):
            gate.count_error(f"internal error: {type(error).__name__}: {error}")
        raise


def run_context_of(session: PlanSession) -> RunContext:
    """The context of every write of a run."""
    return RunContext(
        cluster=session.cluster,
        run=session.run,
        state_namespace=session.own,
        instance=session.instance,
        clock=session.clock,
        evicts=session.evicts,
        bind_within=session.policy.policy.demand.bindWithin,
    )


def lease_of(arguments: ClusterStateOptions, token: str) -> Lease:
    """The Lease that a writer holds, with a connection of its own.

    `token` is random: a restarted container has the same host name and process id.
    """
    quick = Cluster(dataclasses.replace(cluster_settings(arguments), timeout_s=_LEASE_TIMEOUT_S))
    identity = f"{socket.gethostname()}-{os.getpid()}-{token}"
    return Lease(quick, arguments.state_namespace, identity, monotonic=time.monotonic, clock=utc_now)


def require_state(session: PlanSession) -> None:
    """Check that pauses and recent changes can be read; without them nothing is changed.

    Raises:
        ConfigurationError: Permission is missing.
    """
    kept: tuple[tuple[ControlStateStore | MemoryStore, str], ...] = (
        (session.store, "whether it is paused"),
        (session.memory, "what was changed lately"),
    )
    for store, what in kept:
        try:
            store.read()
        except RequestRefused as refused:
            if refused.code != http.HTTPStatus.FORBIDDEN:
                raise
            raise ConfigurationError(
                f"{store.place}: {what} cannot be known: {refused.detail}; "
                "gpu-rightsizer doctor --roles prints what apply needs"
            ) from refused


def found_open(session: PlanSession) -> bool:
    """Whether the breaker is open, with an error message: a CronJob that can change nothing must fail."""
    trip = session.store.read().latch.trip
    if trip is not None:
        words = f"the breaker is open: {trip.reason}; nothing is changed until a person closes it"
        complain(f"{words} (gpu-rightsizer breaker)")
    return trip is not None


def keep_sizes(session: PlanSession, plan: Plan, *, are_ended: bool = False) -> bool:
    """Keep the sizes of resized workloads for when they come back; a failure only means that they do not.

    Returns whether none are kept any more because the policy has no `keepSizes`; with `are_ended`, that was so before.
    """
    is_off = session.policy.policy.keepSizes is None
    if plan.fleet is None or (is_off and are_ended):
        return are_ended
    evaluator = PolicyEvaluator(
        session.policy.policy, plan.fleet, at=plan.at, own=session.own, instance=session.instance
    )
    left_out: tuple[str, ...] = ()

    def how(texts: Texts) -> Changes:
        nonlocal left_out
        found = kept_sizes(texts, evaluator, plan.policy_hash)
        left_out = found.left_out
        return found.texts

    is_done = change_sizes(session.cluster, session.own, how)
    if left_out:
        names = [*left_out[:_SHOWN], *([f"{len(left_out) - _SHOWN} more"] if left_out[_SHOWN:] else [])]
        log.warning("sizes that are not kept: %s", "; ".join(names))
    return is_off and is_done


def change_sizes(cluster: Cluster, namespace: str, how: Callable[[Texts], Changes]) -> bool:
    """Change the ConfigMap of kept sizes; a failure ends neither a run nor an undo. Returns whether it was changed."""
    try:
        ConfigMap(cluster, namespace, SIZES, "the sizes of resized workloads").change(how)
    except (ClusterError, ConfigurationError) as error:
        log.warning("kept sizes stay as they were: %s", error)
        return False
    return True


def _scope(plan: Plan) -> Scope:
    return Scope(plan.eligible, plan.scope_digest)


def acting_on(
    session: PlanSession, plan: Plan, context: RunContext, gate: ActionGate, prices: Prices
) -> ApplySession:
    """The session that carries out a plan."""
    policy = session.policy.policy
    watch = UseSincePlan(
        session.signal, session.prometheus.now, plan, policy=policy, own=context.state_namespace
    )
    shared = {field.name: getattr(context, field.name) for field in dataclasses.fields(context)}
    return ApplySession(
        **shared,
        watch=watch,
        policy=policy,
        gate=gate,
        memory=session.memory,
        rates=rates_of(plan, prices),
        currency=prices.currency,
    )


def steps(
    acting: ApplySession, plan: Plan, decisions: Sequence[Decision], deadline: Deadline
) -> Iterator[Outcome]:
    """Every outcome of some decisions of a plan as it becomes known, and then the effect of each."""
    done, refusing, fleet = [], set[str](), plan.fleet
    if fleet is not None:
        clear_deletion_costs(fleet, acting)
    for decision, outcome in carry_out(decisions, acting, is_stopped=deadline.is_stopped):
        yield outcome
        if outcome.result is Result.DONE and decision.action is not Action.NOTICE:
            done.append((decision, outcome))
        if outcome.result in NOT_MADE and decision.wanted_by:
            refusing.add(decision.workload.ref.namespace)
    try_others(plan, refusing, acting)
    if fleet is None:
        return
    # A workload that is stopped only for its change is followed in any case.
    followed = [one for one in done if deadline.span_s or pause_for(one[0].workload, one[0].finding.proposal)]
    yield from verify(followed, fleet, acting, deadline)
