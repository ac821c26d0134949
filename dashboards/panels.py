"""Panels, rows and variables, before they become Grafana's JSON. Pure."""

import dataclasses
import enum
from collections.abc import Mapping, Sequence


class Kind(enum.StrEnum):
    """Grafana's type of a panel."""

    STAT = "stat"
    LINES = "timeseries"
    TABLE = "table"
    TEXT = "text"


class Source(enum.StrEnum):
    """Data that a panel needs beyond an exporter and the recording rules."""

    EXPORTER = ""
    GPU_EXPORTER = "Needs gpu-exporter."
    PENDING = "Needs kube-state-metrics or `gpu-rightsizer run`."
    RIGHTSIZER = "Needs `gpu-rightsizer run`."


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """A query.

    Attributes:
        name: Of the line, with `{{label}}` for its labels, or of the column.
        unit: Of a table column, if not the panel's.
        source: If the query needs more than the panel.
    """

    expr: str
    name: str
    unit: str = ""
    source: Source = Source.EXPORTER


@dataclasses.dataclass(frozen=True, slots=True)
class Panel:
    """Queries, and how their results are shown.

    Attributes:
        words: Its description; for text, its Markdown.
        step: Minimum interval of two points; rules are evaluated every minute.
        steps: Colours with their lowest values.
        columns: Labels shown in a table, with their headings.
        values: Words shown for numbers.
        nothing: Text shown without data.
    """

    title: str
    kind: Kind
    queries: Sequence[Query]
    words: str
    width: int
    height: int = 8
    unit: str = "short"
    is_stacked: bool = False
    step: str = "1m"
    maximum: float | None = None
    decimals: int | None = None
    steps: Sequence[tuple[str, float | None]] = (("blue", None),)
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)
    values: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    nothing: str = "no data"
    source: Source = Source.EXPORTER


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading, from left to right."""

    title: str
    panels: Sequence[Panel]


@dataclasses.dataclass(frozen=True, slots=True)
class Variable:
    """A dashboard variable: the values of a label; all by default."""

    name: str
    title: str
    label: str
    series: str
    words: str
