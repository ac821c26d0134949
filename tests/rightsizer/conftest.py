"""A simulated cluster for each test."""

import pathlib
from collections.abc import Iterator

import pytest

from simulator.prometheus import Prometheus
from tests.rightsizer.receiver import Receiver, receiving
from tests.rightsizer.world import World


@pytest.fixture
def world(tmp_path: pathlib.Path, prometheus: Prometheus) -> Iterator[World]:
    """An API server with three PriorityClasses and one node, and a Prometheus with the series of its pods."""
    with World(tmp_path, prometheus) as running:
        yield running


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """One that answers 200."""
    with receiving() as made:
        yield made
