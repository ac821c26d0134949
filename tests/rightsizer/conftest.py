"""A simulated cluster for each test."""

import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from simulator.prometheus import Prometheus
    from tests.rightsizer.receiver import Receiver
    from tests.rightsizer.world import World


@pytest.fixture
def world(tmp_path: pathlib.Path, prometheus: "Prometheus") -> Iterator["World"]:
    """An API server with three PriorityClasses and one node, and a Prometheus with the series of its pods."""
    from tests.rightsizer.world import World  # noqa: PLC0415 - only for tests that start it

    with World(tmp_path, prometheus) as running:
        yield running


@pytest.fixture
def receiver() -> Iterator["Receiver"]:
    """One that answers 200."""
    from tests.rightsizer.receiver import receiving  # noqa: PLC0415 - only for tests that start it

    with receiving() as made:
        yield made
