"""A backtest as text, Markdown, CSV and a document: what each judge frees, and whom it hurts. Pure."""

import dataclasses
import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rightsizer.report.csv import Value, csv_lines
from rightsizer.report.documents import render, stamp
from rightsizer.report.markdown import escaped, table_markdown
from rightsizer.report.terminal import Table, table_lines, wrapped
from rightsizer.text import count, instant, money, safe, span
from rightsizer_history.backtest.replay import Change
from rightsizer_history.backtest.summary import WATCHED_S, GroupTotals, Interval, Summary

MOST_NAMED = 20
_MOST_PARTS = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Backtest:
    """The result of a backtest.

    Attributes:
        begin, end: Of the replayed time.
        learned: The recorded time before it, which only teaches.
        step, every, restart: Steps of the record, time between cycles, and what a return costs each GPU.
        is_enforced: Whether rules that advise were replayed as if they enforced.
        source: The metrics that it is from.
        gpus: The most whole GPUs that were held at once.
        policies: Which of the judges are policies.
        rules: Which of them are plain rules, from the shortest time to the longest.
        unknown: What could not be known, in words.
        remarks: More about a policy, in words, by its name.
        prices: Where they come from.
    """

    begin: datetime.datetime
    end: datetime.datetime
    learned: datetime.timedelta
    step: datetime.timedelta
    every: datetime.timedelta
    restart: datetime.timedelta
    is_enforced: bool
    source: str
    workloads: int
    gpus: float
    summaries: Sequence[Summary]
    policies: frozenset[str]
    rules: Sequence[str]
    unknown: Sequence[str]
    remarks: Mapping[str, Sequence[str]]
    currency: str
    prices: Sequence[str]

    @property
    def days(self) -> float:
        """The replayed time."""
        return round((self.end - self.begin) / datetime.timedelta(days=1), 1)

    @property
    def judged(self) -> Sequence[Summary]:
        """Summaries of the policies."""
        return [summary for summary in self.summaries if summary.judge in self.policies]


def headline(result: Backtest) -> str:
    """Sentence about the replayed history."""
    return (
        f"{count(result.days, 'day')} to {instant(result.end)}: {count(result.workloads, 'workload')}, at most "
        f"{result.gpus:,.1f} GPUs held, {result.source}"
    )


def terms_words(result: Backtest) -> str:
    """Terms of the replay, so that it can be repeated."""
    learned = f"after the first {span(result.learned)}, which only teaches, " if result.learned else ""
    enforced = ", rules that advise as if they enforced" if result.is_enforced else ""
    words = (
        f"Replayed {learned}a cycle every {span(result.every)}, in steps of {span(result.step)}{enforced}. "
        f"A return costs each of its GPUs {span(result.restart)}."
    )
    return f"{words} Prices: {'; '.join(result.prices)}." if result.prices else words


def backtest_table(result: Backtest) -> str:
    """80 columns: the judges, then whom each policy would have hurt, then what is not known."""
    lines = [*wrapped(headline(result), ""), *wrapped(terms_words(result), ""), ""]
    lines += judge_lines(judges_table(result))
    for summary in result.judged:
        lines += ["", f"{safe(summary.judge)}:"]
        lines += [line for words in details(summary, result) for line in wrapped(words, "  ")]
        lines += [
            line for part in part_tables(summary) for line in ("", *table_lines(part, _PART_WIDTHS, "  "))
        ]
        lines += ["", "  NEEDED AGAIN"] if summary.hurt else []
        lines += [line for words in hurt_list(summary) for line in wrapped(words, "  ")]
    lines += ["", "Not known:", *(line for words in result.unknown for line in wrapped(words, "  "))]
    return "\n".join(lines) + "\n"


def share_of(summary: Summary) -> str:
    """Freed GPU-hours, of those held."""
    return f"{100 * summary.freed.value / summary.held:.0f}%" if summary.held else "-"


_JUDGE_WIDTHS = (16, 15, 16, 12, 6, 9)


def judge_lines(table: Table) -> Iterator[str]:
    """The table of judges in 80 columns."""
    return table_lines(table, _JUDGE_WIDTHS)


def between(interval: Interval) -> str:
    """An interval; large figures in thousands."""
    if interval.high < _THOUSANDS_FROM:
        return f"{interval.low:,.0f} to {interval.high:,.0f}"
    return f"{interval.low / 1000:,.0f}k to {interval.high / 1000:,.0f}k"


_THOUSANDS_FROM = 99_999.5


def details(summary: Summary, result: Backtest) -> Iterator[str]:
    """Sentences about the changes that a policy would have made."""
    yield from result.remarks.get(summary.judge, ())
    if not summary.groups["kind"] and not summary.notices:
        yield "changes nothing"
        return
    if summary.saved is not None:
        saved = summary.saved
        yield (
            f"{money(saved.value)} {result.currency} (90 %: {money(saved.low)} to {money(saved.high)}) for what it "
            "frees, less the returns"
        )
    if summary.stops.value:
        yield returns_words(summary)
    if summary.delayed_h:
        yield (
            f"restarts delay work by {summary.delayed_h:,.1f} h and take {summary.restarts.value:,.1f} GPU-hours"
        )
    if summary.at_work:
        yield f"{summary.at_work} of its changes hit what was at work in that very step"
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
    yield from (hurt_words(change) for change in summary.hurt[:MOST_NAMED])
    if len(summary.hurt) > MOST_NAMED:
        yield f"and {len(summary.hurt) - MOST_NAMED} more; all are in the output csv and json"


def returns_words(summary: Summary) -> str:
    """Number of the stops that returned, with the number that is still open."""
    stops, returned = round(summary.stops.value), round(summary.returned.value)
    words = f"{returned:,} of {count(stops, 'stop')} returned (90 %: {between(summary.returned)})"
    if summary.median_return_h is not None:
        words += f", half of them within {summary.median_return_h:,.1f} h"
    return f"{words}; {open_words(summary)}" if summary.open_stops else words


def open_words(summary: Summary) -> str:
    """The stops that may yet return."""
    stops = "all" if summary.open_stops == summary.stops.value else f"{summary.open_stops}"
    are = "was" if stops == "1" else "were"
    return f"{stops} {are} followed for less than {span(WATCHED_S)}, and may yet return"


def hurt_words(change: Change) -> str:
    """A workload that worked again, and when."""
    after = "at once" if change.was_at_work else f"after {span(change.needed_after_s)}"
    return f"{change.at:%Y-%m-%d %H:%M} {change.ref} {change.finding}: needed again {after}"


_PART_WIDTHS = (44, 15, 6, 9)


def part_tables(summary: Summary) -> Iterator[Table]:
    """Figures by class, kind and others: the parts of which most was freed, then the sum of the others."""
    for by, parts in summary.groups.items():
        most = sorted(parts.items(), key=lambda pair: -pair[1].freed)
        named, others = most[:_MOST_PARTS], [part for _, part in most[_MOST_PARTS:]]
        if others:
            rest = GroupTotals(
                sum(totals.freed for totals in others),
                sum(totals.stops for totals in others),
                sum(totals.returned for totals in others),
            )
            named.append((f"{len(others)} more", rest))
        rows = [(name, f"{row.freed:,.0f}", f"{row.stops}", f"{row.returned}") for name, row in named]
        if rows:
            yield Table((f"by {by}", "freed GPU-hours", "stops", "returned"), rows)


_COLUMNS: Mapping[str, Callable[[tuple[str, Change]], Value]] = {
    "judge": lambda row: row[0],
    "at": lambda row: f"{row[1].at:%Y-%m-%dT%H:%M:%SZ}",
    "class": lambda row: row[1].priority_class,
    "namespace": lambda row: row[1].ref.namespace,
    "kind": lambda row: row[1].ref.kind,
    "name": lambda row: row[1].ref.name,
    "action": lambda row: row[1].action.value,
    "finding": lambda row: row[1].finding,
    "rule": lambda row: row[1].rule,
    "gpus": lambda row: row[1].gpus,
    "gpuHours": lambda row: row[1].gpu_hours,
    "neededAfterSeconds": lambda row: row[1].needed_after_s,
}


def backtest_csv(result: Backtest) -> str:
    """Every change of every judge, one row each."""
    rows = ((summary.judge, change) for summary in result.summaries for change in summary.changes)
    return "".join(csv_lines(_COLUMNS, rows))


def backtest_markdown(result: Backtest) -> str:
    """Text for merge requests and wikis."""
    lines = [f"# Backtest of {count(result.days, 'day')}", "", escaped(headline(result)), ""]
    lines += [escaped(terms_words(result)), ""]
    lines += [table_markdown(judges_table(result))]
    for summary in result.judged:
        lines += ["", f"## {escaped(summary.judge)}", ""]
        lines += [f"- {escaped(words)}" for words in details(summary, result)]
        lines += [text for part in part_tables(summary) for text in ("", table_markdown(part))]
        lines += ["", "Needed again:", ""] if summary.hurt else []
        lines += [f"- {escaped(words)}" for words in hurt_list(summary)]
    lines += ["", "## Not known", "", *(f"- {escaped(words)}" for words in result.unknown)]
    return "\n".join(lines) + "\n"


def judges_table(result: Backtest) -> Table:
    """The figures of all judges."""
    head = ("policy or rule", "freed GPU-hours", "90 %", result.currency, "stops", "returned")
    return Table(head, [(summary.judge, *row_of(summary)) for summary in result.summaries])


def row_of(summary: Summary) -> Iterator[str]:
    """The figures of a judge, after its name."""
    yield f"{summary.freed.value:,.0f} ({share_of(summary)})"
    yield between(summary.freed)
    yield "-" if summary.saved is None else money(summary.saved.value)
    yield from (f"{summary.stops.value:,.0f}", f"{summary.returned.value:,.0f}")


def backtest_document(result: Backtest) -> dict[str, Any]:
    """Document for programs."""
    return {
        "apiVersion": "gpu-rightsizer.io/v1alpha1",
        "kind": "Backtest",
        "begin": stamp(result.begin),
        "end": stamp(result.end),
        "learnedSeconds": result.learned.total_seconds(),
        "stepSeconds": result.step.total_seconds(),
        "everySeconds": result.every.total_seconds(),
        "restartSeconds": result.restart.total_seconds(),
        "enforced": result.is_enforced,
        "source": result.source,
        "workloads": result.workloads,
        "gpus": result.gpus,
        "currency": result.currency,
        "prices": list(result.prices),
        "judges": [
            {**_judge(summary), "remarks": list(result.remarks.get(summary.judge, ()))}
            for summary in result.summaries
        ],
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
        "unseenGpuHours": summary.unseen,
        "freedGpuHours": _interval(summary.freed),
        "saved": None if summary.saved is None else _interval(summary.saved),
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
        "hurt": [_hurt(change) for change in summary.hurt],
    }


def _hurt(change: Change) -> dict[str, Any]:
    return {
        "workload": str(change.ref),
        "at": f"{change.at:%Y-%m-%dT%H:%M:%SZ}",
        "action": change.action.value,
        "finding": change.finding,
        "rule": change.rule,
        "gpus": change.gpus,
        "neededAfterSeconds": change.needed_after_s,
    }


def _interval(interval: Interval) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}
