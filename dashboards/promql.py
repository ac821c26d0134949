"""PromQL that the rules are made of: one name for what exporters and scrape configurations spell differently. Pure.

A device is known by its UUID and, on MIG, the number of the instance: exporters agree on these, and on little else.
"""

from collections.abc import Sequence

DEVICE = ("cluster", "UUID", "GPU_I_ID")
"""What tells one device from another; a whole GPU has an empty GPU_I_ID."""
DESCRIPTION = ("node", "gpu", "GPU_I_PROFILE", "modelName")
"""What else is known of a device."""
POD = ("cluster", "namespace", "pod")
OWNER = ("workload", "priority_class")
USE = (*DEVICE, "namespace", "pod")
"""One pod's use of one device."""
_MOVED = ("exported_namespace", "exported_pod")
_TARGET = ("job", "instance")

MIB = 1024**2
_SAFE = "[bcdfghjklmnpqrstvwxz2456789]"
"""The letters of suffixes that Kubernetes makes (apimachinery, util/rand)."""
GENERATED = rf"(.+?)(?:-{_SAFE}{{6,10}})?-{_SAFE}{{5}}"
"""The name of a pod of a Deployment, or of any other controller that makes names up."""
HASHED = rf"(.+)-{_SAFE}{{6,10}}"
"""The name of a ReplicaSet of a Deployment."""
TIMED = r"(.+)-[0-9]{8,10}"
"""The name of a Job of a CronJob."""
NUMBERED = r"(.+)-[0-9]{1,5}"
"""The name of a pod of a StatefulSet."""


def by(aggregation: str, labels: Sequence[str], expression: str) -> str:
    """An aggregation that keeps these labels."""
    return f"{aggregation} by ({', '.join(labels)}) ({expression})"


def either(*expressions: str) -> str:
    """For each series the first that there is."""
    return "(" + " or ".join(expressions) + ")" if len(expressions) > 1 else expressions[0]


def replaced(expression: str, label: str, source: str, pattern: str = "(.+)") -> str:
    """`label` set to what `pattern` finds in `source`; left as it is where that does not fit."""
    escaped = pattern.replace("\\", "\\\\")
    return f'label_replace({expression}, "{label}", "$1", "{source}", "{escaped}")'


def of_node(expression: str) -> str:
    """`node` from Hostname, hostname or, where the exporter names none, the target's own label."""
    return replaced(replaced(expression, "node", "hostname"), "node", "Hostname")


def of_pod(expression: str) -> str:
    """`pod` and `namespace` from exported_pod and exported_namespace, where Prometheus moved them there."""
    return replaced(replaced(expression, "namespace", "exported_namespace"), "pod", "exported_pod")


def used_by_pods(matchers: str) -> str:
    """One series for each device and pod that uses it, by whatever labels Prometheus names the pod.

    A device that nobody holds has the labels of its exporter's own pod in many configurations, which `up` has, too.
    """
    moved, plain = (
        by("group", (*USE, *_MOVED, *_TARGET), f"{{{matchers}, {pod}}}")
        for pod in ('exported_pod!=""', 'exported_pod="", pod!=""')
    )
    return of_pod(f"({moved} or ({plain} unless on ({', '.join((*_TARGET, 'namespace', 'pod'))}) up))")


def accounted(expression: str) -> str:
    """What the exporter accounts to each pod on a device, over its containers."""
    return by("sum", USE, of_pod(by("sum", (*USE, *_MOVED, *_TARGET), expression)))


def described(expression: str) -> str:
    """A value for each device, with all that is known of the device."""
    return f"{expression} * on ({', '.join(DEVICE)}) group_left ({', '.join(DESCRIPTION)}) gpu:device:info"


def largest(metric: str, scale: str = "") -> str:
    """Of the copies that are served of a device's value, for each pod or by several exporters, the largest."""
    return by("max", DEVICE, metric) + scale


def smooth(metric: str) -> str:
    """The mean of a gauge over five minutes, of series that are still there."""
    return f"(avg_over_time({metric}[5m]) and {metric})"


def any_of(metrics: Sequence[str]) -> str:
    """A matcher of several metrics."""
    return f'__name__=~"{"|".join(metrics)}"'
