"""Tables of docs/dashboard.md, generated from the rows, panels and variables of the dashboard."""

from dashboards.panels import Kind, Row
from dashboards.rows import ROWS, VARIABLES
from scripts.tables import table


def panels() -> str:
    """The rows, how many panels each has, and what some of them need."""
    return table(("row", "panels", "need"), map(_row, ROWS))


def _row(row: Row) -> tuple[str, str, str]:
    shown = [panel for panel in row.panels if panel.kind is not Kind.TEXT]
    needs = [panel.source.value.removeprefix("Needs ").removesuffix(".") for panel in shown]
    few = [need for need in dict.fromkeys(needs) if need]
    some = "" if len(set(needs)) == 1 else "some: "
    return row.title, str(len(shown)), some + ", ".join(few) if few else ""


def variables() -> str:
    """Every variable."""
    rows = ((f"`{one.name}`", one.title, f"`{one.label}`", one.words) for one in VARIABLES)
    return table(("variable", "title", "label", "chooses"), rows)
