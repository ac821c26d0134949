"""Row of nodes and GPUs: health, load, and pods on shared GPUs. Pure."""

from dashboards.panels import Kind, Panel, Query, Row, Source
from dashboards.rows.queries import DEVICE, GPUS, IN_NODE, IN_POD, SHARE, highest

_GPU_TABLE = f"topk(200, gpu:device:memory_used:bytes{{{IN_NODE}}})"


def _of_device(series: str) -> str:
    return f"gpu:device:{series}{{{IN_NODE}}} and on ({DEVICE}) {_GPU_TABLE}"


def _of_shared(series: str) -> str:
    return f"gpu:pod:{series}{{{IN_POD}}} and on ({DEVICE}) (gpu:device:pods > 1)"


_DEVICE_COLUMNS = {
    "cluster": "cluster",
    "node": "node",
    "gpu": "GPU",
    "modelName": "model",
    "GPU_I_PROFILE": "MIG profile",
    "GPU_I_ID": "instance",
}

_ERRORS = f"sum_over_time(gpu:node:errors:increase1m{{{IN_NODE}}}[$__range])"

NODES = Row(
    "Nodes and GPUs",
    (
        Panel(
            "Utilization",
            Kind.LINES,
            (
                Query(
                    highest(20, f"gpu:node:utilization:ratio{{{IN_NODE}}}"),
                    "{{node}} {{modelName}}",
                ),
            ),
            "Mean of a node's GPUs of one model; MIG instances count by size. Top 20 at the end of the range; "
            "select nodes to see others.",
            8,
            unit=SHARE,
            maximum=1,
        ),
        Panel(
            "Memory in use",
            Kind.LINES,
            (
                Query(
                    highest(
                        20,
                        f"gpu:node:memory_used:ratio{{{IN_NODE}}}",
                    ),
                    "{{node}} {{modelName}}",
                ),
            ),
            "Share of the GPUs' memory. Top 20.",
            8,
            unit=SHARE,
            maximum=1,
        ),
        Panel(
            "Temperature",
            Kind.LINES,
            (Query(highest(20, f"gpu:node:temperature:celsius{{{IN_NODE}}}"), "{{node}} {{modelName}}"),),
            "Hottest GPU of each node. Top 20.",
            8,
            unit="celsius",
            steps=(("green", None), ("orange", 80), ("red", 90)),
        ),
        Panel(
            "Power",
            Kind.LINES,
            (Query(highest(20, f"gpu:node:power:watts{{{IN_NODE}}}"), "{{node}} {{modelName}}"),),
            "Sum of a node's GPUs. Top 20.",
            8,
            unit="watt",
        ),
        Panel(
            "Clocks",
            Kind.LINES,
            (Query(highest(20, f"gpu:node:sm_clock:hertz{{{IN_NODE}}}"), "{{node}} {{modelName}}"),),
            "Mean SM clock of a node's GPUs. Top 20.",
            8,
            unit="hertz",
        ),
        Panel(
            "Clock throttling",
            Kind.LINES,
            (
                Query(
                    f"avg by (reason) (gpu:node:throttled:ratio{{{IN_NODE}}})",
                    "for {{reason}}",
                    source=Source.GPU_EXPORTER,
                ),
            ),
            "Share of time with clocks reduced by power or heat, mean of the GPUs. Or dcgm-exporter with "
            "DCGM_FI_DEV_(POWER|THERMAL)_VIOLATION listed.",
            8,
            unit=SHARE,
            nothing="not served by this exporter",
            source=Source.GPU_EXPORTER,
        ),
        Panel(
            "Errors in this time range",
            Kind.TABLE,
            (
                Query(
                    f"topk(50, sum by (node, modelName, error) ({_ERRORS}))",
                    "errors",
                ),
            ),
            "XID errors, remapped rows, uncorrectable memory errors and PCIe replays. Top 50. dcgm-exporter shows "
            "changes of the last XID only.",
            12,
            10,
            "none",
            columns={"node": "node", "modelName": "model", "error": "error"},
            decimals=0,
        ),
        Panel(
            "Pods on shared GPUs",
            Kind.TABLE,
            (
                Query(_of_shared("held"), "share held"),
                Query(_of_shared("utilization:ratio"), "own utilization", SHARE, Source.GPU_EXPORTER),
                Query(_of_shared("memory_used:bytes"), "own memory", "bytes", Source.GPU_EXPORTER),
            ),
            "GPUs with several pods (time-slicing, MPS). Copies of the device's values are not shown.",
            12,
            10,
            GPUS,
            columns={
                "cluster": "cluster",
                "node": "node",
                "gpu": "GPU",
                "namespace": "namespace",
                "pod": "pod",
                "priority_class": "class",
            },
            decimals=2,
            nothing="no GPU is shared",
        ),
        Panel(
            "GPUs",
            Kind.TABLE,
            (
                Query(_of_device("held"), "held"),
                Query(_of_device("pods"), "pods"),
                Query(_of_device("utilization:ratio"), "utilization", SHARE),
                Query(_GPU_TABLE, "memory used", "bytes"),
                Query(_of_device("memory_total:bytes"), "memory", "bytes"),
                Query(_of_device("temperature:celsius"), "temperature", "celsius"),
                Query(_of_device("power:watts"), "power", "watt"),
                Query(_of_device("sm_clock:hertz"), "SM clock", "hertz"),
            ),
            "GPUs and MIG instances: the top 200 by memory in use; select nodes to see others. A GPU with several "
            "pods is shared.",
            24,
            12,
            GPUS,
            columns=_DEVICE_COLUMNS,
            decimals=1,
        ),
    ),
)
