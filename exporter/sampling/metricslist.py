"""A list of metrics as dcgm-exporter has it (field, type, help text; a line each) as a choice of what to read. Pure.

What is known here is served under the name, type and help text of the list. What else DCGM has is skipped, in words, so
that a list made for dcgm-exporter works as it is. All else is refused, all of it at once.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from exporter.collectors import Collector, Row
from exporter.dcgm.fields import fields, nearest
from exporter.errors import ConfigFileError
from exporter.model import Kind, Label, Metric, MetricName, Naming
from exporter.sampling.catalogue import LABELS, EnabledCollectors, LabelRow

_LABEL = "label"
_TYPES = (*(kind.value for kind in Kind), _LABEL)
_COLUMNS = 3
_NOT_SERVED = "not served here"
_NO_LABEL = "numbers, which cannot be labels here"


@dataclasses.dataclass(frozen=True, slots=True)
class MetricLine:
    """A line of the list.

    Attributes:
        file: Its name, for messages.
        number: Which line.
        field: The metric's name.
        type: A Prometheus type, or "label".
        help: As it shall be served; may be empty.
    """

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
    """What a list comes to.

    Attributes:
        choice: What to read.
        skipped: A message that names all that is well but cannot be served here; empty where there is nothing.
    """

    choice: EnabledCollectors
    skipped: str


def select_metrics(
    text: str, name: str, collectors: Sequence[Collector], naming: Naming | None
) -> MetricSelection:
    """The list in `text`.

    Args:
        text: The whole file.
        name: The file's name, for messages.
        collectors: All that there are.
        naming: Whose names are served; None for each metric under the name by which the list calls it.

    Raises:
        ConfigFileError: All that is wrong with the list.
    """
    found = _List(_known(collectors), naming)
    entries = _entries(text, name, found.problems)
    for entry in entries:
        found.take(entry)
    if not entries and not found.problems:
        found.problems.append(
            f"{name}: lists no metric; a line is a field, its type and a help text, with commas"
        )
    if found.problems:
        raise ConfigFileError(found.problems)
    labels = tuple(sorted(found.labels, key=lambda row: row.label.dcgm))
    return MetricSelection(
        EnabledCollectors(_only(collectors, found.metrics), labels), _skipped(name, found.skipped)
    )


class _List:
    """A list while it is gone through.

    Attributes:
        problems: Why it cannot be used.
        skipped: What is left out, by reason.
        metrics: What is served, by the name that identifies it.
        labels: What stands on every series.
    """

    def __init__(self, known: Mapping[str, Row | LabelRow], naming: Naming | None) -> None:
        self.problems: list[str] = []
        self.skipped: dict[str, list[MetricLine]] = {}
        self.metrics: dict[str, Metric] = {}
        self.labels: list[LabelRow] = []
        self._known = known
        self._naming = naming
        self._first: dict[str, MetricLine] = {}

    def take(self, entry: MetricLine) -> None:
        """Go through one line."""
        if entry.type not in _TYPES:
            types = ", ".join(_TYPES)
            self.problems.append(
                f'{entry.where}: {entry.field}: "{entry.type}" is no type; there are {types}'
            )
            return
        found = self._known.get(entry.field)
        same = _identity(found) if found else fields().get(entry.field, entry.field)
        first = self._first.setdefault(same, entry)
        if first is not entry:
            self.problems.append(_twice(entry, first))
        elif isinstance(found, Row):
            self._metric(found.metric, entry)
        elif isinstance(found, LabelRow):
            self._label(found, entry)
        elif entry.field in fields():
            self._skip(_NOT_SERVED, entry)
        else:
            self.problems.append(_unknown(entry, self._known))

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
                f"{entry.where}: {entry.field} is a text, no {entry.type}: its type is label"
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
                f'{where}: "{content}": not a field, its type and a help text, with commas between them'
            )
        else:
            entries.append(MetricLine(name, number, columns[0], columns[1], _unquoted(columns[2])))
    return entries


def _unquoted(text: str) -> str:
    """A column without the quotes that CSV allows around it."""
    is_quoted = len(text) > 1 and text.startswith('"') and text.endswith('"')
    return text[1:-1].replace('""', '"') if is_quoted else text


def _known(collectors: Sequence[Collector]) -> Mapping[str, Row | LabelRow]:
    """Every metric and label by each of its names, older ones among them."""
    known: dict[str, Row | LabelRow] = {}
    for row in (row for collector in collectors for row in collector.rows):
        known |= {row.metric.dcgm.name: row, row.metric.dcgm_49.name: row}
    for label in LABELS:
        known |= {label.label.dcgm: label, label.label.dcgm_49: label}
    by_field = {fields()[name]: row for name, row in known.items() if name in fields()}
    return {name: by_field[field] for name, field in fields().items() if field in by_field} | known


def _identity(found: Row | LabelRow) -> str:
    return found.metric.dcgm.name if isinstance(found, Row) else found.label.dcgm


def _as_listed(metric: Metric, entry: MetricLine, naming: Naming | None) -> Metric:
    """`metric` with the list's type, and its help text under the name by which the list calls it."""
    by_name = {spelling.name: spelling for spelling in (metric.dcgm, metric.dcgm_49)}
    # names that only DCGM 4.6 has are mere aliases: values are those of the older name
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


def _helped(spelling: MetricName, written: MetricName) -> MetricName:
    """The list's help text where the list names this spelling: that of another would tell of other units."""
    return written if spelling.name == written.name else spelling


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


def _twice(entry: MetricLine, first: MetricLine) -> str:
    line = f"line {first.number}"
    if entry.field == first.field:
        return f"{entry.where}: {entry.field} is listed a second time, after {line}"
    return (
        f"{entry.where}: {entry.field} is the metric {first.field} of {line} under another name; "
        "list it once, --naming both serves both"
    )


def _skipped(name: str, skipped: Mapping[str, Sequence[MetricLine]]) -> str:
    """All in one line: a list of many fields shall not drown what else is said at the start."""
    parts = (
        f"{reason}: {', '.join(f'{entry.field} (line {entry.number})' for entry in entries)}"
        for reason, entries in skipped.items()
    )
    return f"{name}: skipped, {'; '.join(parts)}" if skipped else ""


def _unknown(entry: MetricLine, known: Mapping[str, object]) -> str:
    near = nearest(entry.field, [*known, *fields()])
    hint = f"; did you mean {near}?" if near else ""
    return f"{entry.where}: {entry.field}: no such field{hint}"
