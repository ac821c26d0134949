"""A backtest as one self-contained HTML page: freed against harm, and whom each policy would have hurt. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from rightsizer.report.html import rendered
from rightsizer.text import instant, money, safe
from rightsizer_history.backtest.summary import Summary
from rightsizer_history.report.backtest import (
    Backtest,
    details,
    headline,
    hurt_list,
    judges_table,
    open_words,
    part_tables,
    share_of,
    terms_words,
)

_WIDTH, _HEIGHT = 760, 380
_LEFT, _BOTTOM, _TOP, _RIGHT = 70, 56, 24, 110
_LINE = 15
_TICKS = 4
"""Ticks of each axis; its end may be one more."""
_HIDDEN = 0.06
"""A tick that is nearer to another, as a share of the axis, is left out."""


def backtest_html(result: Backtest) -> str:
    """The page; it needs no network, no server and no file beside it."""
    return rendered(
        "backtest.html",
        f"GPU backtest to {instant(result.end)}",
        package=__package__,
        verdicts=map(_verdict, result.judged),
        headline=headline(result),
        terms=terms_words(result),
        has_rules=bool(result.rules),
        plot=_plot(result),
        judges=judges_table(result),
        policies=[_policy(summary, result) for summary in result.judged],
        unknown=result.unknown,
    )


def _verdict(summary: Summary) -> str:
    freed = f"{summary.judge} would have freed {share_of(summary)} of the GPU-hours."
    if not summary.stops.value:
        return freed
    returned = f"{summary.returned.value:,.0f} of {summary.stops.value:,.0f} stops"
    words = f"{freed} {returned} were of workloads that worked again"
    return f"{words}; {open_words(summary)}." if summary.open_stops else f"{words}."


def _policy(summary: Summary, result: Backtest) -> Mapping[str, object]:
    return {
        "name": summary.judge,
        "tiles": _tiles(summary, result),
        "details": details(summary, result),
        "parts": tuple(part_tables(summary)),
        "hurt": tuple(hurt_list(summary)),
    }


def _tiles(summary: Summary, result: Backtest) -> Iterator[tuple[str, str]]:
    yield f"{summary.freed.value:,.0f}", f"GPU-hours freed, {share_of(summary)} of those held"
    if summary.saved is not None:
        yield money(summary.saved.value), f"{result.currency}, less the returns"
    open_stops = f", {summary.open_stops:,} may yet" if summary.open_stops else ""
    stops = f"{summary.returned.value:,.0f} of {summary.stops.value:,.0f}"
    yield stops, f"stopped workloads worked again{open_stops}"
    yield f"{summary.at_work}", "stopped at work"


class _Axes:
    """Places of figures: returns to the right, by their square roots, GPU-hours freed upwards."""

    def __init__(self, summaries: Sequence[Summary]) -> None:
        self.hours = max((summary.freed.high for summary in summaries), default=0.0) or 1.0
        self.returns = max((summary.returned.high for summary in summaries), default=0.0) or 1.0

    def across(self, returned: float) -> float:
        return _LEFT + math.sqrt(max(0.0, returned) / self.returns) * (_WIDTH - _LEFT - _RIGHT)

    def up(self, hours: float) -> float:
        return _HEIGHT - _BOTTOM - hours / self.hours * (_HEIGHT - _BOTTOM - _TOP)

    def marks(self) -> Iterator[Markup]:
        """The axes with their ticks."""
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        for hours in round_steps(self.hours):
            y = self.up(hours)
            yield _line((_LEFT, y), (right, y), "axis" if hours == 0 else "tick")
            yield _text(_LEFT - 8, y + 4, f"{hours:,.0f}", "end")
        last = -math.inf
        for returns in square_steps(self.returns):
            x = self.across(returns)
            if x - last >= _HIDDEN * (right - _LEFT):
                yield _line((x, bottom), (x, bottom + 4), "axis")
                yield _text(x, bottom + 18, f"{returns:,.0f}", "middle")
                last = x
        yield _line((_LEFT, _TOP), (_LEFT, bottom), "axis")
        yield _text(_LEFT, _HEIGHT - 12, "stops of workloads that worked again")
        yield _text(4, 12, "GPU-hours freed")


def round_steps(most: float) -> Iterator[float]:
    """Numbers from 0 on in steps of 1, 2 or 5 times a power of ten."""
    size = 10.0 ** math.floor(math.log10(most / _TICKS))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor * (_TICKS + 1) > most)
    yield from (step * number for number in range(int(most / step) + 1))


def square_steps(most: float) -> Iterator[float]:
    """The same of numbers whose square roots are about evenly apart."""
    for number in range(_TICKS + 2):
        found = most * (number / (_TICKS + 1)) ** 2
        size = 10.0 ** math.floor(math.log10(found)) if found >= 1 else 1.0
        yield math.floor(found / size) * size


def _plot(result: Backtest) -> Markup:
    """A point for each judge, and a curve through the plain rules."""
    axes = _Axes(result.summaries)
    rules = [summary for summary in result.summaries if summary.judge in result.rules]
    curve = sorted((summary.returned.value, summary.freed.value) for summary in rules)
    points = " ".join(f"{axes.across(x):.1f},{axes.up(y):.1f}" for x, y in [(0.0, 0.0), *curve])
    marks = [*axes.marks(), Markup('<polyline points="{}" class="curve"></polyline>').format(points)]
    last = float(_HEIGHT)
    for summary in sorted(result.summaries, key=lambda summary: summary.freed.value):
        x, y = axes.across(summary.returned.value), axes.up(summary.freed.value)
        name = "used" if summary.judge in result.policies else "other"
        low, high = axes.across(summary.returned.low), axes.across(summary.returned.high)
        last = min(y - 6, last - _LINE)
        marks += [
            _line((x, axes.up(summary.freed.low)), (x, axes.up(summary.freed.high)), f"whisker {name}"),
            _line((low, y), (high, y), f"whisker {name}"),
            Markup('<circle cx="{:.1f}" cy="{:.1f}" r="5" class="{}"></circle>').format(x, y, name),
            Markup('<text x="{:.1f}" y="{:.1f}" class="name {}">{}</text>').format(
                x + 9, last, name, safe(summary.judge)
            ),
        ]
    told = "; ".join(
        f"{summary.judge}: {summary.freed.value:,.0f} GPU-hours freed, {summary.returned.value:,.0f} stops returned"
        for summary in result.summaries
    )
    svg = Markup('<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>')
    return svg.format(_WIDTH, _HEIGHT, safe(told), Markup().join(marks))


def _line(start: tuple[float, float], end: tuple[float, float], kind: str) -> Markup:
    line = Markup('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"></line>')
    return line.format(*start, *end, kind)


def _text(x: float, y: float, text: str, anchor: str = "start") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(x, y, anchor, text)
