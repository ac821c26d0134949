"""Row of classes and namespaces: GPUs held and used. Pure."""

from dashboards.panels import Kind, Panel, Query, Row
from dashboards.rows.queries import GPUS, IN_NAMESPACE, SHARE, highest, total

CLASSES = Row(
    "Classes and namespaces",
    (
        Panel(
            "Utilization of held GPUs, by class",
            Kind.LINES,
            (
                Query(
                    f"{total('gpu:namespace:used', IN_NAMESPACE, 'priority_class')} / "
                    f"({total('gpu:namespace:known', IN_NAMESPACE, 'priority_class')} > 0)",
                    "{{priority_class}}",
                ),
            ),
            "GPUs used as a share of GPUs held with known use. The use of each pod on a shared GPU is known "
            "only with gpu-exporter.",
            12,
            unit=SHARE,
            maximum=1,
        ),
        Panel(
            "Held and idle, by namespace",
            Kind.LINES,
            (Query(highest(10, total("gpu:namespace:idle", IN_NAMESPACE, "namespace")), "{{namespace}}"),),
            "GPUs used less than 1 % for an hour, in the top 10 namespaces.",
            12,
            unit=GPUS,
        ),
        Panel(
            "Namespaces",
            Kind.TABLE,
            (
                Query(total("gpu:namespace:held", IN_NAMESPACE, "namespace", "priority_class"), "held"),
                Query(total("gpu:namespace:used", IN_NAMESPACE, "namespace", "priority_class"), "used"),
                Query(
                    total("gpu:namespace:idle", IN_NAMESPACE, "namespace", "priority_class"),
                    "idle for 1 h",
                ),
                Query(
                    f"{total('gpu:namespace:used', IN_NAMESPACE, 'namespace', 'priority_class')} / "
                    f"({total('gpu:namespace:known', IN_NAMESPACE, 'namespace', 'priority_class')} > 0)",
                    "utilization",
                    SHARE,
                ),
                Query(
                    total("gpu:namespace:memory_used:bytes", IN_NAMESPACE, "namespace", "priority_class"),
                    "memory used",
                    "bytes",
                ),
            ),
            "GPUs held and used in each namespace, by class. Empty: unknown.",
            24,
            10,
            GPUS,
            columns={"namespace": "namespace", "priority_class": "class"},
            decimals=1,
        ),
    ),
)
