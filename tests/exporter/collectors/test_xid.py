"""XID errors of GPUs and MIG instances: the last one, their number and their time."""

import time

import pytest

from exporter.collectors.xid import _MEANING
from simulator.gpus import Board
from simulator.spec import GpuSpec, NodeSpec
from tests.exporter.conftest import MakeNode
from tests.exporter.rig import Exporter, Node, eventually, h100, pod

pytestmark = pytest.mark.driver

LAST, RECENT, TOTAL = "DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_XID_ERRORS_TOTAL"
SINCE = "gpu_xid_last_timestamp_seconds"
RETRY_S = 5.0  # between two attempts to watch a GPU
UNINITIALIZED, NOT_SUPPORTED, GPU_IS_LOST, MISMATCH = 1, 3, 15, 18


def _watching(exporter: Exporter, gpus: int = 1) -> None:
    eventually(lambda: len(exporter.series(LAST, "gpu")) == gpus)


def test_last_xid_is_zero_then_the_last_code(make_node: MakeNode) -> None:
    """0 before the first one, as in DCGM; then the code of the last, with its meaning."""
    node = make_node(h100(2))
    labels = ("gpu", "err_code", "err_msg")
    with node.exporting(pods=False) as exporter:
        _watching(exporter, 2)
        assert exporter.series(LAST, *labels) == {("0", "0", "No Error"): 0, ("1", "0", "No Error"): 0}
        assert exporter.series(TOTAL, "gpu") == {}
        node.board.raise_xid(1, 31)
        node.board.raise_xid(1, 79)
        meaning = ("1", "79", "GPU has fallen off the bus")
        eventually(lambda: exporter.series(LAST, *labels) == {("0", "0", "No Error"): 0, meaning: 79})
        assert exporter.messages("XID 79 on ")


def test_xids_are_counted_by_code(make_node: MakeNode) -> None:
    """Total number, number in the last five minutes, and time of the last one."""
    node = make_node(h100(1))
    began_s = time.time()
    with node.exporting(pods=False) as exporter:
        _watching(exporter)
        for xid in (31, 31, 200):
            node.board.raise_xid(0, xid)
        counts = {("31",): 2.0, ("200",): 1.0}
        eventually(lambda: exporter.series(TOTAL, "xid") == counts)
        windowed = exporter.series(RECENT, "xid", "window_size_in_ms", "err_msg")
        assert windowed == {
            ("31", "300000", "GPU memory page fault"): 2,
            ("200", "300000", "Unknown Error"): 1,
        }
        when = exporter.series(SINCE, "xid")
    assert when.keys() == counts.keys()
    assert all(began_s - 1 <= at_s <= time.time() + 1 for at_s in when.values())


def test_xids_of_an_instance_count_for_its_gpu(make_node: MakeNode) -> None:
    """An error of an instance counts for it and its GPU only; a recreated instance starts at zero."""
    node = make_node(NodeSpec("cut", (GpuSpec("H100-SXM5-80GB", ("3g.40gb", "1g.10gb")),)))
    with node.exporting(pods=False) as exporter:
        _watching(exporter, 1)
        node.board.raise_xid(0, 45, instance=0)
        node.board.raise_xid(0, 94)
        expected = {("", "45"): 1.0, ("", "94"): 1.0, ("3g.40gb", "45"): 1.0}
        eventually(lambda: exporter.series(TOTAL, "GPU_I_PROFILE", "xid") == expected)
        node.board.set_mig(0, ())
        eventually(lambda: not exporter.series("DCGM_FI_DEV_FB_USED", "GPU_I_ID").keys() - {("",)})
        node.board.set_mig(0, ("3g.40gb",))
        eventually(lambda: ("3g.40gb",) in exporter.series(LAST, "GPU_I_PROFILE"))
        assert exporter.series(LAST, "GPU_I_PROFILE") == {("",): 94, ("3g.40gb",): 0}


def test_xids_of_a_card_without_events_are_absent(make_node: MakeNode) -> None:
    """Whether there were errors is unknown: absent, not 0, and not a failure."""
    node = make_node(h100(1))
    node.board.fault("nvmlDeviceGetSupportedEventTypes", code=NOT_SUPPORTED)
    with node.exporting("--interval=100ms", pods=False) as exporter:
        eventually(lambda: exporter.messages("waiting for XID errors: GPU 0: "))
        assert exporter.series(LAST, "gpu") == {}
        assert exporter.series("gpu_exporter_collector_success", "collector")["xid",] == 1
        assert exporter.series("DCGM_FI_DEV_GPU_UTIL", "gpu")


def test_xids_of_a_returning_gpu_are_watched_again(make_node: MakeNode) -> None:
    """A failed registration is retried, and does not affect other GPUs."""
    node = make_node(h100(2))
    node.board.fault("nvmlDeviceRegisterEvents", gpu=1, code=GPU_IS_LOST)
    with node.exporting(pods=False) as exporter:
        eventually(lambda: exporter.series(LAST, "gpu").keys() == {("0",)})
        node.board.clear_faults()
        _watching(exporter, 2)


def test_xid_79_of_a_lost_gpu_is_counted_and_stays(make_node: MakeNode) -> None:
    """The driver answers GPU_IS_LOST to everything about it: its XID errors keep its UUID, and only they are served."""
    node = make_node(h100(2))
    node.pods = [pod("train", node.spec.gpu_uuid(1))]
    node.kubelet.start()
    lost = ("1", node.spec.gpu_uuid(1), "train", "79", "GPU has fallen off the bus")
    labels = ("gpu", "UUID", "pod", "xid", "err_msg")
    with node.exporting() as exporter:
        _watching(exporter, 2)
        node.board.fault("*", gpu=1, code=GPU_IS_LOST)
        eventually(lambda: exporter.series("gpu_up", "gpu")["1",] == 0)
        node.board.raise_xid(1, 79)
        eventually(lambda: exporter.series(TOTAL, *labels) == {lost: 1.0})
        until = time.monotonic() + RETRY_S + 1
        while time.monotonic() < until:
            assert exporter.series(LAST, "gpu") == {("0",): 0, ("1",): 79}
            assert exporter.series("DCGM_FI_DEV_GPU_UTIL", "gpu").keys() == {("0",)}
            assert exporter.series("gpu_allocated", "gpu").keys() == {("0",)}
            time.sleep(0.5)
        assert exporter.series(SINCE, "gpu", "xid").keys() == {("1", "79")}
        node.board.raise_xid(0, 13)
        eventually(lambda: exporter.series(LAST, "gpu") == {("0",): 13, ("1",): 79})
        node.board.clear_faults()
        eventually(lambda: exporter.series("gpu_up", "gpu")["1",] == 1)
        assert exporter.series(TOTAL, *labels)[lost] == 1


@pytest.mark.parametrize("gpu", [1, None], ids=["one GPU", "all GPUs"])
def test_xids_stay_while_the_wait_reports_a_lost_gpu(gpu: int | None, make_node: MakeNode) -> None:
    """The event set is made again without the lost GPUs; no XID series disappears meanwhile."""
    node = make_node(h100(2))
    with node.exporting(pods=False) as exporter:
        _watching(exporter, 2)
        node.board.raise_xid(1, 48)
        eventually(lambda: exporter.series(LAST, "gpu") == {("0",): 0, ("1",): 48})
        node.board.fault("*", gpu=gpu, code=GPU_IS_LOST)
        node.board.fault("nvmlEventSetWait_v2", code=GPU_IS_LOST)
        eventually(lambda: exporter.messages("waiting for XID errors: GPU 1: "))
        assert exporter.series(LAST, "gpu") == {("0",): 0, ("1",): 48}
        assert exporter.get("/readyz")[0] == (200 if gpu else 503)
        node.board.clear_faults()
        eventually(lambda: exporter.messages("waiting for XID errors of GPU 1 again"))
        node.board.raise_xid(1, 79)
        eventually(lambda: exporter.series(LAST, "gpu") == {("0",): 0, ("1",): 79})


def test_all_xids_that_dcgm_exporter_names_have_a_text() -> None:
    """dcgm-exporter 4.8.2 has texts up to 172, of which NVIDIA reserves some."""
    reserved = {5, 10, 14, 15, 17, 23, *range(39, 42), *range(49, 54), 55, 87, 90, 91, 108}
    assert _MEANING.keys() == set(range(173)) - reserved


def test_xid_counts_survive_a_driver_reload(make_node: MakeNode) -> None:
    """The driver is reopened; counts remain, and counting continues."""
    node = make_node(h100(1))
    with node.exporting(pods=False) as exporter:
        _watching(exporter)
        node.board.raise_xid(0, 48)
        eventually(lambda: exporter.series(TOTAL, "xid") == {("48",): 1.0})
        node.board.fault("nvmlDeviceGetCount_v2", code=MISMATCH)
        eventually(lambda: exporter.series("gpu_exporter_nvml_up") == {(): 0.0})
        node.board.clear_faults()
        eventually(lambda: exporter.series(TOTAL, "xid") == {("48",): 1.0})
        _raise_until_counted(node.board, node, exporter)


def _raise_until_counted(board: Board, node: Node, exporter: Exporter) -> None:
    """Raise errors until one is seen: an error while the driver is being opened is lost."""
    del node

    def seen() -> bool:
        board.raise_xid(0, 13)
        return ("13",) in exporter.series(TOTAL, "xid")

    eventually(seen)


def test_hung_xid_wait_delays_no_reading(make_node: MakeNode) -> None:
    """The waiting thread reads nothing else, and the exporter still ends."""
    node = make_node(h100(1))
    with node.exporting(pods=False) as exporter:
        _watching(exporter)
        node.board.fault("nvmlEventSetWait_v2", hang=True)
        time.sleep(1.0)
        assert exporter.get("/readyz")[0] == 200
        assert exporter.series("DCGM_FI_DEV_GPU_UTIL", "gpu")
        began = time.monotonic()
        assert exporter.stop() == 0
        assert time.monotonic() - began < 5
