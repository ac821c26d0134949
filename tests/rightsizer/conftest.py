"""What the rightsizer's tests share: a world whose API server is the test's own."""

import pathlib
from collections.abc import Iterator

import pytest

from simulator.prometheus import Prometheus
from tests.rightsizer.world import World


@pytest.fixture
def world(tmp_path: pathlib.Path, prometheus: Prometheus) -> Iterator[World]:
    """An API server with three PriorityClasses and a node, and a Prometheus that has its pods' series."""
    with World(tmp_path, prometheus) as running:
        yield running
