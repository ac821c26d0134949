"""Fixtures for tests of the exporter."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks._timelapse import Timelapse
from simulator.spec import GpuSpec, NodeSpec
from tests.exporter.rig import Node

MakeNode = Callable[[NodeSpec], Node]
MakeLapse = Callable[..., Timelapse]
"""Makes a Timelapse; takes its arguments by keyword."""


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[MakeNode]:
    """Make a node with simulated GPUs; its kubelet is not started yet."""
    with contextlib.ExitStack() as stack:

        def make(spec: NodeSpec) -> Node:
            # pytest's own folders are too deep for the 107 bytes of a Unix socket's path
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpu-")))
            node = Node(tmp_path, spec, folder)
            stack.callback(node.close)
            return node

        yield make


@pytest.fixture
def make_lapse(tmp_path: Path) -> Iterator[MakeLapse]:
    """Make a node in made time, by default with one H100 of which nothing is shown yet."""
    with tempfile.TemporaryDirectory(prefix="gpu-") as short:

        def make(**arguments: Any) -> Timelapse:
            node = NodeSpec("h100", (GpuSpec("H100-SXM5-80GB"),))
            arguments = {"spec": node, "works": {}, "pods": {}, **arguments}
            return Timelapse(tmp_path / "files", Path(short), **arguments)

        yield make
