"""Row of the cluster: GPUs held, used, idle, free and requested; GPU-hours and cost. Pure."""

from dashboards.panels import Kind, Panel, Query, Row, Source
from dashboards.rows.queries import GPUS, IN_NAMESPACE, IN_NODE, IN_PENDING, of_class, of_range, own, total

_WAITS = f"{total('gpu:namespace:waiting', IN_PENDING)} or sum ({own('waiting_gpus', 'priority_class')})"
_WAITS_BY = (
    f"{total('gpu:namespace:waiting', IN_PENDING, 'priority_class')} or sum by (priority_class) "
    f"({own('waiting_gpus', 'priority_class')})"
)

CLUSTER = Row(
    "Cluster: GPUs held, used, idle and requested by pending pods",
    (
        Panel(
            "GPUs (by node)",
            Kind.STAT,
            (Query(total("gpu:node:gpus", IN_NODE), "GPUs"),),
            "All GPUs that an exporter sees, as gpu-rightsizer counts them: a GPU with MIG instances is one. "
            "Ignores the variables class and namespace.",
            4,
            4,
            GPUS,
            decimals=1,
        ),
        Panel(
            "Held (by class, namespace)",
            Kind.STAT,
            (Query(total("gpu:namespace:held", IN_NAMESPACE), "held"),),
            "GPUs that pods hold; pods that share a GPU split it. Ignores the variable node.",
            4,
            4,
            GPUS,
            decimals=1,
        ),
        Panel(
            "Used, mean of 5 min (by class, namespace)",
            Kind.STAT,
            (Query(total("gpu:namespace:used", IN_NAMESPACE), "used"),),
            "Sum of the pods' utilization over the last five minutes, in GPUs. Unknown utilization is not counted.",
            4,
            4,
            GPUS,
            decimals=1,
        ),
        Panel(
            "Idle for 1 h (by class, namespace)",
            Kind.STAT,
            (Query(total("gpu:namespace:idle", IN_NAMESPACE), "idle"),),
            "GPUs that pods held for the whole last hour and used less than 1 % throughout. GPUs with unknown use "
            "are not counted.",
            4,
            4,
            GPUS,
            decimals=1,
            steps=(("green", None), ("orange", 1)),
        ),
        Panel(
            "Free (by node)",
            Kind.STAT,
            (Query(f"{total('gpu:node:gpus', IN_NODE)} - {total('gpu:node:held', IN_NODE)}", "free"),),
            "GPUs that no pod holds. Ignores the variables class and namespace.",
            4,
            4,
            GPUS,
            decimals=1,
        ),
        Panel(
            "Pending (by class, namespace)",
            Kind.STAT,
            (Query(_WAITS, "pending", source=Source.PENDING),),
            "GPUs, shares and MIG instances requested by pods that the scheduler cannot place.",
            4,
            4,
            GPUS,
            decimals=0,
            steps=(("green", None), ("orange", 1)),
            nothing="unknown",
            source=Source.PENDING,
        ),
        Panel(
            "GPUs over time",
            Kind.LINES,
            (
                Query(total("gpu:node:gpus", IN_NODE), "all (by node)"),
                Query(total("gpu:namespace:held", IN_NAMESPACE), "held"),
                Query(total("gpu:namespace:used", IN_NAMESPACE), "used"),
                Query(total("gpu:namespace:idle", IN_NAMESPACE), "held and idle"),
                Query(_WAITS, "pending", source=Source.PENDING),
            ),
            "The figures above over time. The gap between held and used is wasted.",
            12,
            unit=GPUS,
        ),
        Panel(
            "Held, by class",
            Kind.LINES,
            (Query(total("gpu:namespace:held", IN_NAMESPACE, "priority_class"), "{{priority_class}}"),),
            "GPUs held, by PriorityClass. Without kube-state-metrics the class is empty.",
            6,
            unit=GPUS,
            is_stacked=True,
        ),
        Panel(
            "Pending, by class",
            Kind.LINES,
            (Query(_WAITS_BY, "{{priority_class}}", source=Source.PENDING),),
            "GPUs requested by pending pods, by PriorityClass.",
            6,
            unit=GPUS,
            is_stacked=True,
            source=Source.PENDING,
        ),
        Panel(
            "GPU-hours and cost in this time range, by class",
            Kind.TABLE,
            (
                Query(of_range(total("gpu:namespace:held", IN_NAMESPACE, "priority_class")), "held", "h"),
                Query(of_range(total("gpu:namespace:used", IN_NAMESPACE, "priority_class")), "used", "h"),
                Query(
                    f"clamp_min({of_range(total('gpu:namespace:known', IN_NAMESPACE, 'priority_class'))} - "
                    f"{of_range(total('gpu:namespace:used', IN_NAMESPACE, 'priority_class'))}, 0)",
                    "wasted",
                    "h",
                ),
                Query(of_range(of_class("gpu:class:freed")), "freed", "h", Source.RIGHTSIZER),
                Query(
                    of_range(of_class("gpu:class:wasted_cost:per_hour")),
                    "cost wasted",
                    "none",
                    Source.RIGHTSIZER,
                ),
                Query(
                    of_range(of_class("gpu:class:freed_cost:per_hour")),
                    "cost freed",
                    "none",
                    Source.RIGHTSIZER,
                ),
            ),
            "Wasted: held but unused. Freed: by active changes. Freed and cost ignore namespace and model.",
            24,
            6,
            unit="none",
            columns={"priority_class": "class"},
            decimals=1,
        ),
    ),
)
