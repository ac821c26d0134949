"""The workloads: who holds what, and uses what. Pure."""

from dashboards.panels import Ask, Kind, Panel, Row
from dashboards.rows.asking import GPUS, IN_WORKLOAD, SHARE, highest

_LARGEST = f"topk(100, gpu:workload:held{{{IN_WORKLOAD}}})"
_OF_WORKLOAD = "on (cluster, namespace, workload, priority_class, modelName)"


def _of_largest(series: str) -> str:
    return f"gpu:workload:{series}{{{IN_WORKLOAD}}} and {_OF_WORKLOAD} {_LARGEST}"


_SHARE_USED = f"gpu:workload:used{{{IN_WORKLOAD}}} / {_OF_WORKLOAD} (gpu:workload:known > 0)"

WORKLOADS = Row(
    "Workloads: who holds what, and uses what",
    (
        Panel(
            "Workloads",
            Kind.TABLE,
            (
                Ask(_LARGEST, "held"),
                Ask(_of_largest("used"), "used"),
                Ask(_of_largest("idle"), "idle for an hour"),
                Ask(
                    f"{_SHARE_USED} and {_OF_WORKLOAD} {_LARGEST}",
                    "utilization",
                    SHARE,
                ),
                Ask(_of_largest("memory_used:bytes"), "memory used", "bytes"),
            ),
            "The hundred that hold the most. Empty: not known. More than 100 %: more than its part of a "
            "shared GPU. A workload is the owner of the pods by kube-state-metrics, else what their names "
            "have in common.",
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
            "Held, of the largest",
            Kind.LINES,
            (
                Ask(
                    highest(10, f"gpu:workload:held{{{IN_WORKLOAD}}}"),
                    "{{namespace}}/{{workload}} {{modelName}}",
                ),
            ),
            "The ten workloads that hold the most GPUs at the end of the time range, by GPU model.",
            12,
            unit=GPUS,
            step="5m",
        ),
        Panel(
            "Used, of those who use the most",
            Kind.LINES,
            (
                Ask(
                    highest(10, f"gpu:workload:used{{{IN_WORKLOAD}}}"),
                    "{{namespace}}/{{workload}} {{modelName}}",
                ),
            ),
            "The ten workloads that do the most work at the end of the time range, in GPUs' worth, by GPU model.",
            12,
            unit=GPUS,
            step="5m",
        ),
    ),
)
