"""Measurements: of each device by each pod over a window and its history, and of replicas at one time. Pure.

None is unknown: not measured or not measurable, never zero.
"""

import dataclasses
import datetime
import enum
import functools
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Device:
    """One GPU or MIG instance as its metrics name it.

    Attributes:
        uuid: UUID of the physical GPU (DCGM gives MIG instances their parent's).
        instance: DCGM's `GPU_I_ID` of a MIG instance; empty for a whole GPU.
        model: DCGM's `modelName`.
        instance_profile: DCGM's `GPU_I_PROFILE`; empty for a whole GPU.
    """

    uuid: str
    instance: str = ""
    model: str = ""
    instance_profile: str = ""


class SecondSignal(enum.StrEnum):
    """A measurement that must agree with activity before a GPU counts as idle."""

    POWER = "power"
    TRAFFIC = "traffic"


@dataclasses.dataclass(frozen=True, slots=True)
class PartialSignal:
    """A second signal with fewer samples than the window holds: their share of it, slots without any, and the begin."""

    signal: SecondSignal
    share: float
    holes: int
    since: datetime.datetime


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """One device as used by one pod over the window.

    Attributes:
        activity_mean: Mean share of time in which a kernel ran, 0 to 1; of several sources the highest.
        activity_floor: The lowest mean of any source: where much activity speaks against a workload, all must show it.
        activity_peak: Highest sample of the same, 0 to 1.
        traffic_peak: Highest sample of memory-bus activity, 0 to 1.
        memory_peak_bytes: Highest framebuffer use.
        power_mean_w: Mean board power in watts, of the whole device also where it is shared.
        power_peak_w: Highest board power in watts.
        busy_s: Seconds of the window in which a kernel ran, by counters: nothing between two scrapes is missed. At
            least these, if they lack samples.
        is_own: Whether activity and busy_s are the pod's alone; otherwise they are the device's, whoever uses it.
        coverage: Share of the window for which activity was recorded, 0 to 1.
        holes: Slots of the window without any sample; a burst could hide in each.
        is_fresh: Whether samples still arrived in the window's last slot.
        samples_expected: Activity samples that a whole window holds, by the densest series of all.
        unattributed_s: The part of the pod's own busy_s of which it is not known whether it was the pod's.
        traffic_s: Seconds in which memory was read or written for the pod, by counters, where the device is shared.
        clock_peak_hz: Highest SM clock, of whole boards only.
        disputed: Its mean activity by gauges and by counters, where the gauges show far more than the counters.
        is_by_board: Whether it has no activity of its own, and its whole board was idle.
        is_held: Whether the kubelet gave it to the pod. Of others, `is_own` tells the pod's part, or it is anybody's.
        is_visited: Whether counters show that a pod works on it which does not hold it.
        lacking: Second signals that do not cover the window.
        invalid: Quantities whose series held values that cannot be (NaN, negative, above 100 %).
    """

    device: Device
    activity_mean: float | None = None
    activity_peak: float | None = None
    traffic_peak: float | None = None
    memory_peak_bytes: float | None = None
    power_mean_w: float | None = None
    power_peak_w: float | None = None
    busy_s: float | None = None
    is_own: bool = False
    coverage: float = 0.0
    holes: int = 0
    is_fresh: bool = False
    samples_expected: int | None = None
    invalid: tuple[str, ...] = ()
    activity_floor: float | None = None
    unattributed_s: float = 0.0
    traffic_s: float | None = None
    clock_peak_hz: float | None = None
    disputed: tuple[float, float] | None = None
    is_by_board: bool = False
    is_held: bool = True
    is_visited: bool = False
    lacking: tuple[PartialSignal, ...] = ()

    @property
    def is_sampled(self) -> bool:
        """Whether samples of the device decide about the pod's use of it, not its own counter alone."""
        return self.is_held or not self.is_own


PodKey = tuple[str, str]
"""Namespace and name."""

Usages = Mapping[PodKey, Sequence[Usage]]
"""Usage of each device by pod."""

UsagesByWindow = Mapping[datetime.timedelta, Usages]
"""Usages for each window over which a rule of the policy looks back."""


class Slot(enum.IntEnum):
    """Activity in one stretch of time."""

    IDLE = 0
    BUSY = 1
    UNKNOWN = 2


_BITS = bytes.maketrans(bytes([Slot.IDLE, Slot.UNKNOWN, Slot.BUSY]), bytes([0, 1, 3]))
_SLOT = bytes.maketrans(bytes([0, 1, 3]), bytes([Slot.IDLE, Slot.UNKNOWN, Slot.BUSY]))


def strongest(rows: Sequence[bytes | bytearray]) -> bytes:
    """Slot by slot, of several rows of one length, what says most for keeping: busy, else unknown, else idle."""
    first, *others = rows
    if not others:
        return bytes(first)
    numbers = (int.from_bytes(row.translate(_BITS)) for row in rows)
    return functools.reduce(operator.or_, numbers).to_bytes(len(first)).translate(_SLOT)


@dataclasses.dataclass(frozen=True, slots=True)
class History:
    """Activity of a pod, slot by slot, as far back as it was looked.

    Attributes:
        end: End of the last slot.
        slot_s: Length of each in seconds.
        slots: Values of Slot, oldest first: BUSY where any of its devices was; UNKNOWN where one had no samples, and
            none was busy. Before the pod began there are no slots.
    """

    end: datetime.datetime
    slot_s: float
    slots: bytes

    @property
    def span_s(self) -> float:
        """Length in seconds."""
        return len(self.slots) * self.slot_s


@dataclasses.dataclass(frozen=True, slots=True)
class WorkLevel:
    """Times at which a pod's GPUs moved memory, as GPUs at work do, and the power that they drew then.

    Attributes:
        traffic: BUSY where any of them did, by every source.
        power_w: Highest mean power of a slot in which a GPU did, in watts, by the lowest source; of its GPUs that did,
            the one's that drew least. None without such a slot.
        quiet_power_w: Highest mean power of a slot in which a GPU moved none, but did later, by the highest source: so
            it may compute. None without such a slot.
    """

    traffic: History
    power_w: float | None
    quiet_power_w: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Concurrency:
    """Number of a workload's replicas that were at work in the same minute, oldest minute first.

    Attributes:
        busy: Those that were seen at work.
        unseen: Those that existed, but had no samples: each may have been at work. Missing at the end: none.
    """

    busy: tuple[int, ...]
    unseen: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Waits:
    """Shares of the window in which a pod's containers waited, 0 to 1.

    Attributes:
        cpu_throttled: Share of CFS periods in which they were throttled by their CPU limit (cAdvisor).
        cpu_pressure: Share of time in which some task waited for CPU (PSI).
        io_pressure: Share of time in which some task waited for disk or network file systems (PSI).
    """

    cpu_throttled: float | None = None
    cpu_pressure: float | None = None
    io_pressure: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ServingLoad:
    """Load of a pod's inference server in a window, by its own metrics.

    Attributes:
        engine: Such as vllm.
        requests: Growth of its counters of requests or tokens; None where it is unknown.
        running: Most requests that it processed at once.
        queued: Most requests that waited.
        cache: Highest share of its KV cache in use, 0 to 1.
        first_token_s: Mean time to the first token of an answer, in seconds.
    """

    engine: str
    requests: float | None = None
    running: float | None = None
    queued: float | None = None
    cache: float | None = None
    first_token_s: float | None = None

    @property
    def has_requests(self) -> bool:
        """Whether any was served, ran or waited, as far as that is known."""
        return bool(self.requests or self.running or self.queued)


ServingLoads = Mapping[PodKey, ServingLoad]
"""The load of inference servers by pod."""


@dataclasses.dataclass(frozen=True, slots=True)
class NodeCoverage:
    """Coverage of one node's devices by metrics in the window's last minutes.

    Attributes:
        devices: GPUs and MIG instances that have series.
        owned: Those of them whose series name a pod.
        coverage: Share of the window with samples, of the worst of them, 0 to 1.
        boards: UUIDs of its GPUs.
    """

    devices: int
    owned: int
    coverage: float
    boards: frozenset[str] = frozenset()


class Ignored(NamedTuple):
    """Series that are no evidence, since no exporter of their pod's node has them."""

    series: int = 0
    words: tuple[str, ...] = ()


NONE_IGNORED = Ignored()


@dataclasses.dataclass(frozen=True, slots=True)
class ActivitySeries:
    """Place where others, such as autoscalers, find the activity of pods.

    Attributes:
        server: Prometheus's URL, as connected.
        metric: Name of the metric, in per cent.
        pod: Label that names the pod, and `namespace` the one that names its namespace.
        interval_s: Seconds between two samples.
        matchers: Of the cluster's series, and of the exporters' jobs.
    """

    server: str
    metric: str = "DCGM_FI_DEV_GPU_UTIL"
    pod: str = "exported_pod"
    namespace: str = "exported_namespace"
    interval_s: float = 15.0
    matchers: tuple[str, ...] = ()


Boards = Mapping[str, Usage]
"""Usage of whole boards by UUID, whoever uses them."""


class BoardLevel(NamedTuple):
    """Up to where a board of one model counts as idle; `clock_hz` is None where no clock is known."""

    power_w: float
    clock_hz: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of the fleet, as of one instant of Prometheus's clock.

    Attributes:
        histories: Only of the pods for which they were asked.
        work: Only of pods whose GPUs may spin.
        idle_power: Of each model, the lowest mean power in watts of a GPU that held memory while nothing ran.
        board_levels: Likewise, up to where its boards count as idle; only where devices have no activity of their own.
        concurrency: Only of the workloads for which it was asked, by UID.
        nodes: By the node's name, as far as the series' hostname is one.
        begins: Where Prometheus's own record begins, of anything; None where it goes back as far as was asked.
        is_full: Whether that record is as long as Prometheus's retention, so that it will not grow.
        series: Where autoscalers find activity; None where it is not in per cent by pod.
        serving: Load of inference servers, for each window that a rule looks back for requests.
        profiles: Mean activity of each pod's devices over the longest window in equal steps, oldest first, 0 to 1; only
            where a report draws them, and of a shared GPU only where it is the pod's own.
        pauses_s: Lengths of pauses by full kind, longest first: the longest in each namespace.
        nvlink: The GPUs that NVLink connects with a GPU, by UUID; only of those of pods that may be resized.
        shares: How many shares of GPUs series name for a pod; only of pods that hold several.
        silent: Gauges that are no signal, by model, UUID (empty: every board) and whether these are MIG instances.
    """

    at: datetime.datetime
    usages: UsagesByWindow
    histories: Mapping[PodKey, History] = dataclasses.field(default_factory=dict)
    work: Mapping[PodKey, WorkLevel] = dataclasses.field(default_factory=dict)
    idle_power: Mapping[str, float] = dataclasses.field(default_factory=dict)
    board_levels: Mapping[str, BoardLevel] = dataclasses.field(default_factory=dict)
    concurrency: Mapping[str, Concurrency] = dataclasses.field(default_factory=dict)
    waits: Mapping[PodKey, Waits] = dataclasses.field(default_factory=dict)
    serving: Mapping[datetime.timedelta, ServingLoads] = dataclasses.field(default_factory=dict)
    nodes: Mapping[str, NodeCoverage] = dataclasses.field(default_factory=dict)
    begins: datetime.datetime | None = None
    is_full: bool = False
    series: ActivitySeries | None = None
    profiles: Mapping[PodKey, Sequence[float | None]] = dataclasses.field(default_factory=dict)
    ignored: Ignored = NONE_IGNORED
    pauses_s: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    nvlink: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    shares: Mapping[PodKey, int] = dataclasses.field(default_factory=dict)
    silent: Collection[tuple[tuple[str, str, bool], SecondSignal]] = frozenset()
