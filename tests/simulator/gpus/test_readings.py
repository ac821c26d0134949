"""What the GPUs measure, through every function that tells it."""

import dataclasses

import pytest

from simulator.gpus import Board, Reading
from simulator.gpus.cards import CARDS
from tests.simulator.gpus.nvml_program import NvmlProgram

pytestmark = pytest.mark.driver

H100, A100, L40S, T4 = range(4)
NOT_SUPPORTED = 3
GIB = 1 << 30

BUSY = Reading(
    gpu_util_percent=93,
    memory_util_percent=41,
    memory_used_bytes=12 * GIB,
    temperature_c=61,
    memory_temperature_c=72,
    power_w=68.125,
    energy_j=5_000_000.5,
    sm_clock_mhz=1400,
    mem_clock_mhz=1200,
)


def test_new_board_shows_idle_cards(program: NvmlProgram) -> None:
    """A new board shows idle cards."""
    assert program.ask("nvml.nvmlDeviceGetUtilizationRates(gpus[0])") == {"gpu": 0, "memory": 0}
    assert program.ask("nvml.nvmlDeviceGetPowerUsage(gpus[0])") == 70_000
    assert program.ask("nvml.nvmlDeviceGetClockInfo(gpus[0], 1)") == 345
    assert program.ask("nvml.nvmlDeviceGetTotalEnergyConsumption(gpus[0])") == 0


def test_changed_reading_shows_at_next_call(board: Board, program: NvmlProgram) -> None:
    """A program sees each change at its next call, on that GPU alone."""
    for percent in (10, 90, 40):
        board.set_gpu(H100, dataclasses.replace(BUSY, gpu_util_percent=percent))
        assert program.ask("nvml.nvmlDeviceGetUtilizationRates(gpus[0])")["gpu"] == percent
    assert program.ask("nvml.nvmlDeviceGetUtilizationRates(gpus[2])")["gpu"] == 0


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("nvml.nvmlDeviceGetUtilizationRates({})", {"gpu": 93, "memory": 41}),
        ("nvml.nvmlDeviceGetTemperature({}, 0)", 61),
        ("nvml.nvmlDeviceGetTemperatureV({}, 0)", 61),
        ("nvml.nvmlDeviceGetPowerUsage({})", 68_125),
        ("nvml.nvmlDeviceGetTotalEnergyConsumption({})", 5_000_000_500),
        ("[nvml.nvmlDeviceGetClockInfo({}, kind) for kind in (0, 1, 2)]", [1400, 1400, 1200]),
    ],
)
@pytest.mark.parametrize("gpu", [H100, L40S, T4])
def test_readings_are_reported_in_nvml_units(
    board: Board, program: NvmlProgram, gpu: int, question: str, answer: object
) -> None:
    """Every measurement is the one on the board, in NVML's unit."""
    board.set_gpu(gpu, BUSY)
    assert program.ask(question.format(f"gpus[{gpu}]")) == answer


def test_memory_info_v2_separates_reserved_memory(board: Board, program: NvmlProgram) -> None:
    """The second version tells reserved from used memory, the first counts it as used; both add up."""
    board.set_gpu(H100, BUSY)
    card = CARDS["H100-SXM5-80GB"]
    second = program.ask("nvml.nvmlDeviceGetMemoryInfo(gpus[0], version=nvml.nvmlMemory_v2)")
    assert second["total"] == card.memory_bytes
    assert second["reserved"] == card.reserved_bytes
    assert second["used"] == 12 * GIB
    assert second["used"] + second["free"] + second["reserved"] == second["total"]
    assert second["version"] == 0x02000028
    first = program.ask("nvml.nvmlDeviceGetMemoryInfo(gpus[0])")
    assert first == {
        "total": second["total"],
        "free": second["free"],
        "used": second["used"] + second["reserved"],
    }


def test_unknown_structure_version_is_refused(program: NvmlProgram) -> None:
    """A structure of a version that the driver does not know is refused."""
    assert program.failure("nvml.nvmlDeviceGetMemoryInfo(gpus[0], version=0x03000028)") == 25
    program.ask("temperature = nvml.c_nvmlTemperature_v1_t()")
    program.ask("temperature.version = 0x0200000C")
    ask = "nvml.nvmlLib.nvmlDeviceGetTemperatureV(gpus[0], ctypes.byref(temperature))"
    assert program.ask(ask) == 25
    program.ask("support = nvml.c_nvmlGpmSupport_t()")
    assert program.ask("nvml.nvmlLib.nvmlGpmQueryDeviceSupport(gpus[0], ctypes.byref(support))") == 25


@pytest.mark.parametrize(
    ("gpu", "supported"),
    [
        pytest.param(H100, {82, 83, 138, 185, 186}, id="hopper"),
        pytest.param(A100, {82, 83, 138, 186}, id="ga100-has-no-average-power"),
        pytest.param(L40S, {83, 185, 186}, id="gddr-has-no-thermometer"),
        pytest.param(T4, {83, 186}, id="turing"),
    ],
)
def test_field_values_carry_result_type_and_time_each(
    board: Board, program: NvmlProgram, gpu: int, supported: set[int]
) -> None:
    """Each field carries its own result, value type and time; what a card lacks spoils no other."""
    board.set_gpu(gpu, BUSY)
    fields = program.ask(
        f"nvml.nvmlDeviceGetFieldValues(gpus[{gpu}], [82, 83, 94, 185, 186, (138, 0xFFFFFFFF)])"
    )
    results = {field["fieldId"]: field["nvmlReturn"] for field in fields}
    assert {field for field, result in results.items() if result == 0} == supported
    assert set(results.values()) == {0, NOT_SUPPORTED}
    known = {
        82: (1, "uiVal", 72),
        83: (3, "ullVal", 5_000_000_500),
        138: (3, "ullVal", 0),
        185: (1, "uiVal", 68_125),
    }
    for field in fields:
        if field["nvmlReturn"] == 0:
            value_type, member, value = known.get(field["fieldId"], known[185])
            assert (field["valueType"], field["value"][member]) == (value_type, value)
            assert field["timestamp"] > 1_600_000_000_000_000


def test_power_limits_match_card(program: NvmlProgram) -> None:
    """Limits are the card's, in milliwatts, also as fields."""
    assert program.ask("nvml.nvmlDeviceGetPowerManagementLimit(gpus[0])") == 700_000
    assert program.ask("nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpus[0])") == 700_000
    assert program.ask("nvml.nvmlDeviceGetEnforcedPowerLimit(gpus[0])") == 700_000
    assert program.ask("nvml.nvmlDeviceGetPowerManagementLimitConstraints(gpus[0])") == [200_000, 700_000]
    fields = program.ask("nvml.nvmlDeviceGetFieldValues(gpus[0], [187, 188, 189, 190])")
    assert [field["value"]["uiVal"] for field in fields] == [200_000, 700_000, 700_000, 700_000]


def test_power_of_scope_other_than_gpu_is_unsupported(program: NvmlProgram) -> None:
    """Power is the whole card's: no other scope is supported."""
    fields = program.ask("nvml.nvmlDeviceGetFieldValues(gpus[0], [(186, 0), (186, 1)])")
    assert [field["nvmlReturn"] for field in fields] == [0, NOT_SUPPORTED]


def test_clock_limits_and_performance_states_match_card(board: Board, program: NvmlProgram) -> None:
    """Highest clocks are the card's, the video engines' goes with the SMs'; GDDR rests in P8, HBM stays in P0."""
    assert program.ask("[nvml.nvmlDeviceGetMaxClockInfo(gpus[0], kind) for kind in range(4)]") == [
        1980,
        1980,
        2619,
        1545,
    ]
    assert program.ask("nvml.nvmlDeviceGetPerformanceState(gpus[0])") == 0
    assert program.ask("nvml.nvmlDeviceGetPerformanceState(gpus[2])") == 8
    board.set_gpu(L40S, dataclasses.replace(BUSY, mem_clock_mhz=9001))
    assert program.ask("nvml.nvmlDeviceGetPerformanceState(gpus[2])") == 0
    video = program.ask("[nvml.nvmlDeviceGetClockInfo(gpus[0], kind) for kind in (1, 3)]")
    assert video == [345, 345 * 1545 // 1980]
    board.set_answer(0, "nvmlDeviceGetMaxClockInfo", selector=3)
    assert program.failure("nvml.nvmlDeviceGetClockInfo(gpus[0], 3)") == NOT_SUPPORTED
    assert program.failure("nvml.nvmlDeviceGetClockInfo(gpus[0], 4)") == 2
    assert program.failure("nvml.nvmlDeviceGetTemperature(gpus[0], 7)") == 2
    assert program.failure("nvml.nvmlDeviceGetTemperatureV(gpus[0], 7)") == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gpu_util_percent": 101}, "gpu_util_percent is 101, not within 0 and 100"),
        ({"memory_used_bytes": 80 * GIB}, "memory_used_bytes is 85899345920"),
        ({"power_w": float("nan")}, "power_w is nan"),
        ({"energy_j": float("inf")}, "energy_j is inf"),
        ({"sm_clock_mhz": 1981}, "sm_clock_mhz is 1981, not within 0 and 1980"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_impossible_reading_is_refused(
    board: Board, program: NvmlProgram, change: dict[str, float], words: str
) -> None:
    """What a card could never measure is refused in words, and nothing changes."""
    with pytest.raises(ValueError, match="node node-a, GPU 0: ") as caught:
        board.set_gpu(H100, dataclasses.replace(BUSY, **change))  # type: ignore[arg-type]
    assert words in str(caught.value)
    assert program.ask("nvml.nvmlDeviceGetPowerUsage(gpus[0])") == 70_000


def test_unknown_gpu_error_names_valid_indexes(board: Board) -> None:
    """A GPU that the node does not have is named with what it has."""
    with pytest.raises(ValueError, match=r"node node-a has no GPU 4; it has 4"):
        board.set_gpu(4, BUSY)
