"""One control plane with all operators that were built, and a Prometheus, for the whole test session."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from simulator.controlplane.programs import OPERATORS, missing
from simulator.prometheus import Prometheus
from tests.controlplane.world import RealWorld
from tests.operators.running import Operators

SECOND = ("mpi-operator", "trainer")
"""Operators on a control plane of their own: two define MPIJobs. Trainer needs JobSet."""


def _built(names: Iterable[str]) -> list[str]:
    absent = {program.name for program in missing(OPERATORS)}
    return [name for name in names if name not in absent]


@pytest.fixture(scope="session")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operators]:
    """Real operators on a real control plane, but SECOND."""
    names = _built(program.name for program in OPERATORS if program.name not in SECOND)
    with Operators(tmp_path_factory.mktemp("operators"), names) as running:
        yield running


@pytest.fixture(scope="session")
def second_operators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operators]:
    """SECOND on another control plane."""
    with Operators(tmp_path_factory.mktemp("operators"), _built(("jobset", *SECOND))) as running:
        yield running


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus for all worlds."""
    with Prometheus(tmp_path_factory.mktemp("prometheus")) as running:
        yield running


@contextlib.contextmanager
def _world(operators: Operators, store: Prometheus, directory: Path) -> Iterator[RealWorld]:
    with RealWorld(operators.plane, store, directory) as made:
        made.node(gpus=400, extra={"ephemeral-storage": "1Ti"})
        made.add("Deployment", "busy", "busy")
        yield made


@pytest.fixture(scope="module")
def world(
    operators: Operators, store: Prometheus, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealWorld]:
    """A team with a node that has room for everything."""
    with _world(operators, store, tmp_path_factory.mktemp("world")) as made:
        yield made


@pytest.fixture(scope="module")
def second_world(
    second_operators: Operators, store: Prometheus, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealWorld]:
    """The same on the other control plane."""
    with _world(second_operators, store, tmp_path_factory.mktemp("world")) as made:
        yield made
