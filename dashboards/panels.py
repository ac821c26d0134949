"""What a panel, a row and a variable are, before they are Grafana's. Pure."""

import dataclasses
import enum
from collections.abc import Mapping, Sequence


class Kind(enum.StrEnum):
    """How a panel shows its values, as Grafana calls it."""

    STAT = "stat"
    LINES = "timeseries"
    TABLE = "table"
    TEXT = "text"


class Source(enum.Enum):
    """What a panel has its data from, beyond an exporter and our recording rules."""

    EXPORTER = ""
    OURS = "Needs gpu-exporter; dcgm-exporter does not tell."
    WAITING = "Needs kube-state-metrics, or the rightsizer's `run`, which publishes metrics on port 9401."
    RIGHTSIZER = (
        "Needs the rightsizer's `run`, which publishes metrics on port 9401; a CronJob's `apply` does not."
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Ask:
    """A query.

    Attributes:
        name: Of the line, with `{{label}}` for what is different, or of the column.
        unit: Of a table's column; a panel's otherwise.
        source: Where it needs more than the panel does.
    """

    expr: str
    name: str
    unit: str = ""
    source: Source = Source.EXPORTER


@dataclasses.dataclass(frozen=True, slots=True)
class Panel:
    """What is asked, and how it is shown.

    Attributes:
        words: What it says and how to read it; for text, its Markdown.
        step: Of lines, the least distance of two points: rules are evaluated every minute; of many series, more.
        steps: Colours from which values on, the first one from the lowest.
        columns: Of a table, the labels that are shown, and their headings.
        values: Numbers that are shown as words.
        nothing: What is shown instead of no data.
    """

    title: str
    kind: Kind
    asks: Sequence[Ask]
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
    """Panels under a heading, from left to right, in as many lines as they need."""

    title: str
    panels: Sequence[Panel]


@dataclasses.dataclass(frozen=True, slots=True)
class Variable:
    """Something to choose by, of the values of a series' label; all of them unless one is chosen."""

    name: str
    title: str
    label: str
    series: str
    words: str
