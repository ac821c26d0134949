"""Where Prometheus's record of GPUs begins: what came before is nobody's pause."""

import datetime

from rightsizer.prometheus.query_api import QueryRange
from rightsizer.usage.querier import SourceQuerier

STEPS = 40
HALVINGS = 5


def begins(asker: SourceQuerier, span: datetime.timedelta, at: datetime.datetime) -> datetime.datetime | None:
    """The first instant, to about a thousandth of the span, of which there is any GPU series at all.

    None where the record goes back over the whole span. A hole in it, however long, is no beginning.

    Raises:
        PrometheusError: Something could not be read whole.
    """
    step = span / STEPS
    start = at - span
    for quantity in asker.markers():
        if asker.prometheus.query(f"count({asker.selected([quantity], asker.given)})", start):
            return None
    held = f"count({asker.selected(asker.markers(), asker.given)})"
    tracks = asker.prometheus.query_range(held, QueryRange(start, at, step.total_seconds()))
    instants = [instant for track in tracks for instant in track.points]
    first = datetime.datetime.fromtimestamp(min(instants), tz=datetime.UTC) if instants else at
    if first - start < step / 2:
        return None
    before = first - step
    for _ in range(HALVINGS):
        middle = before + (first - before) / 2
        if asker.prometheus.query(held, middle):
            first = middle
        else:
            before = middle
    return first
