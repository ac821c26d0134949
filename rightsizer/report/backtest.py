"""A backtest as text, Markdown, CSV and a document: what each judge frees, and whom it hurts. Pure."""

import csv
import dataclasses
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rightsizer.backtest.replay import Change
from rightsizer.backtest.summary import GroupTotals, Interval, Summary
from rightsizer.report.csv import inert
from rightsizer.report.documents import render
from rightsizer.report.markdown import escaped
from rightsizer.report.terminal import wrapped
from rightsizer.text import count, money, safe, span

MOST_NAMED = 20
_MOST_PARTS = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Backtest:
    """The result of a backtest.

    Attributes:
        source: The metrics that it is from.
        gpus: The most whole GPUs that were held at once.
        policies: Which of the judges are policies.
        rules: Which of them are plain rules, from the shortest time to the longest.
        unknown: What could not be known, in words.
    """

    begin: str
    end: str
    days: float
    source: str
    workloads: int
    gpus: float
    summaries: Sequence[Summary]
    policies: frozenset[str]
    rules: Sequence[str]
    unknown: Sequence[str]
    currency: str

    @property
    def judged(self) -> Sequence[Summary]:
        """Of the policies."""
        return [one for one in self.summaries if one.judge in self.policies]


def headline(result: Backtest) -> str:
    """What it is about."""
    return (
        f"{result.days:g} days to {result.end}: {result.workloads} workloads, at most {result.gpus:,.1f} GPUs held, "
        f"{result.source}"
    )


def backtest_table(result: Backtest) -> str:
    """80 columns: the judges, then whom each policy would have hurt, then what is not known."""
    lines = [
        *wrapped(headline(result), ""),
        "",
        f"{'POLICY OR RULE':<18}{'FREED GPU-HOURS':>17}{'90 %':>17}{'STOPS':>7}{'RETURNED':>10}{'AT WORK':>9}",
    ]
    for one in result.summaries:
        freed = f"{one.freed.value:,.0f} ({share_of(one)})"
        counts = f"{one.stops.value:>7,.0f}{one.returned.value:>10,.0f}{one.at_work:>9}"
        lines.append(f"{safe(one.judge)[:17]:<18}{freed:>17}{between(one.freed):>17}{counts}")
    for summary in result.judged:
        lines += ["", f"{safe(summary.judge)}:"]
        lines += [line for words in details(summary, result.currency) for line in wrapped(words, "  ")]
        lines += [line for by, parts in summary.groups.items() for line in _part_lines(by, parts)]
        lines += ["", "  NEEDED AGAIN"] if summary.hurt else []
        lines += [line for words in hurt_list(summary) for line in wrapped(words, "  ")]
    lines += ["", "Not known:", *(line for words in result.unknown for line in wrapped(words, "  "))]
    return "\n".join(lines) + "\n"


def share_of(summary: Summary) -> str:
    """Freed GPU-hours, of those held."""
    return f"{100 * summary.freed.value / summary.held:.0f}%" if summary.held else "-"


def between(one: Interval) -> str:
    """An interval."""
    return f"{one.low:,.0f} to {one.high:,.0f}"


def details(summary: Summary, currency: str) -> Iterator[str]:
    """What a policy would have done, in sentences."""
    if not summary.groups["kind"] and not summary.notices:
        yield "changes nothing"
        return
    if summary.saved is not None:
        yield f"{money(summary.saved)} {currency} for what it frees, less the returns"
    if summary.stops.value:
        yield _returns(summary)
    if summary.replica_hours:
        short = summary.short
        yield (
            f"services ran {summary.replica_hours:,.0f} h with fewer replicas, of which "
            f"{60 * short.value * summary.replica_hours:,.0f} minutes short: {100 * short.value:.2f}% (90 %: "
            f"{100 * short.low:.2f} to {100 * short.high:.2f}%)"
        )
    if summary.resizes:
        yield f"{summary.resizes_needed} of {summary.resizes} resizes took GPUs that were used later"


def hurt_list(summary: Summary) -> Iterator[str]:
    """The first of those that worked again, soonest first."""
    yield from (hurt_words(one) for one in summary.hurt[:MOST_NAMED])
    if len(summary.hurt) > MOST_NAMED:
        yield f"and {len(summary.hurt) - MOST_NAMED} more; all are in the output csv and json"


def _returns(summary: Summary) -> str:
    words = f"{summary.returned.value:,.0f} of {summary.stops.value:,.0f} stops returned"
    if summary.median_return_h is not None:
        words += (
            f", half of them within {summary.median_return_h:,.1f} h; returns delay work by {summary.delayed_h:,.1f} h "
            f"and cost {summary.restarts.value:,.1f} GPU-hours"
        )
    if summary.open_stops:
        words += f"; {count(summary.open_stops, 'other')} of the last week may yet return"
    return words


def hurt_words(one: Change) -> str:
    """A workload that worked again, and when."""
    after = "at once" if one.was_at_work else f"after {span(one.needed_after_s)}"
    return f"{one.at:%Y-%m-%d %H:%M} {one.ref} {one.finding}: needed again {after}"


PART_HEADS = ("freed GPU-hours", "stops", "returned")


def part_rows(parts: Mapping[str, GroupTotals]) -> Sequence[tuple[str, ...]]:
    """A name and its figures each: those of which most was freed, then the sum of the others."""
    most = sorted(parts.items(), key=lambda item: -item[1].freed)
    named, others = most[:_MOST_PARTS], [part for _, part in most[_MOST_PARTS:]]
    if others:
        rest = GroupTotals(
            sum(one.freed for one in others),
            sum(one.stops for one in others),
            sum(one.returned for one in others),
        )
        named.append((f"{len(others)} more", rest))
    return [(name, f"{one.freed:,.0f}", f"{one.stops}", f"{one.returned}") for name, one in named]


_NAME_WIDTH = 44


def _part_lines(by: str, parts: Mapping[str, GroupTotals]) -> Iterator[str]:
    """A table of them; a long name has a line of its own."""
    if not parts:
        return
    yield ""
    heads = [head.upper() for head in PART_HEADS]
    for name, freed, stops, returned in ((f"BY {by.upper()}", *heads), *part_rows(parts)):
        shown = safe(name)
        if len(shown) > _NAME_WIDTH:
            yield f"  {shown[:76]}"
            shown = ""
        yield f"  {shown:<{_NAME_WIDTH}}{freed:>16}{stops:>7}{returned:>10}"


def backtest_csv(result: Backtest) -> str:
    """Every change of every judge, one row each; lines end in CR LF, as RFC 4180 has it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(("judge", *_COLUMNS))
    for summary in result.summaries:
        writer.writerows((inert(summary.judge), *_cells(change)) for change in summary.changes)
    return text.getvalue()


_COLUMNS = (
    *(
        "at",
        "namespace",
        "kind",
        "name",
        "action",
        "finding",
        "rule",
        "gpus",
        "gpuHours",
        "neededAfterSeconds",
    ),
)


def _cells(one: Change) -> Iterator[str]:
    yield f"{one.at:%Y-%m-%dT%H:%M:%SZ}"
    yield from map(
        inert, (one.ref.namespace, one.ref.kind, one.ref.name, one.action.value, one.finding, one.rule)
    )
    yield f"{one.gpus:.15g}"
    yield f"{round(one.gpu_hours, 4):.15g}"
    yield "" if one.needed_after_s is None else f"{one.needed_after_s:.15g}"


def backtest_markdown(result: Backtest) -> str:
    """For merge requests and wikis."""
    lines = [f"# Backtest of {result.days:g} days", "", escaped(headline(result)), ""]
    lines += _table(HEADS, [(one.judge, *row_of(one)) for one in result.summaries])
    for summary in result.judged:
        lines += ["", f"## {escaped(summary.judge)}", ""]
        lines += [f"- {escaped(words)}" for words in details(summary, result.currency)]
        for by, parts in summary.groups.items():
            lines += ["", *_table((by, *PART_HEADS), part_rows(parts))] if parts else []
        lines += ["", "Needed again:", ""] if summary.hurt else []
        lines += [f"- {escaped(words)}" for words in hurt_list(summary)]
    lines += ["", "## Not known", "", *(f"- {escaped(words)}" for words in result.unknown)]
    return "\n".join(lines) + "\n"


HEADS = ("policy or rule", "freed GPU-hours", "90 %", "stops", "returned", "at work")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "| --- |" + " ---: |" * (len(heads) - 1)
    for row in rows:
        yield f"| {' | '.join(map(escaped, row))} |"


def row_of(one: Summary) -> Iterator[str]:
    """The figures under HEADS, after the name."""
    yield f"{one.freed.value:,.0f} ({share_of(one)})"
    yield between(one.freed)
    yield from (f"{one.stops.value:,.0f}", f"{one.returned.value:,.0f}", f"{one.at_work}")


def backtest_document(result: Backtest) -> dict[str, Any]:
    """For programs."""
    return {
        "apiVersion": "gpu-rightsizer.io/v1alpha1",
        "kind": "Backtest",
        "begin": result.begin,
        "end": result.end,
        "source": result.source,
        "workloads": result.workloads,
        "gpus": result.gpus,
        "currency": result.currency,
        "judges": [_judge(summary) for summary in result.summaries],
        "unknown": list(result.unknown),
    }


def backtest_json(result: Backtest) -> str:
    """The document."""
    return render(backtest_document(result), "json")


def backtest_yaml(result: Backtest) -> str:
    """The same document."""
    return render(backtest_document(result), "yaml")


def _judge(summary: Summary) -> dict[str, Any]:
    return {
        "name": summary.judge,
        "heldGpuHours": summary.held,
        "usedGpuHours": summary.used,
        "freedGpuHours": _interval(summary.freed),
        "saved": summary.saved,
        "restartGpuHours": _interval(summary.restarts),
        "stops": _interval(summary.stops),
        "returned": _interval(summary.returned),
        "mayReturn": summary.open_stops,
        "medianReturnHours": summary.median_return_h,
        "delayedHours": summary.delayed_h,
        "atWork": summary.at_work,
        "resizes": summary.resizes,
        "resizesNeededAgain": summary.resizes_needed,
        "fewerReplicasHours": summary.replica_hours,
        "shareShort": _interval(summary.short),
        "notices": summary.notices,
        "by": {
            by: {
                name: {"freedGpuHours": part.freed, "stops": part.stops, "returned": part.returned}
                for name, part in parts.items()
            }
            for by, parts in summary.groups.items()
        },
        "hurt": [_hurt(one) for one in summary.hurt],
    }


def _hurt(one: Change) -> dict[str, Any]:
    return {
        "workload": str(one.ref),
        "at": f"{one.at:%Y-%m-%dT%H:%M:%SZ}",
        "action": one.action.value,
        "finding": one.finding,
        "rule": one.rule,
        "gpus": one.gpus,
        "neededAfterSeconds": one.needed_after_s,
    }


def _interval(one: Interval) -> dict[str, float]:
    return {"value": one.value, "low": one.low, "high": one.high}
