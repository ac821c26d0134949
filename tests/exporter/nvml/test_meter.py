"""Busy time by every source of the driver: each sample counts once, and lost samples are reported as gaps."""

import dataclasses
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks._timelapse import BOOT_S, Options, Sample, Timelapse, values
from simulator.gpus import ProcessSample, encoding
from simulator.gpus.boardfile import BoardFile
from simulator.gpus.groundtruth import SAMPLE_DEPTH, SAMPLE_PERIOD_US, Work
from simulator.nodes.devices import Container
from simulator.spec import GpuSpec, NodeSpec
from tests.exporter.conftest import MakeLapse, MakeNode
from tests.exporter.rig import container, ended, eventually, h100, reading

pytestmark = pytest.mark.driver

MIB = 2**20
START_MS = (BOOT_S + 100_000) * 1000
BUSY, GAPS, GAP_S = "gpu_busy_seconds_total", "gpu_busy_gaps_total", "gpu_busy_gap_seconds_total"
POD_BUSY, REST_BUSY = "gpu_pod_busy_seconds_total", "gpu_unattributed_busy_seconds_total"
FAILURES = "gpu_exporter_reading_failures_total"
H100 = NodeSpec("h100", (GpuSpec("H100-SXM5-80GB"),))
NOT_SUPPORTED, NO_PERMISSION, INSUFFICIENT_SIZE, GPU_IS_LOST = 3, 4, 7, 15
OF_PROCESSES = ("nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization")
PODS = {1001: "train", 1002: "serve", 1003: "third"}


def _buffer(until_ms: int, percent: Callable[[int], int] = lambda _: 50) -> list[tuple[int, int]]:
    """The samples that a driver has at an instant; `percent` of the number of each."""
    last = until_ms * 1000 // SAMPLE_PERIOD_US
    numbers = range(last - SAMPLE_DEPTH + 1, last + 1)
    return [(number * SAMPLE_PERIOD_US, percent(number)) for number in numbers]


def _one(series: Sequence[Sample], name: str) -> float | None:
    """The value of the node's one device."""
    return values(series, name).get(())


def _failures(series: Sequence[Sample]) -> dict[tuple[str, ...], float]:
    return values(series, FAILURES, "collector", "reason")


_STEPS_MS = st.sampled_from((100, 150, 400, 1_000, 3_333, 9_000, 16_000, 18_000, 30_000))


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(_STEPS_MS, min_size=1, max_size=40), seed=st.integers(1, 10**6))
def test_meter_counts_each_sample_once(steps: list[int], seed: int) -> None:
    """A sample counts once, at any sampling interval; samples overwritten before are a gap."""

    def percent(number: int) -> int:
        return number * seed % 101

    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        lapse = Timelapse(Path(name) / "files", Path(name), spec=H100, works={}, pods={})
        at_ms, busy_us, gaps, gap_us = START_MS, 0.0, 0, 0
        seen = at_ms * 1000 // SAMPLE_PERIOD_US
        with lapse.exporting():
            lapse.board.set_samples(0, _buffer(at_ms, percent))
            lapse.read(at_ms)
            for step in steps:
                at_ms += step
                lapse.board.set_samples(0, _buffer(at_ms, percent))
                series = lapse.read(at_ms)
                last = at_ms * 1000 // SAMPLE_PERIOD_US
                first = max(seen, last - SAMPLE_DEPTH)
                gaps += first > seen
                gap_us += (first - seen) * SAMPLE_PERIOD_US
                busy_us += (
                    sum(percent(number) for number in range(first + 1, last + 1)) * SAMPLE_PERIOD_US / 100
                )
                seen = last
                assert _one(series, BUSY) == pytest.approx(busy_us / 1e6)
                assert [_one(series, GAPS), _one(series, GAP_S)] == pytest.approx([gaps, gap_us / 1e6])


def test_meter_without_new_samples_is_no_failure(make_lapse: MakeLapse) -> None:
    """A buffer without samples, or without new ones, is no error: the device has no new value."""
    lapse = make_lapse()
    with lapse.exporting():
        lapse.board.set_samples(0, [])
        lapse.read(START_MS)
        series = lapse.read(START_MS + 100)
        assert _one(series, BUSY) is None
        assert values(series, "gpu_busy_source_info", "source") == {}
        lapse.board.set_samples(0, _buffer(START_MS))
        for at_ms in (1_000, 1_020, 1_040):
            series = lapse.read(START_MS + at_ms)
        assert (_one(series, BUSY), _one(series, GAPS)) == (0, 0)
        assert _failures(series) == {}


def _publish(
    lapse: Timelapse, samples: Sequence[tuple[int, int]], processes: Sequence[ProcessSample] = ()
) -> None:
    """Impossible samples that drivers have returned; written past the simulated board's checks."""
    file: BoardFile = lapse.board._file  # noqa: SLF001 - the board refuses nonsense
    file.publish_samples(0, encoding.utilization_buffer(samples), encoding.process_buffer(processes))


def test_meter_with_invalid_samples_reports_a_gap(make_lapse: MakeLapse) -> None:
    """A sample above 100 % leaves its period unknown, neither busy nor idle; that of a process is ignored."""
    lapse = make_lapse()
    with lapse.exporting():
        lapse.board.set_samples(0, _buffer(START_MS))
        lapse.read(START_MS)
        before = START_MS * 1000 // SAMPLE_PERIOD_US
        samples = _buffer(START_MS + 2_000, lambda number: 2_000_000 if number == before + 3 else 50)
        processes = [ProcessSample(at_us, 77, 250) for at_us, _ in samples]
        _publish(lapse, samples, processes)
        series = lapse.read(START_MS + 2_000)
        periods = (START_MS + 2_000) * 1000 // SAMPLE_PERIOD_US - before
        assert _one(series, BUSY) == pytest.approx((periods - 1) * SAMPLE_PERIOD_US * 0.5 / 1e6)
        assert [_one(series, GAPS), _one(series, GAP_S)] == pytest.approx([1, SAMPLE_PERIOD_US / 1e6])
        rest = values(series, REST_BUSY, "reason")
        assert rest.pop(("unsampled",)) == pytest.approx(_one(series, BUSY))
        assert {("gap",), ("gone",), ("shared",)} <= rest.keys()
        assert set(rest.values()) == {0}


@pytest.mark.parametrize("is_exact", [True, False], ids=["a sample for each period", "one for each read"])
def test_engine_time_of_processes_is_counted_by_pod(is_exact: bool, make_lapse: MakeLapse) -> None:
    """Memory, encoders and decoders add up like busy time; what a sample cannot say counts for nobody, in full."""
    works = {Work(pid, START_MS - 20_000, None, (), ()): container(pod) for pid, pod in PODS.items()}
    lapse = make_lapse(works=works, pods={pod: [f"{H100.gpu_uuid(0)}::{pid}"] for pid, pod in PODS.items()})
    shares = {1001: (30, 20, 10, 0), 1002: (20, 0, 0, 5), 1003: (0, 200, 0, 0)}
    with lapse.exporting(Options(collectors=("processes",))):
        lapse.show(START_MS)
        lapse.board.set_samples(0, _buffer(START_MS))
        lapse.read(START_MS)
        lapse.show(START_MS + 2_000)
        buffer = _buffer(START_MS + 2_000)
        at = [at_us for at_us, _ in buffer] if is_exact else [buffer[-1][0]]
        _publish(
            lapse,
            buffer,
            [ProcessSample(at_us, pid, *share) for at_us in at for pid, share in shares.items()],
        )
        series = lapse.read(START_MS + 2_000)
    periods = (START_MS + 2_000) * 1000 // SAMPLE_PERIOD_US - START_MS * 1000 // SAMPLE_PERIOD_US
    spent_s = periods * SAMPLE_PERIOD_US / 1e6

    def by(name: str, label: str) -> dict[str, float]:
        return {key[0]: value for key, value in values(series, name, label).items()}

    assert by("gpu_pod_memory_busy_seconds_total", "pod") == pytest.approx(
        {"train": 0.2 * spent_s, "serve": 0, "third": 0}
    )
    rest = by("gpu_unattributed_memory_busy_seconds_total", "reason")
    assert {reason: value for reason, value in rest.items() if value} == {"unsampled": pytest.approx(spent_s)}
    assert by("gpu_pod_encoder_busy_seconds_total", "pod")["train"] == pytest.approx(0.1 * spent_s)
    assert by("gpu_pod_decoder_busy_seconds_total", "pod")["serve"] == pytest.approx(0.05 * spent_s)


def test_engine_time_without_process_samples_is_absent(make_lapse: MakeLapse) -> None:
    """Unknown is never zero; while reading them fails, all time may be anybody's."""
    lapse = make_lapse()
    memory, rest = "gpu_pod_memory_busy_seconds_total", "gpu_unattributed_memory_busy_seconds_total"
    with lapse.exporting():
        for at_ms in (0, 1_000):
            lapse.show(START_MS + at_ms)
            buffer = _buffer(START_MS + at_ms)
            lapse.board.set_samples(0, buffer, [ProcessSample(buffer[-1][0], 77, 50)])
            lapse.read(START_MS + at_ms)
        for function in OF_PROCESSES:
            lapse.board.fault(function, code=NO_PERMISSION)
        lapse.board.set_samples(0, _buffer(START_MS + 2_000))
        lapse.read(START_MS + 2_000)
        lapse.board.clear_faults()
        series = lapse.read(START_MS + 2_100)
        assert values(series, rest, "reason")["unsampled",] == pytest.approx(1, abs=0.4)
        for function in OF_PROCESSES:
            lapse.board.fault(function, code=NOT_SUPPORTED)
        lapse.board.set_samples(0, _buffer(START_MS + 3_000))
        series = lapse.read(START_MS + 3_000)
        assert (values(series, memory), values(series, rest)) == ({}, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shift_ms", "not_counted_s", "gap_s"),
    [pytest.param(-3_600_000, 12, 11, id="back"), pytest.param(3_600_000, 0, 1.5, id="forward")],
)
def test_meter_survives_a_changed_clock(
    make_lapse: MakeLapse, shift_ms: int, not_counted_s: float, gap_s: float
) -> None:
    """After a change of the clock that dates samples, counting continues within ten seconds and reports a gap."""
    lapse = make_lapse()
    with lapse.exporting():
        for at_ms in range(0, 5_001, 1_000):
            lapse.board.set_samples(0, _buffer(START_MS + at_ms))
            before = lapse.read(START_MS + at_ms)
        set_at_us = (START_MS + 5_000 + shift_ms) * 1000
        for at_ms in range(6_000, 30_001, 1_000):
            samples = _buffer(START_MS + at_ms + shift_ms)
            lapse.board.set_samples(0, [sample for sample in samples if sample[0] > set_at_us])
            series = lapse.read(START_MS + at_ms, shift_ms=shift_ms)
        counted = (_one(series, BUSY) or 0) - (_one(before, BUSY) or 0)
        assert counted == pytest.approx(0.5 * (25 - not_counted_s), abs=0.6)
        assert _one(series, GAPS) == 1
        assert _one(series, GAP_S) == pytest.approx(gap_s, abs=1)


HALF_BUSY = reading(gpu_util_percent=50, memory_used_bytes=0, mem_clock_mhz=1215, sm_clock_mhz=1410)
A100, CUT_H100 = NodeSpec("a100", (GpuSpec("A100-SXM4-40GB"),)), GpuSpec("H100-SXM5-80GB", mig=("3g.40gb",))
CUT_A100 = NodeSpec("a100", (GpuSpec("A100-SXM4-40GB", mig=("3g.20gb",)),))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "has_buffer", "sources"),
    [
        pytest.param(H100, True, {"": "samples"}, id="hopper"),
        pytest.param(H100, False, {"": "gpm"}, id="hopper-without-buffer"),
        pytest.param(A100, True, {"": "samples"}, id="ampere"),
        pytest.param(A100, False, {"": "ticks"}, id="ampere-without-buffer"),
        pytest.param(
            NodeSpec("h100", (CUT_H100,)), True, {"": "gpm", "3g.40gb": "gpm"}, id="hopper-cut-into-instances"
        ),
        pytest.param(CUT_A100, True, {}, id="ampere-cut-into-instances"),
    ],
)
def test_meter_reports_its_source(
    make_lapse: MakeLapse, spec: NodeSpec, has_buffer: bool, sources: dict[str, str]
) -> None:
    """The best source of a device is used and named; without one, busy time is absent, not zero."""
    lapse = make_lapse(spec=spec)
    is_cut = bool(spec.gpus[0].mig)
    with lapse.exporting():
        for at_ms in range(0, 4_001, 1_000):
            now_us = (START_MS + at_ms) * 1000
            lapse.board.set_gpu(0, HALF_BUSY)
            lapse.board.set_busy(0, busy_us=at_ms * 500, at_us=now_us)
            if is_cut:
                lapse.board.set_busy(0, busy_us=at_ms * 500, at_us=now_us, instance=0)
            if has_buffer:
                lapse.board.set_samples(0, _buffer(START_MS + at_ms))
            series = lapse.read(START_MS + at_ms)
    named = values(series, "gpu_busy_source_info", "GPU_I_PROFILE", "source")
    assert named == dict.fromkeys(sources.items(), 1)
    busy = values(series, BUSY, "GPU_I_PROFILE")
    assert busy == {(profile,): pytest.approx(2.0, abs=0.1) for profile in sources}
    assert values(series, GAPS, "GPU_I_PROFILE") == dict.fromkeys(busy, 0)
    assert _failures(series) == {}


@pytest.mark.slow
def test_meter_after_a_change_of_source_counts_nothing_twice(make_lapse: MakeLapse) -> None:
    """While a GPU has MIG instances, GPM measures it; its buffer does not count that time again."""
    lapse = make_lapse()
    with lapse.exporting():
        for at_ms in range(0, 15_001, 1_000):
            if at_ms in {5_000, 10_000}:
                lapse.board.set_mig(0, ("3g.40gb",) if at_ms == 5_000 else ())
            lapse.board.set_busy(0, busy_us=at_ms * 500, at_us=(START_MS + at_ms) * 1000)
            lapse.board.set_samples(0, _buffer(START_MS + at_ms))
            series = lapse.read(START_MS + at_ms)
        counted = values(series, BUSY, "GPU_I_PROFILE")["",]
        assert 0.5 * 11 <= counted <= 0.5 * 15


def test_meter_with_distant_ticks_reports_a_gap(make_lapse: MakeLapse) -> None:
    """A single utilization value does not cover half a minute: that is a gap."""
    lapse = make_lapse(spec=A100)
    with lapse.exporting():
        lapse.board.set_gpu(0, HALF_BUSY)
        for at_ms in (0, 1_000, 31_000, 32_000):
            series = lapse.read(START_MS + at_ms)
    assert _one(series, BUSY) == 1.0
    assert (_one(series, GAPS), _one(series, GAP_S)) == (1, 30)


ENGINES = ("memory", "encoder", "decoder")
OF_PODS = {
    *(f"gpu_pod_{engine}_busy_seconds_total" for engine in ENGINES),
    *(POD_BUSY, "gpu_pod_last_active_timestamp_seconds", "gpu_pod_energy_joules_total"),
}
OF_REST = {
    *(f"gpu_unattributed_{engine}_busy_seconds_total" for engine in ENGINES),
    *(REST_BUSY, "gpu_unattributed_energy_joules_total"),
}
IDLE = "gpu_idle_energy_joules_total"
HELD = "gpu_allocated"  # by a pod whose process is on it, as no kubelet answers
ENERGY = {IDLE, "gpu_pod_energy_joules_total", "gpu_unattributed_energy_joules_total"}
COSTS = {
    "nvmlDeviceGetSamples": {BUSY, GAPS, GAP_S, IDLE, "gpu_busy_source_info"} | OF_PODS | OF_REST,
    "nvmlDeviceGetProcessUtilization": OF_PODS,
    "nvmlDeviceGetComputeRunningProcesses_v3": {
        HELD,
        "gpu_pod_memory_used_bytes",
        "gpu_pod_memory_used_byte_seconds_total",
        "gpu_pod_processes",
        "gpu_unattributed_memory_used_bytes",
        "gpu_unattributed_processes",
    },
    "nvmlDeviceGetTotalEnergyConsumption": ENERGY,
}
"""Series of a device that are absent if the function fails."""
ALL = set().union(*COSTS.values())


REASONS = {NO_PERMISSION: "no_permission", GPU_IS_LOST: "gpu_lost", INSUFFICIENT_SIZE: "unknown"}


@pytest.mark.slow
@pytest.mark.parametrize("function", COSTS)
def test_meter_with_a_failing_call_omits_its_series(make_lapse: MakeLapse, function: str) -> None:
    """An unreadable value is absent and counted as a failure; the rest remains, and nothing is lost afterwards."""
    begin_ms, end_ms = START_MS - 1_000, START_MS + 60_000
    works = {
        Work(pid, begin_ms, None, ((begin_ms + 20, end_ms),), ((begin_ms, MIB),)): whose
        for pid, whose in ((4711, container("train")), (4712, None))
    }
    lapse = make_lapse(works=works)

    def look(at_ms: int) -> list[Sample]:
        lapse.board.set_gpu(0, reading(energy_j=at_ms / 10))
        return lapse.look(START_MS + at_ms)

    with lapse.exporting():
        look(0)
        before = look(2_000)
        there = {name for name, _, _ in before}
        assert there >= ALL
        for number, (code, reason) in enumerate(REASONS.items()):
            for call in OF_PROCESSES if function in OF_PROCESSES else (function,):
                lapse.board.fault(call, code=code)
            during = look(4_000 + 4_000 * number)
            lapse.board.clear_faults()
            assert there - {name for name, _, _ in during} == COSTS[function]
            assert _failures(during)["processes", reason] == len(
                COSTS[function] - {"gpu_busy_source_info", HELD}
            )
            after = look(6_000 + 4_000 * number)
            assert there <= {name for name, _, _ in after}
            assert _failures(after) == _failures(during)
    assert _one(after, BUSY) == pytest.approx(14.0, abs=0.2)
    busy = sum(values(after, POD_BUSY, "pod").values()) + sum(values(after, REST_BUSY, "reason").values())
    assert busy == pytest.approx(_one(after, BUSY))
    if function != "nvmlDeviceGetTotalEnergyConsumption":
        energy = sum(value for name, _, value in after if name in ENERGY)
        assert energy == pytest.approx(1400)


def test_meter_omits_invalid_values(make_lapse: MakeLapse) -> None:
    """An energy of -1 as an unsigned number is unknown, not four million joules."""
    lapse = make_lapse()
    with lapse.exporting():
        for at_ms, energy_j in enumerate((10, 20, (2**32 - 1) / 1000, 40, 50)):
            lapse.board.set_gpu(0, reading(energy_j=energy_j))
            lapse.board.set_samples(0, _buffer(START_MS + at_ms * 1_000))
            series = lapse.read(START_MS + at_ms * 1_000)
            if energy_j > 100:
                assert _one(series, IDLE) is None
        assert sum(value for name, _, value in series if name in ENERGY) == pytest.approx(40)


@pytest.mark.slow
def test_meter_with_a_hung_gpu_samples_the_others(make_node: MakeNode) -> None:
    """A GPU is stuck if reading its buffer does not return; the others are sampled further."""
    node = make_node(h100(2))
    for gpu in range(2):
        node.board.set_samples(gpu, [])
    with node.exporting(pods=False) as exporter:
        eventually(lambda: set(exporter.series(BUSY, "gpu")) == {("0",), ("1",)})
        node.board.fault("nvmlDeviceGetSamples", gpu=1, hang=True)
        eventually(lambda: exporter.series("gpu_up", "gpu") == {("0",): 1, ("1",): 0})
        assert set(exporter.series(BUSY, "gpu")) == {("0",)}
        assert exporter.series(FAILURES, "collector", "reason")["processes", "stuck"] > 0
        node.board.set_gpu(0, dataclasses.replace(reading(), gpu_util_percent=33))
        eventually(lambda: exporter.series("DCGM_FI_DEV_GPU_UTIL", "gpu") == {("0",): 33})
        node.board.clear_faults()
        eventually(lambda: set(exporter.series(BUSY, "gpu")) == {("0",), ("1",)})


NOT_FOUND = 6


@pytest.mark.parametrize("older", [NOT_FOUND, NOT_SUPPORTED], ids=["empty", "not-supported"])
def test_process_samples_of_the_newer_call_are_used(make_lapse: MakeLapse, older: int) -> None:
    """On Blackwell the older call is empty while the board works: the call of driver 550 has the shares."""
    lapse = make_lapse(
        works=_working("train", "serve"), pods={"train": [f"{GPU_ID}::0"], "serve": [f"{GPU_ID}::1"]}
    )
    lapse.board.fault("nvmlDeviceGetProcessUtilization", code=older)
    with lapse.exporting():
        series = _after_4_s(lapse)
    assert values(series, POD_BUSY, "pod") == pytest.approx({("train",): 2, ("serve",): 2}, abs=0.2)
    assert values(series, "gpu_busy_source_info", "shares") == {("exact",): 1}


@pytest.mark.parametrize(
    "newer", [NOT_FOUND, NOT_SUPPORTED, 13, 25], ids=["empty", "unsupported", "absent", "version"]
)
def test_process_samples_without_the_newer_call_are_the_older_calls(
    make_lapse: MakeLapse, newer: int
) -> None:
    """A driver before 550 has only the older call, and another's newer one may be of no use."""
    lapse = make_lapse(works=_working("train"), pods={"train": [GPU_ID]})
    lapse.board.fault("nvmlDeviceGetProcessesUtilizationInfo", code=newer)
    with lapse.exporting():
        series = _after_4_s(lapse)
    assert values(series, POD_BUSY, "pod") == pytest.approx({("train",): 4}, abs=0.2)
    assert values(series, "gpu_busy_source_info", "shares") == {("exact",): 1}


@pytest.mark.parametrize(
    ("owners", "pods", "busy"),
    [
        (["train"], ["train"], {"train": 4}),
        (["train"], [], {}),
        (["train", ""], ["train"], {"train": 0}),
        (["train", "serve"], ["train"], {"train": 0, "serve": 0}),
        (["train", "serve"], ["train", "serve"], {}),
        ([], ["train"], {"train": 4}),
    ],
    ids=["only-holder", "no-holder", "beside-the-host", "beside-another-pod", "two-holders", "no-process"],
)
@pytest.mark.parametrize("zeros", [False, True], ids=["no-sample", "idle-samples"])
def test_work_that_no_process_explains_is_its_only_holders(
    make_lapse: MakeLapse,
    capfd: pytest.CaptureFixture[str],
    owners: list[str],
    pods: list[str],
    busy: dict[str, float],
    zeros: bool,
) -> None:
    """Else it is nobody's, and sharers have no series rather than 0; the accuracy is none, and the log says it once."""
    works = _working(*owners)
    ids = [GPU_ID] if len(pods) == 1 else [f"{GPU_ID}::{number}" for number in range(len(pods))]
    lapse = make_lapse(works=works, pods={pod: [device] for pod, device in zip(pods, ids, strict=True)})
    lapse.host.admit(container("train"))
    with lapse.exporting():
        for at_ms in (-1_000, 0, 1_000, 2_000, 3_000, 4_000):
            lapse.show(START_MS + at_ms)
            samples = _buffer(
                START_MS + at_ms, lambda number: 100 if number * SAMPLE_PERIOD_US > START_MS * 1000 else 0
            )
            processes = [ProcessSample(at_us, work.pid, 0) for at_us, _ in samples for work in works]
            lapse.board.set_samples(0, samples, processes if zeros else ())
            series = lapse.read(START_MS + at_ms)
    found = {pod: value for (pod,), value in values(series, POD_BUSY, "pod").items()}
    assert found == pytest.approx(busy, abs=0.2)
    rest = sum(values(series, REST_BUSY, "reason").values())
    assert rest == pytest.approx(4 - sum(busy.values()), abs=0.2)
    assert values(series, "gpu_busy_source_info", "shares") == {("none",): 1}
    assert values(series, "gpu_pod_memory_busy_seconds_total", "pod") == {}
    assert capfd.readouterr().err.count("the driver names none while it works") == 1


def test_driver_that_names_processes_again_is_believed(make_lapse: MakeLapse) -> None:
    """Work that is not explained now and then is nobody's: the driver has told processes' work before."""
    lapse = make_lapse(works=_working("train"), pods={"train": [GPU_ID]})
    with lapse.exporting():
        _after_4_s(lapse)
        lapse.show(START_MS + 6_000)
        lapse.board.set_samples(0, _buffer(START_MS + 6_000, lambda _: 100))
        series = lapse.read(START_MS + 6_000)
        assert values(series, POD_BUSY, "pod") == pytest.approx({("train",): 4}, abs=0.2)
        assert values(series, REST_BUSY, "reason")["unsampled",] == pytest.approx(2, abs=0.2)
        series = lapse.look(START_MS + 8_000)
        assert values(series, POD_BUSY, "pod") == pytest.approx({("train",): 6}, abs=0.2)


GPU_ID = H100.gpu_uuid(0)


def _working(*owners: str) -> dict[Work, Container | None]:
    """A process for each pod, or for the host; all work for a minute."""
    begin_ms = START_MS - 20_000
    return {
        Work(2001 + number, begin_ms, None, ((START_MS, START_MS + 60_000),), ((begin_ms, MIB),)): (
            container(owner) if owner else None
        )
        for number, owner in enumerate(owners)
    }


def _after_4_s(lapse: Timelapse) -> list[Sample]:
    for at_ms in (-1_000, 0, 1_000, 2_000, 3_000, 4_000):
        series = lapse.look(START_MS + at_ms)
    return series


CHURN = """
import concurrent.futures, contextlib, sys, time, pynvml
from exporter.errors import ReadingError
from exporter.nvml.gpm import Gpm
from exporter.nvml.meter import Clocks, Meter, MeterTarget

def churn(gpu):
    handle = pynvml.nvmlDeviceGetHandleByIndex(gpu)
    for number in range(100):
        for part in range(7):
            key = f"GPU-{gpu}/{number}/{part}"
            meter.observe(MeterTarget(key, key, handle))
            with contextlib.suppress(ReadingError):
                gpm.rates(key, key, handle, lambda sample: pynvml.nvmlGpmSampleGet(handle, sample))
        for cache in (meter, gpm):
            cache.retain(f"GPU-{gpu}", ())

pynvml.nvmlInit()
sys.setswitchinterval(1e-6)
meter, gpm = Meter(Clocks(time.monotonic_ns, time.time_ns)), Gpm()
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    list(pool.map(churn, range(8)))
"""


def test_caches_of_devices_survive_the_threads_of_other_gpus(make_node: MakeNode) -> None:
    """Each GPU has a thread; one forgets the instances that are gone while others measure theirs."""
    node = make_node(h100(8))
    done = ended([sys.executable, "-c", CHURN], node.environment())
    assert (done.code, done.err) == (0, "")
