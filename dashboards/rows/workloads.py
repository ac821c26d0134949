"""Row of workloads: GPUs held and used by each. Pure."""

from dashboards.panels import Kind, Panel, Query, Row
from dashboards.rows.queries import GPUS, IN_WORKLOAD, SHARE, highest

_LARGEST = f"topk(100, gpu:workload:held{{{IN_WORKLOAD}}})"
_OF_WORKLOAD = "on (cluster, namespace, workload, priority_class, modelName)"


def _of_largest(series: str) -> str:
    return f"gpu:workload:{series}{{{IN_WORKLOAD}}} and {_OF_WORKLOAD} {_LARGEST}"


_SHARE_USED = f"gpu:workload:used{{{IN_WORKLOAD}}} / {_OF_WORKLOAD} (gpu:workload:known > 0)"

WORKLOADS = Row(
    "Workloads: GPUs held and used",
    (
        Panel(
            "Workloads",
            Kind.TABLE,
            (
                Query(_LARGEST, "held"),
                Query(_of_largest("used"), "used"),
                Query(_of_largest("idle"), "idle for 1 h"),
                Query(
                    f"{_SHARE_USED} and {_OF_WORKLOAD} {_LARGEST}",
                    "utilization",
                    SHARE,
                ),
                Query(_of_largest("memory_used:bytes"), "memory used", "bytes"),
            ),
            "The top 100 by GPUs held. Empty: unknown. Above 100 %: uses more than its share of a shared GPU. "
            "Owners come from kube-state-metrics, or from pod names.",
            24,
            12,
            GPUS,
            columns={
                "cluster": "cluster",
                "namespace": "namespace",
                "workload": "workload",
                "priority_class": "class",
                "modelName": "GPU model",
            },
            decimals=2,
        ),
        Panel(
            "Top 10 by GPUs held",
            Kind.LINES,
            (
                Query(
                    highest(10, f"gpu:workload:held{{{IN_WORKLOAD}}}"),
                    "{{namespace}}/{{workload}} {{modelName}}",
                ),
            ),
            "Workloads with the most GPUs held at the end of the time range, by GPU model.",
            12,
            unit=GPUS,
            step="5m",
        ),
        Panel(
            "Top 10 by GPUs used",
            Kind.LINES,
            (
                Query(
                    highest(10, f"gpu:workload:used{{{IN_WORKLOAD}}}"),
                    "{{namespace}}/{{workload}} {{modelName}}",
                ),
            ),
            "Workloads with the most GPUs used at the end of the time range, by GPU model.",
            12,
            unit=GPUS,
            step="5m",
        ),
    ),
)
