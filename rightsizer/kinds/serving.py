"""Kinds that serve models: KServe, Knative, NVIDIA NIM, Dynamo, Grove, LeaderWorkerSet, Rollouts; and KEDA. Pure.

https://kserve.github.io/website/docs/admin-guide/configurations (serving.kserve.io/stop)
https://knative.dev/docs/serving/autoscaling/scale-bounds/
https://docs.nvidia.com/nim-operator/latest/service.html
https://github.com/ai-dynamo/dynamo/tree/main/deploy/operator/api/v1alpha1 (DynamoGraphDeploymentSpec)
https://github.com/ai-dynamo/grove/tree/main/operator/api/core/v1alpha1 (PodCliqueSetSpec, PodCliqueSpec)
https://lws.sigs.k8s.io/docs/reference/leaderworkerset.v1/
https://argo-rollouts.readthedocs.io/en/stable/features/specification/
https://keda.sh/docs/latest/concepts/scaling-deployments/#pausing-autoscaling
"""

import dataclasses

from rightsizer.inventory.managers import PAUSED_REPLICAS, keda_hold_reason
from rightsizer.kinds.core import CLASS, DEPLOYMENT, TEMPLATE, TEMPLATE_CLASS
from rightsizer.kinds.edits import ANY, NAMED
from rightsizer.kinds.kind import (
    QUARTER,
    REPLICAS,
    SERVER_START_S,
    SET,
    WHOLE,
    WOKEN_BY_KNATIVE,
    BlockingField,
    Field,
    Kind,
    Rollout,
    RolloutPrecondition,
    Steering,
    Stop,
    Value,
    WorkerGroups,
    annotation,
    scaled,
)
from rightsizer.kube.owner_kinds import KEDA
from rightsizer.model import Action

_STOPPED = Stop(Action.SUSPEND, "Suspended", annotation("serving.kserve.io/stop"), "true")
_LEAST = Field(
    ("spec", "template", "metadata", "annotations", "autoscaling.knative.dev/min-scale"), Value.TEXT
)
_FEWEST = Field(("spec", "predictor", "minReplicas"), Value.COUNT)
_LOST = "memory of its pods, such as caches; no request wakes it, and its model is loaded again"
# The NIM Operator does not set replicas with its own autoscaling, or on KServe. An LLMInferenceService's
# spec.replicas counts pods, and takes effect, only with one plain Deployment.
_LLM_LEFT = (
    BlockingField(("spec", "worker"), SET, "its replicas are groups of pods"),
    BlockingField(("spec", "prefill"), SET, "its pods are of two sorts"),
    BlockingField(("spec", "scaling"), SET),
)
_NIM_LEFT = (
    BlockingField(("spec", "scale", "enabled"), value=True),
    BlockingField(("spec", "inferencePlatform"), "kserve"),
)
# Dynamo's webhook refuses a change of what its scaling adapter counts, and its planner would revert it.
_SERVICE = ("spec", "services", ANY)
_DYNAMO_LEFT = (
    BlockingField((*_SERVICE, "scalingAdapter", "enabled"), value=True),
    BlockingField((*_SERVICE, "componentType"), "planner"),
    BlockingField(("spec", "experimental", "componentGroups"), SET),
)
_COMPONENTS = WorkerGroups(
    pattern=_SERVICE,
    label="nvidia.com/dynamo-component",
    hosts=("multinode", "nodeCount"),
    replica="grove.io/podcliquescalinggroup-replica-index",  # the highest go first; without Grove: advice only
    newest="grove.io/pod-template-hash",  # operator/internal/controller/podclique/components/pod/deletionsort.go
)
_PODCLIQUE = "grove.io/podclique"
_STRATEGY = ("spec", "predictor", "deploymentStrategy")
_CANARY = ("spec", "strategy", "canary")
_LWS_TEMPLATE = ("spec", "leaderWorkerTemplate")
_LWS_PARTS = ("leaderTemplate", "workerTemplate")

KINDS = (
    # The annotation works in every deployment mode, but ends what Knative would wake; minReplicas: 0 is no stop in
    # Standard mode, where it counts as 1.
    Kind(
        "serving.kserve.io",
        "InferenceService",
        lost=_LOST,
        restart_s=SERVER_START_S,
        wakes=False,
        stop=_STOPPED,
        on_knative=scaled(
            _FEWEST, to=0, unless=(BlockingField(_FEWEST.path, 0, "Knative keeps it otherwise"),)
        ),
        containers=(("spec", "predictor", "model"), ("spec", "predictor", "containers", NAMED)),
        rollout=Rollout(
            (*_STRATEGY, "rollingUpdate"),
            QUARTER,
            QUARTER,
            recreates=(BlockingField((*_STRATEGY, "type"), "Recreate"),),
        ),
        classes=(
            ("spec", "predictor", CLASS),
            ("spec", "predictor", "workerSpec", CLASS),
            ("spec", "transformer", CLASS),
            ("spec", "explainer", CLASS),
        ),
    ),
    Kind(
        "serving.kserve.io",
        "LLMInferenceService",
        lost=_LOST,
        restart_s=SERVER_START_S,
        wakes=False,
        stop=_STOPPED,
        replicas=REPLICAS,
        steering=Steering.DELETION_COST,
        unless=_LLM_LEFT,
        classes=(
            ("spec", "template", CLASS),
            ("spec", "worker", CLASS),
            ("spec", "prefill", "template", CLASS),
            ("spec", "prefill", "worker", CLASS),
        ),
    ),
    # It can only stop by a new Revision that scales to zero without requests; a request restarts it.
    Kind(
        "serving.knative.dev",
        "Service",
        lost=WOKEN_BY_KNATIVE,
        wakes=True,
        stop=scaled(_LEAST, to="0"),
        containers=(TEMPLATE,),
        rollout=WHOLE,
        classes=(TEMPLATE_CLASS,),
    ),
    # Before 3.1 its definition allows no 0, and a stop is refused; before 3.1.1 it names no class.
    Kind(
        "apps.nvidia.com",
        "NIMService",
        lost="memory of its pods; its model is loaded again from its cache",
        restart_s=SERVER_START_S,
        stop=scaled(unless=_NIM_LEFT),
        replicas=REPLICAS,
        steering=Steering.DELETION_COST,
        containers=(("spec",),),
        rollout=Rollout((), QUARTER, QUARTER),
        unless=_NIM_LEFT,
        classes=(("spec", CLASS),),
    ),
    # A role without pods is MinAvailableBreached: Grove then restarts the pods of the other roles
    # (github.com/ai-dynamo/grove/issues/676).
    Kind(
        "nvidia.com",
        "DynamoGraphDeployment",
        lost="memory of its pods; no request wakes it, and its models are loaded again",
        restart_s=SERVER_START_S,
        wakes=False,
        stop=scaled(Field((*_SERVICE, "replicas"), Value.COUNT), unless=_DYNAMO_LEFT),
        groups=_COMPONENTS,
        roles=(_COMPONENTS.label,),
        unless=_DYNAMO_LEFT,
        unless_pod=(_PODCLIQUE, "Grove runs it, and restarts a gang in which a role has no pods"),
        classes=((*_SERVICE, "extraPodSpec", CLASS),),
        class_of_all=("spec", CLASS),
    ),
    # A replica is one gang with pods of all roles. Grove reads replicas of a role from its template only at first
    # (buildResource in podcliqueset/components): later they are a field of a PodClique or PodCliqueScalingGroup.
    Kind(
        "grove.io",
        "PodCliqueSet",
        lost="memory of the pods of all its gangs",
        restart_s=SERVER_START_S,
        stop=scaled(),
        replicas=REPLICAS,
        steering=Steering.TAIL,
        roles=("grove.io/podcliquescalinggroup", _PODCLIQUE),
        has_scale=True,
        classes=(("spec", "template", "cliques", NAMED, "spec", "podSpec", CLASS),),
        class_of_all=("spec", "template", CLASS),
    ),
    # A replica is a whole group of pods; the highest index goes first. A changed template rolls group by group.
    Kind(
        "leaderworkerset.x-k8s.io",
        "LeaderWorkerSet",
        lost="memory of its groups' pods",
        restart_s=SERVER_START_S,
        stop=scaled(),
        replicas=REPLICAS,
        steering=Steering.TAIL,
        containers=tuple((*_LWS_TEMPLATE, part, "spec", "containers", NAMED) for part in _LWS_PARTS),
        rollout=Rollout(("spec", "rolloutStrategy", "rollingUpdateConfiguration")),
        preconditions=(
            RolloutPrecondition(
                ("spec", "rolloutStrategy", "rollingUpdateConfiguration", "partition"),
                (None, 0),
                "the groups below it stay as they are",
            ),
            RolloutPrecondition(
                (*_LWS_TEMPLATE, "size"),
                (None, 1),
                "its pods work together, and GPU slices cannot communicate with each other",
                only_for_slices=True,
            ),
        ),
        has_scale=True,
        classes=tuple((*_LWS_TEMPLATE, part, "spec", CLASS) for part in _LWS_PARTS),
    ),
    # A changed template starts a canary, as any other release does. With traffic routing the stable pods stay.
    dataclasses.replace(
        DEPLOYMENT,
        group="argoproj.io",
        kind="Rollout",
        rollout=Rollout(
            _CANARY,
            QUARTER,
            QUARTER,
            whole=(
                BlockingField(("spec", "strategy", "blueGreen"), SET),
                BlockingField((*_CANARY, "trafficRouting"), SET),
            ),
        ),
    ),
)

# KEDA holds its target at this number. Without the annotation, it scales by its triggers again.
SCALED_OBJECT = Kind(
    KEDA.group,
    KEDA.kind,
    lost="memory of its target's pods; no trigger starts them while it is paused, unlike with minReplicaCount: 0",
    wakes=False,
    stop=scaled(annotation(PAUSED_REPLICAS), to="0"),
    no_pods_reason=keda_hold_reason,
    where=KEDA,
)
