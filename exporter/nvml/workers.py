"""A thread that makes driver calls, so that a call that never returns blocks no other thread.

Must not know the calls. A thread in a hung call cannot be ended, and a second one would hang as well (with XID 119
each call takes 45 s). So there is one per GPU, for the life of the process.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Worker:
    """A thread for one GPU, started with its first task. Daemonic: it never keeps the process from ending."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self._name = name
        self._clock = clock
        self._tasks: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._busy_since: float | None = None

    @property
    def busy_since(self) -> float | None:
        """Monotonic time in seconds of the submission of the task in progress; None if idle."""
        return self._busy_since

    def submit(self, task: Callable[[], T]) -> Future[T]:
        """Run `task` in the thread. The caller can limit its wait: `.result(timeout=…)`."""
        self._busy_since = self._clock()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        self._tasks.put((task, future))
        return future

    def stop(self) -> None:
        """Let the thread end after the task in progress, if that ever returns."""
        self._tasks.put(None)

    def _run(self) -> None:
        while (entry := self._tasks.get()) is not None:
            task, future = entry
            try:
                result = task()
            except Exception as error:  # noqa: BLE001 - raised in the waiting thread
                self._busy_since = None
                future.set_exception(error)
            else:
                self._busy_since = None
                future.set_result(result)
