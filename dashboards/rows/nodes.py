"""The nodes and GPUs: how they are, and who shares which. Pure."""

from dashboards.panels import Ask, Kind, Panel, Row, Source
from dashboards.rows.asking import DEVICE, GPUS, IN_NODE, IN_POD, SHARE, highest

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
                Ask(
                    highest(20, f"gpu:node:utilization:ratio{{{IN_NODE}}}"),
                    "{{node}} {{modelName}}",
                ),
            ),
            "Mean over a node's GPUs of one model: the twenty highest at the end; choose nodes to see others. MIG "
            "instances count by size.",
            8,
            unit=SHARE,
            maximum=1,
        ),
        Panel(
            "Memory in use",
            Kind.LINES,
            (
                Ask(
                    highest(
                        20,
                        f"gpu:node:memory_used:ratio{{{IN_NODE}}}",
                    ),
                    "{{node}} {{modelName}}",
                ),
            ),
            "Share of the GPUs' memory: the twenty highest at the end.",
            8,
            unit=SHARE,
            maximum=1,
        ),
        Panel(
            "Temperature",
            Kind.LINES,
            (Ask(highest(20, f"gpu:node:temperature:celsius{{{IN_NODE}}}"), "{{node}} {{modelName}}"),),
            "The hottest GPU of each node: the twenty highest at the end.",
            8,
            unit="celsius",
            steps=(("green", None), ("orange", 80), ("red", 90)),
        ),
        Panel(
            "Power",
            Kind.LINES,
            (Ask(highest(20, f"gpu:node:power:watts{{{IN_NODE}}}"), "{{node}} {{modelName}}"),),
            "Of a node's GPUs together: the twenty highest at the end.",
            8,
            unit="watt",
        ),
        Panel(
            "Clocks",
            Kind.LINES,
            (Ask(highest(20, f"gpu:node:sm_clock:hertz{{{IN_NODE}}}"), "{{node}} {{modelName}}"),),
            "Mean SM clock of a node's GPUs: the twenty highest at the end.",
            8,
            unit="hertz",
        ),
        Panel(
            "Clocks held down",
            Kind.LINES,
            (
                Ask(
                    f"avg by (reason) (gpu:node:throttled:ratio{{{IN_NODE}}})",
                    "for {{reason}}",
                    source=Source.OURS,
                ),
            ),
            "Share of the time in which clocks were held down, for power or heat, as the mean over all "
            "GPUs. dcgm-exporter tells only where its list of counters has DCGM_FI_DEV_POWER_VIOLATION and "
            "DCGM_FI_DEV_THERMAL_VIOLATION.",
            8,
            unit=SHARE,
            nothing="not served by this exporter",
            source=Source.OURS,
        ),
        Panel(
            "Errors in this time range",
            Kind.TABLE,
            (
                Ask(
                    f"topk(50, sum by (node, modelName, error) ({_ERRORS}))",
                    "errors",
                ),
            ),
            "XID errors, rows of memory remapped, uncorrected memory errors and PCIe replays, by node: the "
            "fifty highest. dcgm-exporter tells only that another XID than before came, not how many.",
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
                Ask(_of_shared("held"), "share held"),
                Ask(_of_shared("utilization:ratio"), "own utilization", SHARE, Source.OURS),
                Ask(_of_shared("memory_used:bytes"), "own memory", "bytes", Source.OURS),
            ),
            "GPUs that several pods hold (time-slicing, MPS). What each of them uses itself is known with "
            "gpu-exporter; dcgm-exporter serves the device's values for each pod, which are not shown here.",
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
                Ask(_of_device("held"), "held"),
                Ask(_of_device("pods"), "pods"),
                Ask(_of_device("utilization:ratio"), "utilization", SHARE),
                Ask(_GPU_TABLE, "memory used", "bytes"),
                Ask(_of_device("memory_total:bytes"), "memory", "bytes"),
                Ask(_of_device("temperature:celsius"), "temperature", "celsius"),
                Ask(_of_device("power:watts"), "power", "watt"),
                Ask(_of_device("sm_clock:hertz"), "SM clock", "hertz"),
            ),
            "Each GPU and MIG instance; two hundred at most, those with the most memory in use: choose "
            "nodes to see others. More than one pod: it is shared.",
            24,
            12,
            GPUS,
            columns=_DEVICE_COLUMNS,
            decimals=1,
        ),
    ),
)
