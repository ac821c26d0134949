"""After a change: did the pods go, are their GPUs free, who has them now, and is well what goes on with less.

What is not known when the time is over is left to the repair at the beginning of the next run, and so is what may run
out of memory later.
"""

import dataclasses
import logging
from collections.abc import Iterator, Sequence

from rightsizer.errors import ClusterError
from rightsizer.execute.completion import complete
from rightsizer.execute.run_context import PAUSE_S, Deadline, RunContext, log_cluster_error
from rightsizer.execute.watch_health import awaits_confirmation, check_health, read_recorded_object, roll_back
from rightsizer.inventory.cluster_reader import resource_table
from rightsizer.inventory.pods import PodTable
from rightsizer.kinds import kind_of, pause_for
from rightsizer.kinds.health import Health
from rightsizer.kube.api_objects import Metadata, PodObject
from rightsizer.model import Action, Decision, Effect, Fleet, Outcome, Pod, ReconcileAction
from rightsizer.report.events import NOT_FREED
from rightsizer.text import count, tidy

log = logging.getLogger(__name__)


def verify(
    done: Sequence[tuple[Decision, Outcome]], fleet: Fleet, context: RunContext, deadline: Deadline
) -> Iterator[Outcome]:
    """Each outcome again, with its effect, as that is known; then, where it had to be put back, what became of that.

    Args:
        done: What was changed.
        fleet: As it was before.
        context: To look, and to put back.
        deadline: How long.
    """
    left = [_Followed(decision, outcome) for decision, outcome in done]
    for spent_s in deadline.rounds():
        for one in left:
            yield from one.look(fleet, context, deadline, spent_s=spent_s)
        left = [one for one in left if one.is_left]
        if not left:
            return


@dataclasses.dataclass(slots=True)
class _Followed:
    """A change that is looked at until it is known what it came to.

    Attributes:
        is_told: Whether that was told.
        is_paused: Whether it is stopped, and is to go on.
        is_left: Whether it is to be looked at again.
    """

    decision: Decision
    outcome: Outcome
    is_told: bool = False
    is_paused: bool = False
    is_left: bool = True

    def look(
        self, fleet: Fleet, context: RunContext, deadline: Deadline, *, spent_s: float
    ) -> Iterator[Outcome]:
        """What has become known since the last look."""
        yield from self._go_on(context)
        span_s = max(deadline.span_s, PAUSE_S) if self.is_paused else deadline.span_s
        is_last = spent_s >= span_s or deadline.is_stopped()
        if not self.is_told:
            effect, also = _looked(self.decision, fleet, context)
            if is_last or not (effect.left or effect.health == Health.WAITING):
                yield from self._tell(effect)
                yield from also
                _complain(self.decision, effect, context)
                self.is_paused = self.is_paused or (bool(also) and self._pauses)
        is_over = spent_s >= PAUSE_S or deadline.is_stopped()
        self.is_left = not self.is_told or (self.is_paused and not is_over)

    @property
    def _pauses(self) -> bool:
        return pause_for(self.decision.workload, self.decision.finding.proposal) is not None

    def _tell(self, effect: Effect) -> Iterator[Outcome]:
        self.is_told = True
        yield dataclasses.replace(self.outcome, effect=effect)

    def _go_on(self, context: RunContext) -> Iterator[Outcome]:
        """What was stopped to change it goes on as soon as it can."""
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
        if outcome.action != ReconcileAction.COMPLETE and not self.is_told:
            yield from self._tell(Effect(0, 0, 0, health=Health.FAILED, words="it runs again, unchanged"))
        yield outcome


def _complain(decision: Decision, effect: Effect, context: RunContext) -> None:
    """An owner whose pods do not go finds out why the GPUs are not free."""
    if effect.left and effect.gone + effect.left:
        ref = decision.workload.ref
        with log_cluster_error(f"no Event on {ref}"):
            context.cluster.create(*NOT_FREED.of(ref, effect.words, run=context.run, at=context.clock()))


def _looked(decision: Decision, fleet: Fleet, context: RunContext) -> tuple[Effect, list[Outcome]]:
    """What a change has come to by now, and what had to be put back."""
    try:
        effect = _of_pods(decision, fleet, context)
        if decision.action not in {Action.SCALE_DOWN, Action.RESIZE, Action.RESLICE}:
            return effect, []
        health, words, also = _of_rest(decision, context)
    except ClusterError as error:
        return Effect(0, decision.pods_going, 0, words=f"could not verify the change: {error}"), []
    words = "; ".join(filter(None, (effect.words, words)))
    return dataclasses.replace(effect, health=health, words=words), also


def _of_pods(decision: Decision, fleet: Fleet, context: RunContext) -> Effect:
    path = f"/api/v1/namespaces/{decision.workload.ref.namespace}/pods"
    there = {pod.metadata.uid for pod in context.cluster.list_all(path, Metadata, metadata_only=True)}
    gone = [pod for pod in decision.workload.holding if pod.ref.uid not in there]
    going = decision.pods_going
    left = max(going - len(gone), 0)
    nodes = sorted({pod.node for pod in gone})
    away = tuple(node for node in nodes if _is_gone(node, context))
    takers = [pod for node in nodes if node not in away for pod in _newcomers(node, fleet, context)]
    takers = [pod for pod in takers if pod.devices and not _is_own(pod, decision)]
    lost = sum(pod.devices for pod in gone if pod.node in away)
    freed = sum(pod.devices for pod in gone) if left else max(tidy(decision.frees), 0)
    free = tidy(max(freed - lost - sum(pod.devices for pod in takers), 0))
    refs = tuple(sorted(pod.ref for pod in takers))
    effect = Effect(min(len(gone), going), left, free, refs, away)
    return dataclasses.replace(effect, words=_words(effect))


def _is_own(pod: Pod, decision: Decision) -> bool:
    """Whether it is one of the pods with less that stand in for those that went."""
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
    return context.cluster.find(f"/api/v1/nodes/{node}", Metadata) is None


def _newcomers(node: str, fleet: Fleet, context: RunContext) -> list[Pod]:
    """GPU pods that are on a node and were not before."""
    table = PodTable(resource_table(context.cluster.gpu_resources))
    selector = f"spec.nodeName={node}"
    table.add(context.cluster.list_all("/api/v1/pods", PodObject, field_selector=selector))
    known = {pod.ref.uid for pod in fleet.pods_on.get(node, ())}
    return [
        seen.pod for seen in table.gpu_pods if seen.pod.ref.uid not in known and not seen.pod.is_terminating
    ]


def _words(effect: Effect) -> str:
    parts = []
    if effect.gone or effect.left:
        parts.append(f"{effect.gone} of {count(effect.gone + effect.left, 'pod')} gone")
    if effect.nodes_gone:
        parts.append(f"{', '.join(effect.nodes_gone)} removed")
    if effect.free:
        parts.append(f"{count(effect.free)} free")
    if effect.taken_by:
        parts.append(f"taken by {', '.join(map(str, effect.taken_by))}")
    return "; ".join(parts)


def _of_rest(decision: Decision, context: RunContext) -> tuple[Health | str, str, list[Outcome]]:
    """How what goes on with less is, and what had to be put back."""
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
