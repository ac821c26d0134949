"""HTML elements and inline SVG charts of the page. Text is escaped where it enters. Pure.

Nothing else in the report writes a `<`; colours come from the page's style.
"""

import html
from collections.abc import Iterator, Mapping, Sequence

from rightsizer.model import PodKey, Workload
from rightsizer.text import number, percent, safe


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(content: str) -> Markup:
    """Anything, as text."""
    return content if isinstance(content, Markup) else Markup(html.escape(safe(content), quote=False))


def join(*parts: str) -> Markup:
    """Several parts, one after the other."""
    return Markup("".join(map(text, parts)))


_VOID = frozenset({"meta", "input"})


def element(name: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """One element; children that are text and values of attributes are escaped, the names are never foreign.

    Names of attributes have `_` for `-`, and one behind Python's keywords; None leaves an attribute out.
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    opened = f"<{name}{shown}>"
    return Markup(opened if name in _VOID else f"{opened}{join(*children)}</{name}>")


def raw(name: str, content: str) -> Markup:
    """A `style` or `script` element, whose content HTML does not unescape."""
    return Markup(f"<{name}>{content}</{name}>")


def _value(value: str | float) -> str:
    return html.escape(safe(value)) if isinstance(value, str) else f"{value:.6g}"


_LEGEND = {"used": "GPU-hours used", "held": "held, not used", "unknown": "not measured"}


def legend() -> Markup:
    """The colours of bars."""
    return element("div", *map(_key, _LEGEND), class_="legend")


def _key(name: str) -> Markup:
    swatch = element("svg", element("rect", class_=name, width="100%", height="100%"), aria_hidden="true")
    return element("span", swatch, _LEGEND[name])


Profiles = Mapping[PodKey, Sequence[float | None]]
"""Activity of each pod in equal steps, oldest first, 0 to 1."""

_POINTS = 96
"""A line of a few centimetres shows no more."""

_WIDTH = 160
_HEIGHT = 28
_MARGIN = 2


def bar(held: float, used: float, unknown: float, longest: float) -> Markup:
    """GPU-hours of one part of the fleet, used, unused and not measured, as shares of the longest bar."""
    known = held - unknown
    parts = (("held", 0.0, held), ("unknown", used, unknown), ("used", 0.0, used))
    scale = 100 / longest if longest > 0 else 0.0
    rects = [
        element("rect", class_=name, x=f"{start * scale:.2f}%", width=f"{length * scale:.2f}%", height="100%")
        for name, start, length in parts
        if length > 0
    ]
    words = (
        f"{number(used)} of {number(held)} GPU-hours used ({percent(used / known if known > 0 else None)})"
    )
    if unknown > 0:
        words += f", {number(unknown)} not measured"
    return element("svg", *rects, class_="bar", role="img", aria_label=words)


def profile_of(workload: Workload, profiles: Profiles) -> tuple[float | None, ...]:
    """Mean activity of its pods over time: the lines end together, and younger ones begin later."""
    found = (profiles.get((pod.ref.namespace, pod.ref.name), ()) for pod in workload.pods)
    lines = [line for line in found if line]
    length = max(map(len, lines), default=0)
    steps = [
        _mean([line[place - length] for line in lines if len(line) >= length - place])
        for place in range(length)
    ]
    size = -(-length // _POINTS) or 1
    return tuple(_mean(steps[start : start + size]) for start in range(0, length, size))


def line(profile: Sequence[float | None]) -> Markup:
    """Activity over the window, 0 to 100 %; the line is broken where nothing was measured."""
    known = [value for value in profile if value is not None]
    if not known:
        return Markup()
    words = f"activity over the window: mean {percent(sum(known) / len(known))}, highest step {percent(max(known))}"
    drawn = [
        element("polyline", points=points, vector_effect="non-scaling-stroke") for points in _runs(profile)
    ]
    return element(
        "svg",
        join(*drawn),
        class_="line",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=words,
    )


def _runs(profile: Sequence[float | None]) -> Iterator[str]:
    """The points of each unbroken stretch; a lone one is drawn as a short dash."""
    step = _WIDTH / max(len(profile), 1)
    run: list[str] = []
    for place, value in enumerate((*profile, None)):
        if value is not None:
            height = _HEIGHT - _MARGIN - min(max(value, 0.0), 1.0) * (_HEIGHT - 2 * _MARGIN)
            run += [f"{place * step:.1f},{height:.1f}", f"{(place + 1) * step:.1f},{height:.1f}"]
        elif run:
            yield " ".join(run)
            run = []


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
