"""What docs/dashboard.md says of rows, panels and variables, from where they are defined."""

from dashboards.panels import Kind, Panel, Source
from dashboards.rows import ROWS, VARIABLES
from scripts.tables import table

_NEEDS = {
    Source.EXPORTER: "",
    Source.OURS: "gpu-exporter",
    Source.WAITING: "kube-state-metrics or `run`",
    Source.RIGHTSIZER: "`run`",
}


def panels() -> str:
    """Every panel, by row."""
    parts = []
    for row in ROWS:
        rows = ((one.title, one.words, _needs(one)) for one in row.panels if one.kind is not Kind.TEXT)
        parts.append(f"### {row.title}\n\n{table(('panel', 'says', 'needs'), rows)}")
    return "\n\n".join(parts)


def _needs(panel: Panel) -> str:
    """What the panel needs, or some of its queries."""
    if panel.source is not Source.EXPORTER:
        return _NEEDS[panel.source]
    some = dict.fromkeys(ask.source for ask in panel.asks if ask.source is not Source.EXPORTER)
    return ", ".join(f"{ask.name}: {_NEEDS[ask.source]}" for ask in panel.asks if ask.source in some)


def variables() -> str:
    """Every variable."""
    rows = ((f"`{one.name}`", one.title, f"`{one.label}`", one.words) for one in VARIABLES)
    return table(("variable", "title", "label", "chooses"), rows)
