"""A simulated NVIDIA driver: a real libnvidia-ml.so.1 that shows what a Python process writes to a board.

    Board (this process) ── memory-mapped file ──► libnvidia-ml.so.1 ──► pynvml (any unmodified program)

`native/` is the library, in C; `library` compiles it and `layout` mirrors its structures.
"""

from simulator.gpus.board import Board, Process, ProcessKind, ProcessSample, Reading
from simulator.gpus.library import DriverError, environment

__all__ = ["Board", "DriverError", "Process", "ProcessKind", "ProcessSample", "Reading", "environment"]
