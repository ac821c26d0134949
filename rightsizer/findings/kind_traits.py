"""What is known of kinds of workloads: whose replicas stand in for each other, and which end by themselves. Pure.

To add a kind is to add its name to a set.
"""

from rightsizer.model import Workload

INTERCHANGEABLE = frozenset(
    {
        "Deployment",
        "InferenceService",
        "LLMInferenceService",
        "LeaderWorkerSet",
        "NIMService",
        "RayCluster",
        "RayService",
        "ReplicaSet",
        "Rollout",
        "StatefulSet",
    }
)
"""A request can go to any of their replicas, so that fewer of them serve the same."""

SCALABLE = frozenset({"Deployment", "LeaderWorkerSet", "ReplicaSet", "Rollout", "StatefulSet"})
"""Those with a `scale` subresource that autoscalers can be pointed at."""

GROUPED = frozenset({"LeaderWorkerSet"})
"""Of these a replica is a group of pods."""

BATCH = frozenset(
    {
        "AppWrapper",
        "JAXJob",
        "Job",
        "JobSet",
        "MPIJob",
        "PaddleJob",
        "Pod",
        "PyTorchJob",
        "RayJob",
        "TFJob",
        "TrainJob",
        "Workflow",
        "XGBoostJob",
    }
)
"""Work that ends by itself: where it ran and then stopped, it is done. Volcano's is a Job as well."""


def has_replicas(workload: Workload) -> bool:
    """Whether its pods stand in for each other; those of a gang work together or not at all."""
    return workload.ref.kind in INTERCHANGEABLE and not workload.gang


def is_batch(workload: Workload) -> bool:
    """Whether it ends by itself."""
    return workload.ref.kind in BATCH
