"""Scrapes by Prometheus: formats, labels and values, which follow the GPUs."""

import contextlib
import gzip
import socket
import urllib.request

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from simulator.spec import GpuSpec, NodeSpec
from tests.exporter.conftest import MakeNode
from tests.exporter.rig import PATIENCE_S, eventually, h100, pod, reading

pytestmark = pytest.mark.driver

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def test_scrape_returns_current_values(make_node: MakeNode) -> None:
    """A scrape returns the GPU's values of the last cycle in DCGM's units."""
    node = make_node(h100(1))
    node.board.set_gpu(0, reading())
    with node.exporting(pods=False) as exporter:
        expected = {
            "DCGM_FI_DEV_GPU_UTIL": 87,
            "DCGM_FI_DEV_MEM_COPY_UTIL": 41,
            "DCGM_FI_DEV_FB_USED": 20 * 1024,
            "DCGM_FI_DEV_FB_FREE": 81559 - 551 - 20 * 1024 - 1,
            "DCGM_FI_DEV_FB_RESERVED": 551,
            "DCGM_FI_DEV_FB_TOTAL": 81559,
            "DCGM_FI_DEV_GPU_TEMP": 61,
            "DCGM_FI_DEV_MEMORY_TEMP": 70,
            "DCGM_FI_DEV_POWER_USAGE": 412.345,
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 98765432,
            "DCGM_FI_DEV_SM_CLOCK": 1980,
            "DCGM_FI_DEV_MEM_CLOCK": 2619,
        }
        assert {name: exporter.series(name, "gpu")["0",] for name in expected} == expected

        node.board.set_gpu(0, reading(gpu_util_percent=5))

        eventually(lambda: exporter.series("DCGM_FI_DEV_GPU_UTIL", "gpu") == {("0",): 5})


def test_series_labels_are_in_dcgms_order(make_node: MakeNode) -> None:
    """Labels have dcgm-exporter's order, on which some dashboards depend."""
    node = make_node(NodeSpec("a100", (GpuSpec("A100-SXM4-40GB", ("3g.20gb",)),)))
    node.pods.append(pod("notebook", node.spec.mig_uuid(0, 0), resource="nvidia.com/mig-3g.20gb"))
    with node.kubelet, node.exporting() as exporter:
        _, text = exporter.get("/metrics")

    line = next(
        line for line in text.splitlines() if line.startswith("DCGM_FI_DEV_FB_USED{") and "GPU_I_ID" in line
    )
    names = [part.split("=")[0] for part in line[line.index("{") + 1 : line.index("}")].split(",")]
    assert names == [
        "gpu", "UUID", "pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID", "hostname", "Hostname",
        "DCGM_FI_DRIVER_VERSION", "container", "namespace", "pod", "mig_uuid",
    ]  # fmt: skip


def test_prometheus_gets_openmetrics_with_the_same_names(make_node: MakeNode) -> None:
    """OpenMetrics is valid, and DCGM's counters keep their names."""
    node = make_node(h100(1))
    with node.exporting(pods=False) as exporter:
        for accept in (PROMETHEUS_2, PROMETHEUS_3):
            request = urllib.request.Request(f"{exporter.url}/metrics", headers={"Accept": accept})
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
                assert reply.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
                families = parse_openmetrics(reply.read().decode())  # type: ignore[no-untyped-call]
            found = {sample.name: family.type for family in families for sample in family.samples}
            assert found["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == "unknown"
            assert found["DCGM_FI_DEV_GPU_UTIL"] == "gauge"
            assert found["process_cpu_seconds_total"] == "counter"


def test_scrape_without_accept_is_text(make_node: MakeNode) -> None:
    """Without an Accept header, the text format is served, in which DCGM's counters are counters."""
    node = make_node(h100(1))
    with node.exporting(pods=False) as exporter:
        with urllib.request.urlopen(f"{exporter.url}/metrics", timeout=PATIENCE_S) as reply:
            assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        _, text = exporter.get("/metrics")
    assert "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter" in text.splitlines()


def test_scrape_with_gzip_support_is_compressed(make_node: MakeNode) -> None:
    """A client that accepts gzip gets the exposition compressed."""
    node = make_node(h100(1))
    with node.exporting(pods=False) as exporter:
        request = urllib.request.Request(f"{exporter.url}/metrics", headers={"Accept-Encoding": "gzip"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            assert reply.headers["Content-Encoding"] == "gzip"
            assert b"DCGM_FI_DEV_GPU_UTIL{" in gzip.decompress(reply.read())
        request = urllib.request.Request(f"{exporter.url}/metrics", headers={"Accept-Encoding": "gzip;q=0"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            assert reply.headers["Content-Encoding"] is None


def test_paths_return_their_pages(make_node: MakeNode) -> None:
    """Every known path returns its page; others return 404."""
    node = make_node(h100(1))
    expected = {
        "/": (200, 'href="/metrics"'),
        "/healthz": (200, "ok\n"),
        "/health": (200, "ok\n"),
        "/readyz": (200, "ok\n"),
        "/metrics?x=1": (200, "gpu_exporter_build_info"),
        "/nothing": (404, "not found; available: /, /metrics"),
    }
    with node.exporting(pods=False) as exporter:
        for path, (status, part) in expected.items():
            found, text = exporter.get(path)
            assert (path, found, part in text) == (path, status, True)


def test_methods_but_get_and_head_are_refused(make_node: MakeNode) -> None:
    """Methods other than GET and HEAD are refused with those that are allowed; HEAD has no body."""
    node = make_node(h100(1))
    with node.exporting(pods=False) as exporter:
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "BREW"):
            request = urllib.request.Request(f"{exporter.url}/metrics", method=method)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=PATIENCE_S)
            with refused.value as answer:
                assert (answer.code, answer.headers["Allow"]) == (405, "GET, HEAD")
        request = urllib.request.Request(f"{exporter.url}/metrics", method="HEAD")
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            assert int(reply.headers["Content-Length"]) > 0
            assert reply.read() == b""


def test_empty_listen_host_serves_ipv4_and_ipv6(make_node: MakeNode) -> None:
    """`--listen :PORT` serves IPv4 and IPv6, for clusters of either kind."""
    node = make_node(h100(1))
    with node.exporting("--listen=:0", pods=False) as exporter:
        port = int(exporter.url.rpartition(":")[2])
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, port), timeout=PATIENCE_S) as client:
                client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
                assert client.makefile("rb").readline() == b"HTTP/1.1 200 OK\r\n"


def test_idle_connections_do_not_block_scrapes(make_node: MakeNode) -> None:
    """Requests are answered while a hundred connections are silent."""
    node = make_node(h100(1))
    with node.exporting(pods=False) as exporter, contextlib.ExitStack() as idle:
        address = ("127.0.0.1", int(exporter.url.rpartition(":")[2]))
        for _ in range(100):
            idle.enter_context(socket.create_connection(address, timeout=PATIENCE_S))
        assert [exporter.get("/healthz")[0] for _ in range(10)] == [200] * 10


def test_collectors_flag_limits_the_collectors(make_node: MakeNode) -> None:
    """`--collectors` limits the series to the named collectors."""
    node = make_node(h100(1))
    with node.exporting("--collectors=power,clocks", pods=False) as exporter:
        families = exporter.families()
    assert sorted(name for name in families if name.startswith("DCGM_")) == [
        "DCGM_FI_DEV_MEM_CLOCK",
        "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_DEV_SM_CLOCK",
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    ]


def test_mig_instances_are_listed_beside_their_gpu(make_node: MakeNode) -> None:
    """An instance has only its memory; values that an Ampere GPU in MIG mode does not report are absent, not zero."""
    node = make_node(NodeSpec("a100", (GpuSpec("A100-SXM4-40GB", ("3g.20gb", "2g.10gb")),)))
    node.board.set_instance(0, 1, memory_used_bytes=3 * 2**30)
    with node.exporting(pods=False) as exporter:
        used = exporter.series("DCGM_FI_DEV_FB_USED", "UUID", "GPU_I_PROFILE")
        power = exporter.series("DCGM_FI_DEV_POWER_USAGE", "UUID", "GPU_I_PROFILE")
        busy = exporter.series("DCGM_FI_DEV_GPU_UTIL", "UUID", "GPU_I_PROFILE")

    uuid = node.spec.gpu_uuid(0)
    assert used[uuid, "3g.20gb"] == 0
    assert used[uuid, "2g.10gb"] == 3 * 1024
    assert list(power) == [(uuid, "")]
    assert busy == {}


def test_mig_changes_show_while_running(make_node: MakeNode) -> None:
    """When a GPU is partitioned again, series of new instances replace the old ones without a restart."""
    node = make_node(NodeSpec("a100", (GpuSpec("A100-SXM4-40GB", ("3g.20gb",)),)))
    with node.exporting(pods=False) as exporter:
        assert set(exporter.series("DCGM_FI_DEV_FB_USED", "GPU_I_PROFILE")) == {("",), ("3g.20gb",)}

        node.board.set_mig(0, ("1g.5gb", "1g.5gb"))
        eventually(lambda: len(exporter.series("DCGM_FI_DEV_FB_USED", "GPU_I_ID")) == 3)
        assert set(exporter.series("DCGM_FI_DEV_FB_USED", "GPU_I_PROFILE")) == {("",), ("1g.5gb",)}

        node.board.set_mig(0, ())
        eventually(lambda: exporter.series("DCGM_FI_DEV_GPU_UTIL", "GPU_I_ID") == {("",): 0})
