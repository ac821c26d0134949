"""The hardware of one node over all time: which pod keeps which GPU busy, and what the sensors show.

Past and present come from the same timeline, so that a written history continues in what the driver shows.
"""

import bisect
import dataclasses
import math
import threading
from collections.abc import Mapping, Sequence

from simulator.gpus import Reading
from simulator.gpus.cards import CARDS
from simulator.nodes import physics
from simulator.nodes.devices import Container, DeviceId, devices
from simulator.nodes.physics import Load, Regime, Sums
from simulator.nodes.tenancy import Presence, Tenancy
from simulator.spec import NodeSpec, Sharing
from simulator.workloads import behavior, draws
from simulator.workloads.archetypes import Actor
from simulator.workloads.behavior import PERIOD_S

_AHEAD_S = 3600.0
"""How far beyond the instant asked for a timeline is worked out."""
_MASK = PERIOD_S - 1
_NOTHING: tuple[Sums, Sums] = ((0.0,) * (PERIOD_S + 1), (0.0,) * (PERIOD_S + 1))


@dataclasses.dataclass(frozen=True, slots=True)
class Division:
    """A GPU's utilization in one second, and the whole percents of each active tenant; their sum is `percent`."""

    percent: int
    shares: tuple[tuple[Presence, int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class InstanceReading:
    """What a MIG instance shows at an instant: bytes, and the share of its own engines that is at work."""

    memory_used_bytes: int
    activity_percent: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Segment:
    """A stretch of time under one regime."""

    start_s: float
    regime: Regime
    offset_s: int
    memory_used: int
    present: tuple[Presence, ...]
    instance_memory: tuple[int, ...]
    energy_j: float
    temperature_c: float
    used: Mapping[Tenancy, tuple[float, float]]  # busy seconds and their energy until the start
    shares: Mapping[Tenancy, tuple[Sums, Sums]]  # of those at work

    def energy_at(self, t_s: float) -> float:
        return self.energy_j + self._grown(self.regime.joules, t_s)

    def used_at(self, t_s: float) -> dict[Tenancy, tuple[float, float]]:
        found = ((one, used, self.shares.get(one, _NOTHING)) for one, used in self.used.items())
        return {
            one: (used[0] + self._grown(of[0], t_s), used[1] + self._grown(of[1], t_s))
            for one, used, of in found
        }

    def _grown(self, sums: Sums, t_s: float) -> float:
        return physics.total(sums, t_s + self.offset_s) - physics.total(sums, self.start_s + self.offset_s)

    def column(self, sums: Sums, start: float, seconds: range) -> list[float]:
        """What has come together at each of `seconds`, beginning with `start` at the start."""
        base, period = start - physics.total(sums, self.start_s + self.offset_s), sums[-1]
        moved = range(seconds.start + self.offset_s, seconds.stop + self.offset_s, seconds.step)
        return [base + second // PERIOD_S * period + sums[second & _MASK] for second in moved]

    def activity_at(self, second: int, instance: int) -> int:
        """Of a MIG instance's own engines, in percent, in a Unix second."""
        residents = (one for one in self.present if one.tenant.device.instance == instance)
        return min(100, sum(one.utilization_at(second) for one in residents))

    def temperature_at(self, t_s: float) -> float:
        return physics.approach(self.temperature_c, self.regime.temperature_c, t_s - self.start_s)


@dataclasses.dataclass(slots=True)
class Used:
    """What one tenant has used at equal steps: busy seconds and their energy so far, and the memory held."""

    busy_s: list[float]
    energy_j: list[float]
    memory: list[int]


@dataclasses.dataclass(slots=True)
class Samples:
    """Readings at equal steps, a list per sensor; of MIG instances, one such list for each."""

    instance_memory: list[list[int]]
    instance_activity: list[list[int]]
    tenants: dict[Tenancy, Used] = dataclasses.field(default_factory=dict)
    utilization: list[int] = dataclasses.field(default_factory=list)
    memory_utilization: list[int] = dataclasses.field(default_factory=list)
    memory_used: list[int] = dataclasses.field(default_factory=list)
    temperature_c: list[int] = dataclasses.field(default_factory=list)
    memory_temperature_c: list[int] = dataclasses.field(default_factory=list)
    power_w: list[float] = dataclasses.field(default_factory=list)
    energy_j: list[float] = dataclasses.field(default_factory=list)
    sm_clock_mhz: list[int] = dataclasses.field(default_factory=list)
    mem_clock_mhz: list[int] = dataclasses.field(default_factory=list)


class GpuTimeline:
    """One physical GPU; energy counts from `boot_s` (Unix), when the driver was loaded."""

    def __init__(self, node: NodeSpec, index: int, *, boot_s: float) -> None:
        self.card = CARDS[node.gpus[index].card]
        self._card_name = node.gpus[index].card
        self._instances = len(node.gpus[index].mig)
        self._server_bytes = physics.MPS_SERVER_BYTES if node.sharing is Sharing.MPS else 0
        self._offset_s = draws.seeded(node.gpu_uuid(index)).randrange(PERIOD_S)
        self._boot_s = boot_s
        self._tenants: list[Tenancy] = []
        self._forget()

    def occupy(self, tenancy: Tenancy) -> None:
        """A pod's device starts to use this GPU."""
        self._tenants.append(tenancy)
        self._forget()

    def release(self, device: DeviceId, *, at_s: float) -> None:
        """The pod on `device` leaves it at `at_s`."""
        self._tenants = [
            dataclasses.replace(tenant, end_s=max(at_s, tenant.actor.start_s))
            if tenant.device == device and tenant.end_s == math.inf
            else tenant
            for tenant in self._tenants
        ]
        self._forget()

    def reading(self, t_s: float) -> Reading:
        """What the sensors show at `t_s`."""
        segment = self._segment(t_s)
        regime, second = segment.regime, (math.floor(t_s) + segment.offset_s) & _MASK
        temperature_c = segment.temperature_at(t_s)
        return Reading(
            gpu_util_percent=regime.utilization[second],
            memory_util_percent=regime.memory_utilization[second],
            memory_used_bytes=segment.memory_used,
            temperature_c=round(temperature_c),
            memory_temperature_c=physics.memory_temperature_c(self.card, temperature_c),
            power_w=regime.power_w[second],
            energy_j=segment.energy_at(t_s),
            sm_clock_mhz=regime.sm_clock_mhz,
            mem_clock_mhz=regime.mem_clock_mhz,
        )

    def instances(self, t_s: float) -> tuple[InstanceReading, ...]:
        """What each MIG instance shows at `t_s`."""
        segment, second = self._segment(t_s), math.floor(t_s)
        return tuple(
            InstanceReading(memory_used, segment.activity_at(second, instance))
            for instance, memory_used in enumerate(segment.instance_memory)
        )

    def present(self, t_s: float) -> tuple[Presence, ...]:
        """The tenants of the GPU at `t_s`, in order of arrival."""
        return self._segment(t_s).present

    def division(self, t_s: float) -> Division:
        """The GPU's utilization at `t_s`, by tenant."""
        segment, second = self._segment(t_s), math.floor(t_s)
        percent = segment.regime.utilization[(second + segment.offset_s) & _MASK]
        active = [one for one in segment.present if one.phase.utilization]
        parts = [one.tenant.weight * one.utilization_at(second) for one in active]
        return Division(percent, tuple(zip(active, _apportion(percent, parts), strict=True)))

    def samples(self, seconds: range) -> Samples:
        """What the sensors showed at each of `seconds` (Unix time)."""
        numbers = range(self._instances)
        columns = Samples([[] for _ in numbers], [[] for _ in numbers])
        if seconds:
            self._extend(seconds[-1])
        done = 0
        while done < len(seconds):
            index = bisect.bisect_right(self._starts, seconds[done]) - 1
            end_s = self._starts[index + 1] if index + 1 < len(self._starts) else math.inf
            until = bisect.bisect_left(seconds, end_s)
            self._collect(columns, self._segments[index], seconds[done:until])
            self._collect_tenants(columns.tenants, self._segments[index], seconds[done:until], done)
            done = until
        return columns

    def _collect(self, columns: Samples, segment: _Segment, seconds: range) -> None:
        regime, offset, count = segment.regime, segment.offset_s, len(seconds)
        noise = [(second + offset) & _MASK for second in seconds]
        columns.utilization += [regime.utilization[index] for index in noise]
        columns.memory_utilization += [regime.memory_utilization[index] for index in noise]
        columns.power_w += [regime.power_w[index] for index in noise]
        columns.memory_used += [segment.memory_used] * count
        columns.sm_clock_mhz += [regime.sm_clock_mhz] * count
        columns.mem_clock_mhz += [regime.mem_clock_mhz] * count
        for instance, memory_used in enumerate(segment.instance_memory):
            columns.instance_memory[instance] += [memory_used] * count
            columns.instance_activity[instance] += [
                segment.activity_at(second, instance) for second in seconds
            ]
        columns.energy_j += segment.column(regime.joules, segment.energy_j, seconds)
        moving = bisect.bisect_left(seconds, segment.start_s + physics.SETTLED_S)
        warmth = [segment.temperature_at(second) for second in seconds[:moving]]
        settled = count - moving
        columns.temperature_c += [round(value) for value in warmth]
        columns.temperature_c += [round(regime.temperature_c)] * settled
        columns.memory_temperature_c += [physics.memory_temperature_c(self.card, v) for v in warmth]
        columns.memory_temperature_c += [
            physics.memory_temperature_c(self.card, regime.temperature_c)
        ] * settled

    @staticmethod
    def _collect_tenants(
        columns: dict[Tenancy, Used], segment: _Segment, seconds: range, before: int
    ) -> None:
        """Of every tenant until then; `before` are the steps before this segment."""
        held = {one.tenant: one.held_bytes for one in segment.present}
        for tenant, used in segment.used.items():
            if tenant not in columns:
                columns[tenant] = Used([0.0] * before, [0.0] * before, [0] * before)
            of, shares = columns[tenant], segment.shares.get(tenant, _NOTHING)
            of.busy_s += segment.column(shares[0], used[0], seconds)
            of.energy_j += segment.column(shares[1], used[1], seconds)
            of.memory += [held.get(tenant, 0)] * len(seconds)

    def _segment(self, t_s: float) -> _Segment:
        self._extend(t_s)
        return self._segments[bisect.bisect_right(self._starts, t_s) - 1]

    def _forget(self) -> None:
        self._segments: list[_Segment] = []
        self._starts: list[float] = []
        self._end_s = self._boot_s

    def _extend(self, t_s: float) -> None:
        if t_s < self._boot_s:
            raise ValueError(f"the driver was loaded at {self._boot_s}, there is nothing to read at {t_s}")
        while self._end_s <= t_s:
            until_s = max(t_s, self._end_s) + _AHEAD_S
            cuts = {self._end_s}.union(*(tenant.cuts(self._end_s, until_s) for tenant in self._tenants))
            for cut in sorted(cuts):
                segment = self._regime_from(cut)
                self._segments.append(segment)
                self._starts.append(cut)
            self._end_s = until_s

    def _regime_from(self, t_s: float) -> _Segment:
        present = tuple(
            Presence(tenant, phase, behavior.noise_offset(tenant.actor))
            for tenant in self._tenants
            if (phase := tenant.phase(t_s))
        )
        active = [one for one in present if one.phase.utilization]
        offset_s = active[0].offset_s if active else self._offset_s
        loads = tuple(_load(one, (one.offset_s - offset_s) % PERIOD_S) for one in active)
        regime = physics.regime(self._card_name, loads, any(one.phase.context for one in present))
        instance_memory = tuple(
            self._memory_used([one for one in present if one.tenant.device.instance == instance])
            for instance in range(self._instances)
        )
        last = self._segments[-1] if self._segments else None
        used = last.used_at(t_s) if last else {}
        return _Segment(
            start_s=t_s,
            regime=regime,
            offset_s=offset_s,
            memory_used=sum(instance_memory) if instance_memory else self._memory_used(present),
            present=present,
            instance_memory=instance_memory,
            energy_j=last.energy_at(t_s) if last else 0.0,
            temperature_c=last.temperature_at(t_s) if last else regime.temperature_c,
            used={one.tenant: (0.0, 0.0) for one in present} | used,
            shares=dict(zip((one.tenant for one in active), regime.shares, strict=True)),
        )

    def _memory_used(self, residents: Sequence[Presence]) -> int:
        """Of the tenants of the GPU, or of one instance, with the MPS server that serves them."""
        server = self._server_bytes if any(one.phase.context for one in residents) else 0
        return server + sum(one.held_bytes for one in residents)


def _load(presence: Presence, offset_s: int) -> Load:
    phase = presence.phase
    return Load(phase.utilization, phase.spread, phase.spins, presence.tenant.weight, offset_s)


def _apportion(total: int, parts: Sequence[float]) -> list[int]:
    """`total` in whole numbers proportional to `parts`, whose sum is not 0."""
    scale = total / sum(parts) if parts else 0.0
    shares = [math.floor(part * scale) for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda index: shares[index] - parts[index] * scale)
    for index in by_remainder[: total - sum(shares)]:
        shares[index] += 1
    return shares


class Machine:
    """All GPUs of a node; `boot_s` (Unix) is when its driver was loaded. Safe to use from several threads."""

    def __init__(self, node: NodeSpec, *, boot_s: float) -> None:
        self.node = node
        self.boot_s = boot_s
        self._gpus = [GpuTimeline(node, index, boot_s=boot_s) for index in range(len(node.gpus))]
        self._devices = {device.id: device for device in devices(node)}
        self._lock = threading.Lock()

    def occupy(self, device_id: str, actor: Actor, *, container: Container | None = None) -> None:
        """A pod's device `actor` uses `device_id` from its start on, for `container`."""
        device = self._devices[device_id]
        gpu = self.node.gpus[device.gpu]
        card = CARDS[gpu.card]
        weight, memory_bytes = 1.0, card.usable_bytes
        if device.instance is not None:
            profile = card.mig_profiles[gpu.mig[device.instance]]
            weight, memory_bytes = profile.multiprocessors / card.multiprocessors, profile.memory_bytes
        if self.node.sharing is Sharing.MPS:
            memory_bytes -= physics.MPS_SERVER_BYTES
        memory_bytes //= device.shares
        tenancy = Tenancy(actor, device, weight=weight, memory_bytes=memory_bytes, container=container)
        with self._lock:
            self._gpus[device.gpu].occupy(tenancy)

    def release(self, device_id: str, *, at_s: float) -> None:
        """The pod on `device_id` leaves it at `at_s`."""
        device = self._devices[device_id]
        with self._lock:
            self._gpus[device.gpu].release(device, at_s=at_s)

    def reading(self, gpu: int, t_s: float) -> Reading:
        """What GPU `gpu` shows at `t_s`."""
        with self._lock:
            return self._gpus[gpu].reading(t_s)

    def instances(self, gpu: int, t_s: float) -> tuple[InstanceReading, ...]:
        """What each MIG instance of GPU `gpu` shows at `t_s`."""
        with self._lock:
            return self._gpus[gpu].instances(t_s)

    def present(self, gpu: int, t_s: float) -> tuple[Presence, ...]:
        """The tenants of GPU `gpu` at `t_s`."""
        with self._lock:
            return self._gpus[gpu].present(t_s)

    def division(self, gpu: int, t_s: float) -> Division:
        """The utilization of GPU `gpu` at `t_s`, by tenant."""
        with self._lock:
            return self._gpus[gpu].division(t_s)

    def samples(self, gpu: int, seconds: range) -> Samples:
        """What GPU `gpu` showed at each of `seconds`."""
        with self._lock:
            return self._gpus[gpu].samples(seconds)
