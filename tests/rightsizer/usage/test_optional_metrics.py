"""CPU and I/O waits, on a real Prometheus."""

import pytest

from rightsizer.model import AddressTable, Whereabouts
from tests.rightsizer.metrics import HOUR, Metrics, idle, near, steadily

pytestmark = pytest.mark.prometheus


def test_waits_throttling_and_pressure_are_shares(metrics: Metrics) -> None:
    """Throttling of the worst container, pressure of the pod."""
    pod = {"pod": "a", "UUID": "", "modelName": ""}
    metrics.write(idle(), pod="a")
    for container, share in (("main", 0.6), ("side", 0.1)):
        labels = {**pod, "container": container}
        metrics.write({"container_cpu_cfs_periods_total": steadily(600)}, labels)
        metrics.write({"container_cpu_cfs_throttled_periods_total": steadily(600 * share)}, labels)
    metrics.write({"container_pressure_io_waiting_seconds_total": steadily(15)}, pod)
    metrics.write({"container_pressure_io_waiting_seconds_total": steadily(15)}, pod, replica="1")
    asked = [(metrics.space, "a"), (metrics.space, "b")]
    waits = metrics.signal().waits(asked, 6 * HOUR, metrics.at)
    assert set(waits) == {(metrics.space, "a")}
    found = waits[metrics.space, "a"]
    assert (found.cpu_throttled, found.io_pressure, found.cpu_pressure) == (near(0.6), near(0.25), None)


def test_waits_of_another_cluster_end_no_plan(metrics: Metrics) -> None:
    """Any scraped target can expose such a series, with any label of a cluster."""
    metrics.write(idle(), pod="a")
    pod = {"pod": "a", "UUID": "", "modelName": "", "container": "main"}
    for cluster in ("", "elsewhere"):
        metrics.write(
            {"container_pressure_io_waiting_seconds_total": steadily(15)}, {**pod, "cluster": cluster}
        )
    assert metrics.signal().waits([(metrics.space, "a")], HOUR, metrics.at)[
        metrics.space, "a"
    ].io_pressure == near(0.25)


@pytest.mark.parametrize(
    ("instance", "counts"),
    [
        pytest.param("192.168.0.1:10250", True, id="kubelet"),
        pytest.param("n1", True, id="name-of-the-node"),
        pytest.param("192.168.0.2:10250", False, id="kubelet-of-another-node"),
        pytest.param("10.0.1.66:8080", False, id="pod-on-the-node"),
        pytest.param("cadvisor", True, id="no-address"),
    ],
)
def test_waits_are_the_kubelets_of_the_pods_node(metrics: Metrics, instance: str, *, counts: bool) -> None:
    """Any scraped pod can say how long another waits."""
    metrics.write(idle(), pod="a", instance="10.0.1.1:9400")
    labels = {"pod": "a", "UUID": "", "modelName": "", "container": "main", "instance": instance}
    metrics.write({"container_pressure_io_waiting_seconds_total": steadily(15)}, labels)
    pods, addresses = {(metrics.space, "a"): "n1"}, AddressTable()
    for number in (1, 2):
        addresses.add("monitoring", f"n{number}", f"192.168.0.{number}", [f"10.0.{number}.1"])
        addresses.add("tenant", f"n{number}", f"192.168.0.{number}", [f"10.0.{number}.66"])
    signal = metrics.signal()
    signal.expect(pods.keys(), pods.keys(), Whereabouts(pods, addresses))
    assert bool(signal.waits(pods.keys(), HOUR, metrics.at)) is counts


def test_waits_without_cadvisor_are_missing(metrics: Metrics) -> None:
    """Missing, not zero."""
    metrics.write(idle(), pod="a")
    assert metrics.signal().waits([(metrics.space, "a")], HOUR, metrics.at) == {}
