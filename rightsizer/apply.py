"""The one door for writes: each decision is looked at again, tried by the server (dry run), written, and told about.

One PATCH makes a change together with its undo record, under a resourceVersion precondition; evictions carry the pod's
UID. No write is ever sent twice: where its answer was lost, the object is read back.
"""

import base64
import contextlib
import dataclasses
import datetime
import http
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from rightsizer.decide import UsagesByWindow
from rightsizer.errors import ClusterError, ClusterUnreachable, PrometheusError, RequestRefused
from rightsizer.model import Decision, ObjectRef, Outcome, Result, Usages, Workload, WorkloadKind
from rightsizer.observe import inventory
from rightsizer.observe.cluster import Cluster
from rightsizer.policy.document import Policy
from rightsizer.report.events import event_of
from rightsizer.validate import RECENT, objections
from rightsizer.workloads import KINDS, kind_of, path_of
from rightsizer.workloads.changes import (
    MANIFEST_LABEL,
    MANIFEST_TYPE,
    read_record,
    record_of,
    recreatable,
    stop_patch,
    value_at,
)

log = logging.getLogger(__name__)


class Activity(Protocol):
    """A source of the last minutes' activity."""

    def activity(self, window: datetime.timedelta, at: datetime.datetime) -> Usages:
        """Highest activity by pod and device."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Session:
    """All that one run needs to act.

    Attributes:
        usages: What the plan was made from.
        state_namespace: Our own namespace; manifests of evicted pods are kept there.
        clock: The time now, aware.
    """

    cluster: Cluster
    signal: Activity
    policy: Policy
    usages: UsagesByWindow
    run: str
    state_namespace: str
    clock: Callable[[], datetime.datetime]


class _StopHere(Exception):  # noqa: N818 - a signal, not an error
    """The API server asks for quiet, knows us no longer, or cannot be reached: nothing more is sent in this run."""


def carry_out(decisions: Iterable[Decision], session: Session) -> Iterator[Outcome]:
    """Act on the enforced ones of the decisions, in order, telling each outcome as it is known.

    Closing the iterator (or Ctrl-C between two outcomes) leaves the rest untouched.
    """
    reason = ""
    for decision in decisions:
        if not decision.is_enforced:
            continue
        if reason:
            yield _outcome(decision, session, Result.SKIPPED, reason)
            continue
        try:
            yield _act(decision, session)
        except _StopHere as stop:
            outcome = stop.args[0]
            reason = f"not attempted, since an earlier one ended so: {outcome.detail}"
            yield outcome


def _act(decision: Decision, session: Session) -> Outcome:
    """One decision, from the last look to the Event."""
    row = kind_of(decision.workload.ref)
    if row is None:  # decide gives no action to an unknown kind
        return _outcome(decision, session, Result.REFUSED, "its kind is not known")
    try:
        objection = _last_look(decision, session)
        if objection is not None:
            return objection
        detail = (_stop if row.field else _evict)(decision, row, session)
    except RequestRefused as refused:
        return _refused(decision, session, refused)
    except ClusterUnreachable as error:
        return _read_back(decision, row, session, error)
    except (ClusterError, PrometheusError) as error:
        return _outcome(decision, session, Result.REFUSED, str(error))
    with _as_a_warning(f"no Event on {decision.workload.ref}"):
        session.cluster.create(*event_of(decision, row, run=session.run, at=session.clock()))
    return _outcome(decision, session, Result.DONE, detail)


def _last_look(decision: Decision, session: Session) -> Outcome | None:
    """The outcome if the decision no longer holds; None where it may go on."""
    fresh = _fresh(decision.workload.ref, session.cluster)
    if fresh is None:
        return _outcome(decision, session, Result.GONE, "it holds no GPUs any more")
    now = session.clock()
    against = list(
        objections(
            decision,
            fresh,
            usages=session.usages,
            recent=session.signal.activity(RECENT, now),
            policy=session.policy,
            at=now,
        )
    )
    if against:
        return _outcome(decision, session, Result.CHANGED, "; ".join(veto.reason for veto in against))
    return None


def _fresh(ref: ObjectRef, cluster: Cluster) -> Workload | None:
    objects = inventory.read(cluster, KINDS, namespace=ref.namespace)
    named = [
        workload
        for workload in inventory.assemble(objects)
        if (workload.ref.kind, workload.ref.name) == (ref.kind, ref.name)
    ]
    return named[0] if named else None


def _stop(decision: Decision, row: WorkloadKind, session: Session) -> str:
    """Stop a workload by one patch of its own object."""
    path = path_of(decision.workload.ref, row)
    obj = session.cluster.get_object(path)
    before = value_at(obj, row.field)
    record = record_of(decision, row, before=before, run=session.run, at=session.clock())
    patch = stop_patch(row, record, obj["metadata"]["resourceVersion"])
    session.cluster.patch(path, patch, dry_run=True)
    session.cluster.patch(path, patch)
    return f"{record.field}: {_shown(before)} → {_shown(row.stopped)}"


def _evict(decision: Decision, row: WorkloadKind, session: Session) -> str:
    """Evict a bare pod, after its manifest has been saved where undo finds it."""
    ref = decision.workload.ref
    path = path_of(ref, row)
    pod = session.cluster.get_object(path)
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": ref.name, "namespace": ref.namespace},
        "deleteOptions": {"preconditions": {"uid": ref.uid}},
    }
    dry_eviction = {**eviction, "deleteOptions": {"preconditions": {"uid": ref.uid}, "dryRun": ["All"]}}
    session.cluster.create(f"{path}/eviction", dry_eviction, dry_run=True)
    secret = _manifest_secret(decision, pod, row, session)
    secrets = f"/api/v1/namespaces/{session.state_namespace}/secrets"
    session.cluster.create(secrets, secret)
    try:
        session.cluster.create(f"{path}/eviction", eviction)
    except RequestRefused:
        with _as_a_warning(f"Secret {secret['metadata']['name']} stays behind"):
            session.cluster.delete(f"{secrets}/{secret['metadata']['name']}")
        raise
    return f"evicted; manifest in Secret {session.state_namespace}/{secret['metadata']['name']}"


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
            "name": f"{ref.name[:200]}-{ref.uid[:8]}",
            "namespace": session.state_namespace,
            "labels": {MANIFEST_LABEL: session.run},
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
            raise _StopHere(_outcome(decision, session, Result.REFUSED, str(refused))) from refused
        case _:
            return _outcome(decision, session, Result.REFUSED, str(refused))


def _read_back(decision: Decision, row: WorkloadKind, session: Session, error: ClusterUnreachable) -> Outcome:
    """An answer was lost: see whether the change took effect before anything else happens."""
    try:
        obj = session.cluster.get_object(path_of(decision.workload.ref, row))
    except RequestRefused as refused:
        if refused.code == http.HTTPStatus.NOT_FOUND and not row.field:
            return _outcome(decision, session, Result.DONE, f"evicted, though the answer was lost: {error}")
        return _refused(decision, session, refused)
    except ClusterError as again:
        words = f"whether it took effect is not known, look at it yourself: {error}; then: {again}"
        raise _StopHere(_outcome(decision, session, Result.UNKNOWN, words)) from again
    if _is_ours(obj, session.run) or (not row.field and obj["metadata"].get("deletionTimestamp")):
        return _outcome(decision, session, Result.DONE, f"done, though the answer was lost: {error}")
    return _outcome(decision, session, Result.REFUSED, f"it did not take effect: {error}")


def _is_ours(obj: Any, run: str) -> bool:  # noqa: ANN401 - an object as the API server gave it
    try:
        record = read_record(obj["metadata"].get("annotations") or {})
    except ValueError:
        return False
    return record is not None and record.run == run


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
