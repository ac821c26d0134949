"""Kinds of KubeRay. Pure.

https://ray-project.github.io/kuberay/reference/api/
"""

from rightsizer.kinds.core import TEMPLATE_CLASS
from rightsizer.kinds.edits import GROUP, Path
from rightsizer.kinds.fields import SET, BlockingField
from rightsizer.kinds.kind import Kind, Steering, suspended
from rightsizer.kinds.worker_groups import Groups

_WORKERS = Groups(
    each=("spec", "workerGroupSpecs", GROUP),
    label="ray.io/group",
    going=("scaleStrategy", "workersToDelete"),
    hosts="numOfHosts",
    replica="ray.io/worker-group-replica-name",  # as a rule from KubeRay 1.6 on
)
# What KubeRay's ValidateRayJobSpec takes no suspend with: such a job fails for good, and keeps its GPUs.
_KEPT = ("spec", "shutdownAfterJobFinishes")
_NOT_SUSPENDED = (
    BlockingField(_KEPT, value=None, why="KubeRay does not suspend it"),  # as where it is false
    BlockingField(_KEPT, value=False, why="KubeRay does not suspend it"),
    BlockingField(
        ("spec", "clusterSelector"), SET, "KubeRay does not suspend it: its cluster is not its own"
    ),
)


def _classes(*cluster: str) -> tuple[Path, ...]:
    """Of the head and the workers of a cluster that is described there."""
    groups = (("headGroupSpec",), ("workerGroupSpecs", GROUP))
    return tuple((*cluster, *group, *TEMPLATE_CLASS[1:]) for group in groups)


KINDS = (
    # The autoscaler owns the numbers of workers where it is on, and takes idle ones away by itself.
    Kind(
        "ray.io",
        "RayCluster",
        source="ray.io/v1",
        lost="everything on its head and workers: actors, objects, tasks and, unless stored outside, its jobs",
        stop=suspended(),
        groups=_WORKERS,
        steering=Steering.NAMED,
        unless=(BlockingField(("spec", "enableInTreeAutoscaling"), value=True),),
        classes=_classes("spec"),
    ),
    Kind(
        "ray.io",
        "RayJob",
        source="ray.io/v1",
        lost="work beyond the job's own checkpoints; it starts from the beginning on a new cluster",
        stop=suspended(unless=_NOT_SUSPENDED),
        classes=(*_classes("spec", "rayClusterSpec"), ("spec", "submitterPodTemplate", *TEMPLATE_CLASS[2:])),
    ),
    # The field came with KubeRay 1.7; where the definition is older, the API server refuses the dry run.
    Kind(
        "ray.io",
        "RayService",
        source="ray.io/v1, of KubeRay 1.7",
        lost="memory of its cluster; its applications are deployed again",
        stop=suspended(),
        classes=_classes("spec", "rayClusterConfig"),
    ),
)
