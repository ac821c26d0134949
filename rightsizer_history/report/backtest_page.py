"""A backtest as one self-contained HTML page: freed against harm, and whom each policy would have hurt. Pure."""

import math
from collections.abc import Iterator, Sequence

from rightsizer.report.charts import Markup, element, join
from rightsizer.report.html import page, tile
from rightsizer.text import instant, money
from rightsizer_history.backtest.summary import Summary
from rightsizer_history.report.backtest import (
    PART_HEADS,
    Backtest,
    details,
    headline,
    heads,
    hurt_list,
    open_words,
    part_rows,
    row_of,
    share_of,
    terms_words,
)

_WIDTH, _HEIGHT = 760, 380
_LEFT, _BOTTOM, _TOP, _RIGHT = 70, 56, 24, 110
_LINE = 15
_TICKS = 4
"""Of each axis; its end may be one more."""
_HIDDEN = 0.06
"""A tick that is nearer to another, as a share of the axis, is left out."""


def backtest_html(result: Backtest) -> str:
    """The page; it needs no network, no server and no file beside it."""
    return page(
        f"GPU backtest to {instant(result.end)}",
        element(
            "header",
            element("h1", "GPU backtest"),
            *(element("p", element("b", _verdict(one))) for one in result.judged),
            element("p", headline(result), class_="soft"),
            element("p", terms_words(result), class_="soft"),
        ),
        element("main", *_sections(result)),
    )


def _verdict(one: Summary) -> str:
    freed = f"{one.judge} would have freed {share_of(one)} of the GPU-hours."
    if not one.stops.value:
        return freed
    words = f"{freed} {one.returned.value:,.0f} of {one.stops.value:,.0f} stops were of workloads that worked again"
    return f"{words}; {open_words(one)}." if one.open_stops else f"{words}."


def _sections(result: Backtest) -> Iterator[Markup]:
    yield element("h2", "Freed against harm")
    yield element("div", element("p", *_reading(result), class_="note"), _plot(result), class_="card")
    yield element("h2", "Policies and rules")
    yield _scrolled(_table(heads(result), [(one.judge, *row_of(one)) for one in result.summaries]))
    for one in result.judged:
        yield element("h2", one.judge)
        yield element("div", *_tiles(one, result), class_="tiles")
        yield element("ul", *(element("li", words) for words in details(one, result)))
        tables = [
            _scrolled(_table((f"by {by}", *PART_HEADS), part_rows(parts)))
            for by, parts in one.groups.items()
            if parts
        ]
        if tables:
            yield element("div", *tables, class_="cards")
        if one.hurt:
            yield element("h3", "Needed again")
            yield element("ul", *(element("li", words) for words in hurt_list(one)))
    yield element("h2", "Not known")
    yield element("ul", *(element("li", words) for words in result.unknown))


def _reading(result: Backtest) -> Iterator[str]:
    """How to read the plot."""
    yield "Up is better: more GPU-hours freed. Left is better: fewer stopped workloads that worked again. "
    yield "The axis below is stretched near 0. Thin lines are 90 % intervals. "
    if result.rules:
        yield "The curve is of plain rules, which stop whatever was idle for a time. A policy above it frees more than "
        yield "such a rule, with as many returns. "
    yield "The oracle frees whatever is idle, and returns it in time: nobody can free more."


def _tiles(one: Summary, result: Backtest) -> Iterator[Markup]:
    yield tile(f"{one.freed.value:,.0f}", f"GPU-hours freed, {share_of(one)} of those held")
    if one.saved is not None:
        yield tile(money(one.saved.value), f"{result.currency}, less the returns")
    open_stops = f", {one.open_stops:,} may yet" if one.open_stops else ""
    yield tile(
        f"{one.returned.value:,.0f} of {one.stops.value:,.0f}", f"stopped workloads worked again{open_stops}"
    )
    yield tile(f"{one.at_work}", "stopped at work")


def _scrolled(table: Markup) -> Markup:
    return element("div", element("div", table, class_="scroll"), class_="card")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """The first column names, the others are figures."""
    head = element(
        "tr",
        element("th", heads[0], scope="col"),
        *(element("th", name, class_="number", scope="col") for name in heads[1:]),
    )
    body = (
        element(
            "tr",
            element("th", name, scope="row"),
            *(element("td", cell, class_="number") for cell in cells),
        )
        for name, *cells in rows
    )
    return element("table", element("thead", head), element("tbody", *body), class_="totals")


class _Axes:
    """Places of figures: returns to the right, by their square roots, GPU-hours freed upwards."""

    def __init__(self, summaries: Sequence[Summary]) -> None:
        self.hours = max((one.freed.high for one in summaries), default=0.0) or 1.0
        self.returns = max((one.returned.high for one in summaries), default=0.0) or 1.0

    def across(self, returned: float) -> float:
        return _LEFT + math.sqrt(max(0.0, returned) / self.returns) * (_WIDTH - _LEFT - _RIGHT)

    def up(self, hours: float) -> float:
        return _HEIGHT - _BOTTOM - hours / self.hours * (_HEIGHT - _BOTTOM - _TOP)

    def marks(self) -> Iterator[Markup]:
        """The axes with their ticks."""
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        for hours in round_steps(self.hours):
            y = self.up(hours)
            yield _line(_LEFT, y, right, y, "axis" if hours == 0 else "tick")
            yield element("text", f"{hours:,.0f}", x=_LEFT - 8, y=f"{y + 4:.1f}", text_anchor="end")
        last = -math.inf
        for returns in square_steps(self.returns):
            x = self.across(returns)
            if x - last >= _HIDDEN * (right - _LEFT):
                yield _line(x, bottom, x, bottom + 4, "axis")
                yield element("text", f"{returns:,.0f}", x=f"{x:.1f}", y=bottom + 18, text_anchor="middle")
                last = x
        yield _line(_LEFT, _TOP, _LEFT, bottom, "axis")
        yield element("text", "stops of workloads that worked again", x=_LEFT, y=_HEIGHT - 12)
        yield element("text", "GPU-hours freed", x=4, y=12)


def round_steps(most: float) -> Iterator[float]:
    """From 0 on in steps of 1, 2 or 5 times a power of ten."""
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
    rules = [one for one in result.summaries if one.judge in result.rules]
    curve = sorted((one.returned.value, one.freed.value) for one in rules)
    points = " ".join(f"{axes.across(x):.1f},{axes.up(y):.1f}" for x, y in [(0.0, 0.0), *curve])
    marks = [*axes.marks(), element("polyline", points=points, class_="curve")]
    last = float(_HEIGHT)
    for one in sorted(result.summaries, key=lambda each: each.freed.value):
        x, y = axes.across(one.returned.value), axes.up(one.freed.value)
        name = "used" if one.judge in result.policies else "other"
        low, high = axes.across(one.returned.low), axes.across(one.returned.high)
        last = min(y - 6, last - _LINE)
        marks += [
            _line(x, axes.up(one.freed.low), x, axes.up(one.freed.high), f"whisker {name}"),
            _line(low, y, high, y, f"whisker {name}"),
            element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=5, class_=name),
            element("text", one.judge, x=f"{x + 9:.1f}", y=f"{last:.1f}", class_=f"name {name}"),
        ]
    told = "; ".join(
        f"{one.judge}: {one.freed.value:,.0f} GPU-hours freed, {one.returned.value:,.0f} stops returned"
        for one in result.summaries
    )
    return element(
        "svg", join(*marks), class_="plot", viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=told
    )


def _line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return element("line", x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}", y2=f"{y2:.1f}", class_=class_)
