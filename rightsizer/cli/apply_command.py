"""`gpu-rightsizer apply`: reconcile, show the plan, ask, make the changes that rules enforce, and verify them."""

import argparse
import contextlib
import dataclasses
import pathlib
import secrets
import time
from collections.abc import Sequence

from rightsizer.cli.connection import span_of
from rightsizer.cli.cycle import (
    acting_on,
    counted,
    follow_scope,
    found_open,
    keep_sizes,
    lease_of,
    planned,
    require_state,
    run_context_of,
    steps,
    tell_people,
)
from rightsizer.cli.filters import chosen_of, selection_of
from rightsizer.cli.ledger_recorder import recorder_of
from rightsizer.cli.messages import note, progress
from rightsizer.cli.options import wants_colour, width_of
from rightsizer.cli.plan_session import Interrupts, PlanSession, confirmed, require_answer, utc_now
from rightsizer.cli.reporter import OutcomeReporter, require_writable
from rightsizer.errors import ConfigurationError
from rightsizer.execute.control_state import ActionGate
from rightsizer.execute.executor import skipped
from rightsizer.execute.reconcile import (
    ReconcilePolicy,
    Reconciliation,
    find_reconciliations,
    find_stops_without_effect,
    make_reconciliations,
)
from rightsizer.execute.run_context import ApplySession, Deadline, RunContext
from rightsizer.kube.lease import LeaderElector
from rightsizer.model import Action, ClusterName, Decision, Outcome, Plan, ReconcileAction, Result
from rightsizer.report.approvals import Approval, SavedPlan, read_saved_plan
from rightsizer.report.rows import rates_of
from rightsizer.report.table import changes_text
from rightsizer.report.terminal import Paint
from rightsizer.text import count

_NOT_THERE = "no workload of its UID holds GPUs here: it is gone or stopped, or the plan is another cluster's"

FAILED = frozenset({Result.REFUSED, Result.UNKNOWN, Result.SKIPPED})


def run(arguments: argparse.Namespace) -> int:
    """Reconcile, plan, ask, act, verify, tell."""
    saved = _saved_plan(arguments.plan)
    approvals = saved.approvals if saved else None
    selection = selection_of(arguments)
    span_s = span_of("--verify-for", arguments.verify_for).total_seconds()
    require_answer(arguments)
    require_writable(arguments.save)
    session = PlanSession(arguments)
    _name_other_cluster(arguments.plan, saved, session.cluster.name)
    recorder = recorder_of(arguments, session.cluster.name)
    undo = f"gpu-rightsizer undo --run {session.run}"
    reporter = OutcomeReporter(arguments, session.run, undo=undo, cluster=session.cluster.name)
    with contextlib.ExitStack() as stack:
        context = run_context_of(arguments, session, stack)
        gate = ActionGate(session.store, session.policy.policy.breaker, session.run, session.clock)
        require_state(session)
        lease = lease_of(arguments, secrets.token_hex(4))
        stack.enter_context(LeaderElector(lease, is_optional=False, report=note))
        session.cluster.before_writing = lease.require_held
        with counted(gate):
            guard = ReconcilePolicy(session.policy.policy, gate)
            reconciler = _Reconciler(context, arguments, reporter, guard)
            reconciler.make(find_reconciliations(context))
            plan = reconciler.planned(session, gate)
            shown = chosen_of(plan, selection)
            decisions, lapsed = _approved(shown, approvals)
            for outcome in (one for one in lapsed if selection.admits(one.ref)):
                reporter.tell(outcome)
            paint = Paint(colour=wants_colour(arguments, reporter.people), width=width_of(reporter.people))
            costs = session.account(shown)
            if recorder is not None:
                recorder.plan(plan, costs[1])
            reporter.value(rates_of(shown, costs[1]), costs[1].currency)
            reporter.say(changes_text(shown, costs, decisions, paint, is_saved=approvals is not None))
            if decisions and not confirmed(arguments, session.cluster.name, _question(decisions)):
                reporter.say("Nothing was stopped.\n" if reporter.outcomes else "Nothing was changed.\n")
                if reporter.outcomes:
                    reporter.end()
                return 0
            follow_scope(session, plan)
            keep_sizes(session, plan)
            acting = acting_on(session, plan, context, gate, costs[1])
            try:
                _act(acting, plan, decisions, reporter, span_s=span_s)
            finally:
                tell_people(session, reporter.outcomes)
                if recorder is not None:
                    recorder.outcomes(plan, costs[1], reporter.outcomes)
    has_failed = any(outcome.result in FAILED for outcome in reporter.outcomes)
    return 1 if found_open(session) or has_failed else 0


def _question(decisions: Sequence[Decision]) -> str:
    """The question before changes are made; a notice frees nothing yet."""
    stops = all(one.finding.proposal is None and one.action is not Action.NOTICE for one in decisions)
    what = f"{'Stop' if stops else 'Change'} {count(len(decisions), 'workload')}"
    freed = sum(decision.frees for decision in decisions)
    return f"{what}, freeing {count(freed)}?" if freed >= 0 else f"{what}, adding {count(-freed)}?"


@dataclasses.dataclass(frozen=True, slots=True)
class _Reconciler:
    """Reconciles earlier changes, and asks before any is rolled back."""

    context: RunContext
    arguments: argparse.Namespace
    reporter: OutcomeReporter
    guard: ReconcilePolicy

    def planned(self, session: PlanSession, gate: ActionGate) -> Plan:
        """The plan, once stops without effect, which its fleet shows, are rolled back."""
        with self.reporter.whole(), progress():
            plan = planned(session, gate, accept_growth=self.arguments.accept_growth)
        self.make(find_stops_without_effect(plan.fleet, self.context))
        return plan

    def make(self, reconciliations: Sequence[Reconciliation]) -> None:
        """Make and report those that are agreed to."""
        rollbacks = [due for due in reconciliations if due.action is ReconcileAction.ROLLBACK]
        if rollbacks:
            names = ", ".join(f"{due.ref} ({due.words})" for due in rollbacks)
            question = f"Roll back earlier changes: {names}?"
            if not confirmed(self.arguments, self.context.cluster.name, question):
                reconciliations = [due for due in reconciliations if due not in rollbacks]
        with self.reporter.whole(), Interrupts() as interrupts:
            for outcome in make_reconciliations(reconciliations, self.context, self.guard):
                self.reporter.tell(outcome)
                if interrupts.happened:
                    raise KeyboardInterrupt


def _saved_plan(path: str | None) -> SavedPlan | None:
    if path is None:
        return None
    try:
        text = pathlib.Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f'--plan "{path}": cannot be read: {problem}') from error
    return read_saved_plan(text, source=path)


def _name_other_cluster(path: str | None, saved: SavedPlan | None, here: ClusterName) -> None:
    """Say where the saved plan was made, if not here: one cluster may have several addresses, so it is no error."""
    if saved and saved.cluster and saved.cluster.server != here.server:
        note(f"{path} is of {saved.cluster.words}; its workloads are looked for, by UID, in {here.words}")


def _approved(
    plan: Plan, approvals: Sequence[Approval] | None
) -> tuple[Sequence[Decision], Sequence[Outcome]]:
    """The decisions to carry out, and outcomes for approvals that no longer match the plan."""
    if approvals is None:
        return plan.enforced, ()
    by_uid = {decision.workload.ref.uid: decision for decision in plan.decisions}
    kept, lapsed = [], []
    for approval in approvals:
        decision = by_uid.get(approval.ref.uid)
        if decision is None:
            lapsed.append(_lapsed(approval, Result.CHANGED, _NOT_THERE))
        elif decision.is_enforced and Approval.of(decision) == approval:
            kept.append(decision)
        else:
            words = f"not as in the saved plan any more: now {decision.verdict}, or changed since; left alone"
            lapsed.append(_lapsed(approval, Result.CHANGED, words))
    order = {decision.workload.ref: place for place, decision in enumerate(plan.decisions)}
    return sorted(kept, key=lambda decision: order[decision.workload.ref]), lapsed


def _lapsed(approval: Approval, result: Result, words: str) -> Outcome:
    return Outcome(approval.ref, approval.action or "", result, words, 0, utc_now())


def _act(
    acting: ApplySession,
    plan: Plan,
    decisions: Sequence[Decision],
    reporter: OutcomeReporter,
    *,
    span_s: float,
) -> None:
    pending = [skipped(one, acting, "not attempted: the run was interrupted") for one in decisions]
    with Interrupts() as interrupts:
        deadline = Deadline(span_s, time.monotonic, time.sleep, lambda: interrupts.happened)
        reporter.follow(steps(acting, plan, decisions, deadline), pending)
