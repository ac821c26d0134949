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

from rightsizer.changes.object_history import STOPS, read_history
from rightsizer.changes.records import (
    MANIFEST_LABEL,
    POD_ANNOTATION,
    UNDO_ANNOTATION,
    is_copy,
    manifest_name,
    pause_of,
)
from rightsizer.config import format_duration
from rightsizer.errors import ClusterError, RequestRefused
from rightsizer.execute.completion import go_on, is_due
from rightsizer.execute.control_state import Gate
from rightsizer.execute.listing import bearers, listed
from rightsizer.execute.preflight import look_at
from rightsizer.execute.run_context import Means, as_a_warning
from rightsizer.execute.watch_health import Found, examined, found_again, is_settling, put_back, settle
from rightsizer.kinds import path_of
from rightsizer.kinds.core import POD
from rightsizer.kinds.edits import Edit, is_taken_back, same, shown, value_at
from rightsizer.kinds.health import Health
from rightsizer.kinds.patches import read_record, reverted_patch
from rightsizer.kube.api_objects import Metadata, ObjectMeta, SpecObject
from rightsizer.model import (
    Action,
    Blocker,
    ChangeOutcome,
    Fleet,
    Mode,
    ObjectRef,
    Outcome,
    ReconcileAction,
    Result,
    Workload,
)
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.protections import opt_outs, protections
from rightsizer.policy.schema import Policy
from rightsizer.report.events import reverted_event


@dataclasses.dataclass(frozen=True, slots=True)
class Guard:
    """Asked before each repair.

    Attributes:
        gate: The breaker is asked; pauses keep nothing from being put back.
    """

    policy: Policy
    gate: Gate

    def against(self, found: Found, mending: ReconcileAction, means: Means) -> str:
        """Why an object is left as it is; empty where it may be mended.

        Raises:
            ClusterError: It could not be found out.
        """
        is_open = self.gate.trip() if mending is ReconcileAction.ROLLBACK else ""
        if is_open:
            return f"the breaker is open, and nothing is put back before a person has closed it: {is_open}"
        vetoes = self._vetoes(found, means)
        if mending is ReconcileAction.COMPLETE:  # who opted out meanwhile did not ask to be left half-way
            vetoes = [veto for veto in vetoes if veto.source != "opt-out"]
        return "; ".join(veto.message for veto in vetoes)

    def _vetoes(self, found: Found, means: Means) -> list[Blocker]:
        fresh, fleet = look_at(found.about, means.cluster)
        if fresh is not None:
            return list(self._by_rules(fresh, fleet, means))
        # No pods, by which rules are sought: what holds for the object and its namespace.
        path = f"/api/v1/namespaces/{found.ref.namespace}"
        bare = _without_pods(found, means.cluster.get(path, Metadata).metadata.annotations or {})
        wishes = opt_outs(bare, means.clock()) if self.policy.respectOptOut else ()
        shields = protections(bare, self.policy, means.state_namespace)
        return [*shields, *(wish.veto for wish in wishes if wish.mode is Mode.PROTECT)]

    def _by_rules(self, fresh: Workload, fleet: Fleet, means: Means) -> Iterator[Blocker]:
        book = PolicyEvaluator(
            self.policy, fleet, at=means.clock(), own=means.state_namespace, instance=means.instance
        )
        ruling = book.evaluate(fresh)
        if ruling.mode is Mode.PROTECT:
            yield from ruling.restrictions


def _without_pods(found: Found, namespace_annotations: dict[str, str]) -> Workload:
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
    found: Found | None = None
    place: str = ""


def find_repairs(means: Means) -> list[Repair]:
    """Everything that was left, in a stable order. Only reads.

    Raises:
        ClusterError: A list could not be read whole.
    """
    repairs = [repair for found in _carrying(means) if (repair := _of_object(found, means)) is not None]
    repairs.extend(_of_manifests(means))
    return sorted(repairs, key=lambda repair: (repair.ref, repair.place))


def mend(repairs: Iterable[Repair], means: Means, guard: Guard) -> Iterator[Outcome]:
    """Do what is to be done about each, telling the outcome as it is known."""
    for repair in repairs:
        outcome = _guarded(repair, means, guard)
        if means.journal:
            means.journal.outcome(outcome)
        guard.gate.note_repair(outcome)
        yield outcome


def _outcome(repair: Repair, result: Result, words: str, means: Means) -> Outcome:
    return Outcome(repair.ref, repair.mending.value, result, words, 0, means.clock(), is_repair=True)


def _guarded(repair: Repair, means: Means, guard: Guard) -> Outcome:
    try:
        means.cluster.require_writable()
    except ClusterError as error:
        return _outcome(repair, Result.SKIPPED, f"{repair.words}; not attempted: {error}", means)
    if means.journal:
        means.journal.mending(repair.ref, repair.mending.value, repair.words)
    if repair.found is None:
        return _drop(repair, means)
    try:
        why = guard.against(repair.found, repair.mending, means)
    except ClusterError as error:
        why = f"whether it may be mended is not known: {error}"
    if why:
        detail = f"{repair.words}; left as it is: {why}"
        return repair.found.outcome(means, repair.mending.value, Result.BLOCKED, detail)
    return _mended(repair, repair.found, means)


def _mended(repair: Repair, found: Found, means: Means) -> Outcome:
    match repair.mending:
        case ReconcileAction.RECORD_REVERT:
            return _remember(found, repair.words, means)
        case ReconcileAction.ROLLBACK:
            return put_back(found, repair.words, means)
        case ReconcileAction.COMPLETE:
            return _finish(found, repair.words, means)
        case ReconcileAction.CONFIRM:
            return settle(found, repair.words, means)
        case ReconcileAction.DELETE_MANIFEST:
            return _drop(repair, means)
        case _:
            assert_never(repair.mending)


def _carrying(means: Means) -> Iterator[Found]:
    """The objects that carry a record of ours which can be used; of others `undo` tells what is wrong."""
    for row in bearers(means.cluster):
        for ref, item in listed(means.cluster, row, SpecObject) if row is not POD else ():
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
                yield Found(ref, row, obj, record)


def _of_object(found: Found, means: Means) -> Repair | None:
    if found.record.is_unfinished:
        return _of_unfinished(found, means)
    taken_back = [edit for edit in found.record.edits if is_taken_back(found.obj, edit)]
    if taken_back:
        words = ", ".join(_now(found, edit) for edit in taken_back)
        return Repair(found.ref, ReconcileAction.RECORD_REVERT, words, found)
    if words := _not_carried_out(found, means):
        return Repair(found.ref, ReconcileAction.RECORD_REVERT, words, found)
    return _of_settling(found, means)


def _of_unfinished(found: Found, means: Means) -> Repair | None:
    whole = found_again(found.ref, found.row, means)
    if whole is None or not whole.record.is_unfinished or not is_due(whole, means):
        return None
    return Repair(found.ref, ReconcileAction.COMPLETE, "it is stopped to be changed, and can go on", whole)


def _of_settling(found: Found, means: Means) -> Repair | None:
    is_ours = all(same(value_at(found.obj, edit.path), edit.after) for edit in found.record.edits)
    if not is_settling(found) or not is_ours:
        return None
    age = means.clock() - found.record.time
    if age >= _known_for(found):
        unseen = format_duration(age.total_seconds())
        words = f"nobody looked for {unseen}: how it bore its change is not known any more"
        return Repair(found.ref, ReconcileAction.CONFIRM, words, found)
    try:
        health, words = examined(found, means)
    except RequestRefused as refused:
        log.warning("%s cannot be looked at: %s", found.ref, refused)
        return None
    is_over = age >= datetime.timedelta(seconds=found.record.settle)
    if health is Health.WAITING or (health is Health.HEALTHY and not is_over):
        return None  # it may run out of memory yet
    mending = ReconcileAction.ROLLBACK if health is Health.FAILED else ReconcileAction.CONFIRM
    return Repair(found.ref, mending, words, found)


def _known_for(found: Found) -> datetime.timedelta:
    """How long after its change what a workload lacks is put down to that, and put back."""
    settle = datetime.timedelta(seconds=found.record.settle)
    return settle + max(2 * settle, LOOKED_AFTER)


def _finish(found: Found, words: str, means: Means) -> Outcome:
    try:
        outcome = go_on(found, means)
    except ClusterError as error:
        return found.outcome(
            means, ReconcileAction.COMPLETE.value, Result.UNKNOWN, f"{words}; left to the next run: {error}"
        )
    assert outcome is not None  # noqa: S101 - it was due when it was found
    return outcome


def _not_carried_out(found: Found, means: Means) -> str:
    """Where its controller was to be told: whether it runs all the same, resumed by others or never told; in words."""
    orders = found.row.orders_for(found.record.edits)
    if orders is None or means.clock() - found.record.time < ORDERED_WITHIN:
        return ""
    obj = means.cluster.get_object(path_of(found.ref, found.row))
    state = value_at(obj, orders.state)
    if state is None or state in orders.stopped:
        return ""
    return f"it is {state}: somebody resumed it, or {found.record.edits[0].after} was never carried out"


def _now(found: Found, edit: Edit) -> str:
    now, left = (json.dumps(value) for value in (value_at(found.obj, edit.path), edit.after))
    return f"{shown(edit.path)} is {now} now, not {left} as run {found.record.run} left it"


def _remember(found: Found, words: str, means: Means) -> Outcome:
    at = means.clock()
    try:
        patch = reverted_patch(found.obj, found.record, at=at, came_back=_pause(found, means, at))
        means.cluster.patch(path_of(found.ref, found.row), patch)
    except RequestRefused as refused:
        return found.refused(means, "record-revert", refused, f"{words}; not noted: {refused}")
    except ClusterError as error:
        return found.outcome(means, "record-revert", Result.UNKNOWN, f"{words}; not noted: {error}")
    with as_a_warning(f"no Event on {found.ref}"):
        means.cluster.create(*reverted_event(found.about, words, run=found.record.run, at=at))
    return found.outcome(means, "record-revert", Result.DONE, f"someone took it back: {words}")


def _pause(found: Found, means: Means, at: datetime.datetime) -> datetime.timedelta | None:
    """After which pause it was wanted back: what only took some of it away does not tell."""
    if found.record.action not in STOPS:
        return None
    fresh, _ = look_at(found.about, means.cluster)
    known = fresh.came_back_after if fresh else None
    return known or pause_of(found.record.idle, found.record.time, at)


def _of_manifests(means: Means) -> Iterator[Repair]:
    """Manifests whose pods are there: never evicted, or put back by an undo that did not get to the end."""
    if not means.evicts:
        return
    path = f"/api/v1/namespaces/{means.state_namespace}/secrets"
    try:
        secrets = means.cluster.list_all(path, Metadata, metadata_only=True, label_selector=MANIFEST_LABEL)
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
            for pod in means.cluster.list_all(collection, Metadata, metadata_only=True)
        }
        for secret_meta in manifests:
            name = (secret_meta.annotations or {})[POD_ANNOTATION].partition("/")[2]
            words = _why_not_needed(secret_meta, pods.get(name), means.clock())
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


def _drop(repair: Repair, means: Means) -> Outcome:
    result, words = Result.DONE, repair.words
    try:
        means.cluster.delete(repair.place)
    except ClusterError as error:
        result, words = Result.REFUSED, f"{repair.words}; {error}"
    return _outcome(repair, result, words, means)
