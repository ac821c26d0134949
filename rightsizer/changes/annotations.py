"""Names of the annotations and labels that gpu-rightsizer writes, or that owners write for it."""

from rightsizer.config import PREFIX
from rightsizer.model import ObjectRef

UNDO_ANNOTATION = PREFIX + "undo"
"""The change record from which `undo` restores the object."""
HISTORY_ANNOTATION = PREFIX + "history"
"""The last changes of the object."""
CAME_BACK_ANNOTATION = PREFIX + "came-back-after"
"""The longest pause after which the workload was needed again, such as 31h10m."""
RESUMED_ANNOTATION = PREFIX + "resumed-at"
"""When a stopped workload was last restored, RFC 3339; measurements from before say nothing about it now."""
NOTICE_ANNOTATION = PREFIX + "notice"
"""The announced change, and its time."""
SNOOZE_ANNOTATION = PREFIX + "snooze-until"
"""The owner's answer to a notice: no change before then."""
ORDER_ANNOTATION = PREFIX + "order"
"""The command that a command object gave to the workload's controller, such as AbortJob."""
STEERED_ANNOTATION = PREFIX + "steered"
"""On a pod with a deletion cost: the run that set it."""

MANIFEST_LABEL = PREFIX + "manifest"
"""On Secrets with the manifest of an evicted pod: the run."""
POD_ANNOTATION = PREFIX + "pod"
"""On the same Secrets: the pod, as namespace/name."""
GPUS_ANNOTATION = PREFIX + "gpus"
"""On the same Secrets: the GPUs that the eviction freed."""
CLASS_ANNOTATION = PREFIX + "priority-class"
"""On the same Secrets: the pod's PriorityClass, empty if it had none."""

RECORDS = frozenset(
    {
        *(UNDO_ANNOTATION, CAME_BACK_ANNOTATION, NOTICE_ANNOTATION, RESUMED_ANNOTATION, ORDER_ANNOTATION),
        *(SNOOZE_ANNOTATION, HISTORY_ANNOTATION, STEERED_ANNOTATION),
        *(MANIFEST_LABEL, POD_ANNOTATION, GPUS_ANNOTATION, CLASS_ANNOTATION),
    }
)
"""All of these; none of them is an opt-out."""

MANIFEST_NAME = "^.+-[0-9a-f]{8}$"
"""Names of the Secrets with manifests, as RE2."""


def manifest_name(ref: ObjectRef) -> str:
    """The name of the Secret with a pod's manifest, unique by the pod's UID."""
    return f"{ref.name[:200]}-{ref.uid[:8]}"
