"""How every collector runs."""

import itertools

from exporter.collectors import Collector, Row, run
from exporter.errors import ReadingError, Reason
from exporter.model import Device, Instance, Kind, Metric, MetricName
from exporter.nvml.devices import OpenDevice
from exporter.nvml.driverstate import DriverState
from exporter.nvml.meter import Clocks, Meter

HOST = DriverState(Meter(Clocks(lambda: 0, lambda: 0)))
GPU = Device(0, 0, "GPU-1", "00000000:1B:00.0", "m")


def _metric(name: str) -> Metric:
    return Metric(
        MetricName(name, "W"), MetricName(f"{name}_NEW", "W"), Kind.GAUGE, "Help", "nvmlDeviceGetIt"
    )


def _broken(_device: OpenDevice) -> float:
    raise ZeroDivisionError("oops")


def _refused(_device: OpenDevice) -> float:
    raise ReadingError("reading it", Reason.NO_PERMISSION, "denied")


def test_collector_with_a_failing_reading_keeps_the_others() -> None:
    """Failures of the driver and bugs are distinguished; neither affects the other readings."""
    rows = (
        Row(_metric("A"), read=_broken),
        Row(_metric("B"), read=_refused),
        Row(_metric("C"), read=lambda _: 7, per_instance=True),
    )
    clock = itertools.count(10.0, 0.5)
    collected = run(Collector("test", rows), OpenDevice(None, GPU, HOST), lambda: next(clock))
    assert [(reading.metric.dcgm.name, reading.value) for reading in collected.readings] == [("C", 7)]
    assert [failure.reason for failure in collected.failures] == [Reason.DEFECT, Reason.NO_PERMISSION]
    assert "ZeroDivisionError" in collected.failures[0].message
    assert collected.duration_s == 0.5


def test_collector_on_an_instance_reads_only_its_rows() -> None:
    """Rows without a value for a MIG instance are not read there, and are no failures."""
    rows = (Row(_metric("A"), read=_broken), Row(_metric("C"), read=lambda _: 7, per_instance=True))
    instance = Device(0, 0, "GPU-1", "00000000:1B:00.0", "m", Instance("1g.5gb", 7, ()))
    collected = run(Collector("test", rows), OpenDevice(None, instance, HOST), lambda: 0.0)
    assert [reading.metric.dcgm.name for reading in collected.readings] == ["C"]
    assert collected.failures == ()
