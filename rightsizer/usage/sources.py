"""Detects which metric source a Prometheus has, or takes the one of `--signals`."""

import dataclasses
import datetime
import functools
import pathlib
from collections.abc import Collection, Mapping, Sequence

from rightsizer.config import FIND_OUT, MAX_SAMPLES
from rightsizer.errors import EvidenceIncomplete, UsageError
from rightsizer.model import PodKey
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import Prometheus
from rightsizer.usage import custom_source
from rightsizer.usage.exporter_counters import DEVICE_BUSY, METRICS, POD_BUSY
from rightsizer.usage.querier import QueryMemo, SourceQuerier, series_count
from rightsizer.usage.recording_rules import raw_selector
from rightsizer.usage.source_metrics import DCGM, DCGM_49, MetricKind, MetricSource

DCGM_SOURCES = MetricSource("dcgm, dcgm-4.9", (*DCGM.metrics, *DCGM_49.metrics))
GPU_EXPORTER_SOURCE = dataclasses.replace(DCGM_SOURCES, name="gpu-exporter", has_counters=True)
SOURCES = {source.name: source for source in (DCGM, DCGM_49, GPU_EXPORTER_SOURCE)}

LOOKBACKS = tuple(datetime.timedelta(minutes=minutes) for minutes in (0, 15, 60, 6 * 60, 24 * 60))
"""How long ago to look for metrics: an exporter that has stopped is another finding than no exporter."""


@dataclasses.dataclass(frozen=True, slots=True)
class SourceSettings:
    """Settings of the metrics.

    Attributes:
        labels: Labels of every series.
        source: The only source to use; None to detect it.
        max_samples: Samples that Prometheus loads for one query at most.
    """

    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    source: MetricSource | None = None
    max_samples: int = MAX_SAMPLES

    @property
    def matchers(self) -> tuple[str, ...]:
        """Matchers for the labels."""
        return tuple(promql.equals(name, value) for name, value in sorted(self.labels.items()))


def source_named(text: str) -> MetricSource | None:
    """The source that `--signals` names; None for auto.

    Raises:
        UsageError: There is neither such a source nor such a file.
        ConfigurationError: The file cannot be used.
    """
    if text == FIND_OUT:
        return None
    if text in SOURCES:
        return SOURCES[text]
    path = pathlib.Path(text)
    if path.suffix not in {".yaml", ".yml", ".json"} and not path.exists():
        names = ", ".join((FIND_OUT, *SOURCES))
        raise UsageError(f"--signals {text}: is neither one of {names}, nor a file")
    return custom_source.load(path)


def detect_source(
    prometheus: Prometheus, settings: SourceSettings, *, at: datetime.datetime, pods: Collection[PodKey] = ()
) -> SourceQuerier:
    """A querier for the source that this Prometheus has.

    It queries all names of DCGM's metrics if any exists: an exporter may have changed them within the window.

    Args:
        prometheus: The server.
        settings: What is given.
        at: The instant.
        pods: Pods that hold GPUs, if known.

    Raises:
        EvidenceIncomplete: The server has no source, or not the given one.
    """
    given = settings.source
    source = given or GPU_EXPORTER_SOURCE
    memo = QueryMemo()
    for lookback in LOOKBACKS:
        found = _some_metrics(prometheus, source, settings.matchers, at - lookback, memo=memo, at=at)
        if any(metric.name in found for metric in source.metrics):
            break
    else:
        raise EvidenceIncomplete(_nothing_found(prometheus, settings, at))
    metrics = tuple(metric for metric in source.metrics if metric.name in found)
    has_counters = source.has_counters and {POD_BUSY, DEVICE_BUSY} <= found
    if given is GPU_EXPORTER_SOURCE and not has_counters:
        raise EvidenceIncomplete(
            f"--signals {given.name}: Prometheus holds DCGM's metrics, but not {DEVICE_BUSY} and {POD_BUSY} of "
            "gpu-exporter"
        )
    if given:
        name = given.name
    elif has_counters:
        name = GPU_EXPORTER_SOURCE.name
    else:
        name = ", ".join(one.name for one in (DCGM, DCGM_49) if set(one.metrics) & set(metrics))
    source = dataclasses.replace(source, name=name, has_counters=has_counters)
    return SourceQuerier(prometheus, source, settings.matchers, settings.max_samples, frozenset(pods), memo)


def _some_metrics(
    prometheus: Prometheus,
    source: MetricSource,
    matchers: Sequence[str],
    instant: datetime.datetime,
    *,
    memo: QueryMemo,
    at: datetime.datetime,
) -> set[str]:
    """One existing metric of each generation of names, and counters: counting all series takes seconds."""
    found = set(_names(prometheus, [_by_name(METRICS, matchers)], instant) if source.has_counters else ())
    own = set(source.metrics) - set(DCGM_SOURCES.metrics)
    for generation in (set(DCGM.metrics), set(DCGM_49.metrics), own):
        metrics = [metric for metric in source.metrics if metric in generation]
        for metric in sorted(metrics, key=lambda one: one.kind is not MetricKind.MEMORY):
            selected = raw_selector(metric, matchers)
            count = functools.partial(series_count, prometheus, selected, instant)
            if memo.get(at, (selected, instant), count):
                found.add(metric.name)
                break
    return found


def metrics_present(
    prometheus: Prometheus, source: MetricSource, matchers: Sequence[str], at: datetime.datetime
) -> set[str]:
    """The source's metrics that exist."""
    names = [metric.name for metric in source.metrics if not metric.matchers]
    names += METRICS if source.has_counters else ()
    selectors = [raw_selector(metric, matchers) for metric in source.metrics if metric.matchers]
    return _names(prometheus, [*selectors, *([_by_name(names, matchers)] if names else [])], at)


def _by_name(names: Sequence[str], matchers: Sequence[str]) -> str:
    return promql.selector("", [f"__name__=~{promql.quoted('|'.join(names))}", *matchers])


def _names(prometheus: Prometheus, selectors: Sequence[str], at: datetime.datetime) -> set[str]:
    """The metric names of all selected series."""
    return {
        sample.labels.get("__name__", "")
        for selected in selectors
        for sample in prometheus.query(promql.by("count", ["__name__"], selected), at)
    }


def _nothing_found(prometheus: Prometheus, settings: SourceSettings, at: datetime.datetime) -> str:
    """Why there are no series: another source, other labels, or no GPU metrics at all."""
    source = settings.source or GPU_EXPORTER_SOURCE
    if settings.source is not None:
        others = metrics_present(prometheus, GPU_EXPORTER_SOURCE, settings.matchers, at)
        if others:
            names = ", ".join(dict.fromkeys(metric.name for metric in source.metrics))
            return (
                f"--signals {source.name}: Prometheus holds none of {names}; it does hold {min(others)}: "
                "leave --signals out"
            )
    for instant in (at - lookback for lookback in LOOKBACKS):
        if metrics_present(prometheus, source, (), instant):
            found = "; ".join(_values(prometheus, source, name, instant) for name in sorted(settings.labels))
            matchers = ", ".join(settings.matchers)
            return f"Prometheus holds GPU series, but none with {matchers} (--prometheus-label): {found}"
    return (
        f"Prometheus holds no GPU series (such as {source.metrics[0].name}) in the last 24h: "
        "is gpu-exporter or dcgm-exporter scraped, and is this the right Prometheus?"
    )


def _values(prometheus: Prometheus, source: MetricSource, label: str, at: datetime.datetime) -> str:
    """The values of a label."""
    selected = " or ".join(raw_selector(metric, ()) for metric in source.metrics)
    samples = prometheus.query(promql.by("count", [label], selected), at)
    values = sorted(sample.labels.get(label, "") for sample in samples)
    return f"{label} is {', '.join(value or '(none)' for value in values[:5])}"
