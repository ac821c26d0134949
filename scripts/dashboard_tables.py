"""Tables of docs/dashboard.md, generated from the rows, panels and variables of the dashboard."""

from dashboards.panels import Kind, Panel, Row, Source
from dashboards.rows import ROWS, VARIABLES
from scripts.tables import table


def panels() -> str:
    """Every panel, by row."""
    return "\n\n".join(map(_row, ROWS))


def _row(row: Row) -> str:
    shown = [panel for panel in row.panels if panel.kind is not Kind.TEXT]
    common = {panel.source for panel in shown}
    needs = f"{shown[0].source.value}\n\n" if len(common) == 1 else ""
    rows = ((one.title, one.words if needs else f"{one.words} {_needs(one)}".strip()) for one in shown)
    return f"### {row.title}\n\n{needs.lstrip() + table(('panel', 'shows'), rows)}"


def _needs(panel: Panel) -> str:
    """The needs of the panel, or of some of its queries."""
    if panel.source is not Source.EXPORTER:
        return panel.source.value
    names: dict[Source, list[str]] = {}
    for query in panel.queries:
        names.setdefault(query.source, []).append(query.name)
    return " ".join(f"{source.value[:-1]}: {', '.join(of)}." for source, of in names.items() if source.value)


def variables() -> str:
    """Every variable."""
    rows = ((f"`{one.name}`", one.title, f"`{one.label}`", one.words) for one in VARIABLES)
    return table(("variable", "title", "label", "chooses"), rows)
