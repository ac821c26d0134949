"""The forms that a plan can be printed in: a function for each. Adding one is a row here.

They are named, not imported, so that --help answers at once.
"""

import importlib
from collections.abc import Callable, Mapping

Form = Callable[..., str]
"""Takes a Plan, its CostSummary and the Prices; they are not imported, so that --help stays light."""

TABLE, EXPLAIN, JSON = "table", "explain", "json"

# Name of the form → module below rightsizer.report, and its function.
FORMS: Mapping[str, tuple[str, str]] = {
    TABLE: ("table", "plan_table"),
    EXPLAIN: ("evidence_text", "plan_explained"),
    "wide": ("table", "plan_wide"),
    JSON: ("documents", "plan_json"),
    "yaml": ("documents", "plan_yaml"),
    "csv": ("csv", "plan_csv"),
    "markdown": ("markdown", "plan_markdown"),
    "html": ("html", "plan_html"),
}

DRAWN = frozenset({"html"})
"""Formats with activity lines, which need one more query of Prometheus."""


def form(name: str) -> Form:
    """The function that prints in this form; the same plan gives the same bytes."""
    module, function = FORMS[name]
    chosen: Form = getattr(importlib.import_module(f"rightsizer.report.{module}"), function)
    return chosen
