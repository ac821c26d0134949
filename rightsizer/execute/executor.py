"""Makes all changes: each decision is revalidated (preflight), tried by a dry run, written, and announced by an Event.

One PATCH makes a change together with its undo record. Patches and evictions carry the UID and the resourceVersion of
the object that preflight read, so no other change can come in between. No write is ever sent twice: if its answer is
lost, the object is read back. Several victims for one pending pod or one gang are all tried before the first of them is
written.
"""

import contextlib
import dataclasses
import functools
import http
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rightsizer.changes.memory import change_key, with_remembered_changes
from rightsizer.changes.record_codec import read_history
from rightsizer.errors import (
    ClusterError,
    ClusterUnreachable,
    ConfigurationError,
    LeaseLost,
    PrometheusError,
    RequestRefused,
    RightsizerError,
    Throttled,
)
from rightsizer.execute.change_log import log_intent, logged
from rightsizer.execute.deletion_cost import set_deletion_cost
from rightsizer.execute.evict import evict
from rightsizer.execute.patch import change, recorded_on, send_stop_command
from rightsizer.execute.preflight import is_pending, read_workload
from rightsizer.execute.run_context import (
    AbortRun,
    ApplySession,
    WriteResultUnknown,
    log_cluster_error,
    mutating_request,
)
from rightsizer.kinds import path_of, row_of
from rightsizer.kinds.kind import Kind
from rightsizer.kinds.notices import answers, notice_patch, parse_notice
from rightsizer.model import (
    Action,
    BlockerCode,
    ChangeOutcome,
    ChangeRecord,
    Decision,
    ObjectRef,
    Outcome,
    Plan,
    Result,
    Workload,
)
from rightsizer.planning.pending_demand import served_together, without_demand
from rightsizer.planning.revalidate import going, objections
from rightsizer.report.events import event_of

log = logging.getLogger(__name__)
_KIND_GONE = "the server could not find the requested resource"
_MOST_TRIED = 50  # dry runs of one cycle
_ATTEMPTS = 3  # its own controller may write between preflight and the write


def carry_out(
    decisions: Iterable[Decision], session: ApplySession, *, is_stopped: Callable[[], bool] = lambda: False
) -> Iterator[tuple[Decision, Outcome]]:
    """Carry out the enforced decisions in order, with the outcome of each; once `is_stopped`, the rest is skipped.

    The next plan chooses others in place of what was not made.
    """
    enforced = [decision for decision in decisions if decision.is_enforced]
    together = served_together([decision for decision in enforced if decision.action is not Action.NOTICE])
    tried: _Tried = {}
    reason = ""  # why the rest is skipped
    for decision in enforced:
        if not reason and is_stopped():
            reason = "not attempted: the run was interrupted"
        if reason:
            outcome = skipped(decision, session, reason)
        else:
            beside = together.get(decision.workload.ref, ())
            refusal = functools.partial(_refusal, decision, beside, session, tried)
            outcome, reason = _step(decision, session, refusal)
        logged(outcome, session.run)
        if outcome.result not in {*NOT_MADE, Result.SKIPPED}:
            problem = _counting_problem(outcome, session)
            reason = reason or problem
        yield decision, outcome


def try_others(plan: Plan, namespaces: Collection[str], session: ApplySession) -> None:
    """Try by dry runs what else may go for pending pods in these namespaces: what refuses gets its cooldown now.

    So pods wait one cycle, and not one for each workload that refuses.
    """
    blocked = (
        without_demand(decision)
        for decision in plan.decisions
        if decision.workload.ref.namespace in namespaces
        and any(block.code is BlockerCode.ONLY_FOR_PENDING_PODS for block in decision.blockers)
    )
    for decision in itertools.islice((decision for decision in blocked if decision.is_enforced), _MOST_TRIED):
        _dry_run(decision, session)


NOT_MADE = frozenset({Result.BLOCKED, Result.CHANGED})
"""Results without a write, so the budgets have room for another change."""


def skipped(decision: Decision, session: ApplySession, reason: str) -> Outcome:
    """The outcome of a decision that was not attempted."""
    return session.outcome(decision, Result.SKIPPED, reason)


_Tried = dict[ObjectRef, Outcome | None]
"""Refusals by the API server of changes that are made together; None where a change is not refused."""


def _refusal(
    decision: Decision, together: Sequence[Decision], session: ApplySession, tried: _Tried
) -> Outcome | None:
    """Why a decision is not carried out: the API server refuses it, or another one for the same pending pods."""
    if len(together) < 2:  # noqa: PLR2004 - preflight and its own dry run are enough
        return None
    if decision.workload.ref not in tried:
        tried |= {other.workload.ref: _dry_run(other, session) for other in together}
    if (own := tried[decision.workload.ref]) is not None:
        return own
    for other in together:
        if (refused := tried[other.workload.ref]) is not None:
            words = f"not attempted: {other.serves[0]} also needs {other.workload.ref}: {refused.detail}"
            return session.outcome(decision, Result.BLOCKED, words)
    return None


def _dry_run(decision: Decision, session: ApplySession) -> Outcome | None:
    """The outcome if the API server refuses a change; what changed since the plan is left to preflight."""
    row = row_of(decision.workload)
    dry = dataclasses.replace(session, is_dry_run=True)
    try:
        if row is not None:
            _writer(decision, row)(decision, row, decision.workload, dry)
    except RequestRefused as refused:
        with contextlib.suppress(AbortRun):  # the write will meet it, too
            outcome = _refused(decision, session, refused)
            return None if outcome.result is Result.CHANGED else outcome
    except ValueError as error:
        return session.outcome(decision, Result.BLOCKED, str(error))
    except RightsizerError as error:
        log.debug("dry run for %s: %s", decision.workload.ref, error)
    return None


def _step(
    decision: Decision, session: ApplySession, refusal: Callable[[], Outcome | None]
) -> tuple[Outcome, str]:
    """Carry out a decision; its outcome, and the reason if the run must stop."""
    try:
        blocked = session.gate.blocked_reason(decision.workload.ref.namespace, decision.action)
        if blocked:
            return session.outcome(decision, Result.BLOCKED, blocked), ""
        refused = refusal()
    except RightsizerError as error:
        reason = f"not attempted: {error}"
        return skipped(decision, session, reason), reason
    why, action = "; ".join(decision.finding.words), decision.action.value if decision.action else ""
    log_intent(session.run, decision.workload.ref, action, why, rule=decision.rule, gpus=decision.frees)
    try:
        return refused or _act(decision, session), ""
    except AbortRun as stop:
        return stop.outcome, stop.reason


def _counting_problem(outcome: Outcome, session: ApplySession) -> str:
    """Count an outcome for the breaker; the reason if that fails, so that the run must stop."""
    try:
        session.gate.note(outcome)
    except RightsizerError as error:
        log.warning("after %s of %s: %s", outcome.action, outcome.ref, error)
        return f"not attempted: {error}"
    return ""


def _act(decision: Decision, session: ApplySession) -> Outcome:
    """One decision, from preflight to the Event."""
    row = row_of(decision.workload)
    if row is None:  # decide gives no action to an unknown kind
        return session.outcome(decision, Result.BLOCKED, "its kind is unknown")
    try:
        outcome = _attempt(decision, row, session)
    except RequestRefused as refused:
        return _refused(decision, session, refused)
    except WriteResultUnknown as lost:
        outcome = _read_back(decision, row, session, lost)
    except (PrometheusError, ConfigurationError, ClusterUnreachable, LeaseLost, Throttled) as error:
        reason = f"not attempted: {error}"
        raise AbortRun(skipped(decision, session, reason), reason) from error
    except ClusterError as error:
        return session.outcome(decision, Result.REFUSED, str(error))
    if outcome.result is Result.DONE:
        with log_cluster_error(f"no Event on {decision.workload.ref}"):
            session.cluster.create(*event_of(decision, row, run=session.run, at=session.clock()))
    return outcome


def _attempt(decision: Decision, row: Kind, session: ApplySession) -> Outcome:
    """Revalidate and write; retry after a conflict, such as with its controller's status update."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return _revalidate_and_write(decision, row, session)
        except RequestRefused as refused:
            if refused.code != http.HTTPStatus.CONFLICT:
                raise
    return _revalidate_and_write(decision, row, session)


def _revalidate_and_write(decision: Decision, row: Kind, session: ApplySession) -> Outcome:
    """Prometheus is queried first, to keep the time between reading the objects and the write short."""
    use = session.watch.use(decision)
    # New pods may be on any node, beside pods of any namespace that came since the plan.
    proposal = decision.finding.proposal
    is_whole = proposal is not None and proposal.replicas is None
    ref, queues = decision.workload.ref, session.policy.queues
    fresh, fleet = read_workload(ref, session.cluster, is_whole=is_whole, queues=queues)
    if fresh is None:
        return session.outcome(decision, Result.CHANGED, "it holds no GPUs anymore")
    if not is_whole:
        fleet = session.watch.with_neighbours(fleet, fresh.ref.namespace)
    recorded = (*session.watch.recorded_changes, *fleet.changes)
    once = {change_key(found.record.run, found.ref): found for found in recorded}
    fleet = dataclasses.replace(fleet, changes=tuple(once.values()))
    fleet = with_remembered_changes(fleet, session.memory.of(fresh))
    fresh = next(workload for workload in fleet.workloads if workload.ref == fresh.ref)
    evaluator = session.evaluator(fleet, use.at)
    if blockers := list(objections(decision, fresh, use, evaluator)):
        return session.outcome(decision, Result.CHANGED, "; ".join(blocker.message for blocker in blockers))
    if decision.wanted_by and not any(is_pending(pod, session.cluster) for pod in decision.wanted_by):
        return session.outcome(
            decision, Result.CHANGED, "none of the pending pods that needed it is pending anymore"
        )
    try:
        with set_deletion_cost(going(decision, fresh, use, evaluator), session):
            detail = _writer(decision, row)(decision, row, fresh, session)
    except ValueError as error:  # nothing was sent: no error, as for a disruption budget
        return session.outcome(decision, Result.BLOCKED, str(error))
    return session.outcome(decision, Result.DONE, detail)


_Writer = Callable[[Decision, Kind, Workload, ApplySession], str]


def _writer(decision: Decision, row: Kind) -> _Writer:
    if decision.action is Action.NOTICE:
        return _notify
    is_pod = row.stop is not None and row.stop.field is None
    return evict if is_pod else change


def _notify(decision: Decision, row: Kind, fresh: Workload, session: ApplySession) -> str:
    """Put a notice on a workload as preflight read it."""
    path = path_of(fresh.ref, row)
    patch = notice_patch(decision, fresh, run=session.run, at=session.clock())
    session.cluster.patch(path, patch, dry_run=True)
    with mutating_request():
        session.cluster.patch(path, patch)
    told = answers(fresh.ref, decision.due or session.clock())
    words = f"notice given: {decision.announced} from {decision.due:%Y-%m-%d %H:%M} UTC"
    risk = f"lost then: {decision.lost}" if decision.gpu_hours_at_risk else ""
    return "; ".join(filter(None, (words, risk, told)))


def _refused(decision: Decision, session: ApplySession, refused: RequestRefused) -> Outcome:
    """Turn an error Status into the outcome of this decision, and into the end of the run if it concerns all."""
    match refused.code:
        case http.HTTPStatus.NOT_FOUND if gone := _gone(decision.workload.ref, refused.detail):
            return session.outcome(decision, Result.CHANGED, gone)
        case _ if refused.is_out_of_policy:
            outcome = session.outcome(decision, Result.REFUSED, str(refused))
            return dataclasses.replace(outcome, is_out_of_policy=True)
        case _ if refused.is_about_object:
            _keep_rejection(decision, session)
            return session.outcome(decision, Result.BLOCKED, f"the object allows no such write: {refused}")
        case http.HTTPStatus.CONFLICT:
            return session.outcome(
                decision, Result.CHANGED, f"somebody changed it meanwhile: {refused.detail}"
            )
        case _ if refused.is_by_disruption_budget:
            return session.outcome(decision, Result.BLOCKED, refused.detail)
        case http.HTTPStatus.TOO_MANY_REQUESTS | http.HTTPStatus.UNAUTHORIZED:
            outcome = session.outcome(decision, Result.REFUSED, str(refused))
            raise AbortRun(outcome, _since_then(outcome)) from refused
        case _:
            return session.outcome(decision, Result.REFUSED, str(refused))


def _keep_rejection(decision: Decision, session: ApplySession) -> None:
    """Anybody who may edit an object can make it refuse writes. It gets a cooldown and counts as no error."""
    action = decision.announced or decision.action or ""
    at = session.clock()
    record = ChangeRecord(at, session.run, action, by=session.instance, end=ChangeOutcome.REJECTED, ended=at)
    with log_cluster_error(f"no cooldown of {decision.workload.ref}"), contextlib.suppress(ValueError):
        session.memory.keep_rejection(decision.workload, record)


def _gone(ref: ObjectRef, detail: str) -> str:
    """The missing object in a 404's message; empty if it is another object."""
    reasons = {
        _KIND_GONE: "its kind is not served anymore",
        f'namespaces "{ref.namespace}" not found': "its namespace is gone",
        f'"{ref.name}"': "it is gone already",
    }
    return next((words for text, words in reasons.items() if text in detail), "")


def _read_back(decision: Decision, row: Kind, session: ApplySession, lost: WriteResultUnknown) -> Outcome:
    """The answer to the write was lost: read back whether it took effect."""
    is_notice = decision.action is Action.NOTICE
    ref, there = (decision.workload.ref, row) if is_notice else recorded_on(decision, row)
    try:
        obj = session.cluster.get_object(path_of(ref, there))
    except RequestRefused as refused:
        if refused.code == http.HTTPStatus.NOT_FOUND and _writer(decision, row) is evict:
            return session.outcome(decision, Result.DONE, f"evicted, though the answer was lost: {lost}")
        return _refused(decision, session, refused)
    except ClusterError as again:
        words = f"it is unknown whether it took effect, check the object: {lost}; then: {again}"
        outcome = session.outcome(decision, Result.UNKNOWN, words)
        raise AbortRun(outcome, _since_then(outcome)) from again
    if _is_in_effect(decision, obj, there, session):
        if there.stop is not None and there.stop.command is not None and not is_notice:
            return _command_again(decision, there, session, lost)
        return session.outcome(decision, Result.DONE, f"done, though the answer was lost: {lost}")
    return session.outcome(decision, Result.REFUSED, f"it had not taken effect by the read-back: {lost}")


def _command_again(decision: Decision, row: Kind, session: ApplySession, lost: WriteResultUnknown) -> Outcome:
    """The record is there; creating the command again shows whether it exists."""
    try:
        send_stop_command(decision.workload.ref, row, session)
    except RequestRefused as refused:
        return _refused(decision, session, refused)
    except WriteResultUnknown as again:
        words = f"it is unknown whether it took effect, check the object: {lost}; then: {again}"
        outcome = session.outcome(decision, Result.UNKNOWN, words)
        raise AbortRun(outcome, _since_then(outcome)) from again
    return session.outcome(decision, Result.DONE, f"done, though the answer was lost: {lost}")


def _is_in_effect(decision: Decision, obj: Mapping[str, Any], row: Kind, session: ApplySession) -> bool:
    annotations = obj["metadata"].get("annotations") or {}
    if decision.action is Action.NOTICE:
        notice = parse_notice(annotations)
        return notice is not None and notice.run == session.run
    if _writer(decision, row) is evict:
        return _is_leaving(obj, decision.workload.ref)
    action = decision.action.value if decision.action else ""
    # Not by the record: a scale-up that undoes the whole change removes it.
    return any((record.run, record.action) == (session.run, action) for record in read_history(annotations))


def _is_leaving(pod: Mapping[str, Any], ref: ObjectRef) -> bool:
    """Whether the pod is terminating, or replaced by another of its name."""
    return bool(pod["metadata"].get("deletionTimestamp")) or pod["metadata"]["uid"] != ref.uid


def _since_then(outcome: Outcome) -> str:
    return f"not attempted after an earlier failure: {outcome.detail}"
