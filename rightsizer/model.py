"""The records that the stages hand on: Usage → Finding → Decision → Plan → Outcome.

Frozen values without behaviour beyond what follows from their fields; no clock, file, socket or logging here.
"""

import dataclasses
import datetime
import enum
from collections.abc import Mapping, Sequence


class Verdict(enum.StrEnum):
    """What is said about a workload. Only ACT can lead to a write, and absence of data never leads to ACT."""

    ACT = "act"
    KEEP = "keep"
    PROTECTED = "protected"
    UNKNOWN = "unknown"


class Mode(enum.StrEnum):
    """What a policy rule wants done with the findings about the workloads that it matches."""

    PROTECT = "protect"
    ADVISE = "advise"
    ENFORCE = "enforce"


class Action(enum.StrEnum):
    """How a workload can be made to give its GPUs back."""

    SCALE_TO_ZERO = "scale-to-zero"
    SUSPEND = "suspend"
    EVICT = "evict"


class FindingName(enum.StrEnum):
    """What the measurements say about a workload."""

    IDLE = "idle"
    PARKED = "parked"
    BUSY = "busy"
    TOO_MANY_GPUS = "too-many-gpus"
    TOO_MANY_REPLICAS = "too-many-replicas"
    NO_DATA = "no-data"
    PARTIAL_DATA = "partial-data"
    WINDOW_TOO_SHORT = "window-too-short"
    STALE_DATA = "stale-data"
    INVALID_DATA = "invalid-data"
    AMBIGUOUS_DATA = "ambiguous-data"
    CONFLICTING_SIGNALS = "conflicting-signals"
    UNMEASURABLE = "unmeasurable"
    TOO_YOUNG = "too-young"
    NOT_RUNNING = "not-running"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class ObjectRef:
    """An object of the Kubernetes API."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str = ""

    @property
    def full_kind(self) -> str:
        """The kind with its API group, such as Deployment.apps."""
        group = self.api_version.rpartition("/")[0]
        return f"{self.kind}.{group}" if group else self.kind

    def __str__(self) -> str:
        """As kubectl and our own commands take it: namespace/Kind/name."""
        return f"{self.namespace}/{self.kind}/{self.name}"


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


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """One device as used by one pod over the window. None is unknown: not measured or not measurable, never zero.

    Attributes:
        activity_mean: Mean share of time in which a kernel ran, 0 to 1.
        activity_peak: Highest sample of the same, 0 to 1.
        traffic_peak: Highest sample of memory-bus activity, 0 to 1.
        memory_peak_bytes: Highest framebuffer use.
        power_mean_w: Mean board power in watts, of the whole device also where it is shared.
        power_peak_w: Highest board power in watts.
        coverage: Share of the window for which activity was recorded, 0 to 1.
        is_fresh: Whether samples still arrived in the window's last slot.
        samples_expected: Activity samples that a whole window holds, by the densest series of all.
        invalid: Quantities whose series held values that cannot be (NaN, negative, above 100 %).
    """

    device: Device
    activity_mean: float | None = None
    activity_peak: float | None = None
    traffic_peak: float | None = None
    memory_peak_bytes: float | None = None
    power_mean_w: float | None = None
    power_peak_w: float | None = None
    coverage: float = 0.0
    is_fresh: bool = False
    samples_expected: int | None = None
    invalid: tuple[str, ...] = ()


Usages = Mapping[tuple[str, str], Sequence[Usage]]
"""Usage by (namespace, pod)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pod:
    """A pod that holds, or waits for, GPUs.

    Attributes:
        devices: GPUs or shares that its containers request, over all GPU resource names.
        is_shared: Whether its node hands out shares of GPUs (time-slicing, MPS), so that several of `devices` may be
            one GPU.
        started: Latest start among its GPU containers, so that a restart makes it young; None while one is not running.
        priority: As admitted into its spec; None where the API server resolved none.
        is_static: A mirror pod of the kubelet.
        unreadable: What its containers request that is no whole number of devices, in words.
    """

    ref: ObjectRef
    node: str
    phase: str
    devices: int
    is_shared: bool
    started: datetime.datetime | None
    priority_class: str
    priority: int | None
    is_ready: bool
    is_terminating: bool
    is_static: bool
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    unreadable: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether its GPUs are taken: bound to a node, and not ended."""
        return bool(self.node) and self.phase in {"Pending", "Running", "Unknown"}


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """What is judged and acted upon as one: the topmost known controller with all its GPU pods, or a bare pod.

    Attributes:
        generation: The object's `metadata.generation`; 0 where it has none.
        resource_version: The object's `metadata.resourceVersion`, as read; empty where it was not read itself.
        size: What stopping changes, as read: replicas, or whether suspended; None for a pod.
        budgets: PodDisruptionBudgets that cover its pods, by name, with the disruptions they allow now.
        is_terminating: Whether the object itself is being deleted.
    """

    ref: ObjectRef
    generation: int
    resource_version: str
    pods: tuple[Pod, ...]
    size: int | bool | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    namespace_annotations: Mapping[str, str]
    budgets: Mapping[str, int]
    is_terminating: bool = False

    @property
    def gpus(self) -> int:
        """GPUs (or shares, or MIG instances) that its pods hold now."""
        return sum(pod.devices for pod in self.pods if pod.holds)

    @property
    def priority_class(self) -> str:
        """PriorityClass of its pods; the highest's where they differ."""
        return max(((pod.priority or 0, pod.priority_class) for pod in self.pods), default=(0, ""))[1]

    @property
    def priority(self) -> int:
        """Highest priority among its pods."""
        return max((pod.priority or 0 for pod in self.pods), default=0)


@dataclasses.dataclass(frozen=True, slots=True)
class WorkloadKind:
    """One kind of one API group that we know how to stop and put back.

    Attributes:
        plural: Its name in URLs.
        action: What stopping it is called.
        field: Path of the field that stopping changes; empty where the pod itself goes.
        stopped: The field's value when stopped.
        stopped_reason: Reason of the Event when it was stopped, in Kubernetes's CamelCase.
    """

    api_version: str
    kind: str
    plural: str
    action: Action
    stopped_reason: str
    field: tuple[str, ...] = ()
    stopped: int | bool | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What the measurements say about a workload, with the evidence in numbers and in words.

    Attributes:
        verdict: ACT where the evidence would justify it, KEEP or UNKNOWN; policy has not spoken yet.
        busy_gpus: Devices with activity above the threshold; None where that cannot be said.
        coverage: The lowest coverage among its devices, 0 to 1.
        words: The evidence as sentences.
    """

    name: FindingName
    verdict: Verdict
    words: tuple[str, ...]
    coverage: float
    busy_gpus: int | None = None
    activity_mean: float | None = None
    activity_peak: float | None = None
    memory_peak_bytes: float | None = None
    power_mean_w: float | None = None
    power_peak_w: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Veto:
    """A reason not to act: which rule or protection, and why, for people."""

    rule: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """What may be done about a workload, by which rule.

    Attributes:
        mode: What the matching rule wants; only ENFORCE leads to a write.
        action: What would be (ADVISE) or is to be (ENFORCE) done; None where nothing.
        vetoes: Everything that stands against acting.
    """

    workload: Workload
    finding: Finding
    verdict: Verdict
    rule: str
    mode: Mode
    action: Action | None
    vetoes: tuple[Veto, ...] = ()

    @property
    def is_enforced(self) -> bool:
        """Whether applying the plan writes to this workload."""
        return self.verdict is Verdict.ACT and self.mode is Mode.ENFORCE and self.action is not None


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Every GPU workload of the cluster exactly once, in the order in which it would be acted upon.

    Attributes:
        at: The instant for which it holds, by Prometheus's clock.
        policy_source: Where the policy came from; `policy_hash` is the SHA-256 of its bytes.
    """

    at: datetime.datetime
    run: str
    policy_source: str
    policy_hash: str
    decisions: tuple[Decision, ...]

    @property
    def enforced(self) -> tuple[Decision, ...]:
        """The decisions that applying carries out."""
        return tuple(decision for decision in self.decisions if decision.is_enforced)


class Result(enum.StrEnum):
    """How an attempted change ended."""

    DONE = "done"
    GONE = "gone"
    CHANGED = "changed"
    BLOCKED = "blocked"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one decision, or of one undo.

    Attributes:
        detail: For people: what was changed, or why not.
        gpus: GPUs that the change frees (or, for undo, asks for again).
    """

    ref: ObjectRef
    action: str
    result: Result
    detail: str
    gpus: int
    at: datetime.datetime
