"""Which processes hold a GPU."""

import pytest

from simulator.gpus import Board, Process, ProcessKind
from tests.simulator.gpus.nvml_program import NvmlProgram

pytestmark = pytest.mark.driver

H100, A100 = range(2)
NO_INSTANCE = 0xFFFFFFFF
MIB = 1 << 20


@pytest.mark.parametrize("kind", ["Compute", "Graphics", "MPSCompute"])
def test_process_lists_of_unused_gpu_are_empty(program: NvmlProgram, kind: str) -> None:
    """A GPU that nobody holds has empty lists, and so has an instance."""
    assert program.ask(f"nvml.nvmlDeviceGet{kind}RunningProcesses(gpus[0])") == []
    assert program.ask(f"nvml.nvmlDeviceGet{kind}RunningProcesses(migs[0])") == []


def test_process_list_per_kind_has_its_own_function(board: Board, program: NvmlProgram) -> None:
    """Each kind of process is listed by its own function, with its memory and no instance."""
    processes = [
        Process(4711, 500 * MIB),
        Process(4712, 10 * MIB, ProcessKind.GRAPHICS),
        Process(4713, 20 * MIB, ProcessKind.MPS),
        Process(4714, 30 * MIB),
    ]
    board.set_processes(H100, processes)
    compute = program.ask("nvml.nvmlDeviceGetComputeRunningProcesses(gpus[0])")
    assert [(p["pid"], p["usedGpuMemory"]) for p in compute] == [(4711, 500 * MIB), (4714, 30 * MIB)]
    assert {(p["gpuInstanceId"], p["computeInstanceId"]) for p in compute} == {(NO_INSTANCE, NO_INSTANCE)}
    graphics = program.ask("nvml.nvmlDeviceGetGraphicsRunningProcesses(gpus[0])")
    assert [p["pid"] for p in graphics] == [4712]
    mps = program.ask("nvml.nvmlDeviceGetMPSComputeRunningProcesses(gpus[0])")
    assert [p["pid"] for p in mps] == [4713]


def test_process_list_of_instance_has_its_own_processes(board: Board, program: NvmlProgram) -> None:
    """An instance lists its own processes, its GPU all of them with the instance's ids."""
    board.set_processes(A100, [Process(1, MIB, instance=0), Process(2, MIB, instance=2)])
    assert [p["pid"] for p in program.ask("nvml.nvmlDeviceGetComputeRunningProcesses(migs[2])")] == [2]
    assert program.ask("nvml.nvmlDeviceGetComputeRunningProcesses(migs[1])") == []
    every = program.ask("nvml.nvmlDeviceGetComputeRunningProcesses(gpus[1])")
    assert [(p["pid"], p["gpuInstanceId"], p["computeInstanceId"]) for p in every] == [(1, 1, 0), (2, 13, 0)]


def test_process_list_with_small_buffer_returns_needed_size(board: Board, program: NvmlProgram) -> None:
    """Who asks with too little room learns how much is needed."""
    board.set_processes(H100, [Process(pid, MIB) for pid in range(1, 4)])
    program.ask("count = ctypes.c_uint(2)")
    program.ask("infos = (nvml.c_nvmlProcessInfo_v3_t * 2)()")
    ask = "nvml.nvmlLib.nvmlDeviceGetComputeRunningProcesses_v3(gpus[0], ctypes.byref(count), infos)"
    assert program.ask(ask) == 7
    assert program.ask("count") == 3
    assert program.ask("nvml.nvmlLib.nvmlDeviceGetComputeRunningProcesses_v3(gpus[0], None, None)") == 2
    assert program.ask(ask.replace("infos", "None")) == 2


def test_processes_beyond_capacity_are_refused(board: Board, program: NvmlProgram) -> None:
    """A board holds 512 processes per GPU, and refuses more in words."""
    board.set_processes(H100, [Process(pid, MIB) for pid in range(1, 513)])
    assert len(program.ask("nvml.nvmlDeviceGetComputeRunningProcesses(gpus[0])")) == 512
    with pytest.raises(ValueError, match="GPU 0: 513 processes; a board holds 512"):
        board.set_processes(H100, [Process(pid, MIB) for pid in range(1, 514)])


def test_new_mig_layout_ends_processes(board: Board, program: NvmlProgram) -> None:
    """No process survives a new cut; none can be on an instance that is not there."""
    board.set_processes(A100, [Process(1, MIB, instance=0)])
    board.set_mig(A100, ("7g.40gb",))
    assert program.ask("nvml.nvmlDeviceGetComputeRunningProcesses(gpus[1])") == []
    with pytest.raises(ValueError, match="GPU 1 has no MIG instance 1; it has 1"):
        board.set_processes(A100, [Process(1, MIB, instance=1)])
