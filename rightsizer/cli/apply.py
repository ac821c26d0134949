"""`gpu-rightsizer apply`: show the plan, ask, and do what the policy's rules enforce."""

import argparse
import pathlib
from collections.abc import Sequence

from rightsizer.apply import Session as ApplySession
from rightsizer.apply import carry_out, skipped
from rightsizer.cli.options import wants_colour
from rightsizer.cli.session import Interrupts, Session, confirmed, require_answer, utc_now
from rightsizer.cli.telling import Telling, require_writable
from rightsizer.errors import ConfigurationError, RequestRefused
from rightsizer.look import Watch
from rightsizer.model import Action, Decision, Outcome, Plan, Result
from rightsizer.report.approvals import Approval, read_approvals
from rightsizer.report.table import plan_text
from rightsizer.report.words import count

_NOT_THERE = "no workload of its UID holds GPUs here: it is gone or stopped, or the plan is another cluster's"

FAILED = frozenset({Result.REFUSED, Result.UNKNOWN, Result.SKIPPED})


def run(arguments: argparse.Namespace) -> int:
    """Plan, ask, act, tell."""
    approvals = _approvals(arguments.plan)
    require_answer(arguments)
    require_writable(arguments.save)
    session = Session(arguments)
    telling = Telling(arguments, session.run, undo=f"gpu-rightsizer undo --run {session.run}")
    plan = session.observe()
    decisions, lapsed = _approved(plan, approvals)
    approved = None if approvals is None else decisions
    colour = wants_colour(arguments, telling.people)
    telling.say(plan_text(plan, *session.account(plan), colour=colour, approved=approved))
    for outcome in lapsed:
        telling.tell(outcome)
    if decisions:
        _require_state_namespace(session, decisions, arguments.state_namespace)
        gpus = count(sum(decision.workload.gpus for decision in decisions))
        if not confirmed(arguments, f"Stop {count(len(decisions), 'workload')}, freeing {gpus}?"):
            telling.say("Nothing was changed.\n")
            return 0
    _act(_acting(session, plan, arguments.state_namespace), decisions, telling)
    return 1 if any(outcome.result in FAILED for outcome in telling.outcomes) else 0


def _approvals(path: str | None) -> Sequence[Approval] | None:
    if path is None:
        return None
    try:
        text = pathlib.Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--plan {path}: cannot be read: {error}") from error
    return read_approvals(text, source=path)


def _approved(
    plan: Plan, approvals: Sequence[Approval] | None
) -> tuple[Sequence[Decision], Sequence[Outcome]]:
    """The decisions to carry out, and outcomes for approvals that no longer fit what is there."""
    if approvals is None:
        return plan.enforced, ()
    by_uid = {decision.workload.ref.uid: decision for decision in plan.decisions}
    kept, lapsed = [], []
    for approval in approvals:
        decision = by_uid.get(approval.ref.uid)
        if decision is None:
            lapsed.append(_lapsed(approval, Result.GONE, _NOT_THERE))
        elif decision.is_enforced and Approval.of(decision) == approval:
            kept.append(decision)
        else:
            words = f"not as in the saved plan any more: now {decision.verdict}, or changed since; left alone"
            lapsed.append(_lapsed(approval, Result.CHANGED, words))
    order = {decision.workload.ref: place for place, decision in enumerate(plan.decisions)}
    return sorted(kept, key=lambda decision: order[decision.workload.ref]), lapsed


def _lapsed(approval: Approval, result: Result, words: str) -> Outcome:
    return Outcome(approval.ref, approval.action or "", result, words, 0, utc_now())


def _require_state_namespace(session: Session, decisions: Sequence[Decision], name: str) -> None:
    """Evicting needs a place for the manifests; that it is missing is better known before anything is changed."""
    if not any(decision.action is Action.EVICT for decision in decisions):
        return
    try:
        session.cluster.get_object(f"/api/v1/namespaces/{name}")
    except RequestRefused as refused:
        raise ConfigurationError(
            f"--state-namespace {name}: manifests of evicted pods are kept there, but: {refused.detail}; "
            f"create it with: kubectl create namespace {name}"
        ) from refused


def _acting(session: Session, plan: Plan, state_namespace: str) -> ApplySession:
    policy = session.policy.policy
    watch = Watch(session.signal, session.prometheus.now, plan, policy=policy, own=state_namespace)
    return ApplySession(
        cluster=session.cluster,
        watch=watch,
        policy=policy,
        run=session.run,
        state_namespace=state_namespace,
        clock=utc_now,
    )


def _act(acting: ApplySession, decisions: Sequence[Decision], telling: Telling) -> None:
    pending = [skipped(decision, acting, "not attempted: the run was interrupted") for decision in decisions]
    with Interrupts() as interrupts:
        telling.follow(carry_out(decisions, acting, is_stopped=lambda: interrupts.happened), pending)
