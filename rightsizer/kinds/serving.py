"""Kinds that serve models: KServe, Knative and NVIDIA NIM. Pure.

https://kserve.github.io/website/docs/admin-guide/configurations (serving.kserve.io/stop)
https://knative.dev/docs/serving/autoscaling/scale-bounds/
https://docs.nvidia.com/nim-operator/latest/service.html
"""

from rightsizer.kinds.core import CLASS, TEMPLATE, TEMPLATE_CLASS
from rightsizer.kinds.edits import NAMED
from rightsizer.kinds.fields import REPLICAS, SET, BlockingField, Field, Value, annotation
from rightsizer.kinds.kind import Kind, Steering, Stop, scaled
from rightsizer.model import Action

_STOPPED = Stop(Action.SUSPEND, "Suspended", annotation("serving.kserve.io/stop"), "true")
_LEAST = Field(
    ("spec", "template", "metadata", "annotations", "autoscaling.knative.dev/min-scale"), Value.TEXT
)
_LOST = "memory of its pods, such as caches; no request wakes it, and its model is loaded again"
# With its own autoscaling, or on KServe, the NIM Operator leaves the number of replicas to others.
# Only of one plain Deployment the replicas are pods, and its own number of them holds.
_LLM_LEFT = (
    BlockingField(("spec", "worker"), SET, "its replicas are groups of pods"),
    BlockingField(("spec", "prefill"), SET, "its pods are of two sorts"),
    BlockingField(("spec", "scaling"), SET),
)
_NIM_LEFT = (
    BlockingField(("spec", "scale", "enabled"), value=True),
    BlockingField(("spec", "inferencePlatform"), "kserve"),
)

KINDS = (
    # The annotation works in every deployment mode; minReplicas: 0 is no stop in Standard mode, where it counts as 1.
    Kind(
        "serving.kserve.io",
        "InferenceService",
        source="serving.kserve.io/v1beta1",
        lost=_LOST,
        stop=_STOPPED,
        containers=(("spec", "predictor", "model"), ("spec", "predictor", "containers", NAMED)),
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
        source="serving.kserve.io/v1alpha2 and v1alpha1",
        lost=_LOST,
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
    # The only stop is to let it go to zero for want of requests, by a new Revision; a request wakes it.
    Kind(
        "serving.knative.dev",
        "Service",
        source="serving.knative.dev/v1",
        lost="memory of its pods; the next request waits for a new pod",
        stop=scaled(_LEAST, to="0"),
        containers=(TEMPLATE,),
        classes=(TEMPLATE_CLASS,),
    ),
    Kind(
        "apps.nvidia.com",
        "NIMService",
        source="apps.nvidia.com/v1alpha1",
        lost="memory of its pods; its model is loaded again from its cache",
        stop=scaled(unless=_NIM_LEFT),
        replicas=REPLICAS,
        steering=Steering.DELETION_COST,
        containers=(("spec",),),
        unless=_NIM_LEFT,
        has_scale=True,
    ),
)
