"""Who the GPUs are: handles, names, buses, versions."""

import pathlib
from collections.abc import Callable

import pytest

from simulator.gpus import Board, environment
from simulator.spec import NodeSpec
from tests.simulator.gpus.nvml_program import NvmlProgram

pytestmark = pytest.mark.driver

H100, A100, L40S, T4 = range(4)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("nvml.nvmlSystemGetDriverVersion()", "570.133.20"),
        ("nvml.nvmlSystemGetNVMLVersion()", "12.570.133.20"),
        ("nvml.nvmlSystemGetCudaDriverVersion()", 12080),
        ("nvml.nvmlSystemGetCudaDriverVersion_v2()", 12080),
        ("nvml.nvmlDeviceGetCount()", 4),
    ],
)
def test_system_queries_match_node_spec(program: NvmlProgram, question: str, answer: object) -> None:
    """The node's versions and count of GPUs are those of its spec."""
    assert program.ask(question) == answer


@pytest.mark.parametrize(
    ("gpu", "name", "architecture", "capability", "bus"),
    [
        (H100, "NVIDIA H100 80GB HBM3", 9, [9, 0], "00000000:1B:00.0"),
        (A100, "NVIDIA A100-SXM4-40GB", 7, [8, 0], "00000000:43:00.0"),
        (L40S, "NVIDIA L40S", 8, [8, 9], "00000000:52:00.0"),
        (T4, "Tesla T4", 6, [7, 5], "00000000:61:00.0"),
    ],
)
def test_chip_queries_match_card(
    program: NvmlProgram, gpu: int, name: str, architecture: int, capability: list[int], bus: str
) -> None:
    """A GPU has the name, architecture, compute capability and bus of its card and place."""
    assert program.ask(f"nvml.nvmlDeviceGetName(gpus[{gpu}])") == name
    assert program.ask(f"nvml.nvmlDeviceGetArchitecture(gpus[{gpu}])") == architecture
    assert program.ask(f"nvml.nvmlDeviceGetCudaComputeCapability(gpus[{gpu}])") == capability
    assert program.ask(f"nvml.nvmlDeviceGetBrand(gpus[{gpu}])") == 14
    pci = program.ask(f"nvml.nvmlDeviceGetPciInfo(gpus[{gpu}])")
    assert pci["busId"] == bus
    assert pci["busIdLegacy"] == bus[4:]
    assert (pci["domain"], pci["bus"], pci["device"]) == (0, int(bus[9:11], 16), 0)
    assert pci["pciDeviceId"] & 0xFFFF == 0x10DE


def test_identifiers_are_unique_and_stable_per_gpu(program: NvmlProgram, node: NodeSpec) -> None:
    """UUIDs are the spec's, minors follow the index, serial numbers differ."""
    every = "for h in gpus"
    assert program.ask(f"[nvml.nvmlDeviceGetUUID(h) {every}]") == [node.gpu_uuid(i) for i in range(4)]
    assert program.ask(f"[nvml.nvmlDeviceGetIndex(h) {every}]") == [0, 1, 2, 3]
    assert program.ask(f"[nvml.nvmlDeviceGetMinorNumber(h) {every}]") == [0, 1, 2, 3]
    serials = program.ask(f"[nvml.nvmlDeviceGetSerial(h) {every}]")
    assert len(set(serials)) == 4
    assert all(len(serial) == 13 and serial.isdigit() for serial in serials)
    assert program.ask("nvml.nvmlDeviceGetVbiosVersion(gpus[0])") == "96.00.74.00.01"


def test_inforom_versions_of_data_centre_card_lack_power(program: NvmlProgram) -> None:
    """Of the whole image and of its parts; data-centre cards have none of the power part."""
    assert program.ask("nvml.nvmlDeviceGetInforomImageVersion(gpus[0])") == "G520.0200.00.05"
    assert program.ask("[nvml.nvmlDeviceGetInforomVersion(gpus[0], part) for part in (0, 1)]") == [
        "2.1",
        "7.16",
    ]


def test_handle_by_uuid_finds_gpu_and_mig_instance(program: NvmlProgram, node: NodeSpec) -> None:
    """UUIDs of GPUs and of MIG instances lead back to them; others are not found."""
    by_uuid = "nvml.nvmlDeviceGetHandleByUUID"
    assert program.ask(f"nvml.nvmlDeviceGetIndex({by_uuid}({node.gpu_uuid(L40S)!r}))") == L40S
    instance = f"{by_uuid}({node.mig_uuid(A100, 1)!r})"
    assert program.ask(f"nvml.nvmlDeviceGetName({instance})") == "NVIDIA A100-SXM4-40GB MIG 2g.10gb"
    assert program.ask(f"nvml.nvmlDeviceGetIndex({instance})") == 1
    assert program.failure(f"{by_uuid}('GPU-no-such')") == 6
    assert program.failure(f"{by_uuid}('MIG-no-such')") == 6


@pytest.mark.parametrize("bus_id", ["00000000:52:00.0", "0000:52:00.0", "52:00.0"])
def test_handle_by_bus_id_accepts_every_domain_form(program: NvmlProgram, bus_id: str) -> None:
    """A GPU is found by its bus id, with a long domain, a short one or none."""
    handle = f"nvml.nvmlDeviceGetHandleByPciBusId({bus_id!r})"
    assert program.ask(f"nvml.nvmlDeviceGetIndex({handle})") == L40S


@pytest.mark.parametrize("bus_id", ["00000000:99:00.0", "00000001:52:00.0", "52:00.0x", "nonsense", ""])
def test_handle_by_unknown_bus_id_is_not_found(program: NvmlProgram, bus_id: str) -> None:
    """A bus without a GPU, or no bus at all, is not found."""
    assert program.failure(f"nvml.nvmlDeviceGetHandleByPciBusId({bus_id!r})") == 6


def test_queries_with_invalid_arguments_are_refused(program: NvmlProgram) -> None:
    """An index out of range, no pointer, a handle of nobody's: invalid arguments."""
    program.ask("lib = nvml.nvmlLib")
    assert program.failure("nvml.nvmlDeviceGetHandleByIndex(4)") == 2
    assert program.ask("lib.nvmlDeviceGetCount_v2(None)") == 2
    assert program.ask("lib.nvmlDeviceGetHandleByIndex_v2(0, None)") == 2
    assert program.ask("lib.nvmlDeviceGetPowerUsage(gpus[0], None)") == 2
    assert program.ask("lib.nvmlDeviceGetPowerUsage(None, ctypes.byref(ctypes.c_uint()))") == 2
    stray = "ctypes.c_void_p(0x7f1234567890)"
    assert program.ask(f"lib.nvmlDeviceGetPowerUsage({stray}, ctypes.byref(ctypes.c_uint()))") == 2


def test_text_query_with_small_buffer_is_insufficient_size(program: NvmlProgram) -> None:
    """Too small a buffer is said to be so and left alone."""
    program.ask("buffer = ctypes.create_string_buffer(8)")
    assert program.ask("nvml.nvmlLib.nvmlDeviceGetName(gpus[0], buffer, 8)") == 7
    assert program.ask("nvml.nvmlLib.nvmlDeviceGetUUID(gpus[0], buffer, 8)") == 7
    assert program.ask("buffer.raw == bytes(8)")


@pytest.mark.usefixtures("board")
def test_queries_outside_initialisation_are_uninitialized(start_program: Callable[[], NvmlProgram]) -> None:
    """NVML answers between the first initialisation and the last shutdown, and says so outside."""
    program = start_program()
    program.ask("nvml.nvmlInit()")
    program.ask("nvml.nvmlInit()")
    program.ask("nvml.nvmlShutdown()")
    assert program.ask("nvml.nvmlDeviceGetCount()") == 4
    program.ask("handle = nvml.nvmlDeviceGetHandleByIndex(0)")
    program.ask("nvml.nvmlShutdown()")
    assert program.failure("nvml.nvmlDeviceGetCount()") == 1
    assert program.failure("nvml.nvmlDeviceGetPowerUsage(handle)") == 1
    assert program.failure("nvml.nvmlDeviceGetHandleByIndex(0)") == 1
    assert program.failure("nvml.nvmlShutdown()") == 1


def test_init_without_board_is_driver_not_loaded(
    path: pathlib.Path, node: NodeSpec, start_program: Callable[[], NvmlProgram]
) -> None:
    """Without a board the driver is not loaded; once there is one, initialising works."""
    program = start_program()
    assert program.failure("nvml.nvmlInit()") == 9
    with Board(path, node):
        program.ask("nvml.nvmlInit()")
        assert program.ask("nvml.nvmlDeviceGetCount()") == 4


def test_init_without_variable_is_driver_not_loaded(path: pathlib.Path) -> None:
    """A program that finds the library but is told of no board meets a driver that is not loaded."""
    program = NvmlProgram({"LD_LIBRARY_PATH": environment(path)["LD_LIBRARY_PATH"]})
    try:
        assert program.failure("nvml.nvmlInit()") == 9
    finally:
        program.close()


@pytest.mark.parametrize("damage", ["truncated", "other-layout", "not-a-board"])
def test_init_with_board_of_other_version_is_mismatch(
    board: Board, path: pathlib.Path, start_program: Callable[[], NvmlProgram], damage: str
) -> None:
    """A file that is no board of this version is a mismatch of driver and library, never read."""
    board.close()
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        del content[-1]
    else:
        content[0 if damage == "not-a-board" else 8] ^= 0xFF
    path.write_bytes(content)
    assert start_program().failure("nvml.nvmlInit()") == 18


def test_replaced_board_is_seen_after_next_init(
    board: Board, path: pathlib.Path, program: NvmlProgram, node: NodeSpec
) -> None:
    """A program keeps the board with which it initialised until it initialises again."""
    board.close()
    fewer = NodeSpec(node.name, node.gpus[:1])
    with Board(path, fewer):
        assert program.ask("nvml.nvmlDeviceGetCount()") == 4
        program.ask("nvml.nvmlShutdown()")
        program.ask("nvml.nvmlInit()")
        assert program.ask("nvml.nvmlDeviceGetCount()") == 1


def test_error_string_exists_for_every_code(program: NvmlProgram) -> None:
    """Every code has words, unknown ones too."""
    assert program.ask("nvml.nvmlErrorString(15)") == "GPU is lost"
    assert program.ask("nvml.nvmlErrorString(999)") == "Unknown Error"
    assert program.ask("nvml.nvmlErrorString(12345)") == "Unknown Error"


def test_unsimulated_function_is_missing_symbol(program: NvmlProgram) -> None:
    """What the simulator does not play is missing as a symbol, as in an older driver."""
    assert program.failure("nvml.nvmlDeviceGetJpgUtilization(gpus[0])") == 13
