"""Several questions at once, in threads: all answers in order, or the first error. Knows nothing of what is asked."""

import collections
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def gather(tasks: Sequence[Callable[[threading.Event], T]], width: int) -> Iterator[T]:
    """The results in the tasks' order, as they come; at most `width` tasks run, or have results that nobody took yet.

    The first error is raised as soon as it is known: what has not begun never does, and what is under way learns by its
    event that nobody waits any more. An interrupt does not wait for it either.

    Raises:
        Exception: What a task raised.
    """
    waiting = collections.deque(enumerate(tasks))
    outcomes: queue.SimpleQueue[tuple[int, T] | BaseException] = queue.SimpleQueue()
    stopped = threading.Event()
    room = threading.Semaphore(width)

    def work() -> None:
        while room.acquire() and not stopped.is_set():
            try:
                number, task = waiting.popleft()
            except IndexError:
                return
            try:
                outcomes.put((number, task(stopped)))
            except BaseException as error:  # noqa: BLE001 - handed on, to whoever waits for it
                stopped.set()
                outcomes.put(error)

    for _ in range(min(width, len(tasks))):
        threading.Thread(target=work, name="prometheus-query", daemon=True).start()
    results: dict[int, T] = {}
    try:
        for number in range(len(tasks)):
            while number not in results:
                outcome = outcomes.get()
                if isinstance(outcome, BaseException):
                    raise outcome
                results[outcome[0]] = outcome[1]
            yield results.pop(number)
            room.release()
    finally:
        stopped.set()
        room.release(width)  # whoever waits for room is to see that it is over
