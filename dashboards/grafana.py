"""The table of panels as Grafana's classic dashboard, schema 42. Pure.

`make check-dashboard` compiles what it makes against the schema:
https://github.com/grafana/grafana/tree/main/packages/grafana-schema.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from dashboards.panels import Kind, Panel, Query, Row, Source, Variable

SCHEMA_VERSION = 42
_WIDTH = 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
ALL = ".*"
"""The value of an unset variable; it also matches series without the label."""


def dashboard(rows: Sequence[Row], variables: Sequence[Variable]) -> dict[str, Any]:
    """The whole document."""
    return {
        "uid": "gpu-rightsizer",
        "title": "GPUs: allocation and use",
        "description": "GPUs held, used, idle and requested, by class, namespace, workload and node, and the changes "
        "of gpu-rightsizer. Needs the recording rules of deploy/prometheus/dashboard-rules.yaml.",
        "tags": ["gpu", "gpu-rightsizer"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "1m",
        "links": [],
        "annotations": {"list": []},
        "templating": {"list": [_datasource(), *map(_variable, variables)]},
        "panels": list(_placed(rows)),
    }


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "description": "Prometheus with the recording rules",
        "type": "datasource",
        "query": "prometheus",
        "hide": 0,
        "multi": False,
        "includeAll": False,
        "refresh": 1,
    }


def _variable(variable: Variable) -> dict[str, Any]:
    query = f"label_values({variable.series}, {variable.label})"
    return {
        "name": variable.name,
        "label": variable.title,
        "description": variable.words,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"qryType": 1, "query": query, "refId": f"Variable-{variable.name}"},
        "hide": 0,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ALL,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _placed(rows: Sequence[Row]) -> Iterable[dict[str, Any]]:
    """Rows below each other, with their panels from left to right."""
    numbers = itertools.count(1)
    top = 0
    for row in rows:
        yield {
            "type": "row",
            "id": next(numbers),
            "title": row.title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": _WIDTH, "h": 1},
            "panels": [],
        }
        left, top, tallest = 0, top + 1, 0
        for panel in row.panels:
            if left + panel.width > _WIDTH:
                left, top, tallest = 0, top + tallest, 0
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            yield {"id": next(numbers), "gridPos": place} | _panel(panel)
            left, tallest = left + panel.width, max(tallest, panel.height)
        top += tallest


def _panel(panel: Panel) -> dict[str, Any]:
    if panel.kind is Kind.TEXT:
        options: dict[str, Any] = {"mode": "markdown", "content": panel.words}
        return {"type": panel.kind.value, "title": panel.title, "transparent": True, "options": options}
    needs = f" {panel.source.value}" if panel.source is not Source.EXPORTER else ""
    return {
        "type": panel.kind.value,
        "title": panel.title,
        "description": panel.words + needs,
        "datasource": _SOURCE,
        "targets": [
            _target(query, panel.kind, letter) for query, letter in zip(panel.queries, _LETTERS, strict=False)
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _OPTIONS[panel.kind],
        **({"interval": panel.step} if panel.kind is Kind.LINES else {}),
        **({"transformations": _transformations(panel)} if panel.kind is Kind.TABLE else {}),
    }


_LETTERS = "ABCDEFGH"


def _target(query: Query, kind: Kind, letter: str) -> dict[str, Any]:
    is_range = kind is Kind.LINES
    return {
        "refId": letter,
        "datasource": _SOURCE,
        "expr": query.expr,
        "legendFormat": query.name,
        "format": "table" if kind is Kind.TABLE else "time_series",
        "range": is_range,
        "instant": not is_range,
        "editorMode": "code",
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    steps = [{"color": colour, "value": value} for colour, value in panel.steps]
    found: dict[str, Any] = {
        "unit": panel.unit,
        "noValue": panel.nothing,
        "color": {"mode": "palette-classic" if panel.kind is Kind.LINES else "thresholds"},
        "thresholds": {"mode": "absolute", "steps": steps},
        "mappings": [_mapping(panel)] if panel.values else [],
    }
    if panel.decimals is not None:
        found["decimals"] = panel.decimals
    if panel.kind is Kind.LINES:
        found |= {"min": 0, "custom": _lines(panel)}
    if panel.maximum is not None:
        found["max"] = panel.maximum
    return found


def _mapping(panel: Panel) -> dict[str, Any]:
    options = {
        value: {"text": text, "color": colour, "index": place}
        for place, (value, (text, colour)) in enumerate(panel.values.items())
    }
    return {"type": "value", "options": options}


def _lines(panel: Panel) -> dict[str, Any]:
    return {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 30 if panel.is_stacked else 5,
        "showPoints": "never",
        "spanNulls": 180_000,
        "stacking": {"mode": "normal" if panel.is_stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "dashed" if len(panel.steps) > 1 else "off"},
    }


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    """Units of table columns that differ from the panel's."""
    if panel.kind is not Kind.TABLE:
        return []
    return [
        {
            "matcher": {"id": "byName", "options": query.name},
            "properties": [{"id": "unit", "value": query.unit}, *_bar(query)],
        }
        for query in panel.queries
        if query.unit
    ]


def _bar(query: Query) -> list[dict[str, Any]]:
    if query.unit != "percentunit":
        return []
    cell = {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}
    return [
        {"id": "custom.cellOptions", "value": cell},
        {"id": "min", "value": 0},
        {"id": "max", "value": 1},
        {"id": "decimals", "value": 0},
    ]


def _transformations(panel: Panel) -> list[dict[str, Any]]:
    """One table of all queries: labels first, then values."""
    values = {
        f"Value #{letter}" if len(panel.queries) > 1 else "Value": query.name
        for query, letter in zip(panel.queries, _LETTERS, strict=False)
    }
    wanted = [*panel.columns, *values]
    return [
        # Before the merge: rows with different metric names or times would not merge.
        {"id": "filterFieldsByName", "options": {"include": {"names": wanted}}},
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {},
                "indexByName": {name: place for place, name in enumerate(wanted)},
                "renameByName": {**panel.columns, **values},
            },
        },
        {"id": "sortBy", "options": {"sort": [{"field": panel.queries[0].name, "desc": True}]}},
    ]


_OPTIONS: dict[Kind, dict[str, Any]] = {
    Kind.STAT: {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "value",
    },
    Kind.LINES: {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    Kind.TABLE: {"showHeader": True, "cellHeight": "sm"},
}
