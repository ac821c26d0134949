"""The cluster in memory for the questions of kube-scheduler: watched nodes, pods and budgets, and the last plan."""

import contextlib
import dataclasses
import http
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, Self, TypeVar

import msgspec

from rightsizer.errors import RequestRefused, RightsizerError
from rightsizer.inventory.gpu_requests import ResourceTable, amount_of
from rightsizer.inventory.pods import requests_of
from rightsizer.kube.api_objects import DisruptionBudget, ObjectMeta, PodObject
from rightsizer.kube.cluster import Cluster
from rightsizer.planning.preemption import (
    Answer,
    Preemptible,
    PreemptionTable,
    Preemptor,
    VictimChoice,
    Victims,
    bound_pod,
    choose,
)

LENGTH_S = 300.0
_PAUSE_S = 1.0
_SILENT_S = 60.0
"""Without a connection for so long, what is watched may be out of date."""
_REMEMBERED_S = 600.0
"""A pod that did not start with the victims named for it gets the scheduler's own for so long."""

log = logging.getLogger(__name__)


class _WatchedNodeStatus(msgspec.Struct):
    allocatable: dict[str, str | int] | None = None


class WatchedNode(msgspec.Struct):
    """corev1.Node, of which the scheduler judges the rest."""

    metadata: ObjectMeta
    status: _WatchedNodeStatus = msgspec.field(default_factory=_WatchedNodeStatus)


_T = TypeVar("_T", PodObject, WatchedNode, DisruptionBudget)


@dataclasses.dataclass(slots=True)
class _Collection(Generic[_T]):
    """A watched collection: where it is, and what becomes of an object that is there, or no more.

    Attributes:
        seen_at: When the API server last served it, by the monotonic clock; None before it was whole.
    """

    path: str
    kind: type[_T]
    put: Callable[[_T], None]
    drop: Callable[[ObjectMeta], None]
    known: dict[str, ObjectMeta] = dataclasses.field(default_factory=dict)
    is_open: bool = False
    seen_at: float | None = None


class PreemptionState:
    """Answers questions; while entered, threads keep it up to date.

    Args:
        connect: A connection of a thread's own; may raise RightsizerError.
        resources: The resource names of GPUs.
        oldest_s: Plans that began longer ago answer for nobody.

    Attributes:
        lock: Held while the state is read or changed.
    """

    def __init__(self, connect: Callable[[], Cluster], resources: ResourceTable, oldest_s: float) -> None:
        self._connect = connect
        self._resources = resources
        self._oldest_s = oldest_s
        self._table = PreemptionTable()
        self.lock = threading.Lock()
        self._end = threading.Event()
        self._planned_at: float | None = None
        self._asked: dict[str, tuple[float, VictimChoice]] = {}
        self._collections = (
            _Collection(
                "/api/v1/nodes", WatchedNode, self.put_node, lambda gone: self._table.drop_node(gone.name)
            ),
            _Collection("/api/v1/pods", PodObject, self.put_pod, lambda gone: self._table.drop_pod(gone.uid)),
            _Collection(
                "/apis/policy/v1/poddisruptionbudgets",
                DisruptionBudget,
                self._table.set_budget,
                lambda gone: self._table.drop_budget(gone.namespace, gone.name),
            ),
        )

    def __enter__(self) -> Self:
        """Start the watches."""
        for one in self._collections:
            name = one.path.rpartition("/")[2]
            threading.Thread(target=self._follow, args=(one,), name=f"watch-{name}", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Let them end; watches in progress end with the process."""
        self._end.set()

    # --- questions

    def stale_reason(self) -> str:
        """Why no question is answered now; empty if they are."""
        now = time.monotonic()
        if self._planned_at is None:
            return "no plan has been made yet"
        if now - self._planned_at > self._oldest_s:
            return f"the last plan began {now - self._planned_at:.0f} s ago, more than two cycles"
        for one in self._collections:
            if one.seen_at is None or not (one.is_open or now - one.seen_at < _SILENT_S):
                return f"{one.path} is not watched"
        return ""

    def victims(self, preemptor: Preemptor, offered: Mapping[str, Victims]) -> VictimChoice | None:
        """The victims for a pending pod; None if the state is stale."""
        if self.stale_reason():
            return None
        with self.lock:
            now = time.monotonic()
            at, before = self._asked.get(preemptor.uid, (0.0, None))
            if before is not None and now - at < _REMEMBERED_S:
                return self._again(before, offered)
            choice = choose(preemptor, offered, self._table)
            if choice.answer is Answer.REPLACED:
                self._asked = {uid: one for uid, one in self._asked.items() if now - one[0] < _REMEMBERED_S}
                self._asked[preemptor.uid] = (now, choice)
                (node,) = choice.victims
                # Until the scheduler's own note of it is watched.
                self._table.nominate(preemptor.uid, node, preemptor.priority, preemptor.requests)
            return choice

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

    def planned(self, candidates: Iterable[Preemptible], *, began_at: float) -> None:
        """Replace the candidates by those of a plan that began at a time of the monotonic clock."""
        with self.lock:
            self._table.set_candidates(candidates)
            self._planned_at = began_at

    def put_node(self, node: WatchedNode) -> None:
        """Add or change a node; the caller holds the lock, if threads are running."""
        amounts = node.status.allocatable or {}
        offers = {name: amount_of(name, amount) for name, amount in amounts.items()}
        self._table.set_node(node.metadata.name, offers)

    def put_pod(self, pod: PodObject) -> None:
        """Add or change a pod; the caller holds the lock, if threads are running."""
        uid, nominated = pod.metadata.uid, pod.status.nominated_node_name
        bound = bound_pod(pod, self._resources)
        if bound is not None:
            self._table.set_pod(bound)
        elif nominated and not pod.spec.node_name:
            self._table.nominate(uid, nominated, pod.spec.priority or 0, requests_of(pod.spec))
        else:
            self._table.drop_pod(uid)

    def _follow(self, one: _Collection[_T]) -> None:
        told, since = "", ""
        while not self._end.is_set():
            try:
                with contextlib.closing(self._connect()) as cluster:
                    while not self._end.is_set():
                        since = since or self._list(one, cluster)
                        told = ""
                        since = self._watch(one, cluster, since)
            except RightsizerError as error:
                is_expired = isinstance(error, RequestRefused) and error.code == http.HTTPStatus.GONE
                if not (is_expired or self._end.is_set() or str(error) == told):
                    told = str(error)
                    log.warning("questions of kube-scheduler may not be answered: %s", error)
                since = ""
            except Exception:
                log.exception("watching %s failed: a bug in gpu-rightsizer; it begins again", one.path)
                since = ""
            finally:
                one.is_open = False  # or questions would be answered from what is no longer followed
            self._end.wait(_PAUSE_S)

    def _list(self, one: _Collection[_T], cluster: Cluster) -> str:
        """Read the whole collection, and drop what is gone; the resourceVersion to watch from."""

        def add(found: dict[str, ObjectMeta], page: list[_T]) -> None:
            with self.lock:
                for item in page:
                    one.put(item)
                    found[item.metadata.uid] = item.metadata

        start: Callable[[], dict[str, ObjectMeta]] = dict
        found, since = cluster.snapshot(one.path, one.kind, start, add=add)
        with self.lock:
            for uid, gone in one.known.items():
                if uid not in found:
                    one.drop(gone)
        one.known = {uid: _short(metadata) for uid, metadata in found.items()}
        one.seen_at = time.monotonic()
        return since

    def _watch(self, one: _Collection[_T], cluster: Cluster, since: str) -> str:
        """Follow changes until the server ends the watch; the resourceVersion of the last one."""
        one.is_open = True
        for change, item in cluster.watch(one.path, one.kind, length_s=LENGTH_S, since=since):
            if self._end.is_set():
                break
            metadata = item.metadata
            with self.lock:
                if change == "DELETED":
                    one.drop(metadata)
                    one.known.pop(metadata.uid, None)
                else:
                    one.put(item)
                    one.known[metadata.uid] = _short(metadata)
            since, one.seen_at = metadata.resource_version, time.monotonic()
        one.seen_at = time.monotonic()
        return since


def _short(metadata: ObjectMeta) -> ObjectMeta:
    """What is needed to drop an object."""
    return ObjectMeta(name=metadata.name, namespace=metadata.namespace, uid=metadata.uid)
