"""Past hours of the demo's cluster in a real Prometheus, with the results of the recording rules.

Exporter series come from the real exporter's exposition and the simulator's timeline, kube-state-metrics series from
the API server's pods. Prometheus evaluates the rules for each past minute, so no test waits for time to pass.
"""

import functools
import itertools
import time
from collections.abc import Callable, Iterator

from simulator import history
from simulator.cluster import Cluster
from simulator.history import parse
from simulator.nodes.agent import NodeAgent
from simulator.series_store import Series

STEP_S = 30
TRUTH_STEP_S = 5
"""Counters add up the simulator's utilization at this interval, shorter than that of scrapes."""
Labels = dict[str, str]
Labelled = Callable[[Labels], Labels | None]
"""The final labels of a series; None if it does not exist."""

DCGM_EXPORTER = frozenset(
    f"DCGM_FI_{name}"
    for name in [
        "DEV_SM_CLOCK",
        "DEV_MEM_CLOCK",
        "DEV_MEMORY_TEMP",
        "DEV_GPU_TEMP",
        "DEV_POWER_USAGE",
        "DEV_TOTAL_ENERGY_CONSUMPTION",
        "DEV_PCIE_REPLAY_COUNTER",
        "DEV_GPU_UTIL",
        "DEV_MEM_COPY_UTIL",
        "DEV_ENC_UTIL",
        "DEV_DEC_UTIL",
        "DEV_XID_ERRORS",
        "DEV_FB_FREE",
        "DEV_FB_USED",
        "DEV_FB_RESERVED",
        "DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "DEV_CORRECTABLE_REMAPPED_ROWS",
        "DEV_ROW_REMAP_FAILURE",
        "DEV_VGPU_LICENSE_STATUS",
        "PROF_GR_ENGINE_ACTIVE",
        "PROF_PIPE_TENSOR_ACTIVE",
        "PROF_DRAM_ACTIVE",
        "PROF_PCIE_TX_BYTES",
        "PROF_PCIE_RX_BYTES",
    ]
)
"""Metrics of dcgm-exporter 4.5.3 with its default-counters.csv."""


def as_dcgm_exporter(labels: Labels) -> Labels | None:
    """The labels of dcgm-exporter up to 4.5.3; None for metrics that it does not serve."""
    if labels["__name__"] not in {*DCGM_EXPORTER, "up"}:
        return None
    kept = {name: value for name, value in labels.items() if name not in {"hostname", "node", "mig_uuid"}}
    return kept | ({"Hostname": labels["hostname"]} if "hostname" in labels else {})


def exporters_past(
    cluster: Cluster, seconds: range, *, honor_labels: bool, labelled: Labelled = dict
) -> Iterator[Series]:
    """The series of a cluster's exporters at each of `seconds`."""
    for name, target in zip(cluster.exporters, cluster.targets, strict=True):
        attach = functools.partial(target.attach, honor_labels=honor_labels)
        exposition = cluster.exporters[name].get("/metrics")[1]
        for one in (
            *history.series(
                _without_counters(exposition), cluster.agents[name], attach=attach, seconds=seconds
            ),
            *_counters(exposition, cluster.agents[name], attach, seconds),
        ):
            if (labels := labelled(dict(one.labels))) is not None:
                yield Series(labels, one.seconds, one.values)


_BUSY, _POD_BUSY = "gpu_busy_seconds_total", "gpu_pod_busy_seconds_total"


def _without_counters(exposition: str) -> str:
    """The history repeats their current value, which would mean idle."""
    return "\n".join(line for line in exposition.splitlines() if not line.startswith((_BUSY, _POD_BUSY)))


def _counters(
    exposition: str, agent: NodeAgent, attach: Callable[[Labels], Labels], seconds: range
) -> Iterator[Series]:
    """Busy seconds of each GPU and pod, by the simulator's truth."""
    gpus = {agent.node.gpu_uuid(index): index for index in range(len(agent.node.gpus))}
    each = seconds.step // TRUTH_STEP_S
    instants = range(seconds[0] - seconds.step + TRUTH_STEP_S, seconds[-1] + 1, TRUTH_STEP_S)
    divisions = functools.cache(lambda gpu: [agent.machine.division(gpu, second) for second in instants])
    for sample in parse(exposition):
        if sample.name not in {_BUSY, _POD_BUSY} or sample.labels.get("GPU_I_ID"):
            continue
        who = (sample.labels.get("namespace", ""), sample.labels.get("pod", ""))
        parts = (
            division.percent
            if sample.name == _BUSY
            else sum(
                share
                for one, share in division.shares
                if one.tenant.container and (one.tenant.container.namespace, one.tenant.container.pod) == who
            )
            for division in divisions(gpus[sample.labels["UUID"]])
        )
        busy_s = list(itertools.accumulate(part / 100 * TRUTH_STEP_S for part in parts))
        yield Series(attach({"__name__": sample.name, **sample.labels}), seconds, busy_s[each - 1 :: each])


def last_hours(hours: float) -> range:
    """Scrape times up to the last whole minute; each minute is also an evaluation of the rules."""
    now_s = int(time.time()) // 60 * 60
    return range(now_s - int(hours * 3600), now_s + 1, STEP_S)
