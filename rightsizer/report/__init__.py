"""The forms that a plan or a backtest can be printed in: a function for each. Adding one is a row here.

They are named, not imported, so that --help answers at once.
"""

import importlib
from collections.abc import Callable, Mapping

Form = Callable[..., str]
"""Takes a Plan, its CostSummary and the Prices, or a Backtest; they are not imported, so that --help stays light."""

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

BACKTEST_FORMS: Mapping[str, tuple[str, str]] = {
    TABLE: ("backtest", "backtest_table"),
    JSON: ("backtest", "backtest_json"),
    "yaml": ("backtest", "backtest_yaml"),
    "csv": ("backtest", "backtest_csv"),
    "markdown": ("backtest", "backtest_markdown"),
    "html": ("backtest_page", "backtest_html"),
}

CSV = "csv"
LEDGER_FORMS: Mapping[str, tuple[str, str]] = {
    TABLE: ("ledger", "ledger_table"),
    JSON: ("ledger", "ledger_json"),
    "yaml": ("ledger", "ledger_yaml"),
    CSV: ("ledger", "focus_csv"),
    "markdown": ("ledger", "ledger_markdown"),
    "html": ("ledger_page", "ledger_html"),
}
"""Of the ledger's account; CSV is made of its charges instead."""

BACKTEST_ENDINGS: Mapping[str, str] = {
    ".txt": TABLE,
    ".json": JSON,
    ".yaml": "yaml",
    ".csv": "csv",
    ".md": "markdown",
    ".html": "html",
}
"""Form of a file, by its ending."""

DRAWN = frozenset({"html"})
"""Formats with activity lines, which need one more query of Prometheus."""


def form(name: str, forms: Mapping[str, tuple[str, str]] = FORMS) -> Form:
    """The function that prints in this form; the same plan gives the same bytes."""
    module, function = forms[name]
    chosen: Form = getattr(importlib.import_module(f"rightsizer.report.{module}"), function)
    return chosen
