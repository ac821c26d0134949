"""A plan with one line for each workload, as wide as it is, for people with wide terminals and for grep. Pure."""

from collections.abc import Callable, Iterator, Mapping

from rightsizer.model import Plan
from rightsizer.planning.cost_summary import Accounts
from rightsizer.prices import Prices
from rightsizer.report.autoscaler_manifests import HPA, KEDA, on_one_line
from rightsizer.report.rows import Row, rows_of
from rightsizer.report.table import NOBODY
from rightsizer.text import memory, number, percent, power, safe, span

_NOTHING = "-"
"""There is nothing to tell; what is not known is a question mark."""

_COLUMNS: Mapping[str, Callable[[Row], str]] = {
    "NAMESPACE": lambda row: row.decision.workload.ref.namespace,
    "KIND": lambda row: row.decision.workload.ref.kind,
    "NAME": lambda row: row.decision.workload.ref.name,
    "CLASS": lambda row: row.decision.workload.priority_class,
    "GPUS": lambda row: str(row.decision.workload.gpus),
    "MODEL": lambda row: row.model,
    "POOL": lambda row: row.pool,
    "MEAN": lambda row: percent(row.finding.activity_mean),
    "PEAK": lambda row: percent(row.finding.activity_peak),
    "MEMORY": lambda row: memory(row.finding.memory_peak_bytes),
    "POWER": lambda row: power(row.finding.power_mean_w),
    "IDLE": lambda row: span(row.finding.idle_s),
    "VERDICT": lambda row: row.decision.verdict.value,
    "FINDING": lambda row: row.finding.name.value,
    "CONFIDENCE": lambda row: row.finding.confidence.value,
    "ACTION": lambda row: row.action,
    "FREES": lambda row: number(row.frees) if row.frees else "",
    "RULE": lambda row: row.decision.rule,
    "BLOCKED BY": lambda row: "; ".join(row.hindrances),
}

_AUTOSCALERS: Mapping[str, Callable[[Row], str]] = {
    "SCALEDOBJECT": lambda row: on_one_line(row.decision, KEDA),
    "HPA": lambda row: on_one_line(row.decision, HPA),
}
"""Manifests; there are such columns only where one is advised."""


def plan_wide(plan: Plan, accounts: Accounts, prices: Prices) -> str:  # noqa: ARG001 - every form's signature
    """Columns are as wide as their widest cell; nothing is wrapped or cut."""
    if not plan.decisions:
        return f"{NOBODY}\n"
    is_advised = any(decision.autoscalers for decision in plan.decisions)
    columns = {**_COLUMNS, **(_AUTOSCALERS if is_advised else {})}
    table = [list(columns), *(list(_cells(row, columns)) for row in rows_of(plan, prices))]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _cells(row: Row, columns: Mapping[str, Callable[[Row], str]]) -> Iterator[str]:
    for tell in columns.values():
        yield safe(tell(row)) or _NOTHING
