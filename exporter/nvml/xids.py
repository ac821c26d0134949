"""Counts XID errors per GPU and per MIG instance from NVML's events.

Its own thread waits for events; devices read the counts. An error while the driver is reopened is lost. https://docs.nvidia.com/deploy/xid-errors/
"""

import collections
import ctypes
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pynvml

_LOG = logging.getLogger(__name__)
_WAIT_S = 0.5
_RETRY_S = 5.0
_ALL = -1  # stands for all GPUs among their indexes
_LOST = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED}
_NO_INSTANCE = 2**32 - 1
WINDOW_S = 300.0
"""Seconds for which an error counts as recent: dcgm-exporter's default."""
_MAX_RECENT = 10_000  # maximum count of errors of one code on one device within the window


@dataclasses.dataclass(slots=True)
class _Count:
    total: int = 0
    last_s: float = 0.0
    recent: collections.deque[float] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_MAX_RECENT)
    )


@dataclasses.dataclass(frozen=True, slots=True)
class XidCount:
    """Errors of one code on one device."""

    total: int  # errors since the exporter started
    recent: int  # errors within the window
    last_s: float  # Unix time of the last one in seconds


@dataclasses.dataclass(frozen=True, slots=True)
class Xids:
    """The errors of a device, by their code; `last` is the code of the last one, 0 before the first."""

    last: int
    by_code: Mapping[int, XidCount]


class XidLog:
    """Errors by device. The thread that waits for events writes them, the sampling threads read them."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, int | None], dict[int, _Count]] = {}
        self._last: dict[tuple[str, int | None], int] = {}
        self._instances: dict[tuple[str, int], tuple[str, ...]] = {}
        self._watched: frozenset[str] = frozenset()

    def record(self, uuid: str, gpu_instance_id: int | None, code: int) -> None:
        """Count an error of a GPU and, if it was on one, of its MIG instance."""
        now_s = self._clock()
        with self._lock:
            for key in {(uuid, None), (uuid, gpu_instance_id)}:
                count = self._counts.setdefault(key, {}).setdefault(code, _Count())
                count.total += 1
                count.last_s = now_s
                count.recent.append(now_s)
                self._last[key] = code

    def of(self, uuid: str, gpu_instance_id: int | None) -> Xids | None:
        """The errors of a device; None if it is not watched."""
        since_s = self._clock() - WINDOW_S
        key = (uuid, gpu_instance_id)
        with self._lock:
            if uuid not in self._watched:
                return None
            counts = {code: _as_of(count, since_s) for code, count in self._counts.get(key, {}).items()}
            return Xids(self._last.get(key, 0), counts)

    def retain(self, uuid: str, instances: Mapping[int, tuple[str, ...]]) -> None:
        """Forget errors of instances of a GPU that are gone or were recreated.

        `instances`: the current MIG UUIDs by GPU instance id.
        """
        with self._lock:
            for number in [key[1] for key in self._counts if key[0] == uuid]:
                if number is not None and self._instances.get((uuid, number)) != instances.get(number):
                    self._counts.pop((uuid, number), None)
                    self._last.pop((uuid, number), None)
            self._instances = {key: names for key, names in self._instances.items() if key[0] != uuid}
            self._instances |= {(uuid, number): names for number, names in instances.items()}

    def watch(self, uuids: frozenset[str]) -> None:
        """Watch these GPUs and no others."""
        with self._lock:
            self._watched = uuids


def _as_of(count: _Count, since_s: float) -> XidCount:
    return XidCount(count.total, sum(at_s >= since_s for at_s in count.recent), count.last_s)


class XidWatch:
    """The thread that waits for events of all GPUs, from `start` to `stop`."""

    def __init__(self, log: XidLog) -> None:
        self._xids = log
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # UUIDs of the watched GPUs by index. A lost GPU stays: it no longer answers, but its last events still arrive.
        self._uuids: dict[int, str] = {}
        # UUIDs by the address of NVML's handle, which is the same until NVML is closed
        self._names: dict[int | None, str] = {}
        self._troubles: dict[int, str] = {}  # what was logged last, by index

    def start(self) -> None:
        """Start the thread."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._stop,), name="xids", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop it, without waiting for a thread in a hung driver call."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(4 * _WAIT_S)
            self._thread = None
        self._names = {}
        self._watch({})

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self._follow(stop)
            except pynvml.NVMLError as error:
                self._say(_ALL, str(error))
                is_lost = error.value in _LOST
                if not is_lost:
                    self._watch({})
                stop.wait(_WAIT_S if is_lost else _RETRY_S)

    def _follow(self, stop: threading.Event) -> None:
        """Wait for events of the current GPUs, until their number changes or the set fails."""
        events = pynvml.nvmlEventSetCreate()
        try:
            count = pynvml.nvmlDeviceGetCount()
            self._uuids = {index: uuid for index, uuid in self._uuids.items() if index < count}
            missing, retry_at = list(range(count)), 0.0
            while not stop.is_set() and pynvml.nvmlDeviceGetCount() == count:
                if missing and time.monotonic() >= retry_at:
                    missing = [index for index in missing if not self._register(index, events)]
                    self._watch(self._uuids)
                    retry_at = time.monotonic() + _RETRY_S
                if len(missing) == count:
                    stop.wait(_WAIT_S)
                else:
                    self._take(events)
        finally:
            pynvml.nvmlEventSetFree(events)

    def _register(self, index: int, events: Any) -> bool:  # noqa: ANN401 - pynvml's handles have no type
        """Add a GPU to the set; False if that must be tried again."""
        try:
            handle = _add(index, events)
            uuid = str(pynvml.nvmlDeviceGetUUID(handle))
        except pynvml.NVMLError as error:
            self._say(index, f"GPU {index}: {error}")
            if error.value not in _LOST:
                self._uuids.pop(index, None)
            return False
        self._uuids[index] = self._names[_address(handle)] = uuid
        if self._troubles.pop(index, None):
            _LOG.info("waiting for XID errors of GPU %d again", index)
        return True

    def _take(self, events: Any) -> None:  # noqa: ANN401 - as above
        try:
            data = pynvml.nvmlEventSetWait_v2(events, round(_WAIT_S * 1000))
        except pynvml.NVMLError_Timeout:
            data = None
        self._troubles.pop(_ALL, None)
        if data is None:
            return
        # Not by NVML: a GPU that has fallen off the bus (XID 79) no longer has a UUID.
        uuid = self._names.get(_address(data.device))
        _LOG.warning("XID %d on %s", data.eventData, uuid or "an unknown GPU")
        if uuid is not None:
            instance = None if data.gpuInstanceId == _NO_INSTANCE else int(data.gpuInstanceId)
            self._xids.record(uuid, instance, int(data.eventData))

    def _watch(self, uuids: dict[int, str]) -> None:
        self._uuids = uuids
        self._xids.watch(frozenset(uuids.values()))

    def _say(self, index: int, trouble: str) -> None:
        if trouble != self._troubles.get(index):
            _LOG.info("waiting for XID errors: %s; the series of an unwatched GPU are omitted", trouble)
        self._troubles[index] = trouble


def _add(index: int, events: Any) -> Any:  # noqa: ANN401
    handle, wanted = pynvml.nvmlDeviceGetHandleByIndex(index), pynvml.nvmlEventTypeXidCriticalError
    if not pynvml.nvmlDeviceGetSupportedEventTypes(handle) & wanted:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    pynvml.nvmlDeviceRegisterEvents(handle, wanted, events)
    return handle


def _address(handle: Any) -> int | None:  # noqa: ANN401
    return ctypes.cast(handle, ctypes.c_void_p).value
