"""A simulated cluster for each test."""

import pathlib
import threading
from collections.abc import Iterator

import pytest

from simulator.prometheus import Prometheus
from tests.rightsizer.receiver import Receiver
from tests.rightsizer.world import World


@pytest.fixture
def world(tmp_path: pathlib.Path, prometheus: Prometheus) -> Iterator[World]:
    """An API server with three PriorityClasses and one node, and a Prometheus with the series of its pods."""
    with World(tmp_path, prometheus) as running:
        yield running


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """One that answers 200."""
    made = Receiver()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()
