"""Kinds of KubeRay. Pure.

https://ray-project.github.io/kuberay/reference/api/
"""

from rightsizer.workloads.core import TEMPLATE_CLASS
from rightsizer.workloads.edits import GROUP, Path
from rightsizer.workloads.kind import Groups, Kind, Steering, suspended

_WORKERS = Groups(
    each=("spec", "workerGroupSpecs", GROUP), label="ray.io/group", going=("scaleStrategy", "workersToDelete")
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
        lost="all that its head and workers hold: actors, objects, running tasks and, unless kept outside, its jobs",
        stop=suspended(),
        groups=_WORKERS,
        steering=Steering.NAMED,
        unless=((("spec", "enableInTreeAutoscaling"), True),),
        classes=_classes("spec"),
    ),
    Kind(
        "ray.io",
        "RayJob",
        source="ray.io/v1",
        lost="all that the job has done, beyond its own checkpoints: it starts from its beginning on a new cluster",
        stop=suspended(),
        classes=(*_classes("spec", "rayClusterSpec"), ("spec", "submitterPodTemplate", *TEMPLATE_CLASS[2:])),
    ),
    Kind(
        "ray.io",
        "RayService",
        source="ray.io/v1",
        lost="all that its cluster holds in memory; its applications are deployed anew",
        stop=suspended(),
        classes=_classes("spec", "rayClusterConfig"),
    ),
)
