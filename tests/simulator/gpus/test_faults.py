"""A driver that fails on demand."""

import concurrent.futures
from collections.abc import Callable

import pytest

from simulator.gpus import Board
from simulator.spec import NodeSpec
from tests.simulator.gpus.nvml_program import ANSWER_TIMEOUT_S, NvmlCallError, NvmlProgram

pytestmark = pytest.mark.driver

POWER = "nvml.nvmlDeviceGetPowerUsage(gpus[{}])"
TEMPERATURE = "nvml.nvmlDeviceGetTemperature(gpus[{}], 0)"
GPU_IS_LOST, NOT_SUPPORTED, UNKNOWN = 15, 3, 999


def test_fault_on_one_gpu_affects_that_function_and_gpu_only(board: Board, program: NvmlProgram) -> None:
    """A fault costs that function on that GPU, nothing else."""
    board.fault("nvmlDeviceGetPowerUsage", gpu=2, code=NOT_SUPPORTED)
    assert program.failure(POWER.format(2)) == NOT_SUPPORTED
    assert program.failure(POWER.format(0)) == 0
    assert program.failure(TEMPERATURE.format(2)) == 0
    board.clear_faults()
    assert program.ask(POWER.format(2)) == 34_000


def test_fault_without_gpu_affects_every_gpu(board: Board, program: NvmlProgram) -> None:
    """Without a GPU a fault costs the function on each of them."""
    board.fault("nvmlDeviceGetPowerUsage", code=UNKNOWN)
    assert {program.failure(POWER.format(i)) for i in range(4)} == {UNKNOWN}


def test_lost_gpu_fails_all_its_calls_and_no_others(
    board: Board, program: NvmlProgram, node: NodeSpec
) -> None:
    """A GPU that fell off the bus fails every call about it, its instances too; the node's others go on."""
    board.fault("*", gpu=1, code=GPU_IS_LOST)
    for question in (
        POWER.format(1),
        TEMPERATURE.format(1),
        "nvml.nvmlDeviceGetHandleByIndex(1)",
        f"nvml.nvmlDeviceGetHandleByUUID({node.gpu_uuid(1)!r})",
        f"nvml.nvmlDeviceGetHandleByUUID({node.mig_uuid(1, 0)!r})",
        "nvml.nvmlDeviceGetMemoryInfo(migs[0])",
        "nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpus[1], 0)",
    ):
        assert program.failure(question) == GPU_IS_LOST, question
    assert program.failure(POWER.format(0)) == 0
    assert program.ask("nvml.nvmlDeviceGetCount()") == 4


def test_fault_on_node_function_leaves_gpu_calls_alone(board: Board, program: NvmlProgram) -> None:
    """Functions about no GPU fail by name; a fault of every GPU leaves them alone."""
    board.fault("*", code=UNKNOWN)
    assert program.failure("nvml.nvmlSystemGetDriverVersion()") == 0
    board.fault("nvmlDeviceGetCount_v2", code=UNKNOWN)
    assert program.failure("nvml.nvmlDeviceGetCount()") == UNKNOWN


def test_fault_on_init_fails_until_cleared(board: Board, start_program: Callable[[], NvmlProgram]) -> None:
    """Initialisation fails as with a driver that was updated under way, and then works."""
    board.fault("nvmlInitWithFlags", code=18)
    program = start_program()
    assert program.failure("nvml.nvmlInit()") == 18
    assert program.failure("nvml.nvmlDeviceGetCount()") == 1
    board.clear_faults()
    program.ask("nvml.nvmlInit()")
    board.fault("nvmlShutdown", code=UNKNOWN)
    assert program.failure("nvml.nvmlShutdown()") == UNKNOWN
    assert program.ask("nvml.nvmlDeviceGetCount()") == 4


def test_second_fault_replaces_first_of_same_function(board: Board, program: NvmlProgram) -> None:
    """A second fault of the same function and GPU takes the place of the first; others stay."""
    board.fault("nvmlDeviceGetPowerUsage", gpu=0, code=UNKNOWN)
    board.fault("nvmlDeviceGetPowerUsage", gpu=1, code=UNKNOWN)
    board.fault("nvmlDeviceGetPowerUsage", gpu=0, code=NOT_SUPPORTED)
    assert program.failure(POWER.format(0)) == NOT_SUPPORTED
    assert program.failure(POWER.format(1)) == UNKNOWN


def test_hanging_call_blocks_its_thread_until_cleared(board: Board, program: NvmlProgram) -> None:
    """A hanging call holds its thread alone, and goes on once cleared."""
    board.fault("nvmlDeviceGetPowerUsage", gpu=0, hang=True)
    held = program.start(POWER.format(0))
    for _ in range(20):
        assert program.ask(POWER.format(1)) == 50_000
        assert program.ask(TEMPERATURE.format(0)) == 30
    assert not held.done()
    board.clear_faults()
    assert held.result(ANSWER_TIMEOUT_S) == 70_000


def test_hanging_call_with_code_ends_with_that_error(board: Board, program: NvmlProgram) -> None:
    """A call may end its hanging with an error, as one does whose firmware timed out."""
    board.fault("*", gpu=0, code=GPU_IS_LOST, hang=True)
    held = program.start(POWER.format(0))
    with pytest.raises(concurrent.futures.TimeoutError):
        held.result(0.2)
    board.clear_faults()
    with pytest.raises(NvmlCallError, match="15: GPU is lost"):
        held.result(ANSWER_TIMEOUT_S)


def test_shutdown_during_hanging_call_succeeds(board: Board, program: NvmlProgram) -> None:
    """NVML can be shut down and initialised again while a call hangs; the call then ends in good order."""
    board.fault("nvmlDeviceGetPowerUsage", gpu=0, hang=True)
    held = program.start(POWER.format(0))
    with pytest.raises(concurrent.futures.TimeoutError):
        held.result(0.2)
    program.ask("nvml.nvmlShutdown()")
    program.ask("nvml.nvmlInit()")
    assert program.ask("nvml.nvmlDeviceGetCount()") == 4
    board.clear_faults()
    assert held.result(ANSWER_TIMEOUT_S) == 70_000


def test_closed_board_releases_hanging_calls(board: Board, program: NvmlProgram) -> None:
    """A closed board holds nobody, and still shows its last values."""
    board.fault("nvmlDeviceGetPowerUsage", gpu=0, hang=True)
    held = program.start(POWER.format(0))
    board.close()
    assert held.result(ANSWER_TIMEOUT_S) == 70_000
    assert program.ask(TEMPERATURE.format(0)) == 30


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        ("nvmlDeviceGetPower", {"code": 3}, "the simulated driver has no function 'nvmlDeviceGetPower'"),
        ("simulator_publish", {"code": 3}, "the simulated driver has no function 'simulator_publish'"),
        ("nvmlDeviceGetPowerUsage", {}, "needs a code to return, or hang=True"),
        ("*", {"gpu": 9, "code": 15}, "node node-a has no GPU 9; it has 4"),
    ],
    ids=["misspelt", "not-nvml", "no-effect", "no-gpu"],
)
def test_impossible_fault_is_refused(
    board: Board, function: str, options: dict[str, int], words: str
) -> None:
    """A fault that could never show is refused in words."""
    with pytest.raises(ValueError, match=words):
        board.fault(function, **options)  # type: ignore[arg-type]


def test_faults_beyond_capacity_are_refused(board: Board) -> None:
    """A board holds 32 faults at once, and says so; replacing one needs no room."""
    functions = ["PowerUsage", "Temperature", "Name", "UUID", "Index", "Serial", "Brand", "ClockInfo"]
    for function in functions:
        for gpu in range(4):
            board.fault(f"nvmlDeviceGet{function}", gpu=gpu, code=3)
    board.fault("nvmlDeviceGetName", gpu=0, code=4)
    with pytest.raises(ValueError, match="node node-a: a board holds 32 faults at once"):
        board.fault("nvmlDeviceGetMemoryInfo", gpu=0, code=3)
