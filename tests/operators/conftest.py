"""One control plane with all operators that were built, and a Prometheus, for the whole test session."""

from collections.abc import Iterator

import pytest

from simulator.controlplane.programs import OPERATORS, missing
from simulator.prometheus import Prometheus
from tests.controlplane.world import RealWorld
from tests.operators.running import Operators


@pytest.fixture(scope="session")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operators]:
    """Real operators on a real control plane."""
    absent = missing(OPERATORS)
    names = [program.name for program in OPERATORS if program not in absent]
    with Operators(tmp_path_factory.mktemp("operators"), names) as running:
        yield running


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus for all worlds."""
    with Prometheus(tmp_path_factory.mktemp("prometheus")) as running:
        yield running


@pytest.fixture(scope="module")
def world(
    operators: Operators, store: Prometheus, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealWorld]:
    """A team with a node that has room for everything."""
    with RealWorld(operators.plane, store, tmp_path_factory.mktemp("world")) as made:
        made.node(gpus=400, extra={"ephemeral-storage": "1Ti"})
        made.add("Deployment", "busy", "busy")
        yield made
