"""Plays kube-scheduler: binds pending pods to nodes, higher priorities first; says why it cannot. Never preempts."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from simulator.kube.binding import assign
from simulator.kube.controllers.context import Context, Key, is_kind
from simulator.kube.objects import Object, condition, is_finished, is_terminating, labels_of, set_condition
from simulator.kube.quantity import parse_quantity
from simulator.kube.selectors import Requirement, Selector, expressions
from simulator.kube.store import Event, Record

_PASS: Key = ("", "", "")  # one pass over all pending pods
_SCHEDULER = "default-scheduler"


@dataclasses.dataclass(slots=True)
class _Node:
    """A node and what is still free on it."""

    record: Record
    free: dict[str, Fraction]
    capacity: dict[str, Fraction]


class Scheduler:
    """Filters and scores nodes for each pending pod."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def keys(self, event: Event) -> Iterator[Key]:
        """Any change of pods or nodes that can make room or need it."""
        if is_kind(event, "Node"):
            yield _PASS
        elif is_kind(event, "Pod"):
            bound = "nodeName" in event.record.obj["spec"]
            if not bound or event.type == "DELETED" or is_finished(event.record.obj):
                yield _PASS

    def reconcile(self, key: Key) -> None:
        """Place what can be placed."""
        del key
        pods = self._context.rows("Pod")
        waiting = [pod for pod in pods if _waits(pod)]
        if not waiting:
            return
        nodes = self._nodes(pods)
        waiting.sort(
            key=lambda pod: (
                -pod.obj["spec"]["priority"],
                pod.obj["metadata"]["creationTimestamp"],
                pod.order,
            )
        )
        for pod in waiting:
            if pod.obj["spec"].get("schedulingGates"):
                self._refuse(
                    pod, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates"
                )
            else:
                self._place(pod, nodes)

    def _nodes(self, pods: list[Record]) -> list[_Node]:
        nodes = {}
        for record in self._context.rows("Node"):
            allocatable = record.obj.get("status", {}).get("allocatable", {})
            capacity = {name: parse_quantity(value) for name, value in allocatable.items()}
            nodes[record.name] = _Node(record, dict(capacity), capacity)
        for pod in pods:
            node = nodes.get(pod.obj["spec"].get("nodeName", ""))
            if node is not None and not is_finished(pod.obj):
                _take(node, requests_of(pod.obj["spec"]))
        return list(nodes.values())

    def _place(self, pod: Record, nodes: list[_Node]) -> None:
        wanted = requests_of(pod.obj["spec"])
        reasons: collections.Counter[str] = collections.Counter()
        fitting: list[_Node] = []
        for node in nodes:
            misfits = _misfits(pod.obj["spec"], wanted, node)
            reasons.update(misfits)
            if not misfits:
                fitting.append(node)
        if fitting:
            best = max(fitting, key=lambda node: _score(node, wanted))
            _take(best, wanted)
            assign(self._context.registry, pod.copy(), best.record.name)
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


def _waits(pod: Record) -> bool:
    spec = pod.obj["spec"]
    return (
        "nodeName" not in spec
        and spec["schedulerName"] == _SCHEDULER
        and not is_terminating(pod.obj)
        and not is_finished(pod.obj)
    )


def requests_of(spec: Mapping[str, Any]) -> dict[str, Fraction]:
    """What a pod takes of a node: the sum over its containers, and one of its pods."""
    total: dict[str, Fraction] = {"pods": Fraction(1)}
    for container in spec["containers"]:
        for name, quantity in container.get("resources", {}).get("requests", {}).items():
            total[name] = total.get(name, Fraction(0)) + parse_quantity(quantity)
    return total


def _take(node: _Node, wanted: Mapping[str, Fraction]) -> None:
    for name, amount in wanted.items():
        node.free[name] = node.free.get(name, Fraction(0)) - amount


def _score(node: _Node, wanted: Mapping[str, Fraction]) -> tuple[Fraction, str]:
    """The node with the largest free share of what is asked for; between equals, the last by name."""
    shares = [node.free[name] / node.capacity[name] for name in wanted if node.capacity.get(name)]
    return (sum(shares, Fraction(0)), node.record.name)


def _misfits(spec: Mapping[str, Any], wanted: Mapping[str, Fraction], node: _Node) -> list[str]:
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
    lacking = [
        name
        for name, amount in wanted.items()
        if amount > node.free.get(name, Fraction(0)) and _counts(name, node)
    ]
    return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in lacking]


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
