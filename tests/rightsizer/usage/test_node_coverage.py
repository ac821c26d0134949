"""Devices on each node by their series, on a real Prometheus."""

import datetime

import pytest

from tests.rightsizer.metrics import MEMORY, Metrics, idle, near

pytestmark = pytest.mark.prometheus


MINUTE = datetime.timedelta(minutes=1)


@pytest.mark.covers("P9")
def test_node_coverage_devices_without_pod_are_not_owned(metrics: Metrics) -> None:
    """Series with no pod or the exporter's pod are not owned; a GPU with MIG instances counts by these."""
    exporter = {"pod": "gpu-exporter-x", "namespace": "monitoring", "Hostname": "n1"}
    moved = {"exported_pod": "a", "exported_namespace": metrics.space}
    metrics.write(idle(), {**moved, **exporter}, UUID="GPU-0")
    metrics.write(idle(), exporter, UUID="GPU-1")
    metrics.write(idle(), UUID="GPU-2", hostname="n2")
    metrics.write(idle(), UUID="GPU-3", hostname="n2", pod="b")
    metrics.write(idle(), UUID="GPU-4", hostname="n2")
    metrics.write({MEMORY: 1}, UUID="GPU-4", hostname="n2", GPU_I_ID="1", pod="c", until=5 * MINUTE)
    metrics.write({MEMORY: 1}, UUID="GPU-4", hostname="n2", GPU_I_ID="2")
    nodes = metrics.signal().nodes(metrics.at)
    assert {name: (node.devices, node.owned) for name, node in nodes.items()} == {
        "n1": (2, 1),
        "n2": (4, 2),
    }
    assert (nodes["n1"].coverage, nodes["n2"].coverage) == (1.0, near(0.5, abs=0.1))


@pytest.mark.covers("P9")
def test_node_coverage_only_gpu_pods_own_devices(metrics: Metrics) -> None:
    """The series of a free GPU may name the exporter's pod."""
    metrics.write(idle(), UUID="GPU-1", pod="gpu-exporter-x", hostname="n1")
    signal = metrics.signal()
    assert signal.nodes(metrics.at)["n1"].owned == 1
    signal.expect([(metrics.space, "a")], [])
    assert signal.nodes(metrics.at)["n1"].owned == 0
