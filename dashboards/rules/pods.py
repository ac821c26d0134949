"""Pods on devices: GPUs held, owner, and the pod's own use. Pure."""

from dashboards.promql import (
    DESCRIPTION,
    DEVICE,
    GENERATED,
    HASHED,
    NUMBERED,
    OWNER,
    POD,
    TIMED,
    USE,
    accounted,
    by,
    described,
    either,
    largest,
    of_pod,
    replaced,
    used_by_pods,
)
from dashboards.rules.devices import SEEN
from dashboards.rules.records import Group, Rule

_OWNER_NAMES = {
    'owner_kind="ReplicaSet"': HASHED,
    'owner_kind="Job"': TIMED,
    'owner_kind!~"ReplicaSet|Job|Node|<none>|"': "(.+)",
}
"""Pattern of the workload's name in the name of the pod's owner, by kind of owner."""


def _owners() -> str:
    """The workload of each pod with an owner in kube-state-metrics."""
    named = (
        replaced(replaced(owned, "workload", "owner_name"), "workload", "owner_name", pattern)
        for owned, pattern in (
            (_of_gpu_pods(f"kube_pod_owner{{{matcher}}}", "owner_name"), pattern)
            for matcher, pattern in _OWNER_NAMES.items()
        )
    )
    return _first_of_each_pod("workload", either(*named))


def _of_gpu_pods(metric: str, label: str) -> str:
    """A label of kube-state-metrics for pods that hold GPUs."""
    told = by("group", (*POD, "exported_namespace", "exported_pod", label), metric)
    return f"({by('group', (*POD, label), of_pod(told))} and on ({', '.join(POD)}) gpu:pod:device)"


def _first_of_each_pod(label: str, expression: str) -> str:
    """One value of `label` for each pod; a pod may exist twice while it is replaced."""
    return f"topk by ({', '.join(POD)}) (1, {by('group', (*POD, label), expression)})"


def joined(base: str, label: str, other: str) -> str:
    """`base` with a label of `other`, if it has one."""
    on = ", ".join(POD)
    return f"({base} * on ({on}) group_left ({label}) {other}) or on ({on}) {base}"


_NAMED = replaced(
    replaced(
        replaced("group by (cluster, namespace, pod) (gpu:pod:device)", "workload", "pod"),
        "workload",
        "pod",
        NUMBERED,
    ),
    "workload",
    "pod",
    GENERATED,
)
_OWNED = by("group", POD, "gpu:pod:device") + f" * on ({', '.join(POD)}) group_left (workload) {_owners()}"
_CLASSES = _first_of_each_pod(
    "priority_class", _of_gpu_pods('kube_pod_info{priority_class!=""}', "priority_class")
)


_ON_DEVICE = f"on ({', '.join(DEVICE)})"
_SHARES = described(
    either(
        f"({largest('gpu:device:pods')} > {largest('gpu_replicas')})",
        largest("gpu_replicas"),
        largest("gpu:device:pods"),
    )
)
"""A plan divides a shared GPU by the replicas that the device plugin offers; without them, by the pods that hold it."""
_HELD = f"gpu:device:gpus * {_ON_DEVICE} group_left () " + either(
    f"({largest('gpu:device:pods')} / {largest('gpu:device:shares')})",
    largest("gpu_allocated"),
    largest("gpu:device:gpus", " * 0"),
)


def _use(own: str, device: str) -> str:
    """A pod's own use: the attributed value, else the device's if no other pod holds it, else unknown.

    dcgm-exporter copies the device's value to each pod of a shared GPU; these copies are not used.
    """
    on = ", ".join(DEVICE)
    alone = f"(gpu:pod:device * on ({on}) group_left () ({device} and on ({on}) (gpu:device:pods == 1)))"
    labels = ", ".join((*DESCRIPTION, *OWNER))
    return f"({own} or {alone}) * on ({', '.join(USE)}) group_left ({labels}) (gpu:pod:held > bool 0)"


PODS = Group(
    "pods",
    "1m",
    (
        Rule("gpu:pod:device", by("group", USE, used_by_pods(f'{SEEN}, UUID!=""'))),
        Rule("gpu:device:pods", described(by("count", DEVICE, "gpu:pod:device"))),
        Rule("gpu:device:shares", _SHARES),
        Rule("gpu:device:held", _HELD),
        Rule("gpu:pod:workload", f"{_OWNED} or on ({', '.join(POD)}) {_NAMED}"),
        Rule("gpu:pod:info", joined("gpu:pod:workload", "priority_class", _CLASSES)),
        Rule(
            "gpu:pod:held",
            f"gpu:pod:device * {_ON_DEVICE} group_left ({', '.join(DESCRIPTION)}) "
            f"(gpu:device:gpus / gpu:device:shares) * on ({', '.join(POD)}) "
            f"group_left ({', '.join(OWNER)}) gpu:pod:info",
        ),
        Rule(
            "gpu:pod:utilization:ratio",
            _use(
                accounted("(rate(gpu_pod_busy_seconds_total[5m]) and gpu_pod_busy_seconds_total)"),
                "gpu:device:utilization:ratio",
            ),
        ),
        Rule(
            "gpu:pod:used",
            f"gpu:pod:held * clamp_max(gpu:pod:utilization:ratio * {_ON_DEVICE} group_left () gpu:device:shares, 1)",
        ),
        Rule(
            "gpu:pod:memory_used:bytes",
            _use(accounted("gpu_pod_memory_used_bytes"), "gpu:device:memory_used:bytes"),
        ),
    ),
)
