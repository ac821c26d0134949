"""The board's file: created whole, mapped, and published to cell by cell. Knows bytes, not GPUs."""

import ctypes
import mmap
import os
import pathlib
import tempfile
from collections.abc import Sequence

from simulator.gpus import layout, library

_SIZE = ctypes.sizeof(layout.Layout)


class BoardFile:
    """A board mapped for writing. Each cell is to be published by one thread at a time."""

    def __init__(
        self, path: pathlib.Path, header: layout.Header, identities: Sequence[layout.Identity]
    ) -> None:
        """Replaces the file `path` atomically."""
        self._publish = library.load().simulator_publish
        try:
            self._memory = _create(path, header, identities)
        except OSError as error:
            raise library.DriverError(f"creating the board {path}: {error.strerror}") from error
        # Anchored: while this reference lives, the mapping cannot move or go.
        self._anchor: ctypes.c_char | None = ctypes.c_char.from_buffer(self._memory)
        self._base = ctypes.addressof(self._anchor)

    def publish_state(self, gpu: int, state: layout.State) -> None:
        """Shows readers a GPU's new state."""
        self._fill(_gpu_offset(gpu) + _offset(layout.GpuCells, "state"), layout.StateCell, state)

    def publish_processes(self, gpu: int, processes: layout.ProcessList) -> None:
        """Shows readers the processes that now hold a GPU."""
        self._fill(_gpu_offset(gpu) + _offset(layout.GpuCells, "processes"), layout.ProcessCell, processes)

    def publish_answers(self, gpu: int, answers: layout.AnswerList) -> None:
        """Shows readers what a GPU's further functions return."""
        self._fill(_gpu_offset(gpu) + _offset(layout.GpuCells, "answers"), layout.AnswerCell, answers)

    def publish_samples(
        self, gpu: int, utilization: layout.UtilizationBuffer, processes: layout.ProcessBuffer
    ) -> None:
        """Shows readers what a GPU's sample buffers now hold."""
        cells = layout.GpuCells
        self._fill(_gpu_offset(gpu) + _offset(cells, "process_samples"), layout.ProcessSampleCell, processes)
        self._fill(_gpu_offset(gpu) + _offset(cells, "utilization"), layout.UtilizationCell, utilization)

    def publish_events(self, events: layout.EventLog) -> None:
        """Shows readers what has happened."""
        self._fill(_offset(layout.Layout, "events"), layout.EventCell, events)

    def publish_faults(self, faults: layout.FaultList) -> None:
        """Shows readers what fails from now on."""
        self._fill(_offset(layout.Layout, "faults"), layout.FaultCell, faults)

    @property
    def closed(self) -> bool:
        """Whether it has been let go of."""
        return self._anchor is None

    def close(self) -> None:
        """Lets go of the mapping; the file stays, and so do its readers. Closing twice is closing once."""
        self._anchor = None
        self._memory.close()

    def _fill(self, offset: int, cell: type[ctypes.Structure], value: ctypes.Structure) -> None:
        if self.closed:
            raise library.DriverError("changing a board that is closed already")
        address = self._base + offset
        self._publish(
            address + _offset(cell, "sequence"),
            address + _offset(cell, "copy"),
            ctypes.addressof(value),
            ctypes.sizeof(value),
        )


def _create(path: pathlib.Path, header: layout.Header, identities: Sequence[layout.Identity]) -> mmap.mmap:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        os.ftruncate(descriptor, _SIZE)
        memory = mmap.mmap(descriptor, _SIZE)
        content = bytes(header) + b"".join(map(bytes, identities))
        memory[: len(content)] = content
        pathlib.Path(name).replace(path)
    except OSError:
        pathlib.Path(name).unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return memory


def _offset(structure: type[ctypes.Structure], member: str) -> int:
    return int(getattr(structure, member).offset)


def _gpu_offset(gpu: int) -> int:
    return _offset(layout.Layout, "gpu") + gpu * ctypes.sizeof(layout.GpuCells)
