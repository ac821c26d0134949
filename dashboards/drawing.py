"""Draws panels as HTML and SVG from the answers to their queries, where no Grafana is at hand. Pure."""

import html
import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from dashboards.panels import Kind, Panel

FEW = 8
"""Below it, an axis has decimals."""
PALETTE = (
    "#73bf69",
    "#f2cc0c",
    "#8ab8ff",
    "#ff780a",
    "#f2495c",
    "#5794f2",
    "#b877d9",
    "#705da0",
    "#37872d",
    "#fade2a",
)
STYLE = (
    "body{background:#111217;color:#ccccdc;font:13px DejaVu Sans,sans-serif;margin:8px;width:1384px;zoom:.999}"
    "h2{font-size:14px;margin:10px 4px 2px;clear:both}h3{font-size:12px;margin:0 0 4px;font-weight:500}"
    ".p{float:left;box-sizing:border-box;background:#181b1f;border:1px solid #2c2e33;padding:8px;margin:3px;"
    "overflow:hidden}.n{font-size:38px;text-align:center;margin-top:16px}table{width:100%;border-collapse:collapse}"
    "pre{white-space:pre-wrap}"
    "td,th{text-align:left;border-bottom:1px solid #2c2e33;padding:3px 8px;font-size:12px}th{color:#6e9fff}"
    ".l{font-size:11px;white-space:nowrap}.l b{margin:0 4px 0 10px}p{clear:both;color:#888;padding:6px}"
)
_UNITS: Mapping[str, tuple[float, str, int]] = {
    "percentunit": (100, "%", 0),
    "bytes": (2**-30, " GiB", 1),
    "hertz": (1e-9, " GHz", 2),
    "celsius": (1, " °C", 0),
    "watt": (1, " W", 0),
    "h": (1, " h", 1),
}
"""Factor, ending and decimals by Grafana's names of units."""
_DURATIONS = ((86400, "d"), (3600, "h"), (60, "min"))
_SHADES = {"green": "#73bf69", "orange": "#ff9830", "blue": "#5794f2"}
_RED = "#f2495c"
_LEFT = 54
"""Space for the figures of the axis."""
Answers = Sequence[Sequence[Mapping[str, Any]]]
"""Of each query of a panel, the result of Prometheus's API: of a range for lines, of an instant for the rest."""


def draw_panel(panel: Panel, found: Answers) -> str:
    """A panel with its title."""
    width, height = panel.width * 57.5 - 6, panel.height * 32 - 6
    match panel.kind:
        case Kind.TEXT:
            body = f"<pre>{html.escape(panel.words)}</pre>"
        case _ if not any(found):
            body = f"<i>{html.escape(panel.nothing)}</i>"
        case Kind.STAT:
            body = _stat(panel, found)
        case Kind.LINES:
            body = _lines(panel, found, width - 18, height - 62)
        case _:
            body = _table(panel, found)
    title = html.escape(panel.title)
    return f'<div class=p style="width:{width}px;height:{height}px"><h3>{title}</h3>{body}</div>'


def _stat(panel: Panel, found: Answers) -> str:
    value = float(next(answer for answer in found if answer)[0]["value"][1])
    colour = [name for name, least in panel.steps if least is None or value >= least][-1]
    words, colour = panel.values.get(f"{value:g}", (_figure(value, panel.unit, panel.decimals or 0), colour))
    return f'<div class=n style="color:{_SHADES.get(colour, _RED)}">{html.escape(words)}</div>'


def _name(name: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda match: labels.get(match[1], ""), name).strip() or "(none)"


def _lines(panel: Panel, found: Answers, width: float, height: float) -> str:
    tracks = [
        (_name(query.name, track["metric"]), {int(at): float(value) for at, value in track["values"]})
        for query, answer in zip(panel.queries, found, strict=True)
        for track in answer
    ]
    instants = sorted({at for _, values in tracks for at in values})
    below = dict.fromkeys(instants, 0.0)
    paths, drawn = [], []
    for _, values in tracks:
        top = {at: value + below[at] for at, value in values.items()}
        drawn.append((top, dict(below)))
        if panel.is_stacked:
            below |= top
    most = (
        panel.maximum or max((value for top, _ in drawn for value in top.values()), default=1.0) * 1.1 or 1.0
    )

    def across(at: int) -> float:
        return _LEFT + (at - instants[0]) / (instants[-1] - instants[0] or 1) * (width - _LEFT - 6)

    def up(value: float) -> float:
        return 4 + (height - 20) * (1 - value / most)

    for colour, (top, base) in zip(PALETTE * 2, drawn, strict=False):
        points = " ".join(f"{across(at):.1f},{up(value):.1f}" for at, value in sorted(top.items()))
        if panel.is_stacked:
            floor = " ".join(f"{across(at):.1f},{up(base[at]):.1f}" for at in sorted(top, reverse=True))
            paths.append(f'<polygon points="{points} {floor}" fill="{colour}" fill-opacity=".25"/>')
        paths.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    for part in range(5):
        y = up(most * part / 4)
        label = _figure(most * part / 4, panel.unit, int(most < FEW))
        paths.append(
            f'<path d="M{_LEFT} {y:.1f}H{width:.0f}" stroke="#2c2e33"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}">{label}</text>'
        )
    for at in instants[:: max(1, len(instants) // 4)][1:]:
        clock = time.strftime("%H:%M", time.gmtime(at))
        paths.append(f'<text x="{across(at):.1f}" y="{height - 1:.1f}">{clock}</text>')
    legend = "".join(
        f'<b style="color:{colour}">━</b>{html.escape(name)}'
        for colour, (name, _) in zip(PALETTE * 2, tracks, strict=False)
    )
    size = f'width="{width}" height="{height}" font-size="10" fill="#999" text-anchor="end"'
    return f"<svg {size}>{''.join(paths)}</svg><div class=l>{legend}</div>"


def _table(panel: Panel, found: Answers) -> str:
    rows: dict[tuple[str, ...], dict[str, float]] = {}
    queries = [(query, answer) for query, answer in zip(panel.queries, found, strict=True) if answer]
    for query, answer in queries:
        for one in answer:
            key = tuple(one["metric"].get(label, "") for label in panel.columns)
            rows.setdefault(key, {})[query.name] = float(one["value"][1])
    heads = [*panel.columns.values(), *(query.name for query, _ in queries)]
    ordered = sorted(rows.items(), key=lambda row: -max(row[1].values()))
    cells = [
        [*key, *(_figure(values.get(query.name), query.unit or panel.unit, 1) for query, _ in queries)]
        for key, values in ordered
    ]
    lines = [_row("th", heads), *(_row("td", row) for row in cells)]
    return f"<table>{''.join(lines)}</table>"


def _row(tag: str, texts: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts) + "</tr>"


def _figure(value: float | None, unit: str, decimals: int) -> str:
    """A value with its unit; `decimals` are those of numbers without one."""
    if value is None:
        return ""
    if unit in _UNITS:
        factor, ending, decimals = _UNITS[unit]
        return f"{value * factor:.{decimals}f}{ending}"
    if unit == "s" and math.isfinite(value):
        size, ending = next((one for one in _DURATIONS if value >= one[0]), (1, "s"))
        return f"{value / size:.{int(size > 1)}f} {ending}"
    return f"{value:.{decimals}f}"
