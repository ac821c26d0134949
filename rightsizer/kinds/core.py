"""Kinds of the core, of apps and of batch, which every cluster has. Pure.

https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/
"""

import dataclasses

from rightsizer.kinds.edits import NAMED, Path
from rightsizer.kinds.kind import (
    LEFT_OVER,
    QUARTER,
    REPLICAS,
    BlockingField,
    Kind,
    PauseSupport,
    Rollout,
    RolloutPrecondition,
    Steering,
    Stop,
    scaled,
    suspended,
)
from rightsizer.model import Action

TEMPLATE: Path = ("spec", "template", "spec", "containers", NAMED)
"""Containers of a corev1.PodTemplateSpec."""
CLASS = "priorityClassName"
"""Field of a corev1.PodSpec."""
TEMPLATE_CLASS: Path = ("spec", "template", "spec", CLASS)

_PODS = "memory of its pods"

# Nothing restarts a bare pod, so its manifest is saved before it is evicted.
POD = Kind(
    "",
    "Pod",
    lost="memory and local disk of the pod; undo starts it from scratch",
    has_checkpoints=True,
    stop=Stop(Action.EVICT, "Evicted"),
    classes=(("spec", CLASS),),
)

# The pods go when spec.replicas is 0; the API server asks no PodDisruptionBudget about that.
_REPLICA_SET = Kind(
    "apps",
    "ReplicaSet",
    lost=_PODS,
    stop=scaled(),
    replicas=REPLICAS,
    steering=Steering.DELETION_COST,
    has_scale=True,
    classes=(TEMPLATE_CLASS,),
)
DEPLOYMENT = dataclasses.replace(
    _REPLICA_SET,
    kind="Deployment",
    containers=(TEMPLATE,),
    preconditions=(RolloutPrecondition(("spec", "paused"), (None, False), "its pods stay as they are"),),
    rollout=Rollout(
        ("spec", "strategy", "rollingUpdate"),
        QUARTER,
        QUARTER,
        recreates=(BlockingField(("spec", "strategy", "type"), "Recreate"),),
    ),
)
# https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#forced-rollback
_UPDATE = ("spec", "updateStrategy")
_OF_SET = (
    RolloutPrecondition(
        ("spec", "podManagementPolicy"),
        ("Parallel",),
        "a pod that cannot start stays as it is, even after a rollback of the template; with Parallel it does not",
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
    DEPLOYMENT,
    dataclasses.replace(
        _REPLICA_SET,
        kind="StatefulSet",
        lost=f"{_PODS}; volumes stay, unless persistentVolumeClaimRetentionPolicy.whenScaled is Delete",
        steering=Steering.TAIL,
        first=("spec", "ordinals", "start"),
        containers=(TEMPLATE,),
        preconditions=_OF_SET,
    ),
    # A changed template reaches only pods that are made later, so its containers are not changed.
    _REPLICA_SET,
    # A suspended Job's pods are deleted without counting as failures; resumed, it starts from scratch (KEP-2232).
    Kind(
        "batch",
        "Job",
        lost="work since the last checkpoint of every unfinished pod; activeDeadlineSeconds starts again",
        has_checkpoints=True,
        stop=suspended(),
        states=(LEFT_OVER,),
        # KEP-5440. A Job that never ran is in no plan, because its use is unknown.
        pause=PauseSupport((TEMPLATE,), since=36),
        classes=(TEMPLATE_CLASS,),
    ),
    # Stopped with a Job that it started, if another one is stopped already. Resumed, it follows its schedule.
    Kind(
        "batch",
        "CronJob",
        lost="runs that would start meanwhile",
        stop=suspended(),
        classes=(("spec", "jobTemplate", *TEMPLATE_CLASS),),
    ),
    # Works like a ReplicaSet.
    dataclasses.replace(_REPLICA_SET, group="", kind="ReplicationController"),
)
