"""XID errors as NVML's events, and how GPUs are connected."""

import pytest

from simulator.gpus import Board
from tests.simulator.gpus.nvml_program import NvmlProgram

pytestmark = pytest.mark.driver

NOT_SUPPORTED, NOT_FOUND, TIMEOUT = 3, 6, 10
XID, NOWHERE = 8, 2**32 - 1


@pytest.fixture
def waiting(program: NvmlProgram) -> NvmlProgram:
    """A program with an event set, in which GPU 0 and GPU 1 are registered."""
    program.ask("events = nvml.nvmlEventSetCreate()")
    for gpu in (0, 1):
        program.ask(f"nvml.nvmlDeviceRegisterEvents(gpus[{gpu}], nvml.nvmlEventTypeXidCriticalError, events)")
    return program


def _next(program: NvmlProgram, timeout_ms: int = 5000) -> list[int]:
    program.ask(f"data = nvml.nvmlEventSetWait_v2(events, {timeout_ms})")
    found: list[int] = program.ask(
        "[nvml.nvmlDeviceGetIndex(data.device), data.eventType, data.eventData, data.gpuInstanceId]"
    )
    return found


def test_xid_error_is_reported_once_in_order(board: Board, waiting: NvmlProgram) -> None:
    """Of the GPU that it happened on, in the order in which they happen, each once."""
    board.raise_xid(0, 79)
    board.raise_xid(1, 31, instance=1)
    assert _next(waiting) == [0, XID, 79, NOWHERE]
    gpu_instance = waiting.ask("nvml.nvmlDeviceGetGpuInstanceId(migs[1])")
    assert _next(waiting) == [1, XID, 31, gpu_instance]
    assert waiting.failure("nvml.nvmlEventSetWait_v2(events, 20)") == TIMEOUT


def test_event_wait_returns_when_xid_occurs(board: Board, waiting: NvmlProgram) -> None:
    """While the call stands."""
    answer = waiting.start("nvml.nvmlEventSetWait_v2(events, 20000).eventData")
    board.raise_xid(0, 48)
    assert answer.result(20) == 48


def test_event_set_ignores_unregistered_gpus_and_earlier_errors(board: Board, waiting: NvmlProgram) -> None:
    """Neither what happened before the set, nor what happens to other GPUs."""
    board.raise_xid(2, 13)
    assert waiting.failure("nvml.nvmlEventSetWait_v2(events, 20)") == TIMEOUT
    board.raise_xid(0, 13)
    waiting.ask("nvml.nvmlEventSetFree(events)")
    waiting.ask("events = nvml.nvmlEventSetCreate()")
    waiting.ask("nvml.nvmlDeviceRegisterEvents(gpus[0], 8, events)")
    assert waiting.failure("nvml.nvmlEventSetWait_v2(events, 20)") == TIMEOUT


def test_event_log_overflow_drops_oldest_events(board: Board, waiting: NvmlProgram) -> None:
    """The log is finite, as the driver's is."""
    for xid in range(1, 101):
        board.raise_xid(0, xid)
    assert _next(waiting)[2] == 100 - 64 + 1


def test_event_types_other_than_xid_are_unsupported(program: NvmlProgram) -> None:
    """Other events are not simulated, and are not claimed."""
    assert program.ask("nvml.nvmlDeviceGetSupportedEventTypes(gpus[0])") == XID
    program.ask("events = nvml.nvmlEventSetCreate()")
    assert program.failure("nvml.nvmlDeviceRegisterEvents(gpus[0], 16, events)") == NOT_SUPPORTED
    assert program.failure("nvml.nvmlDeviceGetSupportedEventTypes(migs[0])") == NOT_SUPPORTED


def test_topology_of_gpus_follows_socket_and_nvlink(program: NvmlProgram) -> None:
    """Half of the GPUs on each socket; NVLink between cards that have it, and none elsewhere."""
    ancestor = "nvml.nvmlDeviceGetTopologyCommonAncestor(gpus[{}], gpus[{}])"
    assert program.ask(ancestor.format(0, 1)) == 40
    assert program.ask(ancestor.format(0, 2)) == 50
    assert program.ask(ancestor.format(2, 2)) == 0
    status = "nvml.nvmlDeviceGetP2PStatus(gpus[{}], gpus[{}], nvml.NVML_P2P_CAPS_INDEX_NVLINK)"
    assert program.ask(status.format(0, 1)) == 0
    assert program.ask(status.format(0, 2)) != 0
    assert program.ask("nvml.nvmlDeviceGetNvLinkState(gpus[0], 17)") == 1
    assert program.failure("nvml.nvmlDeviceGetNvLinkState(gpus[0], 18)") == NOT_SUPPORTED
    assert program.failure("nvml.nvmlDeviceGetNvLinkState(gpus[3], 0)") == NOT_SUPPORTED
    affinity = "list(nvml.nvmlDeviceGetMemoryAffinity(gpus[{}], 1, nvml.NVML_AFFINITY_SCOPE_NODE))"
    assert [program.ask(affinity.format(gpu)) for gpu in range(4)] == [[1], [1], [2], [2]]


def test_mig_instance_reports_profile_and_placement(program: NvmlProgram) -> None:
    """Profile and placement, as `nvidia-smi mig -lgi` shows them."""
    program.ask("ids = [nvml.nvmlDeviceGetGpuInstanceId(mig) for mig in migs]")
    program.ask(
        "found = [nvml.nvmlGpuInstanceGetInfo(nvml.nvmlDeviceGetGpuInstanceById(gpus[1], i)) for i in ids]"
    )
    assert program.ask(
        "[[one.id, one.profileId, one.placement.start, one.placement.size] for one in found]"
    ) == [
        [1, 9, 4, 4],
        [5, 14, 0, 2],
        [13, 19, 2, 1],
    ]
    assert program.failure("nvml.nvmlDeviceGetGpuInstanceById(gpus[1], 99)") == NOT_FOUND
    assert program.failure("nvml.nvmlDeviceGetGpuInstanceById(gpus[0], 1)") == NOT_FOUND


def test_license_state_without_vgpu_is_not_required(board: Board, program: NvmlProgram) -> None:
    """Unless the board says that it is a vGPU."""
    asked = "nvml.nvmlDeviceGetGridLicensableFeatures_v4(gpus[0])"
    assert program.ask(f"{asked}.isGridLicenseSupported") == 0
    board.set_answer(0, "nvmlDeviceGetGridLicensableFeatures_v4", 1, 1)
    assert program.ask(f"{asked}.gridLicensableFeatures[0].featureState") == 1
