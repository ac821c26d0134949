"""Kinds of Kubernetes's SIGs beside the core: JobSet and LeaderWorkerSet. Pure.

https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/
https://lws.sigs.k8s.io/docs/reference/leaderworkerset.v1/
"""

from rightsizer.kinds.core import CLASS, TEMPLATE_CLASS
from rightsizer.kinds.edits import NAMED
from rightsizer.kinds.fields import REPLICAS
from rightsizer.kinds.kind import Kind, RolloutPrecondition, Steering, scaled, suspended

_TEMPLATE = ("spec", "leaderWorkerTemplate")
_PARTS = ("leaderTemplate", "workerTemplate")

KINDS = (
    # The templates of a JobSet cannot be changed, suspended or not, but for where its pods may run.
    Kind(
        "jobset.x-k8s.io",
        "JobSet",
        source="jobset.x-k8s.io/v1alpha2",
        lost="work since the last checkpoint of every pod; its Jobs restart",
        stop=suspended(),
        classes=(("spec", "replicatedJobs", NAMED, "template", *TEMPLATE_CLASS),),
    ),
    # A replica is a whole group of pods; the highest index goes first. A changed template rolls group by group.
    Kind(
        "leaderworkerset.x-k8s.io",
        "LeaderWorkerSet",
        source="leaderworkerset.x-k8s.io/v1",
        lost="memory of its groups' pods",
        stop=scaled(),
        replicas=REPLICAS,
        steering=Steering.TAIL,
        containers=tuple((*_TEMPLATE, part, "spec", "containers", NAMED) for part in _PARTS),
        rolls=(
            RolloutPrecondition(
                ("spec", "rolloutStrategy", "rollingUpdateConfiguration", "partition"),
                (None, 0),
                "the groups below it stay as they are",
            ),
            RolloutPrecondition(
                (*_TEMPLATE, "size"),
                (None, 1),
                "its pods work together, and parts of GPUs have no way to each other",
                is_for_parts=True,
            ),
        ),
        has_scale=True,
        classes=tuple((*_TEMPLATE, part, "spec", CLASS) for part in _PARTS),
    ),
)
