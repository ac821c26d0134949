"""Replays of several judges at once: each in a process of its own, which shares the recording."""

import concurrent.futures
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence

from rightsizer.backtest.judges import Judge
from rightsizer.backtest.recording import Recording
from rightsizer.backtest.replay import Replayed, Terms, replay
from rightsizer.cli.messages import note, paced_note
from rightsizer.errors import RightsizerError

TELL_S = 30.0
_recordings: list[Recording] = []
"""What a forked process finds: a recording is too large to send."""


def replays(recording: Recording, judges: Sequence[Judge], terms: Terms) -> Iterator[Replayed]:
    """One result for each judge, in order.

    Raises:
        RightsizerError: A process was killed.
    """
    workers = min(len(judges), len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1)
    if workers == 1:
        yield from _noted(judges, (replay(recording, judge, terms, _teller(judge)) for judge in judges))
        return
    _recordings[:] = [recording]
    context = multiprocessing.get_context("fork")
    pool = concurrent.futures.ProcessPoolExecutor(workers, context, initializer=_leave_interrupts)
    try:
        yield from _noted(judges, pool.map(_replay, judges, [terms] * len(judges)))
    except concurrent.futures.process.BrokenProcessPool as error:
        message = (
            "a process that replays the history was killed, perhaps because memory ran out: shorten --from"
        )
        raise RightsizerError(message) from error
    finally:
        for process in multiprocessing.active_children():
            process.terminate()
        pool.shutdown(cancel_futures=True)


def _noted(judges: Sequence[Judge], results: Iterator[Replayed]) -> Iterator[Replayed]:
    for judge, result in zip(judges, results, strict=True):
        note(f"replayed: {judge.name}")
        yield result


def _leave_interrupts() -> None:
    """Ctrl-C reaches the whole group; the first process ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _replay(judge: Judge, terms: Terms) -> Replayed:
    return replay(_recordings[0], judge, terms, _teller(judge))


def _teller(judge: Judge) -> Callable[[float], None]:
    """Notes from time to time how far a long replay is."""
    tell = paced_note(TELL_S)

    def told(share: float) -> None:
        if share < 1:
            tell(f"replayed {share:.0%}: {judge.name}")

    return told
