"""The text format is read as Prometheus reads it."""

import math

import pytest

from simulator.history import Sample, parse


def test_parse_reads_names_labels_and_values() -> None:
    """Counters keep their names, escapes in labels are undone, timestamps are skipped."""
    text = (
        "# HELP energy Energy.\n# TYPE energy counter\n"
        'energy{UUID="GPU-1",name="a \\"b\\", c\\\\\\n",} 1.5e3 1795000000000\n\nplain 7\nnothing NaN\n'
    )
    first, plain, nothing = parse(text)
    assert first == Sample("energy", {"UUID": "GPU-1", "name": 'a "b", c\\\n'}, 1500.0)
    assert plain == Sample("plain", {}, 7.0)
    assert math.isnan(nothing.value)


def test_parse_of_invalid_line_raises_value_error() -> None:
    """Garbage is an error that shows the line."""
    with pytest.raises(ValueError, match="not a line of an exposition: <html>"):
        list(parse("<html>\n"))
