"""Do-not-disrupt annotations of other tools, and how workloads of other controllers are treated. Pure.

A workload with such an annotation stays in the plan as advice. To support another annotation, add a row.
"""

import dataclasses
import datetime
import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from rightsizer.inventory.node_holds import DO_NOT_DISRUPT, SAFE_TO_EVICT, do_not_disrupt_end
from rightsizer.model import Action, Blocker, BlockerCode, Manager, Mode, Pod, Workload
from rightsizer.text import read_instant

_NO = frozenset({"false"})
_YES = frozenset({"true"})


class Mark(enum.StrEnum):
    """The tools whose do-not-disrupt annotations are known."""

    CLUSTER_AUTOSCALER = "cluster-autoscaler"
    KARPENTER = "karpenter"
    DESCHEDULER = "descheduler"
    VOLCANO = "volcano"
    DOWNSCALER = "downscaler"
    GPU_PRUNER = "gpu-pruner"
    KUBEFLOW = "kubeflow"


ALL_MARKS = tuple(Mark)


def _unless(harmless: frozenset[str]) -> Callable[[str, Pod | None, datetime.datetime], bool]:
    """A test that takes any value but these for the mark: a slip in it must not lift it."""
    return lambda value, _pod, _at: value.strip().lower() not in harmless


def _present(_value: str, _pod: Pod | None, _at: datetime.datetime) -> bool:
    return True


def _until(value: str, _pod: Pod | None, at: datetime.datetime) -> bool:
    end = read_instant(value, zone=datetime.UTC)
    return end is None or at < end


def _true_or_for(value: str, pod: Pod | None, at: datetime.datetime) -> bool:
    """Karpenter takes true, or a duration; what it ignores is taken for true unless it is false."""
    if value.strip().lower() in _NO:
        return False
    try:
        end = do_not_disrupt_end(value, pod.acknowledged if pod else None)
    except ValueError:
        return True
    return end is None or at < end


@dataclasses.dataclass(frozen=True, slots=True)
class MarkRow:
    """One annotation (or label) of another tool.

    Attributes:
        holds: Whether a value of it, on a pod or (None) on something above it, asks not to be disturbed at an instant.
        words: What it asks for, for the documentation.
    """

    mark: Mark
    key: str
    words: str
    holds: Callable[[str, Pod | None, datetime.datetime], bool]


ROWS = (
    MarkRow(
        Mark.CLUSTER_AUTOSCALER,
        SAFE_TO_EVICT,
        "anything but `true`",
        _unless(_YES),
    ),
    MarkRow(
        Mark.KARPENTER,
        DO_NOT_DISRUPT,
        "anything but `false`; a duration counts from the pod's `status.startTime`",
        _true_or_for,
    ),
    MarkRow(
        Mark.DESCHEDULER, "descheduler.alpha.kubernetes.io/prefer-no-eviction", "present, any value", _present
    ),
    MarkRow(Mark.VOLCANO, "volcano.sh/preemptable", "anything but `true`", _unless(_YES)),
    MarkRow(Mark.DOWNSCALER, "downscaler/exclude", "anything but `false`", _unless(_NO)),
    MarkRow(Mark.DOWNSCALER, "downscaler/exclude-until", "a time in the future", _until),
    MarkRow(Mark.GPU_PRUNER, "gpu-pruner.io/ack-until", "a time in the future", _until),
    MarkRow(Mark.KUBEFLOW, "notebooks.kubeflow.org/disable-culling", "anything but `false`", _unless(_NO)),
)

_KEYS = frozenset(row.key for row in ROWS)


def marks_on(workload: Workload, honoured: tuple[Mark, ...], at: datetime.datetime) -> Iterator[Blocker]:
    """The marks on a workload, its pods and its namespace that hold at an instant."""
    rows = [row for row in ROWS if row.mark in honoured]
    for owner, texts, pod in _where(workload):
        if _KEYS.isdisjoint(texts):
            continue
        for row in rows:
            value = texts.get(row.key)
            if value is not None and row.holds(value, pod, at):
                yield Blocker(
                    BlockerCode.PROTECTED,
                    f"{row.key}: {value!r} on {owner}",
                    source=f"mark:{row.mark.value}",
                )


def _where(workload: Workload) -> Iterator[tuple[str, Mapping[str, str], Pod | None]]:
    """Each place with its annotations and labels; a few tools' marks are labels."""
    ref = workload.ref
    yield f"{ref.kind} {ref.name}", workload.annotations, None
    yield f"{ref.kind} {ref.name}", workload.labels, None
    for pod in workload.pods:
        yield f"pod {pod.ref.name}", pod.annotations, pod
        yield f"pod {pod.ref.name}", pod.labels, pod
    yield f"namespace {ref.namespace}", workload.namespace_annotations, None


MANAGERS: Final = (
    "argo-cd",
    "field-manager",
    "flux",
    "helm",
    "horizontalpodautoscaler",
    "keda",
    "kueue",
    "verticalpodautoscaler",
)
"""Managers that a policy may name."""


def controller_mode(manager: Manager, modes: Mapping[str, Mode], action: Action | None = None) -> Mode:
    """The mode of a workload of this manager.

    Where the policy says nothing, what the manager would revert gets only advice.
    """
    name = manager.kind.lower().replace(" ", "-")
    return modes.get(name) or (Mode.ADVISE if would_revert(manager, action) else Mode.ENFORCE)


def would_revert(manager: Manager, action: Action | None) -> bool:
    """Whether the manager reverts the action: anything, or, if it only scales, another number of replicas."""
    return manager.reverts or (manager.scales and action in {Action.SCALE_DOWN, Action.SCALE_UP})
