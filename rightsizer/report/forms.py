"""The forms that a plan can be printed in: one file, or function, for each. Adding one is a row here.

They are named, not imported, so that the flag can list them while --help answers at once.
"""

import importlib
from collections.abc import Callable, Mapping

from rightsizer.accounting import Accounts
from rightsizer.model import Plan
from rightsizer.money import Prices

Form = Callable[[Plan, Accounts, Prices], str]

TABLE, JSON = "table", "json"

# Name of the form → module below rightsizer.report, and its function.
FORMS: Mapping[str, tuple[str, str]] = {
    TABLE: ("table", "plan_table"),
    "wide": ("wide", "plan_wide"),
    JSON: ("document", "plan_json"),
    "yaml": ("document", "plan_yaml"),
    "csv": ("sheet", "plan_csv"),
    "markdown": ("markdown", "plan_markdown"),
    "html": ("page", "plan_html"),
}

DRAWN = frozenset({"html"})
"""Those that draw how busy each workload was, which is asked of Prometheus for nothing else."""


def form(name: str) -> Form:
    """The function that prints a plan in this form; the same plan gives the same bytes."""
    module, function = FORMS[name]
    chosen: Form = getattr(importlib.import_module(f"rightsizer.report.{module}"), function)
    return chosen
