"""Series of the past for Prometheus: labels from the exporter's exposition, values from the node's timeline."""

import bisect
import dataclasses
import itertools
import operator
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence

from simulator.gpus import mig
from simulator.gpus.cards import CARDS, Card, MigProfile
from simulator.nodes.agent import Holding, NodeAgent
from simulator.nodes.machine import Samples, Used
from simulator.nodes.tenancy import Tenancy
from simulator.series_store import Series
from simulator.spec import NodeSpec

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: -?\d+)?")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)",?')
_ESCAPE = re.compile(r"\\(.)")


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One line of an exposition."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse(text: str) -> Iterator[Sample]:
    """The samples of an exposition; raises ValueError on a line that is none."""
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        found = _SAMPLE.fullmatch(line)
        if found is None:
            raise ValueError(f"not a line of an exposition: {line}")
        name, labels, value = found.groups(default="")
        yield Sample(name, {key: _unescaped(raw) for key, raw in _LABEL.findall(labels)}, float(value))


def _unescaped(raw: str) -> str:
    return _ESCAPE.sub(lambda match: {"n": "\n"}.get(match[1], match[1]), raw)


STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
"""Prometheus's mark for a series that has ended; without it, it would be seen for another five minutes."""
POD_LABELS = ("namespace", "pod", "container")
_WORK_PER_ACTIVITY, _TRAFFIC_PER_WORK = 0.55, 16 * 2**20
"""As the driver derives its performance counters: simulator/gpus/native/gpm.c."""
Labels = dict[str, str]
_Nobody = dict[frozenset[tuple[str, str]], tuple[Labels, range, Sequence[float]]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Column:
    """Where a metric's values come from."""

    gpu: Callable[[Samples, Card], Sequence[float]]
    instance: Callable[[Samples, int, MigProfile], Sequence[float]] | None = None


def _mib(values: Sequence[int]) -> list[float]:
    return [value >> 20 for value in values]


def _free_mib(used: Sequence[int], total: int) -> list[float]:
    return [(total - value) >> 20 for value in used]


def _ratios(percents: Sequence[int]) -> list[float]:
    return [percent / 100 for percent in percents]


_ACTIVITY = _Column(
    lambda of, _: _ratios(of.utilization), lambda of, number, _: _ratios(of.instance_activity[number])
)
_WORK = _Column(
    lambda of, _: _ratios(of.memory_utilization),
    lambda of, number, _: [_WORK_PER_ACTIVITY * share for share in _ratios(of.instance_activity[number])],
)
_TRAFFIC = _Column(
    lambda of, _: [_TRAFFIC_PER_WORK * percent for percent in of.memory_utilization],
    lambda of, number, _: [
        _TRAFFIC_PER_WORK * _WORK_PER_ACTIVITY * percent for percent in of.instance_activity[number]
    ],
)
_COLUMNS: Mapping[str, _Column] = {
    "DCGM_FI_DEV_GPU_UTIL": _Column(lambda of, _: of.utilization),
    "DCGM_FI_DEV_MEM_COPY_UTIL": _Column(lambda of, _: of.memory_utilization),
    "DCGM_FI_DEV_FB_USED": _Column(
        lambda of, _: _mib(of.memory_used), lambda of, number, _: _mib(of.instance_memory[number])
    ),
    "DCGM_FI_DEV_FB_FREE": _Column(
        lambda of, card: _free_mib(of.memory_used, card.usable_bytes),
        lambda of, number, profile: _free_mib(of.instance_memory[number], profile.memory_bytes),
    ),
    "DCGM_FI_DEV_GPU_TEMP": _Column(lambda of, _: of.temperature_c),
    "DCGM_FI_DEV_MEMORY_TEMP": _Column(lambda of, _: of.memory_temperature_c),
    "DCGM_FI_DEV_POWER_USAGE": _Column(lambda of, _: of.power_w),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": _Column(lambda of, _: [round(1000 * v) for v in of.energy_j]),
    "DCGM_FI_DEV_SM_CLOCK": _Column(lambda of, _: of.sm_clock_mhz),
    "DCGM_FI_DEV_MEM_CLOCK": _Column(lambda of, _: of.mem_clock_mhz),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": _ACTIVITY,
    "DCGM_FI_PROF_SM_ACTIVE": _ACTIVITY,
    "DCGM_FI_PROF_DRAM_ACTIVE": _WORK,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": _WORK,
    "DCGM_FI_PROF_PCIE_TX_BYTES": _TRAFFIC,
    "DCGM_FI_PROF_PCIE_RX_BYTES": _TRAFFIC,
}
"""What changes over time, as do _USED; everything else that carries a GPU's UUID has always been what it is."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Use:
    """What the tenants that a series counts have used at each step; a MIG instance is `weight` of its GPU."""

    samples: Samples
    tenants: Sequence[Used]
    seconds: range
    weight: float

    def sum(self, what: str) -> list[float]:
        columns = map(operator.attrgetter(what), self.tenants)
        return list(map(sum, zip(*columns, strict=True))) or [0.0] * len(self.seconds)

    def busy_s(self) -> list[float]:
        """At most all of the time, however many share an instance."""
        pairs = itertools.pairwise(self.sum("busy_s"))
        steps = (min(self.seconds.step, (after - before) / self.weight) for before, after in pairs)
        return list(itertools.accumulate(steps, initial=0.0))

    def last_active(self) -> list[float]:
        """When it worked last; the first step before it has."""
        moved = (round(after - before, 6) for before, after in itertools.pairwise(self.busy_s()))
        times = (second if has else 0 for second, has in zip(self.seconds[1:], moved, strict=True))
        return list(itertools.accumulate(times, max, initial=self.seconds[0]))


_USED: Mapping[str, Callable[[_Use], Sequence[float]]] = {
    "gpu_busy_seconds_total": _Use.busy_s,
    "gpu_pod_busy_seconds_total": _Use.busy_s,
    "gpu_pod_memory_busy_seconds_total": lambda of: [seconds / 2 for seconds in of.busy_s()],
    "gpu_pod_last_active_timestamp_seconds": _Use.last_active,
    "gpu_energy_joules_total": lambda of: of.samples.energy_j,
    "gpu_pod_energy_joules_total": lambda of: of.sum("energy_j"),
    "gpu_idle_energy_joules_total": lambda of: list(
        map(operator.sub, of.samples.energy_j, of.sum("energy_j"))
    ),
    "gpu_pod_memory_used_bytes": lambda of: of.sum("memory"),
    "gpu_pod_memory_used_byte_seconds_total": lambda of: list(
        itertools.accumulate(held * of.seconds.step for held in of.sum("memory"))
    ),
    "gpu_pod_processes": lambda of: list(map(bool, of.sum("memory"))),
}
"""What the exporter says of tenants, as if it had been started with the first step."""
_MIG_BUSY = ("gpu_unattributed_busy_seconds_total", "mig")
"""Of a GPU with MIG instances, all their work."""
_NO_POD: list[str | None] = [None] * len(POD_LABELS)


def _container(tenant: Tenancy) -> list[str | None]:
    """The labels of its pod."""
    it = tenant.container
    return _NO_POD if it is None else [it.namespace, it.pod, it.name]


def series(
    exposition: str, agent: NodeAgent, *, attach: Callable[[Labels], Labels], seconds: range
) -> Iterator[Series]:
    """The past of every GPU series of `exposition`, and of `up`.

    Args:
        exposition: What the node's exporter serves.
        agent: The node.
        attach: Adds the target's labels as Prometheus does.
        seconds: Times of the scrapes (Unix).
    """
    past = _Past(agent, seconds)
    yield Series(attach({}) | {"__name__": "up"}, seconds, [1.0] * len(seconds))
    nobody: _Nobody = {}
    for sample in parse(exposition):
        if "UUID" not in sample.labels:
            continue
        labels = {"__name__": sample.name, **sample.labels}
        values, first = past.values(sample), past.first(sample.labels)
        yield Series(attach(labels), seconds[first:], values[first:])
        if first and not sample.name.startswith("gpu_pod_"):
            bare = {name: value for name, value in labels.items() if name not in POD_LABELS}
            _keep_shorter(nobody, bare, seconds[:first], values)
    for bare, until, values in nobody.values():
        ended = range(until.start, until.stop + until.step, until.step)
        yield Series(attach(bare), ended, [*values[: len(until)], STALE])


def _keep_shorter(nobody: _Nobody, bare: Labels, until: range, values: Sequence[float]) -> None:
    """The first of several pods on a device ends the device's series without a pod."""
    key = frozenset(bare.items())
    if key not in nobody or len(until) < len(nobody[key][1]):
        nobody[key] = (bare, until, values)


class _Past:
    """The node's readings at the given seconds, a GPU's worked out when first needed."""

    def __init__(self, agent: NodeAgent, seconds: range) -> None:
        self._node: NodeSpec = agent.node
        self._machine = agent.machine
        self._seconds = seconds
        self._holdings: Mapping[tuple[str, str], Holding] = {
            (holding.pod.namespace, holding.pod.name): holding for holding in agent.holdings()
        }
        self._gpus = {self._node.gpu_uuid(index): index for index in range(len(self._node.gpus))}
        self._samples: dict[int, Samples] = {}

    def values(self, sample: Sample) -> Sequence[float]:
        """The values of a sample's series; the sample's own at all times where it is none that changes."""
        column, index = _COLUMNS.get(sample.name), self._gpus[sample.labels["UUID"]]
        is_mig = (sample.name, sample.labels.get("reason")) == _MIG_BUSY
        used = _Use.busy_s if is_mig else _USED.get(sample.name)
        if index not in self._samples:
            self._samples[index] = self._machine.samples(index, self._seconds)
        samples, card = self._samples[index], CARDS[self._node.gpus[index].card]
        placed, instance = mig.place(card, self._node.gpus[index].mig), None
        if wanted := sample.labels.get("GPU_I_ID"):
            instance = [str(one.gpu_instance_id) for one in placed].index(wanted)
        if used:
            values = used(self._use(samples, sample.labels, instance))
            # As rounding must not look like a restart
            return list(itertools.accumulate(values, max)) if sample.name.endswith("_total") else values
        if column is None:
            return [sample.value] * len(self._seconds)
        if instance is not None and column.instance:
            return column.instance(samples, instance, placed[instance].profile)
        return column.gpu(samples, card)

    def _use(self, samples: Samples, labels: Mapping[str, str], instance: int | None) -> _Use:
        """The tenants of its device, and of its container if it names one."""
        wanted = [labels.get(name) for name in POD_LABELS]
        found = {
            tenant: used
            for tenant, used in samples.tenants.items()
            if instance in {None, tenant.device.instance} and wanted in (_NO_POD, _container(tenant))
        }
        weight = 1.0 if instance is None else min((tenant.weight for tenant in found), default=1.0)
        return _Use(samples, list(found.values()), self._seconds, weight)

    def first(self, labels: Mapping[str, str]) -> int:
        """At which of the seconds the series of `labels` begins: with its pod, or with its pod's record."""
        holding = self._holdings.get((labels.get("namespace", ""), labels.get("pod", "")))
        if holding is None:
            return 0
        recorded = round(len(self._seconds) * (1 - holding.spec.recorded))
        return max(recorded, bisect.bisect_left(self._seconds, holding.start_s or self._seconds.stop))
