"""What the cluster has: GPUs held, used, idle, free and waited for; GPU-hours and money. Pure."""

from dashboards.panels import Ask, Kind, Panel, Row, Source
from dashboards.rows.asking import GPUS, IN_NAMESPACE, IN_NODE, IN_WAITING, of_class, of_range, own, total

_WAITS = f"{total('gpu:namespace:waiting', IN_WAITING)} or sum ({own('waiting_gpus', 'priority_class')})"
_WAITS_BY = (
    f"{total('gpu:namespace:waiting', IN_WAITING, 'priority_class')} or sum by (priority_class) "
    f"({own('waiting_gpus', 'priority_class')})"
)

CLUSTER = Row(
    "Cluster: GPUs held, used, idle and waited for",
    (
        Panel(
            "GPUs (by node)",
            Kind.STAT,
            (Ask(total("gpu:node:gpus", IN_NODE), "GPUs"),),
            "All GPUs that an exporter sees. A GPU that is cut into MIG instances counts as far as it is "
            "cut: an instance of three of seven slices is 0.43. Class and namespace choose nothing here.",
            4,
            4,
            GPUS,
            decimals=1,
        ),
        Panel(
            "Held (by class, namespace)",
            Kind.STAT,
            (Ask(total("gpu:namespace:held", IN_NAMESPACE), "held"),),
            "GPUs that pods hold; of one that several share, each its part. Node chooses nothing here.",
            4,
            4,
            GPUS,
            decimals=1,
        ),
        Panel(
            "Used (by class, namespace)",
            Kind.STAT,
            (Ask(total("gpu:namespace:used", IN_NAMESPACE), "used"),),
            "The GPUs' worth of work that pods do: their utilization over the last five minutes, added up, of "
            "those of which it is known.",
            4,
            4,
            GPUS,
            decimals=1,
        ),
        Panel(
            "Idle (by class, namespace)",
            Kind.STAT,
            (Ask(total("gpu:namespace:idle", IN_NAMESPACE), "idle"),),
            "GPUs whose pods held them for all of the last hour and used less than 1 % of them at any time "
            "in it. Those of which that is not known are not counted.",
            4,
            4,
            GPUS,
            decimals=1,
            steps=(("green", None), ("orange", 1)),
        ),
        Panel(
            "Free (by node)",
            Kind.STAT,
            (Ask(f"{total('gpu:node:gpus', IN_NODE)} - {total('gpu:node:held', IN_NODE)}", "free"),),
            "GPUs that no pod holds. Class and namespace choose nothing here.",
            4,
            4,
            GPUS,
            decimals=1,
        ),
        Panel(
            "Waited for (by class, namespace)",
            Kind.STAT,
            (Ask(_WAITS, "waited for", source=Source.WAITING),),
            "GPUs, shares and MIG instances that pods ask for which the scheduler has found no place for.",
            4,
            4,
            GPUS,
            decimals=0,
            steps=(("green", None), ("orange", 1)),
            nothing="not known",
            source=Source.WAITING,
        ),
        Panel(
            "GPUs over time",
            Kind.LINES,
            (
                Ask(total("gpu:node:gpus", IN_NODE), "all (by node)"),
                Ask(total("gpu:namespace:held", IN_NAMESPACE), "held"),
                Ask(total("gpu:namespace:used", IN_NAMESPACE), "used"),
                Ask(total("gpu:namespace:idle", IN_NAMESPACE), "held and idle"),
                Ask(_WAITS, "waited for", source=Source.WAITING),
            ),
            "The figures above. What lies between held and used is paid for and does nothing.",
            12,
            unit=GPUS,
        ),
        Panel(
            "Held by class",
            Kind.LINES,
            (Ask(total("gpu:namespace:held", IN_NAMESPACE, "priority_class"), "{{priority_class}}"),),
            "GPUs held, by the PriorityClass of the pods. Without kube-state-metrics all have none.",
            6,
            unit=GPUS,
            is_stacked=True,
        ),
        Panel(
            "Waited for by class",
            Kind.LINES,
            (Ask(_WAITS_BY, "{{priority_class}}", source=Source.WAITING),),
            "GPUs that pods without a place ask for, by their PriorityClass.",
            6,
            unit=GPUS,
            is_stacked=True,
            source=Source.WAITING,
        ),
        Panel(
            "GPU-hours and money in this time range, by class",
            Kind.TABLE,
            (
                Ask(of_range(total("gpu:namespace:held", IN_NAMESPACE, "priority_class")), "held", "h"),
                Ask(of_range(total("gpu:namespace:used", IN_NAMESPACE, "priority_class")), "used", "h"),
                Ask(
                    f"clamp_min({of_range(total('gpu:namespace:known', IN_NAMESPACE, 'priority_class'))} - "
                    f"{of_range(total('gpu:namespace:used', IN_NAMESPACE, 'priority_class'))}, 0)",
                    "wasted",
                    "h",
                ),
                Ask(of_range(of_class("gpu:class:freed")), "freed", "h", Source.RIGHTSIZER),
                Ask(
                    of_range(of_class("gpu:class:wasted_cost:per_hour")),
                    "money wasted",
                    "none",
                    Source.RIGHTSIZER,
                ),
                Ask(
                    of_range(of_class("gpu:class:freed_cost:per_hour")),
                    "money freed",
                    "none",
                    Source.RIGHTSIZER,
                ),
            ),
            "Added up over the dashboard's time range. Wasted: held, and not used, as far as use is known. "
            "Freed: kept free by the rightsizer's changes that stand, at the mean price of all GPUs that "
            "are held. Money is in the currency of the rightsizer's price table; freed and money need its "
            "`run`, and know neither namespace nor model.",
            24,
            6,
            unit="none",
            columns={"priority_class": "class"},
            decimals=1,
        ),
    ),
)
