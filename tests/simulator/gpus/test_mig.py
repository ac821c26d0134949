"""GPUs cut into MIG instances, and cut anew while programs look on."""

import pathlib

import pytest

from simulator.gpus import Board
from simulator.spec import GpuSpec, NodeSpec
from tests.simulator.gpus.nvml_program import NvmlProgram

pytestmark = pytest.mark.driver

H100, A100, L40S = range(3)
NOT_SUPPORTED, NOT_FOUND, INVALID_ARGUMENT = 3, 6, 2
MIB = 1 << 20


def test_mig_mode_is_on_off_or_unsupported(program: NvmlProgram) -> None:
    """MIG is on, off, or unknown to the card."""
    assert program.ask("nvml.nvmlDeviceGetMigMode(gpus[1])") == [1, 1]
    assert program.ask("nvml.nvmlDeviceGetMigMode(gpus[0])") == [0, 0]
    assert program.failure("nvml.nvmlDeviceGetMigMode(gpus[2])") == NOT_SUPPORTED
    assert program.ask("[nvml.nvmlDeviceGetMaxMigDeviceCount(h) for h in gpus]") == [0, 7, 0, 0]


def test_mig_instances_are_listed_in_spec_order(program: NvmlProgram, node: NodeSpec) -> None:
    """Instances come in the spec's order with the driver's ids; the rest of the indexes are not found."""
    every = "for h in migs"
    card = "NVIDIA A100-SXM4-40GB MIG"
    names = [f"{card} 3g.20gb", f"{card} 2g.10gb", f"{card} 1g.5gb"]
    assert program.ask(f"[nvml.nvmlDeviceGetName(h) {every}]") == names
    assert program.ask(f"[nvml.nvmlDeviceGetUUID(h) {every}]") == [node.mig_uuid(A100, i) for i in range(3)]
    assert program.ask(f"[nvml.nvmlDeviceGetIndex(h) {every}]") == [0, 1, 2]
    assert program.ask(f"[nvml.nvmlDeviceGetGpuInstanceId(h) {every}]") == [1, 5, 13]
    assert program.ask(f"[nvml.nvmlDeviceGetComputeInstanceId(h) {every}]") == [0, 0, 0]
    for index in range(3, 8):
        assert program.failure(f"nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpus[1], {index})") == NOT_FOUND
    assert program.failure("nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpus[0], 0)") == NOT_FOUND
    assert program.failure("nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpus[2], 0)") == NOT_SUPPORTED


def test_mig_handle_knows_its_gpu(program: NvmlProgram) -> None:
    """Handles say whether they are instances, and instances know their GPU."""
    assert program.ask("[nvml.nvmlDeviceIsMigDeviceHandle(h) for h in (gpus[1], migs[0])]") == [0, 1]
    parent = "nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(migs[2])"
    assert program.ask(f"nvml.nvmlDeviceGetIndex({parent})") == A100
    assert program.failure("nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gpus[1])") == NOT_SUPPORTED


def test_mig_attributes_match_profile(program: NvmlProgram) -> None:
    """An instance has the engines, slices and memory of its profile; a GPU has no such attributes."""
    assert program.ask("nvml.nvmlDeviceGetAttributes(migs[0])") == {
        "multiprocessorCount": 42,
        "sharedCopyEngineCount": 3,
        "sharedDecoderCount": 2,
        "sharedEncoderCount": 0,
        "sharedJpegCount": 0,
        "sharedOfaCount": 0,
        "gpuInstanceSliceCount": 3,
        "computeInstanceSliceCount": 3,
        "memorySizeMB": 20096,
    }
    assert program.failure("nvml.nvmlDeviceGetAttributes(gpus[1])") == NOT_SUPPORTED


def test_mig_memory_is_per_instance(board: Board, program: NvmlProgram) -> None:
    """An instance's memory is its own, of both versions of the call."""
    board.set_instance(A100, 1, memory_used_bytes=4000 * MIB)
    memory = program.ask("nvml.nvmlDeviceGetMemoryInfo(migs[1], version=nvml.nvmlMemory_v2)")
    assert memory["total"] == 9984 * MIB
    assert (memory["used"], memory["reserved"]) == (4000 * MIB, 0)
    assert memory["free"] == 5984 * MIB
    assert program.ask("nvml.nvmlDeviceGetMemoryInfo(migs[0])")["used"] == 0
    assert program.ask("nvml.nvmlDeviceGetMemoryInfo(gpus[1], version=nvml.nvmlMemory_v2)")["used"] == 0


@pytest.mark.parametrize(
    "question",
    [
        "nvml.nvmlDeviceGetUtilizationRates({})",
        "nvml.nvmlDeviceGetTemperature({}, 0)",
        "nvml.nvmlDeviceGetTemperatureV({}, 0)",
        "nvml.nvmlDeviceGetPowerUsage({})",
        "nvml.nvmlDeviceGetTotalEnergyConsumption({})",
        "nvml.nvmlDeviceGetEnforcedPowerLimit({})",
        "nvml.nvmlDeviceGetClockInfo({}, 1)",
        "nvml.nvmlDeviceGetPerformanceState({})",
        "nvml.nvmlDeviceGetMinorNumber({})",
        "nvml.nvmlDeviceGetPciInfo({})",
        "nvml.nvmlDeviceGetMigMode({})",
    ],
)
def test_card_level_queries_on_instance_are_unsupported(program: NvmlProgram, question: str) -> None:
    """Power, temperature, clocks and places are the card's, not an instance's."""
    assert program.failure(question.format("migs[0]")) == NOT_SUPPORTED


def test_field_values_of_instance_are_unsupported(program: NvmlProgram) -> None:
    """Fields of an instance are answered one by one: none is supported."""
    fields = program.ask("nvml.nvmlDeviceGetFieldValues(migs[0], [82, 83, 186])")
    assert [field["nvmlReturn"] for field in fields] == [NOT_SUPPORTED] * 3


def test_gpu_with_mig_has_no_utilization(program: NvmlProgram) -> None:
    """A GPU with MIG has no utilization, but its power and temperature."""
    assert program.failure("nvml.nvmlDeviceGetUtilizationRates(gpus[1])") == NOT_SUPPORTED
    assert program.ask("nvml.nvmlDeviceGetPowerUsage(gpus[1])") == 50_000
    assert program.ask("nvml.nvmlDeviceGetTemperature(gpus[1], 0)") == 30


def test_new_mig_layout_voids_old_handles(board: Board, program: NvmlProgram) -> None:
    """A new cut shows at once: new instances with empty memory, the handles of the old ones void."""
    board.set_instance(A100, 0, memory_used_bytes=MIB)
    board.set_mig(A100, ("7g.40gb",))
    assert program.failure("nvml.nvmlDeviceGetName(migs[0])") == INVALID_ARGUMENT
    assert program.failure("nvml.nvmlDeviceGetMemoryInfo(migs[2])") == INVALID_ARGUMENT
    program.ask("whole = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpus[1], 0)")
    assert program.ask("nvml.nvmlDeviceGetName(whole)") == "NVIDIA A100-SXM4-40GB MIG 7g.40gb"
    assert program.ask("nvml.nvmlDeviceGetGpuInstanceId(whole)") == 0
    assert program.ask("nvml.nvmlDeviceGetMemoryInfo(whole)")["used"] == 0
    assert program.failure("nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpus[1], 1)") == NOT_FOUND


def test_mig_switched_off_restores_gpu_utilization(board: Board, program: NvmlProgram) -> None:
    """MIG goes off and on; with it goes and comes the GPU's own utilization."""
    board.set_mig(A100, ())
    assert program.ask("nvml.nvmlDeviceGetMigMode(gpus[1])") == [0, 0]
    assert program.ask("nvml.nvmlDeviceGetUtilizationRates(gpus[1])") == {"gpu": 0, "memory": 0}
    board.set_mig(H100, ("1g.10gb",) * 7)
    assert program.failure("nvml.nvmlDeviceGetUtilizationRates(gpus[0])") == NOT_SUPPORTED
    names = program.ask(
        "[nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpus[0], i)) for i in range(7)]"
    )
    assert names == ["NVIDIA H100 80GB HBM3 MIG 1g.10gb"] * 7


@pytest.mark.parametrize(
    ("profiles", "ids"),
    [
        pytest.param(("1g.5gb",) * 7, [11, 12, 13, 14, 7, 8, 9], id="seven"),
        pytest.param(("3g.20gb", "3g.20gb"), [1, 2], id="halves"),
        pytest.param(("1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"), [13, 14, 5, 1], id="balanced"),
        pytest.param(("2g.10gb", "2g.10gb", "2g.10gb", "1g.5gb"), [5, 6, 3, 9], id="pairs"),
        pytest.param(("4g.20gb", "3g.20gb"), [2, 1], id="four-and-three"),
        pytest.param(("1g.10gb",) * 4, [5, 6, 3, 4], id="double-memory"),
    ],
)
def test_mig_placement_matches_real_driver(
    board: Board, program: NvmlProgram, profiles: tuple[str, ...], ids: list[int]
) -> None:
    """Whatever fits a real card fits here, and is numbered by its place."""
    board.set_mig(A100, profiles)
    seen = program.ask(
        "[nvml.nvmlDeviceGetGpuInstanceId(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpus[1], i)) "
        f"for i in range({len(profiles)})]"
    )
    assert seen == ids


@pytest.mark.parametrize(
    ("gpu", "profiles", "words"),
    [
        pytest.param(A100, ("1g.5gb",) * 8, "take more than the 7 compute slices", id="compute"),
        pytest.param(
            A100, ("3g.20gb", "3g.20gb", "1g.5gb"), "do not fit into its 8 memory slices", id="memory"
        ),
        pytest.param(A100, ("1g.10gb",) * 5, "do not fit into its 8 memory slices", id="double-memory"),
        pytest.param(A100, ("2g.20gb",), "no MIG profile '2g.20gb'; it has: 1g.5gb, 1g.10gb", id="unknown"),
        pytest.param(L40S, ("1g.5gb",), "it has: none, the card knows no MIG", id="no-mig"),
    ],
)
def test_mig_layout_that_does_not_fit_is_refused(
    board: Board, program: NvmlProgram, gpu: int, profiles: tuple[str, ...], words: str
) -> None:
    """What does not fit on the card is refused in words, and nothing changes."""
    with pytest.raises(ValueError, match=words):
        board.set_mig(gpu, profiles)
    assert program.ask("nvml.nvmlDeviceGetName(migs[0])").endswith("3g.20gb")


def test_missing_instance_is_refused(board: Board) -> None:
    """An instance that a GPU does not have, or too much memory for one, is refused in words."""
    with pytest.raises(ValueError, match="GPU 1 has no MIG instance 3; it has 3"):
        board.set_instance(A100, 3, memory_used_bytes=0)
    with pytest.raises(ValueError, match=r"MIG instance 2 \(1g.5gb\): memory_used_bytes is"):
        board.set_instance(A100, 2, memory_used_bytes=5000 * MIB)


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ((GpuSpec("V100"),), "node bad, GPU 0: unknown card 'V100'; known: H100-SXM5-80GB"),
        ((GpuSpec("L4"),) * 17, "node bad: 17 GPUs; a board holds 16"),
        (
            (GpuSpec("L4"), GpuSpec("A100-SXM4-80GB", ("9g.90gb",))),
            "node bad, GPU 1: .* no MIG profile '9g.90gb'",
        ),
    ],
    ids=["card", "gpus", "mig"],
)
def test_impossible_node_is_refused_without_file(
    path: pathlib.Path, gpus: tuple[GpuSpec, ...], words: str
) -> None:
    """A node that no board can show is refused in words, without leaving a file."""
    with pytest.raises(ValueError, match=words):
        Board(path, NodeSpec("bad", gpus))
    assert not path.exists()
