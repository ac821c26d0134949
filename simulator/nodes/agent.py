"""A GPU node: follows its pods on the API server, allocates devices to them and updates what the driver shows.

It simulates the kubelet's device manager, the device plugin and the GPUs, and never writes to the API server.
"""

import contextlib
import dataclasses
import datetime
import http.client
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

from simulator.kube.quantity import parse_quantity
from simulator.kubeclient import KubeClient, KubeClientError, Object, Watch
from simulator.nodes.devices import Container, DeviceId, devices
from simulator.nodes.feed import Feed, Sensors
from simulator.nodes.hostfiles import HostFiles
from simulator.nodes.kubelet import Allocation, Kubelet, PodDevices
from simulator.nodes.machine import Machine
from simulator.spec import NodeSpec, WorkloadSpec
from simulator.workloads.population import NAME_LABEL, Population

TICK_S = 1.0
COUNT_S = 0.25
"""How often GPM's counters move: the driver refuses two samples of one count, so they must outrun an exporter."""
RETRY_S = 0.5
_GONE = 410
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """The devices of a pod, in the order of its containers; `start_s` (Unix) is None until it runs."""

    pod: PodDevices
    uid: str
    spec: WorkloadSpec
    devices: tuple[str, ...]
    start_s: float | None

    @property
    def containers(self) -> tuple[Container, ...]:
        """The container of each device."""
        return tuple(
            Container(self.pod.namespace, self.pod.name, self.uid, name)
            for name, groups in self.pod.containers
            for group in groups
            for _ in group.device_ids
        )


class NodeAgent:
    """One node of the cluster; a context manager. `socket` is where its kubelet serves PodResources."""

    def __init__(  # noqa: PLR0913 - a node touches all of these, each is one wire
        self,
        node: NodeSpec,
        client: KubeClient,
        *,
        machine: Machine,
        population: Population,
        sensors: Sensors,
        host: HostFiles,
        socket: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.node = node
        self.machine = machine
        self._client = client
        self._population = population
        self._feed = Feed(machine, sensors, host)
        self._clock = clock
        self._devices = {device.id: device for device in devices(node)}
        self._holdings: dict[tuple[str, str], Holding] = {}
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._synced = threading.Event()
        self._nudge = threading.Event()
        self._watch: Watch | None = None
        self._threads: list[threading.Thread] = []
        self.kubelet = Kubelet(socket, capacity=_grouped(self._devices.values()), pods=self._listing)

    def start(self, *, timeout_s: float = 100.0) -> None:
        """Start the kubelet, follow the pods and move the readings; returns once the first listing is served."""
        self.kubelet.start()
        for target in (self._follow, self._move):
            thread = threading.Thread(target=target, name=f"{self.node.name}-{target.__name__}", daemon=True)
            thread.start()
            self._threads.append(thread)
        if not self._synced.wait(timeout_s):
            self.stop()
            url = self._client.endpoint.url
            raise TimeoutError(f"node {self.node.name}: {url} has not listed its pods within {timeout_s:g} s")

    def stop(self) -> None:
        """Stop all of it."""
        self._stopping.set()
        self._nudge.set()
        with self._lock:
            if self._watch is not None:
                self._watch.close()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self.kubelet.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def holdings(self) -> tuple[Holding, ...]:
        """What each pod on the node holds, in the order in which they came."""
        with self._lock:
            return tuple(self._holdings.values())

    # --- following the pods

    def _follow(self) -> None:
        while not self._stopping.is_set():
            try:
                self._list_and_watch()
            except (OSError, http.client.HTTPException, ValueError, KubeClientError) as error:
                # An expired watch is routine; anything else is a warning.
                expired = isinstance(error, KubeClientError) and error.status == _GONE
                _log.log(
                    logging.DEBUG if expired else logging.WARNING,
                    "node %s: following its pods failed, trying again: %s",
                    self.node.name,
                    error,
                )
                self._stopping.wait(RETRY_S)

    def _list_and_watch(self) -> None:
        mine = {"fieldSelector": f"spec.nodeName={self.node.name}"}
        listing = self._client.get("/api/v1/pods", **mine)
        self._reconcile(listing["items"])
        self._synced.set()
        version = listing["metadata"]["resourceVersion"]
        watch = self._client.watch("/api/v1/pods", resource_version=version, **mine)
        with self._lock:
            self._watch = watch
            if self._stopping.is_set():
                watch.close()
        with contextlib.closing(watch):
            for kind, pod in watch.events():
                self._event(kind, pod)

    def _event(self, kind: str, pod: Object) -> None:
        match kind:
            case "ADDED" | "MODIFIED":
                self._admit(pod)
            case "DELETED":
                self._dismiss(_key(pod))
            case "ERROR":
                raise KubeClientError(f"watching pods: {pod.get('message')}", status=pod.get("code", 0))
            case _:
                pass

    def _reconcile(self, pods: list[Object]) -> None:
        with self._lock:
            for gone in self._holdings.keys() - {_key(pod) for pod in pods}:
                self._dismiss(gone)
            for pod in sorted(pods, key=lambda pod: (pod["metadata"]["creationTimestamp"], _key(pod))):
                self._admit(pod)

    def _admit(self, pod: Object) -> None:
        key, status = _key(pod), pod.get("status", {})
        with self._lock:
            held = self._holdings.get(key)
            if held is not None and held.uid != pod["metadata"]["uid"]:  # deleted and recreated, unseen
                self._dismiss(key)
                held = None
            if status.get("phase") in {"Succeeded", "Failed"}:
                self._dismiss(key)
                return
            held = held or self._allocate(pod)
            if held is not None and held.start_s is None and status.get("phase") == "Running":
                held = self._begin(held, _seconds(status.get("startTime")) or math.floor(self._clock()))
            if held is not None:
                self._holdings[key] = held

    def _allocate(self, pod: Object) -> Holding | None:
        namespace, name = _key(pod)
        containers: list[tuple[str, tuple[Allocation, ...]]] = []
        taken: list[str] = []
        for container in pod["spec"]["containers"]:
            limits = container.get("resources", {}).get("limits", {})
            groups = []
            for resource in sorted({device.resource for device in self._devices.values()} & limits.keys()):
                # Whole, for an API server accepts nothing else of an extended resource; but perhaps spelled 2e0 or 1k.
                ids = self._pick(resource, int(parse_quantity(limits[resource])), taken)
                if ids is None:
                    _log.warning("node %s: no %s left for %s/%s", self.node.name, resource, namespace, name)
                    return None
                taken += ids
                groups.append(Allocation(resource, ids))
            containers.append((container["name"], tuple(groups)))
        label = pod["metadata"].get("labels", {}).get(NAME_LABEL, "")
        spec = self._population.workload(namespace, label, pod=name, gpus=len(taken))
        devices = PodDevices(namespace, name, tuple(containers))
        return Holding(devices, pod["metadata"]["uid"], spec, tuple(taken), start_s=None)

    def _pick(self, resource: str, count: int, taken: Iterable[str]) -> tuple[str, ...] | None:
        """Free devices: in order, but spread over the GPUs where they are shared, as the device plugin does."""
        used = {held for holding in self._holdings.values() for held in holding.devices} | set(taken)
        crowd = [(self._devices[held].gpu, self._devices[held].instance) for held in used]
        picked: list[str] = []
        for _ in range(count):
            free = [
                device
                for device in self._devices.values()
                if device.resource == resource and device.id not in used
            ]
            if not free:
                return None
            best = min(free, key=lambda device: crowd.count((device.gpu, device.instance)))
            used.add(best.id)
            crowd.append((best.gpu, best.instance))
            picked.append(best.id)
        return tuple(picked)

    def _begin(self, held: Holding, start_s: float) -> Holding:
        actors = self._population.actors(held.spec, held.pod.name, start_s=start_s)
        for device, container, actor in zip(held.devices, held.containers, actors, strict=False):
            self.machine.occupy(device, actor, container=container)
        self._nudge.set()
        return dataclasses.replace(held, start_s=start_s)

    def _dismiss(self, key: tuple[str, str]) -> None:
        with self._lock:
            held = self._holdings.pop(key, None)
            if held is None:
                return
            self._population.leave(held.spec, held.pod.name)
            if held.start_s is not None:
                for device in held.devices:
                    self.machine.release(device, at_s=self._clock())
            self._nudge.set()

    # --- what others see

    def _listing(self) -> list[PodDevices]:
        return [holding.pod for holding in self.holdings()]

    def _move(self) -> None:
        shown = math.nan
        while not self._stopping.is_set():
            if self._nudge.wait(COUNT_S - self._clock() % COUNT_S) or self._clock() // TICK_S != shown:
                self._nudge.clear()
                shown = self._clock() // TICK_S
                self.show()
            else:
                self._feed.count(self._clock())

    def show(self) -> None:
        """Show the readings, processes and samples of this instant."""
        self._feed.show(self._clock())


def _key(pod: Object) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def _seconds(timestamp: str | None) -> float | None:
    return datetime.datetime.fromisoformat(timestamp).timestamp() if timestamp else None


def _grouped(found: Iterable[DeviceId]) -> list[Allocation]:
    groups: dict[str, list[str]] = {}
    for device in found:
        groups.setdefault(device.resource, []).append(device.id)
    return [Allocation(resource, tuple(ids)) for resource, ids in groups.items()]
