"""`gpu-rightsizer apply`: show the plan, ask, and do what the policy's rules enforce."""

import argparse
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from rightsizer.apply import Session as ApplySession
from rightsizer.apply import carry_out
from rightsizer.cli.options import wants_colour
from rightsizer.cli.session import Interrupts, Session, confirmed, require_answer, tell, utc_now
from rightsizer.errors import ConfigurationError, RequestRefused
from rightsizer.loop import Observed
from rightsizer.model import Action, Decision, Outcome, Plan, Result
from rightsizer.report.document import Approval, read_approvals
from rightsizer.report.table import plan_text
from rightsizer.report.words import count

FAILED = frozenset({Result.REFUSED, Result.UNKNOWN, Result.SKIPPED})


def run(arguments: argparse.Namespace) -> int:
    """Plan, ask, act, tell."""
    approvals = _approvals(arguments.plan)
    require_answer(arguments)
    people: TextIO = sys.stdout if arguments.output == "table" else sys.stderr
    session = Session(arguments)
    observed = session.observe()
    people.write(plan_text(observed.plan, colour=wants_colour(arguments, people)))
    decisions, lapsed = _approved(observed.plan, approvals)
    if decisions:
        _require_state_namespace(session, decisions, arguments.state_namespace)
        gpus = count(sum(decision.workload.gpus for decision in decisions))
        if not confirmed(arguments, f"Stop {count(len(decisions), 'workload')}, freeing {gpus}?"):
            people.write("Nothing was changed.\n")
            return 0
    outcomes = [*lapsed, *_act(session, observed, decisions, arguments)]
    tell(outcomes, session.run, arguments, undo=f"gpu-rightsizer undo --run {session.run}")
    return 1 if any(outcome.result in FAILED for outcome in outcomes) else 0


def _approvals(path: str | None) -> Mapping[str, Approval] | None:
    if path is None:
        return None
    try:
        text = pathlib.Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--plan {path}: cannot be read: {error}") from error
    return read_approvals(text, source=path)


def _approved(
    plan: Plan, approvals: Mapping[str, Approval] | None
) -> tuple[Sequence[Decision], Sequence[Outcome]]:
    """The decisions to carry out, and outcomes for approvals that no longer fit what is there."""
    if approvals is None:
        return plan.enforced, ()
    by_uid = {decision.workload.ref.uid: decision for decision in plan.decisions}
    kept, lapsed = [], []
    for uid, approval in approvals.items():
        decision = by_uid.get(uid)
        if decision is not None and decision.is_enforced and Approval.of(decision) == approval:
            kept.append(decision)
        elif decision is not None:
            words = f"not as in the saved plan any more: now {decision.verdict}, or changed since; left alone"
            lapsed.append(
                Outcome(decision.workload.ref, approval.action or "", Result.CHANGED, words, 0, utc_now())
            )
    order = {decision.workload.ref: place for place, decision in enumerate(plan.decisions)}
    return sorted(kept, key=lambda decision: order[decision.workload.ref]), lapsed


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


def _act(
    session: Session, observed: Observed, decisions: Sequence[Decision], arguments: argparse.Namespace
) -> Iterator[Outcome]:
    acting = ApplySession(
        cluster=session.cluster,
        signal=session.signal,
        policy=session.policy.policy,
        usages=observed.usages,
        run=session.run,
        state_namespace=arguments.state_namespace,
        clock=utc_now,
    )
    with Interrupts() as interrupts:
        for outcome in carry_out(decisions, acting):
            yield outcome
            if interrupts.happened:
                return
