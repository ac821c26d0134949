"""Inline SVG charts of the pages; colours come from the page's style. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from rightsizer.model import PodKey, Workload
from rightsizer.text import number, percent

Bar = tuple[str, Markup, str]
"""A name, what is drawn for it, and figures."""

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
    rect = Markup('<rect class="{}" x="{:.2f}%" width="{:.2f}%" height="100%"></rect>')
    rects = [rect.format(name, start * scale, length * scale) for name, start, length in parts if length > 0]
    words = (
        f"{number(used)} of {number(held)} GPU-hours used ({percent(used / known if known > 0 else None)})"
    )
    if unknown > 0:
        words += f", {number(unknown)} not measured"
    svg = Markup('<svg class="bar" role="img" aria-label="{}">{}</svg>')
    return svg.format(words, Markup().join(rects))


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
    drawn = Markup('<polyline points="{}" vector-effect="non-scaling-stroke"></polyline>')
    svg = Markup(
        '<svg class="line" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    )
    return svg.format(_WIDTH, _HEIGHT, words, Markup().join(map(drawn.format, _runs(profile))))


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
