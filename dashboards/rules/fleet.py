"""Sums over pods and devices, and idle GPUs. Pure."""

from dashboards.promql import DEVICE, OWNER, POD, by, of_pod
from dashboards.rules.pods import joined
from dashboards.rules.records import Group, Rule

_WORKLOAD = ("cluster", "namespace", *OWNER, "modelName")
_NAMESPACE = ("cluster", "namespace", "priority_class", "modelName")
NODE = ("cluster", "node", "modelName")
_KNOWN = "(gpu:pod:held and gpu:pod:utilization:ratio)"
_REQUESTED = 'kube_pod_container_resource_requests{resource=~"nvidia_com_(gpu|mig_.+)", node=""}'
_WAITING = (
    by("sum", POD, by("max", (*POD, "container", "exported_container", "resource"), of_pod(_REQUESTED)))
    + f" and on ({', '.join(POD)}) "
    + of_pod('(kube_pod_status_phase{phase="Pending"} == 1)')
)

_WAITING_CLASS = f"topk by ({', '.join(POD)}) (1, " + (
    by("group", (*POD, "priority_class"), of_pod('kube_pod_info{priority_class!="", node=""}')) + ")"
)

FLEET = Group(
    "fleet",
    "1m",
    (
        *(
            Rule(f"gpu:{level}:{what}", by("sum", labels, f"gpu:pod:{what}"))
            for level, labels in (("workload", _WORKLOAD), ("namespace", _NAMESPACE))
            for what in ("held", "used", "memory_used:bytes")
        ),
        Rule("gpu:workload:known", by("sum", _WORKLOAD, _KNOWN)),
        Rule("gpu:namespace:known", by("sum", _NAMESPACE, "gpu:workload:known")),
        Rule(
            "gpu:namespace:waiting",
            by(
                "sum",
                ("cluster", "namespace", "priority_class"),
                joined(f"({_WAITING})", "priority_class", _WAITING_CLASS),
            )
            + " or group by (cluster) (kube_pod_info) * 0",
        ),
        Rule("gpu:node:gpus", by("count", NODE, by("group", (*NODE, "UUID"), "gpu:device:info"))),
        Rule("gpu:node:held", by("sum", NODE, "gpu:device:held")),
        Rule(
            "gpu:node:used",
            by(
                "sum",
                NODE,
                f"gpu:device:utilization:ratio * on ({', '.join(DEVICE)}) group_left () gpu:device:gpus",
            ),
        ),
        Rule(
            "gpu:node:memory_used:bytes", by("sum", NODE, "gpu:device:memory_used:bytes and gpu:device:gpus")
        ),
        Rule(
            "gpu:node:memory_total:bytes",
            by("sum", NODE, "gpu:device:memory_total:bytes and gpu:device:gpus"),
        ),
        Rule("gpu:node:utilization:ratio", "gpu:node:used / (gpu:node:gpus > 0)"),
        Rule("gpu:node:memory_used:ratio", "gpu:node:memory_used:bytes / (gpu:node:memory_total:bytes > 0)"),
        Rule("gpu:node:power:watts", by("sum", NODE, 'gpu:device:power:watts{GPU_I_ID=""}')),
        Rule("gpu:node:temperature:celsius", by("max", NODE, "gpu:device:temperature:celsius")),
        Rule("gpu:node:sm_clock:hertz", by("avg", NODE, 'gpu:device:sm_clock:hertz{GPU_I_ID=""}')),
    ),
)

_IDLE = "(max_over_time(gpu:pod:utilization:ratio[1h]) < 0.01)"
"""Below 1 % (as a mean of five minutes) at each evaluation of the last hour."""

IDLE = Group(
    "idle",
    "1m",
    (
        Rule(
            "gpu:workload:idle",
            by("sum", _WORKLOAD, f"gpu:pod:held and {_IDLE} and gpu:pod:held offset 1h")
            + " or gpu:workload:held * 0",
        ),
        Rule("gpu:namespace:idle", by("sum", _NAMESPACE, "gpu:workload:idle")),
    ),
)
