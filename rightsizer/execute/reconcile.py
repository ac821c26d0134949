"""Finds what earlier runs left in the cluster, and reconciles it.

- A change that somebody reverted is recorded as reverted, so that it is not repeated.
- A workload that was suspended for a change is changed and resumed once its pods are gone.
- A scaled-down or resized workload is checked until it is confirmed as healthy; an unhealthy one is rolled back.
- What was stopped for pending pods of which none was bound since is rolled back.
- A manifest is deleted if its pod was never evicted, or was restored.

Anybody who may edit an object can write a record. Of records whose change the memory lacks, or another object has, too,
a run reconciles a few.
"""

import collections
import dataclasses
import datetime
import functools
import hashlib
import http
import itertools
import json
import logging
from collections.abc import Iterable, Iterator

import msgspec

from rightsizer.changes.found_changes import is_copy
from rightsizer.changes.memory import ChangeKey
from rightsizer.changes.record_codec import (
    MANIFEST_LABEL,
    MANIFEST_SELECTOR,
    POD_ANNOTATION,
    STOPS,
    UNDO_ANNOTATION,
    manifest_name,
    read_history,
)
from rightsizer.config import format_duration
from rightsizer.errors import ClusterError, RequestRefused
from rightsizer.execute.change_log import log_intent, logged
from rightsizer.execute.control_state import ActionGate
from rightsizer.execute.known_changes import read_known_changes
from rightsizer.execute.listing import list_objects, recordable_kinds
from rightsizer.execute.preflight import is_pending, read_workload
from rightsizer.execute.reconcile_actions import (
    CAN_BE_COMPLETED,
    NO_POD_WENT,
    RecordedObject,
    awaits_confirmation,
    can_complete,
    check_health,
    complete,
    confirm,
    read_recorded_object,
    record_revert,
    roll_back,
)
from rightsizer.execute.run_context import RunContext
from rightsizer.inventory.turns import in_turn
from rightsizer.kinds import row_for, row_of
from rightsizer.kinds.core import POD
from rightsizer.kinds.edits import is_as, is_reverted, same, shown, value_at
from rightsizer.kinds.health import Health
from rightsizer.kinds.kind import Kind
from rightsizer.kinds.patches import read_record
from rightsizer.kube.api_objects import Metadata, ObjectMeta, SpecObject
from rightsizer.kube.object_names import api_path, is_possible
from rightsizer.model import (
    Action,
    Blocker,
    ChangeOutcome,
    Edit,
    Fleet,
    Mode,
    ObjectRef,
    Outcome,
    ReconcileAction,
    Result,
    Workload,
)
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.protections import OPT_OUT, opt_outs, protections
from rightsizer.policy.schema import Policy

log = logging.getLogger(__name__)

MANIFEST_GRACE = datetime.timedelta(hours=1)
"""Below this age, a running pod's manifest is kept: its eviction may be in progress."""
COMMAND_GRACE = datetime.timedelta(minutes=5)
"""Maximum time that a controller takes to execute a command."""
ROLLBACK_GRACE = datetime.timedelta(hours=1)
"""Rollbacks end this long, or twice the time to become healthy if longer, after that time."""
MOST_UNKNOWN = 5
"""Maximum number of records in a run whose changes the memory lacks; namespaces take turns.

For each, its namespace may be read twice.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class ReconcilePolicy:
    """Says whether a reconciliation is allowed. The breaker blocks rollbacks; pauses block no reconciliation."""

    policy: Policy
    gate: ActionGate

    def blocked_reason(self, found: RecordedObject, action: ReconcileAction, context: RunContext) -> str:
        """Why an object is not reconciled; empty if it may be.

        Raises:
            ClusterError: It could not be found out.
        """
        trip = self.gate.trip() if action is ReconcileAction.ROLLBACK else ""
        if trip:
            return f"the breaker is open, and nothing is rolled back until a person resets it: {trip}"
        blockers = self._blockers(found, context)
        if action is ReconcileAction.COMPLETE:  # an opt-out since then must not leave it suspended
            blockers = [blocker for blocker in blockers if blocker.source != OPT_OUT]
        return "; ".join(blocker.message for blocker in blockers)

    def _blockers(self, found: RecordedObject, context: RunContext) -> list[Blocker]:
        fresh, fleet = read_workload(found.about, context.cluster)
        if fresh is not None:
            own, by = context.state_namespace, context.instance
            evaluator = PolicyEvaluator(self.policy, fleet, at=context.clock(), own=own, instance=by)
            result = evaluator.evaluate(fresh)
            return list(result.restrictions) if result.mode is Mode.PROTECT else []
        # Rules match by pods. Without pods, only the marks on the object and on its namespace count.
        path = api_path("v1", "", "namespaces", found.ref.namespace)
        bare = _without_pods(found, context.cluster.get(path, Metadata).metadata.annotations or {})
        wishes = opt_outs(bare, context.clock()) if self.policy.respectOptOut else ()
        shields = protections(bare, self.policy, context.state_namespace)
        return [*shields, *(wish.blocker for wish in wishes if wish.mode is Mode.PROTECT)]


def _without_pods(found: RecordedObject, namespace_annotations: dict[str, str]) -> Workload:
    metadata = found.obj["metadata"]
    return Workload(
        ref=found.ref,
        generation=0,
        resource_version="",
        pods=(),
        size=None,
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        namespace_annotations=namespace_annotations,
        budgets={},
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Reconciliation:
    """A reconciliation that is due.

    Attributes:
        words: What was found, for people.
        found: The object; None for a manifest, whose Secret's path is `manifest`.
    """

    ref: ObjectRef
    action: ReconcileAction
    words: str
    found: RecordedObject | None = None
    manifest: str = ""


def find_reconciliations(context: RunContext) -> list[Reconciliation]:
    """All reconciliations that are due, in a stable order. Only reads.

    Raises:
        ClusterError: A list could not be read whole.
    """
    known = read_known_changes(context.cluster, context.state_namespace)
    reconciliations: list[Reconciliation] = []
    unknown: dict[str, list[RecordedObject]] = collections.defaultdict(list)
    claimed = set[ChangeKey]()
    draw = functools.partial(_draw, context.run)
    for found in _recorded(context):
        change = known.claimed(found.ref, found.row, found.record)
        if change is not None and change not in claimed:
            claimed.add(change)
            reconciliations.extend(_of_object(found, context))
        elif _is_open(found):
            of_namespace = unknown[found.ref.namespace]
            of_namespace.append(found)
            of_namespace.sort(key=lambda carrier: draw(carrier.ref.uid))
            del of_namespace[MOST_UNKNOWN:]
    turns = in_turn(itertools.chain(*unknown.values()), lambda carrier: draw(carrier.ref.namespace))
    for found in turns[:MOST_UNKNOWN]:
        reconciliations.extend(_of_object(found, context))
    reconciliations.extend(_of_manifests(context))
    return sorted(reconciliations, key=lambda due: (due.ref, due.manifest))


def find_stops_without_effect(fleet: Fleet | None, context: RunContext) -> list[Reconciliation]:
    """Stops of earlier runs after which no pod went: what is left on the object could take effect at any time.

    Verification does that at once; it may have been cut short. The fleet was read for the plan.

    Raises:
        ClusterError: An object could not be read.
    """
    by_ref = {workload.ref: workload for workload in fleet.workloads} if fleet is not None else {}
    found = []
    for change in fleet.changes if fleet is not None else ():
        workload = by_ref.get(change.ref)
        if workload is None or not change.is_in_effect or change.record.action not in STOPS:
            continue
        pods = [pod for pod in workload.holding if pod.created is not None and pod.created < change.at]
        if any(pod.is_terminating for pod in pods) or sum(pod.gpus for pod in pods) < change.record.gpus:
            continue
        carriers = (workload.ref, workload.control_object, *workload.owned)
        for ref in (carrier for carrier in carriers if carrier is not None):
            row = row_of(workload) if ref == workload.ref else row_for(ref)
            recorded = _recorded_by(ref, row, change.record.run, context)
            if recorded is not None:
                found.append(Reconciliation(ref, ReconcileAction.ROLLBACK, NO_POD_WENT, recorded))
    return found


def _recorded_by(ref: ObjectRef, row: Kind | None, run: str, context: RunContext) -> RecordedObject | None:
    """An object with the record of a run that has had enough time to take effect."""
    found = read_recorded_object(ref, row, context) if row is not None and row is not POD else None
    if found is None or found.record.run != run or not is_as(found.obj, found.record.edits):
        return None
    span = max(COMMAND_GRACE, datetime.timedelta(seconds=found.record.healthy_within_seconds))
    return found if context.clock() - found.record.at >= span else None


def _draw(run: str, text: str) -> str:
    """An order that differs from run to run: what has to wait, or is blocked, keeps no place for ever."""
    return hashlib.sha256(f"{run}/{text}".encode()).hexdigest()


def _is_open(found: RecordedObject) -> bool:
    """Whether a record may call for something, as far as the object shows it."""
    record = found.record
    has_command = found.row.command_for(record.edits) is not None
    is_waiting = record.is_unfinished or awaits_confirmation(found) or bool(record.wanted_by)
    return is_waiting or has_command or any(is_reverted(found.obj, edit) for edit in record.edits)


def make_reconciliations(
    reconciliations: Iterable[Reconciliation], context: RunContext, policy: ReconcilePolicy
) -> Iterator[Outcome]:
    """Make each reconciliation that the policy allows, and yield its outcome."""
    for due in reconciliations:
        yield _make(due, context, policy)


def _outcome(due: Reconciliation, result: Result, words: str, context: RunContext) -> Outcome:
    at, action = context.clock(), due.action.value
    return logged(Outcome(due.ref, action, result, words, 0, at, is_reconciliation=True), context.run)


def _make(due: Reconciliation, context: RunContext, policy: ReconcilePolicy) -> Outcome:
    try:
        context.cluster.require_writable()
    except ClusterError as error:
        return _outcome(due, Result.SKIPPED, f"{due.words}; not attempted: {error}", context)
    if due.found is None:
        log_intent(context.run, due.ref, due.action.value, due.words)
        return _delete_manifest(due, context)
    try:
        why = policy.blocked_reason(due.found, due.action, context)
    except ClusterError as error:
        why = f"cannot check whether it may be changed: {error}"
    if why:
        return _outcome(due, Result.BLOCKED, f"{due.words}; not reconciled: {why}", context)
    return _ACTIONS[due.action](due.found, due.words, context)


def _recorded(context: RunContext) -> Iterator[RecordedObject]:
    """The objects with a usable record; `undo` reports what is wrong with others."""
    for row in recordable_kinds(context.cluster):
        for ref, listed in list_objects(context.cluster, row, SpecObject) if row is not POD else ():
            annotations = listed.metadata.annotations or {}
            if UNDO_ANNOTATION not in annotations or is_copy(ref, listed.metadata):
                continue
            try:
                record = read_record(annotations, row)
            except ValueError as error:
                log.warning("%s: %s", ref, error)
                continue
            if record is not None:
                metadata = msgspec.to_builtins(listed.metadata)
                obj = {"metadata": metadata, "spec": json.loads(bytes(listed.spec))}
                yield RecordedObject(ref, row, obj, record)


def _of_object(found: RecordedObject, context: RunContext) -> list[Reconciliation]:
    """The reconciliation of an object that is due, if any; none if the object cannot be read."""
    try:
        if found.record.is_unfinished:
            return _of_unfinished(found, context)
        reverted = ", ".join(_now(found, edit) for edit in found.record.edits if is_reverted(found.obj, edit))
        if words := reverted or _not_stopped(found, context):
            return [Reconciliation(found.ref, ReconcileAction.RECORD_REVERT, words, found)]
        if words := _in_vain(found, context):
            return [Reconciliation(found.ref, ReconcileAction.ROLLBACK, words, found)]
        return _of_unconfirmed(found, context)
    except RequestRefused as refused:
        log.warning("%s cannot be reconciled: %s", found.ref, refused)
        return []


def _in_vain(found: RecordedObject, context: RunContext) -> str:
    """Why a change for pending pods did not help; empty if it may have, or if that was long ago."""
    record, age, within = found.record, context.clock() - found.record.at, context.bind_within
    if not (record.wanted_by and within <= age < within + ROLLBACK_GRACE):
        return ""
    if not all(is_pending(ref, context.cluster) for ref in record.wanted_by):
        return ""
    waits = ", ".join(map(str, record.wanted_by))
    return f"not bound {format_duration(age.total_seconds())} after room was made: {waits}"


def _of_unfinished(found: RecordedObject, context: RunContext) -> list[Reconciliation]:
    whole = read_recorded_object(found.ref, found.row, context)
    if whole is None or not whole.record.is_unfinished or not can_complete(whole, context):
        return []
    return [Reconciliation(found.ref, ReconcileAction.COMPLETE, CAN_BE_COMPLETED, whole)]


def _of_unconfirmed(found: RecordedObject, context: RunContext) -> list[Reconciliation]:
    is_in_effect = all(same(value_at(found.obj, edit.path), edit.after) for edit in found.record.edits)
    if not awaits_confirmation(found) or not is_in_effect:
        return []
    age = context.clock() - found.record.at
    span = datetime.timedelta(seconds=found.record.healthy_within_seconds)
    if age >= span + max(2 * span, ROLLBACK_GRACE):
        words = (
            f"not checked for {format_duration(age.total_seconds())}: later problems may have other causes"
        )
        return [Reconciliation(found.ref, ReconcileAction.CONFIRM, words, found)]
    health, words = check_health(found, context)
    if health is Health.WAITING or (health is Health.HEALTHY and age < span):
        return []  # it may run out of memory yet
    action = ReconcileAction.ROLLBACK if health is Health.FAILED else ReconcileAction.CONFIRM
    return [Reconciliation(found.ref, action, words, found)]


def _complete(found: RecordedObject, words: str, context: RunContext) -> Outcome:
    try:
        outcome = complete(found, context)
    except ClusterError as error:
        detail = f"{words}; left to the next run: {error}"
        return found.outcome(context, ReconcileAction.COMPLETE, Result.UNKNOWN, detail)
    assert outcome is not None  # noqa: S101 - it was due when it was found
    return outcome


_ACTIONS = {
    ReconcileAction.RECORD_REVERT: record_revert,
    ReconcileAction.ROLLBACK: roll_back,
    ReconcileAction.COMPLETE: _complete,
    ReconcileAction.CONFIRM: confirm,
}


def _not_stopped(found: RecordedObject, context: RunContext) -> str:
    """Why a workload that a command was to stop still runs; empty if it does not."""
    command = found.row.command_for(found.record.edits)
    if command is None or context.clock() - found.record.at < COMMAND_GRACE:
        return ""
    state = value_at(context.cluster.get_object(found.path), command.state)
    if state is None or state in command.stopped:
        return ""
    return f"its state is {state}: somebody resumed it, or {found.record.edits[0].after} was never executed"


def _now(found: RecordedObject, edit: Edit) -> str:
    now, left = (json.dumps(value) for value in (value_at(found.obj, edit.path), edit.after))
    return f"{shown(edit.path)} is {now}; run {found.record.run} had set it to {left}"


def _of_manifests(context: RunContext) -> Iterator[Reconciliation]:
    """Manifests of pods that exist: never evicted, or restored by an undo that was interrupted."""
    if not context.evicts:
        return
    path = f"/api/v1/namespaces/{context.state_namespace}/secrets"
    try:
        secrets = context.cluster.list_all(
            path,
            Metadata,
            metadata_only=True,
            label_selector=MANIFEST_LABEL,
            field_selector=MANIFEST_SELECTOR,
        )
    except RequestRefused as refused:
        if refused.code != http.HTTPStatus.FORBIDDEN:
            raise
        log.warning("saved manifests cannot be checked: %s", refused)
        return
    by_namespace: dict[str, list[ObjectMeta]] = {}
    for secret in secrets:
        namespace, _, name = (secret.metadata.annotations or {}).get(POD_ANNOTATION, "").partition("/")
        if is_possible(ObjectRef("v1", "Pod", namespace, name)):
            by_namespace.setdefault(namespace, []).append(secret.metadata)
    for namespace, manifests in sorted(by_namespace.items()):
        collection = api_path("v1", namespace, "pods")
        pods = {
            pod.metadata.name: pod.metadata
            for pod in context.cluster.list_all(collection, Metadata, metadata_only=True)
        }
        for secret_meta in manifests:
            name = (secret_meta.annotations or {})[POD_ANNOTATION].partition("/")[2]
            words = _unneeded_reason(secret_meta, pods.get(name), context.clock())
            if words:
                yield Reconciliation(
                    ObjectRef("v1", "Pod", namespace, name),
                    ReconcileAction.DELETE_MANIFEST,
                    words,
                    manifest=f"{path}/{secret_meta.name}",
                )


def _unneeded_reason(secret: ObjectMeta, pod: ObjectMeta | None, at: datetime.datetime) -> str:
    if pod is None or pod.deletion_timestamp is not None:
        return ""
    if secret.name == manifest_name(ObjectRef("v1", "Pod", pod.namespace, pod.name, pod.uid)):
        is_old = secret.creation_timestamp is not None and at - secret.creation_timestamp >= MANIFEST_GRACE
        return "the pod was never evicted, so its saved manifest is not needed" if is_old else ""
    run = (secret.labels or {}).get(MANIFEST_LABEL, "")
    is_restored = any(
        (record.run, record.action, record.end) == (run, Action.EVICT, ChangeOutcome.UNDONE)
        for record in read_history(pod.annotations or {})
    )
    return "the pod was restored from its saved manifest" if is_restored else ""


def _delete_manifest(due: Reconciliation, context: RunContext) -> Outcome:
    result, words = Result.DONE, due.words
    try:
        context.cluster.delete(due.manifest)
    except ClusterError as error:
        result, words = Result.REFUSED, f"{due.words}; {error}"
    return _outcome(due, result, words, context)
