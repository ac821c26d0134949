"""Whose recorded activity is plainly without gaps: found out with a few questions about the whole window.

It is where something is on record of every five minutes, and never much less than of the fullest five minutes of
anybody of the job. Whoever is not is no worse for it: of them it is asked slot by slot.
"""

import datetime
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rightsizer.observe import promql
from rightsizer.observe.sharding import Territory
from rightsizer.observe.signals.asking import Asker
from rightsizer.observe.signals.labels import JOB, Key
from rightsizer.observe.signals.quantities import Kind, Quantity
from rightsizer.observe.signals.rules import COUNT, TILE, recorded

STEADY = 0.9
"""Of as many samples as there should be: so many make no difference."""

# Of a pod's use of a device there may be copies: all of them must be without gaps.
_ASKED = (
    ("min", "count_over_time"),
    ("min", "min_over_time"),
    ("max", "sum_over_time"),
    ("max", "max_over_time"),
)


class Tally(NamedTuple):
    """What was recorded of the five minutes of a window.

    Attributes:
        tiles: Of how many five minutes something was.
        least: Samples of the emptiest of them, `most` of the fullest, and `total` of all.
    """

    tiles: float
    least: float
    total: float
    most: float

    def beside(self, other: "Tally") -> "Tally":
        """Of two metrics: where one is without gaps the other need not be; the fullest is that of both."""
        return max(self, other)._replace(total=max(self.total, other.total), most=max(self.most, other.most))


class Fullest(NamedTuple):
    """What slots can hold at most.

    Attributes:
        by_job: Samples of five minutes.
        more: So many more five minutes a slot holds than fit into it: 1 where something was recorded just when the
            window began and ended, and Prometheus counts both ends of a range (as before 3.0).
    """

    by_job: Mapping[str, float]
    more: int

    def of(self, job: str, slot: datetime.timedelta) -> float:
        """Samples of a slot."""
        return self.by_job.get(job, 0.0) * (slot // TILE + self.more)


NONE = Fullest({}, 0)


def tallies_of(
    asker: Asker,
    territory: Territory,
    most: float,
    *,
    window: datetime.timedelta,
    at: datetime.datetime,
) -> dict[str, dict[Key, Tally]]:
    """What was recorded of everybody's activity, by job.

    Args:
        asker: The source, which has rules.
        territory: Its series.
        most: How many may be asked for at once.
        window: A multiple of five minutes.
        at: Its end.
    """
    tallies: dict[str, dict[Key, Tally]] = {}
    for quantity in asker.source.of(Kind.ACTIVITY):
        for job, rows in _asked(asker, territory, most, quantity=quantity, window=window, at=at).items():
            mine = tallies.setdefault(job, {})
            for key, values in rows.items():
                tally = Tally(*values)
                mine[key] = tally.beside(mine[key]) if key in mine else tally
    return tallies


def _asked(
    asker: Asker,
    territory: Territory,
    most: float,
    *,
    quantity: Quantity,
    window: datetime.timedelta,
    at: datetime.datetime,
) -> dict[str, dict[Key, list[float]]]:
    labels = (*asker.source.labels.use, JOB)
    found: dict[str, dict[Key, list[float]]] = {}
    for place, (aggregation, function) in enumerate(_ASKED):

        def build(matchers: Sequence[str], how: tuple[str, str] = (aggregation, function)) -> str:
            counts = recorded(quantity, COUNT, (*asker.owned, *matchers))
            return promql.by(how[0], labels, promql.over(how[1], counts, window))

        for described, value in asker.keyed(territory, territory.shards(most), build, at):
            if described.key is not None:
                row = found.setdefault(described.job, {}).setdefault(described.key, [0.0] * len(_ASKED))
                row[place] = value
    return found


def without_gaps(tallies: Mapping[Key, Tally], window: datetime.timedelta) -> dict[Key, Tally]:
    """Those of one job of whom it is plain."""
    tiles, most = window // TILE, max(tally.tiles for tally in tallies.values())
    if not tiles <= most <= tiles + 1:
        return {}  # it was not every five minutes that something was recorded
    fullest = max(tally.most for tally in tallies.values())
    return {
        key: tally
        for key, tally in tallies.items()
        if tally.tiles == most and tally.least >= STEADY * fullest
    }


def fullest_of(tallies: Mapping[str, Mapping[Key, Tally]], window: datetime.timedelta) -> Fullest:
    """What slots can hold at most, by what was recorded of everybody."""
    tiles = max(tally.tiles for mine in tallies.values() for tally in mine.values())
    by_job = {job: max(tally.most for tally in mine.values()) for job, mine in tallies.items()}
    return Fullest(by_job, round(tiles) - window // TILE)
