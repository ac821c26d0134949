"""Detects which metric source a Prometheus has, or takes the one of `--signals`: by its name, or from a signals file.

A selector in a signals file is a metric's name with matchers, not an expression: functions over a range are applied
to it.
"""

import collections
import dataclasses
import datetime
import pathlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Literal

import pydantic

from rightsizer import yamlfile
from rightsizer.config import FIND_OUT, MAX_SAMPLES
from rightsizer.errors import EvidenceIncomplete, Problem, SignalsError, UsageError
from rightsizer.model import PodKey, Whereabouts
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import Prometheus
from rightsizer.text import instant
from rightsizer.usage.exporter_counters import (
    DEVICE_BUSY,
    METRICS,
    POD_BUSY,
    POD_MEMORY,
    POD_PROCESSES,
)
from rightsizer.usage.label_search import names_hint
from rightsizer.usage.provenance import TARGET_LABELS, ScrapeTarget, find_provenance
from rightsizer.usage.querier import PRESENT, SourceQuerier
from rightsizer.usage.recording_rules import RecordingRules, raw_selector
from rightsizer.usage.source_metrics import (
    DCGM,
    DCGM_49,
    LabelNames,
    Metric,
    MetricKind,
    MetricSource,
)
from rightsizer.yamlfile import FileKind

DCGM_SOURCES = MetricSource("dcgm, dcgm-4.9", (*DCGM.metrics, *DCGM_49.metrics))
GPU_EXPORTER_SOURCE = dataclasses.replace(DCGM_SOURCES, name="gpu-exporter", has_counters=True)
SOURCES = {source.name: source for source in (DCGM, DCGM_49, GPU_EXPORTER_SOURCE)}

_OF_TARGET = ("__name__", *TARGET_LABELS)

LOOKBACKS = tuple(datetime.timedelta(minutes=minutes) for minutes in (0, 15, 60, 6 * 60, 24 * 60))
"""How long ago to look for metrics, to tell a stopped exporter from a missing one."""

# In quotes, Prometheus 3 takes any text as a name.
_QUOTED = r"\"[^\"\\]+\""
_LABEL = rf"(?:[a-zA-Z_][a-zA-Z0-9_]*|{_QUOTED})"
_TEXT = r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'"
# Possessive: otherwise, blanks before a mistake take quadratic time.
_MATCHER = rf"\s*+{_LABEL}\s*+(?:=~|!~|!=|=)\s*+(?:{_TEXT})\s*+"
_MATCHERS = rf"(?:{_MATCHER},)*+(?:{_MATCHER})?+\s*"
_SELECTOR = re.compile(
    rf"(?P<plain>[a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{{(?P<matchers>{_MATCHERS})\}})?"
    rf"|\{{\s*(?P<quoted>{_QUOTED})\s*(?:,(?P<more>{_MATCHERS}))?\}}",
    re.DOTALL,
)


@dataclasses.dataclass(frozen=True, slots=True)
class SourceSettings:
    """Settings of the metrics."""

    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)  # labels of every series
    source: MetricSource | None = None  # the only source to use; None to detect it
    max_samples: int = MAX_SAMPLES  # samples that Prometheus loads for one query at most
    recording: RecordingRules = RecordingRules.AUTO
    exporter_namespaces: tuple[str, ...] = ()  # namespaces of the exporters; empty to detect them

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
        raise UsageError(f'--signals "{text}": is neither one of {names}, nor a file')
    return read_signals(path)


def detect_source(
    prometheus: Prometheus,
    settings: SourceSettings,
    *,
    at: datetime.datetime,
    pods: Collection[PodKey] = (),
    whereabouts: Whereabouts | None = None,
) -> SourceQuerier:
    """A querier for the source that this Prometheus has; `pods` hold GPUs, if known.

    With `whereabouts`, only series of exporters count (`provenance.py`).

    It queries all names of DCGM's metrics if any exists: an exporter may have changed them within the window.

    Raises:
        EvidenceIncomplete: The server has no source, or not the given one.
    """
    given = settings.source
    source = given or GPU_EXPORTER_SOURCE
    querier = SourceQuerier(
        prometheus,
        source,
        at,
        settings.matchers,
        settings.max_samples,
        frozenset(pods),
        settings.recording,
        settings.matchers,
    )
    for seen in (at - lookback for lookback in LOOKBACKS):
        found = list(_series(querier, seen))
        names = {name for name, _ in found}
        if metrics := {metric for metric in source.metrics if metric.name in names}:
            break
    else:
        raise EvidenceIncomplete(_nothing_found(querier, settings))
    if whereabouts is not None:
        provenance = find_provenance(_targets(found), whereabouts, settings.exporter_namespaces)
        querier = dataclasses.replace(
            querier, matchers=(*settings.matchers, *provenance.matchers), provenance=provenance
        )
    if _is_mixed(querier, metrics, seen):
        labels = dataclasses.replace(source.labels, is_mixed=True)
        source = dataclasses.replace(source, labels=labels, has_rules=False)
    series = querier.provenance.counted(found)
    if seen == at:
        querier.once(PRESENT, lambda: series)
    has_counters = any(series[name] for name in (POD_BUSY, POD_PROCESSES, POD_MEMORY))
    if given is GPU_EXPORTER_SOURCE and not (series[POD_BUSY] and series[DEVICE_BUSY]):
        raise EvidenceIncomplete(
            f'--signals "{given.name}": Prometheus holds DCGM\'s metrics, but not {DEVICE_BUSY} and {POD_BUSY} of '
            "gpu-exporter"
        )
    if given:
        name = given.name
    elif has_counters:
        name = GPU_EXPORTER_SOURCE.name
    else:
        name = ", ".join(one.name for one in (DCGM, DCGM_49) if metrics & set(one.metrics))
    return dataclasses.replace(
        querier, source=dataclasses.replace(source, name=name, has_counters=has_counters)
    )


def _is_mixed(querier: SourceQuerier, metrics: Collection[Metric], at: datetime.datetime) -> bool:
    """Whether series have `exported_pod` alone, or labels of pod and namespace from different places.

    As where a scrape configuration drops some of its own labels: the exporter's then keep their names.
    """
    labels = querier.source.labels
    if labels != LabelNames():
        return labels.is_mixed
    (exported, pod), (namespace, _) = labels.pod, labels.namespace
    forms = (
        (promql.is_set(exported), promql.equals(pod, "")),
        (promql.is_set(exported), promql.equals(namespace, "")),
        (promql.is_set(namespace), promql.is_set(pod), promql.equals(exported, "")),
    )
    # Of each generation of names one: counting all series takes seconds.
    known = sorted(metrics, key=lambda one: (one.kind is MetricKind.MEMORY, one.name))
    known = list({metric in DCGM_49.metrics: metric for metric in known}.values())
    selected = (querier.selected(known, (*form, *querier.matchers)) for form in forms)
    return bool(querier.by_exporter("count", " or ".join(selected), at))


def _series(querier: SourceQuerier, at: datetime.datetime) -> Iterator[tuple[str, ScrapeTarget]]:
    """The names of the source's metrics and counters, each with the scraped targets that have series of it."""
    source = querier.source
    names = [metric.name for metric in source.metrics if not metric.matchers]
    names += METRICS if source.has_counters else ()
    selectors = [raw_selector(metric, querier.matchers) for metric in source.metrics if metric.matchers]
    selectors += [promql.selector("", [promql.one_of("__name__", names), *querier.matchers])] if names else []
    for selected in selectors:
        for sample in querier.prometheus.query(promql.by("count", _OF_TARGET, selected), at):
            name, job, instance, cluster = (sample.labels.get(label, "") for label in _OF_TARGET)
            yield name, ScrapeTarget(job, instance, sample.count, cluster)


def _targets(series: Iterable[tuple[str, ScrapeTarget]]) -> list[ScrapeTarget]:
    """Each target once, with all of its series."""
    found = collections.Counter[ScrapeTarget]()
    for _, one in series:
        found[one] += one.series
    return [dataclasses.replace(one, series=number) for one, number in found.items()]


def metrics_present(querier: SourceQuerier, at: datetime.datetime) -> set[str]:
    """The source's metrics that exist at an instant."""
    return {name for name, _ in _series(querier, at)}


def _nothing_found(querier: SourceQuerier, settings: SourceSettings) -> str:
    """Why there are no series: another source, other labels, or no GPU metrics at all."""
    source = querier.source
    if settings.source is not None:
        others = metrics_present(dataclasses.replace(querier, source=GPU_EXPORTER_SOURCE), querier.at)
        if others:
            names = ", ".join(dict.fromkeys(metric.name for metric in source.metrics))
            return (
                f'--signals "{source.name}": Prometheus holds none of {names}; it does hold {min(others)}: '
                "leave --signals out"
            )
    unlabelled = dataclasses.replace(querier, matchers=())
    for moment in (querier.at - lookback for lookback in LOOKBACKS):
        if metrics_present(unlabelled, moment):
            found = "; ".join(_values(unlabelled, name, moment) for name in sorted(settings.labels))
            matchers = ", ".join(settings.matchers)
            return f"Prometheus holds GPU series, but none with {matchers} (--prometheus-label): {found}"
    return (
        f"Prometheus holds no GPU series (such as {source.metrics[0].name}) in the 24h to {instant(querier.at)}: "
        f"{names_hint(querier, querier.at) or 'is gpu-exporter or dcgm-exporter scraped, and is this the right one?'}"
    )


def _values(querier: SourceQuerier, label: str, at: datetime.datetime) -> str:
    """The values of a label."""
    selected = querier.selected(querier.source.metrics, querier.matchers)
    samples = querier.prometheus.query(promql.by("count", [label], selected), at)
    values = sorted(sample.labels.get(label, "") for sample in samples)
    return f"{label} is {', '.join(value or '(none)' for value in values[:5])}"


# --- The signals file: metrics and labels of any other exporter, in YAML


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


Names = Annotated[
    list[Annotated[str, pydantic.Field(min_length=1)]],
    pydantic.Field(min_length=1),
    pydantic.BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
]


class LabelsTable(_Part):
    """Labels: one name each, or several in order of preference."""

    namespace: Names = pydantic.Field(description="The pod's namespace.")
    pod: Names = pydantic.Field(description="The pod.")
    device: Names = pydantic.Field(description="The GPU's UUID.")
    instance: Names | None = pydantic.Field(None, description="The MIG instance of a GPU.")
    profile: Names | None = pydantic.Field(None, description="The MIG instance's profile.")
    model: Names | None = pydantic.Field(None, description="The GPU's model, which gives its idle power.")
    node: Names | None = pydantic.Field(None, description="The node.")

    def names(self) -> LabelNames:
        """The names for queries."""
        names = {field: tuple(getattr(self, field) or ()) for field in type(self).model_fields}
        return LabelNames(**names, is_mixed=len(self.namespace) > 1)


class MetricRow(_Part):
    """One metric."""

    quantity: Literal["activity", "traffic", "memory", "power"] = pydantic.Field(
        description="The quantity: share of time in which the GPU (activity) or its memory bus (traffic) was busy; "
        "memory in use; power drawn."
    )
    selector: str = pydantic.Field(description="A metric's name, with optional matchers in braces.")
    scale: float = pydantic.Field(
        1.0,
        gt=0.0,
        strict=False,
        allow_inf_nan=False,
        description="Factor to shares from 0 to 1, bytes, watts: 0.01 for percent, 1048576 for MiB.",
    )
    limit: float | None = pydantic.Field(
        None,
        gt=0.0,
        strict=False,
        allow_inf_nan=False,
        description="The highest plausible value after scaling; a higher one is invalid.",
    )

    @pydantic.field_validator("selector")
    @classmethod
    def _is_selector(cls, text: str) -> str:
        if not _SELECTOR.fullmatch(text.strip()):
            message = f'{text[:60]!r} is not a selector such as gpu_utilization{{job="gpus"}}'
            raise ValueError(message)
        return text.strip()

    def metric(self, number: int) -> Metric:
        """The metric for queries. Rows measure different things, so only copies of one row can disagree."""
        found = _SELECTOR.fullmatch(self.selector)
        assert found is not None  # noqa: S101 - it has been validated
        matchers = (found["matchers"] or found["more"] or "").strip().removesuffix(",")
        return Metric(
            MetricKind(self.quantity),
            found["plain"] or found["quoted"][1:-1],
            self.scale,
            alike=str(number),
            matchers=(matchers,) if matchers else (),
            limit=self.limit,
        )


class Signals(_Part):
    """The file."""

    apiVersion: Literal["gpu-rightsizer.io/v1alpha1"]  # noqa: N815 - spelled as Kubernetes spells it
    kind: Literal["Signals"]
    labels: LabelsTable
    quantities: list[MetricRow] = pydantic.Field(min_length=1, description="The metrics.")


KIND = FileKind(
    "signals table", Signals, "apiVersion, kind, labels, quantities", "docs/signals.md", SignalsError
)


def read_signals(path: pathlib.Path) -> MetricSource:
    """Read a signals file.

    Raises:
        ConfigurationError: The file cannot be read.
        SignalsError: With all problems of its content.
    """
    signals, lines = yamlfile.parse(yamlfile.read_bytes(path, KIND), KIND, source=str(path))
    if not any(row.quantity == "activity" for row in signals.quantities):
        problem = Problem(lines["quantities",], "quantities", "none is activity, which every finding needs")
        raise SignalsError(str(path), [problem])
    metrics = tuple(row.metric(number) for number, row in enumerate(signals.quantities))
    return MetricSource(str(path), metrics, signals.labels.names(), has_rules=False)
