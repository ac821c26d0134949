"""Drivers and GPUs that fail: what fails disappears and is reported, everything else goes on."""

import dataclasses

import pytest

from exporter.nvml.fieldvalues import Field
from simulator.gpus import Board, Reading
from simulator.spec import GpuSpec, NodeSpec
from tests.exporter.conftest import MakeNode
from tests.exporter.rig import PATIENCE_S, Exporter, Node, eventually, h100, reading

pytestmark = pytest.mark.driver

POWER = "DCGM_FI_DEV_POWER_USAGE"
UTIL = "DCGM_FI_DEV_GPU_UTIL"
FAILURES = "gpu_exporter_reading_failures_total"
SUCCESS = "gpu_exporter_collector_success"
STUCK = "gpu_exporter_gpu_stuck_seconds"
AGE = "gpu_exporter_last_sample_age_seconds"

GIVE_UP_S = 5
"""Long enough that on a busy machine a driver that works is never taken for one that hangs."""

NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH, UNKNOWN = 3, 4, 15, 16, 18, 999


def _gpus(exporter: Exporter, name: str) -> list[str]:
    return sorted(gpu for (gpu,) in exporter.series(name, "gpu"))


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """Three whole GPUs."""
    return make_node(h100(3))


@pytest.mark.parametrize(
    ("code", "reason", "success"),
    [
        (NOT_SUPPORTED, "not_supported", 1),
        (NO_PERMISSION, "no_permission", 0),
        (UNKNOWN, "unknown", 0),
    ],
)
def test_failing_reading_costs_only_itself(code: int, reason: str, success: int, node: Node) -> None:
    """A reading that fails on one GPU is absent there, counted by its reason, and said once; all else is served."""
    node.board.fault("nvmlDeviceGetPowerUsage", gpu=1, code=code)
    with node.exporting(pods=False) as exporter:
        assert _gpus(exporter, POWER) == ["0", "2"]
        assert _gpus(exporter, UTIL) == ["0", "1", "2"]
        assert _gpus(exporter, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION") == ["0", "1", "2"]
        if success:
            eventually(lambda: exporter.messages("reading power"))
            assert exporter.series(FAILURES, "collector") == {}
        else:
            eventually(lambda: exporter.series(FAILURES, "collector", "reason")["power", reason] > 2)
        assert exporter.series(SUCCESS, "collector")["power",] == success
        assert exporter.series(SUCCESS, "collector")["clocks",] == 1
        (message,) = exporter.messages("reading power")
        assert message.startswith(f"reading power of GPU 1 ({node.spec.gpu_uuid(1)}): ")

        node.board.clear_faults()
        eventually(lambda: _gpus(exporter, POWER) == ["0", "1", "2"])
        eventually(lambda: exporter.messages("no longer: ") == [f"no longer: {message.split('; series')[0]}"])


@pytest.mark.parametrize(("code", "reason"), [(GPU_IS_LOST, "gpu_lost"), (RESET_REQUIRED, "reset_required")])
def test_lost_gpu_costs_only_itself(code: int, reason: str, node: Node) -> None:
    """A GPU that falls off the bus has no series, is marked as down, and comes back when it can be read again."""
    with node.exporting(pods=False) as exporter:
        node.board.fault("*", gpu=1, code=code)
        eventually(lambda: _gpus(exporter, UTIL) == ["0", "2"])
        assert exporter.series("gpu_up", "gpu", "UUID") == {
            (str(index), node.spec.gpu_uuid(index)): float(index != 1) for index in range(3)
        }
        assert exporter.series("gpu_down", "gpu", "reason") == {("1", reason): 1}
        assert exporter.series(FAILURES, "reason")[reason,] > 0
        assert exporter.get("/readyz")[0] == 200

        node.board.clear_faults()
        eventually(lambda: exporter.series("gpu_up", "gpu")["1",] == 1)
        assert _gpus(exporter, UTIL) == ["0", "1", "2"]
        assert exporter.series("gpu_down") == {}


def test_exporter_without_a_readable_gpu_is_not_ready(node: Node) -> None:
    """When no GPU can be read, readiness says so; the process is alive and its own metrics are served."""
    with node.exporting(pods=False) as exporter:
        node.board.fault("*", code=GPU_IS_LOST)
        eventually(lambda: exporter.get("/readyz") == (503, "none of 3 GPUs can be read\n"))
        assert exporter.get("/healthz")[0] == 200
        assert _gpus(exporter, UTIL) == []


def test_hung_call_costs_only_its_gpu(node: Node) -> None:
    """A driver call that never returns takes its GPU's series away; others are read on, and nothing piles up."""
    node.board.set_gpu(0, reading(gpu_util_percent=1))
    with node.exporting(pods=False) as exporter:
        node.board.fault("nvmlDeviceGetPowerUsage", gpu=1, hang=True)
        eventually(lambda: _gpus(exporter, UTIL) == ["0", "2"])
        node.board.set_gpu(0, reading(gpu_util_percent=99))
        eventually(lambda: exporter.series(UTIL, "gpu")["0",] == 99)
        eventually(lambda: exporter.series(STUCK, "gpu")["1",] > 1)
        assert exporter.series("gpu_up", "gpu") == {("0",): 1, ("1",): 0, ("2",): 1}
        assert exporter.series("gpu_down", "gpu", "reason") == {("1", "stuck"): 1}
        assert exporter.series(FAILURES, "collector", "reason")["power", "stuck"] > 0
        assert exporter.series(SUCCESS, "collector")["power",] == 0
        assert exporter.get("/readyz")[0] == 200
        assert len(exporter.messages("does not return")) == 1
        # main, sampler, HTTP, one for XID errors, one for the driver and one per GPU; a scrape's own ends with it
        eventually(lambda: exporter.process_threads() == 8)

        node.board.clear_faults()
        eventually(lambda: _gpus(exporter, UTIL) == ["0", "1", "2"])
        assert exporter.series(STUCK, "gpu")["1",] == 0


def test_hung_count_keeps_known_gpus(node: Node) -> None:
    """When the driver no longer says how many GPUs there are, those that are known are read on."""
    with node.exporting(pods=False) as exporter:
        node.board.fault("nvmlDeviceGetCount_v2", hang=True)
        eventually(lambda: exporter.series("gpu_exporter_nvml_up") == {(): 0})
        node.board.set_gpu(2, reading(gpu_util_percent=77))
        eventually(lambda: exporter.series(UTIL, "gpu").get(("2",)) == 77)


def test_upgraded_driver_is_reopened(node: Node) -> None:
    """After an outage of the driver, NVML is initialised again; until then there are no series and no readiness."""
    with node.exporting(pods=False) as exporter:
        node.board.fault("nvmlDeviceGetCount_v2", code=VERSION_MISMATCH)
        eventually(lambda: exporter.get("/readyz") == (503, "the NVIDIA driver does not answer\n"))
        assert _gpus(exporter, UTIL) == []
        assert set(exporter.series("gpu_up", "gpu").values()) == {0}

        # a driver that is loaded again is seen only by who initialises NVML again
        upgraded = dataclasses.replace(node.spec, driver_version="580.65.06")
        with Board(node.board_file, upgraded):
            versions = {(str(gpu), "580.65.06"): 0.0 for gpu in range(3)}
            eventually(lambda: exporter.series(UTIL, "gpu", "DCGM_FI_DRIVER_VERSION") == versions)
            assert exporter.series("gpu_exporter_nvml_up") == {(): 1}
            assert exporter.get("/readyz")[0] == 200


@pytest.mark.parametrize(
    ("function", "code"),
    [
        pytest.param("nvmlDeviceGetCount_v2", VERSION_MISMATCH, id="driver-replaced"),
        pytest.param("*", UNKNOWN, id="devices-taken-away"),
    ],
)
def test_driver_that_stays_away_ends_the_exporter(node: Node, function: str, code: int) -> None:
    """A restarted container gets the new driver's libraries, and its devices again."""
    with node.exporting("--give-up-after=1s", pods=False) as exporter:
        node.board.fault(function, code=code)
        assert exporter.process.wait(PATIENCE_S) == 1
        eventually(lambda: exporter.messages("error: the NVIDIA driver has not been usable for"))


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
def test_driver_hung_at_start_is_reported(function: str, node: Node) -> None:
    """What does not even open is scrapeable as what it is, no process that restarts; and is read once it opens."""
    node.board.fault(function, hang=True)
    with node.exporting(pods=False, ready=False) as exporter:
        eventually(lambda: exporter.get("/readyz") == (503, "the NVIDIA driver does not answer\n"))
        assert exporter.get("/healthz")[0] == 200
        assert exporter.series("gpu_exporter_nvml_up") == {(): 0}
        assert exporter.series(FAILURES, "collector", "reason")["discovery", "stuck"] > 0
        assert len(exporter.messages("the driver does not answer; using")) == (
            function != "nvmlInitWithFlags"
        )
        assert len(exporter.messages("opening the NVIDIA driver: it does")) == (
            function == "nvmlInitWithFlags"
        )

        node.board.clear_faults()
        eventually(lambda: _gpus(exporter, UTIL) == ["0", "1", "2"])
        assert exporter.get("/readyz")[0] == 200


@pytest.mark.parametrize("code", [9, VERSION_MISMATCH, UNKNOWN], ids=["not-loaded", "replaced", "unknown"])
def test_driver_missing_at_start_is_reported(code: int, node: Node) -> None:
    """As one that hangs: whoever is woken finds a metric, the log why, and GPUs as soon as the driver is back."""
    node.board.fault("nvmlInitWithFlags", code=code)
    with node.exporting(pods=False, ready=False) as exporter:
        eventually(lambda: exporter.get("/readyz") == (503, "the NVIDIA driver does not answer\n"))
        assert exporter.series("gpu_exporter_nvml_up") == {(): 0}
        eventually(lambda: len(exporter.messages("cannot use the NVIDIA driver: ")) == 1)

        node.board.clear_faults()
        eventually(lambda: _gpus(exporter, UTIL) == ["0", "1", "2"])
        assert exporter.series("gpu_exporter_nvml_up") == {(): 1}


def test_driver_failing_after_a_hang_is_reopened(node: Node) -> None:
    """An opening that hangs and then fails is repeated completely: XID errors arrive as well."""
    node.board.fault("nvmlSystemGetDriverVersion", hang=True, code=UNKNOWN)
    with node.exporting(pods=False, ready=False) as exporter:
        eventually(lambda: exporter.get("/readyz")[0] == 503)
        node.board.clear_faults()
        eventually(lambda: _gpus(exporter, "DCGM_FI_DEV_XID_ERRORS") == ["0", "1", "2"])


@pytest.mark.parametrize(("code", "hang"), [(9, False), (None, True)], ids=["away", "hung"])
def test_driver_that_never_opens_ends_the_exporter(code: int | None, hang: bool, node: Node) -> None:
    """A driver that is absent or hangs from the start is unusable from the start, for exactly that time."""
    node.board.fault("nvmlInitWithFlags", code=code, hang=hang)
    with node.exporting("--give-up-after=1s", pods=False, ready=False) as exporter:
        assert exporter.process.wait(PATIENCE_S) == 1
        eventually(lambda: exporter.messages("error: the NVIDIA driver has not been usable for"))


def test_driver_hung_when_reopened_ends_the_exporter(node: Node) -> None:
    """A replaced driver that hangs while it is opened is as unusable as one that cannot be opened."""
    with node.exporting("--give-up-after=1s", pods=False) as exporter:
        node.board.fault("nvmlInitWithFlags", hang=True)
        node.board.fault("nvmlDeviceGetCount_v2", code=VERSION_MISMATCH)
        assert exporter.process.wait(PATIENCE_S) == 1
        eventually(lambda: exporter.messages("error: the NVIDIA driver has not been usable for"))


def test_replaced_driver_with_a_hung_gpu_ends_the_exporter(node: Node) -> None:
    """While a call hangs the driver is not opened again: only a new process can help."""
    with node.exporting(f"--give-up-after={GIVE_UP_S}s", pods=False) as exporter:
        node.board.fault("nvmlDeviceGetPowerUsage", gpu=1, hang=True)
        eventually(lambda: exporter.series(STUCK, "gpu")["1",] > 0)
        node.board.fault("nvmlDeviceGetCount_v2", code=VERSION_MISMATCH)
        assert exporter.process.wait(PATIENCE_S) == 1


@pytest.mark.parametrize("hang", [False, True], ids=["lost", "hung"])
def test_lost_or_hung_gpu_does_not_end_the_exporter(hang: bool, node: Node) -> None:
    """A restart would find the same, and monitoring would see nothing at all."""
    with node.exporting(f"--give-up-after={GIVE_UP_S}s", pods=False) as exporter:
        node.board.fault("*", code=GPU_IS_LOST, hang=hang)
        eventually(lambda: exporter.series(AGE)[()] > GIVE_UP_S + 1)
        assert exporter.series("gpu_up", "gpu") == {("0",): 0, ("1",): 0, ("2",): 0}


def test_gpu_that_hangs_from_the_start_costs_only_itself(node: Node) -> None:
    """Also calls about it and another one: else the driver would seem to hang, and each restart end likewise."""
    node.board.fault("*", gpu=1, hang=True)
    with node.exporting(f"--give-up-after={GIVE_UP_S}s", pods=False) as exporter:
        eventually(lambda: exporter.series(STUCK, "gpu")["1",] > GIVE_UP_S + 1)
        assert _gpus(exporter, POWER) == ["0", "2"]
        assert exporter.series("gpu_exporter_nvml_up") == {(): 1}


def test_not_available_values_are_absent(node: Node) -> None:
    """-1 cast to an unsigned number is how drivers say that they have none: never 4294967 W."""
    node.board.set_gpu(1, reading(power_w=(2**32 - 1) / 1000))
    with node.exporting(pods=False) as exporter:
        assert _gpus(exporter, POWER) == ["0", "2"]
        assert exporter.series(FAILURES, "collector", "reason") == {
            ("power", "unavailable"): pytest.approx(1, abs=99)
        }


@dataclasses.dataclass(frozen=True, slots=True)
class _Wild(Reading):
    """A reading that no card could make, as broken drivers give them."""

    def problems(self, card: object) -> list[str]:
        """None, whatever it says."""
        del card
        return []


@pytest.mark.parametrize("value", [2**32 - 1, 2**64 - 1])
def test_not_available_fields_are_absent(node: Node, value: int) -> None:
    """In every field, of 32 bits or of 64: never a number that looks like a catastrophe."""
    for field in Field:
        node.board.set_answer(0, "nvmlDeviceGetFieldValues", value, selector=int(field))
    node.board.set_answer(0, "nvmlDeviceGetCurrentClocksEventReasons", value)
    node.board.set_answer(0, "nvmlDeviceGetFanSpeed", 255)
    done = node.once("--once", "--pod-resources-socket=", "--metrics=full")
    shown = [line for line in done.out.splitlines() if str(value)[:9] in line.rpartition(" ")[2]]
    assert shown == []
    assert "DCGM_FI_DEV_FAN_SPEED{" not in done.out
    assert 'DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{gpu="1"' in done.out


@pytest.mark.parametrize("value", [-3.0, 1e300, float("inf")])
def test_impossible_shares_and_traffic_are_absent(node: Node, value: float) -> None:
    """Of performance counters."""
    for metric in (1, 20):
        node.board.set_gpm(0, metric, value)
    done = node.once("--once", "--pod-resources-socket=")
    for name in ("GR_ENGINE_ACTIVE", "PCIE_TX_BYTES"):
        assert f'DCGM_FI_PROF_{name}{{gpu="0"' not in done.out
        assert f'DCGM_FI_PROF_{name}{{gpu="1"' in done.out


def test_impossible_temperatures_are_absent(node: Node) -> None:
    """Above 200 C is no temperature, as in DCGM; up to there it is served."""
    hot = dataclasses.asdict(reading(temperature_c=201, memory_temperature_c=200))
    node.board.set_gpu(1, _Wild(**hot))
    with node.exporting(pods=False) as exporter:
        assert _gpus(exporter, "DCGM_FI_DEV_GPU_TEMP") == ["0", "2"]
        assert exporter.series("DCGM_FI_DEV_MEMORY_TEMP", "gpu")["1",] == 200


def test_older_driver_is_read_by_older_calls(node: Node) -> None:
    """Without the newer temperature call, the older one is used."""
    node.board.fault("nvmlDeviceGetTemperatureV", code=13)
    node.board.set_gpu(0, reading(temperature_c=55))
    with node.exporting(pods=False) as exporter:
        assert exporter.series("DCGM_FI_DEV_GPU_TEMP", "gpu")["0",] == 55


def test_driver_before_535_has_throttle_reasons(node: Node) -> None:
    """Their call had another name."""
    node.board.fault("nvmlDeviceGetCurrentClocksEventReasons", code=13)
    node.board.set_answer(0, "nvmlDeviceGetCurrentClocksEventReasons", 0x24)
    with node.exporting("--metrics=full", pods=False) as exporter:
        assert exporter.series("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "gpu")["0",] == 0x24


def test_utilization_above_100_percent_is_dropped_and_counted(node: Node) -> None:
    """Drivers have returned such values; they are absent, and failed readings."""
    node.board.set_answer(1, "nvmlDeviceGetEncoderUtilization", 101, 167_000)
    node.board.set_answer(2, "nvmlDeviceGetEncoderUtilization", 100, 167_000)
    with node.exporting(pods=False) as exporter:
        assert exporter.series("DCGM_FI_DEV_ENC_UTIL", "gpu") == {("0",): 0, ("2",): 100}
        assert exporter.series(FAILURES, "collector", "reason")["video", "unavailable"] > 0


def test_driver_without_reserved_memory_omits_it(node: Node) -> None:
    """Drivers before 510 cannot tell reserved memory apart: it is absent, used and free are there."""
    node.board.fault("nvmlDeviceGetMemoryInfo_v2", code=13)
    with node.exporting(pods=False) as exporter:
        assert _gpus(exporter, "DCGM_FI_DEV_FB_USED") == ["0", "1", "2"]
        assert _gpus(exporter, "DCGM_FI_DEV_FB_RESERVED") == []


def test_vanishing_instances_cost_only_themselves(make_node: MakeNode) -> None:
    """An instance list that cannot be read costs the instances, not their GPU."""
    node = make_node(NodeSpec("a100", (GpuSpec("A100-SXM4-40GB", ("3g.20gb",)),)))
    node.board.fault("nvmlDeviceGetGpuInstanceId", code=6)
    with node.exporting(pods=False) as exporter:
        assert set(exporter.series("DCGM_FI_DEV_FB_USED", "GPU_I_PROFILE")) == {("",)}
        assert exporter.series(FAILURES, "collector", "reason")["discovery", "gone"] > 0


def test_gpus_known_only_to_the_kernel_are_reported(node: Node) -> None:
    """The kernel's list of GPUs is compared with NVML's; one that NVML does not show is named in the log."""
    for bus in ("0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:ff:00.0"):
        (node.proc / "driver/nvidia/gpus" / bus).mkdir(parents=True)
    with node.exporting(pods=False) as exporter:
        assert exporter.series("gpu_exporter_gpus", "seen_by") == {("nvml",): 3, ("kernel",): 4}
        assert exporter.messages("known to the kernel") == [
            "GPU 0000:ff:00.0 is known to the kernel's driver, but NVML does not show it"
        ]
