"""What our exporter's counters say beyond DCGM's gauges: for how long each device, and each pod on it, worked. Pure.

A counter misses nothing between two scrapes, and on a shared GPU it is the pod's own. But it is only known to be all of
the pod's work while nothing on the device went unattributed that could be (docs/attribution.md).
"""

import dataclasses

from rightsizer.usage.series_labels import UseKey

POD_BUSY = "gpu_pod_busy_seconds_total"
DEVICE_BUSY = "gpu_busy_seconds_total"
UNATTRIBUTED = "gpu_unattributed_busy_seconds_total"
GAPS = "gpu_busy_gap_seconds_total"
POD_MEMORY = "gpu_pod_memory_used_bytes"
METRICS = (POD_BUSY, DEVICE_BUSY, UNATTRIBUTED, GAPS, POD_MEMORY)

NOBODYS = ("host", "container", "mig")
"""Reasons of unattributed work that is certainly no pod's on that device; any other might be this pod's."""

SLACK_S = 1.0
"""Work of unknown owner up to this long in a window is rounding; it is added to what each pod is said to have done."""

COMPLETE = 0.98
"""Least share of its job's scrapes that a counter must have been in."""

DeviceKey = tuple[str, str]
"""UUID and instance."""


@dataclasses.dataclass(slots=True)
class CounterIncrease:
    """What the counters of a device, or of a pod on it, rose by over the window.

    Attributes:
        busy_s: Seconds of work.
        samples: Scrapes that it was in.
        is_whole: Whether it was in (nearly) all scrapes of the window, from its beginning on.
    """

    busy_s: float = 0.0
    samples: float = 0.0
    is_whole: bool = False


@dataclasses.dataclass(slots=True)
class Counters:
    """Everything that the counters said over one window.

    Attributes:
        doubt_s: Of each device: work that may be anybody's, and time of which it is not known whether it worked.
        gap_s: The latter alone.
        memory_bytes: Highest memory of each pod's own processes.
    """

    pods: dict[UseKey, CounterIncrease] = dataclasses.field(default_factory=dict)
    devices: dict[DeviceKey, CounterIncrease] = dataclasses.field(default_factory=dict)
    doubt_s: dict[DeviceKey, float] = dataclasses.field(default_factory=dict)
    gap_s: dict[DeviceKey, float] = dataclasses.field(default_factory=dict)
    memory_bytes: dict[UseKey, float] = dataclasses.field(default_factory=dict)

    def own_s(self, key: UseKey) -> float | None:
        """Seconds that a pod worked on a device, at most; None where that is not known of it alone."""
        device, pod = self.devices.get(key[2:]), self.pods.get(key)
        if device is None or pod is None or not device.is_whole:
            return None
        doubt_s = self.doubt_s.get(key[2:], 0.0)
        if pod.samples < COMPLETE * device.samples or doubt_s > SLACK_S:
            return None
        return pod.busy_s + doubt_s

    def anybodys_s(self, key: UseKey) -> float | None:
        """Seconds that a device worked for whomever, at most; None where that is not known."""
        device = self.devices.get(key[2:])
        gap_s = self.gap_s.get(key[2:], 0.0)
        if device is None or not device.is_whole or gap_s > SLACK_S:
            return None
        return device.busy_s + gap_s
