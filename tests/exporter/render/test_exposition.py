"""The exposition as a function: always valid, never two series alike, nothing stale; and content negotiation."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.model import (
    CollectorHealth,
    Device,
    DeviceSample,
    FailureCount,
    GpuState,
    Health,
    Instance,
    PodRef,
    Reading,
    Snapshot,
)
from exporter.render.exposition import BuildInfo, Scrape, families
from exporter.render.textformat import Format, encode, negotiate
from exporter.sampling import catalogue

SCRAPE = Scrape(now=100.0, hostname="node", build=BuildInfo("1", "3.11"), stale_after_s=30.0)

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
refs = st.builds(PodRef, words, words, words)
instances = st.none() | st.builds(Instance, words, st.integers(0, 14), st.just(()))
values = st.one_of(st.integers(0, 2**64), st.floats(0, 1e12))


@st.composite
def _samples(draw: st.DrawFn) -> tuple[DeviceSample, ...]:
    """Devices as NVML could show them: no two with the same index and instance."""
    found = {}
    for _ in range(draw(st.integers(0, 4))):
        device = Device(draw(st.integers(0, 7)), 0, draw(words), draw(words), draw(words), draw(instances))
        metrics = draw(st.lists(st.sampled_from(catalogue.metrics()), unique=True, max_size=5))
        readings = tuple(Reading(metric, draw(values)) for metric in metrics)
        owners = draw(st.lists(refs, max_size=3, unique_by=lambda ref: (ref.namespace, ref.pod)))
        number = device.instance.gpu_instance_id if device.instance else None
        found[device.index, number] = DeviceSample(device, readings, tuple(owners))
    return tuple(found.values())


def _snapshot(samples: tuple[DeviceSample, ...], text: str = "x", *, taken_at: float = 99.0) -> Snapshot:
    health = Health(
        gpus=tuple(
            GpuState(index, device, up=True)
            for index, device in {s.device.index: s.device for s in samples}.items()
        ),
        collectors=(CollectorHealth(text, 0.1, success=True),),
        failures=(FailureCount(text, text, 3),),
        nvml_up=True,
        podresources_up=True,
        gpus_in_kernel=2,
    )
    return Snapshot(taken_at, taken_at, text, catalogue.metrics(), samples, health)


@settings(max_examples=60)
@given(_samples(), words)
def test_exposition_with_any_names_is_valid_text(samples: tuple[DeviceSample, ...], text: str) -> None:
    """Pods and GPUs with any name give a text that parses, with every value under its labels and no series twice."""
    encoded = encode(families(_snapshot(samples, text), SCRAPE), Format.TEXT).decode()
    series = Counter(
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in parse_text(encoded)
        for sample in family.samples
    )
    assert [labels for labels, count in series.items() if count > 1] == []
    expected = {
        (str(sample.device.index), owner.namespace, owner.pod)
        for sample in samples
        if any(not reading.metric.is_own for reading in sample.readings)
        for owner in sample.owners
    }
    found = {
        (labels["gpu"], labels["namespace"], labels["pod"])
        for labels in (dict(pairs) for _, pairs in series)
        if "pod" in labels
    }
    assert found == expected


@settings(max_examples=30)
@given(_samples())
def test_exposition_in_openmetrics_is_valid(samples: tuple[DeviceSample, ...]) -> None:
    """What OpenMetrics demands beyond the text format holds."""
    encoded = encode(families(_snapshot(samples), SCRAPE), Format.OPENMETRICS).decode()
    assert list(parse_openmetrics(encoded))  # type: ignore[no-untyped-call]


def test_exposition_omits_stale_readings() -> None:
    """Readings beyond their age disappear; what the exporter knows about itself stays, with the age."""
    device = Device(0, 0, "GPU-1", "b", "m")
    sample = DeviceSample(device, (Reading(catalogue.metrics()[0], 7),))
    name = catalogue.metrics()[0].dcgm.name
    fresh = encode(families(_snapshot((sample,), taken_at=70.0), SCRAPE), Format.TEXT).decode()
    old = encode(families(_snapshot((sample,), taken_at=69.0), SCRAPE), Format.TEXT).decode()
    assert f"{name}{{" in fresh
    assert name not in old
    assert "gpu_exporter_last_sample_age_seconds 31\n" in old
    assert "gpu_up{" in old


def test_exposition_before_the_first_cycle_has_build_info() -> None:
    """A scrape that comes too early finds a valid, nearly empty exposition."""
    found = families(None, SCRAPE)
    assert [family.name for family in found] == ["gpu_exporter_build_info"]


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        pytest.param("", Format.TEXT, id="nothing"),
        pytest.param("*/*", Format.TEXT, id="anything"),
        pytest.param("text/plain;version=0.0.4", Format.TEXT, id="text"),
        pytest.param("application/openmetrics-text; version=1.0.0", Format.OPENMETRICS, id="openmetrics"),
        pytest.param("application/openmetrics-text", Format.OPENMETRICS, id="openmetrics-any"),
        pytest.param("application/openmetrics-text; version=0.0.1", Format.TEXT, id="openmetrics-draft"),
        pytest.param("application/openmetrics-text;q=0.2,text/plain;q=0.8", Format.TEXT, id="text-preferred"),
        pytest.param("application/openmetrics-text;q=0", Format.TEXT, id="openmetrics-refused"),
        pytest.param("application/openmetrics-text;q=x", Format.TEXT, id="nonsense"),
        pytest.param("text/html,application/xhtml+xml,*/*;q=0.8", Format.TEXT, id="browser"),
    ],
)
def test_format_follows_the_accept_header(accept: str, chosen: Format) -> None:
    """The client's preference decides; text is for all who have none."""
    assert negotiate(accept) is chosen
