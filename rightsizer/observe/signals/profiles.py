"""How busy each pod was in the course of a window, for drawing: coarse, and judged by nobody."""

import datetime
import math

from rightsizer.model import PodKey
from rightsizer.observe import promql
from rightsizer.observe.signals.asking import Asker, require_one_cluster
from rightsizer.observe.signals.quantities import Kind, Statistic

STEPS = 48


def profiles(
    asker: Asker, window: datetime.timedelta, at: datetime.datetime
) -> dict[PodKey, list[float | None]]:
    """Mean activity of each pod's devices in equal steps of the window, oldest first, 0 to 1; None where unknown.

    Raises:
        PrometheusError: Something could not be read whole.
    """
    reading, step = asker.reading(window, at), window / STEPS
    labels, start = asker.source.labels, at - (STEPS - 1) * step
    territory = asker.territory(window, at)
    shards = territory.shards(asker.most(max(asker.samples_per_series(reading, step, at), STEPS)))
    found: dict[PodKey, list[float | None]] = {}
    for quantity in asker.source.of(Kind.ACTIVITY):
        scale = reading.scale(quantity)
        for answer in territory.ask(
            shards,
            lambda matchers, quantity=quantity: asker.prometheus.query_range(  # type: ignore[misc]
                promql.by(
                    "avg",
                    labels.owner,
                    reading.statistic(quantity, Statistic.MEAN, (*asker.owned, *matchers), step),
                ),
                start=start,
                end=at,
                step_s=step.total_seconds(),
            ),
        ):
            require_one_cluster(track.labels for track in answer)
            for track in answer:
                pod = labels.pod_of(track.labels)
                if pod is None:
                    continue
                row = found.setdefault(pod, [None] * STEPS)
                for instant, value in track.points.items():
                    place = STEPS - 1 - round((at.timestamp() - instant) / step.total_seconds())
                    share = value * scale
                    if 0 <= place < STEPS and math.isfinite(share) and 0 <= share <= 1:
                        row[place] = max(share, row[place] or 0.0)
    return dict(sorted(found.items()))
