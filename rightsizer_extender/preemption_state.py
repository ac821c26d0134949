"""The cluster in memory for the questions of kube-scheduler: watched nodes, pods and budgets, and the last plan."""

import contextlib
import dataclasses
import datetime
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import msgspec

from rightsizer.inventory.gpu_requests import ResourceTable, amount_of
from rightsizer.inventory.pods import requests_of
from rightsizer.kube.api_objects import DisruptionBudget, ObjectMeta, PodObject
from rightsizer.kube.watched import Collection, Connect, Watched
from rightsizer.planning.breaker import NOTHING, State, stop_reason
from rightsizer_extender.preemption import (
    Answer,
    Preemptible,
    PreemptionTable,
    Preemptor,
    VictimChoice,
    Victims,
    bound_pod,
    choose,
)
from rightsizer_extender.victim_charges import VictimCharges

_REMEMBERED_S = 600.0
"""A pod that did not start with the victims named for it gets the scheduler's own for so long."""
_NOMINATED_S = 30.0
"""Seconds for which room is kept for a pending pod that the scheduler has not noted, as if it were gone."""


class _WatchedNodeStatus(msgspec.Struct):
    allocatable: dict[str, str | int] | None = None


class WatchedNode(msgspec.Struct):
    """corev1.Node, of which the scheduler judges the rest."""

    metadata: ObjectMeta
    status: _WatchedNodeStatus = msgspec.field(default_factory=_WatchedNodeStatus)


class PreemptionState:
    """Answers questions; while entered, threads keep it up to date.

    Args:
        connect: A connection of a thread's own; may raise RightsizerError.
        resources: The resource names of GPUs.
        oldest_s: Plans that began longer ago answer for nobody.
        charges: Of what is named.

    Attributes:
        lock: Held while the state is read or changed.
    """

    def __init__(
        self, connect: Connect, resources: ResourceTable, oldest_s: float, charges: VictimCharges
    ) -> None:
        self._charges = charges
        self._resources = resources
        self._oldest_s = oldest_s
        self._table = PreemptionTable()
        self.lock = threading.Lock()
        self._planned_at: float | None = None
        self._candidates: Sequence[Preemptible] = ()
        self._control: State | None = NOTHING
        self._stopped: frozenset[str] = frozenset()
        self._asked: dict[str, tuple[float, VictimChoice]] = {}
        self._nominated: dict[str, float] = {}
        """Times by UID of a pending pod: since when room is kept for it that no watch has confirmed."""
        table, lost = self._table, "questions of kube-scheduler may not be answered"
        nodes = Collection(
            "/api/v1/nodes", WatchedNode, self.put_node, table.drop_node, lost, key_of=lambda node: node.name
        )
        pods = Collection("/api/v1/pods", PodObject, self.put_pod, table.drop_pod, lost)
        budgets = Collection(
            "/apis/policy/v1/poddisruptionbudgets",
            DisruptionBudget,
            table.set_budget,
            lambda key: table.drop_budget(*key),
            lost,
            key_of=lambda budget: (budget.namespace, budget.name),
        )
        self._watched = tuple(Watched(kind, connect, self.lock) for kind in (nodes, pods, budgets))
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Start the watches."""
        for watched in self._watched:
            self._stack.enter_context(watched)
        return self

    def __exit__(self, *exception: object) -> None:
        """Let them end; watches in progress end with the process."""
        self._stack.close()

    # --- questions

    def stale_reason(self) -> str:
        """Why no question is answered now; empty if they are."""
        now = time.monotonic()
        if self._planned_at is None:
            return "no plan has been made yet"
        if now - self._planned_at > self._oldest_s:
            return f"the last plan began {now - self._planned_at:.0f} s ago, more than two cycles"
        for watched in self._watched:
            if not watched.is_current:
                return f"{watched.of.path} is not watched"
        return "" if self._control else "breaker and pauses cannot be read"

    def victims(self, preemptor: Preemptor, offered: Mapping[str, Victims]) -> VictimChoice | None:
        """The victims for a pending pod, charged to the budgets; None if the state is stale."""
        if self.stale_reason():
            return None
        with self.lock:
            now = time.monotonic()
            self._drop_unconfirmed(now)
            at, before = self._asked.get(preemptor.uid, (0.0, None))
            if before is not None and now - at < _REMEMBERED_S:
                return self._again(before, offered)
            choice = choose(preemptor, offered, self._table)
            if choice.answer is Answer.REPLACED:
                charged = self._charges.charge(choice.named)
                if charged is None:
                    return VictimChoice(Answer.UNKNOWN, offered)
                choice = dataclasses.replace(choice, named=charged)
                all_asked = self._asked.items()
                self._asked = {uid: asked for uid, asked in all_asked if now - asked[0] < _REMEMBERED_S}
                self._asked[preemptor.uid] = (now, choice)
                (node,) = choice.victims
                # Until the scheduler's own note of it is watched.
                self._table.nominate(preemptor.uid, node, preemptor.priority, preemptor.requests)
                self._nominated[preemptor.uid] = now
            return choice

    def _drop_unconfirmed(self, now: float) -> None:
        """Keep no more room for pods that were asked about and never seen, such as deleted or made-up ones."""
        for uid in [uid for uid, at in self._nominated.items() if now - at >= _NOMINATED_S]:
            del self._nominated[uid]
            self._table.drop_pod(uid)

    def _again(self, before: VictimChoice, offered: Mapping[str, Victims]) -> VictimChoice:
        """The same victims while they are all there and the node is offered; otherwise they were no help."""
        ((node, victims),) = before.victims.items()
        there = self._table.node(node).pods
        if node in offered and all(uid in there for uid in victims.uids):
            return dataclasses.replace(before, answer=Answer.REPEATED, named=())
        return VictimChoice(Answer.REPEATED, offered)

    def scores(self, preemptor: Preemptor, nodes: Sequence[str]) -> list[int] | None:
        """A score for each node; None if the state is stale."""
        if self.stale_reason():
            return None
        with self.lock:
            return self._table.scores(preemptor, nodes, self._resources)

    # --- updates

    def planned(self, candidates: Iterable[Preemptible], *, began_at: float, run: str, charged: str) -> None:
        """Replace the candidates by those of a plan that began at a time of the monotonic clock."""
        with self.lock:
            self._charges.planned(run, charged)
            self._candidates = tuple(candidates)
            self._planned_at = began_at
            self._set_allowed(self._stopped_namespaces())

    def controlled(self, control: State | None) -> None:
        """Name nobody where breaker or pauses stop changes; nobody at all if these cannot be read (None)."""
        with self.lock:
            self._control = control
            stopped = self._stopped_namespaces()
            if stopped != self._stopped:  # questions wait meanwhile
                self._set_allowed(stopped)

    def _stopped_namespaces(self) -> frozenset[str]:
        """Namespaces of candidates in which nothing may be changed now."""
        control, now = self._control or NOTHING, datetime.datetime.now(datetime.UTC)
        namespaces = {unit.decision.workload.ref.namespace for unit in self._candidates}
        return frozenset(name for name in namespaces if stop_reason(control, name, now) is not None)

    def _set_allowed(self, stopped: frozenset[str]) -> None:
        self._stopped = stopped
        self._table.set_candidates(
            unit for unit in self._candidates if unit.decision.workload.ref.namespace not in stopped
        )

    def put_node(self, node: WatchedNode) -> None:
        """Add or change a node; the caller holds the lock, if threads are running."""
        amounts = node.status.allocatable or {}
        offers = {name: amount_of(name, amount) for name, amount in amounts.items()}
        self._table.set_node(node.metadata.name, offers)

    def put_pod(self, pod: PodObject) -> None:
        """Add or change a pod; the caller holds the lock, if threads are running."""
        uid, nominated = pod.metadata.uid, pod.status.nominated_node_name
        self._nominated.pop(uid, None)
        bound = bound_pod(pod, self._resources)
        if bound is not None:
            self._table.set_pod(bound)
        elif nominated and not pod.spec.node_name:
            self._table.nominate(uid, nominated, pod.spec.priority or 0, requests_of(pod))
        else:
            self._table.drop_pod(uid)
