"""Which pods of shared GPUs a plan calls idle, beside what they truly did, over random schedules.

    schedule ──► truth ──► driver ──► the exporter's own sampler ──► scrapes ──► a real Prometheus ──► plan
        └──────────────────────────── for how long each pod worked ──────────────────────────────────► table

Each schedule is a GPU of its own. A window of 20 minutes has the limits of a day's, in proportion. Only the power of
a whole board, which is all that MIG instances before Hopper have, is seen at the scrapes alone: their window is a day.
"""

import argparse
import dataclasses
import datetime
import enum
import functools
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks._timelapse import BOOT_S, Options, Timelapse
from simulator.gpus.cards import CARDS
from simulator.gpus.groundtruth import Work
from simulator.gpus.records import ProcessKind, Reading
from simulator.nodes import physics
from simulator.nodes.devices import Container
from simulator.prometheus import Prometheus
from simulator.series_store import Series
from simulator.spec import GpuSpec, NodeSpec
from simulator.workloads.behavior import PERIOD_S

DOCS = Path(__file__).parents[1] / "docs" / "signals.md"
_PART = re.compile(r"(<!-- measured: shared-gpus -->\n).*?(<!-- end -->)", re.DOTALL)
WORKED = 0.001
"""A pod that worked for more than this share of the window is never idle."""
START_S = BOOT_S + 100_000
_NAMESPACE = "ml"
_MS = 1000
_GIB = 2**30


class Mode(enum.Enum):
    """How the pods share a GPU."""

    SLICED = "time-slicing"
    MPS = "MPS"
    HOPPER = "MIG, Hopper"
    AMPERE = "MIG, before Hopper"

    @property
    def cards(self) -> tuple[str, ...]:
        """On which it is drawn."""
        shared = ("A100-SXM4-40GB", "H100-SXM5-80GB", "L40S", "T4")
        return {
            Mode.SLICED: shared,
            Mode.MPS: shared,
            Mode.HOPPER: ("H100-SXM5-80GB",),
            Mode.AMPERE: ("A100-SXM4-40GB",),
        }[self]

    @property
    def is_mig(self) -> bool:
        """Whether pods have instances."""
        return self in {Mode.HOPPER, Mode.AMPERE}

    @property
    def window_s(self) -> int:
        """See above."""
        return 86_400 if self is Mode.AMPERE else 1_200

    @property
    def step_s(self) -> int:
        """Between two scrapes."""
        return 30 if self is Mode.AMPERE else 15

    @property
    def part(self) -> int:
        """Of all schedules, in percent; a day takes long."""
        return 10 if self is Mode.AMPERE else 30

    @property
    def exported(self) -> Options:
        """What the exporter reads: of processes nothing where NVML has nothing of them."""
        more = () if self is Mode.AMPERE else ("processes", "profiling")
        return Options(collectors=("clocks", "memory", "power", "utilization", *more))

    @property
    def looks(self) -> int:
        """Of the exporter, for each scrape: one in 7.5 s is less often than it ever waits."""
        return 1 if self is Mode.AMPERE else 2


@dataclasses.dataclass(frozen=True, slots=True)
class Schedule:
    """A GPU and what each pod on it does.

    Attributes:
        works: The processes of each pod.
    """

    name: str
    mode: Mode
    node: NodeSpec
    works: Mapping[str, tuple[Work, ...]]

    @property
    def devices(self) -> dict[str, str]:
        """The device that each pod holds."""
        gpu = self.node.gpu_uuid(0)
        if self.node.gpus[0].mig:
            return {pod: self.node.mig_uuid(0, number) for number, pod in enumerate(self.works)}
        return {pod: f"{gpu}::{number}" for number, pod in enumerate(self.works)}

    @property
    def resource(self) -> str:
        """What each pod requests one of."""
        mig = self.node.gpus[0].mig
        return f"nvidia.com/mig-{mig[0]}" if mig else "nvidia.com/gpu"


@dataclasses.dataclass(frozen=True, slots=True)
class Past:
    """What a schedule has led to.

    Attributes:
        worked: For how large a share of the window each pod worked, in truth.
        series: What was scraped, by name and labels: at which steps, and what.
    """

    schedule: Schedule
    worked: Mapping[str, float]
    series: Mapping[tuple[tuple[str, str], ...], Sequence[tuple[int, float]]]


def schedule(mode: Mode, number: int) -> Schedule:
    """The schedule of this number: 1 to 16 pods, of MIG instances up to 7, of which half do nothing."""
    draw = random.Random(f"{mode.value} {number}")
    name = f"{mode.name.lower()}-{number}"
    card = draw.choice(mode.cards)
    count = draw.randint(1, 7 if mode.is_mig else 16)
    profiles = [one for one in CARDS[card].mig_profiles.values() if one.slices == 1 and "+" not in one.name]
    cut = (min(profiles, key=lambda one: one.memory_bytes).name,) * count if mode.is_mig else ()
    works = {
        f"{name}-{pod}": list(_processes(draw, mode, pod if mode.is_mig else None)) for pod in range(count)
    }
    # The kernel gives out PIDs in the order of starts
    starts = sorted((work.start_ms, pod, place) for pod, of in works.items() for place, work in enumerate(of))
    for pid, (_, pod, place) in enumerate(starts, 1000):
        works[pod][place] = dataclasses.replace(works[pod][place], pid=pid)
    found = {pod: tuple(of) for pod, of in works.items()}
    return Schedule(name, mode, NodeSpec(name, (GpuSpec(card, mig=cut),)), found)


def _processes(draw: random.Random, mode: Mode, instance: int | None) -> Iterator[Work]:
    """One, or several one after the other, that live from before the window until after it; or none."""
    begin_ms, end_ms = (START_S - 600) * _MS, (START_S + mode.window_s + 120) * _MS
    share = draw.choice((0.0, 0.0, 10 ** draw.uniform(-3.7, -1), 10 ** draw.uniform(-2, -0.1)))
    if not share and draw.random() < 0.2:  # noqa: PLR2004 - a fifth has not even a process
        return
    cuts = sorted(draw.sample(range(begin_ms, end_ms), draw.choice((0, 0, 0, 1, 3))))
    length_ms = 10 ** draw.uniform(1.7, 5.5)
    kind = ProcessKind.MPS if mode is Mode.MPS else ProcessKind.COMPUTE
    memory = draw.randint(1, 40) * _GIB // 64
    for start, end in itertools.pairwise((begin_ms, *cuts, end_ms)):
        bursts = tuple(_bursts(draw, share, length_ms, min(start + _MS, end), end))
        yield Work(0, start, end, bursts, ((start, memory),), kind, instance)


def _bursts(
    draw: random.Random, share: float, length_ms: float, start: int, end: int
) -> Iterator[tuple[int, int]]:
    """As much work as the share of the time says, in bursts of about that length at random times."""
    left_ms = share * (end - start)
    length_ms = min(length_ms, left_ms)
    if length_ms < 1:
        return
    pause_ms = length_ms / share - length_ms
    at = start + draw.uniform(0, pause_ms)
    while at < end:
        until = at + length_ms * draw.uniform(0.5, 1.5)
        if round(at) < min(round(until), end):
            yield round(at), min(round(until), end)
        at = until + draw.expovariate(1 / pause_ms)


class _Node(Timelapse):
    """With the sensors of its board and its instances, and with the memory traffic of each process."""

    def __init__(self, plan: Schedule, folder: Path) -> None:
        self._plan = plan
        self._card = CARDS[plan.node.gpus[0].card]
        containers = {pod: Container(_NAMESPACE, pod, _uid(pod), "main") for pod in plan.works}
        works = {work: containers[pod] for pod, of in plan.works.items() for work in of}
        held = {pod: [device] for pod, device in plan.devices.items()}
        super().__init__(folder / "files", folder, spec=plan.node, works=works, pods=held)
        for container in containers.values():
            self.host.admit(container)  # also of pods without a process

    def show(self, now_ms: int) -> None:
        """Also the readings."""
        super().show(now_ms)
        alive = [work for work in self.works if work.lives(now_ms)]
        instances = range(len(self.spec.gpus[0].mig))
        parts = [self._busy_percent(now_ms, number) for number in instances]
        weight = self._card.mig_profiles[self.spec.gpus[0].mig[0]].multiprocessors if parts else 0
        percent = (
            round(sum(parts) * weight / self._card.multiprocessors)
            if parts
            else self._busy_percent(now_ms, None)
        )
        # What works at all is not rounded away
        load = _regime(self.spec.gpus[0].card, max(percent, int(any(parts))), bool(alive))
        second = now_ms // _MS % PERIOD_S
        reading = Reading.idle(self._card)
        used = sum(work.memory[0][1] for work in alive)
        self.board.set_gpu(
            0,
            dataclasses.replace(
                reading,
                gpu_util_percent=load.utilization[second],
                memory_util_percent=load.memory_utilization[second],
                memory_used_bytes=min(used, self._card.usable_bytes),
                power_w=load.power_w[second],
                sm_clock_mhz=load.sm_clock_mhz,
                mem_clock_mhz=load.mem_clock_mhz,
            ),
        )
        for number, part in zip(instances, parts, strict=True):
            held = sum(work.memory[0][1] for work in alive if work.instance == number)
            self.board.set_instance(0, number, memory_used_bytes=held, activity_percent=part)
        if not parts:
            utilization, samples = self.truth.buffers(now_ms * _MS)
            moved = [dataclasses.replace(one, memory_percent=(one.sm_percent + 1) // 2) for one in samples]
            self.board.set_samples(0, utilization, moved)

    def _busy_percent(self, now_ms: int, instance: int | None) -> int:
        """Over the sixth of a second before."""
        span_ms = 167
        return round(100 * self.truth.device_busy_ms(now_ms - span_ms, now_ms, instance=instance) / span_ms)


@functools.cache
def _regime(card: str, percent: int, context: bool) -> physics.Regime:  # noqa: FBT001 - a cache key
    load = physics.Load(float(percent), 0.0, spins=False, weight=1.0, offset_s=0)
    return physics.regime(card, (load,) if percent else (), context)


def lived(plan: Schedule) -> Past:
    """The window of a schedule, and what the exporter serves of it."""
    found: dict[tuple[tuple[str, str], ...], list[tuple[int, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        node = _Node(plan, Path(name))
        with node.exporting(plan.mode.exported):
            for step in range(-4, plan.mode.window_s // plan.mode.step_s + 1):
                at_ms = (START_S + step * plan.mode.step_s) * _MS
                for look in range(plan.mode.looks - 1, 0, -1):
                    node.go(at_ms - look * plan.mode.step_s * _MS // plan.mode.looks)
                for metric, labels, value in node.look(at_ms):
                    if "UUID" in labels and not metric.startswith("gpu_exporter"):
                        found.setdefault(_key(metric, labels, plan.name), []).append((step, value))
    span = START_S * _MS, (START_S + plan.mode.window_s) * _MS
    worked = {
        pod: float(sum(node.truth.busy_ms(work, *span) for work in works)) / (span[1] - span[0])
        for pod, works in plan.works.items()
    }
    return Past(plan, worked, found)


def _key(metric: str, labels: Mapping[str, str], node: str) -> tuple[tuple[str, str], ...]:
    """As Prometheus has it with honorLabels."""
    host = next(name for name in ("hostname", "Hostname") if name in labels)
    more = {"__name__": metric, "job": "gpu-exporter", "instance": f"{node}:9400", host: node}
    return tuple(sorted({**labels, **more}.items()))


def judge(pasts: Sequence[Past], prometheus: Prometheus) -> dict[str, dict[str, Any]]:
    """What `gpu-rightsizer plan` says of each pod, by name."""
    mode, at_s = pasts[0].schedule.mode, int(time.time()) // 60 * 60
    begin_s = at_s - mode.window_s
    prometheus.write(itertools.chain.from_iterable(_series(past, begin_s) for past in pasts))
    window = f"{mode.window_s // 60}m"
    idle = {"window": window, "history": window, "unusedWindow": window, "grace": "5m"}
    policy = {
        "apiVersion": "gpu-rightsizer.io/v1alpha1",
        "kind": "Policy",
        "defaults": {"idle": idle},
        "rules": [{"name": "all", "match": {"everything": True}, "mode": "enforce"}],
    }
    objects = [obj for past in pasts for obj in _objects(past.schedule, at_s)]
    with tempfile.TemporaryDirectory() as name:
        files = {"objects": {"apiVersion": "v1", "kind": "List", "items": objects}, "policy": policy}
        for file, content in files.items():
            (Path(name) / file).write_text(json.dumps(content))
        flags = {
            "--cluster-objects": f"{name}/objects",
            "--policy": f"{name}/policy",
            "--prometheus-url": prometheus.url,
            "--at": datetime.datetime.fromtimestamp(at_s, datetime.UTC).isoformat(),
            "--output": "json",
        }
        command = [sys.executable, "-m", "rightsizer", "plan", *itertools.chain(*flags.items())]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise RuntimeError(run.stderr)
    return {item["name"]: item for item in json.loads(run.stdout)["items"]}


def _series(past: Past, begin_s: int) -> Iterator[Series]:
    """A series for each stretch without a gap."""
    for labels, samples in past.series.items():
        start = 0
        for stop in range(1, len(samples) + 1):
            if stop == len(samples) or samples[stop][0] != samples[stop - 1][0] + 1:
                step_s, first = past.schedule.mode.step_s, samples[start][0]
                begin = begin_s + first * step_s
                seconds = range(begin, begin + (stop - start) * step_s, step_s)
                yield Series(dict(labels), seconds, [value for _, value in samples[start:stop]])
                start = stop


def _objects(plan: Schedule, at_s: int) -> Iterator[dict[str, Any]]:
    """Its node and its pods, which have run for two days."""
    since = datetime.datetime.fromtimestamp(at_s - 172_800, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    # As GPU Feature Discovery has them.
    sharing = {
        "nvidia.com/gpu.count": "1",
        "nvidia.com/gpu.replicas": "16",
        "nvidia.com/gpu.sharing-strategy": plan.mode.value.lower(),
    }
    labels = {} if plan.node.gpus[0].mig else sharing
    amounts = {plan.resource: "16"}
    yield {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": plan.name, "uid": _uid(plan.name), "labels": labels, "creationTimestamp": since},
        "spec": {},
        "status": {"allocatable": amounts, "capacity": amounts},
    }
    for pod in plan.works:
        limits = {"limits": {plan.resource: "1"}, "requests": {plan.resource: "1"}}
        state = {"name": "main", "ready": True, "restartCount": 0, "state": {"running": {"startedAt": since}}}
        yield {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": pod,
                "namespace": _NAMESPACE,
                "uid": _uid(pod),
                "resourceVersion": "1",
                "creationTimestamp": since,
            },
            "spec": {
                "nodeName": plan.name,
                "priority": 0,
                "containers": [{"name": "main", "resources": limits}],
            },
            "status": {
                "phase": "Running",
                "startTime": since,
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": since}],
                "containerStatuses": [state],
            },
        }


def _uid(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


@dataclasses.dataclass(slots=True)
class Tally:
    """Of the pods that shared GPUs in one way: how many worked for more than WORKED of the window, or not at all.

    Attributes:
        idle: Of those that did nothing, called idle.
        others: Why the others of these were not, by finding.
        wrong: Pods that worked and were called idle.
    """

    gpus: int = 0
    pods: int = 0
    worked: int = 0
    rested: int = 0
    idle: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)
    others: Counter[str] = dataclasses.field(default_factory=Counter)

    def add(self, worked: Mapping[str, float], items: Mapping[str, Mapping[str, Any]]) -> None:
        """The pods of a GPU: the plan beside the truth."""
        self.gpus += 1
        self.pods += len(worked)
        for pod, share in worked.items():
            is_idle = items[pod]["verdict"] == "act"
            if share > WORKED:
                self.worked += 1
                self.wrong += [f"{pod} ({share:.2%})"] if is_idle else []
            elif not share:
                self.rested += 1
                self.idle += is_idle
                self.others.update([] if is_idle else [items[pod]["finding"]])


def measure(mode: Mode, count: int, prometheus: Prometheus, *, workers: int) -> dict[str, Tally]:
    """Measure this many schedules of a mode; one tally for each way of sharing."""
    plans = [schedule(mode, number) for number in range(count)]
    if mode is Mode.AMPERE:
        plans.append(_idle_board())
    with ProcessPoolExecutor(workers) as pool:
        pasts = list(pool.map(lived, plans))
    items, found = judge(pasts, prometheus), dict[str, Tally]()
    for past in pasts[:count]:
        board = "board at work" if any(past.worked.values()) else "idle board"
        way = f"{mode.value}, {board}" if mode is Mode.AMPERE else mode.value
        found.setdefault(way, Tally()).add(past.worked, items)
    return found


def _idle_board() -> Schedule:
    """What a board of that model draws that does nothing, with a model loaded: the level for the others."""
    begin_ms, name = (START_S - 600) * _MS, "whole"
    work = Work(1000, begin_ms, None, (), ((begin_ms, 9 * _GIB),))
    card = Mode.AMPERE.cards[0]
    return Schedule(name, Mode.AMPERE, NodeSpec(name, (GpuSpec(card),)), {f"{name}-0": (work,)})


def table(found: Mapping[str, Tally], schedules: int) -> str:
    """What has been measured, in Markdown."""
    lines = ["| sharing | GPUs | worked | called idle | did nothing | called idle |", f"|{'---|' * 6}"]
    for way, one in found.items():
        idle = f"{one.idle} ({one.idle / max(one.rested, 1):.1%})"
        cells = (way, one.gpus, one.worked, len(one.wrong), one.rested, idle)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    command = f"python -m benchmarks.shared_gpus --write --schedules {schedules}"
    note = f"*Worked*: more than 0.1 % of the window. Made by `{command}`."
    return "\n".join([*lines, "", note])


def main() -> int:
    """Measure, print, and write into the docs where that is asked for; 1 if a pod that worked is called idle."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--schedules", type=int, default=200, help="number of GPUs")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="number of processes")
    parser.add_argument("--write", action="store_true", help=f"write the table into {DOCS.name}")
    args = parser.parse_args()
    found: dict[str, Tally] = {}
    with tempfile.TemporaryDirectory() as name, Prometheus(Path(name)) as prometheus:
        for mode in Mode:
            more = measure(mode, args.schedules * mode.part // 100, prometheus, workers=args.workers)
            print(more, flush=True)
            found |= more
    print(table(found, args.schedules))
    if args.write:
        DOCS.write_text(
            _PART.sub(
                lambda part: f"{part[1]}\n{table(found, args.schedules)}\n\n{part[2]}", DOCS.read_text()
            )
        )
    return int(any(one.wrong for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
