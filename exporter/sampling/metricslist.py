"""Parses dcgm-exporter's list of metrics: one line per field with type and help text. Pure.

Known metrics are served under the name, type and help text of the list. Other DCGM fields are skipped with a message,
so that every list for dcgm-exporter works. Of a field that is listed again, the last line counts: dcgm-exporter takes
such a list, and serves both lines as duplicates. Unknown fields are refused, all together.
"""

import dataclasses
import difflib
import functools
import importlib.resources
from collections.abc import Iterable, Mapping, Sequence

from exporter.collectors import Collector, Row
from exporter.errors import ConfigFileError
from exporter.model import Kind, Label, Metric, MetricName, Naming
from exporter.sampling.catalogue import LABELS, EnabledCollectors, LabelRow

_LABEL = "label"
_TYPES = (*(kind.value for kind in Kind), _LABEL)
_COLUMNS = 3
_MOST_HINTS = 20  # each takes milliseconds, and a file of another format has thousands of unknown fields
_NOT_SERVED = "not supported"
_PREFIX = "DCGM_FI_"
_OF_DCGM_EXPORTER = ("DCGM_EXP_", "DCGM_FI_EXP_")
_NO_LABEL = "numbers, which cannot be labels"


@dataclasses.dataclass(frozen=True, slots=True)
class MetricLine:
    """A line of the list. `type` is a Prometheus type or "label"; `help` may be empty."""

    file: str
    number: int
    field: str
    type: str
    help: str

    @property
    def where(self) -> str:
        """The file and the line."""
        return f"{self.file}, line {self.number}"


@dataclasses.dataclass(frozen=True, slots=True)
class MetricSelection:
    """The parsed list. `warnings` name skipped fields and lines."""

    enabled: EnabledCollectors
    warnings: tuple[str, ...]


def select_metrics(
    text: str, name: str, collectors: Sequence[Collector], naming: Naming | None
) -> MetricSelection:
    """Parse the list in `text` of the file `name`. Without `naming`, each metric keeps its name in the list."""
    found = _List(_known(collectors), naming)
    entries = _entries(text, name, found.problems)
    for entry in found.last_of_each_field(entries):
        found.take(entry)
    if not entries and not found.problems:
        found.problems.append(
            f"{name}: has no metric; a line is a field, its type and a help text, with commas"
        )
    if found.problems:
        raise ConfigFileError(found.problems)
    labels = tuple(sorted(found.labels, key=lambda row: row.label.dcgm))
    return MetricSelection(
        EnabledCollectors(_only(collectors, found.metrics), labels),
        (*found.twice, *_skipped(name, found.skipped)),
    )


class _List:
    """Collects metrics by identifying name, labels, skipped lines by reason, and problems."""

    def __init__(self, known: Mapping[str, Row | LabelRow], naming: Naming | None) -> None:
        self.problems: list[str] = []
        self.skipped: dict[str, list[MetricLine]] = {}
        self.metrics: dict[str, Metric] = {}
        self.labels: list[LabelRow] = []
        self.twice: list[str] = []
        self._known = known
        self._naming = naming

    def last_of_each_field(self, entries: Iterable[MetricLine]) -> Iterable[MetricLine]:
        """The lines that count."""
        last: dict[str, MetricLine] = {}
        for entry in entries:
            found = self._known.get(entry.field)
            same = _identity(found) if found else dcgm_fields().get(entry.field, entry.field)
            if same in last:
                self.twice.append(_twice(entry, last[same]))
            last[same] = entry
        return last.values()

    def take(self, entry: MetricLine) -> None:
        """Add one line."""
        if entry.type not in _TYPES:
            types = ", ".join(_TYPES)
            self.problems.append(
                f'{entry.where}: {entry.field}: "{entry.type}" is not a type; available: {types}'
            )
            return
        found = self._known.get(entry.field)
        if isinstance(found, Row):
            self._metric(found.metric, entry)
        elif isinstance(found, LabelRow):
            self._label(found, entry)
        elif entry.field in dcgm_fields():
            self._skip(_NOT_SERVED, entry)
        else:
            self.problems.append(_unknown(entry, self._known, with_hint=len(self.problems) < _MOST_HINTS))

    def _skip(self, reason: str, entry: MetricLine) -> None:
        self.skipped.setdefault(reason, []).append(entry)

    def _metric(self, metric: Metric, entry: MetricLine) -> None:
        if entry.type == _LABEL:
            self._skip(_NO_LABEL, entry)
        else:
            self.metrics[metric.dcgm.name] = _as_listed(metric, entry, self._naming)

    def _label(self, row: LabelRow, entry: MetricLine) -> None:
        if entry.type != _LABEL:
            self.problems.append(
                f"{entry.where}: {entry.field} is a text, not a {entry.type}: its type must be label"
            )
        else:
            self.labels.append(row if self._naming else _as_written(row, entry.field))


def _entries(text: str, name: str, problems: list[str]) -> list[MetricLine]:
    entries = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        columns = [column.strip() for column in content.split(",", _COLUMNS - 1)]
        if len(columns) < _COLUMNS or not columns[0]:
            where = f"{name}, line {number}"
            problems.append(
                f'{where}: "{content}": not a field, its type and a help text, separated by commas'
            )
        else:
            entries.append(MetricLine(name, number, columns[0], columns[1], _unquoted(columns[2])))
    return entries


def _unquoted(text: str) -> str:
    is_quoted = len(text) > 1 and text.startswith('"') and text.endswith('"')
    return text[1:-1].replace('""', '"') if is_quoted else text


def _known(collectors: Sequence[Collector]) -> Mapping[str, Row | LabelRow]:
    """Metrics and labels by all their names, old and new."""
    known: dict[str, Row | LabelRow] = {}
    for row in (row for collector in collectors for row in collector.rows):
        known |= {row.metric.dcgm.name: row, row.metric.dcgm_49.name: row}
    for label in LABELS:
        known |= {label.label.dcgm: label, label.label.dcgm_49: label}
    by_field = {dcgm_fields()[name]: row for name, row in known.items() if name in dcgm_fields()}
    return {name: by_field[field] for name, field in dcgm_fields().items() if field in by_field} | known


def _identity(found: Row | LabelRow) -> str:
    return found.metric.dcgm.name if isinstance(found, Row) else found.label.dcgm


def _as_listed(metric: Metric, entry: MetricLine, naming: Naming | None) -> Metric:
    """`metric` with the type of the list, and with its help text under the name in the list."""
    by_name = {metric_name.name: metric_name for metric_name in (metric.dcgm, metric.dcgm_49)}
    # names that only DCGM 4.6 has are aliases: values are those of the older name
    written = by_name.get(entry.field, dataclasses.replace(metric.dcgm, name=entry.field))
    written = dataclasses.replace(written, help=entry.help)
    if naming is None:
        return dataclasses.replace(metric, dcgm=written, dcgm_49=written, kind=Kind(entry.type))
    return dataclasses.replace(
        metric,
        dcgm=_helped(metric.dcgm, written),
        dcgm_49=_helped(metric.dcgm_49, written),
        kind=Kind(entry.type),
    )


def _helped(metric_name: MetricName, written: MetricName) -> MetricName:
    """The help text of the list if it has this name: the text of another name may have other units."""
    return written if metric_name.name == written.name else metric_name


def _as_written(row: LabelRow, name: str) -> LabelRow:
    return dataclasses.replace(row, label=Label(name, name))


def _only(collectors: Sequence[Collector], metrics: Mapping[str, Metric]) -> tuple[Collector, ...]:
    chosen = []
    for collector in collectors:
        rows = tuple(
            dataclasses.replace(row, metric=metrics[row.metric.dcgm.name])
            for row in collector.rows
            if row.metric.dcgm.name in metrics
        )
        if rows:
            chosen.append(Collector(collector.name, rows))
    return tuple(chosen)


def _twice(entry: MetricLine, before: MetricLine) -> str:
    if entry.field == before.field:
        return f"{entry.where}: {entry.field} is listed again; line {before.number} does not count"
    return (
        f"{entry.where}: {entry.field} is the metric {before.field} of line {before.number} under another name; "
        "that line does not count; --naming both serves both"
    )


def _skipped(name: str, skipped: Mapping[str, Sequence[MetricLine]]) -> list[str]:
    """One line, so that a long list does not hide other messages."""
    parts = (
        f"{reason}: {', '.join(f'{entry.field} (line {entry.number})' for entry in entries)}"
        for reason, entries in skipped.items()
    )
    return [f"{name}: skipped, {'; '.join(parts)}"] if skipped else []


def _unknown(entry: MetricLine, known: Mapping[str, object], *, with_hint: bool) -> str:
    near = _nearest(entry.field, [*known, *dcgm_fields()]) if with_hint else None
    hint = f"; did you mean {near}?" if near else ""
    return f"{entry.where}: {entry.field}: unknown field{hint}"


@functools.cache
def dcgm_fields() -> Mapping[str, str]:
    """DCGM 4.6's name of a field by each of its names, also of fields that are not supported here."""
    found: dict[str, str] = {}
    text = importlib.resources.files("exporter.dcgm").joinpath("fields.txt").read_text()
    for line in text.splitlines():
        for word in () if line.startswith("#") else line.split():
            names = [
                name if name.startswith(_OF_DCGM_EXPORTER) else _PREFIX + name for name in word.split("=")
            ]
            found.update(dict.fromkeys(names, names[0]))
    return found


def _nearest(name: str, names: Iterable[str]) -> str | None:
    """The closest of `names`; None if none is close."""
    found = difflib.get_close_matches(name.upper(), list(names), n=1, cutoff=0.75)
    return found[0] if found else None
