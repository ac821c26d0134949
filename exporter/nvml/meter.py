"""Measures the activity of a device since the last sample. Each of the driver's values counts once; lost ones are gaps.

Must not know pods or the names of processes.
"""

import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import pynvml

from exporter.attribution.records import BusySource, Observation, ProcessSample, Slice, UsagePart
from exporter.errors import ReadingError, Reason
from exporter.nvml import activity
from exporter.nvml.activity import UtilizationSample
from exporter.nvml.codes import asking
from exporter.nvml.gpm import Gpm, GpmMetric

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
_NS_PER_US = 1000
_LATE = 1.75  # periods between two samples from which samples are missing
_PERIOD_US = (
    1_000_000  # NVML's longest ("between 1 second and 1/6 second"), until two samples show the real one
)
_SILENT_US = 10_000_000  # without a new sample: the samples' clock was set back
_AHEAD_US = 2_000_000  # a sample that is later than now by more than this has a wrong time
_LONGEST_TICK_US = 10_000_000
_MOST_UNEXPLAINED_US = 60_000_000  # of a driver that has told processes' work before
_MOST_PENDING = 16_384


@dataclasses.dataclass(frozen=True, slots=True)
class Clocks:
    """`monotonic_ns` for durations, `unix_ns` for dates: both in nanoseconds."""

    monotonic_ns: Callable[[], int]
    unix_ns: Callable[[], int]


@dataclasses.dataclass(frozen=True, slots=True)
class MeterTarget:
    """A device to measure."""

    key: str  # changes if the device is recreated
    name: str
    handle: Any  # NVML's
    parent: Any = None  # of a MIG instance, NVML's handle of its GPU
    instance: int | None = None  # of a MIG instance, its GPU instance id
    has_instances: bool = False  # it is a GPU with MIG instances


@dataclasses.dataclass(frozen=True, slots=True)
class _Busy:
    """Busy time in one sample."""

    source: BusySource | None = None
    slices: tuple[Slice, ...] = ()
    gaps: int = 0
    gap_us: int = 0
    samples: tuple[ProcessSample, ...] | None = None
    errors: Mapping[UsagePart, ReadingError] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True)
class _State:
    """State of a device between samples."""

    last_us: int | None = None  # the end of the newest sample; None before the first
    period_us: int = _PERIOD_US  # time between samples
    heard_us: int = 0  # monotonic time of the last sample
    last_process_us: int = 0  # the newest of the processes' samples
    pending: tuple[
        ProcessSample, ...
    ] = ()  # processes' samples of periods that have not ended for the device
    # time in which the device worked since the driver last said for which process, and how much of it is tolerated
    unexplained_us: int = 0
    patience_us: int = 0
    measured_us: int | None = None  # monotonic time of the last sample without a buffer

    def restart_buffers(self) -> None:
        """Forget the position in the buffers."""
        self.last_us, self.last_process_us, self.pending = None, 0, ()

    def keep_only(self, source: BusySource | None) -> None:
        """Forget the other sources, so that no usage is counted twice when one returns."""
        if source is BusySource.SAMPLES:
            self.measured_us = None
        else:
            self.restart_buffers()


class Meter:
    """All devices of a node; one thread at a time measures each GPU's."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._states: dict[str, dict[str, _State]] = {}  # by GPU, whose thread alone uses its own
        self._gpm = Gpm((GpmMetric.GRAPHICS_UTIL,))

    def observe(self, subject: MeterTarget) -> Observation:
        """Measure a device. Never raises: a failed part is unknown, with its reason."""
        state = self._states.setdefault(subject.key.partition("/")[0], {}).setdefault(subject.key, _State())
        at_us = self._clocks.unix_ns() // _NS_PER_US
        busy = self._busy(subject, state, at_us)
        errors = dict(busy.errors)
        name, handle = subject.name, subject.handle
        listed = None
        if not subject.has_instances:  # its instances report the processes
            what = f"reading processes of {name}"
            listed = _known(errors, UsagePart.PROCESSES, what, lambda: activity.processes(handle))
        what = f"reading memory of {name}"
        memory = _known(errors, UsagePart.PROCESSES, what, lambda: activity.memory_used_bytes(handle))
        energy = None
        if subject.instance is None:
            what = f"reading energy of {name}"
            energy = _known(errors, UsagePart.ENERGY, what, lambda: activity.energy_mj(handle))
        return Observation(
            key=subject.key,
            at_us=self._clocks.monotonic_ns() // _NS_PER_US,
            source=busy.source,
            slices=busy.slices,
            gaps=busy.gaps,
            gap_us=busy.gap_us,
            samples=busy.samples,
            processes=None if listed is None else tuple(listed),
            memory_used_bytes=memory,
            energy_mj=energy,
            errors=errors,
        )

    def retain(self, gpu: str, keys: Collection[str]) -> None:
        """Forget the devices of a GPU that are not among `keys`: they are gone."""
        states = self._states.get(gpu, {})
        for key in states.keys() - set(keys):
            del states[key]
        self._gpm.retain(gpu, keys)

    def clear(self) -> None:
        """Forget all devices."""
        for gpu in list(self._states):
            self.retain(gpu, ())

    def _busy(self, subject: MeterTarget, state: _State, at_us: int) -> _Busy:
        """Measure busy time by the best source that the device supports."""
        now_us = self._clocks.monotonic_ns() // _NS_PER_US
        sources: list[Callable[[], _Busy]] = [lambda: self._by_gpm(subject, state, at_us, now_us)]
        if subject.instance is None and not subject.has_instances:
            sources.insert(0, lambda: _by_samples(subject, state, at_us, now_us))
        if subject.instance is None:
            sources.append(lambda: _by_ticks(subject, state, at_us, now_us))
        for ask in sources:
            try:
                found = ask()
            except ReadingError as error:
                if error.reason is not Reason.NOT_SUPPORTED:
                    return _Busy(errors={UsagePart.BUSY: error})
                continue
            state.keep_only(found.source)
            return found
        return _Busy()

    def _by_gpm(self, subject: MeterTarget, state: _State, at_us: int, now_us: int) -> _Busy:
        """The card's own counters: nothing is lost between two samples."""

        def take(sample: Any) -> None:  # noqa: ANN401
            if subject.instance is None:
                pynvml.nvmlGpmSampleGet(subject.handle, sample)
            else:
                pynvml.nvmlGpmMigSampleGet(subject.parent, subject.instance, sample)

        try:
            handle = subject.handle if subject.parent is None else subject.parent
            percent = self._gpm.rates(subject.key, subject.name, handle, take)(GpmMetric.GRAPHICS_UTIL)
        except ReadingError as error:
            if error.reason is Reason.NOT_SUPPORTED:
                raise
            if error.reason is Reason.PENDING:
                state.measured_us = now_us
                return _Busy(BusySource.GPM)
            return _lost(BusySource.GPM, state, now_us, error)
        return _since(BusySource.GPM, state, at_us, now_us, min(percent, 100.0))


def _known(
    errors: dict[UsagePart, ReadingError], part: UsagePart, what: str, ask: Callable[[], T]
) -> T | None:
    """The result of `ask`; None if the driver returns an error."""
    try:
        return asking(what, ask)
    except ReadingError as error:
        errors.setdefault(part, error)
        return None


def _since(source: BusySource, state: _State, at_us: int, now_us: int, percent: float) -> _Busy:
    """One slice since the previous sample; none for the first."""
    before, state.measured_us = state.measured_us, now_us
    if before is None or now_us <= before:
        return _Busy(source)
    span_us = now_us - before
    return _Busy(source, (Slice(at_us - span_us, at_us, round(percent * span_us)),))


def _lost(source: BusySource, state: _State, now_us: int, error: ReadingError | None = None) -> _Busy:
    """The time since the previous sample is lost."""
    before, state.measured_us = state.measured_us, now_us
    errors = {} if error is None else {UsagePart.BUSY: error}
    if before is None:
        return _Busy(source, errors=errors)
    return _Busy(source, gaps=1, gap_us=now_us - before, errors=errors)


def _by_ticks(subject: MeterTarget, state: _State, at_us: int, now_us: int) -> _Busy:
    """The driver's own mean over its last sampling period, used for the time since the previous sample."""
    what = f"reading utilization of {subject.name}"
    percent = asking(what, lambda: int(pynvml.nvmlDeviceGetUtilizationRates(subject.handle).gpu))
    is_late = state.measured_us is not None and now_us - state.measured_us > _LONGEST_TICK_US
    if percent > 100 or is_late:  # noqa: PLR2004 - percent
        return _lost(BusySource.TICKS, state, now_us)
    return _since(BusySource.TICKS, state, at_us, now_us, percent)


def _by_samples(subject: MeterTarget, state: _State, at_us: int, now_us: int) -> _Busy:
    """The driver's buffer of samples, and the processes' samples of the same periods."""
    what = f"reading utilization samples of {subject.name}"
    samples = asking(what, lambda: activity.utilization_samples(subject.handle, state.last_us or 0))
    found = [sample for sample in samples if sample.at_us <= at_us + _AHEAD_US]
    if not found and state.last_us is not None and now_us - state.heard_us > _SILENT_US:
        lost_us, state.heard_us = now_us - state.heard_us, now_us
        state.restart_buffers()
        return _Busy(BusySource.SAMPLES, gaps=1, gap_us=lost_us, samples=())
    if not found and state.last_us is None:
        return _without_sample(what, state, now_us)
    longest_us = now_us - state.heard_us + 2 * state.period_us
    if found:
        state.heard_us = now_us
    from_us = state.last_us
    busy = _slices_of(state, found, longest_us)
    try:
        part = _processes_part(subject, state, from_us, at_us)
    except ReadingError as error:
        if error.reason is not Reason.NOT_SUPPORTED:
            return dataclasses.replace(busy, samples=(), errors={UsagePart.SHARES: error})
        return busy
    return dataclasses.replace(busy, samples=part if _tells_work(subject, state, busy, part) else None)


def _tells_work(subject: MeterTarget, state: _State, busy: _Busy, samples: Sequence[ProcessSample]) -> bool:
    """Whether the driver says for which processes the device works; some have the call, and never do."""
    if activity.shows_work(samples):
        state.unexplained_us, state.patience_us = 0, _MOST_UNEXPLAINED_US
        return True
    before = state.unexplained_us > state.patience_us
    spans = [(piece.to_us - piece.from_us, piece.busy) for piece in busy.slices]
    state.unexplained_us += sum(span for span, work in spans if work > span)  # 1 % may be rounding
    now = state.unexplained_us > state.patience_us
    if now and not before:
        _LOG.warning(
            "reading utilization of the processes on %s: the driver names none while it works; its work counts for "
            "its only pod, else for none",
            subject.name,
        )
    return not now


def _without_sample(what: str, state: _State, now_us: int) -> _Busy:
    """Busy time is unknown before the first sample; a buffer that never has a sample does not count."""
    state.heard_us = state.heard_us or now_us
    if now_us - state.heard_us > _SILENT_US:
        raise ReadingError(what, Reason.NOT_SUPPORTED, "the driver has a buffer, but no samples in it")
    return _Busy()


def _slices_of(state: _State, found: Sequence[UtilizationSample], longest_us: int) -> _Busy:
    """The samples as slices: each is the busy time since the previous sample.

    A gap is no longer than `longest_us`: the clock that dates samples may have been set forward.
    """
    ends = (
        [sample.at_us for sample in found]
        if state.last_us is None
        else [state.last_us, *(s.at_us for s in found)]
    )
    if len(ends) > 2:  # noqa: PLR2004 - two distances make a median
        distances = sorted(b - a for a, b in pairwise(ends))
        state.period_us = distances[len(distances) // 2]
    if state.last_us is None:
        # Samples at the first call are older than the exporter.
        state.last_us = found[-1].at_us if found else None
        return _Busy(BusySource.SAMPLES)
    slices, gaps, gap_us, last_us = [], 0, 0, state.last_us
    for sample in found:
        from_us = last_us
        if sample.at_us - last_us > _LATE * state.period_us:
            from_us = sample.at_us - state.period_us
            gaps, gap_us = gaps + 1, gap_us + min(from_us - last_us, longest_us)
        if sample.percent is None:
            gaps, gap_us = gaps + 1, gap_us + sample.at_us - from_us
        else:
            slices.append(Slice(from_us, sample.at_us, sample.percent * (sample.at_us - from_us)))
        last_us = sample.at_us
    state.last_us = last_us
    return _Busy(BusySource.SAMPLES, tuple(slices), gaps, gap_us)


def _processes_part(
    subject: MeterTarget, state: _State, from_us: int | None, at_us: int
) -> tuple[ProcessSample, ...]:
    """The processes' samples from `from_us` up to the device's newest one; later ones wait for its next."""
    what = f"reading utilization of the processes on {subject.name}"
    samples = asking(what, lambda: activity.process_samples(subject.handle, state.last_process_us))
    found = [sample for sample in samples if sample.at_us <= at_us + _AHEAD_US]
    if found:
        state.last_process_us = max(sample.at_us for sample in found)
    due = [*state.pending, *found]
    last_us = state.last_us or 0
    state.pending = tuple(sample for sample in due if sample.at_us > last_us)[-_MOST_PENDING:]
    if from_us is None:
        return ()
    return tuple(sample for sample in due if from_us < sample.at_us <= last_us)
