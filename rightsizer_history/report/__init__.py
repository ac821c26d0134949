"""The forms that a backtest or the account of a ledger can be printed in. Adding one is a row here.

They are named, not imported, so that --help answers at once.
"""

import pkgutil
from collections.abc import Callable, Mapping

from rightsizer.report import JSON, TABLE

Form = Callable[..., str]
"""Takes a Backtest or a LedgerAccount."""

CSV = "csv"

# Name of the form → module below this package, and its function.
BACKTEST_FORMS: Mapping[str, str] = {
    TABLE: "backtest:backtest_table",
    JSON: "backtest:backtest_json",
    "yaml": "backtest:backtest_yaml",
    CSV: "backtest:backtest_csv",
    "markdown": "backtest:backtest_markdown",
    "html": "backtest_page:backtest_html",
}

LEDGER_FORMS: Mapping[str, str] = {
    TABLE: "ledger:ledger_table",
    JSON: "ledger:ledger_json",
    "yaml": "ledger:ledger_yaml",
    CSV: "ledger:focus_csv",
    "markdown": "ledger:ledger_markdown",
    "html": "ledger_page:ledger_html",
}
"""Renderers of the ledger's account; CSV is made of its charges instead."""

BACKTEST_ENDINGS: Mapping[str, str] = {
    ".txt": TABLE,
    ".json": JSON,
    ".yaml": "yaml",
    ".csv": CSV,
    ".md": "markdown",
    ".html": "html",
}
"""Form of a file, by its ending."""


def form(name: str, forms: Mapping[str, str]) -> Form:
    """The function that prints in this form."""
    chosen: Form = pkgutil.resolve_name(f"{__name__}.{forms[name]}")
    return chosen
