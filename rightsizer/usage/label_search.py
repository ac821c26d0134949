"""Which labels of series hold a pod of the cluster and a GPU, where those of the source hold none.

It writes the lines of a signals table that reads them (`sources.py`).
"""

import datetime
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from rightsizer.model import PodKey
from rightsizer.prometheus import promql
from rightsizer.usage.querier import SourceQuerier
from rightsizer.usage.source_metrics import DCGM, DCGM_49, LabelNames, Metric

MOST_SERIES = 200
"""Read to find labels, those with the highest values: free GPUs name no pod."""

_METRICS = {metric.name: metric for metric in (*DCGM.metrics, *DCGM_49.metrics)}
_OPTIONAL = ("instance", "profile", "model", "node")


def labels_hint(querier: SourceQuerier, at: datetime.datetime) -> str:
    """What labels of the source's series hold a pod of the cluster and a GPU; empty if none does."""
    return _labels_hint(querier, querier.selected(querier.markers(), querier.matchers), at)


def names_hint(querier: SourceQuerier, at: datetime.datetime) -> str:
    """The metrics with DCGM's names after a prefix, and how a signals table reads them; empty if there are none."""
    pattern = promql.matcher("__name__", "=~", f".+_({'|'.join(_METRICS)})")
    selected = promql.selector("", [pattern, *querier.matchers])
    samples = querier.prometheus.query(promql.by("count", ["__name__"], selected), at)
    found = sorted(sample.labels["__name__"] for sample in samples)
    if not found:
        return ""
    rows = ", ".join(_row(name) for name in found)
    labels = _labels_hint(querier, selected, at)
    return f"Prometheus holds {found[0]}: --signals FILE, with quantities: [{rows}]{labels}"


def _row(name: str) -> str:
    metric: Metric = max(
        (metric for known, metric in _METRICS.items() if name.endswith(f"_{known}")),
        key=lambda one: len(one.name),
    )
    selector = _yaml(promql.selector(name, []).removesuffix("{}"))
    return f"{{quantity: {metric.kind}, selector: {selector}, scale: {metric.scale!r}}}"


def _labels_hint(querier: SourceQuerier, selected: str, at: datetime.datetime) -> str:
    samples = querier.prometheus.query(f"topk({MOST_SERIES}, {selected})", at)
    return find_labels([sample.labels for sample in samples], querier.gpu_pods)


def find_labels(series: Sequence[Mapping[str, str]], pods: Collection[PodKey]) -> str:
    """Which labels hold a pod and a GPU, and the line of a signals table; what to say after other words."""
    names = {name for _, name in pods}
    pairs = [pair for labels in series for pair in labels.items()]
    pod = _most("pod", (pair for pair in pairs if pair[1] in names))
    gpu = _most("uuid", (pair for pair in pairs if pair[1].startswith("GPU-")))
    words = [f"label {pod[0]} holds pod {pod[1]} of this cluster"] if pod else []
    words += [f"label {gpu[0]} holds {gpu[1]}"] if gpu else []
    namespace = pod and _most(
        "namespace",
        (
            (label, value)
            for labels in series
            for label, value in labels.items()
            if (value, labels.get(pod[0], "")) in pods
        ),
    )
    if pod and not namespace:
        words.append("none holds its namespace")
    if pod and namespace and gpu:
        present = {label for labels in series for label in labels}
        table = {"namespace": namespace[0], "pod": pod[0], "device": gpu[0]}
        known = ((field, label) for field in _OPTIONAL for label in getattr(LabelNames(), field))
        for field, label in known:
            if label in present:
                table.setdefault(field, label)
        line = ", ".join(f"{field}: {_yaml(label)}" for field, label in table.items())
        words.append(f"with --signals FILE, the table's line is labels: {{{line}}}")
    return "".join(f"; {part}" for part in words)


def _most(word: str, pairs: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """The label that occurs most, and its first value; of several one that has the word in its name."""
    values: dict[str, list[str]] = {}
    for label, value in pairs:
        values.setdefault(label, []).append(value)
    if not values:
        return None
    label = max(values, key=lambda one: (len(values[one]), word in one.lower(), one))
    return label, values[label][0]


def _yaml(text: str) -> str:
    return text if re.fullmatch(r"[\w./-]+", text) else json.dumps(text)
