"""What a simulated cluster consists of: nodes with GPUs, PriorityClasses and workloads, as frozen values."""

import dataclasses
import enum
import uuid
from collections.abc import Mapping

_IDENTITY = uuid.UUID("6f1d2c7e-5a54-4c55-9a0e-1d9a5b7c3e21")


class Sharing(enum.Enum):
    """How the device plugin hands out the GPUs of a node."""

    NONE = "none"
    TIME_SLICING = "time-slicing"
    MPS = "mps"


class Kind(enum.Enum):
    """The workload kinds that the simulated controllers run."""

    DEPLOYMENT = "Deployment"
    STATEFUL_SET = "StatefulSet"
    JOB = "Job"
    POD = "Pod"


class Archetype(enum.Enum):
    """How a workload behaves; names and parameters come from published traces."""

    TRAIN_STEADY = "train_steady"
    TRAIN_STALL = "train_stall"
    NOTEBOOK = "notebook"
    INFERENCE_DIURNAL = "inference_diurnal"
    INFERENCE_LONGTAIL = "inference_longtail"
    ABANDONED = "abandoned"
    ZOMBIE = "zombie"
    OVERALLOCATED = "overallocated"


@dataclasses.dataclass(frozen=True, slots=True)
class GpuSpec:
    """One physical GPU: a row of cards.yaml, whole or with MIG profiles such as ("3g.20gb", "2g.10gb")."""

    card: str
    mig: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class TaintSpec:
    """A taint of a node."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclasses.dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node, with GPUs or without.

    Attributes:
        replicas: Devices into which each GPU or MIG instance is shared.
        rename_shared: Whether shared devices are nvidia.com/gpu.shared (the device plugin's renameByDefault).
        resources: Other extended resources, such as {"rdma/hca": 8}.
    """

    name: str
    gpus: tuple[GpuSpec, ...] = ()
    sharing: Sharing = Sharing.NONE
    replicas: int = 1
    rename_shared: bool = False
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    taints: tuple[TaintSpec, ...] = ()
    resources: Mapping[str, int] = dataclasses.field(default_factory=dict, hash=False)
    driver_version: str = "570.133.20"
    cuda_version: int = 12080

    def gpu_uuid(self, index: int) -> str:
        """The UUID of GPU `index` (0-based, NVML order), the same in every run."""
        return f"GPU-{uuid.uuid5(_IDENTITY, f'{self.name}/{index}')}"

    def mig_uuid(self, index: int, instance: int) -> str:
        """The UUID of MIG instance `instance` (0-based) of GPU `index`, the same in every run."""
        return f"MIG-{uuid.uuid5(_IDENTITY, f'{self.name}/{index}/{instance}')}"


@dataclasses.dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """A workload and how it behaves.

    Attributes:
        gpus: Devices per pod, of resource `resource`.
        busy_gpus: Devices of a pod that do work; all by default.
        busy_replicas: Replicas that do work; all by default.
        age_s: Time since its creation, in seconds.
        works_s: Seconds after a pod's start when it stops working for good: 0 never starts, inf never stops; by
            default as the archetype draws it.
        spins: Whether its GPUs report 100 % at idle power afterwards (a hung collective); by default as drawn.
        recorded: Share of the history (newest part) in which its series carry its pod's labels, 0 to 1.
        tolerates: Keys of tolerated taints.
    """

    kind: Kind
    namespace: str
    name: str
    archetype: Archetype
    priority_class: str = ""
    replicas: int = 1
    gpus: int = 1
    busy_gpus: int | None = None
    busy_replicas: int | None = None
    resource: str = "nvidia.com/gpu"
    age_s: float = 3 * 86400.0
    works_s: float | None = None
    spins: bool | None = None
    recorded: float = 1.0
    node_selector: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    tolerates: tuple[str, ...] = ()
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)


@dataclasses.dataclass(frozen=True, slots=True)
class PriorityClassSpec:
    """A PriorityClass object."""

    name: str
    value: int
    global_default: bool = False
    preemption_policy: str = "PreemptLowerPriority"


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A whole simulated cluster."""

    nodes: tuple[NodeSpec, ...]
    priority_classes: tuple[PriorityClassSpec, ...]
    workloads: tuple[WorkloadSpec, ...]
    seed: int = 1
