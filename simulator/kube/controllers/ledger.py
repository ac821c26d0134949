"""The scheduler's cache: which pods wait, and what the others take of their nodes, kept up by each change.

Without it each pass would add up all pods of the cluster again. Must not know how nodes are chosen.
"""

import collections
from collections.abc import Mapping
from typing import Any

from simulator.kube.controllers.context import is_kind
from simulator.kube.objects import is_finished, is_terminating, uid_of
from simulator.kube.quantity import thousandths
from simulator.kube.store import Event, Record

_SCHEDULER = "default-scheduler"
Amounts = dict[str, int]  # thousandths of each resource


class Ledger:
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
