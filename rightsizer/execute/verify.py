"""Verifies a change: are the pods gone, are their GPUs free or used by other pods, and are the remaining pods healthy.

Reconciliations of the next run check what is unknown at the deadline, and pods that may run out of memory later.
"""

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from rightsizer.errors import ClusterError
from rightsizer.execute.change_log import logged
from rightsizer.execute.patch import recorded_on
from rightsizer.execute.reconcile_actions import (
    NO_POD_WENT,
    awaits_confirmation,
    check_health,
    complete,
    read_recorded_object,
    roll_back,
)
from rightsizer.execute.run_context import PAUSE_S, Deadline, RunContext
from rightsizer.inventory.cluster_reader import resource_table
from rightsizer.inventory.owner_reader import OptionalLister
from rightsizer.inventory.pods import PodReader, PodTable
from rightsizer.inventory.resource_claims import CLAIMS, ClaimObject, claim_of, device_users
from rightsizer.kinds import kind_of, pause_for, row_of
from rightsizer.kinds.health import Health
from rightsizer.kube.api_objects import Metadata, PodObject
from rightsizer.kube.object_names import api_path
from rightsizer.model import Action, ClaimKey, Decision, Effect, Fleet, Outcome, Pod, ReconcileAction, Result
from rightsizer.model.gpu_fractions import whole_gpus
from rightsizer.report.events import NOT_FREED
from rightsizer.text import count, tidy

log = logging.getLogger(__name__)


def verify(
    done: Sequence[tuple[Decision, Outcome]], fleet: Fleet, context: RunContext, deadline: Deadline
) -> Iterator[Outcome]:
    """Each outcome again, with its effect, once that is known; and the outcome of its rollback, if any.

    `fleet` is as it was before the changes.
    """
    left = [_Followed(decision, outcome) for decision, outcome in done]
    for spent_s in deadline.rounds():
        for followed in left:
            yield from followed.check(fleet, context, deadline, spent_s=spent_s)
        left = [followed for followed in left if followed.is_left]
        if not left:
            return


@dataclasses.dataclass(slots=True)
class _Followed:
    """A change that is checked until its effect is known.

    Attributes:
        is_reported: Whether its effect was reported.
        is_paused: Whether it is suspended, and is to be resumed.
        is_left: Whether it is to be checked again.
    """

    decision: Decision
    outcome: Outcome
    is_reported: bool = False
    is_paused: bool = False
    is_left: bool = True

    def check(
        self, fleet: Fleet, context: RunContext, deadline: Deadline, *, spent_s: float
    ) -> Iterator[Outcome]:
        """Outcomes since the last check."""
        yield from self._resume(context)
        if not self.is_reported:
            effect, rollbacks = _effect(self.decision, fleet, context)
            waits = effect.left or effect.is_deallocating or effect.health == Health.WAITING
            is_open = waits and not rollbacks
            is_waited_for = self.is_paused or not effect.has_begun
            span_s = max(deadline.span_s, PAUSE_S) if is_waited_for else deadline.span_s
            is_cut_short = deadline.is_stopped() or deadline.is_wanted()
            if not effect.has_begun and spent_s >= span_s and not is_cut_short:
                self.outcome = self._taken_back(context)
            if spent_s >= span_s or is_cut_short or not is_open:
                yield self._reported(effect, context)
                yield from rollbacks
                _warn_owner(self.decision, effect, context)
                self.is_paused = self.is_paused or (bool(rollbacks) and self._pauses)
        is_over = spent_s >= PAUSE_S or deadline.is_stopped()
        self.is_left = not self.is_reported or (self.is_paused and not is_over)

    def _taken_back(self, context: RunContext) -> Outcome:
        """The outcome once the change is rolled back, since none of its pods even terminates."""
        workload, row = self.decision.workload, row_of(self.decision.workload)
        assert row is not None  # noqa: S101 - it was changed
        along = [(ref, there) for ref in self.decision.along if (there := kind_of(ref)) is not None]
        words = []
        for ref, there in (recorded_on(self.decision, row), *along):
            try:
                found = read_recorded_object(ref, there, context)
            except ClusterError as error:
                words.append(f"{ref} cannot be read: {error}")
                continue
            if found is not None and found.record.run == context.run:
                words.append(roll_back(found, NO_POD_WENT, context).detail)
        detail = "; ".join(words) or f"{NO_POD_WENT}; its record is gone from {workload.ref}"
        return dataclasses.replace(self.outcome, result=Result.NO_EFFECT, detail=detail)

    @property
    def _pauses(self) -> bool:
        return pause_for(self.decision.workload, self.decision.finding.proposal) is not None

    def _reported(self, effect: Effect, context: RunContext) -> Outcome:
        self.is_reported = True
        return logged(dataclasses.replace(self.outcome, effect=effect), context.run)

    def _resume(self, context: RunContext) -> Iterator[Outcome]:
        """Complete a change that suspends its workload as soon as possible."""
        ref = self.decision.workload.ref
        row = kind_of(ref) if self._pauses else None
        if row is None:
            return
        try:
            found = read_recorded_object(ref, row, context)
            self.is_paused = found is not None and found.record.is_unfinished
            outcome = complete(found, context) if found is not None and self.is_paused else None
        except ClusterError as error:
            log.warning("%s is suspended for its change, and cannot be read: %s", ref, error)
            return
        if outcome is None:
            return
        self.is_paused = False
        if outcome.action != ReconcileAction.COMPLETE and not self.is_reported:
            effect = Effect(0, 0, 0, health=Health.FAILED, words="it runs again, unchanged")
            yield self._reported(effect, context)
        yield outcome


def _warn_owner(decision: Decision, effect: Effect, context: RunContext) -> None:
    """Tell the owner of pods that do not terminate why their GPUs are not free."""
    if effect.left and effect.gone + effect.left:
        ref = decision.workload.ref
        context.publish(NOT_FREED, ref, effect.words, run=context.run)


def _effect(decision: Decision, fleet: Fleet, context: RunContext) -> tuple[Effect, list[Outcome]]:
    """The effect of a change so far, and the outcome of its rollback, if any."""
    try:
        effect = _of_pods(decision, fleet, context)
        if decision.action not in {Action.SCALE_DOWN, Action.RESIZE, Action.RESLICE}:
            return effect, []
        health, words, rollbacks = _of_rest(decision, context)
    except ClusterError as error:
        return Effect(0, decision.pods_going, 0, words=f"could not verify the change: {error}"), []
    words = "; ".join(filter(None, (effect.words, words)))
    return dataclasses.replace(effect, health=health, words=words), rollbacks


def _of_pods(decision: Decision, fleet: Fleet, context: RunContext) -> Effect:
    path = api_path("v1", decision.workload.ref.namespace, "pods")
    there = {
        pod.metadata.uid: pod.metadata.deletion_timestamp is not None
        for pod in context.cluster.list_all(path, Metadata, metadata_only=True)
    }
    gone = [pod for pod in decision.workload.holding if pod.ref.uid not in there]
    going = decision.pods_going
    left = max(going - len(gone), 0)
    nodes = sorted({pod.node for pod in gone})
    away = tuple(node for node in nodes if _is_gone(node, context))
    others = [pod for node in nodes if node not in away for pod in _new_pods(node, fleet, context)]
    claims = _Claims.read([*gone, *others], fleet, context)
    users = [pod for pod in others if (pod.devices or claims.gpus(pod)) and not _is_own(pod, decision)]
    lost = sum(pod.gpus for pod in gone if pod.node in away)
    freed = sum(pod.gpus for pod in gone) if left else max(decision.frees, 0)
    taken = sum(
        whole_gpus(pod, fleet.nodes.get(pod.node)) if pod.devices else claims.gpus(pod) for pod in users
    )
    held = sum(pod.gpus for pod in gone if pod.node not in away and claims.allocated(pod))
    free = tidy(max(freed - lost - taken - held, 0))
    refs = tuple(sorted(pod.ref for pod in users))
    has_begun = len(gone) > 0 or not left or any(there[pod.ref.uid] for pod in decision.workload.holding)
    effect = Effect(
        min(len(gone), going),
        left,
        free,
        refs,
        away,
        claims.are_unused(gone),
        has_begun=has_begun or not _begins_soon(decision),
    )
    words = (_description(effect), claims.description(gone))
    return dataclasses.replace(effect, words="; ".join(filter(None, words)))


def _begins_soon(decision: Decision) -> bool:
    """Whether pods go at once; rollouts replace them first, and Knative waits for its window without requests."""
    row = row_of(decision.workload)
    if row is None or row.stop is None or row.stop.field is None or row.wakes:
        return False
    return decision.finding.proposal is None or decision.action is Action.SCALE_DOWN


@dataclasses.dataclass(frozen=True, slots=True)
class _Claims:
    """ResourceClaims as they are now, by namespace and name, and the GPUs that they hold."""

    found: Mapping[ClaimKey, ClaimObject]
    held: Mapping[ClaimKey, float]

    @classmethod
    def read(cls, pods: Sequence[Pod], fleet: Fleet, context: RunContext) -> Self:
        """Read the claims in the namespaces of these pods, as far as they have claims."""
        items: list[ClaimObject] = []
        for namespace in sorted({pod.ref.namespace for pod in pods if pod.claims}):
            lister = OptionalLister(context.cluster, f"/namespaces/{namespace}")
            items += lister.all(lister.paths(CLAIMS), ClaimObject)
        known = {device.id: device for devices in fleet.devices.nodes.values() for device in devices}
        users = device_users(items)
        found = {(claim.metadata.namespace, claim.metadata.name): claim for claim in items}
        resources = resource_table(context.cluster.gpu_resources)
        claims = {key: claim_of(obj, resources, lambda _: False, known, users) for key, obj in found.items()}
        return cls(found, {key: claim.gpus or 0.0 for key, claim in claims.items() if claim.allocation})

    def gpus(self, pod: Pod) -> float:
        """The GPUs that a pod's claims hold."""
        return sum(self.held.get((pod.ref.namespace, name), 0.0) for name in pod.claims)

    def allocated(self, pod: Pod) -> list[ClaimObject]:
        """The claims of a pod that hold GPUs."""
        keys = [(pod.ref.namespace, name) for name in pod.claims]
        return [self.found[key] for key in keys if self.held.get(key)]

    def are_unused(self, gone: Sequence[Pod]) -> bool:
        """Whether claims are allocated that no other pods use, so that they will soon be free."""
        uids = {pod.ref.uid for pod in gone}
        return any(
            all(user.uid in uids for user in claim.status.reserved_for or ())
            for pod in gone
            for claim in self.allocated(pod)
        )

    def description(self, gone: Sequence[Pod]) -> str:
        """The claims that still hold GPUs, in words."""
        names = sorted({claim.metadata.name for pod in gone for claim in self.allocated(pod)})
        return f"still allocated: {', '.join(names)}" if names else ""


def _is_own(pod: Pod, decision: Decision) -> bool:
    """Whether it replaces one of the pods that are gone."""
    if decision.action not in {Action.SCALE_DOWN, Action.RESIZE, Action.RESLICE}:
        return False
    first = decision.workload.pods[0]
    return pod.ref.namespace == first.ref.namespace and pod.labels.items() >= {
        (key, value) for key, value in first.labels.items() if key not in _OF_ONE_VERSION
    }


_OF_ONE_VERSION = frozenset(
    {
        *("pod-template-hash", "controller-revision-hash"),
        *("statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"),
        "batch.kubernetes.io/job-completion-index",
    }
)
"""Labels by which pods of one owner differ."""


def _is_gone(node: str, context: RunContext) -> bool:
    return context.cluster.find(api_path("v1", "", "nodes", node), Metadata) is None


def _new_pods(node: str, fleet: Fleet, context: RunContext) -> list[Pod]:
    table, read = PodTable(), PodReader(resource_table(context.cluster.gpu_resources))
    selector = f"spec.nodeName={node}"
    table.add(map(read, context.cluster.list_all("/api/v1/pods", PodObject, field_selector=selector)))
    known = {pod.ref.uid for pod in fleet.pods_on.get(node, ())}
    return [
        seen.pod for seen in table.gpu_pods if seen.pod.ref.uid not in known and not seen.pod.is_terminating
    ]


def _description(effect: Effect) -> str:
    parts = []
    if effect.gone or effect.left:
        parts.append(f"{effect.gone} of {count(effect.gone + effect.left, 'pod')} gone")
    if effect.nodes_gone:
        parts.append(f"{', '.join(effect.nodes_gone)} removed")
    if effect.free:
        parts.append(f"{count(effect.free)} free")
    if effect.used_by:
        parts.append(f"used by {', '.join(map(str, effect.used_by))}")
    return "; ".join(parts)


def _of_rest(decision: Decision, context: RunContext) -> tuple[Health | str, str, list[Outcome]]:
    """The health of the remaining pods, and the outcome of a rollback, if any."""
    row = kind_of(decision.workload.ref)
    found = read_recorded_object(decision.workload.ref, row, context) if row else None
    if found is None or not awaits_confirmation(found):
        return "", "", []
    if found.record.is_unfinished:
        return Health.WAITING, "it is suspended until its pods are gone, and resumed then", []
    health, words = check_health(found, context)
    if health is Health.FAILED:
        return health, words, [roll_back(found, words, context)]
    return health, words, []
