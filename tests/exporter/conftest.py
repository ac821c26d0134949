"""Fixtures for tests of the exporter."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simulator.spec import NodeSpec
from tests.exporter.rig import Node

MakeNode = Callable[[NodeSpec], Node]


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
