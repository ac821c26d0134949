"""Reasons that keep an autoscaler from evicting a pod or removing a node; each annotation is read here only. Pure.

Karpenter 1.15: pkg/utils/pod/scheduling.go, pkg/controllers/state/statenode.go. cluster-autoscaler:
cluster-autoscaler/simulator/drainability/rules, with the defaults of its flags.
"""

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from rightsizer.kube.api_objects import DisruptionBudget, PodObject
from rightsizer.model import Hold, NodeAutoscaler, OtherPods

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
_LOCAL_VOLUMES = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
_NEVER_REMOVED: Mapping[NodeAutoscaler, str] = {
    NodeAutoscaler.KARPENTER: DO_NOT_DISRUPT,
    NodeAutoscaler.CLUSTER_AUTOSCALER: "cluster-autoscaler.kubernetes.io/scale-down-disabled",
}
"""Annotation of each autoscaler on nodes that are to stay; only `true` counts."""

_SYSTEM = "kube-system"
_REPLICATED = frozenset({"ReplicationController", "Job", "ReplicaSet", "StatefulSet"})
"""Controllers that cluster-autoscaler trusts to replace a pod (--skip-nodes-with-custom-controller-pods)."""

_GO_DURATION = re.compile(r"(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|ms|s|m|h))+")
_GO_PART = re.compile(r"([0-9.]+)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST = 32
_MOST_S = 2**63 * 1e-9
"""The longest duration of Go, in seconds."""


class _EmptyDir(msgspec.Struct):
    medium: str = ""


class _Volume(msgspec.Struct, rename="camel"):
    """corev1.Volume."""

    name: str
    host_path: dict[str, object] | None = None
    empty_dir: _EmptyDir | None = None

    @property
    def is_local(self) -> bool:
        """Whether its data is on the node's disk."""
        return self.host_path is not None or (
            self.empty_dir is not None and self.empty_dir.medium != "Memory"
        )


def hold_of_node(autoscaler: NodeAutoscaler | None, annotations: Mapping[str, str]) -> str:
    """The annotation of a node that its autoscaler never removes; else empty."""
    key = _NEVER_REMOVED[autoscaler] if autoscaler else ""
    return f"{key}: 'true'" if annotations.get(key) == "true" else ""


def do_not_disrupt_end(value: str, started: datetime.datetime | None) -> datetime.datetime | None:
    """End of Karpenter's hold on a pod: its annotation is true or a duration since status.startTime. None: never.

    Raises:
        ValueError: Karpenter ignores the value, with an Event.
    """
    if value == "true":
        return None
    cleaned = value.removeprefix("+")
    if len(cleaned) > _LONGEST or not _GO_DURATION.fullmatch(cleaned):
        message = f"{value[:_LONGEST]!r} is neither true nor a duration such as 90m"
        raise ValueError(message)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in _GO_PART.findall(cleaned))
    if not 0 < seconds < _MOST_S:
        message = f"{value[:_LONGEST]!r} is no positive duration"
        raise ValueError(message)
    return started + datetime.timedelta(seconds=seconds) if started else None


def other_pod(item: PodObject, *, goes_with_node: bool) -> OtherPods:
    """One pod of a node, without GPUs."""
    name = f"pod {item.metadata.namespace}/{item.metadata.name}"
    kept_by = dict(_holds(item, name, goes_with_node=goes_with_node))
    is_safe = (item.metadata.annotations or {}).get(SAFE_TO_EVICT) == "true"
    if goes_with_node or is_safe or item.metadata.namespace != _SYSTEM:
        return OtherPods(int(not goes_with_node), kept_by)
    return OtherPods(1, kept_by, ((name, item.metadata.labels or {}),))


def joined(known: OtherPods, more: OtherPods) -> OtherPods:
    """The pods of a node, and more of them; of each autoscaler the hold that lasts longest is kept."""
    kept_by = dict(known.kept_by)
    for autoscaler, hold in more.kept_by.items():
        kept = kept_by.get(autoscaler)
        if kept is None or (kept.until and (hold.until is None or kept.until < hold.until)):
            kept_by[autoscaler] = hold
    return OtherPods(known.number + more.number, kept_by, (*known.system, *more.system))


def _holds(item: PodObject, name: str, *, goes_with_node: bool) -> Iterator[tuple[NodeAutoscaler, Hold]]:
    annotations = item.metadata.annotations or {}
    if (value := annotations.get(DO_NOT_DISRUPT)) is not None:
        try:
            end = do_not_disrupt_end(value, item.status.start_time)
        except ValueError:
            pass
        else:
            yield NodeAutoscaler.KARPENTER, Hold(f"{name} has {DO_NOT_DISRUPT}: {value!r}", end)
    safe = annotations.get(SAFE_TO_EVICT)
    if goes_with_node or safe == "true":
        return
    controller = item.metadata.controller
    if controller is None:
        yield NodeAutoscaler.CLUSTER_AUTOSCALER, Hold(f"{name} has no controller")
    elif controller.kind not in _REPLICATED:
        yield NodeAutoscaler.CLUSTER_AUTOSCALER, Hold(f"{name} has a {controller.kind} as its controller")
    elif safe == "false":
        yield NodeAutoscaler.CLUSTER_AUTOSCALER, Hold(f"{name} has {SAFE_TO_EVICT}: 'false'")
    elif local := _local_volumes(item):
        yield NodeAutoscaler.CLUSTER_AUTOSCALER, Hold(f"{name} has local storage: volume {local[0]}")


def _local_volumes(item: PodObject) -> list[str]:
    """Names of the volumes whose data is lost with the node, except those that an annotation releases."""
    released = (item.metadata.annotations or {}).get(_LOCAL_VOLUMES, "").split(",")
    try:
        volumes = msgspec.json.decode(item.spec.volumes, type=list[_Volume] | None)
    except msgspec.DecodeError:  # of a file: an API server refuses it
        return []
    return [volume.name for volume in volumes or () if volume.is_local and volume.name not in released]


def with_budgets(pods: OtherPods, budgets: Iterable[DisruptionBudget]) -> OtherPods:
    """The pods of a node, where cluster-autoscaler evicts none of kube-system that no PodDisruptionBudget covers."""
    selectors = [one.spec.selector for one in budgets if one.metadata.namespace == _SYSTEM]
    bare = (
        name
        for name, labels in pods.system
        if not any(selector is not None and selector.selects(labels) for selector in selectors)
    )
    autoscaler = NodeAutoscaler.CLUSTER_AUTOSCALER
    if autoscaler in pods.kept_by or (name := next(bare, None)) is None:
        return pods
    hold = Hold(f"{name} is in {_SYSTEM} and no PodDisruptionBudget covers it")
    return OtherPods(pods.number, {**pods.kept_by, autoscaler: hold})
