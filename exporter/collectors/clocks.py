"""Clock frequencies, and the reasons of reduced ones."""

from collections.abc import Callable, Sequence

from exporter.collectors import Point, Row, gauge
from exporter.model import Kind, Metric, MetricName, MetricSet
from exporter.nvml.devices import OpenDevice
from exporter.nvml.driverstate import WINDOW_S

_HZ_PER_MHZ = 1_000_000

_PSTATE = MetricName("DCGM_FI_DEV_PSTATE", "")
_REASONS = MetricName("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "")

_EVENTS = MetricName("DCGM_EXP_CLOCK_EVENTS_COUNT", "")
_EVENT_NAMES = {
    0x001: "gpu_idle",
    0x002: "clocks_setting",
    0x004: "power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "hw_power_brake",
    0x100: "display_clocks",
}
"""nvmlClocksEventReason* in dcgm-exporter's words, by their bits."""


def _events(device: OpenDevice) -> Sequence[Point]:
    """Count a reading for each of its reasons, as dcgm-exporter does; a reason without readings is absent."""
    window = str(round(WINDOW_S * 1000))
    return [
        Point(count, {"clock_event": _EVENT_NAMES[bit], "window_size_in_ms": window})
        for bit, count in sorted(device.clock_events().items())
        if bit in _EVENT_NAMES
    ]


def _clock(name: str, newer: str, words: str, source: str, read: Callable[[OpenDevice], int]) -> Row:
    metric = Metric(
        dcgm=MetricName(f"DCGM_FI_DEV_{name}_CLOCK", "MHz"),
        dcgm_49=MetricName(f"DCGM_FI_DEV_{newer}_CLOCK_HERTZ", "Hz", times=_HZ_PER_MHZ),
        kind=Kind.GAUGE,
        help=words,
        source=source,
        within=MetricSet.FULL,
    )
    return Row(metric, read)


ROWS = (
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_SM_CLOCK", "MHz"),
            dcgm_49=MetricName("DCGM_FI_DEV_SM_CLOCK_HERTZ", "Hz", times=_HZ_PER_MHZ),
            kind=Kind.GAUGE,
            help="SM clock frequency",
            source="nvmlDeviceGetClockInfo(NVML_CLOCK_SM)",
        ),
        read=OpenDevice.sm_clock_mhz,
    ),
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_MEM_CLOCK", "MHz"),
            dcgm_49=MetricName("DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", "Hz", times=_HZ_PER_MHZ),
            kind=Kind.GAUGE,
            help="Memory clock frequency",
            source="nvmlDeviceGetClockInfo(NVML_CLOCK_MEM)",
        ),
        read=OpenDevice.memory_clock_mhz,
    ),
    _clock(
        "MAX_SM",
        "SM_MAX",
        "Highest SM clock",
        "nvmlDeviceGetMaxClockInfo(NVML_CLOCK_SM)",
        OpenDevice.max_sm_clock_mhz,
    ),
    _clock(
        "MAX_MEM",
        "MEMORY_MAX",
        "Highest memory clock",
        "nvmlDeviceGetMaxClockInfo(NVML_CLOCK_MEM)",
        OpenDevice.max_memory_clock_mhz,
    ),
    _clock(
        "VIDEO",
        "VIDEO",
        "Video engine clock frequency",
        "nvmlDeviceGetClockInfo(NVML_CLOCK_VIDEO)",
        OpenDevice.video_clock_mhz,
    ),
    _clock(
        "MAX_VIDEO",
        "VIDEO_MAX",
        "Highest video engine clock",
        "nvmlDeviceGetMaxClockInfo(NVML_CLOCK_VIDEO)",
        OpenDevice.max_video_clock_mhz,
    ),
    gauge(
        _PSTATE,
        "Performance state (0 is the fastest)",
        "nvmlDeviceGetPerformanceState",
        OpenDevice.performance_state,
    ),
    gauge(
        _REASONS,
        "Reasons of reduced clocks (bit mask of nvmlClocksEventReason)",
        "nvmlDeviceGetCurrentClocksEventReasons",
        OpenDevice.clocks_event_reasons,
    ),
    gauge(
        _EVENTS,
        "Readings with reduced clocks within the window",
        "nvmlDeviceGetCurrentClocksEventReasons, at each reading",
        _events,
    ),
)
