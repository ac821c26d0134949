"""The dashboard as a page of HTML, from a Prometheus: for the demo and the pictures, where no Grafana is at hand."""

import html
from collections.abc import Iterable

from dashboards.drawing import STYLE, Answers, draw_panel
from dashboards.panels import Kind, Panel, Row
from dashboards.rows import VARIABLES
from simulator.prometheus import Prometheus

_NOTE = "Panels of dashboards/grafana.json, with the data of the demo. Grafana itself is not needed."


def page(
    rows: Iterable[Row],
    prometheus: Prometheus,
    minutes: range,
    *,
    skip_empty: bool = False,
    refresh_s: int = 0,
) -> str:
    """These rows over `minutes`; panels without data say so, or are left out."""
    shown = "".join(_row(row, prometheus, minutes, skip_empty=skip_empty) for row in rows)
    refresh = f'<meta http-equiv=refresh content="{refresh_s}">' if refresh_s else ""
    head = f"<meta charset=utf-8>{refresh}<title>GPUs</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang=en><head>{head}</head><body>{shown}<p>{_NOTE}</p></body></html>"


def _row(row: Row, prometheus: Prometheus, minutes: range, *, skip_empty: bool) -> str:
    found = [(panel, _answers(panel, prometheus, minutes)) for panel in row.panels]
    panels = "".join(draw_panel(panel, answers) for panel, answers in found if any(answers) or not skip_empty)
    return f"<h2>⌄ {html.escape(row.title)}</h2>{panels}"


def _answers(panel: Panel, prometheus: Prometheus, minutes: range) -> Answers:
    def filled(expression: str) -> str:
        for variable in VARIABLES:
            expression = expression.replace(f'"${variable.name}"', '".*"')
        return expression.replace("$__range", f"{minutes[-1] - minutes[0]}s")

    if panel.kind is Kind.LINES:
        return [prometheus.query_range(filled(query.expr), minutes) for query in panel.queries]
    return [prometheus.query(filled(query.expr), at_s=minutes[-1]) for query in panel.queries]
