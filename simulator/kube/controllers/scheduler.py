"""Plays kube-scheduler: binds pending pods to nodes, higher priorities first; says why it cannot. Never preempts."""

import collections
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from simulator.kube.controllers.context import Context, Key, is_kind
from simulator.kube.objects import (
    Object,
    condition,
    is_finished,
    is_terminating,
    labels_of,
    set_condition,
    uid_of,
)
from simulator.kube.quantity import thousandths
from simulator.kube.registry import Registry
from simulator.kube.selectors import Requirement, Selector, expressions
from simulator.kube.store import Event, Record

Amounts = dict[str, int]  # thousandths of each resource
_GPU, _HAMI_REGISTER = "nvidia.com/gpu", "hami.io/node-nvidia-register"
_PASS: Key = ("", "", "")  # one pass over all pending pods


@dataclasses.dataclass(slots=True)
class _Node:
    """A node and what is still free on it."""

    record: Record
    free: Amounts
    capacity: Amounts


class Scheduler:
    """Filters and scores nodes for each pending pod."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cache = SchedulerCache()

    def keys(self, event: Event) -> Iterator[Key]:
        """Any change of pods or nodes that can make room or need it."""
        if self._cache.observe(event) and self._cache.waiting:
            yield _PASS

    def reconcile(self, key: Key) -> None:
        """Place what can be placed."""
        del key
        waiting = sorted(self._cache.waiting.values(), key=_turn)
        nodes = self._nodes() if waiting else []
        for pod in waiting:
            if pod.obj["spec"].get("schedulingGates"):
                self._refuse(
                    pod, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates"
                )
            else:
                self._place(pod, nodes)

    def _nodes(self) -> list[_Node]:
        nodes = []
        for record in self._context.rows("Node"):
            allocatable = record.obj.get("status", {}).get("allocatable", {})
            capacity = {name: thousandths(value) for name, value in allocatable.items()}
            node = _Node(record, dict(capacity), capacity)
            _take(node, self._cache.used(record.name))
            nodes.append(node)
        return nodes

    def _place(self, pod: Record, nodes: list[_Node]) -> None:
        wanted = requests_of(pod.obj["spec"])
        reasons: collections.Counter[str] = collections.Counter()
        fitting: list[_Node] = []
        for node in nodes:
            misfits = _misfits(pod.obj["spec"], wanted, node)
            if misfits:
                reasons.update(misfits)
            else:
                fitting.append(node)
        if fitting:
            best = max(fitting, key=lambda node: _score(node, wanted))
            _take(best, wanted)
            _assign(self._context.registry, pod.copy(), best.record.name)
        else:
            words = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
            text = (
                f"0/{len(nodes)} nodes are available: {words}."
                if nodes
                else "no nodes available to schedule pods"
            )
            self._refuse(pod, "Unschedulable", text)

    def _refuse(self, pod: Record, reason: str, message: str) -> None:
        known = condition(pod.obj, "PodScheduled")
        if known and (known.get("reason"), known.get("message")) == (reason, message):
            return
        entry = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        now = self._context.registry.now()
        self._context.change(pod, lambda obj: set_condition(obj["status"], entry, now), "status")


def _assign(registry: Registry, pod: Object, node: str) -> None:
    """Store a pod with its node; spec.nodeName is not open to ordinary updates."""
    resource = registry.store.by_uid(pod["metadata"]["uid"])
    if resource is None:
        return
    pod["spec"]["nodeName"] = node
    set_condition(pod["status"], {"type": "PodScheduled", "status": "True"}, registry.now())
    for entry in pod["status"]["conditions"]:
        if entry["type"] == "PodScheduled":
            entry.pop("reason", None)
            entry.pop("message", None)
    registry.store.put(resource.resource, pod)


def _turn(pod: Record) -> tuple[int, str, tuple[str, str]]:
    """Higher priorities first, then the oldest."""
    return (-pod.obj["spec"]["priority"], pod.obj["metadata"]["creationTimestamp"], pod.order)


def _take(node: _Node, wanted: Mapping[str, int]) -> None:
    for name, amount in wanted.items():
        node.free[name] = node.free.get(name, 0) - amount


def _score(node: _Node, wanted: Mapping[str, int]) -> tuple[float, str]:
    """The node with the largest free share of what is asked for; between equals, the last by name."""
    shares = [node.free[name] / node.capacity[name] for name in wanted if node.capacity.get(name)]
    return (sum(shares), node.record.name)


def _misfits(spec: Mapping[str, Any], wanted: Mapping[str, int], node: _Node) -> list[str]:
    """Why a pod cannot be on a node, in kube-scheduler's words: the first filter's reasons only."""
    if node.record.obj["spec"].get("unschedulable"):
        return ["node(s) were unschedulable"]
    ready = condition(node.record.obj, "Ready")
    if ready is not None and ready["status"] != "True":
        return ["node(s) had untolerated taint {node.kubernetes.io/not-ready: }"]
    taint = _untolerated(spec, node.record.obj)
    if taint is not None:
        return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"]
    if not _selected(spec, node.record):
        return ["node(s) didn't match Pod's node affinity/selector"]
    most = {**node.free, **_most_by_hami(node)}
    lacking = [name for name, amount in wanted.items() if amount > most.get(name, 0) and _counts(name, node)]
    return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in lacking]


def _most_by_hami(node: _Node) -> Amounts:
    """HAMi's scheduler gives each GPU only once to a container, however many slots it has."""
    annotations = node.record.obj["metadata"].get("annotations", {})
    gpus = len(json.loads(annotations.get(_HAMI_REGISTER, "[]")))
    return {_GPU: min(thousandths(str(gpus)), node.free.get(_GPU, 0))} if gpus else {}


def _counts(name: str, node: _Node) -> bool:
    """Whether a node that says nothing of cpu, memory or pods is taken to have enough of them."""
    return name in node.capacity or "/" in name


def _selected(spec: Mapping[str, Any], node: Record) -> bool:
    labels = labels_of(node.obj)
    if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or any(_term_holds(term, node) for term in required["nodeSelectorTerms"])


def _term_holds(term: Mapping[str, Any], node: Record) -> bool:
    fields = tuple(
        Requirement(entry["key"], entry["operator"], tuple(entry.get("values", ())))
        for entry in term.get("matchFields", ())
    )
    matched = Selector(expressions(term)).matches(labels_of(node.obj))
    return matched and Selector(fields).matches({"metadata.name": node.name})


def _untolerated(spec: Mapping[str, Any], node: Mapping[str, Any]) -> Object | None:
    for taint in node["spec"].get("taints", ()):
        hard = taint["effect"] in {"NoSchedule", "NoExecute"}
        if hard and not any(_tolerates(entry, taint) for entry in spec.get("tolerations", ())):
            return dict(taint)
    return None


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect", taint["effect"]) not in {"", taint["effect"]}:
        return False
    if toleration.get("key", "") not in {"", taint["key"]}:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("value", "") == taint.get("value", ""))


_SCHEDULER = "default-scheduler"


class SchedulerCache:
    """Pods that wait, by UID, and resources in use, by node."""

    def __init__(self) -> None:
        self.waiting: dict[str, Record] = {}
        self._charged: dict[str, tuple[str, Amounts]] = {}
        self._used: dict[str, Amounts] = collections.defaultdict(dict)

    def observe(self, event: Event) -> bool:
        """Take note of a change; whether it is one after which a pod might find a place."""
        if is_kind(event, "Node"):
            return True
        if not is_kind(event, "Pod"):
            return False
        pod, uid = event.record, uid_of(event.record.obj)
        gone = event.type == "DELETED" or is_finished(pod.obj)
        freed = gone and self._refund(uid)
        if not gone and "nodeName" in pod.obj["spec"] and uid not in self._charged:
            self._charge(pod)
        self.waiting.pop(uid, None)
        if not gone and _waits(pod):
            self.waiting[uid] = pod
        return freed or uid in self.waiting

    def used(self, node: str) -> Mapping[str, int]:
        """What the pods of a node take of it."""
        return self._used[node]

    def _charge(self, pod: Record) -> None:
        wanted, node = requests_of(pod.obj["spec"]), str(pod.obj["spec"]["nodeName"])
        self._charged[uid_of(pod.obj)] = (node, wanted)
        for name, amount in wanted.items():
            self._used[node][name] = self._used[node].get(name, 0) + amount

    def _refund(self, uid: str) -> bool:
        if uid not in self._charged:
            return False
        node, wanted = self._charged.pop(uid)
        for name, amount in wanted.items():
            self._used[node][name] -= amount
        return True


def requests_of(spec: Mapping[str, Any]) -> Amounts:
    """What a pod takes of a node: the sum over its containers, and one of its pods."""
    total: Amounts = {"pods": thousandths("1")}
    for container in spec["containers"]:
        for name, quantity in container.get("resources", {}).get("requests", {}).items():
            total[name] = total.get(name, 0) + thousandths(quantity)
    return total


def _waits(pod: Record) -> bool:
    spec = pod.obj["spec"]
    return "nodeName" not in spec and spec["schedulerName"] == _SCHEDULER and not is_terminating(pod.obj)
