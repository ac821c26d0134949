"""What an earlier or crashed run left: found in the cluster, told, and finished or taken back.

- A change that someone took back is remembered as such, so that it is not repeated.
- What was stopped to be changed goes on once its pods are gone.
- What goes on with less is looked at until it is known to be well; what is not well gets back what it had.
- A manifest that was saved for an eviction which never took effect, or of a pod that was put back, goes.
"""

import dataclasses
import datetime
import http
import json
import logging
from collections.abc import Iterable, Iterator
from typing import assert_never

import msgspec

from rightsizer.changes.found_changes import is_copy
from rightsizer.changes.record_codec import (
    MANIFEST_LABEL,
    POD_ANNOTATION,
    STOPS,
    UNDO_ANNOTATION,
    manifest_name,
    pause_of,
    read_history,
)
from rightsizer.config import format_duration
from rightsizer.errors import ClusterError, RequestRefused
from rightsizer.execute.completion import can_complete, complete
from rightsizer.execute.control_state import ActionGate
from rightsizer.execute.listing import list_objects, recordable_kinds
from rightsizer.execute.preflight import read_workload
from rightsizer.execute.run_context import RunContext, log_cluster_error
from rightsizer.execute.watch_health import (
    RecordedObject,
    awaits_confirmation,
    check_health,
    confirm,
    read_recorded_object,
    roll_back,
)
from rightsizer.kinds import path_of
from rightsizer.kinds.core import POD
from rightsizer.kinds.edits import is_taken_back, same, shown, value_at
from rightsizer.kinds.health import Health
from rightsizer.kinds.patches import read_record, reverted_patch
from rightsizer.kube.api_objects import Metadata, ObjectMeta, SpecObject
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
from rightsizer.report.events import REVERTED


@dataclasses.dataclass(frozen=True, slots=True)
class RepairPolicy:
    """Asked before each repair.

    Attributes:
        gate: The breaker is asked; pauses keep nothing from being put back.
    """

    policy: Policy
    gate: ActionGate

    def against(self, found: RecordedObject, mending: ReconcileAction, context: RunContext) -> str:
        """Why an object is left as it is; empty where it may be mended.

        Raises:
            ClusterError: It could not be found out.
        """
        is_open = self.gate.trip() if mending is ReconcileAction.ROLLBACK else ""
        if is_open:
            return f"the breaker is open, and nothing is put back before a person has closed it: {is_open}"
        vetoes = self._vetoes(found, context)
        if mending is ReconcileAction.COMPLETE:  # who opted out meanwhile did not ask to be left half-way
            vetoes = [veto for veto in vetoes if veto.source != OPT_OUT]
        return "; ".join(veto.message for veto in vetoes)

    def _vetoes(self, found: RecordedObject, context: RunContext) -> list[Blocker]:
        fresh, fleet = read_workload(found.about, context.cluster)
        if fresh is not None:
            return list(self._by_rules(fresh, fleet, context))
        # No pods, by which rules are sought: what holds for the object and its namespace.
        path = f"/api/v1/namespaces/{found.ref.namespace}"
        bare = _without_pods(found, context.cluster.get(path, Metadata).metadata.annotations or {})
        wishes = opt_outs(bare, context.clock()) if self.policy.respectOptOut else ()
        shields = protections(bare, self.policy, context.state_namespace)
        return [*shields, *(wish.blocker for wish in wishes if wish.mode is Mode.PROTECT)]

    def _by_rules(self, fresh: Workload, fleet: Fleet, context: RunContext) -> Iterator[Blocker]:
        book = PolicyEvaluator(
            self.policy, fleet, at=context.clock(), own=context.state_namespace, instance=context.instance
        )
        ruling = book.evaluate(fresh)
        if ruling.mode is Mode.PROTECT:
            yield from ruling.restrictions


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


log = logging.getLogger(__name__)

LEFT_AFTER = datetime.timedelta(hours=1)
"""A manifest without its eviction is younger than that where a run is at it just now."""


ORDERED_WITHIN = datetime.timedelta(minutes=5)
"""So long a controller may take to do what it was told."""


LOOKED_AFTER = datetime.timedelta(hours=1)
"""So long, or twice the time in which it must be healthy, it may go unseen beyond that and still be put back."""


@dataclasses.dataclass(frozen=True, slots=True)
class Repair:
    """One thing that was left.

    Attributes:
        words: What was found, for people.
        found: The object; None of a manifest, whose Secret's path is `place`.
    """

    ref: ObjectRef
    mending: ReconcileAction
    words: str
    found: RecordedObject | None = None
    place: str = ""


def find_repairs(context: RunContext) -> list[Repair]:
    """Everything that was left, in a stable order. Only reads.

    Raises:
        ClusterError: A list could not be read whole.
    """
    repairs = [repair for found in _carrying(context) if (repair := _of_object(found, context)) is not None]
    repairs.extend(_of_manifests(context))
    return sorted(repairs, key=lambda repair: (repair.ref, repair.place))


def make_repairs(repairs: Iterable[Repair], context: RunContext, guard: RepairPolicy) -> Iterator[Outcome]:
    """Do what is to be done about each, telling the outcome as it is known."""
    for repair in repairs:
        outcome = _guarded(repair, context, guard)
        if context.journal:
            context.journal.outcome(outcome)
        guard.gate.note_repair(outcome)
        yield outcome


def _outcome(repair: Repair, result: Result, words: str, context: RunContext) -> Outcome:
    return Outcome(repair.ref, repair.mending.value, result, words, 0, context.clock(), is_repair=True)


def _guarded(repair: Repair, context: RunContext, guard: RepairPolicy) -> Outcome:
    try:
        context.cluster.require_writable()
    except ClusterError as error:
        return _outcome(repair, Result.SKIPPED, f"{repair.words}; not attempted: {error}", context)
    if context.journal:
        context.journal.mending(repair.ref, repair.mending.value, repair.words)
    if repair.found is None:
        return _drop(repair, context)
    try:
        why = guard.against(repair.found, repair.mending, context)
    except ClusterError as error:
        why = f"cannot tell whether it may be changed: {error}"
    if why:
        detail = f"{repair.words}; left as it is: {why}"
        return repair.found.outcome(context, repair.mending.value, Result.BLOCKED, detail)
    return _mended(repair, repair.found, context)


def _mended(repair: Repair, found: RecordedObject, context: RunContext) -> Outcome:
    match repair.mending:
        case ReconcileAction.RECORD_REVERT:
            return _remember(found, repair.words, context)
        case ReconcileAction.ROLLBACK:
            return roll_back(found, repair.words, context)
        case ReconcileAction.COMPLETE:
            return _finish(found, repair.words, context)
        case ReconcileAction.CONFIRM:
            return confirm(found, repair.words, context)
        case ReconcileAction.DELETE_MANIFEST:
            return _drop(repair, context)
        case _:
            assert_never(repair.mending)


def _carrying(context: RunContext) -> Iterator[RecordedObject]:
    """The objects that carry a record of ours which can be used; of others `undo` tells what is wrong."""
    for row in recordable_kinds(context.cluster):
        for ref, item in list_objects(context.cluster, row, SpecObject) if row is not POD else ():
            annotations = item.metadata.annotations or {}
            if UNDO_ANNOTATION not in annotations or is_copy(ref, item.metadata):
                continue
            try:
                record = read_record(annotations, row)
            except ValueError as error:
                log.warning("%s: %s", ref, error)
                continue
            if record is not None:
                metadata = msgspec.to_builtins(item.metadata)
                obj = {"metadata": metadata, "spec": json.loads(bytes(item.spec))}
                yield RecordedObject(ref, row, obj, record)


def _of_object(found: RecordedObject, context: RunContext) -> Repair | None:
    if found.record.is_unfinished:
        return _of_unfinished(found, context)
    taken_back = [edit for edit in found.record.edits if is_taken_back(found.obj, edit)]
    if taken_back:
        words = ", ".join(_now(found, edit) for edit in taken_back)
        return Repair(found.ref, ReconcileAction.RECORD_REVERT, words, found)
    if words := _not_carried_out(found, context):
        return Repair(found.ref, ReconcileAction.RECORD_REVERT, words, found)
    return _of_settling(found, context)


def _of_unfinished(found: RecordedObject, context: RunContext) -> Repair | None:
    whole = read_recorded_object(found.ref, found.row, context)
    if whole is None or not whole.record.is_unfinished or not can_complete(whole, context):
        return None
    return Repair(found.ref, ReconcileAction.COMPLETE, "it is stopped to be changed, and can go on", whole)


def _of_settling(found: RecordedObject, context: RunContext) -> Repair | None:
    is_ours = all(same(value_at(found.obj, edit.path), edit.after) for edit in found.record.edits)
    if not awaits_confirmation(found) or not is_ours:
        return None
    age = context.clock() - found.record.at
    if age >= _known_for(found):
        unseen = format_duration(age.total_seconds())
        words = f"nobody looked for {unseen}: how it bore its change is not known any more"
        return Repair(found.ref, ReconcileAction.CONFIRM, words, found)
    try:
        health, words = check_health(found, context)
    except RequestRefused as refused:
        log.warning("%s cannot be looked at: %s", found.ref, refused)
        return None
    is_over = age >= datetime.timedelta(seconds=found.record.healthy_within_seconds)
    if health is Health.WAITING or (health is Health.HEALTHY and not is_over):
        return None  # it may run out of memory yet
    mending = ReconcileAction.ROLLBACK if health is Health.FAILED else ReconcileAction.CONFIRM
    return Repair(found.ref, mending, words, found)


def _known_for(found: RecordedObject) -> datetime.timedelta:
    """How long after its change what a workload lacks is put down to that, and put back."""
    span = datetime.timedelta(seconds=found.record.healthy_within_seconds)
    return span + max(2 * span, LOOKED_AFTER)


def _finish(found: RecordedObject, words: str, context: RunContext) -> Outcome:
    try:
        outcome = complete(found, context)
    except ClusterError as error:
        return found.outcome(
            context, ReconcileAction.COMPLETE.value, Result.UNKNOWN, f"{words}; left to the next run: {error}"
        )
    assert outcome is not None  # noqa: S101 - it was due when it was found
    return outcome


def _not_carried_out(found: RecordedObject, context: RunContext) -> str:
    """Where its controller was to be told: whether it runs all the same, resumed by others or never told; in words."""
    orders = found.row.orders_for(found.record.edits)
    if orders is None or context.clock() - found.record.at < ORDERED_WITHIN:
        return ""
    obj = context.cluster.get_object(path_of(found.ref, found.row))
    state = value_at(obj, orders.state)
    if state is None or state in orders.stopped:
        return ""
    return f"it is {state}: somebody resumed it, or {found.record.edits[0].after} was never carried out"


def _now(found: RecordedObject, edit: Edit) -> str:
    now, left = (json.dumps(value) for value in (value_at(found.obj, edit.path), edit.after))
    return f"{shown(edit.path)} is {now} now, not {left} as run {found.record.run} left it"


def _remember(found: RecordedObject, words: str, context: RunContext) -> Outcome:
    at = context.clock()
    try:
        patch = reverted_patch(found.obj, found.record, at=at, came_back=_pause(found, context, at))
        context.cluster.patch(path_of(found.ref, found.row), patch)
    except RequestRefused as refused:
        return found.refused(context, "record-revert", refused, f"{words}; not noted: {refused}")
    except ClusterError as error:
        return found.outcome(context, "record-revert", Result.UNKNOWN, f"{words}; not noted: {error}")
    with log_cluster_error(f"no Event on {found.ref}"):
        context.cluster.create(*REVERTED.of(found.about, words, run=found.record.run, at=at))
    return found.outcome(context, "record-revert", Result.DONE, f"someone took it back: {words}")


def _pause(found: RecordedObject, context: RunContext, at: datetime.datetime) -> datetime.timedelta | None:
    """After which pause it was wanted back: what only took some of it away does not tell."""
    if found.record.action not in STOPS:
        return None
    fresh, _ = read_workload(found.about, context.cluster)
    known = fresh.came_back_after if fresh else None
    return known or pause_of(found.record.idle_seconds, found.record.at, at)


def _of_manifests(context: RunContext) -> Iterator[Repair]:
    """Manifests whose pods are there: never evicted, or put back by an undo that did not get to the end."""
    if not context.evicts:
        return
    path = f"/api/v1/namespaces/{context.state_namespace}/secrets"
    try:
        secrets = context.cluster.list_all(path, Metadata, metadata_only=True, label_selector=MANIFEST_LABEL)
    except RequestRefused as refused:
        if refused.code != http.HTTPStatus.FORBIDDEN:
            raise
        log.warning("saved manifests cannot be looked after: %s", refused)
        return
    by_namespace: dict[str, list[ObjectMeta]] = {}
    for secret in secrets:
        namespace = (secret.metadata.annotations or {}).get(POD_ANNOTATION, "").partition("/")[0]
        if namespace:
            by_namespace.setdefault(namespace, []).append(secret.metadata)
    for namespace, manifests in sorted(by_namespace.items()):
        collection = f"/api/v1/namespaces/{namespace}/pods"
        pods = {
            pod.metadata.name: pod.metadata
            for pod in context.cluster.list_all(collection, Metadata, metadata_only=True)
        }
        for secret_meta in manifests:
            name = (secret_meta.annotations or {})[POD_ANNOTATION].partition("/")[2]
            words = _why_not_needed(secret_meta, pods.get(name), context.clock())
            if words:
                yield Repair(
                    ObjectRef("v1", "Pod", namespace, name),
                    ReconcileAction.DELETE_MANIFEST,
                    words,
                    place=f"{path}/{secret_meta.name}",
                )


def _why_not_needed(secret: ObjectMeta, pod: ObjectMeta | None, at: datetime.datetime) -> str:
    if pod is None or pod.deletion_timestamp is not None:
        return ""
    is_same = secret.name == manifest_name(ObjectRef("v1", "Pod", pod.namespace, pod.name, pod.uid))
    if is_same:
        is_old = secret.creation_timestamp is not None and at - secret.creation_timestamp >= LEFT_AFTER
        return "the pod was never evicted, so its saved manifest is not needed" if is_old else ""
    run = (secret.labels or {}).get(MANIFEST_LABEL, "")
    is_back = any(
        (one.run, one.action, one.end) == (run, Action.EVICT, ChangeOutcome.UNDONE)
        for one in read_history(pod.annotations or {})
    )
    return "the pod was put back from its saved manifest" if is_back else ""


def _drop(repair: Repair, context: RunContext) -> Outcome:
    result, words = Result.DONE, repair.words
    try:
        context.cluster.delete(repair.place)
    except ClusterError as error:
        result, words = Result.REFUSED, f"{repair.words}; {error}"
    return _outcome(repair, result, words, context)
