"""Questions about some pods of many: by their names, in each form in which series name a pod. Knows nothing else."""

import datetime
from collections.abc import Collection, Iterator, Sequence

from rightsizer.model import PodKey
from rightsizer.prometheus import promql
from rightsizer.prometheus.sharding import SeriesGroup, Shard, ShardPlan
from rightsizer.usage.querier import SourceQuerier

DEVICES_PER_POD = 8
"""Assumed where queries are sized; what is more is split when it is refused."""


def of_pods(
    asker: SourceQuerier,
    pods: Sequence[PodKey],
    at: datetime.datetime,
    most: float,
    *,
    forms: Collection[str] | None = None,
) -> Iterator[tuple[ShardPlan, list[Shard]]]:
    """Shards of series that name these pods (and others of the same name elsewhere), in each form of naming one.

    Args:
        asker: What is asked.
        pods: Whom about.
        at: When.
        most: Series that may be asked about at once.
        forms: The labels that name any pod, where that is known.
    """
    territory = asker.territory(datetime.timedelta(minutes=5), at)
    spaces: dict[str, set[str]] = {}
    for namespace, name in pods:
        spaces.setdefault(name, set()).add(namespace)
    room = max(1, int(most / DEVICES_PER_POD))
    batches = [
        batch[begin : begin + room]
        for batch in promql.batches(sorted(spaces), promql.MAX_TEXT * 3 // 4)
        for begin in range(0, len(batch), room)
    ]
    for label, namespace_label, absent in asker.source.labels.forms():
        if forms is not None and label not in forms:
            continue
        shards = []
        for names in batches:
            within = sorted({space for name in names for space in spaces[name]})
            is_short = len(next(promql.batches(within, promql.MAX_TEXT // 2), [])) == len(within)
            fixed = (promql.one_of(namespace_label, within),) if is_short else ()
            parts = tuple(SeriesGroup(label, name, DEVICES_PER_POD, (*absent, *fixed)) for name in names)
            shards.append(Shard(parts))
        yield territory, shards
