"""Panels as HTML: whatever Prometheus answers, there is a picture."""

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from dashboards.drawing import draw_panel
from dashboards.panels import Kind, Panel
from dashboards.rows import ROWS

PANELS = [panel for row in ROWS for panel in row.panels]
VALUES = st.sampled_from(["0", "1.5", "32", "NaN", "+Inf"])
LABELS = st.dictionaries(st.sampled_from(["node", "namespace", "<b>"]), st.just("<i>a</i>"))


def _answer(panel: Panel) -> st.SearchStrategy[list[dict[str, Any]]]:
    minutes = st.lists(st.integers(0, 3).map(lambda minute: 60 * minute), min_size=1, unique=True).map(sorted)
    if panel.kind is Kind.LINES:
        values = minutes.flatmap(lambda at: st.tuples(*(st.tuples(st.just(one), VALUES) for one in at)))
        return st.lists(st.fixed_dictionaries({"metric": LABELS, "values": values}), max_size=3)
    value = st.tuples(st.just(0), VALUES)
    return st.lists(st.fixed_dictionaries({"metric": LABELS, "value": value}), max_size=3)


def _shown(title: str, value: float) -> str:
    panel = next(one for one in PANELS if one.title == title)
    labels = dict.fromkeys(panel.columns, "x")
    return draw_panel(panel, [[{"metric": labels, "value": (0, str(value))}] for _ in panel.queries])


@pytest.mark.parametrize(
    ("title", "value", "words"),
    [
        ("Mode", 0, ">advises<"),
        ("Breaker", 1, ">open<"),
        ("Since the last successful cycle", 65, ">1.1 min<"),
        ("Evidence", 0.984, ">98%<"),
    ],
)
def test_draw_panel_shows_words_and_units_as_grafana_does(title: str, value: float, words: str) -> None:
    """Not the bare number."""
    assert words in _shown(title, value)


def test_draw_panel_axis_has_its_unit() -> None:
    """Clocks in GHz."""
    panel = next(one for one in PANELS if one.unit == "hertz")
    track = {"metric": {}, "values": [(0, "1410000000"), (60, "1410000000")]}
    assert ">1.55 GHz<" in draw_panel(panel, [[track] for _ in panel.queries])


@hypothesis.given(st.data())
def test_draw_panel_any_answer_gives_html(data: st.DataObject) -> None:
    """No sample, one sample, or values that are no numbers: the panel has its title, and names are escaped."""
    panel = data.draw(st.sampled_from(PANELS))
    found = [data.draw(_answer(panel)) for _ in panel.queries]
    page = draw_panel(panel, found)
    assert page.startswith("<div class=p")
    assert "<i>a</i>" not in page
