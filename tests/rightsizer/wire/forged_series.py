"""Series that a tenant's scraped pod exposes at random about pods, devices, nodes and clusters of others."""

import datetime
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from tests.rightsizer.wire.promql import NAME, Spans, Track
from tests.rightsizer.wire.scraped import JOB, RECORD_S, recorded

Labels = Mapping[str, str]

UTIL, ENGINE, COPY, DRAM = (
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_DEV_MEM_COPY_UTIL",
    "DCGM_FI_PROF_DRAM_ACTIVE",
)
MEMORY, POWER, CLOCK = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_SM_CLOCK"
_VALUES: Sequence[Mapping[str, float]] = (
    *({UTIL: 0, ENGINE: 0, COPY: 0, DRAM: 0, MEMORY: 0, POWER: 100},) * 8,
    *({UTIL: 99, ENGINE: 0.99, COPY: 90, DRAM: 0.9, MEMORY: 79_000, POWER: 690},) * 8,
    {UTIL: 99},
    {UTIL: 0, POWER: 100},
    {MEMORY: 79_000, POWER: 690, CLOCK: 1_980},
    {UTIL: math.nan, ENGINE: math.nan, POWER: math.nan},
    {UTIL: 808_334_905, COPY: -1, POWER: -1},
    {"gpu_pod_busy_seconds_total": 1, "gpu_busy_seconds_total": 1, "gpu_busy_gap_seconds_total": 0},
    {"gpu_busy_gap_seconds_total": 86_400, "gpu_unattributed_busy_seconds_total": 86_400},
    {"container_cpu_cfs_periods_total": 9, "container_cpu_cfs_throttled_periods_total": 9},
    {"vllm:request_success_total": 0, "vllm:num_requests_running": 0},
)
_RECORDED: Sequence[Mapping[str, float]] = ({UTIL: 0, COPY: 0, POWER: 100}, {UTIL: 99, COPY: 90, POWER: 690})
_AGES = (datetime.timedelta(minutes=5), datetime.timedelta(hours=2), *(datetime.timedelta(hours=30),) * 4)
_LASTING = datetime.timedelta(days=9)


def draw_series(
    dice: random.Random, victim: Labels, target: Labels, now: datetime.datetime, *, names_exporters: bool
) -> Iterator[Track]:
    """What a target says at random of a device whose labels are given.

    Args:
        dice: Chooses.
        victim: Labels of the device and its pod.
        target: Labels that Prometheus sets: the target, and the tenant's own pod.
        now: When it is scraped.
        names_exporters: Whether the exporters' namespace is given; else whoever chooses `instance` can pass.
    """
    labels = {**victim, **target, "job": dice.choice([JOB, "tenant"])}
    dice.choice(_WAYS)(labels, dice)
    if names_exporters and dice.random() < 0.3:
        # A pod's label may take the place of its address, but cannot hold a port; with one it is another cluster's.
        others = ["10.99.0.1:9400"] * 3 if "cluster" in labels else []
        labels["instance"] = dice.choice([labels["Hostname"], "n1", "nobody", "", *others])
    labels = {name: text for name, text in labels.items() if text}
    until = (now + dice.choice([*[_LASTING] * 4, -datetime.timedelta(minutes=20)])).timestamp()
    begin = (now - dice.choice(_AGES)).timestamp()
    if dice.random() < 0.2:
        yield from _records(labels, dice.choice(_RECORDED), begin, until)
    else:
        for name, value in dice.choice(_VALUES).items():
            spans = (
                _rising(begin, until, value)
                if name.endswith("_total") and value
                else ((begin, until, value),)
            )
            yield Track({NAME: name, **labels}, spans)


def _records(labels: Labels, values: Mapping[str, float], begin: float, until: float) -> Iterator[Track]:
    """Series with the names of recorded ones, and junk until nearly all series are recorded."""
    for number in range(20):
        junk = {"UUID": f"GPU-junk-{number}", "exported_pod": f"junk-{number}"} if number else {}
        for name, value in values.items():
            yield from recorded(name, {**labels, **junk}, ((begin, until, value),))


def _rising(begin: float, until: float, value: float) -> Spans:
    """A counter that rises by so much in every five minutes of a day."""
    ends = [begin + RECORD_S * number for number in range(1, 300)]
    return tuple(
        (end - RECORD_S, end, value * number) for number, end in enumerate(ends) if end <= until
    ) or ((begin, until, value),)


def _moved(labels: dict[str, str], dice: random.Random) -> None:
    """With names of the pod that Prometheus did not move aside, as it has none of its own."""
    del dice
    labels["namespace"], labels["pod"] = labels.pop("exported_namespace"), labels.pop("exported_pod")


def _nobody(labels: dict[str, str], dice: random.Random) -> None:
    """Of the device, without a pod, or of a pod that does not exist."""
    labels["exported_pod"] = dice.choice(["", "gone-0", labels["exported_pod"] + "-x"])


_WAYS: Sequence[Callable[[dict[str, str], random.Random], None]] = (
    *(lambda *_: None,) * 6,
    lambda labels, dice: labels.update(UUID=dice.choice(["GPU-x", "GPU-" + labels["exported_pod"]])),
    lambda labels, dice: labels.update(cluster=dice.choice(["theirs", "ours"])),
    lambda labels, dice: labels.update(GPU_I_ID=dice.choice(["1", "7"]), GPU_I_PROFILE="1g.10gb"),
    lambda labels, dice: labels.update(Hostname=dice.choice(["n0", "n1", "nowhere"])),
    lambda labels, dice: labels.update(modelName=dice.choice(["", "NVIDIA A100-SXM4-80GB"])),
    _moved,
    _nobody,
)
