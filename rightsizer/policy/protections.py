"""Protections that no rule can override, and opt-outs of owners; all reasons are kept. Pure.

Annotations of users can only reduce what is done; an unreadable one counts as opted out, and so does an
unknown one with gpu-rightsizer's prefix: it may be a misspelt opt-out.
"""

import dataclasses
import datetime
import re
from collections.abc import Iterator, Mapping
from typing import Final

from rightsizer.changes.record_codec import RECORDS
from rightsizer.config import PREFIX
from rightsizer.model import Blocker, BlockerCode, Mode, Pod, Workload
from rightsizer.policy.classes import ANNOTATIONS
from rightsizer.policy.do_not_disrupt import controller_mode
from rightsizer.policy.match import is_any
from rightsizer.policy.schema import Policy
from rightsizer.text import instant, read_instant

SYSTEM_PRIORITY = 1_000_000_000
"""Kubernetes reserves priorities above this for system classes (scheduling.k8s.io/v1 PriorityClass)."""

SYSTEM_NAMESPACES = (
    # The control plane's, the GPU Operator's (on OpenShift by the other name), and gpu-rightsizer's by default.
    *("kube-system", "kube-public", "kube-node-lease"),
    *("gpu-operator", "nvidia-gpu-operator", "gpu-rightsizer"),
)
"""No configuration opens them."""

OWN_NAMESPACE = "gpu-rightsizer"
OWN_LABEL = ("app.kubernetes.io/name", "gpu-rightsizer")

UNTOUCHABLE_KINDS = frozenset({"DaemonSet", "Node"})
"""DaemonSets are the cluster's own machinery; Node owns the kubelet's static pods."""

MODE_ANNOTATION = PREFIX + "mode"
EXCLUDE_ANNOTATION = PREFIX + "exclude"
EXCLUDE_UNTIL_ANNOTATION = PREFIX + "exclude-until"
MIN_REPLICAS_ANNOTATION = PREFIX + "min-replicas"

OPT_OUT: Final = "opt-out"
"""Source of blockers by an owner's opt-out."""

OPT_OUTS: Final[Mapping[str, str]] = {
    MODE_ANNOTATION: "`off`: left alone; `advise`: shown only; `enforce` changes nothing",
    EXCLUDE_ANNOTATION: "`true`: left alone; `false` changes nothing",
    EXCLUDE_UNTIL_ANNOTATION: "left alone until `2026-12-01T18:00:00Z`, or to the end of the day (UTC) `2026-12-01`",
    MIN_REPLICAS_ANNOTATION: "a whole number: replicas that stay",
}
"""Annotations of owners, and their effect."""


def protections(workload: Workload, policy: Policy, own: str) -> Iterator[Blocker]:
    """Protections that no rule can override, most general first; `own` is gpu-rightsizer's namespace."""
    for reason, source in _reasons(workload, policy, own):
        yield Blocker(BlockerCode.PROTECTED, reason, source)


def _reasons(workload: Workload, policy: Policy, own: str) -> Iterator[tuple[str, str]]:
    namespace, kind = workload.ref.namespace, workload.ref.kind
    if namespace in SYSTEM_NAMESPACES:
        yield f"namespace {namespace} is a system namespace", "built-in:system-namespace"
    elif namespace == own:
        yield f"namespace {namespace} is gpu-rightsizer's own", "built-in:own-namespace"
    if _is_own(workload):
        yield f"it is labelled {'='.join(OWN_LABEL)}, so it belongs to gpu-rightsizer", "built-in:own"
    if is_any(namespace, policy.protectedNamespaces):
        yield f"the policy protects namespace {namespace}", "protectedNamespaces"
    if kind in UNTOUCHABLE_KINDS:
        yield f"a {kind} is never touched", "built-in:kind"
    for manager in workload.managers:
        if controller_mode(manager, policy.otherControllers) is Mode.PROTECT:
            yield f"the policy protects workloads that {manager.kind} manages", "otherControllers"
    for pod in workload.pods:
        yield from _reasons_of_pod(pod)


def _reasons_of_pod(pod: Pod) -> Iterator[tuple[str, str]]:
    name = pod.ref.name
    if pod.is_static:
        yield f"pod {name} is a static pod", "built-in:static-pod"
    if pod.priority_class.startswith("system-") or (pod.priority or 0) > SYSTEM_PRIORITY:
        yield f"pod {name} has a system priority", "built-in:system-class"
    if pod.priority is None:
        yield f"the priority of pod {name} is unknown", "built-in:unknown-priority"


def _is_own(workload: Workload) -> bool:
    key, value = OWN_LABEL
    return any(
        labels.get(key) == value for labels in (workload.labels, *(pod.labels for pod in workload.pods))
    )


@dataclasses.dataclass(frozen=True, slots=True)
class OptOut:
    """A wish on a workload, its pods or its namespace: the most that is done, and how many replicas stay."""

    blocker: Blocker
    mode: Mode
    min_replicas: int


def opt_outs(workload: Workload, at: datetime.datetime) -> Iterator[OptOut]:
    """Users' wishes that hold at an instant."""
    ref = workload.ref
    where: list[tuple[str, Mapping[str, str]]] = [
        (f"{ref.kind} {ref.name}", workload.annotations),
        *((f"pod {pod.ref.name}", pod.annotations) for pod in workload.pods),
        (f"namespace {ref.namespace}", workload.namespace_annotations),
    ]
    for owner, annotations in where:
        yield from _opt_outs_in(owner, annotations, at)


def _opt_outs_in(owner: str, annotations: Mapping[str, str], at: datetime.datetime) -> Iterator[OptOut]:
    ours = {key for key in annotations if key[: len(PREFIX)].lower() == PREFIX} - RECORDS
    if not ours:
        return
    for key, read in _READERS.items():
        text = annotations.get(key)
        if text is not None:
            yield from read(f"{key}: {text!r} on {owner}", text, at)
    for key in sorted(ours - _READERS.keys()):
        words = _FOR_CLASSES if key in _OF_CLASSES else _KNOWN
        yield _wish(f"{key}: {annotations[key]!r} on {owner} {words}; it counts as off")


def _wish(reason: str, mode: Mode = Mode.PROTECT, min_replicas: int = 0) -> OptOut:
    return OptOut(Blocker(BlockerCode.PROTECTED, reason, source=OPT_OUT), mode, min_replicas)


def _unreadable(annotation: str, would_be: str) -> OptOut:
    return _wish(f"{annotation} is invalid ({would_be}); it counts as off")


def _mode(annotation: str, text: str, _at: datetime.datetime) -> Iterator[OptOut]:
    match text:
        case "enforce":
            return
        case "advise":
            yield _wish(annotation.replace("'advise'", "advise"), Mode.ADVISE)
        case "off":
            yield _wish(annotation.replace("'off'", "off"))
        case _:
            yield _unreadable(annotation, "off or advise")


def _exclude(annotation: str, text: str, _at: datetime.datetime) -> Iterator[OptOut]:
    match text:
        case "false":
            return
        case "true":
            yield _wish(annotation.replace("'true'", "true"))
        case _:
            yield _unreadable(annotation, "true or false")


def _exclude_until(annotation: str, text: str, at: datetime.datetime) -> Iterator[OptOut]:
    end = read_instant(text)
    if end is None:
        yield _unreadable(annotation, "such as 2026-12-01T18:00:00Z, or 2026-12-01")
    elif at < end:
        yield _wish(f"{annotation}: opted out until {instant(end)}")


def _keep(annotation: str, text: str, _at: datetime.datetime) -> Iterator[OptOut]:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        yield _unreadable(annotation, "a whole number")
    elif int(text):
        yield _wish(f"{annotation}: keeps {int(text)} replicas", Mode.ENFORCE, int(text))


_READERS = {
    MODE_ANNOTATION: _mode,
    EXCLUDE_ANNOTATION: _exclude,
    EXCLUDE_UNTIL_ANNOTATION: _exclude_until,
    MIN_REPLICAS_ANNOTATION: _keep,
}
_KNOWN = f"is unknown; known are {', '.join(OPT_OUTS)}"
_OF_CLASSES = frozenset(annotation.key for annotation in ANNOTATIONS)
_FOR_CLASSES = "belongs on a PriorityClass"
