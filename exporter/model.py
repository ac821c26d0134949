"""The records that stages pass on: metrics, devices, and the result of a sampling cycle.

They are frozen and only compute from their own fields. Must not know NVML, Kubernetes or a format.
"""

import dataclasses
import enum


class Kind(enum.Enum):
    """Prometheus types of metrics."""

    GAUGE = "gauge"
    COUNTER = "counter"


class Naming(enum.Enum):
    """The generation of DCGM's names to serve."""

    DCGM = "dcgm"
    DCGM_49 = "dcgm-4.9"
    BOTH = "both"


class SharedGpus(enum.Enum):
    """Values of DCGM's families for a device that several pods share.

    DCGM: the device's value, a copy for each pod. ATTRIBUTED: each pod's part, and the rest without a pod. If the parts
    are unknown, the device's value once, without a pod.
    """

    DCGM = "dcgm"
    ATTRIBUTED = "attributed"


class MetricSet(enum.Enum):
    """Sets of metrics; each includes the previous ones."""

    MINIMAL = "minimal"
    DEFAULT = "default"
    FULL = "full"

    def holds(self, other: "MetricSet") -> bool:
        """Whether this set includes `other`."""
        order = list(MetricSet)
        return order.index(other) <= order.index(self)


@dataclasses.dataclass(frozen=True, slots=True)
class MetricName:
    """A metric's name in one generation of DCGM, and its unit as a ratio to NVML's."""

    name: str
    unit: str  # the unit in the help text; empty for none
    times: int = 1  # multiplier from NVML's unit
    per: int = 1  # divisor from NVML's unit: so 61234 mW is exactly 61.234 W
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
    """One quantity of a device, with the names of both generations of DCGM."""

    dcgm: MetricName  # up to dcgm-exporter 4.8, and in public dashboards
    dcgm_49: MetricName  # from dcgm-exporter 4.9
    kind: Kind
    help: str  # help text without the unit
    source: str  # the NVML call
    within: MetricSet = MetricSet.DEFAULT  # the smallest set that includes it
    needs: str = ""  # cards and drivers that have it; empty for all

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
    """DCGM's two names of a label that is on every series of a device."""

    dcgm: str
    dcgm_49: str


@dataclasses.dataclass(frozen=True, slots=True)
class LabelValue:
    """A label's value for a device."""

    label: Label
    value: str


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """A MIG GPU instance."""

    profile: str  # such as "3g.20gb"; empty if unknown
    gpu_instance_id: int  # NVML's GPU instance id
    uuids: tuple[str, ...]  # MIG UUIDs of its compute instances, which the kubelet allocates
    profile_id: int | None = None  # NVML's id of the profile; None if unknown
    start: int | None = None  # the first of its memory slices; None if unknown


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """A GPU or MIG instance; of an instance, all fields but `instance` describe its GPU."""

    index: int  # NVML's index: DCGM's `gpu` label
    # the N of /dev/nvidiaN, also in GKE's device ids; None if unknown
    minor: int | None
    uuid: str  # the GPU's UUID, also for an instance, as in DCGM
    pci_bus_id: str  # as NVML writes it, such as "00000000:07:00.0"
    model: str
    instance: Instance | None = None  # set on MIG instances only


_DCGM_INSTANCES_PER_GPU = 8  # DCGM_MAX_INSTANCES_PER_GPU: instance k of GPU g is its entity 8 g + k


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceChoice:
    """The devices to export. In each field, None means all."""

    gpus: frozenset[int] | None = None  # whole GPUs, by NVML's index
    entities: frozenset[int] | None = None  # MIG instances, by DCGM's number over all GPUs
    # MIG instances, by their GPU's index and their GPU instance id
    instances: frozenset[tuple[int, int]] = frozenset()

    def has_gpu(self, index: int) -> bool:
        """Whether the whole GPU is exported."""
        return self.gpus is None or index in self.gpus

    def has_instance(self, index: int, position: int, gpu_instance_id: int) -> bool:
        """Whether the instance at `position` (from 0) of its GPU is exported."""
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
        """The named instances of a GPU that are not among its `shown` positions and GPU instance ids."""
        first = index * _DCGM_INSTANCES_PER_GPU
        positions = {first + position for position, _ in shown}
        numbers = {number for _, number in shown}
        own = {entity for entity in self.entities or () if entity // _DCGM_INSTANCES_PER_GPU == index}
        pairs = {number for gpu, number in self.instances if gpu == index}
        absent = [f"i:{entity}" for entity in sorted(own - positions)]
        return (*absent, *(f"i:{index}.{number}" for number in sorted(pairs - numbers)))

    def needs(self, index: int) -> bool:
        """Whether the GPU must be read."""
        return self.has_gpu(index) or self.has_instances_of(index)

    @property
    def named(self) -> frozenset[int]:
        """The GPUs that must exist."""
        return (self.gpus or frozenset()) | {gpu for gpu, _ in self.instances}


ALL_DEVICES = DeviceChoice()


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """A device of a resource claim (dynamic resource allocation), with Kubernetes' names."""

    name: str
    namespace: str
    driver: str
    pool: str
    device: str
    share_id: str = ""  # of a device that several claims may have; else empty


@dataclasses.dataclass(frozen=True, slots=True)
class PodDetails:
    """The requested facts of a pod that only the API server knows."""

    uid: str = ""  # its UID; empty if not requested
    # the requested labels, by their names in the series
    labels: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class PodRef:
    """A container of a pod."""

    namespace: str
    pod: str
    container: str
    # the claim for this device; None if a device plugin allocated it
    claim: Claim | None = None
    details: PodDetails | None = None  # None if not requested or unknown


@dataclasses.dataclass(frozen=True, slots=True)
class Allocation:
    """Hold of a container on a device id of a resource, by the kubelet."""

    owner: PodRef
    resource: str  # the resource's name; for a claimed device, the driver's
    device_id: str  # the device plugin's; for a claimed device, the driver's name of it


@dataclasses.dataclass(frozen=True, slots=True)
class Offer:
    """Device id of a resource that the kubelet can allocate, used or not."""

    resource: str
    device_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """A reading by pod, in NVML's unit."""

    pods: tuple[tuple[tuple[str, str], float], ...]  # each pod's part, by namespace and name
    rest: float  # the rest, without a pod


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """A metric's value for a device, in NVML's unit, with further labels if there are several.

    `split`: the value by pod, if known.
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
    texts: tuple[LabelValue, ...] = ()  # label values
    jobs: tuple[str, ...] = ()  # ids of its batch jobs
    allocated: bool | None = None  # whether a pod holds it or has a process on it; None if unknown
    # replicas under which the kubelet offers it, 1 if it is not shared; None if unknown
    replicas: int | None = None
    shares: tuple[int, ...] = ()  # of each owner: the replicas that it holds


@dataclasses.dataclass(frozen=True, slots=True)
class GpuState:
    """Whether a GPU answers."""

    index: int  # NVML's index
    device: Device | None  # its identity, from the last cycle that could read it; None before the first
    up: bool  # it answered in this cycle
    # monotonic start in seconds of a hung driver call; None if none hangs
    stuck_since: float | None = None
    reason: str = ""  # why it did not answer, as in the failures; empty if it did


@dataclasses.dataclass(frozen=True, slots=True)
class CollectorHealth:
    """Duration and success of a collector in one cycle, for all devices."""

    name: str
    duration_s: float  # sum over the devices in seconds
    success: bool  # no supported reading failed


@dataclasses.dataclass(frozen=True, slots=True)
class FailureCount:
    """Failed readings since the exporter started."""

    collector: str
    reason: str
    count: int


@dataclasses.dataclass(frozen=True, slots=True)
class ReloadStatus:
    """The result of the last load of the metrics file."""

    successful: bool  # its current content is in use
    succeeded_at: float  # Unix time in seconds of the last success


@dataclasses.dataclass(frozen=True, slots=True)
class Health:
    """The exporter's metrics about itself."""

    gpus: tuple[GpuState, ...]  # all GPUs that NVML has shown
    collectors: tuple[CollectorHealth, ...]  # all enabled collectors
    failures: tuple[FailureCount, ...]  # sorted by collector and reason
    nvml_up: bool  # NVML listed its GPUs in this cycle
    podresources_up: bool | None  # the kubelet listed all its pods in this cycle; None without a kubelet
    # number of GPUs that the kernel's driver lists; None if it has no list, or not all are exported
    gpus_in_kernel: int | None
    reload: ReloadStatus | None = None  # of the metrics file; None without a file
    # this node's pods are watched on the API server; None if not requested
    pod_watch_up: bool | None = None
    # number of devices that pods hold but that match no known device, by reason
    unattributed: tuple[tuple[str, int], ...] = ()
    # empty if process attribution works; None if no collector needs it
    attribution_disabled_reason: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """The result of one sampling cycle, served until the next one replaces it as a whole."""

    taken_at: float  # monotonic time in seconds at the end of the cycle
    # the same of the last cycle with a readable GPU; None before the first
    read_at: float | None
    nvml_version: str
    metrics: tuple[Metric, ...]  # all metrics of the enabled collectors, in catalogue order
    samples: tuple[DeviceSample, ...]  # all devices that could be read
    health: Health
    lost: tuple[DeviceSample, ...] = ()  # XID errors of known devices that could not be read
