"""Replays of several judges by several processes, which share the recording.

Each process replays its share of the plain rules, then, together with the others, every policy: in each cycle it judges
its part of the workloads. The first process hands on what they tell each other, and takes the results.
"""

import contextlib
import gc
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import TypeVar

from rightsizer.cli.messages import note, paced_note
from rightsizer.errors import RightsizerError
from rightsizer_history.backtest.judges import Judge, PolicyJudge, ReplayShard
from rightsizer_history.backtest.recording import Recording
from rightsizer_history.backtest.replay import Replayed, Terms, replay

TELL_S = 30.0
_KILLED = "a process that replays the history was killed, perhaps because memory ran out: shorten --from"
T = TypeVar("T")


def replays(recording: Recording, judges: Sequence[Judge], terms: Terms) -> list[Replayed]:
    """One result for each judge, in order: the same for any number of processes.

    Raises:
        RightsizerError: A process was killed.
    """
    workers = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    if workers == 1:
        return [_noted(replay(recording, judge, terms, _teller(judge))) for judge in judges]
    for group in recording.groups:  # before the processes part, so that they share it
        assert group.works is not None  # noqa: S101
    with _team(recording, judges, terms, workers) as members:
        return _results(members, len(judges))


@contextlib.contextmanager
def _team(
    recording: Recording, judges: Sequence[Judge], terms: Terms, size: int
) -> Iterator[list[Connection]]:
    """The processes' ends of pipes; the processes end with the block."""
    context = multiprocessing.get_context("fork")
    processes = []
    ours: list[Connection] = []
    gc.freeze()  # collections in the processes would copy the recording
    try:
        for number in range(size):
            our, their = context.Pipe()
            ours.append(our)
            member = _Worker(their, number, size)
            processes.append(
                context.Process(target=member.run, args=(ours, recording, judges, terms), daemon=True)
            )
            processes[-1].start()
            their.close()
        yield ours
    finally:
        gc.unfreeze()
        for our in ours:
            our.close()
        for process in processes:
            process.terminate()
            process.join()


def _results(members: Sequence[Connection], count: int) -> list[Replayed]:
    """Wait for all results, and hand on meanwhile what the processes tell each other."""
    found: dict[int, Replayed] = {}
    told: dict[Connection, bytes] = {}
    while len(found) < count:
        for member in wait(members):
            assert isinstance(member, Connection)  # noqa: S101
            try:
                place, content = member.recv()
            except (EOFError, OSError) as error:
                raise RightsizerError(_KILLED) from error
            if isinstance(content, BaseException):
                raise content
            if place is None:
                told[member] = content
            else:
                found[place] = _noted(content)
        if len(told) == len(members):
            every = [told[member] for member in members]
            told.clear()
            for member in members:
                member.send(every)
    return [found[place] for place in range(count)]


class _Worker:
    """One of the processes that replay."""

    def __init__(self, pipe: Connection, number: int, of: int) -> None:
        self._pipe = pipe
        self._shard = ReplayShard(number, of, self._exchange)

    def run(
        self, others: Sequence[Connection], recording: Recording, judges: Sequence[Judge], terms: Terms
    ) -> None:
        """Replay a share of all; `others` are pipes of the first process, which must end with that."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the first process ends the others
        for other in others:
            other.close()
        try:
            for place, judge in sorted(enumerate(judges), key=lambda pair: isinstance(pair[1], PolicyJudge)):
                self._replay(place, judge, recording, terms)
        except Exception as error:  # noqa: BLE001 - the first process raises it
            with contextlib.suppress(OSError):  # it may have ended
                self._pipe.send((None, error))
        wait([self._pipe])  # until it has read all

    def _replay(self, place: int, judge: Judge, recording: Recording, terms: Terms) -> None:
        is_told = place % self._shard.of == self._shard.number
        if isinstance(judge, PolicyJudge):
            judge = judge.for_shard(self._shard)
        elif not is_told:
            return
        result = replay(recording, judge, terms, _teller(judge) if is_told else lambda _: None)
        if is_told:
            self._pipe.send((place, result))

    def _exchange(self, own: T, /) -> Sequence[T]:
        self._pipe.send((None, pickle.dumps(own)))
        every = self._pipe.recv()
        number = self._shard.number
        return [own if place == number else pickle.loads(dump) for place, dump in enumerate(every)]  # noqa: S301


def _noted(result: Replayed) -> Replayed:
    note(f"replayed: {result.judge}")
    return result


def _teller(judge: Judge) -> Callable[[float], None]:
    """Notes from time to time how far a long replay is."""
    tell = paced_note(TELL_S)

    def told(share: float) -> None:
        if share < 1:
            tell(f"replayed {share:.0%}: {judge.name}")

    return told
