"""Usage of every device by every pod: one aggregate query for each statistic of each metric; never raw samples.

What cannot be is noted as such, never bent into what can. Each series is taken at its word about whose it is; only pods
that the API server knows are looked up.
"""

import array
import dataclasses
import datetime
import math
from collections.abc import Iterable, Iterator, Mapping

from rightsizer.model import Device, Usage, Usages
from rightsizer.observe import promql
from rightsizer.observe.sharding import Territory
from rightsizer.observe.signals import counters
from rightsizer.observe.signals.asking import Asker
from rightsizer.observe.signals.coverage import NOTHING, Cover, cover
from rightsizer.observe.signals.labels import Described, Key
from rightsizer.observe.signals.own import SLACK_S, Counters
from rightsizer.observe.signals.quantities import STATISTICS, Kind, Quantity, Statistic
from rightsizer.observe.signals.rules import TILE, Raw, Reading, Recorded

DISAGREE = 0.1
"""Two sources whose means over an hour are further apart do not speak of the same device or the same pod."""
COMPARED = datetime.timedelta(hours=1)
DISAGREEMENT = "sources disagree"

_FIELDS = {
    (Kind.ACTIVITY, Statistic.MEAN): "activity_mean",
    (Kind.ACTIVITY, Statistic.PEAK): "activity_peak",
    (Kind.TRAFFIC, Statistic.MEAN): "traffic_mean",
    (Kind.TRAFFIC, Statistic.PEAK): "traffic_peak",
    (Kind.MEMORY, Statistic.PEAK): "memory_peak_bytes",
    (Kind.POWER, Statistic.MEAN): "power_mean_w",
    (Kind.POWER, Statistic.PEAK): "power_peak_w",
}


@dataclasses.dataclass(slots=True)
class Gathered:
    """What has been collected for one key, before it becomes a Usage."""

    device: Device
    activity_mean: float | None = None
    activity_peak: float | None = None
    traffic_mean: float | None = None
    traffic_peak: float | None = None
    memory_peak_bytes: float | None = None
    power_mean_w: float | None = None
    power_peak_w: float | None = None
    busy_s: float | None = None
    is_own: bool = False
    invalid: tuple[str, ...] = ()

    def doubt(self, name: str) -> None:
        """Note what cannot be."""
        if name not in self.invalid:
            self.invalid = tuple(sorted((*self.invalid, name)))


Everything = dict[Key, Gathered]
Kept = tuple[list[Described], "array.array[float]"]
"""Answers of which there are many: what they are about, and the values."""


def usages(asker: Asker, window: datetime.timedelta, at: datetime.datetime) -> Usages:
    """Usage in the window that ends at `at`; empty where there is none.

    Raises:
        PrometheusError: Something could not be read whole.
    """
    everything: Everything = {}
    reading = asker.reading(window, at)
    territory = asker.territory(window, at)
    per_series = asker.samples_per_series(reading, window, at)
    for quantity in asker.source.quantities:
        for statistic in STATISTICS[quantity.kind]:
            question = _Question(asker, territory, reading, quantity, statistic)
            question.file(everything, question.ask(window, at, per_series))
    if isinstance(reading, Recorded):
        # What was recorded ends up to five minutes ago.
        for question, (described, values) in _lately(asker, territory, at):
            question.file(everything, zip(described, values, strict=True))
    covers = cover(asker, reading, territory, window=window, at=at)
    for one in _compared(asker, territory, min(window, COMPARED), at):
        _place(everything, one).doubt(DISAGREEMENT)
    _count(everything, counters.ask(asker, window, at), window)
    return _by_pod(everything, covers)


def activity(asker: Asker, window: datetime.timedelta, at: datetime.datetime) -> Usages:
    """Only the highest activity, and what counters say of it: a last look before acting."""
    everything: Everything = {}
    for question, answers in _peaks(asker, asker.territory(window, at), window, at, kinds=(Kind.ACTIVITY,)):
        question.file(everything, answers)
    _count(everything, counters.ask(asker, window, at), window)
    return _by_pod(everything, {})


@dataclasses.dataclass(frozen=True, slots=True)
class _Question:
    asker: Asker
    territory: Territory
    reading: Reading
    quantity: Quantity
    statistic: Statistic

    def ask(
        self, window: datetime.timedelta, at: datetime.datetime, per_series: float
    ) -> Iterator[tuple[Described, float]]:
        """The answers, in our units."""
        scale = self.reading.scale(self.quantity)
        asker, labels = self.asker, self.asker.source.labels
        shards = self.territory.shards(asker.most(per_series))

        def build(matchers: Iterable[str]) -> str:
            asked = self.reading.statistic(self.quantity, self.statistic, (*asker.owned, *matchers), window)
            return promql.by("max", labels.described, asked)

        for described, number in asker.keyed(self.territory, shards, build, at):
            if described.key is not None:
                yield described, number * scale

    def file(self, everything: Everything, answers: Iterable[tuple[Described, float]]) -> None:
        """Put the answers under their keys."""
        field = _FIELDS.get((self.quantity.kind, self.statistic), "")
        for described, value in answers:
            here = _place(everything, described)
            if not math.isfinite(value) or not 0 <= value <= self.quantity.highest:
                here.doubt(self.quantity.metric)
            elif field and self.quantity.metric not in here.invalid:
                setattr(here, field, max(value, getattr(here, field) or 0.0))


def _place(everything: Everything, described: Described) -> Gathered:
    """Where a sample with a key belongs. Of two descriptions of one device one is taken, always the same."""
    key, device = described.key, described.device
    assert key is not None  # noqa: S101 - or it would not have been taken
    here = everything.get(key)
    if here is None:
        here = everything[key] = Gathered(device)
    elif device is not here.device and device != here.device:
        here.device = dataclasses.replace(
            device,
            model=min(filter(None, (device.model, here.device.model)), default=""),
            instance_profile=device.instance_profile or here.device.instance_profile,
        )
    return here


def _peaks(
    asker: Asker,
    territory: Territory,
    window: datetime.timedelta,
    at: datetime.datetime,
    *,
    kinds: tuple[Kind, ...] = tuple(Kind),
) -> Iterator[tuple[_Question, Iterator[tuple[Described, float]]]]:
    per_series = asker.samples_per_series(Raw(), window, at)
    for kind in kinds:
        for quantity in asker.source.of(kind):
            question = _Question(asker, territory, Raw(), quantity, Statistic.PEAK)
            yield question, question.ask(window, at, per_series)


def _lately(asker: Asker, territory: Territory, at: datetime.datetime) -> list[tuple[_Question, Kept]]:
    """Peaks of the last minutes, which are asked for once for all windows."""

    def make() -> list[tuple[_Question, Kept]]:
        return [(question, _kept(answers)) for question, answers in _peaks(asker, territory, 2 * TILE, at)]

    return asker.memo.of(at, "lately", make)


def _kept(answers: Iterable[tuple[Described, float]]) -> Kept:
    kept: Kept = ([], array.array("d"))
    for described, value in answers:
        kept[0].append(described)
        kept[1].append(value)
    return kept


def _compared(
    asker: Asker, territory: Territory, span: datetime.timedelta, at: datetime.datetime
) -> list[Described]:
    """The devices that are in doubt since two sources disagree; asked once for all windows."""
    return asker.memo.of(at, ("compared", span), lambda: list(_compare(asker, territory, span, at)))


def _compare(
    asker: Asker, territory: Territory, span: datetime.timedelta, at: datetime.datetime
) -> Iterator[Described]:
    """The devices of which two sources that measure the same say different things.

    Only in the last hour: of an exporter that has been replaced since, the two speak of different times.
    """
    shards = territory.shards(asker.most(asker.samples_per_series(Raw(), span, at)))
    alike: dict[str, list[Quantity]] = {}
    for quantity in asker.source.of(Kind.ACTIVITY):
        alike.setdefault(quantity.alike, []).append(quantity)
    for quantities in alike.values():

        def build(matchers: Iterable[str], quantities: list[Quantity] = quantities) -> str:
            means = " or ".join(
                f"{Raw().statistic(quantity, Statistic.MEAN, (*asker.owned, *matchers), span)} * {quantity.scale!r}"
                for quantity in quantities
            )
            use = asker.source.labels.use
            return f"{promql.by('max', use, means)} - {promql.by('min', use, means)} > {DISAGREE}"

        for described, _ in asker.keyed(territory, shards, build, at):
            if described.key is not None:
                yield described


def _count(everything: Everything, counted: Counters, window: datetime.timedelta) -> None:
    """Add what counters say: of a shared device each pod's own, as far as it is known, else the device's."""
    holders: dict[tuple[str, str], int] = {}
    for key in everything:
        holders[key[2:]] = holders.get(key[2:], 0) + 1
    for key, here in everything.items():
        own_s = counted.own_s(key)
        is_shared = holders[key[2:]] > 1
        here.is_own = own_s is not None
        here.busy_s = counted.anybodys_s(key) if own_s is None else own_s
        if here.busy_s is None:
            continue
        mean = min(here.busy_s / window.total_seconds(), 1.0)
        if own_s is not None and is_shared:
            # The device's highest sample is nobody's alone: none of it is a pod's that did nothing.
            here.activity_mean = mean
            here.activity_peak = 0.0 if own_s <= SLACK_S else here.activity_peak
            here.memory_peak_bytes = counted.memory_bytes.get(key, here.memory_peak_bytes)
        elif here.activity_peak is not None:
            # A gauge may be the pod's part only (the exporter's --shared-gpus attributed).
            here.activity_mean = max(mean, here.activity_mean or 0.0) if is_shared else here.activity_mean
            here.activity_peak = max(mean, here.activity_peak) if is_shared else here.activity_peak


def _by_pod(everything: Everything, covers: Mapping[Key, Cover]) -> Usages:
    found: dict[tuple[str, str], list[Usage]] = {}
    for key in sorted(everything):
        covered = covers.get(key)
        found.setdefault(key[:2], []).append(_usage(everything.pop(key), covered or NOTHING))
    return found


def _usage(here: Gathered, covered: Cover) -> Usage:
    # By place: a hundred thousand of these are made, and by name each would take three times as long.
    return Usage(
        here.device,
        here.activity_mean,
        here.activity_peak,
        here.traffic_mean,
        here.traffic_peak,
        here.memory_peak_bytes,
        here.power_mean_w,
        here.power_peak_w,
        here.busy_s,
        here.is_own,
        covered.coverage,
        covered.holes,
        covered.is_fresh,
        covered.samples_expected,
        here.invalid,
    )
