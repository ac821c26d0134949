"""What the simulator's tests share: one Prometheus for all that only need one."""

import shutil
from collections.abc import Iterator

import pytest

from simulator.prometheus import Prometheus


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that scrapes nothing."""
    if shutil.which("prometheus") is None:
        pytest.skip("no prometheus on the path; apt-get install prometheus")
    with Prometheus(tmp_path_factory.mktemp("prometheus")) as running:
        yield running
