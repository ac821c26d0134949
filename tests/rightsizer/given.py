"""What tests give a cluster: workloads of each kind, and a day of series of a named profile for their devices."""

import dataclasses
import itertools
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from simulator.series_store import Series
from tests.rightsizer.kind_cases import CASES, UNKNOWN

DAY_S = 86_400
STEP_S = 60
AHEAD_S = 2 * STEP_S
"""Samples run at least so far ahead of the clock: a slow machine asks a while after they were written."""
H100 = "NVIDIA H100 80GB HBM3"
CLASSES = {"high-priority": 100_000, "medium-priority": 10_000, "low-priority": 1_000}
CLAIMS = {"claim": "resourceClaimTemplateName", "claim_name": "resourceClaimName"}
"""What a workload may have in place of a GPU resource, and the field of its pods."""
_APIS = {
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "ReplicaSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "Job": "batch/v1",
    "Pod": "v1",
}
_UUIDS = (f"GPU-{uuid.uuid4().hex[:8]}-{number:04d}" for number in itertools.count())

Values = dict[str, Sequence[float]]


def _flat(util: float, copy: float, fb_mib: float, power_w: float) -> Callable[[int], Values]:
    def values(count: int) -> Values:
        return {
            "DCGM_FI_DEV_GPU_UTIL": [util] * count,
            "DCGM_FI_DEV_MEM_COPY_UTIL": [copy] * count,
            "DCGM_FI_DEV_FB_USED": [fb_mib] * count,
            "DCGM_FI_DEV_POWER_USAGE": [power_w] * count,
        }

    return values


def _spiked(metric: str, value: float) -> Callable[[int], Values]:
    """Parked, but for one sample in the middle."""

    def values(count: int) -> Values:
        found = {name: list(column) for name, column in _flat(0, 0, 40_000, 118)(count).items()}
        found[metric][count // 2] = value
        return {name: tuple(column) for name, column in found.items()}

    return values


def _worked(*spans_min: tuple[int, int]) -> Callable[[int], Values]:
    """Parked, but at work in each span, from so many minutes before the end until so many."""

    def values(count: int) -> Values:
        found = {name: list(column) for name, column in _flat(0, 0, 40_000, 118)(count).items()}
        for since, until in spans_min:
            for metric, value in {"DCGM_FI_DEV_GPU_UTIL": 99, "DCGM_FI_DEV_POWER_USAGE": 640}.items():
                found[metric][count - since : count - until] = [value] * (since - until)
        return {name: tuple(column) for name, column in found.items()}

    return values


def _gauges(*spans_min: tuple[int, int], power_w: float | None = None) -> Callable[[int], Values]:
    """At work as in `_worked`, with memory traffic and power that stand still all the while."""

    def values(count: int) -> Values:
        found: Values = {"DCGM_FI_DEV_GPU_UTIL": _worked(*spans_min)(count)["DCGM_FI_DEV_GPU_UTIL"]}
        found |= {"DCGM_FI_DEV_MEM_COPY_UTIL": [0.0] * count}
        return found | ({"DCGM_FI_DEV_POWER_USAGE": [power_w] * count} if power_w else {})

    return values


def _only(*metrics: str) -> Callable[[int], Values]:
    return lambda count: {name: _flat(0, 0, 40_000, 118)(count)[name] for name in metrics}


def _counted(
    util: float, busy_s: float, own_s: float = 0.0, power_w: float = 300, fb_mib: float = 40_000
) -> Callable[[int], Values]:
    """What a GPU's gauge shows, and what gpu-exporter's counters say of all of it and of the pod."""
    return lambda count: {
        **_flat(util, util / 2, fb_mib, power_w)(count),
        "gpu_busy_seconds_total": [STEP_S * busy_s * number for number in range(count)],
        "gpu_busy_gap_seconds_total": [0.0] * count,
        "gpu_unattributed_busy_seconds_total": [0.0] * count,
        "gpu_pod_busy_seconds_total": [STEP_S * own_s * number for number in range(count)],
        "gpu_pod_memory_busy_seconds_total": [STEP_S * own_s / 2 * number for number in range(count)],
    }


def _board(fb_mib: float, power_w: float, clock_mhz: float = 210) -> Callable[[int], Values]:
    """A GPU with MIG instances before Hopper: NVML has no utilization of it."""
    return lambda count: {
        "DCGM_FI_DEV_FB_USED": [fb_mib] * count,
        "DCGM_FI_DEV_POWER_USAGE": [power_w] * count,
        "DCGM_FI_DEV_SM_CLOCK": [clock_mhz] * count,
    }


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """How one device looks in Prometheus.

    Attributes:
        parts: Where in the day there are samples: from, to (0 to 1), and in every how many-th minute.
    """

    values: Callable[[int], Values]
    parts: tuple[tuple[float, float, int], ...] = ((0.0, 1.0, 1),)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


def _starved(begin: float, end: float) -> Iterator[tuple[float, float, int]]:
    """Five minutes with all samples, then fifteen with hardly any, again and again."""
    part = (end - begin) / 36
    for number in range(36):
        since = begin + number * part
        yield since, since + part / 4, 1
        yield since + part / 4, since + part, 7


IDLE = _flat(0, 0, 40_000, 118)
PROFILES: Mapping[str, Profile | None] = {
    "absent": None,
    "idle": Profile(IDLE),
    "busy": Profile(_flat(93, 40, 60_000, 640)),
    "burst": Profile(_spiked("DCGM_FI_DEV_GPU_UTIL", 60)),
    "spinning": Profile(_flat(100, 0, 40_000, 118)),
    "hot": Profile(_flat(0, 0, 40_000, 400)),
    "loading": Profile(_flat(0, 30, 40_000, 118)),
    "newest-half": Profile(IDLE, parts=((0.5, 1.0, 1),)),
    "stopped-an-hour-ago": Profile(IDLE, parts=((0.0, 1 - 1 / 24, 1),)),
    "four-hours-missing": Profile(IDLE, parts=((0.0, 0.4, 1), (0.4 + 4 / 24, 1.0, 1))),
    "thinned-out": Profile(IDLE, parts=(*_starved(0.0, 0.5), (0.5, 1.0, 1))),
    "every-fourth-minute": Profile(IDLE, parts=((0.0, 0.5, 4), (0.5, 1.0, 1))),
    "just-woken": Profile(_worked((5, 0))),
    "worked-two-hours-ago": Profile(_worked((150, 90))),
    "worked-long-ago": Profile(_worked((1440, 1200))),
    "comes-back-after-eight-hours": Profile(_worked((1440, 1200), (720, 660))),
    "light": Profile(_flat(10, 5, 70_000, 250)),
    "half": Profile(_flat(30, 10, 70_000, 300)),
    "health-checks": Profile(_flat(2, 3, 70_000, 180)),
    "small": Profile(_flat(10, 5, 6_000, 200)),
    "small-with-counters": Profile(_counted(10, 0.1, 0.1, power_w=200, fb_mib=6_000)),
    "small-on-half": Profile(_flat(10, 5, 6_000, 200), labels={"GPU_I_ID": "3", "GPU_I_PROFILE": "3g.40gb"}),
    "silent-for-two-hours": Profile(IDLE, parts=((0.0, 1 - 2.2 / 25, 1), (1 - 0.1 / 25, 1.0, 1))),
    "garbage": Profile(_spiked("DCGM_FI_DEV_GPU_UTIL", 808_334_905)),
    "nan": Profile(_spiked("DCGM_FI_DEV_GPU_UTIL", math.nan)),
    "negative": Profile(_spiked("DCGM_FI_DEV_GPU_UTIL", -1)),
    "idle-with-counters": Profile(_counted(0, 0, power_w=118)),
    "busy-with-counters": Profile(_counted(93, 0.93, 0.93, power_w=640)),
    "idle-beside-a-busy-pod": Profile(_counted(93, 0.93)),
    "busy-beside-an-idle-pod": Profile(_counted(93, 0.93, 0.93)),
    **{f"idle-slot-{number}": Profile(IDLE, labels={"vgpu": str(number)}) for number in range(2)},
    **{f"idle-in-{name}": Profile(IDLE, labels={"container": name}) for name in ("main", "side")},
    "two-shares": Profile(
        lambda count: {**_counted(0, 0)(count), **IDLE(count), "gpu_pod_shares": [2.0] * count}
    ),
    "unified-idle": Profile(_gauges()),
    "unified-busy": Profile(_gauges((1440, 0))),
    "unified-worked-long-ago": Profile(_gauges((1440, 1200))),
    "constant-power": Profile(_gauges((1440, 1200), power_w=70)),
    "idle-without-power": Profile(
        _only("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL", "DCGM_FI_DEV_FB_USED")
    ),
    "power-of-the-last-hour": Profile(lambda count: {**IDLE(count), "DCGM_FI_DEV_POWER_USAGE": [118.0] * 60}),
    "stopped-counters": Profile(_counted(93, 0.0003)),
    "mig": Profile(_only("DCGM_FI_DEV_FB_USED"), labels={"GPU_I_ID": "3", "GPU_I_PROFILE": "1g.10gb"}),
    "board-empty": Profile(_board(0, 55)),
    "board-idle": Profile(_board(40_000, 61)),
    "board-half-busy": Profile(_board(40_000, 150, clock_mhz=1410)),
    "no-second-signal": Profile(_only("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED")),
}


def day_of(
    namespace: str,
    pod: str,
    looks: Sequence[str],
    *,
    exported: bool = True,
    node: str = "n1",
    extra: Mapping[str, str] | None = None,
) -> Iterator[Series]:
    """The last day of a pod's devices, one of each of these profiles.

    Args:
        namespace: Of the pod.
        pod: Its name.
        looks: Names of PROFILES.
        node: The node of the pod, whose exporter has the series.
        exported: Whether the pod arrives as exported_pod, as behind a ServiceMonitor, or as pod.
        extra: Labels that all series carry, too.
    """
    owner = _owner(namespace, pod, node, exported=exported)
    for name in looks:
        profile = PROFILES[name]
        if profile is not None:
            device = {"gpu": "0", "UUID": next(_UUIDS), "modelName": H100, "job": "gpu"}
            yield from _series(profile, {**device, **owner, **profile.labels, **(extra or {})})


def elsewhere(
    namespace: str, pod: str, work: Mapping[str, Any], *, exported: bool = True, node: str = "n1"
) -> Iterator[Series]:
    """The last day of a pod's processes on a GPU that the kubelet did not give it: no gauge names it there.

    `work` has the labels of the GPU, the `share` of the time in which it works for the pod, and between which hours
    before the end; `by: processes` if the driver does not tell processes apart.
    """
    labels = {key: value for key, value in work.items() if key not in {"share", "since_h", "until_h", "by"}}
    device = {"job": "gpu", "instance": f"{node}:9400", **labels}
    owner = _owner(namespace, pod, node, exported=exported)
    seconds = scrapes()
    since, until = (
        seconds[-1] - work.get(key, hours) * 3600 for key, hours in (("since_h", 25), ("until_h", 0))
    )
    total, busy = 0.0, []
    for second in seconds:
        busy.append(total)
        total += STEP_S * work.get("share", 0.9) * (since <= second < until)
    zero = [0.0] * len(seconds)
    for metric, values in {"gpu_busy_seconds_total": busy, "gpu_busy_gap_seconds_total": zero}.items():
        yield Series({"__name__": metric, **device}, seconds, values)
    yield Series({"__name__": "gpu_pod_processes", **device, **owner}, seconds, [1.0] * len(seconds))
    if work.get("by") == "processes":
        shared = {**device, "reason": "shared"}
        yield Series({"__name__": "gpu_unattributed_busy_seconds_total", **shared}, seconds, busy)
    else:
        for metric in ("gpu_pod_busy_seconds_total", "gpu_pod_memory_busy_seconds_total"):
            yield Series({"__name__": metric, **device, **owner}, seconds, busy)


def _owner(namespace: str, pod: str, node: str, *, exported: bool) -> dict[str, str]:
    """The labels of a pod, and of its exporter where these are exported_pod and pod."""
    owner = {"namespace": namespace, "pod": pod, "container": "main"}
    target = {
        "namespace": "monitoring",
        "pod": "gpu-exporter-x",
        "container": "exporter",
        "instance": f"{node}:9400",
    }
    return {**target, **{f"exported_{key}": value for key, value in owner.items()}} if exported else owner


def waiting(namespace: str, pod: str, throttled: float) -> Iterator[Series]:
    """A day of cAdvisor's counters of a container whose CPU limit throttles it in this share of its periods."""
    owner = {"namespace": namespace, "pod": pod, "container": "main", "job": "kubelet"}
    seconds = scrapes()
    for metric, share in {"periods": 1.0, "throttled_periods": throttled}.items():
        counts = [600.0 * share * number for number in range(len(seconds))]
        yield Series({"__name__": f"container_cpu_cfs_{metric}_total", **owner}, seconds, counts)


def serving(namespace: str, pod: str, address: str, per_minute: float) -> Iterator[Series]:
    """A day of vLLM's metrics of a pod that serves this many requests per minute."""
    target = {"namespace": namespace, "pod": pod, "instance": f"{address}:8000", "job": "vllm"}
    seconds = scrapes()
    counts = [per_minute * number for number in range(len(seconds))]
    yield Series({"__name__": "vllm:request_success_total", **target}, seconds, counts)
    for metric in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
        yield Series({"__name__": metric, **target}, seconds, [0.0] * len(seconds))


def scrapes() -> range:
    """When samples of the last day were taken: pods of one GPU have theirs at the same seconds."""
    until = (int(time.time()) // STEP_S + 1) * STEP_S + AHEAD_S
    return range(until - DAY_S - 3600, until + 1, STEP_S)


def _series(profile: Profile, labels: Mapping[str, str]) -> Iterator[Series]:
    seconds = scrapes()
    for begin, end, every in profile.parts:
        part = seconds[int(len(seconds) * begin) : int(len(seconds) * end) : every]
        for metric, values in profile.values(len(part)).items():
            yield Series({"__name__": metric, **labels}, part[-len(values) :], values)


def priority_class(name: str, value: int, annotations: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A PriorityClass."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "value": value,
    }


def manifest(kind: str, namespace: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A workload as its owner would write it; its pods carry the label app=<name>. `kinds` has those with a group."""
    labels = {"app": name}
    resource = given.get("resource", "nvidia.com/gpu")
    amounts = {resource: str(given.get("gpus", 1)), **{key: str(given[key]) for key in {"cpu"} & set(given)}}
    amounts |= {key: str(count) for key, count in given.get("limits", {}).items()}
    spec: dict[str, Any] = {
        "priorityClassName": given.get("priorityClass", "low-priority"),
        "containers": [
            {"name": "main", "image": "x", "resources": {"limits": amounts}, **given.get("container", {})}
        ],
        "nodeSelector": given.get("nodeSelector", {}),
        **{
            key: given[key]
            for key in {"nodeName", "schedulingGates", "initContainers", "volumes"} & set(given)
        },
        **given.get("podSpec", {}),
    }
    if init := dict(given.get("init", {})):
        limits = {resource: str(init.pop("gpus"))}
        spec["initContainers"] = [{"name": "init", "image": "x", "resources": {"limits": limits}, **init}]
    if kind in {"Pod", "Job"}:
        spec["restartPolicy"] = "Never"
    if "ports" in given:
        spec["containers"][0]["ports"] = given["ports"]
    for key, field in CLAIMS.items():
        if key in given:
            spec["resourceClaims"] = [{"name": "gpus", field: given[key]}]
            spec["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}
    metadata = {
        "name": name,
        "namespace": namespace,
        "annotations": given.get("annotations", {}),
        "labels": given.get("labels", {}),
    }
    of_pods = {**given.get("podLabels", {}), **labels}
    template = {"metadata": {"labels": of_pods, "annotations": given.get("podAnnotations", {})}, "spec": spec}
    if kind in CASES or kind == UNKNOWN.kind:
        case = CASES.get(kind, UNKNOWN)
        head = {"apiVersion": case.api_version, "kind": case.kind}
        return {
            **head,
            "metadata": {**metadata, "labels": {**metadata["labels"], **labels}},
            "spec": given.get("spec", case.spec)(template),
        }
    top: dict[str, Any] = {"apiVersion": _APIS[kind], "kind": kind, "metadata": metadata}
    if kind == "Pod":
        return {**top, "metadata": {**metadata, "labels": {**metadata["labels"], **labels}}, "spec": spec}
    if kind == "Job":
        count = given.get("replicas", 1)
        return {**top, "spec": {"parallelism": count, "completions": count, "template": template}}
    body = {"replicas": given.get("replicas", 1), "selector": {"matchLabels": labels}, "template": template}
    return {**top, "spec": {**body, "serviceName": name} if kind == "StatefulSet" else body}
