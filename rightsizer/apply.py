"""The one door for writes: each decision is looked at again, tried by the server (dry run), written, and told about.

One PATCH makes a change together with its undo record. Patches and evictions carry the UID and the resourceVersion of
the object that was looked at, so that nothing can come between the look and the write. No write is ever sent twice:
where its answer was lost, the object is read back.
"""

import base64
import contextlib
import dataclasses
import datetime
import http
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rightsizer.errors import (
    ClusterError,
    ClusterUnreachable,
    ConfigurationError,
    PrometheusError,
    RequestRefused,
)
from rightsizer.look import Watch, look_at
from rightsizer.model import Action, Decision, ObjectRef, Outcome, Result, Workload, WorkloadKind
from rightsizer.observe.cluster import Cluster
from rightsizer.observe.records import GPUS_ANNOTATION, MANIFEST_LABEL, POD_ANNOTATION, manifest_name
from rightsizer.policy.document import Policy
from rightsizer.policy.rules import Rulebook
from rightsizer.report.events import event_of
from rightsizer.validate import objections
from rightsizer.workloads import kind_of, path_of
from rightsizer.workloads.changes import (
    MANIFEST_TYPE,
    read_record,
    record_of,
    recreatable,
    stop_patch,
)
from rightsizer.workloads.notices import notice_patch, parse_notice

log = logging.getLogger(__name__)
_ATTEMPTS = 3  # at one workload, whose own controller may write between the look and the write


@dataclasses.dataclass(frozen=True, slots=True)
class Session:
    """All that one run needs to act.

    Attributes:
        watch: The fleet's use since the plan, by Prometheus's clock.
        state_namespace: Our own namespace; manifests of evicted pods are kept there.
        clock: The time now, aware, for records and Events; nothing is judged by it.
    """

    cluster: Cluster
    watch: Watch
    policy: Policy
    run: str
    state_namespace: str
    clock: Callable[[], datetime.datetime]


class _StopHere(Exception):  # noqa: N818 - a signal, not an error
    """Prometheus or the API server asks for quiet, knows us no longer, or cannot be reached: nothing more is sent."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        self.outcome = outcome
        self.reason = reason
        super().__init__(reason)


class _AnswerLost(Exception):  # noqa: N818 - a signal, not an error
    """The one request that makes a change was sent, and what became of it is not known."""


def carry_out(
    decisions: Iterable[Decision], session: Session, *, is_stopped: Callable[[], bool] = lambda: False
) -> Iterator[Outcome]:
    """Act on the enforced ones of the decisions, in order, telling each outcome as it is known.

    Args:
        decisions: As planned.
        session: What is needed to act.
        is_stopped: Asked before each decision; once true, the rest is skipped.
    """
    reason = ""
    for decision in decisions:
        if not decision.is_enforced:
            continue
        if not reason and is_stopped():
            reason = "not attempted: the run was interrupted"
        if reason:
            yield skipped(decision, session, reason)
            continue
        try:
            yield _act(decision, session)
        except _StopHere as stop:
            reason = stop.reason
            yield stop.outcome


def skipped(decision: Decision, session: Session, reason: str) -> Outcome:
    """The outcome of a decision that was not attempted."""
    return _outcome(decision, session, Result.SKIPPED, reason)


def _act(decision: Decision, session: Session) -> Outcome:
    """One decision, from the last look to the Event."""
    row = kind_of(decision.workload.ref)
    if row is None:  # decide gives no action to an unknown kind
        return _outcome(decision, session, Result.REFUSED, "its kind is not known")
    try:
        outcome = _attempt(decision, row, session)
    except RequestRefused as refused:
        return _refused(decision, session, refused)
    except _AnswerLost as lost:
        outcome = _read_back(decision, row, session, lost)
    except (PrometheusError, ConfigurationError, ClusterUnreachable) as error:
        reason = f"not attempted: {error}"
        raise _StopHere(skipped(decision, session, reason), reason) from error
    except ClusterError as error:
        return _outcome(decision, session, Result.REFUSED, str(error))
    if outcome.result is Result.DONE:
        with _as_a_warning(f"no Event on {decision.workload.ref}"):
            session.cluster.create(*event_of(decision, row, run=session.run, at=session.clock()))
    return outcome


def _attempt(decision: Decision, row: WorkloadKind, session: Session) -> Outcome:
    """Look and write; where another's write comes between, such as its controller's of its status, look again."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return _look_and_write(decision, row, session)
        except RequestRefused as refused:
            if refused.code != http.HTTPStatus.CONFLICT:
                raise
    return _look_and_write(decision, row, session)


def _look_and_write(decision: Decision, row: WorkloadKind, session: Session) -> Outcome:
    """Prometheus is asked first, so that as little time as can be passes between reading the objects and the write."""
    use = session.watch.use()
    fresh, fleet = look_at(decision.workload.ref, session.cluster)
    if fresh is None:
        return _outcome(decision, session, Result.GONE, "it holds no GPUs any more")
    rulebook = Rulebook(session.policy, fleet, at=use.at, own=session.state_namespace)
    against = list(objections(decision, fresh, use, rulebook))
    if against:
        return _outcome(decision, session, Result.CHANGED, "; ".join(veto.reason for veto in against))
    detail = _way(decision, row)(decision, row, fresh, session)
    return _outcome(decision, session, Result.DONE, detail)


_Way = Callable[[Decision, WorkloadKind, Workload, Session], str]


def _way(decision: Decision, row: WorkloadKind) -> _Way:
    """How a decision is carried out."""
    if decision.action is Action.NOTIFY:
        return _notify
    return _stop if row.field else _evict


def _notify(decision: Decision, row: WorkloadKind, fresh: Workload, session: Session) -> str:
    """Put a notice on a workload, as it was looked at."""
    path = path_of(fresh.ref, row)
    patch = notice_patch(decision, fresh, run=session.run, at=session.clock())
    session.cluster.patch(path, patch, dry_run=True)
    with _the_write():
        session.cluster.patch(path, patch)
    return f"notice given: {decision.announced} from {decision.due:%Y-%m-%d %H:%M} UTC"


def _stop(decision: Decision, row: WorkloadKind, fresh: Workload, session: Session) -> str:
    """Stop a workload, as it was looked at, by one patch of its own object."""
    path = path_of(fresh.ref, row)
    record = record_of(decision, row, before=fresh.size, run=session.run, at=session.clock())
    patch = stop_patch(row, record, fresh)
    session.cluster.patch(path, patch, dry_run=True)
    with _the_write():
        session.cluster.patch(path, patch)
    return f"{record.field}: {_shown(fresh.size)} → {_shown(row.stopped)}"


def _evict(decision: Decision, row: WorkloadKind, fresh: Workload, session: Session) -> str:
    """Evict a bare pod, as it was looked at, after its manifest has been saved where undo finds it."""
    ref = fresh.ref
    path = path_of(ref, row)
    pod = session.cluster.get_object(path)
    conditions = {"preconditions": {"uid": ref.uid, "resourceVersion": fresh.resource_version}}
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": ref.name, "namespace": ref.namespace},
        "deleteOptions": conditions,
    }
    dry_eviction = {**eviction, "deleteOptions": {**conditions, "dryRun": ["All"]}}
    session.cluster.create(f"{path}/eviction", dry_eviction, dry_run=True)
    place = _keep(_manifest_secret(decision, pod, row, session), session)
    try:
        with _the_write():
            session.cluster.create(f"{path}/eviction", eviction)
    except RequestRefused:
        _drop(place, session)
        raise
    # Where the answer is lost the manifest stays, whatever is read back: the eviction may take effect yet.
    return f"evicted; manifest in Secret {session.state_namespace}/{place.rpartition('/')[2]}"


@contextlib.contextmanager
def _the_write() -> Iterator[None]:
    """Around the one request that makes the change: only after this one a lost answer leaves anything in doubt."""
    try:
        yield
    except ClusterUnreachable as error:
        raise _AnswerLost(str(error)) from error
    except RequestRefused as refused:
        if _is_no_answer(refused):
            raise _AnswerLost(str(refused)) from refused
        raise


def _is_no_answer(refused: RequestRefused) -> bool:
    """Whether a time-out of a proxy, the API server or etcd speaks, and the change may be on its way all the same."""
    is_answer = "PodDisruptionBudget" in refused.detail  # of two budgets over one pod: 500, and meant so
    return refused.code >= http.HTTPStatus.INTERNAL_SERVER_ERROR and not is_answer


def _keep(secret: Mapping[str, Any], session: Session) -> str:
    """Save a manifest; the path of its Secret."""
    secrets = f"/api/v1/namespaces/{session.state_namespace}/secrets"
    place = f"{secrets}/{secret['metadata']['name']}"
    try:
        session.cluster.create(secrets, secret)
    except RequestRefused as refused:
        if refused.reason != "AlreadyExists":
            raise
        # Of an eviction whose answer was lost and that never took effect: the pod of this UID is still here.
        session.cluster.delete(place)
        session.cluster.create(secrets, secret)
    except ClusterUnreachable:
        _drop(place, session)
        raise
    return place


def _drop(place: str, session: Session) -> None:
    """Take back a manifest that was saved for nothing."""
    with _as_a_warning(f"Secret {place} stays behind"):
        session.cluster.delete(place)


def _manifest_secret(decision: Decision, pod: Any, row: WorkloadKind, session: Session) -> dict[str, Any]:  # noqa: ANN401
    """A pod's manifest may hold credentials in its environment, so it is kept as a Secret."""
    ref = decision.workload.ref
    record = record_of(decision, row, before=None, run=session.run, at=session.clock())
    files = {"manifest": json.dumps(recreatable(pod)), "record": record.text()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": MANIFEST_TYPE,
        "metadata": {
            "name": manifest_name(ref),
            "namespace": session.state_namespace,
            "labels": {MANIFEST_LABEL: session.run},
            "annotations": {
                POD_ANNOTATION: f"{ref.namespace}/{ref.name}",
                GPUS_ANNOTATION: str(decision.workload.gpus),
            },
        },
        "data": {name: base64.b64encode(text.encode()).decode() for name, text in files.items()},
    }


def _refused(decision: Decision, session: Session, refused: RequestRefused) -> Outcome:
    """What an error Status means for this decision, and for those after it."""
    match refused.code:
        case http.HTTPStatus.NOT_FOUND if decision.workload.ref.name in refused.detail:
            return _outcome(decision, session, Result.GONE, "it is gone already")
        case http.HTTPStatus.CONFLICT:
            return _outcome(
                decision, session, Result.CHANGED, f"changed by someone meanwhile: {refused.detail}"
            )
        case http.HTTPStatus.TOO_MANY_REQUESTS if "DisruptionBudget" in refused.causes:
            return _outcome(decision, session, Result.BLOCKED, refused.detail)
        case http.HTTPStatus.INTERNAL_SERVER_ERROR if "PodDisruptionBudget" in refused.detail:
            return _outcome(decision, session, Result.BLOCKED, refused.detail)
        case http.HTTPStatus.TOO_MANY_REQUESTS | http.HTTPStatus.UNAUTHORIZED:
            outcome = _outcome(decision, session, Result.REFUSED, str(refused))
            raise _StopHere(outcome, _since_then(outcome)) from refused
        case _:
            return _outcome(decision, session, Result.REFUSED, str(refused))


def _read_back(decision: Decision, row: WorkloadKind, session: Session, lost: _AnswerLost) -> Outcome:
    """The write's answer was lost: see whether it took effect before anything else happens."""
    ref = decision.workload.ref
    try:
        obj = session.cluster.get_object(path_of(ref, row))
    except RequestRefused as refused:
        if refused.code == http.HTTPStatus.NOT_FOUND and decision.action is Action.EVICT:
            return _outcome(decision, session, Result.DONE, f"evicted, though the answer was lost: {lost}")
        return _refused(decision, session, refused)
    except ClusterError as again:
        words = f"whether it took effect is not known, look at it yourself: {lost}; then: {again}"
        outcome = _outcome(decision, session, Result.UNKNOWN, words)
        raise _StopHere(outcome, _since_then(outcome)) from again
    if _is_in_effect(decision, obj, row, session):
        return _outcome(decision, session, Result.DONE, f"done, though the answer was lost: {lost}")
    return _outcome(
        decision, session, Result.REFUSED, f"it had not taken effect when it was read back: {lost}"
    )


def _is_in_effect(decision: Decision, obj: Any, row: WorkloadKind, session: Session) -> bool:  # noqa: ANN401
    """Whether an object, as the API server gave it, shows what a decision was to do."""
    if decision.action is Action.NOTIFY:
        notice = parse_notice(obj["metadata"].get("annotations") or {})
        return notice is not None and notice.run == session.run
    return _is_ours(obj, row, session.run) if row.field else _is_leaving(obj, decision.workload.ref)


def _is_ours(obj: Any, row: WorkloadKind, run: str) -> bool:  # noqa: ANN401 - an object as the API server gave it
    try:
        record = read_record(obj["metadata"].get("annotations") or {}, row)
    except ValueError:
        return False
    return record is not None and record.run == run


def _is_leaving(pod: Any, ref: ObjectRef) -> bool:  # noqa: ANN401 - an object as the API server gave it
    """Whether the pod is on its way out, or gone and another one has its name."""
    return bool(pod["metadata"].get("deletionTimestamp")) or pod["metadata"]["uid"] != ref.uid


def _since_then(outcome: Outcome) -> str:
    return f"not attempted, since an earlier one ended so: {outcome.detail}"


@contextlib.contextmanager
def _as_a_warning(what: str) -> Iterator[None]:
    """The change stands, whether or not it could be announced."""
    try:
        yield
    except ClusterError as error:
        log.warning("%s: %s", what, error)


def _outcome(decision: Decision, session: Session, result: Result, detail: str) -> Outcome:
    return Outcome(
        ref=decision.workload.ref,
        action=decision.action.value if decision.action else "",
        result=result,
        detail=detail,
        gpus=decision.workload.gpus,
        at=session.clock(),
    )


def _shown(value: int | bool | None) -> str:  # noqa: FBT001
    return json.dumps(value)
