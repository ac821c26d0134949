"""The records that the stages hand on: what a metric is, what a device is, and what one sampling cycle found.

Frozen and free of behaviour beyond arithmetic on their own fields; nothing here knows NVML, Kubernetes or a format.
"""

import dataclasses
import enum


class Kind(enum.Enum):
    """Prometheus types of metrics."""

    GAUGE = "gauge"
    COUNTER = "counter"


class Naming(enum.Enum):
    """Which of DCGM's two generations of names is served."""

    DCGM = "dcgm"
    DCGM_49 = "dcgm-4.9"
    BOTH = "both"


class SharedGpus(enum.Enum):
    """What DCGM's families say of a device that several pods share.

    DCGM: the device's own value, a copy for each pod. ATTRIBUTED: each pod's part, and the rest without a pod, where
    the parts are known; else the device's own value, once, without a pod.
    """

    DCGM = "dcgm"
    ATTRIBUTED = "attributed"


class MetricSet(enum.Enum):
    """How much is served; each holds the ones before it."""

    MINIMAL = "minimal"
    DEFAULT = "default"
    FULL = "full"

    def holds(self, other: "MetricSet") -> bool:
        """Whether what belongs to `other` is served in this set."""
        order = list(MetricSet)
        return order.index(other) <= order.index(self)


@dataclasses.dataclass(frozen=True, slots=True)
class MetricName:
    """A metric's name in one generation of DCGM, and its unit as a ratio to NVML's."""

    name: str
    unit: str  # the unit, as the help text says it; empty for what has none
    times: int = 1  # multiplier from NVML's unit
    per: int = 1  # divisor from NVML's unit; a divisor and not a factor, so that 61234 mW is 61.234 W exactly
    whole: bool = False  # whether DCGM truncates to whole units
    help: str = ""  # the help text of a metrics file, if it has one

    def value(self, raw: float) -> float:
        """Convert `raw` from NVML's unit."""
        scaled = raw * self.times
        if self.per == 1:
            return scaled
        return scaled // self.per if self.whole else scaled / self.per


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """One fact about a device, under both of the names that DCGM has given it."""

    dcgm: MetricName  # up to dcgm-exporter 4.8; what public dashboards ask for
    dcgm_49: MetricName  # from dcgm-exporter 4.9
    kind: Kind
    help: str  # what it is, without its unit
    source: str  # the NVML call that it comes from
    within: MetricSet = MetricSet.DEFAULT  # the smallest set that it belongs to
    needs: str = ""  # which cards and drivers have it, where not all do

    @property
    def is_own(self) -> bool:
        """Whether DCGM has no name for it.

        It has one series per device, without pod labels, so that sums are right and joins work.
        """
        return self.dcgm.name.startswith("gpu_")

    def names_in(self, naming: Naming) -> "tuple[MetricName, ...]":
        """The names to serve; an unchanged name only once."""
        match naming:
            case Naming.DCGM:
                return (self.dcgm,)
            case Naming.DCGM_49:
                return (self.dcgm_49,)
            case Naming.BOTH:
                return (self.dcgm,) if self.dcgm_49.name == self.dcgm.name else (self.dcgm, self.dcgm_49)


@dataclasses.dataclass(frozen=True, slots=True)
class Label:
    """Both DCGM names of a label with a text on every series of a device."""

    dcgm: str
    dcgm_49: str


@dataclasses.dataclass(frozen=True, slots=True)
class LabelValue:
    """A label's value on some device."""

    label: Label
    value: str


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """A MIG GPU instance."""

    profile: str  # such as "3g.20gb"; empty where the driver does not say
    gpu_instance_id: int  # NVML's GPU instance id
    uuids: tuple[str, ...]  # MIG UUIDs of its compute instances: what the kubelet hands out
    profile_id: int | None = None  # NVML's id of the profile; None where the driver does not say
    start: int | None = None  # the first of its memory slices; None where the driver does not say


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or a MIG instance of one (then everything but `instance` describes its GPU)."""

    index: int  # NVML's index: DCGM's `gpu` label
    # the N of /dev/nvidiaN, which GKE's device ids carry; None where the driver does not say
    minor: int | None
    uuid: str  # the GPU's UUID, also on an instance, as DCGM has it
    pci_bus_id: str  # as NVML writes it, such as "00000000:07:00.0"
    model: str
    instance: Instance | None = None  # set on MIG instances only


_DCGM_INSTANCES_PER_GPU = 8  # DCGM_MAX_INSTANCES_PER_GPU: instance k of GPU g is its entity 8 g + k


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceChoice:
    """Which devices are exported. In each field, None means all."""

    gpus: frozenset[int] | None = None  # whole GPUs, by NVML's index
    entities: frozenset[int] | None = None  # MIG instances, by the number that DCGM gives them over all GPUs
    # MIG instances, by their GPU's index and their GPU instance id
    instances: frozenset[tuple[int, int]] = frozenset()

    def has_gpu(self, index: int) -> bool:
        """Whether the whole GPU is exported."""
        return self.gpus is None or index in self.gpus

    def has_instance(self, index: int, position: int, gpu_instance_id: int) -> bool:
        """Whether the instance that is number `position` (from 0) on its GPU is exported."""
        if self.entities is None:
            return True
        entity = index * _DCGM_INSTANCES_PER_GPU + position
        return entity in self.entities or (index, gpu_instance_id) in self.instances

    def has_instances_of(self, index: int) -> bool:
        """Whether the GPU's instances must be read."""
        if self.entities is None:
            return True
        of_entities = {entity // _DCGM_INSTANCES_PER_GPU for entity in self.entities}
        return index in of_entities | {gpu for gpu, _ in self.instances}

    def missing_of(self, index: int, shown: "frozenset[tuple[int, int]]") -> tuple[str, ...]:
        """The instances of a GPU that are named and not among its `shown` positions and GPU instance ids."""
        first = index * _DCGM_INSTANCES_PER_GPU
        positions = {first + position for position, _ in shown}
        numbers = {number for _, number in shown}
        here = {entity for entity in self.entities or () if entity // _DCGM_INSTANCES_PER_GPU == index}
        pairs = {number for gpu, number in self.instances if gpu == index}
        absent = [f"i:{entity}" for entity in sorted(here - positions)]
        return (*absent, *(f"i:{index}.{number}" for number in sorted(pairs - numbers)))

    def needs(self, index: int) -> bool:
        """Whether the GPU has to be read at all."""
        return self.has_gpu(index) or self.has_instances_of(index)

    @property
    def named(self) -> frozenset[int]:
        """The GPUs that must be there."""
        return (self.gpus or frozenset()) | {gpu for gpu, _ in self.instances}


ALL_DEVICES = DeviceChoice()


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """A device of a resource claim (dynamic resource allocation), all as Kubernetes names it."""

    name: str
    namespace: str
    driver: str
    pool: str
    device: str


@dataclasses.dataclass(frozen=True, slots=True)
class PodDetails:
    """What only the API server knows of a pod, as far as it is wanted."""

    uid: str = ""  # its UID; empty where it is not wanted
    # those that are wanted, by the names that the series' labels have
    labels: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class PodRef:
    """A container of a pod."""

    namespace: str
    pod: str
    container: str
    # through which it holds the device in question; None where a device plugin gave it
    claim: Claim | None = None
    details: PodDetails | None = None  # None where they are not wanted, or not known


@dataclasses.dataclass(frozen=True, slots=True)
class Allocation:
    """What the kubelet says: this container holds this device id of this resource."""

    owner: PodRef
    resource: str  # the resource's name; for a claimed device, the driver's
    device_id: str  # the device plugin's; for a claimed device, the driver's name of it


@dataclasses.dataclass(frozen=True, slots=True)
class Offer:
    """What the kubelet says: this device id of this resource can be given to pods, taken or not."""

    resource: str
    device_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """A reading by pod, in NVML's unit."""

    pods: tuple[tuple[tuple[str, str], float], ...]  # each pod's part, by namespace and name
    rest: float  # what is no pod's


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """A metric's value on some device, in NVML's unit, with further labels if there are several.

    `split`: The same by pod, where that is known.
    """

    metric: Metric
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    split: Split | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceSample:
    """The readings of a device in one cycle, and the pods that hold it."""

    device: Device
    readings: tuple[Reading, ...]
    owners: tuple[PodRef, ...] = ()  # the pods that hold it
    texts: tuple[LabelValue, ...] = ()  # its values in words
    jobs: tuple[str, ...] = ()  # ids of the batch system's jobs on it
    allocated: bool | None = None  # whether a pod holds it; None if unknown


@dataclasses.dataclass(frozen=True, slots=True)
class GpuState:
    """Whether a physical GPU answers."""

    index: int  # NVML's index
    device: Device | None  # its identity, from the last cycle that could read it; None before the first
    up: bool  # it answered in this cycle
    # monotonic time in seconds of the driver call that has not returned; None when none hangs
    stuck_since: float | None = None
    reason: str = ""  # why it did not answer, as in the failures; empty where it did


@dataclasses.dataclass(frozen=True, slots=True)
class CollectorHealth:
    """How a collector did in one cycle, over all devices."""

    name: str
    duration_s: float  # time spent in it, summed over the devices, in seconds
    success: bool  # no reading failed but for those that a device does not support


@dataclasses.dataclass(frozen=True, slots=True)
class FailureCount:
    """Failed readings since the exporter started."""

    collector: str
    reason: str
    count: int


@dataclasses.dataclass(frozen=True, slots=True)
class ReloadStatus:
    """How the metrics file fared when it was last read."""

    successful: bool  # what is in it now is in force
    succeeded_at: float  # Unix time in seconds of the last success


@dataclasses.dataclass(frozen=True, slots=True)
class Health:
    """What the exporter says about itself."""

    gpus: tuple[GpuState, ...]  # one per GPU that NVML has ever shown
    collectors: tuple[CollectorHealth, ...]  # one per collector that is switched on
    failures: tuple[FailureCount, ...]  # sorted by collector and reason
    nvml_up: bool  # NVML could be asked for its GPUs in this cycle
    podresources_up: bool | None  # the kubelet answered in this cycle; None where there is no kubelet
    # how many GPUs the kernel's driver lists; None where it lists none at all, or not all are wanted
    gpus_in_kernel: int | None
    reload: ReloadStatus | None = None  # of the metrics file; None where there is none
    # the API server's pods of this node are known and followed; None where they are not wanted
    pod_watch_up: bool | None = None
    # how many devices that pods hold could not be attributed, by reason
    unattributed: tuple[tuple[str, int], ...] = ()
    # empty if process attribution works; None if no collector needs it
    attribution_disabled_reason: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """The result of one sampling cycle, served until the next one replaces it as a whole."""

    taken_at: float  # monotonic time in seconds at the end of the cycle
    # the same, of the last cycle in which a GPU could be read; None before there was one
    read_at: float | None
    nvml_version: str
    metrics: tuple[Metric, ...]  # all metrics of the collectors that are switched on, in catalogue order
    samples: tuple[DeviceSample, ...]  # one per device that could be read
    health: Health
