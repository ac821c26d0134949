"""Readers see whole values: under a hammering writer, and after a writer that was killed."""

import dataclasses
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from simulator.gpus import Board, DriverError, Process, Reading, encoding
from simulator.gpus.boardfile import BoardFile
from simulator.gpus.cards import CARDS
from simulator.spec import GpuSpec, NodeSpec
from tests.simulator.gpus.nvml_program import ANSWER_TIMEOUT_S, NvmlProgram

pytestmark = pytest.mark.driver

# Reads one number of the writer's in six ways: all must belong to the same one.
READ_MANY = """
import itertools, time
torn = []
seen = set()
def look(reads, different=1, deadline_s=30):
    deadline = time.monotonic() + deadline_s
    for read in itertools.count():
        if read >= reads and len(seen) >= different or time.monotonic() > deadline:
            return
        temperature, energy, average, instant = nvml.nvmlDeviceGetFieldValues(gpus[0], [82, 83, 185, 186])
        n = energy.value.ullVal // 1000
        if (n % 200, n * 1000, n * 1000, n * 1000) != (
            temperature.value.uiVal, energy.value.ullVal, average.value.uiVal, instant.value.uiVal
        ):
            torn.append(n)
        rates = nvml.nvmlDeviceGetUtilizationRates(gpus[0])
        if rates.gpu != rates.memory:
            torn.append((rates.gpu, rates.memory))
        seen.add(n)
"""


def numbered(n: int) -> Reading:
    """A reading in which everything says `n`."""
    return dataclasses.replace(
        Reading.idle(CARDS["H100-SXM5-80GB"]),
        gpu_util_percent=n % 100,
        memory_util_percent=n % 100,
        memory_temperature_c=n % 200,
        power_w=float(n),
        energy_j=float(n),
    )


def test_board_under_constant_writes_never_shows_mixed_values(board: Board, program: NvmlProgram) -> None:
    """However often the writer writes, each call's values come from one and the same reading."""
    board.set_gpu(0, numbered(0))
    program.ask(READ_MANY)
    done = threading.Event()

    def hammer() -> None:
        for n in itertools.cycle(range(1, 1_000_000)):
            board.set_gpu(0, numbered(n))
            if done.is_set():
                return

    writer = threading.Thread(target=hammer)
    writer.start()
    try:
        program.ask("look(20000, different=100)")
    finally:
        done.set()
        writer.join()
    assert program.ask("torn") == []
    assert program.ask("len(seen)") >= 100


READ_PROCESSES = """
mixed = []
found = set()
infos = (nvml.c_nvmlProcessInfo_v3_t * 512)()
def read(times):
    for _ in range(times):
        count = ctypes.c_uint(512)
        assert nvml.nvmlLib.nvmlDeviceGetComputeRunningProcesses_v3(gpus[0], ctypes.byref(count), infos) == 0
        values = {info.usedGpuMemory for info in infos}
        if len(values) == 1:
            found.update(values)
        else:
            mixed.append(sorted(values))
"""


@pytest.mark.slow
def test_board_with_large_values_never_shows_mixed_values(path: pathlib.Path, program: NvmlProgram) -> None:
    """Values that take long to read and to write come whole, too, from a writer without pause."""
    header = encoding.header(NodeSpec("node-a", (GpuSpec("T4"),)))
    lists = [encoding.process_list([Process(pid, n) for pid in range(512)]) for n in (1, 2, 3)]
    file = BoardFile(path, header, [])
    file.publish_processes(0, lists[0])
    for code in ("nvml.nvmlShutdown()", "nvml.nvmlInit()", READ_PROCESSES):
        program.ask(code)
    reads = program.start("read(5000)")
    for values in itertools.cycle(lists):
        file.publish_processes(0, values)
        if reads.done():
            break
    reads.result(ANSWER_TIMEOUT_S)
    file.close()
    assert program.ask("mixed") == []
    assert program.ask("sorted(found)") == [1, 2, 3]


def test_board_with_several_writer_threads_keeps_every_change(board: Board, program: NvmlProgram) -> None:
    """Threads that write to one board do not undo or tear each other's changes."""
    board.set_gpu(0, numbered(0))
    program.ask(READ_MANY)

    def count(numbers: range) -> None:
        for n in numbers:
            board.set_gpu(0, numbered(n))

    def fill() -> None:
        for n in range(500):
            board.set_instance(1, 0, memory_used_bytes=n << 20)

    threads = [
        threading.Thread(target=count, args=(range(500),)),
        threading.Thread(target=count, args=(range(500, 1000),)),
        threading.Thread(target=fill),
    ]
    for thread in threads:
        thread.start()
    program.ask("look(2000)")
    for thread in threads:
        thread.join()
    assert program.ask("torn") == []
    assert program.ask("nvml.nvmlDeviceGetMemoryInfo(migs[0])")["used"] == 499 << 20


WRITER = """
import itertools, pathlib, sys
from tests.simulator.gpus.conftest import NODE
from tests.simulator.gpus.test_consistency import numbered
from simulator.gpus import Board
board = Board(pathlib.Path(sys.argv[1]), NODE)
for n in itertools.cycle(range(1, 1_000_000)):
    board.set_gpu(0, numbered(n))
    if n == 1000:
        print("running", flush=True)
"""


def test_board_of_killed_writer_keeps_last_values(
    path: pathlib.Path, start_program: Callable[[], NvmlProgram]
) -> None:
    """Programs keep the last whole values of a writer that was killed while writing."""
    root = pathlib.Path(__file__).parents[3]
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    with writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"running\n"
        program = start_program()
        program.ask("nvml.nvmlInit()")
        program.ask("gpus = [nvml.nvmlDeviceGetHandleByIndex(0)]")
        program.ask(READ_MANY)
        program.ask("look(100)")
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        program.ask("seen.clear()")
        program.ask("look(100)")
    assert program.ask("torn") == []
    assert program.ask("len(seen)") == 1


def test_boards_of_two_nodes_are_separate(
    tmp_path: pathlib.Path, program: NvmlProgram, node: NodeSpec
) -> None:
    """Boards of two nodes are apart: each program sees its own."""
    with Board(tmp_path / "other", node) as other:
        other.set_gpu(0, numbered(7))
        assert program.ask("nvml.nvmlDeviceGetPowerUsage(gpus[0])") == 70_000


def test_closed_board_refuses_changes(board: Board) -> None:
    """A closed board refuses changes in words; closing twice is closing once."""
    board.close()
    board.close()
    with pytest.raises(DriverError, match="changing a board that is closed already"):
        board.set_gpu(0, numbered(1))
