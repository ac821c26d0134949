"""Current clock frequencies."""

from exporter.collectors import Row
from exporter.model import Kind, Metric, MetricSet, Spelling
from exporter.nvml.devices import OpenDevice

_HZ_PER_MHZ = 1_000_000

_MAX_SM = Spelling("DCGM_FI_DEV_MAX_SM_CLOCK", "MHz")
_MAX_MEM = Spelling("DCGM_FI_DEV_MAX_MEM_CLOCK", "MHz")
_PSTATE = Spelling("DCGM_FI_DEV_PSTATE", "")
_REASONS = Spelling("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "")

ROWS = (
    Row(
        Metric(
            dcgm=Spelling("DCGM_FI_DEV_SM_CLOCK", "MHz"),
            dcgm_49=Spelling("DCGM_FI_DEV_SM_CLOCK_HERTZ", "Hz", times=_HZ_PER_MHZ),
            kind=Kind.GAUGE,
            help="SM clock frequency",
            source="nvmlDeviceGetClockInfo(NVML_CLOCK_SM)",
        ),
        read=OpenDevice.sm_clock_mhz,
    ),
    Row(
        Metric(
            dcgm=Spelling("DCGM_FI_DEV_MEM_CLOCK", "MHz"),
            dcgm_49=Spelling("DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", "Hz", times=_HZ_PER_MHZ),
            kind=Kind.GAUGE,
            help="Memory clock frequency",
            source="nvmlDeviceGetClockInfo(NVML_CLOCK_MEM)",
        ),
        read=OpenDevice.memory_clock_mhz,
    ),
    Row(
        Metric(
            _MAX_SM,
            _MAX_SM,
            Kind.GAUGE,
            "Highest SM clock",
            "nvmlDeviceGetMaxClockInfo(NVML_CLOCK_SM)",
            MetricSet.FULL,
        ),
        read=OpenDevice.max_sm_clock_mhz,
    ),
    Row(
        Metric(
            _MAX_MEM,
            _MAX_MEM,
            Kind.GAUGE,
            "Highest memory clock",
            "nvmlDeviceGetMaxClockInfo(NVML_CLOCK_MEM)",
            MetricSet.FULL,
        ),
        read=OpenDevice.max_memory_clock_mhz,
    ),
    Row(
        Metric(
            _PSTATE,
            _PSTATE,
            Kind.GAUGE,
            "Performance state (0 is the fastest)",
            "nvmlDeviceGetPerformanceState",
            MetricSet.FULL,
        ),
        read=OpenDevice.performance_state,
    ),
    Row(
        Metric(
            _REASONS,
            _REASONS,
            Kind.GAUGE,
            "Why the clocks are held down (bit mask of nvmlClocksEventReason)",
            "nvmlDeviceGetCurrentClocksEventReasons",
            MetricSet.FULL,
        ),
        read=OpenDevice.clocks_event_reasons,
    ),
)
