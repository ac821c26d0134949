"""The classes and namespaces: what each holds and what it makes of it. Pure."""

from dashboards.panels import Ask, Kind, Panel, Row
from dashboards.rows.asking import GPUS, IN_NAMESPACE, SHARE, highest, total

CLASSES = Row(
    "Classes and namespaces",
    (
        Panel(
            "Utilization of what is held, by class",
            Kind.LINES,
            (
                Ask(
                    f"{total('gpu:namespace:used', IN_NAMESPACE, 'priority_class')} / "
                    f"({total('gpu:namespace:known', IN_NAMESPACE, 'priority_class')} > 0)",
                    "{{priority_class}}",
                ),
            ),
            "Work done as a share of the GPUs held, of those of which it is known. On a GPU that pods share"
            " it is known of each of them with gpu-exporter only.",
            12,
            unit=SHARE,
            maximum=1,
        ),
        Panel(
            "Held and idle, by namespace",
            Kind.LINES,
            (Ask(highest(10, total("gpu:namespace:idle", IN_NAMESPACE, "namespace")), "{{namespace}}"),),
            "GPUs whose pods have used less than 1 % for an hour: the ten namespaces with the most.",
            12,
            unit=GPUS,
        ),
        Panel(
            "Namespaces",
            Kind.TABLE,
            (
                Ask(total("gpu:namespace:held", IN_NAMESPACE, "namespace", "priority_class"), "held"),
                Ask(total("gpu:namespace:used", IN_NAMESPACE, "namespace", "priority_class"), "used"),
                Ask(
                    total("gpu:namespace:idle", IN_NAMESPACE, "namespace", "priority_class"),
                    "idle for an hour",
                ),
                Ask(
                    f"{total('gpu:namespace:used', IN_NAMESPACE, 'namespace', 'priority_class')} / "
                    f"({total('gpu:namespace:known', IN_NAMESPACE, 'namespace', 'priority_class')} > 0)",
                    "utilization",
                    SHARE,
                ),
                Ask(
                    total("gpu:namespace:memory_used:bytes", IN_NAMESPACE, "namespace", "priority_class"),
                    "memory used",
                    "bytes",
                ),
            ),
            "What the pods of each namespace hold and use, by class. Empty: not known.",
            24,
            10,
            GPUS,
            columns={"namespace": "namespace", "priority_class": "class"},
            decimals=1,
        ),
    ),
)
