"""DCGM's names on a GPU that pods share: a copy for each of them, or each pod's part; never more than there is."""

import dataclasses
import shutil
from collections.abc import Mapping, Sequence

import pytest

from benchmarks._timelapse import BOOT_S, Options, Sample, Timelapse, values
from simulator.gpus.groundtruth import Work
from simulator.nodes.devices import Container
from simulator.spec import GpuSpec, NodeSpec
from tests.exporter.conftest import MakeLapse
from tests.exporter.rig import container, reading

pytestmark = pytest.mark.driver

START_MS = (BOOT_S + 100_000) * 1000
MIB = 2**20
SPEC = NodeSpec("h100", (GpuSpec("H100-SXM5-80GB"),))
WHOLE = SPEC.gpu_uuid(0)
SHARED = {"train": [f"{WHOLE}::0", f"{WHOLE}::1"], "serve": [f"{WHOLE}::2"]}
READ = ("memory", "processes", "profiling", "thermal", "utilization")
DEVICE = {
    "DCGM_FI_DEV_GPU_UTIL": 60,
    "DCGM_FI_DEV_GPU_UTIL_RATIO": 0.6,
    "DCGM_FI_DEV_FB_USED": 60_000,
    "DCGM_FI_DEV_FB_USED_BYTES": 60_000 * MIB,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.6,
}
"""What the device is made to say of itself."""
COPIED = (
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_MEM_COPY_UTIL",
    "DCGM_FI_PROF_SM_ACTIVE",
)
"""What cannot be parted."""


def works(pid: int, memory: int) -> Work:
    """A process that always has work for 0.6 s of every second, at the same time as all others."""
    start_ms = START_MS - 20_000
    bursts = tuple((at_ms, at_ms + 600) for at_ms in range(start_ms + 1000, START_MS + 20_000, 1_000))
    return Work(pid, start_ms, None, bursts, ((start_ms, memory),))


WORKS: Mapping[Work, Container | None] = {
    works(1001, 10_000 * MIB + 700_000): container("train"),
    works(1002, 20_000 * MIB + 700_000): container("train", "sidecar"),
    works(1003, 5_000 * MIB + 700_000): container("serve"),
    works(1004, 1_000 * MIB + 700_000): None,
}


def after_10_s(lapse: Timelapse, options: Options, *, memory_used_bytes: int = 60_000 * MIB) -> list[Sample]:
    """What is said of the second half of ten seconds."""
    lapse.board.set_gpu(0, reading(gpu_util_percent=60, memory_used_bytes=memory_used_bytes))
    with lapse.exporting(options):
        for at_ms in (0, 5_000, 10_000):
            us = (START_MS + at_ms) * 1000
            lapse.board.set_busy(0, busy_us=lapse.truth.counters(us), at_us=us)
            series = lapse.look(START_MS + at_ms)
    return series


def _said(series: Sequence[Sample], name: str) -> dict[tuple[str, ...], float]:
    return values(series, name, "pod", "container")


ATTRIBUTED = Options(shared_gpus="attributed", naming="both", collectors=READ)


def test_attributed_values_add_up_to_the_device(make_lapse: MakeLapse) -> None:
    """Attributed: each pod's part once, the rest without a pod, and a sum over them is the device's value."""
    series = after_10_s(make_lapse(works=WORKS, pods=SHARED), ATTRIBUTED)
    for name, value in DEVICE.items():
        found = _said(series, name)
        assert found.keys() == {("train", "main"), ("serve", "main"), ("", "")}, name
        assert sum(found.values()) == pytest.approx(value, rel=0.01), name
        if "FB_USED" not in name:
            assert found["train", "main"] == pytest.approx(value / 2, rel=0.05)
            assert found["serve", "main"] == pytest.approx(value / 4, rel=0.05)
    assert _said(series, "DCGM_FI_DEV_FB_USED") == {
        ("train", "main"): 30_001,
        ("serve", "main"): 5_000,
        ("", ""): 60_000 - 35_001,
    }
    assert sum(_said(series, "DCGM_FI_DEV_FB_USED_BYTES").values()) == 60_000 * MIB
    for name in COPIED:
        assert _said(series, name).keys() == {("", "")}, name


def test_attributed_memory_is_capped_at_the_devices(make_lapse: MakeLapse) -> None:
    """Memory that processes had when they were listed and that is free when the device is read is not counted."""
    series = after_10_s(make_lapse(works=WORKS, pods=SHARED), ATTRIBUTED, memory_used_bytes=9_000 * MIB)
    for name, value in (("DCGM_FI_DEV_FB_USED", 9_000), ("DCGM_FI_DEV_FB_USED_BYTES", 9_000 * MIB)):
        found = _said(series, name)
        assert sum(found.values()) == pytest.approx(value)
        assert found["train", "main"] == pytest.approx(6 * found["serve", "main"], rel=0.01)


def test_attributed_values_without_host_proc_have_no_pod(make_lapse: MakeLapse) -> None:
    """Attributed, without /proc: the device's own value, once, without a pod."""
    lapse = make_lapse(works=WORKS, pods=SHARED)
    shutil.rmtree(lapse.host.proc / "2")
    series = after_10_s(lapse, ATTRIBUTED)
    for name, value in DEVICE.items():
        assert _said(series, name) == {("", ""): pytest.approx(value, rel=0.01)}, name


@pytest.mark.parametrize(
    "missing",
    [["nvmlDeviceGetSamples"], ["nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization"]],
    ids=["device", "processes"],
)
def test_attributed_values_without_samples_split_only_memory(
    make_lapse: MakeLapse, missing: list[str]
) -> None:
    """Attributed, while the driver refuses the samples: likewise, and memory is parted as ever."""
    lapse = make_lapse(works=WORKS, pods=SHARED)
    for function in missing:
        lapse.board.fault(function, code=4)
    series = after_10_s(lapse, ATTRIBUTED)
    assert _said(series, "DCGM_FI_DEV_GPU_UTIL") == {("", ""): 60}
    assert len(_said(series, "DCGM_FI_DEV_FB_USED")) == 3


@pytest.mark.parametrize("pods", [{}, {"train": [WHOLE]}], ids=["free", "held-by-one"])
def test_attributed_mode_on_an_unshared_gpu_changes_nothing(
    make_lapse: MakeLapse, pods: dict[str, list[str]]
) -> None:
    """`attributed` changes nothing on a GPU with at most one holder, also with other processes on it."""
    series = after_10_s(make_lapse(works=WORKS, pods=pods), ATTRIBUTED)
    holder = ("train", "main") if pods else ("", "")
    for name, value in DEVICE.items():
        assert _said(series, name) == {holder: pytest.approx(value, rel=0.01)}, name
    for name in COPIED:
        assert _said(series, name).keys() == {holder}, name


def test_default_mode_copies_values_once_per_pod(make_lapse: MakeLapse) -> None:
    """By default each pod has a copy of everything, once, as with dcgm-exporter; however many replicas it holds."""
    options = dataclasses.replace(ATTRIBUTED, shared_gpus="dcgm")
    series = after_10_s(make_lapse(works=WORKS, pods=SHARED), options)
    for name, value in DEVICE.items():
        found = _said(series, name)
        assert found == dict.fromkeys([("train", "main"), ("serve", "main")], pytest.approx(value, rel=0.01))
    for name in COPIED:
        assert _said(series, name).keys() == {("train", "main"), ("serve", "main")}, name
