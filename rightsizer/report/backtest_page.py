"""A backtest as one self-contained HTML page: freed against harm, and whom each policy would have hurt. Pure."""

from collections.abc import Iterator, Sequence

from rightsizer.backtest.summary import Summary
from rightsizer.report.backtest import Backtest, between, details, headline, share_of
from rightsizer.report.charts import Markup, element, join
from rightsizer.report.html import page, tile
from rightsizer.text import money

_WIDTH, _HEIGHT = 640, 300
_LEFT, _BOTTOM, _TOP, _RIGHT = 64, 40, 24, 150
_LINE = 15


_ORACLE = "The oracle knows when each works again, and returns it in time."


def backtest_html(result: Backtest) -> str:
    """The page; it needs no network, no server and no file beside it."""
    return page(
        f"GPU backtest to {result.end}",
        element(
            "header",
            element("h1", "GPU backtest"),
            element("p", headline(result), class_="soft"),
            element("div", *_tiles(result), class_="tiles"),
        ),
        element("main", *_sections(result)),
    )


def _tiles(result: Backtest) -> Iterator[Markup]:
    for one in result.judged:
        yield tile(share_of(one), f"of GPU-hours freed by {one.judge}")
        if one.saved is not None:
            yield tile(money(one.saved), f"{result.currency}, less the returns")
        yield tile(f"{one.returned.value:,.0f} of {one.stops.value:,.0f}", "stopped workloads worked again")
        yield tile(f"{one.at_work}", "stopped at work")


def _sections(result: Backtest) -> Iterator[Markup]:
    yield element("h2", "Freed against harm")
    words = "Up is better: more GPU-hours freed. Left is better: fewer stopped workloads that worked again."
    yield element(
        "div",
        element("p", f"{words} Lines are 90 % intervals. {_ORACLE}", class_="note"),
        _plot(result),
        class_="card",
    )
    yield element("h2", "Judges")
    yield element("div", element("div", _table(result.summaries), class_="scroll"), class_="card")
    for one in result.judged:
        yield element("h2", one.judge)
        yield element("ul", *(element("li", words) for words in details(one, result.currency)))
    yield element("h2", "Not known")
    yield element("ul", *(element("li", words) for words in result.unknown))


def _table(summaries: Sequence[Summary]) -> Markup:
    heads = ("freed GPU-hours", "90 %", "stops", "returned", "at work")
    head = element(
        "tr",
        element("th", "judge", scope="col"),
        *(element("th", name, class_="number", scope="col") for name in heads),
    )
    rows = (
        element(
            "tr",
            element("th", one.judge, scope="row"),
            *(element("td", cell, class_="number") for cell in _cells(one)),
        )
        for one in summaries
    )
    return element("table", element("thead", head), element("tbody", *rows), class_="totals")


def _cells(one: Summary) -> Iterator[str]:
    yield f"{one.freed.value:,.0f} ({share_of(one)})"
    yield between(one.freed)
    yield from (f"{one.stops.value:,.0f}", f"{one.returned.value:,.0f}", f"{one.at_work}")


def _plot(result: Backtest) -> Markup:
    """A point for each judge: returns to the right, GPU-hours freed upwards."""
    most_hours = max((one.freed.high for one in result.summaries), default=0.0) or 1.0
    most_returns = max((one.returned.high for one in result.summaries), default=0.0) or 1.0

    def across(returned: float) -> float:
        return _LEFT + returned / most_returns * (_WIDTH - _LEFT - _RIGHT)

    def up(hours: float) -> float:
        return _HEIGHT - _BOTTOM - hours / most_hours * (_HEIGHT - _BOTTOM - _TOP)

    marks: list[Markup] = []
    last = float(_HEIGHT)
    for one in sorted(result.summaries, key=lambda each: each.freed.value):
        x, y = across(one.returned.value), up(one.freed.value)
        name = "used" if one.judge in result.policies else "other"
        marks += [
            _line(x, up(one.freed.low), x, up(one.freed.high), f"whisker {name}"),
            _line(across(one.returned.low), y, across(one.returned.high), y, f"whisker {name}"),
            element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=5, class_=name),
        ]
        last = min(y - 6, last - _LINE)
        marks.append(element("text", one.judge, x=f"{x + 9:.1f}", y=f"{last:.1f}"))
    axes = [
        _line(_LEFT, _HEIGHT - _BOTTOM, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM, "axis"),
        _line(_LEFT, _TOP, _LEFT, _HEIGHT - _BOTTOM, "axis"),
        element("text", "0", x=_LEFT - 14, y=_HEIGHT - _BOTTOM + 5),
        element("text", f"{most_hours:,.0f}", x=4, y=_TOP + 5),
        element("text", f"{most_returns:,.0f}", x=_WIDTH - _RIGHT - 8, y=_HEIGHT - _BOTTOM + 18),
        element("text", "stops that returned", x=_LEFT, y=_HEIGHT - 6),
        element("text", "GPU-hours freed", x=4, y=12),
    ]
    told = "; ".join(
        f"{one.judge}: {one.freed.value:,.0f} GPU-hours freed, {one.returned.value:,.0f} stops returned"
        for one in result.summaries
    )
    return element(
        "svg",
        join(*axes, *marks),
        class_="plot",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=told,
    )


def _line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return element("line", x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}", y2=f"{y2:.1f}", class_=class_)
