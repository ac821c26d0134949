"""The processes on a node's GPUs: one per container and device with a CUDA context, and the MPS server."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Self

from simulator.gpus import Process, ProcessKind
from simulator.nodes.devices import Container
from simulator.nodes.hostfiles import HostFiles
from simulator.nodes.physics import MPS_SERVER_BYTES
from simulator.nodes.tenancy import Presence
from simulator.spec import NodeSpec, Sharing
from simulator.workloads import draws

_FIRST_PIDS = range(2_000, 32_000)
_MPS_SERVER, _MPS_UNIT = "nvidia-cuda-mps-server", "nvidia-mps.service"


@dataclasses.dataclass(frozen=True, slots=True)
class _Seat:
    """What one process has: replicas of one device that one container holds are one."""

    container: Container
    gpu: int
    instance: int | None

    @classmethod
    def of(cls, presence: Presence) -> Self | None:
        """Where the tenant's process sits; none where it has no context or nobody's container."""
        tenant = presence.tenant
        if tenant.container is None or not presence.phase.context:
            return None
        return cls(tenant.container, tenant.device.gpu, tenant.device.instance)


class GpuProcesses:
    """The processes on the GPUs of `node`, a PID of its own for each that ever was."""

    def __init__(self, node: NodeSpec, host: HostFiles) -> None:
        self._host = host
        self._has_server = node.sharing is Sharing.MPS
        self._kind = ProcessKind.MPS if self._has_server else ProcessKind.COMPUTE
        self._unused = itertools.count(draws.seeded("pid", node.name).choice(_FIRST_PIDS))
        self._pids: dict[_Seat, int] = {}
        self._server: int | None = None
        self._pods: set[str] = set()

    def begin(self, present: Iterable[Presence], *, now_s: float) -> None:
        """Start the processes of whoever is on the node's GPUs at `now_s` and has none."""
        for one in present:
            if one.tenant.container is not None:
                self._host.admit(one.tenant.container)
                self._pods.add(one.tenant.container.uid)
            seat = _Seat.of(one)
            if seat is None or seat in self._pids:
                continue
            started_s = one.tenant.context_since_s(now_s)
            if self._has_server and self._server is None:
                self._server = next(self._unused)
                self._host.start_service(self._server, _MPS_SERVER, unit=_MPS_UNIT, started_s=started_s)
            self._pids[seat] = next(self._unused)
            self._host.start(self._pids[seat], seat.container, started_s=started_s)

    def end(self, present: Iterable[Presence]) -> None:
        """End the processes of all who are not on the node's GPUs, or have no context any more."""
        here = list(present)
        seats = {_Seat.of(one) for one in here}
        for seat in [seat for seat in self._pids if seat not in seats]:
            self._host.end(self._pids.pop(seat))
        if self._server is not None and not self._pids:
            self._host.end(self._server)
            self._server = None
        pods = {one.tenant.container.uid for one in here if one.tenant.container is not None}
        for gone in self._pods - pods:
            self._host.forget(gone)
        self._pods = pods

    def pid(self, presence: Presence) -> int | None:
        """The process of a tenant; none where it has none."""
        seat = _Seat.of(presence)
        return None if seat is None else self._pids.get(seat)

    def on_gpu(self, present: Sequence[Presence]) -> list[Process]:
        """What the driver lists of a GPU: the processes of its tenants, the MPS server before those that it serves."""
        found: dict[_Seat, int] = {}
        for one in present:
            if (seat := _Seat.of(one)) is not None:
                found[seat] = found.get(seat, 0) + one.held_bytes
        clients = [
            Process(self._pids[seat], memory, self._kind, seat.instance) for seat, memory in found.items()
        ]
        if self._server is None:
            return clients
        served = dict.fromkeys(seat.instance for seat in found)
        servers = [Process(self._server, MPS_SERVER_BYTES, instance=instance) for instance in served]
        return servers + clients
