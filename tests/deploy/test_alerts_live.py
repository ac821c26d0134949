"""Each alert fires on a real Prometheus that scrapes real programs, and ends when its fault does."""

import contextlib
import dataclasses
import pathlib
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Self

import pytest

from simulator.gpus import Board
from simulator.gpus.answers import FIELDS
from simulator.gpus.cards import CARDS
from simulator.processes import free_port
from simulator.spec import NodeSpec
from tests.deploy.alerting import FACTORS, Alerting, Page, told
from tests.exporter.rig import Node, eventually, h100, pod, reading

pytestmark = [pytest.mark.deep, pytest.mark.prometheus, pytest.mark.driver, pytest.mark.timeout(600)]

DRIVER_NOT_LOADED, LOST, UNKNOWN = 9, 15, 999
DBE, POWER, THERMAL, BRAKE, ROWS, PENDING, FAILED = 4, 74, 75, 271, 143, 144, 145
WELL = {
    "dcgm": """
DCGM_FI_DEV_GPU_TEMP{gpu="20",UUID="GPU-20",Hostname="n3"} 50
DCGM_FI_DEV_GPU_TEMP{gpu="21",UUID="GPU-21",Hostname="n3"} 50
DCGM_FI_DEV_XID_ERRORS{gpu="20",UUID="GPU-20",Hostname="n3"} 0
DCGM_FI_DEV_FB_FREE{gpu="20",UUID="GPU-20",Hostname="n3"} 70000
DCGM_FI_DEV_FB_USED{gpu="20",UUID="GPU-20",Hostname="n3"} 11000
""",
    "other": "some_metric 1\n",
    "state": """
kube_node_status_allocatable{node="n4",resource="nvidia_com_gpu"} 0
kube_node_status_condition{node="n4",condition="Ready",status="true"} 1
kube_cronjob_status_last_schedule_time{namespace="g",cronjob="gpu-rightsizer"} 1000
kube_cronjob_status_last_successful_time{namespace="g",cronjob="gpu-rightsizer"} 1060
kube_cronjob_status_last_schedule_time{namespace="g",cronjob="gpu-rightsizer-backtest"} 1000
kube_cronjob_next_schedule_time{namespace="g",cronjob="gpu-rightsizer-backtest"} 2000
kube_cronjob_status_last_successful_time{namespace="g",cronjob="gpu-rightsizer-backtest"} 4000000000
kube_pod_info{namespace="ml",pod="idle",priority_class="low"} 1
""",
}
SICK = {
    "dcgm": """
DCGM_FI_DEV_GPU_TEMP{gpu="20",UUID="GPU-20",Hostname="n3"} 91
DCGM_FI_DEV_XID_ERRORS{gpu="20",UUID="GPU-20",Hostname="n3"} 48
DCGM_FI_DEV_FB_FREE{gpu="20",UUID="GPU-20",Hostname="n3"} 100
DCGM_FI_DEV_FB_USED{gpu="20",UUID="GPU-20",Hostname="n3"} 80900
""",
    "other": "",
    "state": WELL["state"]
    .replace("} 0\n", "} 8\n")
    .replace("} 1060", "} 940")
    .replace("} 4000000000", "} 60"),
}
EXPECTED = {
    *("GpuLost 0", "GpuHung 1", "GpuReadingsFailing", "GpuPodsUnknown", "GpuAllocatedIdle"),
    *("GpuXidFatal 2 79", "GpuXidHardware 2 94", "GpuXidApplication 2 31", "GpuXidOther 2 4711"),
    *("GpuThermalThrottling 3", "GpuPowerThrottling 3", "GpuPowerBrake 3", "GpuTemperatureHigh 4"),
    *("GpuEccUncorrectable 4", "GpuRowRemapFailed 4", "GpuRowRemapPending 4", "GpuRowsRemapped 4"),
    *("GpuMemoryNearlyFull 5", "GpuHung 0", "GpuExporterStale"),
    *("GpuTemperatureHigh 20", "GpuXidFatal 20 48", "GpuMemoryNearlyFull 20", "GpuSeriesVanished"),
    *("GpuExporterDown", "GpuNodeWithoutMetrics", "GpuRightsizerJobFailing", "GpuRightsizerReportMissed"),
}
"""All alerts that fire, by name and GPU."""


@pytest.fixture
def node(tmp_path: pathlib.Path) -> Iterator[Node]:
    """A node with eight GPUs."""
    with _node(tmp_path / "a", h100(8)) as made:
        yield made


@pytest.fixture
def other(tmp_path: pathlib.Path) -> Iterator[Node]:
    """A node with one GPU."""
    with _node(tmp_path / "b", h100(1)) as made:
        yield made


@contextlib.contextmanager
def _node(directory: pathlib.Path, spec: NodeSpec) -> Iterator[Node]:
    directory.mkdir()
    # pytest's own folders are too deep for the 107 bytes of a Unix socket's path
    with tempfile.TemporaryDirectory(prefix="gpu-") as short:
        made = Node(directory, spec, pathlib.Path(short))
        try:
            yield made
        finally:
            made.close()


class _Kept:
    """An exporter under a kubelet: restarted after it exits, with growing backoff."""

    def __init__(self, node: Node, *flags: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.starts = 0
        self._node, self._flags, self._end = node, (f"--listen={self.address}", *flags), threading.Event()
        self._thread = threading.Thread(target=self._keep)

    def _keep(self) -> None:
        pause_s = 0.2
        while not self._end.is_set():
            with self._node.exporting(*self._flags, pods=False, ready=False) as exporter:
                self.starts += 1
                while exporter.process.poll() is None and not self._end.wait(0.1):
                    pass
            self._end.wait(pause_s)
            pause_s = min(2 * pause_s, 5.0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


class _Throttled:
    """Throttle counters that grow while entered, as on a hot or power-limited card."""

    def __init__(self, board: Board, gpu: int) -> None:
        self._board, self._gpu, self._end = board, gpu, threading.Event()
        self._thread = threading.Thread(target=self._go)

    def _go(self) -> None:
        ns = 0
        while not self._end.wait(0.1):
            ns += 90_000_000
            for field in (POWER, THERMAL, BRAKE):
                self._board.set_answer(self._gpu, FIELDS, ns, selector=field)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def _fall_ill(node: Node, other: Node) -> None:
    board, full = node.board, CARDS["H100-SXM5-80GB"].usable_bytes
    board.fault("*", gpu=0, code=LOST)
    board.fault("nvmlDeviceGetPowerUsage", gpu=1, hang=True)
    for xid in (79, 94, 31, 4711):
        board.raise_xid(2, xid)
    board.set_gpu(4, reading(temperature_c=95))
    for field in (DBE, ROWS, PENDING, FAILED):
        board.set_answer(4, FIELDS, 1, selector=field)
    board.set_gpu(5, reading(memory_used_bytes=full - 2**20))
    board.fault("nvmlDeviceGetEncoderUtilization", gpu=6, code=UNKNOWN)
    other.board.fault("nvmlDeviceGetPowerUsage", gpu=0, hang=True)
    other.kubelet.stop()


def _get_well(node: Node, other: Node) -> None:
    for one in (node, other):
        one.board.clear_faults()
    node.board.set_gpu(4, reading())
    node.board.set_gpu(5, reading())
    for field in (PENDING, FAILED):
        node.board.set_answer(4, FIELDS, 0, selector=field)
    node.pods.clear()
    other.kubelet.start()


@dataclasses.dataclass
class _Pages:
    """Metrics pages of a dcgm-exporter, a failing one, and kube-state-metrics."""

    dcgm: Page
    other: Page
    state: Page

    def say(self, texts: dict[str, str]) -> None:
        """Serve these from now on."""
        for name, text in texts.items():
            getattr(self, name).text = text


@contextlib.contextmanager
def _served(directory: pathlib.Path, exporters: list[str]) -> Iterator[tuple[Alerting, _Pages]]:
    pages = _Pages(*(Page(WELL[name]) for name in ("dcgm", "other", "state")))
    with contextlib.ExitStack() as stack:
        dcgm, other, state = (
            stack.enter_context(page.served()) for page in (pages.dcgm, pages.other, pages.state)
        )
        jobs = {"gpu-exporter": exporters, "dcgm-exporter": [dcgm, other], "kube-state-metrics": [state]}
        yield stack.enter_context(Alerting(directory / "alerting", jobs)), pages


def test_gpu_and_exporter_alerts_on_all_faults_fire_and_end(
    tmp_path: pathlib.Path, node: Node, other: Node
) -> None:
    """With all faults at once exactly their alerts fire, with values, and end with the faults."""
    for gpu in range(7):
        node.board.set_gpu(gpu, reading())
    node.pods.append(pod("idle", node.spec.gpu_uuid(7)))
    for each in (node, other):
        each.kubelet.start()
    with (
        node.exporting("--metrics=full", "--interval=500ms") as ours,
        other.exporting("--metrics=full", "--interval=500ms", "--node-name=n2") as second,
        _served(tmp_path, [each.url.removeprefix("http://") for each in (ours, second)]) as (alerting, pages),
    ):
        eventually(lambda: alerting.has("gpu:node:known_gpus offset 15s"))
        alerting.until(lambda names: not names)
        _fall_ill(node, other)
        pages.say(SICK)
        with _Throttled(node.board, 3):
            for alert in alerting.until_each(EXPECTED):
                notes = alert["annotations"]
                assert "no value" not in str(notes), alert
                assert "  " not in notes["summary"] + notes["description"], alert
        _get_well(node, other)
        pages.say(WELL)
        alerting.until(lambda names: not names)


def test_driver_alert_while_exporter_restarts_fires_without_gap(tmp_path: pathlib.Path, other: Node) -> None:
    """One alert fires while the exporter exits and restarts several times."""
    flags = ("--node-name=n2", f"--give-up-after={300 // FACTORS['gpu-rightsizer-alerts-devices']}s")
    with (
        _Kept(other, *flags) as kept,
        Alerting(tmp_path / "alerting", {"gpu-exporter": [kept.address]}) as alerting,
    ):
        eventually(lambda: alerting.has("gpu_exporter_nvml_up == 1"))
        other.board.fault("nvmlInitWithFlags", code=DRIVER_NOT_LOADED)
        other.board.fault("nvmlDeviceGetCount_v2", code=DRIVER_NOT_LOADED)
        alerting.until(lambda names: "GpuDriverNotAnswering" in names)
        began = kept.starts
        while kept.starts < began + 4:
            assert "GpuDriverNotAnswering" in {told(one) for one in alerting.firing()}
            time.sleep(0.2)
        other.board.clear_faults()
        alerting.until(lambda names: not names)
