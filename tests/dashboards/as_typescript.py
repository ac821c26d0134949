"""dashboards/grafana.json as a TypeScript program that compiles only where Grafana's own types allow all of it.

    python -m tests.dashboards.as_typescript > dashboard.ts

Prints literals, since the compiler looks for unknown properties only in these. What a kind of panel may have in
`options` and `custom` stands in other types than the dashboard's, so these are checked beside it.
"""

import json
import sys
from typing import Any

from dashboards.__main__ import DASHBOARD

_HEAD = """\
import type {{ Dashboard }} from "@grafana/schema";
{imports}

// JSON has strings where the types have enumerations.
type Json<T> = T extends string ? `${{T}}` : T extends object ? {{ [K in keyof T]: Json<T[K]> }} : T;
"""
_KINDS = {"stat": "Stat", "timeseries": "TimeSeries", "table": "Table", "text": "Text"}
"""What the schema calls the kinds of panels."""
_PANELS = "@grafana/schema/dist/esm/raw/composable/{kind}/panelcfg/x/{name}PanelCfg_types.gen"


def program(board: dict[str, Any]) -> str:
    """The program."""
    imports = "\n".join(
        f"import type * as {kind} from {json.dumps(_PANELS.format(kind=kind, name=name))};"
        for kind, name in _KINDS.items()
    )
    parts = [_HEAD.format(imports=imports), _constant("dashboard", "Dashboard", board)]
    for panel in board["panels"]:
        kind, number = panel["type"], panel["id"]
        if kind not in _KINDS:
            continue
        parts.append(_constant(f"options_{number}", f"Partial<{kind}.Options>", panel["options"]))
        if custom := panel.get("fieldConfig", {}).get("defaults", {}).get("custom"):
            parts.append(_constant(f"custom_{number}", f"Partial<{kind}.FieldConfig>", custom))
    return "\n".join(parts)


def _constant(name: str, type_: str, value: object) -> str:
    return f"export const {name}: Json<{type_}> = {json.dumps(value, indent=2)};\n"


if __name__ == "__main__":
    sys.stdout.write(program(json.loads(DASHBOARD.read_text())))
