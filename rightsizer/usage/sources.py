"""Which source there is: found out by asking for the metrics of each, or given by `--signals`."""

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
from rightsizer.usage import counter_meaning, custom_source
from rightsizer.usage.dcgm_names import DCGM, DCGM_49
from rightsizer.usage.quantities import Metric, MetricKind, MetricSource
from rightsizer.usage.querier import QueryMemo, SourceQuerier, series_count

GPU_EXPORTER = "gpu-exporter"
DCGM_SOURCES = MetricSource("dcgm, dcgm-4.9", (*DCGM.quantities, *DCGM_49.quantities))
GPU_EXPORTER_SOURCE = dataclasses.replace(DCGM_SOURCES, name=GPU_EXPORTER, has_counters=True)
NAMED = {DCGM.name: DCGM, DCGM_49.name: DCGM_49, GPU_EXPORTER: GPU_EXPORTER_SOURCE}

LOOKBACKS = tuple(datetime.timedelta(minutes=minutes) for minutes in (0, 15, 60, 6 * 60, 24 * 60))
"""When metrics are looked for: an exporter may have stopped a while ago, and that is another finding than none."""


@dataclasses.dataclass(frozen=True, slots=True)
class SourceSettings:
    """What is given about the signals.

    Attributes:
        labels: What every series must carry.
        source: The only source to judge by; None where it is to be found out.
        max_samples: What Prometheus loads at most for one query.
    """

    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    source: MetricSource | None = None
    max_samples: int = MAX_SAMPLES

    @property
    def matchers(self) -> tuple[str, ...]:
        """As PromQL has them."""
        return tuple(f"{name}={promql.quoted(value)}" for name, value in sorted(self.labels.items()))


def named(text: str) -> MetricSource | None:
    """The source that `--signals` means; None for auto.

    Raises:
        UsageError: There is neither such a source nor such a file.
        ConfigurationError: The table cannot be used.
    """
    if text == FIND_OUT:
        return None
    if text in NAMED:
        return NAMED[text]
    path = pathlib.Path(text)
    if path.suffix not in {".yaml", ".yml", ".json"} and not path.exists():
        names = ", ".join((FIND_OUT, *NAMED))
        raise UsageError(f"--signals {text}: is neither one of {names}, nor a file")
    return custom_source.load(path)


def choose(
    prometheus: Prometheus, terms: SourceSettings, *, at: datetime.datetime, pods: Collection[PodKey] = ()
) -> SourceQuerier:
    """The source that this Prometheus has.

    All names of DCGM's are asked for where any is there: an exporter may have changed them within the window.

    Args:
        prometheus: Where to ask.
        terms: What is given about the signals.
        at: When.
        pods: Those that hold GPUs, as far as that is known.

    Raises:
        EvidenceIncomplete: It has none, or not the one that was named.
        PrometheusError: It could not be asked.
    """
    given = terms.source
    asked = given or GPU_EXPORTER_SOURCE
    memo = QueryMemo()
    for back in LOOKBACKS:
        found = _some(prometheus, asked, terms.matchers, at - back, memo=memo, at=at)
        if any(quantity.metric in found for quantity in asked.quantities):
            break
    else:
        _explain_nothing(prometheus, terms, at)
    quantities = tuple(quantity for quantity in asked.quantities if quantity.metric in found)
    has_counters = asked.has_counters and {counter_meaning.POD_BUSY, counter_meaning.DEVICE_BUSY} <= found
    if given is GPU_EXPORTER_SOURCE and not has_counters:
        raise EvidenceIncomplete(
            f"--signals {GPU_EXPORTER}: Prometheus holds DCGM's metrics, but not {counter_meaning.DEVICE_BUSY} and "
            f"{counter_meaning.POD_BUSY} of our exporter"
        )
    name = given.name if given else _name(quantities, has_counters)
    source = dataclasses.replace(asked, name=name, has_counters=has_counters)
    return SourceQuerier(prometheus, source, terms.matchers, terms.max_samples, frozenset(pods), memo)


def _some(
    prometheus: Prometheus,
    source: MetricSource,
    matchers: Sequence[str],
    instant: datetime.datetime,
    *,
    memo: QueryMemo,
    at: datetime.datetime,
) -> set[str]:
    """Of each generation of names one metric that there is, and which of our own: all of a large fleet cost seconds."""
    names = "|".join(counter_meaning.METRICS if source.has_counters else ())
    found = set()
    if names:
        selected = promql.selector("", [f"__name__=~{promql.quoted(names)}", *matchers])
        for sample in prometheus.query(promql.by("count", ["__name__"], selected), instant):
            found.add(sample.labels.get("__name__", ""))
    known = frozenset(source.quantities)
    for generation in (set(DCGM.quantities), set(DCGM_49.quantities), known - set(DCGM_SOURCES.quantities)):
        mine = [quantity for quantity in source.quantities if quantity in generation]
        for quantity in sorted(mine, key=lambda one: one.kind is not MetricKind.MEMORY):
            selected = promql.selector(quantity.metric, [*quantity.matchers, *matchers])
            if memo.of(
                at, (selected, instant), functools.partial(series_count, prometheus, selected, instant)
            ):
                found.add(quantity.metric)
                break
    return found


def present(
    prometheus: Prometheus, source: MetricSource, matchers: Sequence[str], at: datetime.datetime
) -> set[str]:
    """Which of a source's metrics there are."""
    plain = [quantity.metric for quantity in source.quantities if not quantity.matchers]
    names = "|".join([*plain, *(counter_meaning.METRICS if source.has_counters else ())])
    selectors = [
        promql.selector(one.metric, [*one.matchers, *matchers]) for one in source.quantities if one.matchers
    ]
    if names:
        selectors.append(promql.selector("", [f"__name__=~{promql.quoted(names)}", *matchers]))
    found = set()
    for selected in selectors:
        for sample in prometheus.query(promql.by("count", ["__name__"], selected), at):
            found.add(sample.labels.get("__name__", ""))
    return found


def _name(quantities: Sequence[Metric], has_counters: bool) -> str:  # noqa: FBT001 - what else
    if has_counters:
        return GPU_EXPORTER
    return ", ".join(source.name for source in (DCGM, DCGM_49) if set(source.quantities) & set(quantities))


def _explain_nothing(prometheus: Prometheus, terms: SourceSettings, at: datetime.datetime) -> None:
    """Tell an empty Prometheus from one whose series carry other labels, or are another source's.

    Raises:
        EvidenceIncomplete: Always.
    """
    asked = terms.source or GPU_EXPORTER_SOURCE
    if terms.source is not None:
        other = present(prometheus, GPU_EXPORTER_SOURCE, terms.matchers, at)
        if other:
            names = ", ".join(dict.fromkeys(quantity.metric for quantity in asked.quantities))
            raise EvidenceIncomplete(
                f"--signals {asked.name}: Prometheus holds none of {names}; it does hold {min(other)}: "
                "leave --signals out"
            )
    for back in LOOKBACKS:
        if present(prometheus, asked, (), at - back):
            found = "; ".join(_values(prometheus, asked, name, at - back) for name in sorted(terms.labels))
            raise EvidenceIncomplete(
                f"Prometheus holds GPU series, but none with {', '.join(terms.matchers)} (--prometheus-label): {found}"
            )
    raise EvidenceIncomplete(
        f"Prometheus holds no GPU series ({asked.quantities[0].metric} and its like) in the last 24h: "
        "is gpu-exporter or dcgm-exporter scraped, and is this the right Prometheus?"
    )


def _values(prometheus: Prometheus, source: MetricSource, label: str, at: datetime.datetime) -> str:
    """Which values of a label there are, in words."""
    selected = " or ".join(promql.selector(one.metric, one.matchers) for one in source.quantities)
    samples = prometheus.query(promql.by("count", [label], selected), at)
    values = sorted(sample.labels.get(label, "") for sample in samples)
    return f"{label} is {', '.join(value or '(none)' for value in values[:5])}"
