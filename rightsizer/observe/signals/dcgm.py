"""Usage from DCGM-named metrics, as our exporter and dcgm-exporter serve them.

One aggregate query for each statistic of each quantity, for the whole fleet; never raw samples. A series names its pod
in `exported_pod` where Prometheus found the exporter's own labels in the way (honor_labels: false), else in `pod`;
each series is taken at its word, and only pods that the API server knows are looked up.
"""

import dataclasses
import datetime
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rightsizer.config import format_duration
from rightsizer.errors import EvidenceIncomplete
from rightsizer.model import Device, Usage, Usages
from rightsizer.observe.prometheus import Prometheus, Sample, Track

CLUSTER = "cluster"
"""The label by which those who gather several clusters in one Prometheus usually tell them apart."""

IDENTITY = (
    CLUSTER,
    "namespace",
    "pod",
    "exported_namespace",
    "exported_pod",
    "UUID",
    "GPU_I_ID",
    "GPU_I_PROFILE",
    "modelName",
)
"""What tells one pod's use of one device from another's. Copies from a second Prometheus, job or exporter differ in
other labels only, and fall together under `max`."""

SAMPLES_PER_SLOT = 20
"""So many samples make a slot's count steady: one more or less is 5 %."""

MAX_SLOTS = 96
"""A quarter of an hour each in a day."""

MIB = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Quantity:
    """One metric that gives one quantity.

    Attributes:
        scale: Factor from the metric's unit to ours.
        limit: Highest value that can be, in our unit; None where there is no such bound.
        is_activity: Whether it says that a kernel ran: what coverage is measured on.
        statistics: PromQL functions over the window → field of Usage.
    """

    metric: str
    scale: float
    limit: float | None
    statistics: Mapping[str, str]
    is_activity: bool = False


# DCGM's names up to 4.8 with their units: dcgm-exporter's etc/default-counters.csv.
QUANTITIES = (
    Quantity(
        "DCGM_FI_DEV_GPU_UTIL",
        scale=0.01,
        limit=1.0,
        statistics={"avg_over_time": "activity_mean", "max_over_time": "activity_peak", "min_over_time": ""},
        is_activity=True,
    ),
    Quantity(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        scale=1.0,
        limit=1.0,
        statistics={"avg_over_time": "activity_mean", "max_over_time": "activity_peak", "min_over_time": ""},
        is_activity=True,
    ),
    Quantity(
        "DCGM_FI_DEV_MEM_COPY_UTIL", scale=0.01, limit=1.0, statistics={"max_over_time": "traffic_peak"}
    ),
    Quantity("DCGM_FI_PROF_DRAM_ACTIVE", scale=1.0, limit=1.0, statistics={"max_over_time": "traffic_peak"}),
    Quantity("DCGM_FI_DEV_FB_USED", scale=MIB, limit=None, statistics={"max_over_time": "memory_peak_bytes"}),
    Quantity(
        "DCGM_FI_DEV_POWER_USAGE",
        scale=1.0,
        limit=20_000.0,
        statistics={"avg_over_time": "power_mean_w", "max_over_time": "power_peak_w"},
    ),
)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Key:
    """One pod's use of one device."""

    namespace: str
    pod: str
    device: Device


@dataclasses.dataclass(slots=True)
class _Gathered:
    """What has been collected for one key, before it becomes a Usage."""

    values: dict[str, float] = dataclasses.field(default_factory=dict)
    invalid: set[str] = dataclasses.field(default_factory=set)
    coverage: float = 0.0
    is_fresh: bool = False
    samples_expected: int | None = None


class DcgmSignal:
    """Usage from a Prometheus that holds DCGM-named metrics."""

    def __init__(self, prometheus: Prometheus, labels: Mapping[str, str] | None = None) -> None:
        self._prometheus = prometheus
        self._labels = {} if labels is None else dict(sorted(labels.items()))
        self._own = [f"{name}={json.dumps(value)}" for name, value in self._labels.items()]
        matchers = ["pod!=''", *self._own]
        self._selector = f"{{{', '.join(matchers)}}}"

    def usages(self, window: datetime.timedelta, at: datetime.datetime) -> Usages:
        """Usage of every device by every pod in the window that ends at `at`.

        Raises:
            PrometheusError: Something could not be read whole, or there is nothing to read.
        """
        gathered: dict[Key, _Gathered] = {}
        for quantity in QUANTITIES:
            for function, field in quantity.statistics.items():
                promql = _aggregate(f"{function}({quantity.metric}{self._selector}[{_promql(window)}])")
                samples = self._prometheus.query(promql, at)
                _require_one_cluster(samples)
                _take(gathered, samples, quantity, field)
            if quantity.is_activity:
                self._cover(gathered, quantity, window, at)
        if not gathered:
            self._explain_nothing(at, window)
        return _by_pod(gathered)

    def activity(self, window: datetime.timedelta, at: datetime.datetime) -> Usages:
        """Only the highest activity of every device by every pod: a last look before acting."""
        gathered: dict[Key, _Gathered] = {}
        for quantity in QUANTITIES:
            if quantity.is_activity:
                promql = _aggregate(f"max_over_time({quantity.metric}{self._selector}[{_promql(window)}])")
                _take(gathered, self._prometheus.query(promql, at), quantity, "activity_peak")
        return _by_pod(gathered)

    def _cover(
        self,
        gathered: dict[Key, _Gathered],
        quantity: Quantity,
        window: datetime.timedelta,
        at: datetime.datetime,
    ) -> None:
        """Note for each key which share of the window its activity was recorded in."""
        counted = f"count_over_time({quantity.metric}{self._selector}[{_promql(window)}])"
        densest = max((sample.value for sample in self._prometheus.query(f"max({counted})", at)), default=0.0)
        if densest < 1:
            return
        # Where even the whole window holds too few for one steady slot, samples_expected says so.
        slots = max(1, min(MAX_SLOTS, int(densest) // SAMPLES_PER_SLOT))
        # In whole seconds: the last step of the range must fall on its end, or the newest slot would seem empty.
        slot = datetime.timedelta(seconds=round(window.total_seconds() / slots))
        promql = _aggregate(f"count_over_time({quantity.metric}{self._selector}[{_promql(slot)}])")
        tracks = self._prometheus.query_range(
            promql, start=at - (slots - 1) * slot, end=at, step_s=slot.total_seconds()
        )
        counts = [(key, _slots(track, at, slot, slots)) for key, track in _keyed(tracks)]
        for key, shares in _shares(counts):
            here = gathered.setdefault(key, _Gathered())
            here.coverage = max(here.coverage, sum(shares) / slots)
            here.samples_expected = max(here.samples_expected or 0, int(densest))
            here.is_fresh = here.is_fresh or shares[-1] >= 0.5  # noqa: PLR2004 - half of the last slot's samples

    def _explain_nothing(self, at: datetime.datetime, window: datetime.timedelta) -> None:
        """Tell an empty Prometheus from one whose series carry other labels, and from one whose series name no pod.

        Raises:
            EvidenceIncomplete: Always.
        """
        if not self._holds([], at, window):
            raise EvidenceIncomplete(
                f"Prometheus holds no GPU series ({QUANTITIES[0].metric} and its like) in the last {_span(window)}: "
                "is gpu-exporter or dcgm-exporter scraped, and is this the right Prometheus?"
            )
        if not self._holds(self._own, at, window):
            found = "; ".join(self._values(name, at, window) for name in self._labels)
            raise EvidenceIncomplete(
                f"Prometheus holds GPU series, but none with {', '.join(self._own)} (--prometheus-label): {found}"
            )
        raise EvidenceIncomplete(
            "Prometheus holds GPU series, but none names a pod: run the exporter with the kubelet's PodResources "
            "socket mounted (dcgm-exporter: --kubernetes)"
        )

    def _holds(self, matchers: Sequence[str], at: datetime.datetime, window: datetime.timedelta) -> bool:
        return bool(self._prometheus.query(f"count({_any_of(matchers, window)})", at))

    def _values(self, label: str, at: datetime.datetime, window: datetime.timedelta) -> str:
        """Which values of a label there are, in words."""
        samples = self._prometheus.query(f"count by ({label}) ({_any_of([], window)})", at)
        values = sorted(sample.labels.get(label, "") for sample in samples)
        return f"{label} is {', '.join(value or '(none)' for value in values[:5])}"


def _require_one_cluster(samples: Iterable[Sample]) -> None:
    """Two clusters may have a pod of the same name: its idleness there must not count here.

    Raises:
        EvidenceIncomplete: The series are of several clusters.
    """
    clusters = sorted({sample.labels.get(CLUSTER, "") for sample in samples})
    if len(clusters) > 1:
        names = ", ".join(name or "(none)" for name in clusters[:5])
        raise EvidenceIncomplete(
            f"Prometheus holds GPU series of several clusters ({names}); "
            f"name yours: --prometheus-label {CLUSTER}={clusters[-1]}"
        )


def _aggregate(expression: str) -> str:
    return f"max by ({', '.join(IDENTITY)}) ({expression})"


def _any_of(matchers: Sequence[str], window: datetime.timedelta) -> str:
    """Every GPU series that carries these labels."""
    names = "|".join(quantity.metric for quantity in QUANTITIES)
    selector = ", ".join([f'__name__=~"{names}"', *matchers])
    return f"last_over_time({{{selector}}}[{_promql(window)}])"


def _span(window: datetime.timedelta) -> str:
    return format_duration(window.total_seconds())


def _promql(span: datetime.timedelta) -> str:
    return f"{round(span.total_seconds() * 1000)}ms"


def _key(labels: Mapping[str, str]) -> Key | None:
    """Whom a series is about; None where it does not say which device."""
    pod = labels.get("exported_pod") or labels.get("pod", "")
    namespace = labels.get("exported_namespace") or labels.get("namespace", "")
    uuid = labels.get("UUID", "")
    if not (pod and namespace and uuid):
        return None
    device = Device(
        uuid, labels.get("GPU_I_ID", ""), labels.get("modelName", ""), labels.get("GPU_I_PROFILE", "")
    )
    return Key(namespace, pod, device)


def _keyed(tracks: Iterable[Track]) -> Iterator[tuple[Key, Track]]:
    for track in tracks:
        key = _key(track.labels)
        if key is not None:
            yield key, track


def _take(gathered: dict[Key, _Gathered], samples: Iterable[Sample], quantity: Quantity, field: str) -> None:
    """File the samples under their keys. What cannot be is noted as such, never bent into what can."""
    for sample in samples:
        key = _key(sample.labels)
        if key is None:
            continue
        here = gathered.setdefault(key, _Gathered())
        value = sample.value * quantity.scale
        if not math.isfinite(value) or value < 0 or (quantity.limit is not None and value > quantity.limit):
            here.invalid.add(quantity.metric)
        elif field:
            here.values[field] = max(value, here.values.get(field, 0.0))


def _slots(track: Track, at: datetime.datetime, slot: datetime.timedelta, slots: int) -> list[float]:
    """The track's counts, oldest slot first, 0 where Prometheus gave none."""
    counts = [0.0] * slots
    for instant, value in track.points.items():
        back = round((at.timestamp() - instant) / slot.total_seconds())
        if 0 <= back < slots and math.isfinite(value):
            counts[slots - 1 - back] = value
    return counts


def _shares(counts: Sequence[tuple[Key, list[float]]]) -> Iterator[tuple[Key, list[float]]]:
    """How much of each slot each key was recorded, 0 to 1.

    A slot is whole where it holds as many samples as the densest series has in it, and at least half of the densest
    slot of the whole window: a change of the scrape interval is no gap, an outage of everything is one.
    """
    densest = [max(column) for column in zip(*(row for _, row in counts), strict=True)]
    least = max(densest, default=0.0) / 2
    expected = [max(value, least) for value in densest]
    for key, row in counts:
        yield (
            key,
            [min(1.0, value / full) if full else 0.0 for value, full in zip(row, expected, strict=True)],
        )


def _by_pod(gathered: Mapping[Key, _Gathered]) -> Usages:
    usages: dict[tuple[str, str], list[Usage]] = {}
    build: Callable[..., Usage] = Usage
    for key in sorted(gathered):
        here = gathered[key]
        usage = build(
            device=key.device,
            coverage=here.coverage,
            is_fresh=here.is_fresh,
            samples_expected=here.samples_expected,
            invalid=tuple(sorted(here.invalid)),
            **here.values,
        )
        usages.setdefault((key.namespace, key.pod), []).append(usage)
    return usages
