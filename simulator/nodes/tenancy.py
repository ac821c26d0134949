"""The tenants of a GPU: a pod's device with its share of the card, and what it does at an instant. Pure."""

import dataclasses
import math

from simulator.nodes import physics
from simulator.nodes.devices import Container, DeviceId
from simulator.workloads import behavior
from simulator.workloads.archetypes import Actor
from simulator.workloads.schedule import Phase


@dataclasses.dataclass(frozen=True, slots=True)
class Tenancy:
    """A pod's device on a GPU; `weight` is its share of the compute, 0 to 1, `end_s` (Unix) when the pod left."""

    actor: Actor
    device: DeviceId
    weight: float
    memory_bytes: int
    container: Container | None = None
    end_s: float = dataclasses.field(default=math.inf, compare=False)

    def cuts(self, t0_s: float, t1_s: float) -> list[float]:
        """When, in [t0, t1), the tenant starts to do something else."""
        begin, end = max(t0_s, self.actor.start_s), min(t1_s, self.end_s)
        if begin >= end:
            return []
        starts = [start for start, _, _ in behavior.schedule(self.actor).between(begin, end)]
        return [*starts, *([self.end_s] if self.end_s < t1_s else [])]

    def phase(self, t_s: float) -> Phase | None:
        """What the tenant does at `t_s`; nothing before its start and after its end."""
        if not self.actor.start_s <= t_s < self.end_s:
            return None
        return behavior.schedule(self.actor).at(t_s)

    def context_since_s(self, t_s: float) -> float:
        """Since when, in Unix seconds, the tenant has had the context that it has at `t_s`."""
        since_s, until_s = t_s, math.nextafter(t_s, math.inf)
        for start_s, _, phase in reversed(behavior.schedule(self.actor).between(self.actor.start_s, until_s)):
            if not phase.context:
                break
            since_s = start_s
        return since_s


@dataclasses.dataclass(frozen=True, slots=True)
class Presence:
    """What a tenant does at an instant; `offset_s` is where it enters the noise."""

    tenant: Tenancy
    phase: Phase
    offset_s: int

    @property
    def held_bytes(self) -> int:
        """Memory held."""
        most = self.tenant.memory_bytes
        context = physics.CONTEXT_BYTES if self.phase.context else 0
        return min(most, context + round(self.phase.memory * (most - context)))

    def utilization_at(self, second: int) -> int:
        """Of the device, in percent, in a Unix second."""
        return behavior.utilization(self.phase, second + self.offset_s)
