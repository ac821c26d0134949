"""The one thread that runs all controllers: a queue without duplicates, timers, and a notion of having settled."""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Sequence

from simulator.kube.controllers.context import Controller, Key
from simulator.kube.store import Event, Store

_LOG = logging.getLogger(__name__)
_Work = tuple[Controller, Key]
_Timer = tuple[float, int, _Work, bool]
"""When it is due in monotonic seconds, a tie-breaker, what to do, and whether settling waits for it."""


class Loop:
    """Feeds changes to controllers until stopped. Reconciling holds the store's lock, so each step is atomic."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._wake = threading.Condition(store.lock)
        self._controllers: Sequence[Controller] = ()
        self._queue: dict[_Work, None] = {}
        self._timers: list[_Timer] = []
        self._sequence = itertools.count()
        self._stopping = False
        self._failures: list[str] = []
        self._thread = threading.Thread(target=self._run, name="kube-controllers", daemon=True)

    def start(self, controllers: Sequence[Controller]) -> None:
        """Begin to react, first to all there is."""
        with self._store.lock:
            self._controllers = controllers
            self._store.listeners.append(self._on_event)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def after(self, delay_s: float, controller: Controller, key: Key) -> None:
        """Reconcile a key after some seconds of real time."""
        self._schedule(delay_s, (controller, key), awaited=True)

    def later(self, delay_s: float, controller: Controller, key: Key) -> None:
        """The same, of what is due so late that settling does not wait for it; asked again, the first is forgotten."""
        work = (controller, key)
        with self._wake:
            self._timers = [entry for entry in self._timers if entry[3] or entry[2] != work]
            heapq.heapify(self._timers)
            self._schedule(delay_s, work, awaited=False)

    def _schedule(self, delay_s: float, work: _Work, *, awaited: bool) -> None:
        with self._wake:
            heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._sequence), work, awaited))
            self._wake.notify_all()

    def settle(self, timeout_s: float) -> None:
        """Wait until nothing is queued and no awaited timer runs."""
        with self._wake:
            settled = self._wake.wait_for(self._is_idle, timeout_s)
            if self._failures:
                failures, self._failures = self._failures, []
                raise RuntimeError(f"controllers failed: {'; '.join(failures)}")
            if not settled:
                waiting = [f"{type(work[0]).__name__} {work[1]}" for work in self._queue]
                waiting += [
                    f"{type(work[0]).__name__} {work[1]} (timer)"
                    for _, _, work, awaited in self._timers
                    if awaited
                ]
                raise TimeoutError(
                    f"controllers not settled after {timeout_s:g} s: {', '.join(waiting[:10])}"
                )

    def _is_idle(self) -> bool:
        return (
            bool(self._failures)
            or self._stopping
            or not (self._queue or any(awaited for *_, awaited in self._timers))
        )

    def _on_event(self, event: Event) -> None:
        for controller in self._controllers:
            for key in controller.keys(event):
                self._queue[(controller, key)] = None
        self._wake.notify_all()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._await_work()
                if self._stopping:
                    return
                controller, key = next(iter(self._queue))
                del self._queue[(controller, key)]
                self._reconcile(controller, key)
                if self._is_idle():
                    self._wake.notify_all()

    def _await_work(self) -> None:
        while not self._stopping:
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                self._queue[heapq.heappop(self._timers)[2]] = None
            if self._queue:
                return
            self._wake.wait(self._timers[0][0] - now if self._timers else None)

    def _reconcile(self, controller: Controller, key: Key) -> None:
        try:
            controller.reconcile(key)
        except Exception as error:  # noqa: BLE001 - one controller must not stop the others; settle() reports it
            name = type(controller).__name__
            _LOG.exception("%s failed on %s", name, key)
            self._failures.append(f"{name} on {key}: {error!r}")
