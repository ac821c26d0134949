"""Kinds of the core, of apps and of batch, which every cluster has. Pure.

https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/
"""

from rightsizer.kinds.edits import NAMED, Path
from rightsizer.kinds.fields import REPLICAS
from rightsizer.kinds.kind import Kind, PauseSupport, RolloutPrecondition, Steering, Stop, scaled, suspended
from rightsizer.model import Action

TEMPLATE: Path = ("spec", "template", "spec", "containers", NAMED)
"""Containers of a corev1.PodTemplateSpec."""
CLASS = "priorityClassName"
"""Of a corev1.PodSpec."""
TEMPLATE_CLASS: Path = ("spec", "template", "spec", CLASS)

_PODS = "memory of its pods"

# Nothing brings a bare pod back, so its manifest is saved before it is evicted.
POD = Kind(
    "",
    "Pod",
    source="v1",
    lost="memory and local disk of the pod; undo starts it from scratch",
    stop=Stop(Action.EVICT, "Evicted"),
    classes=(("spec", CLASS),),
)

ROLLING = (RolloutPrecondition(("spec", "paused"), (None, False), "its pods stay as they are"),)
# https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#forced-rollback
_UPDATE = ("spec", "updateStrategy")
_OF_SET = (
    RolloutPrecondition(
        ("spec", "podManagementPolicy"),
        ("Parallel",),
        "a pod that cannot start stays as it is, also once the template is put back; with Parallel it does not",
    ),
    RolloutPrecondition(
        (*_UPDATE, "type"), (None, "RollingUpdate"), "pods stay as they are until somebody deletes them"
    ),
    RolloutPrecondition(
        (*_UPDATE, "rollingUpdate", "partition"), (None, 0), "the pods below it stay as they are"
    ),
)

KINDS = (
    POD,
    # The pods go when spec.replicas is 0; the API server asks no PodDisruptionBudget about that.
    Kind(
        "apps",
        "Deployment",
        source="apps/v1",
        lost=_PODS,
        stop=scaled(),
        replicas=REPLICAS,
        steering=Steering.DELETION_COST,
        containers=(TEMPLATE,),
        rolls=ROLLING,
        has_scale=True,
        classes=(TEMPLATE_CLASS,),
    ),
    Kind(
        "apps",
        "StatefulSet",
        source="apps/v1",
        lost=f"{_PODS}; volumes stay, unless persistentVolumeClaimRetentionPolicy.whenScaled is Delete",
        stop=scaled(),
        replicas=REPLICAS,
        steering=Steering.TAIL,
        first=("spec", "ordinals", "start"),
        containers=(TEMPLATE,),
        rolls=_OF_SET,
        has_scale=True,
        classes=(TEMPLATE_CLASS,),
    ),
    # A changed template reaches only pods that are made later, so its containers are not changed.
    Kind(
        "apps",
        "ReplicaSet",
        source="apps/v1",
        lost=_PODS,
        stop=scaled(),
        replicas=REPLICAS,
        steering=Steering.DELETION_COST,
        has_scale=True,
        classes=(TEMPLATE_CLASS,),
    ),
    # A suspended Job's pods are deleted without counting as failures; resumed, it starts anew (KEP-2232).
    Kind(
        "batch",
        "Job",
        source="batch/v1",
        lost="work since the last checkpoint of every unfinished pod; activeDeadlineSeconds starts again",
        stop=suspended(),
        # KEP-5440. One that never ran is in no plan: of what it would use nothing is known, so it stays as it is.
        pause=PauseSupport((TEMPLATE,), since=36),
        classes=(TEMPLATE_CLASS,),
    ),
    # Stopped along with a Job that it made, once another one of its is stopped already. It goes on by its schedule.
    Kind(
        "batch",
        "CronJob",
        source="batch/v1",
        lost="runs that would start meanwhile",
        stop=suspended(),
        classes=(("spec", "jobTemplate", *TEMPLATE_CLASS),),
    ),
    # Its controller is the ReplicaSet's.
    Kind(
        "",
        "ReplicationController",
        source="v1",
        lost=_PODS,
        stop=scaled(),
        replicas=REPLICAS,
        steering=Steering.DELETION_COST,
        has_scale=True,
        classes=(TEMPLATE_CLASS,),
    ),
)
