"""Traits of workload kinds: interchangeable replicas, groups of pods, and batch work. Pure.

To add a kind is to add its name to a set.
"""

from rightsizer.model import Workload

SCALABLE = frozenset({"Deployment", "LeaderWorkerSet", "ReplicaSet", "Rollout", "StatefulSet"})
"""Kinds with a scale subresource that autoscalers can target."""

_CUSTOM = frozenset({"InferenceService", "LLMInferenceService", "NIMService", "RayCluster", "RayService"})
INTERCHANGEABLE = SCALABLE | _CUSTOM
"""Kinds with interchangeable replicas, of which fewer can serve the same requests."""

GROUPED = frozenset({"LeaderWorkerSet"})
"""Kinds in which a replica is a group of pods."""

_TRAINING = frozenset({"JAXJob", "MPIJob", "PaddleJob", "PyTorchJob", "TFJob", "TrainJob", "XGBoostJob"})
BATCH = _TRAINING | {"AppWrapper", "Job", "JobSet", "Pod", "RayJob", "Workflow"}
"""Kinds that finish: idle after activity means done. Volcano's kind is also Job."""


def has_replicas(workload: Workload) -> bool:
    """Whether its pods are interchangeable; pods of a gang are not."""
    return workload.ref.kind in INTERCHANGEABLE and not workload.gang


def is_batch(workload: Workload) -> bool:
    """Whether it finishes by itself."""
    return workload.ref.kind in BATCH
