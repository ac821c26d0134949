"""Counts XID errors per GPU and per MIG instance from NVML's events.

Its own thread waits for events; devices read the counts. An error while the driver is reopened is lost. https://docs.nvidia.com/deploy/xid-errors/
"""

import collections
import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pynvml

_LOG = logging.getLogger(__name__)
_WAIT_MS = 500
_RETRY_S = 5.0
_NO_INSTANCE = 2**32 - 1
WINDOW_S = 300.0
"""How long an error counts as recent: dcgm-exporter's default."""
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
        self._said = ""

    def start(self) -> None:
        """Start the thread."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._stop,), name="xids", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop it, without waiting for a thread in a hung driver call."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(4 * _WAIT_MS / 1000)
            self._thread = None
        self._xids.watch(frozenset())

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self._follow(stop)
            except pynvml.NVMLError as error:
                self._say(str(error))
                self._xids.watch(frozenset())
                stop.wait(_RETRY_S)

    def _follow(self, stop: threading.Event) -> None:
        """Wait for events of the current GPUs, until the set of GPUs changes."""
        events = pynvml.nvmlEventSetCreate()
        try:
            count = pynvml.nvmlDeviceGetCount()
            uuids = {uuid for index in range(count) if (uuid := self._register(index, events))}
            if not uuids:
                stop.wait(_RETRY_S)
                return
            if len(uuids) == count:
                self._said = ""
            self._xids.watch(frozenset(uuids))
            # Retries a GPU that could not be registered; an added or removed GPU changes the count.
            until = math.inf if len(uuids) == count else time.monotonic() + _RETRY_S
            while not stop.is_set() and time.monotonic() < until and pynvml.nvmlDeviceGetCount() == count:
                self._take(events)
        finally:
            pynvml.nvmlEventSetFree(events)

    def _register(self, index: int, events: Any) -> str:  # noqa: ANN401 - pynvml's handles have no type
        """Watch a GPU; returns its UUID, empty if it does not report errors."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            wanted = pynvml.nvmlEventTypeXidCriticalError
            if not pynvml.nvmlDeviceGetSupportedEventTypes(handle) & wanted:
                return ""
            pynvml.nvmlDeviceRegisterEvents(handle, wanted, events)
            return str(pynvml.nvmlDeviceGetUUID(handle))
        except pynvml.NVMLError as error:
            self._say(f"GPU {index}: {error}")
            return ""

    def _take(self, events: Any) -> None:  # noqa: ANN401 - as above
        try:
            data = pynvml.nvmlEventSetWait_v2(events, _WAIT_MS)
        except pynvml.NVMLError_Timeout:
            return
        instance = None if data.gpuInstanceId == _NO_INSTANCE else int(data.gpuInstanceId)
        uuid = str(pynvml.nvmlDeviceGetUUID(data.device))
        self._xids.record(uuid, instance, int(data.eventData))
        _LOG.warning("XID %d on %s", data.eventData, uuid)

    def _say(self, trouble: str) -> None:
        if trouble != self._said:
            _LOG.info("waiting for XID errors: %s; their series are omitted until that works", trouble)
        self._said = trouble
