"""Fixture of the backtest tests."""

import pytest

from simulator.prometheus import Prometheus
from tests.rightsizer.metrics import Metrics


@pytest.fixture
def metrics(prometheus: Prometheus) -> Metrics:
    """Series of this test's own."""
    return Metrics(prometheus)
