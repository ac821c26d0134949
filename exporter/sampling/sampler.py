"""The sampling cycle: reads all GPUs and pods into one immutable Snapshot; scrapes read the last one.

Must not know formats or HTTP.
"""

import collections
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path

from exporter.attribution.attributor import Attributor, HostContext
from exporter.collectors import Failure
from exporter.errors import Reason, StartError
from exporter.model import ALL_DEVICES, Device, DeviceChoice, FailureCount, Health, Snapshot
from exporter.nvml.session import Session
from exporter.pods.tracker import PodAssignments, PodTracker
from exporter.sampling.catalogue import EnabledCollectors
from exporter.sampling.jobs import JobDirectory, jobs_of
from exporter.sampling.metricsfile import MetricsFile
from exporter.sampling.sweep import GpuReader, Sweep

_LOG = logging.getLogger(__name__)
_MIN_DEADLINE_S, _MAX_DEADLINE_S = 2.0, 5.0  # a healthy GPU answers in milliseconds
_TICK_S = 1.0  # between two polls of usage: what a process did is known only if a poll saw it alive
_TICKS_PER_POLL = 200  # polls take at most 1/200 of the time
_LONGEST_TICK_S = 5.0  # also where no device is shared: a driver's sample buffer holds about 15 seconds
_STALE_INTERVALS = 3
_SHORTEST_STALE_S = 3.0  # longer than the first cycle with a hung GPU: other GPUs must stay visible


@dataclasses.dataclass(frozen=True, slots=True)
class SamplingConfig:
    """Settings that say what is sampled, and how often."""

    enabled: EnabledCollectors  # the collectors, unless there is a metrics file
    interval_s: float  # time between the starts of two cycles
    give_up_s: float  # time without a usable driver after which the exporter ends
    proc_root: Path  # the host's /proc
    host: HostContext
    metrics_file: MetricsFile | None = None
    devices: DeviceChoice = ALL_DEVICES
    jobs: JobDirectory | None = None

    @property
    def deadline_s(self) -> float:
        """Time for a GPU to answer before its cycle continues without it."""
        return min(max(self.interval_s, _MIN_DEADLINE_S), _MAX_DEADLINE_S)

    @property
    def stale_after_s(self) -> float:
        """Age after which a snapshot is no longer served: stale values look like a steady load."""
        return max(_STALE_INTERVALS * self.interval_s, _SHORTEST_STALE_S)


class Sampler:
    """Runs cycles and holds the last snapshot."""

    def __init__(
        self, session: Session, pods: PodTracker, config: SamplingConfig, *, clock: Callable[[], float]
    ) -> None:
        self._session = session
        self._pods = pods
        self._config = config
        self._clock = clock
        self._gpus = GpuReader(session, config.enabled, config.devices, clock=clock)
        self._attributor = Attributor(self._gpus.observe, config.host, session.usage)
        self._assignments = PodAssignments(up=None)
        self._failures: collections.Counter[tuple[str, str]] = collections.Counter()
        self._logged: frozenset[str] = frozenset()
        self._latest: Snapshot | None = None
        self._usable_at = clock()
        self._read_at: float | None = None
        self._tick_s = _TICK_S
        self.is_settled = False  # no rate waits for a second cycle
        self.gave_up: StartError | None = None  # why sampling has ended by itself

    def open(self) -> Future[int]:
        """Start to open the driver. Cycles may run meanwhile, and read nothing."""
        return self._gpus.open()

    def latest(self) -> Snapshot | None:
        """The last snapshot, however old; None before the first."""
        return self._latest

    def run(self, stop: threading.Event, wake: threading.Event) -> None:
        """Run cycles until `stop` is set; set `wake` after it. A bug costs one cycle, not the exporter.

        Ends by itself, with `gave_up`, if the driver is unusable for too long: libraries and devices may have been
        replaced, and only a new process gets the new ones. `wake` reloads files and starts a cycle at once.
        """
        due = self._clock()
        while not stop.is_set():
            try:
                is_forced = wake.is_set()
                wake.clear()  # before the reload, so that a later request is for the next cycle
                self._refresh(forced=is_forced)
                self.cycle()
            except Exception:  # noqa: BLE001 - the one broad catch of the loop: counted, logged, goes on
                self._failures["sampler", Reason.DEFECT.value] += 1
                _LOG.exception("sampling: a bug in gpu-exporter, please report it; retrying")
            unusable_s = self._clock() - self._usable_at
            if unusable_s > self._config.give_up_s:
                self.gave_up = StartError(
                    f"the NVIDIA driver has not been usable for {unusable_s:.0f} s: ending, to be restarted"
                )
                return
            due = max(due + self._config.interval_s, self._clock())
            if self._wait(due, wake):
                due = self._clock()

    def _wait(self, due: float, wake: threading.Event) -> bool:
        """Wait for the next cycle and poll usage meanwhile; True as soon as `wake` is set."""
        while (left_s := due - self._clock()) > 0:
            if wake.wait(min(left_s, self._tick_s)):
                return True
            if self._clock() < due:
                self._poll_usage(asks_pods=True)
        return wake.is_set()

    def _poll_usage(self, *, asks_pods: bool) -> None:
        """Poll the usage of the devices if a collector needs it. A slow poll delays the next one."""
        if not self._gpus.is_observed:
            return
        began = self._clock()
        if asks_pods and self._attributor.needs_assignments:
            self._assignments = self._pods.poll()
        self._attributor.poll(self._assignments, until=self._clock() + self._config.deadline_s)
        least_s = _LONGEST_TICK_S if self._attributor.is_calm else _TICK_S
        self._tick_s = min(max(least_s, _TICKS_PER_POLL * (self._clock() - began)), _LONGEST_TICK_S)

    def _refresh(self, *, forced: bool) -> None:
        """Apply a changed metrics file."""
        file = self._config.metrics_file
        if file is not None:
            file.refresh(forced=forced)
            self._gpus.enabled = file.enabled

    def cycle(self) -> Snapshot:
        """Read everything once and make the result the latest snapshot."""
        pods = self._assignments = self._pods.poll()
        self._poll_usage(asks_pods=False)
        if self._gpus.is_observed:
            self._attributor.publish()
        until = self._clock() + self._config.deadline_s
        self._gpus.begin(until=until)
        jobs = self._config.jobs.read() if self._config.jobs is not None else {}
        sweep = self._gpus.finish(until=until)
        if self._latest is None:
            self._poll_usage(asks_pods=False)  # counting starts here: until now no GPU was known
        if not sweep.is_unusable:
            self._usable_at = self._clock()
        samples, lost = (
            tuple(
                dataclasses.replace(
                    sample,
                    owners=pods.owners(sample.device),
                    allocated=pods.allocated(
                        sample.device, is_in_use=sample.device in self._attributor.in_use
                    ),
                    replicas=pods.replicas(sample.device),
                    shares=pods.shares(sample.device),
                    jobs=jobs_of(sample.device, jobs),
                )
                for sample in found
            )
            for found in (sweep.samples, sweep.lost)
        )
        # comparing needs all devices
        wants_all = self._config.devices == ALL_DEVICES
        in_kernel = gpus_in_kernel(self._config.proc_root) if wants_all else None
        self._report(sweep, [*self._hidden(in_kernel, sweep), *pods.hints])
        now = self._clock()
        if samples:
            self._read_at = now
        self._latest = Snapshot(
            taken_at=now,
            read_at=self._read_at,
            nvml_version=self._session.nvml_version,
            metrics=tuple(
                row.metric for collector in self._gpus.enabled.collectors for row in collector.rows
            ),
            samples=samples,
            lost=lost,
            health=self._health(sweep, pods, in_kernel),
        )
        return self._latest

    def close(self) -> None:
        """Stop using the driver and the sources of pods."""
        self._pods.close()
        self._gpus.close()

    def _health(self, sweep: Sweep, pods: PodAssignments, in_kernel: frozenset[str] | None) -> Health:
        return Health(
            gpus=sweep.gpus,
            collectors=sweep.collectors,
            failures=tuple(
                FailureCount(collector, reason, count)
                for (collector, reason), count in sorted(self._failures.items())
            ),
            nvml_up=sweep.nvml_up,
            podresources_up=pods.up,
            gpus_in_kernel=None if in_kernel is None else len(in_kernel),
            reload=None if self._config.metrics_file is None else self._config.metrics_file.reload,
            pod_watch_up=pods.watch_up,
            unattributed=pods.unattributed(
                [
                    *(sample.device for sample in sweep.samples),
                    *(gpu.device for gpu in sweep.gpus if gpu.device is not None),
                ]
            ),
            attribution_disabled_reason=status.value if (status := self._attributor.status) else None,
        )

    def _hidden(self, in_kernel: frozenset[str] | None, sweep: Sweep) -> list[str]:
        """Messages about GPUs that NVML should show but does not."""
        shown: Sequence[Device] = [gpu.device for gpu in sweep.gpus if gpu.device is not None]
        if sweep.nvml_up and not sweep.gpus and not self._config.devices.named:
            return ["NVML shows no GPU; in a container, check that it has one"]
        if in_kernel is None or len(shown) < len(sweep.gpus):
            return []
        missing = in_kernel - {same_bus(device.pci_bus_id) for device in shown}
        return [
            f"GPU {bus_id} is known to the kernel's driver, but NVML does not show it"
            for bus_id in sorted(missing)
        ]

    def _report(self, sweep: Sweep, warnings: Sequence[str]) -> None:
        """Count each failure; log it in the first of consecutive cycles with it."""
        failures = [failure for failure in sweep.failures if failure.reason is not Reason.PENDING]
        self.is_settled = len(failures) == len(sweep.failures)
        for failure in failures:
            if failure.reason.is_failure:
                self._failures[failure.collector, failure.reason.value] += 1
        by_message = {failure.message: failure for failure in failures}
        new = [failure for message, failure in by_message.items() if message not in self._logged]
        for failure in new:
            if failure.reason is not Reason.NOT_SUPPORTED:
                _log(failure)
        for message in _unsupported(new):
            _LOG.info("%s; series omitted", message)
        for message in warnings:
            if message not in self._logged:
                _LOG.warning("%s", message)
        for message in sorted(self._logged - by_message.keys() - set(warnings)):
            _LOG.info("no longer: %s", message)
        self._logged = frozenset(by_message) | frozenset(warnings)


def _log(failure: Failure) -> None:
    if failure.defect is not None:
        _LOG.error("%s", failure.message, exc_info=failure.defect)
    elif failure.reason is Reason.STUCK:
        _LOG.warning("%s", failure.message)  # its message has the consequence
    else:
        _LOG.warning("%s; series omitted", failure.message)


def _unsupported(failures: Iterable[Failure]) -> list[str]:
    """One message for all readings that a device does not support for the same reason: a card may lack forty."""
    whats: dict[str, list[str]] = {}
    for failure in failures:
        if failure.reason is Reason.NOT_SUPPORTED:
            what, of, where = failure.message.removeprefix("reading ").partition(" of GPU ")
            whats.setdefault(of + where, []).append(what)
    return [f"reading {', '.join(found)}{where}" for where, found in whats.items()]


def gpus_in_kernel(proc_root: Path) -> frozenset[str] | None:
    """PCI bus ids, such as "0000:07:00.0", of the GPUs of the kernel's driver: a check independent of NVML.

    None if the directory is unreadable: no driver, or the host's /proc is not visible.
    """
    try:
        return frozenset(entry.name.lower() for entry in (proc_root / "driver/nvidia/gpus").iterdir())
    except OSError:
        return None


def same_bus(nvml_bus_id: str) -> str:
    """NVML's form of a bus id, which has a domain of eight digits, in the kernel's form, which has four."""
    domain, _, rest = nvml_bus_id.partition(":")
    return f"{domain[-4:]}:{rest}".lower()
