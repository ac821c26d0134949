"""CSV (RFC 4180) for spreadsheets, such as of a plan: one header line, one row for each workload. Pure.

Spreadsheets run what looks like a formula, and names in a cluster are not trusted.
https://owasp.org/www-community/attacks/CSV_Injection
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from rightsizer.model import ClusterName, Plan
from rightsizer.planning.cost_summary import CostSummary
from rightsizer.prices import Prices
from rightsizer.report.rows import Row, rows_of
from rightsizer.text import block_words, safe

_DANGEROUS = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""Characters that begin a formula, also in full width, or that spreadsheets skip before one."""

_DIGITS = 4

Value = str | float | None
_T = TypeVar("_T")

# Numbers in base units; an empty cell is unknown, never zero.
_COLUMNS: Mapping[str, Callable[[Row], Value]] = {
    "namespace": lambda row: row.decision.workload.ref.namespace,
    "kind": lambda row: row.decision.workload.ref.kind,
    "name": lambda row: row.decision.workload.ref.name,
    "apiVersion": lambda row: row.decision.workload.ref.api_version,
    "uid": lambda row: row.decision.workload.ref.uid,
    "priorityClass": lambda row: row.decision.workload.priority_class,
    "priority": lambda row: row.decision.workload.priority,
    "gpus": lambda row: row.decision.workload.gpus,
    "model": lambda row: row.model,
    "nodePool": lambda row: row.pool,
    "nodes": lambda row: " ".join(row.nodes),
    "gang": lambda row: row.decision.workload.gang,
    "costPerHour": lambda row: row.cost_per_hour,
    "activityMean": lambda row: row.finding.activity_mean,
    "activityPeak": lambda row: row.finding.activity_peak,
    "memoryPeakBytes": lambda row: row.finding.memory_peak_bytes,
    "powerMeanWatts": lambda row: row.finding.power_mean_w,
    "powerPeakWatts": lambda row: row.finding.power_peak_w,
    "idleSeconds": lambda row: row.finding.idle_s,
    "longestReturnSeconds": lambda row: row.finding.longest_return_s,
    "coverage": lambda row: row.finding.coverage,
    "verdict": lambda row: row.decision.verdict.value,
    "finding": lambda row: row.finding.name.value,
    "confidence": lambda row: row.finding.confidence.value,
    "also": lambda row: " ".join(other.name.value for other in row.decision.also),
    "mode": lambda row: row.decision.mode.value,
    "rule": lambda row: row.decision.rule,
    "action": lambda row: row.action,
    "frees": lambda row: row.frees,
    "proposal": lambda row: row.finding.proposal.words if row.finding.proposal else "",
    "blockedBy": lambda row: "; ".join(map(block_words, row.decision.blockers)),
    "reasons": lambda row: "; ".join(blocker.message for blocker in row.decision.restrictions),
    "evidence": lambda row: "; ".join(row.finding.words),
    "command": lambda row: row.decision.command,
}


def plan_csv(plan: Plan, accounts: CostSummary, prices: Prices) -> str:  # noqa: ARG001 - every form's signature
    """Each row ends with the cluster's context and server."""
    cluster = plan.cluster or ClusterName("", "")
    where = {"context": lambda _: cluster.context, "server": lambda _: cluster.server}
    return "".join(csv_lines({**_COLUMNS, **where}, rows_of(plan, prices)))


def csv_lines(columns: Mapping[str, Callable[[_T], Value]], rows: Iterable[_T]) -> Iterator[str]:
    """The header, and a line for each row; lines end in CR LF, as the RFC has it."""
    yield _line(columns)
    for row in rows:
        yield _line(_cell(tell(row)) for tell in columns.values())


def _line(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(cells)
    return text.getvalue()


def _cell(value: Value) -> str:
    if isinstance(value, str):
        return inert(value)
    return "" if value is None else f"{round(value, _DIGITS):.15g}"


def inert(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    return f"'{safe(text)}" if text.startswith(_DANGEROUS) else safe(text)
