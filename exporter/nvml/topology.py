"""Connections between the GPUs of a node. Read only on request, and again if the number of GPUs changes.

Calls about two GPUs are made in a thread of their own: a GPU that hangs would block the others, or the driver.
"""

import concurrent.futures
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

import pynvml

from exporter.errors import ReadingError
from exporter.nvml.codes import text
from exporter.nvml.workers import Worker

_AWAITED_S = 1.0
"""Seconds for which a cycle waits for them, once: eight GPUs take some milliseconds."""

_PATHS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "PIX",  # two GPUs on one board
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}


class Peer(NamedTuple):
    """Another GPU of the node."""

    gpu: int  # NVML's index
    uuid: str
    # the PCIe connection as abbreviated by nvidia-smi topo: PIX, PXB, PHB, NODE or SYS;
    # empty if unknown
    path: str
    # the state of NVLink between them, directly or by switches: NVML_P2P_STATUS_*; None if
    # unknown
    link: int | None

    @property
    def nvlink(self) -> bool:
        """Whether NVLink connects them."""
        return bool(self.link == pynvml.NVML_P2P_STATUS_OK)


class Topology:
    """The peers of each GPU, by its UUID."""

    def __init__(self) -> None:
        self._wanted = False
        self._count = 0
        self._reading: Future[dict[str, tuple[Peer, ...]]] | None = None

    def of(self, uuid: str) -> tuple[Peer, ...] | None:
        """A GPU's peers; None if they have not been read yet, which requests them."""
        self._wanted = True
        reading = self._reading
        return reading.result().get(uuid) if reading is not None and reading.done() else None

    def refresh(self, count: int) -> None:
        """Read them if they are requested and the number of GPUs has changed; not while a GPU hangs in it."""
        is_pending = self._reading is not None and not self._reading.done()
        if self._wanted and count != self._count and not is_pending:
            self._count = count
            worker = Worker("topology", lambda: 0.0)  # nobody asks how long it has been busy
            self._reading = worker.submit(lambda: dict(_read(count)))
            worker.stop()
            concurrent.futures.wait([self._reading], timeout=_AWAITED_S)

    def forget(self) -> None:
        """Read them again on the next request."""
        self._count = 0
        self._reading = None


class _Gpu(NamedTuple):
    number: int
    uuid: str
    handle: Any


def _read(count: int) -> Iterator[tuple[str, tuple[Peer, ...]]]:
    known = [gpu for index in range(count) if (gpu := _find(index)) is not None]
    for gpu in known:
        yield gpu.uuid, tuple(_peer(gpu, other) for other in known if other.number != gpu.number)


def _find(index: int) -> _Gpu | None:
    """A GPU; None if it cannot be opened."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = text(f"reading the UUID of GPU {index}", lambda: pynvml.nvmlDeviceGetUUID(handle))
    except (pynvml.NVMLError, ReadingError):
        return None
    return _Gpu(index, uuid, handle)


def _peer(gpu: _Gpu, other: _Gpu) -> Peer:
    try:
        path = _PATHS.get(pynvml.nvmlDeviceGetTopologyCommonAncestor(gpu.handle, other.handle), "")
    except pynvml.NVMLError:
        path = ""
    return Peer(other.number, other.uuid, path, link=_link(gpu, other))


def _link(gpu: _Gpu, other: _Gpu) -> int | None:
    try:
        return int(pynvml.nvmlDeviceGetP2PStatus(gpu.handle, other.handle, pynvml.NVML_P2P_CAPS_INDEX_NVLINK))
    except pynvml.NVMLError:
        return None
