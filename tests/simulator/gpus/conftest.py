"""Boards and the programs that see them."""

import pathlib
from collections.abc import Callable, Iterator

import pytest

from simulator.gpus import Board, environment
from simulator.spec import GpuSpec, NodeSpec
from tests.simulator.gpus.nvml_program import NvmlProgram

NODE = NodeSpec(
    "node-a",
    (
        GpuSpec("H100-SXM5-80GB"),
        GpuSpec("A100-SXM4-40GB", ("3g.20gb", "2g.10gb", "1g.5gb")),
        GpuSpec("L40S"),
        GpuSpec("T4"),
    ),
)


@pytest.fixture
def node() -> NodeSpec:
    """An H100, an A100 cut into three, an L40S and a T4."""
    return NODE


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    """Where the board lies."""
    return tmp_path / "board"


@pytest.fixture
def board(path: pathlib.Path, node: NodeSpec) -> Iterator[Board]:
    """The board of `node`."""
    with Board(path, node) as board:
        yield board


@pytest.fixture
def start_program(path: pathlib.Path) -> Iterator[Callable[[], NvmlProgram]]:
    """Starts programs that see the board, initialised or not."""
    programs = []

    def start() -> NvmlProgram:
        programs.append(NvmlProgram(environment(path)))
        return programs[-1]

    yield start
    for program in programs:
        program.close()


@pytest.fixture
def program(board: Board, start_program: Callable[[], NvmlProgram]) -> NvmlProgram:
    """A program that has initialised NVML on `board`, with the GPUs' handles in `gpus`, the A100's in `migs`."""
    del board  # there before the program starts
    program = start_program()
    program.ask("nvml.nvmlInit()")
    program.ask("gpus = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(4)]")
    program.ask("migs = [nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpus[1], i) for i in range(3)]")
    return program
