"""What cards answer beyond their readings: limits, links, modes and counters, as pynvml marshals them."""

import pytest

from simulator.gpus import Board
from tests.simulator.gpus.nvml_program import NvmlProgram

pytestmark = pytest.mark.driver

NOT_SUPPORTED = 3
H100, MIG, T4 = "gpus[0]", "gpus[1]", "gpus[3]"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("nvmlDeviceGetPcieReplayCounter({})", 0),
        ("nvmlDeviceGetCurrPcieLinkGeneration({})", 5),
        ("nvmlDeviceGetMaxPcieLinkGeneration({})", 5),
        ("nvmlDeviceGetCurrPcieLinkWidth({})", 16),
        ("nvmlDeviceGetMaxPcieLinkWidth({})", 16),
        ("nvmlDeviceGetEncoderUtilization({})", [0, 1_000_000]),
        ("nvmlDeviceGetDecoderUtilization({})", [0, 1_000_000]),
        ("nvmlDeviceGetEccMode({})", [1, 1]),
        ("nvmlDeviceGetTemperatureThreshold({}, nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN)", 95),
        ("nvmlDeviceGetTemperatureThreshold({}, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)", 90),
        ("nvmlDeviceGetBAR1MemoryInfo({}).bar1Total", 128 << 30),
        ("nvmlDeviceGetBAR1MemoryInfo({}).bar1Used", 1 << 20),
        ("nvmlDeviceGetCurrentClocksEventReasons({})", 1),
        ("nvmlDeviceGetFieldValues({}, [nvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL])[0].value.ullVal", 0),
        ("nvmlDeviceGetFieldValues({}, [nvml.NVML_FI_DEV_REMAPPED_COR])[0].nvmlReturn", 0),
        ("nvmlDeviceGetFieldValues({}, [nvml.NVML_FI_DEV_RETIRED_SBE])[0].nvmlReturn", NOT_SUPPORTED),
    ],
)
def test_answers_of_idle_h100_are_healthy(program: NvmlProgram, call: str, expected: object) -> None:
    """Idle, without a fault in its life."""
    assert program.ask(f"nvml.{call.format(H100)}") == expected


def test_answers_per_card_follow_its_architecture(program: NvmlProgram) -> None:
    """A T4 retires pages where an H100 remaps rows; none of these cards has a fan."""
    field = f"nvml.nvmlDeviceGetFieldValues({T4}, [nvml.%s])[0].nvmlReturn"
    assert program.ask(field % "NVML_FI_DEV_RETIRED_SBE") == 0
    assert program.ask(field % "NVML_FI_DEV_REMAPPED_COR") == NOT_SUPPORTED
    assert program.failure(f"nvml.nvmlDeviceGetFanSpeed({T4})") == NOT_SUPPORTED


def test_engine_utilization_under_mig_is_unsupported(program: NvmlProgram) -> None:
    """NVML documents no encoder or decoder utilization for a GPU with MIG enabled."""
    assert program.failure(f"nvml.nvmlDeviceGetEncoderUtilization({MIG})") == NOT_SUPPORTED


def test_set_answer_then_removed_is_unsupported_again(board: Board, program: NvmlProgram) -> None:
    """Counters grow, errors come, a function ceases to be supported; other GPUs stay as they are."""
    board.set_answer(0, "nvmlDeviceGetPcieReplayCounter", 17)
    board.set_answer(0, "nvmlDeviceGetFieldValues", 2**40, selector=74)
    board.set_answer(0, "nvmlDeviceGetCurrentClocksEventReasons", 0x24)
    board.set_answer(0, "nvmlDeviceGetEccMode")
    assert program.ask(f"nvml.nvmlDeviceGetPcieReplayCounter({H100})") == 17
    assert program.ask(f"nvml.nvmlDeviceGetFieldValues({H100}, [74])[0].value.ullVal") == 2**40
    assert program.ask(f"nvml.nvmlDeviceGetCurrentClocksEventReasons({H100})") == 0x24
    assert program.failure(f"nvml.nvmlDeviceGetEccMode({H100})") == NOT_SUPPORTED
    assert program.ask(f"nvml.nvmlDeviceGetPcieReplayCounter({T4})") == 0


def test_nvlink_traffic_without_per_link_answer_is_spread_over_links(
    board: Board, program: NvmlProgram
) -> None:
    """What goes over all links is spread over them, unless the board says of one what went over it."""
    links = f"nvml.nvmlDeviceGetFieldValues({H100}, [(138, 2**32 - 1), (138, 0), (138, 17), (138, 18)])"
    board.set_answer(0, "nvmlDeviceGetFieldValues", 1800, selector=138)
    board.set_answer(0, "nvmlDeviceGetFieldValues", 7, selector=138 | 18 << 16)
    found = program.ask(links)
    assert [value["nvmlReturn"] for value in found] == [0, 0, 0, NOT_SUPPORTED]
    assert [value["value"]["ullVal"] for value in found[:3]] == [1800, 100, 7]
    assert program.ask(links.replace(H100, T4))[1]["nvmlReturn"] == NOT_SUPPORTED


def test_set_answer_with_unknown_function_or_gpu_is_refused(board: Board) -> None:
    """Unknown functions and GPUs, and more values than there is room for."""
    with pytest.raises(ValueError, match="has no function 'nvmlDeviceGetFrob'"):
        board.set_answer(0, "nvmlDeviceGetFrob", 1)
    with pytest.raises(ValueError, match="has no GPU 9"):
        board.set_answer(9, "nvmlDeviceGetPcieReplayCounter", 1)
    with pytest.raises(ValueError, match="an answer holds 4"):
        board.set_answer(0, "nvmlDeviceGetPcieReplayCounter", 1, 2, 3, 4, 5)
