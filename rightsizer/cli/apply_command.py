"""`gpu-rightsizer apply`: reconcile, show the plan, ask, make the changes that rules enforce, and verify them."""

import contextlib
import pathlib
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from rightsizer.cli.connection import span_of
from rightsizer.cli.cycle import ActingCycle, found_open, lease_of, require_state, run_context_of
from rightsizer.cli.filters import chosen_of, selection_of
from rightsizer.cli.flags import ApplyOptions
from rightsizer.cli.messages import note
from rightsizer.cli.options import wants_colour, width_of
from rightsizer.cli.plan_session import Interrupts, PlanSession, confirmed, require_answer, utc_now
from rightsizer.cli.reporter import OutcomeReporter, require_writable
from rightsizer.errors import ConfigurationError
from rightsizer.execute.reconcile import Reconciliation
from rightsizer.execute.run_context import Deadline
from rightsizer.kube.lease import LeaderElector
from rightsizer.model import Action, ClusterName, Decision, Outcome, Plan, Result
from rightsizer.planning.cost_summary import cost_summary_of
from rightsizer.prices import Prices
from rightsizer.report.approvals import Approval, SavedPlan, read_saved_plan
from rightsizer.report.rows import rates_of
from rightsizer.report.table import changes_text
from rightsizer.report.terminal import Paint
from rightsizer.text import count

_NOT_THERE = "no workload of its UID holds GPUs here: it is gone or stopped, or the plan is another cluster's"

FAILED = frozenset({Result.REFUSED, Result.UNKNOWN, Result.SKIPPED})


def run(arguments: ApplyOptions) -> int:
    """One cycle, shown to a person, who is asked before anything is changed."""
    saved = _saved_plan(arguments.plan)
    verify_s = span_of("--verify-for", arguments.verify_for).total_seconds()
    require_answer(arguments)
    require_writable(arguments.save)
    session = PlanSession(arguments)
    _name_other_cluster(arguments.plan, saved, session.cluster.name)
    recorder = arguments.ledger_parts.recorder(arguments, session.cluster.name)
    undo = f"gpu-rightsizer undo --run {session.run}"
    reporter = OutcomeReporter(arguments, session.run, undo=undo, cluster=session.cluster.name)
    person = _Person(arguments, session, reporter, saved, verify_s)
    with contextlib.ExitStack() as stack:
        context = run_context_of(session)
        require_state(session)
        lease = lease_of(arguments, secrets.token_hex(4))
        stack.enter_context(LeaderElector(lease, is_optional=False, report=note))
        session.cluster.before_writing = lease.require_held
        with reporter.whole():
            ActingCycle(session, context, person, recorder, accept_growth=arguments.accept_growth).run()
    has_failed = any(outcome.result in FAILED for outcome in reporter.outcomes)
    return 1 if person.has_agreed and (found_open(session) or has_failed) else 0


class _Person:
    """Somebody at a terminal, or a script that said --yes.

    Attributes:
        has_agreed: Whether nothing was refused.
    """

    def __init__(
        self,
        arguments: ApplyOptions,
        session: PlanSession,
        reporter: OutcomeReporter,
        saved: SavedPlan | None,
        verify_s: float,
    ) -> None:
        self.outcomes = reporter.outcomes
        self.has_agreed = True
        self._arguments = arguments
        self._cluster = session.cluster.name
        self._reporter = reporter
        self._selection = selection_of(arguments)
        self._approvals = saved.approvals if saved else None
        self._verify_s = verify_s

    def agrees(self, rollbacks: Sequence[Reconciliation]) -> bool:
        """Whether the person agrees to them."""
        names = ", ".join(f"{due.ref} ({due.words})" for due in rollbacks)
        return confirmed(self._arguments, self._cluster, f"Roll back earlier changes: {names}?")

    def reconciled(self, outcomes: Iterable[Outcome]) -> None:
        """Report each; Ctrl-C ends the cycle after the one in flight."""
        with Interrupts() as interrupts:
            for outcome in outcomes:
                self._reporter.tell(outcome)
                if interrupts.happened:
                    raise KeyboardInterrupt

    def chosen(self, plan: Plan, prices: Prices) -> Sequence[Decision] | None:
        """Those of the saved plan, or all that rules enforce, if the person agrees."""
        reporter, selection = self._reporter, self._selection
        shown = chosen_of(plan, selection)
        decisions, lapsed = _approved(shown, self._approvals)
        for outcome in (one for one in lapsed if selection.admits(one.ref)):
            reporter.tell(outcome)
        paint = Paint(colour=wants_colour(self._arguments, reporter.people), width=width_of(reporter.people))
        costs = cost_summary_of(shown, prices), prices
        reporter.value(rates_of(shown, prices), prices.currency)
        reporter.say(changes_text(shown, costs, decisions, paint, is_saved=self._approvals is not None))
        self.has_agreed = not decisions or confirmed(self._arguments, self._cluster, _question(decisions))
        if self.has_agreed:
            return decisions
        reporter.say("Nothing was stopped.\n" if reporter.outcomes else "Nothing was changed.\n")
        if reporter.outcomes:
            reporter.end()
        return None

    def changed(self, steps: Callable[[Deadline], Iterator[Outcome]], pending: list[Outcome]) -> None:
        """Report each; Ctrl-C ends the run after the one in flight."""
        with Interrupts() as interrupts:
            deadline = Deadline(self._verify_s, time.monotonic, time.sleep, lambda: interrupts.happened)
            self._reporter.follow(steps(deadline), pending)


def _question(decisions: Sequence[Decision]) -> str:
    """The question before changes are made; a notice frees nothing yet."""
    stops = all(one.finding.proposal is None and one.action is not Action.NOTICE for one in decisions)
    what = f"{'Stop' if stops else 'Change'} {count(len(decisions), 'workload')}"
    freed = sum(decision.frees for decision in decisions)
    return f"{what}, freeing {count(freed)}?" if freed >= 0 else f"{what}, adding {count(-freed)}?"


def _saved_plan(path: pathlib.Path | None) -> SavedPlan | None:
    if path is None:
        return None
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f'--plan "{path}": cannot be read: {problem}') from error
    return read_saved_plan(text, source=str(path))


def _name_other_cluster(path: pathlib.Path | None, saved: SavedPlan | None, here: ClusterName) -> None:
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
