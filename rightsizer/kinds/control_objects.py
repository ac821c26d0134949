"""Objects by which a workload is stopped in place of its own: Kueue's Workload and KEDA's ScaledObject. Pure.

Whoever is admitted by Kueue, or scaled by KEDA, would be put back if it were changed itself. The undo record stands
where the change is made.
https://kueue.sigs.k8s.io/docs/reference/kueue.v1beta2/ (WorkloadSpec.active)
https://keda.sh/docs/latest/concepts/scaling-deployments/#pausing-autoscaling
"""

from rightsizer.inventory.managers import PAUSED_REPLICAS
from rightsizer.kinds.core import TEMPLATE_CLASS
from rightsizer.kinds.edits import NAMED
from rightsizer.kinds.fields import Field, Value, annotation
from rightsizer.kinds.kind import Kind, scaled, suspended
from rightsizer.kube.owner_kinds import KEDA, KUEUE

LEVERS = (
    # Kueue evicts the workload and does not queue it again; active again, it waits for its turn.
    Kind(
        KUEUE.group,
        KUEUE.kind,
        source="kueue.x-k8s.io/v1beta2 and v1beta1",
        lost="what the job itself loses, and its place in the queue",
        stop=suspended(Field(("spec", "active"), Value.SWITCH), to=False),
        classes=(("spec", "podSets", NAMED, *TEMPLATE_CLASS[1:]),),
        where=KUEUE,
    ),
    # KEDA scales its target to the number, and holds it there. Set free, it scales by its triggers again.
    Kind(
        KEDA.group,
        KEDA.kind,
        source="keda.sh/v1alpha1",
        lost="memory of its target's pods; its triggers or minReplicaCount decide how many start again",
        stop=scaled(annotation(PAUSED_REPLICAS), to="0"),
        where=KEDA,
    ),
)
