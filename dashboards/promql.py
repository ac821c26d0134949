"""PromQL parts of the rules, which unify the names of exporters and scrape configurations. Pure.

UUID and MIG instance ID identify a device: all exporters agree on these.
"""

from collections.abc import Sequence

DEVICE = ("cluster", "UUID", "GPU_I_ID")
"""Labels that identify a device; a whole GPU has an empty GPU_I_ID."""
DESCRIPTION = ("node", "gpu", "GPU_I_PROFILE", "modelName")
"""Other labels of a device."""
POD = ("cluster", "namespace", "pod")
OWNER = ("workload", "priority_class")
USE = (*DEVICE, "namespace", "pod")
"""Labels that identify a pod on a device."""
_MOVED = ("exported_namespace", "exported_pod")
_TARGET = ("job", "instance")

MIB = 1024**2
_SAFE = "[bcdfghjklmnpqrstvwxz2456789]"
"""Characters of generated suffixes (apimachinery, util/rand)."""
GENERATED = rf"(.+?)(?:-{_SAFE}{{6,10}})?-{_SAFE}{{5}}"
"""Name of a pod of a Deployment, or of another controller that generates names."""
HASHED = rf"(.+)-{_SAFE}{{6,10}}"
"""Name of a ReplicaSet of a Deployment."""
TIMED = r"(.+)-[0-9]{8,10}"
"""Name of a Job of a CronJob."""
NUMBERED = r"(.+)-[0-9]{1,5}"
"""Name of a pod of a StatefulSet."""


def by(aggregation: str, labels: Sequence[str], expression: str) -> str:
    """An aggregation that keeps these labels."""
    return f"{aggregation} by ({', '.join(labels)}) ({expression})"


def either(*expressions: str) -> str:
    """The first expression that has the series."""
    return "(" + " or ".join(expressions) + ")" if len(expressions) > 1 else expressions[0]


def replaced(expression: str, label: str, source: str, pattern: str = "(.+)") -> str:
    """`label` set from the group of `pattern` in `source`; unchanged without a match."""
    escaped = pattern.replace("\\", "\\\\")
    return f'label_replace({expression}, "{label}", "$1", "{source}", "{escaped}")'


def of_node(expression: str) -> str:
    """`node` from Hostname or hostname, else the label of the target."""
    return replaced(replaced(expression, "node", "hostname"), "node", "Hostname")


def of_pod(expression: str) -> str:
    """`pod` and `namespace` from exported_pod and exported_namespace, if Prometheus renamed them."""
    return replaced(replaced(expression, "namespace", "exported_namespace"), "pod", "exported_pod")


def used_by_pods(matchers: str) -> str:
    """One series for each device and pod that uses it, for every spelling of the pod labels.

    In many configurations a free device has the labels of the exporter's own pod, which `up` has too.
    """
    moved, plain = (
        by("group", (*USE, *_MOVED, *_TARGET), f"{{{matchers}, {pod}}}")
        for pod in ('exported_pod!=""', 'exported_pod="", pod!=""')
    )
    return of_pod(f"({moved} or ({plain} unless on ({', '.join((*_TARGET, 'namespace', 'pod'))}) up))")


def accounted(expression: str) -> str:
    """Use attributed to each pod on a device, summed over its containers."""
    return by("sum", USE, of_pod(by("sum", (*USE, *_MOVED, *_TARGET), expression)))


def described(expression: str) -> str:
    """A value for each device, with all labels of the device."""
    return f"{expression} * on ({', '.join(DEVICE)}) group_left ({', '.join(DESCRIPTION)}) gpu:device:info"


def largest(metric: str, scale: str = "") -> str:
    """The maximum of the copies of a device's value (one per pod or exporter)."""
    return by("max", DEVICE, metric) + scale


def smooth(metric: str) -> str:
    """The mean of a gauge over five minutes, for series that still exist."""
    return f"(avg_over_time({metric}[5m]) and {metric})"


def any_of(metrics: Sequence[str]) -> str:
    """A matcher of several metrics."""
    return f'__name__=~"{"|".join(metrics)}"'
