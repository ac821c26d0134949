"""The page's table of workloads: a body of two rows for each, so that the page's script can hide and move it. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from rightsizer.config import format_duration
from rightsizer.model import Verdict
from rightsizer.prices import Prices
from rightsizer.report.autoscaler_manifests import manifests
from rightsizer.report.charts import Profiles, line, profile_of
from rightsizer.report.html_elements import Markup, element, join
from rightsizer.report.rows import Row
from rightsizer.text import memory, money, number, percent, power, span

_CHIPS = {
    Verdict.ACT: "act",
    Verdict.KEEP: "keep",
    Verdict.PROTECTED: "protected",
    Verdict.UNKNOWN: "unsure",
}
_FEW = 2


def workloads_table(rows: Sequence[Row], profiles: Profiles, prices: Prices) -> Markup:
    """Every workload once."""
    lines = [profile_of(row.decision.workload, profiles) for row in rows]
    has_prices = any(row.cost_per_hour is not None for row in rows)
    heads = _heads(prices.currency)
    shown = {
        key: head
        for key, head in heads.items()
        if (has_prices or key != "cost") and (any(lines) or key != "line")
    }
    head = element("thead", element("tr", *(_head(key, words) for key, words in shown.items())))
    bodies = (_body(row, line(profile), shown) for row, profile in zip(rows, lines, strict=True))
    return element("table", head, *bodies, class_="workloads")


def _heads(currency: str) -> Mapping[str, str]:
    return {
        "name": "workload",
        "verdict": "verdict",
        "gpus": "GPUs",
        "line": "activity",
        "mean": "mean",
        "frees": "action",
        "cost": f"{currency}/h",
    }


_NUMBERS = frozenset({"gpus", "mean", "cost"})


def _head(key: str, words: str) -> Markup:
    label = words if key == "line" else element("button", words, type="button", data_key=key)
    return element("th", label, scope="col", class_="number" if key in _NUMBERS else None)


def _body(row: Row, drawn: Markup, shown: Mapping[str, str]) -> Markup:
    decision, finding = row.decision, row.finding
    cells = _cells(row, drawn, shown)
    more = element("td", _details(row), class_="more", colspan=len(shown))
    return element(
        "tbody",
        element("tr", *(cells[key] for key in shown)),
        element("tr", more),
        data_name=str(decision.workload.ref),
        data_verdict=decision.verdict.value,
        data_finding=finding.name.value,
        data_gpus=decision.workload.gpus,
        data_mean=-1 if finding.activity_mean is None else finding.activity_mean,
        data_frees=row.frees,
        data_cost=-1 if row.cost_per_hour is None else row.cost_per_hour,
    )


def _cells(row: Row, drawn: Markup, shown: Mapping[str, str]) -> Mapping[str, Markup]:
    decision, finding = row.decision, row.finding
    ref = decision.workload.ref
    place = ", ".join(part for part in (ref.kind, decision.workload.priority_class, row.model) if part)
    chip = element("span", decision.verdict.value, class_=f"chip {_CHIPS[decision.verdict]}")
    words = finding.name.value + (f", {row.confidence} confidence" if row.confidence else "")
    freed = element("small", f"frees {number(row.frees)}") if row.action and row.frees else ""
    cost = "" if row.cost_per_hour is None else money(row.cost_per_hour)
    return {
        "name": element(
            "td", element("b", f"{ref.namespace}/{ref.name}"), element("small", place), class_="name"
        ),
        "verdict": element("td", chip, element("small", words)),
        "gpus": element("td", str(decision.workload.gpus), class_="number", data_head="GPUs"),
        "line": element("td", drawn or _why_no_line(row)),
        "mean": element("td", percent(finding.activity_mean), class_="number", data_head="mean"),
        "frees": element("td", row.action, freed, class_="action"),
        "cost": element("td", cost, class_="number", data_head=shown.get("cost") if cost else None),
    }


def _why_no_line(row: Row) -> Markup:
    """Activity was measured, but on a shared GPU it is not known to be this workload's."""
    is_shared = any(pod.is_shared for pod in row.decision.workload.pods)
    is_measured = row.finding.activity_mean is not None
    return element("small", "whole device only") if is_shared and is_measured else Markup()


def _details(row: Row) -> Markup:
    """The first sentence is the summary; the rest, the numbers and the command are inside."""
    words = tuple(_words(row))
    parts = [element("ul", *(element("li", one) for one in words[1:]))]
    if row.decision.command:
        parts.append(element("pre", row.decision.command))
    parts += [
        element("details", element("summary", title), element("pre", _block(lines)))
        for title, lines in manifests(row.decision)
    ]
    parts.append(element("p", "; ".join(_numbers(row)), class_="note"))
    return element("details", element("summary", words[0] if words else row.finding.name.value), *parts)


def _block(lines: Sequence[str]) -> Markup:
    return join(*(part for line in lines for part in (line, Markup("\n"))))


def _words(row: Row) -> Iterator[str]:
    finding = row.finding
    yield from finding.words
    if row.proposal:
        yield f"proposal: {row.proposal}"
    yield from row.hindrances
    yield from filter(None, [row.advice])
    for other in row.decision.also:
        first = (other.proposal.words,) if other.proposal else other.words[:1]
        yield f"also: {': '.join((other.name.value, *first))}"
    for manager in row.decision.workload.managers:
        name = f"{manager.kind} {manager.name}".strip()
        yield f"managed by {name}{', which puts back what is changed' if manager.reverts else ''}"


def _numbers(row: Row) -> Iterator[str]:
    decision, finding = row.decision, row.finding
    yield f"rule {decision.rule}, mode {decision.mode.value}, priority {decision.workload.priority}"
    yield f"activity mean {percent(finding.activity_mean)}, peak {percent(finding.activity_peak)}"
    yield f"memory peak {memory(finding.memory_peak_bytes)}"
    yield f"power mean {power(finding.power_mean_w)}, peak {power(finding.power_peak_w)}"
    yield f"coverage {percent(finding.coverage)}"
    if finding.window:
        yield f"window {format_duration(finding.window.total_seconds())}"
    if finding.idle_s is not None:
        yield f"idle for {span(finding.idle_s)}"
    if finding.longest_return_s is not None:
        yield f"came back after at most {span(finding.longest_return_s)}"
    if decision.workload.gang:
        yield f"gang {decision.workload.gang}"
    if row.pool:
        yield f"node pool {row.pool}"
    if row.nodes:
        few = ", ".join(row.nodes[:_FEW])
        left = len(row.nodes) - _FEW
        yield f"on {few}" + (f" and {left} more" if left > 0 else "")
