"""Reads all GPUs at once, each in its own thread and against one deadline.

A GPU with a hung driver call drops out of the sweep and of later ones until the call returns; the others are read.
Must not know pods, time of day or how results are published.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from exporter.attribution.records import DeviceObservation
from exporter.collectors import CollectorResult, Failure, run
from exporter.errors import ReadingError, Reason, StartError
from exporter.model import CollectorHealth, Device, DeviceChoice, DeviceSample, GpuState, LabelValue
from exporter.nvml.devices import OpenDevice
from exporter.nvml.session import Session
from exporter.nvml.workers import Worker
from exporter.sampling.catalogue import EnabledCollectors

DISCOVERY = "discovery"
OBSERVING = "processes"
XIDS = "xid"
_CLOSE_S = 1.0  # nvmlShutdown is a courtesy: the kernel cleans up after a process anyway
_UNUSABLE = {Reason.DRIVER, Reason.NO_PERMISSION, Reason.UNKNOWN}
"""A new process may not have these: old libraries of a replaced driver, devices removed by a daemon-reload."""
_DOWN = {Reason.GPU_LOST, Reason.RESET_REQUIRED, Reason.STUCK, Reason.DRIVER}


@dataclasses.dataclass(frozen=True, slots=True)
class _GpuReport:
    """A worker's result: the GPU, and the readings of it and then of its MIG instances."""

    gpu: Device
    samples: tuple[DeviceSample, ...]
    collected: tuple[CollectorResult, ...]


@dataclasses.dataclass(slots=True)
class _Job:
    """A worker's task."""

    index: int
    collector: str = DISCOVERY  # the running collector, written by the worker
    # it missed its deadline. Its late result would mix old and new readings and is dropped.
    overdue: bool = False
    future: Future[_GpuReport] = dataclasses.field(default_factory=Future)


@dataclasses.dataclass(frozen=True, slots=True)
class Sweep:
    """The result of one sweep. `is_unusable`: nothing can be read, and a new process may help."""

    samples: tuple[DeviceSample, ...]
    lost: tuple[DeviceSample, ...]  # XID errors of known devices that cannot be read
    gpus: tuple[GpuState, ...]
    collectors: tuple[CollectorHealth, ...]
    failures: tuple[Failure, ...]
    nvml_up: bool
    is_unusable: bool


class GpuReader:
    """Reads the GPUs of the node, as the driver numbers them."""

    def __init__(
        self,
        session: Session,
        enabled: EnabledCollectors,
        devices: DeviceChoice,
        *,
        clock: Callable[[], float],
    ) -> None:
        """`enabled` may be replaced between sweeps."""
        self.enabled = enabled
        self._devices = devices
        self._session = session
        self._clock = clock
        self._driver = Worker("driver", clock)
        self._workers: dict[int, Worker] = {}
        self._jobs: dict[int, _Job] = {}
        self._known: dict[int, _GpuReport] = {}  # the last of each GPU
        self._observing: dict[int, Future[dict[str, DeviceObservation]]] = {}
        self._count = 0
        self._reopen = False
        self._opening: Future[int] | None = None
        self._trouble: Failure | None = None

    @property
    def is_observed(self) -> bool:
        """Whether a collector needs the usage between sweeps."""
        return any(collector.name == OBSERVING for collector in self.enabled.collectors)

    def open(self) -> Future[int]:
        """Start to open the driver. Until that ends, sweeps report that the driver does not answer."""
        self._opening = self._driver.submit(self._opened)
        return self._opening

    def begin(self, *, until: float) -> None:
        """Start the sweep: count the GPUs until `until` (monotonic seconds), and start a thread on each."""
        self._trouble = self._recount(until)
        if self._is_opening() or (self._trouble is not None and self._trouble.reason is Reason.DRIVER):
            self._jobs = {index: job for index, job in self._jobs.items() if self._is_stuck(index)}
            return
        for index in range(self._count):
            if self._devices.needs(index) and not self._is_stuck(index):
                self._jobs[index] = self._start(index)
        for index in [index for index in self._jobs if index >= self._count and not self._is_stuck(index)]:
            self._jobs.pop(index)
            self._known.pop(index, None)

    def observe(self, *, until: float) -> dict[str, DeviceObservation]:
        """The devices' activity since the previous call by key, waiting for none beyond `until`.

        GPUs that hang or cannot be opened are left out; the next sweep reports the reason.
        """
        if self._is_opening() or self._driver.busy_since is not None:
            return {}
        found = self._late_results()
        stuck = set(self._observing)
        for index in sorted(self._known):
            if index not in self._observing and not self._is_stuck(index):
                self._observing[index] = self._worker(index).submit(
                    functools.partial(self._observe_gpu, index)
                )
        for index, pending in list(self._observing.items()):
            # A GPU that hung before is not waited for again.
            if _has_ended(pending, 0.0 if index in stuck else until - self._clock()):
                found |= _observed(self._observing.pop(index))
            elif index not in stuck:
                self._jobs[index] = _Job(index, OBSERVING, overdue=True)
        return found

    def _late_results(self) -> dict[str, DeviceObservation]:
        """Late results of the previous call: they were taken from the driver's buffers, and exist nowhere else.

        The owners of their processes are no longer known.
        """
        found: dict[str, DeviceObservation] = {}
        for index in [index for index, pending in self._observing.items() if pending.done()]:
            for key, seen in _observed(self._observing.pop(index)).items():
                samples = None if seen.observation.samples is None else ()
                old = dataclasses.replace(seen.observation, samples=samples, processes=None)
                found[key] = DeviceObservation(seen.device, old)
        return found

    def _observe_gpu(self, index: int) -> dict[str, DeviceObservation]:
        """Observe one GPU and its instances; runs in the GPU's own thread."""
        gpu = self._session.gpu(index)
        return {
            device.key: DeviceObservation(device.record, device.observe())
            for device in self._chosen(gpu, index)
        }

    def _chosen(self, gpu: OpenDevice, index: int) -> list[OpenDevice]:
        """The exported devices of a GPU."""
        own = [gpu] if self._devices.has_gpu(index) else []
        return own + self._instances(gpu, [])

    def finish(self, *, until: float) -> Sweep:
        """Collect the results, waiting for no thread beyond `until`."""
        samples: list[DeviceSample] = []
        lost: list[DeviceSample] = []
        states: list[GpuState] = []
        collected: list[CollectorResult] = []
        failures = [self._trouble] if self._trouble is not None else self._missing()
        for index, job in sorted(self._jobs.items()):
            report, failure = self._outcome(job, until)
            found = [] if failure is None else [failure]
            if report is not None:
                samples += report.samples
                collected += report.collected
                self._known[index] = report
                found += [failure for part in report.collected for failure in part.failures]
            elif index in self._known:
                lost += map(self._xids_of, self._known[index].samples)
            states.append(self._state(index, found))
            failures += found
        states += [
            GpuState(index, self._known[index].gpu, up=False, reason=Reason.DRIVER.value)
            for index in sorted(set(self._known) - set(self._jobs))
        ]
        self._reopen = any(failure.reason is Reason.DRIVER for failure in failures)
        return Sweep(
            samples=tuple(samples),
            lost=tuple(lost),
            gpus=tuple(states),
            collectors=self._healths(collected, failures),
            failures=tuple(failures),
            nvml_up=self._trouble is None,
            is_unusable=not samples and self._is_unusable(failures),
        )

    def _xids_of(self, sample: DeviceSample) -> DeviceSample:
        """The XID errors of a device that cannot be read: they say why."""
        device = self._session.lost(sample.device)
        collectors = (collector for collector in self.enabled.collectors if collector.name == XIDS)
        parts = [run(collector, device, self._clock) for collector in collectors]
        readings = tuple(reading for part in parts for reading in part.readings)
        return dataclasses.replace(sample, readings=readings)

    def close(self) -> None:
        """Close the driver within a second. With a hung call, leave that to the kernel."""
        if self._driver.busy_since is None and not any(map(self._is_stuck, self._workers)):
            _has_ended(self._driver.submit(self._close), _CLOSE_S)
        self._driver.stop()
        for worker in self._workers.values():
            worker.stop()

    def _close(self) -> int:
        self._session.close()
        return 0

    def _is_stuck(self, index: int) -> bool:
        worker = self._workers.get(index)
        return worker is not None and worker.busy_since is not None

    def _is_opening(self) -> bool:
        return self._opening is not None and not self._opening.done()

    def _is_unusable(self, failures: Sequence[Failure]) -> bool:
        """Whether a new process may help: the driver as a whole fails or hangs, not a single GPU."""
        if self._trouble is not None:
            return self._trouble.reason in {*_UNUSABLE, Reason.STUCK}
        return bool(failures) and {failure.reason for failure in failures} <= _UNUSABLE

    def _recount(self, until: float) -> Failure | None:
        """Count the GPUs; keep the last count if the driver does not answer."""
        if self._driver.busy_since is not None:
            return self._overdue()
        failed = self._opening is not None and self._opening.exception() is not None
        try:
            if (self._reopen or failed) and not any(map(self._is_stuck, self._workers)):
                counting = self._opening = self._driver.submit(self._reopened)
            else:
                counting = self._driver.submit(self._session.count)
            self._count = counting.result(timeout=until - self._clock())
        except TimeoutError:
            return self._overdue()
        except ReadingError as error:
            return Failure(DISCOVERY, error.reason, str(error))
        except StartError as error:
            return Failure(DISCOVERY, Reason.DRIVER, str(error))
        return None

    def _overdue(self) -> Failure:
        message = "counting the GPUs: the driver does not answer; using the last count"
        if self._is_opening():
            message = "opening the NVIDIA driver: it does not answer; see dmesg for NVRM and Xid lines"
        return Failure(DISCOVERY, Reason.STUCK, message)

    def _opened(self) -> int:
        self._session.open()
        return 0

    def _reopened(self) -> int:
        self._session.reopen()
        return self._session.count()

    def _start(self, index: int) -> _Job:
        job, enabled = _Job(index), self.enabled
        job.future = self._worker(index).submit(lambda: self._read(job, enabled))
        return job

    def _worker(self, index: int) -> Worker:
        return self._workers.setdefault(index, Worker(f"gpu-{index}", self._clock))

    def _read(self, job: _Job, enabled: EnabledCollectors) -> _GpuReport:
        """Read one GPU and its instances; runs in the GPU's own thread."""
        started = self._clock()
        gpu = self._session.gpu(job.index)
        failures: list[Failure] = []
        devices = [gpu] if self._devices.has_gpu(job.index) else []
        try:
            devices += self._instances(gpu, failures)
        except ReadingError as error:
            failures.append(Failure(DISCOVERY, error.reason, str(error)))
        texts = self._label_values(gpu, enabled, failures)
        collected = [CollectorResult(DISCOVERY, (), tuple(failures), self._clock() - started)]
        samples = []
        for device in devices:
            own = []
            for collector in enabled.collectors:
                job.collector = collector.name
                own.append(run(collector, device, self._clock))
            readings = tuple(reading for part in own for reading in part.readings)
            samples.append(DeviceSample(device.record, readings, texts=texts))
            collected += own
        return _GpuReport(gpu.record, tuple(samples), tuple(collected))

    def _instances(self, gpu: OpenDevice, failures: list[Failure]) -> list[OpenDevice]:
        """The exported MIG instances."""
        index = gpu.record.index
        if not self._devices.has_instances_of(index):
            return []
        shown = {
            (position, device.record.instance.gpu_instance_id): device
            for position, device in enumerate(gpu.instances())
            if device.record.instance is not None
        }
        failures += [
            Failure(DISCOVERY, Reason.GONE, f"{name}, which --devices names, is not on GPU {index}")
            for name in self._devices.missing_of(index, frozenset(shown))
        ]
        return [device for key, device in shown.items() if self._devices.has_instance(index, *key)]

    def _missing(self) -> list[Failure]:
        """Selected GPUs that do not exist."""
        return [
            Failure(
                DISCOVERY, Reason.GONE, f"GPU {index}, which --devices names, is not among {self._count} GPUs"
            )
            for index in sorted(self._devices.named)
            if index >= self._count
        ]

    def _label_values(
        self, gpu: OpenDevice, enabled: EnabledCollectors, failures: list[Failure]
    ) -> tuple[LabelValue, ...]:
        found = []
        for row in enabled.labels:
            try:
                found.append(LabelValue(row.label, row.read(self._session, gpu)))
            except ReadingError as error:
                failures.append(Failure(DISCOVERY, error.reason, str(error)))
        return tuple(found)

    def _outcome(self, job: _Job, until: float) -> tuple[_GpuReport | None, Failure | None]:
        name = f"GPU {job.index}"
        job.overdue = job.overdue or not _has_ended(job.future, until - self._clock())
        if job.overdue:
            message = (
                f"reading {job.collector} of {name}: the driver call does not return; the GPU's series are omitted "
                "until it does"
            )
            return None, Failure(job.collector, Reason.STUCK, message)
        try:
            return job.future.result(), None
        except ReadingError as error:
            return None, Failure(DISCOVERY, error.reason, str(error))
        except Exception as error:  # noqa: BLE001 - a bug costs this GPU only, and is logged with its traceback
            message = f"reading {name}: {error!r}: a bug in gpu-exporter, please report it"
            return None, Failure(DISCOVERY, Reason.DEFECT, message, defect=error)

    def _state(self, index: int, failures: Iterable[Failure]) -> GpuState:
        reasons = {failure.reason for failure in failures}
        stuck_since = self._workers[index].busy_since if Reason.STUCK in reasons else None
        up = (
            not reasons & _DOWN
            and self._jobs[index].future.done()
            and not self._jobs[index].future.exception()
        )
        reason = "" if up else _worst(reasons).value
        device = self._known[index].gpu if index in self._known else None
        return GpuState(index, device, up=up, stuck_since=stuck_since, reason=reason)

    @property
    def _has_none(self) -> bool:
        """Whether there is no GPU to read."""
        return not self._jobs and self._trouble is None

    def _healths(
        self, collected: Sequence[CollectorResult], failures: Sequence[Failure]
    ) -> tuple[CollectorHealth, ...]:
        failed = {failure.collector for failure in failures if failure.reason.is_failure}
        read_s: dict[str, float] = {}
        for part in collected:
            read_s[part.collector] = read_s.get(part.collector, 0.0) + part.duration_s
        return tuple(
            CollectorHealth(
                name=name,
                duration_s=read_s.get(name, 0.0),
                success=name not in failed and (name in read_s or self._has_none),
            )
            for name in (DISCOVERY, *(collector.name for collector in self.enabled.collectors))
        )


def _has_ended(future: Future[Any], within_s: float) -> bool:
    """Wait for a result or an exception. concurrent.futures.wait takes twice the time: it is for many futures."""
    try:
        future.exception(max(0.0, within_s))
    except TimeoutError:
        return False
    return True


def _observed(pending: Future[dict[str, DeviceObservation]]) -> dict[str, DeviceObservation]:
    """The result; empty if the GPU could not be opened."""
    try:
        return pending.result()
    except ReadingError:
        return {}


def _worst(reasons: set[Reason]) -> Reason:
    """The most significant reason."""
    found = reasons & _DOWN or {reason for reason in reasons if reason.is_failure} or {Reason.UNKNOWN}
    return min(found, key=lambda reason: reason.value)
