"""Series that cannot be the cluster's are refused, on a real Prometheus."""

import pytest

from rightsizer.errors import EvidenceIncomplete
from tests.rightsizer.metrics import DAY, HOUR, Metrics, idle

pytestmark = pytest.mark.prometheus


@pytest.mark.covers("P8")
def test_usages_series_of_exporter_pods_only_raise(metrics: Metrics) -> None:
    """If no named pod holds a GPU, the series would make every GPU look idle."""
    metrics.write(idle(), pod="dcgm-exporter-abc", namespace="monitoring")
    signal = metrics.signal()
    signal.expect([("team", "train-0")], [("team", "train-0")])
    with pytest.raises(EvidenceIncomplete, match=r"monitoring/dcgm-exporter-abc.*PodResources"):
        signal.usages(DAY, metrics.at)
    both = [("team", "train-0"), ("monitoring", "dcgm-exporter-abc")]
    signal.expect(both, both)
    assert len(signal.usages(DAY, metrics.at)) == 1


@pytest.mark.covers("P8")
def test_usages_young_pods_need_no_series(metrics: Metrics) -> None:
    """While all pods are young, other names or none at all are no error."""
    signal = metrics.signal()
    metrics.write(idle(), UUID="GPU-free")
    signal.expect([("team", "new-0")], [])
    assert signal.usages(DAY, metrics.at) == {}
    metrics.write(idle(), pod="ends-now")
    assert set(signal.usages(DAY, metrics.at)) == {(metrics.space, "ends-now")}
    signal.expect([("team", "new-0"), ("team", "old-0")], [("team", "old-0")])
    with pytest.raises(EvidenceIncomplete, match="none of the 1 pods"):
        signal.usages(DAY, metrics.at)


@pytest.mark.covers("P11")
def test_usages_series_of_gone_pods_only_are_no_error(metrics: Metrics) -> None:
    """Stale series only lack the current pods."""
    metrics.write(idle(), pod="gone", until=HOUR)
    signal = metrics.signal()
    signal.expect([("team", "old-0")], [("team", "old-0")])
    assert set(signal.usages(DAY, metrics.at)) == {(metrics.space, "gone")}
