"""Replays side by side: the same results as one after the other, and a sentence where a process dies."""

import dataclasses
import multiprocessing
import os
import pathlib
import signal
import sys
from collections.abc import Iterator, Sequence

import pytest

from rightsizer.errors import RightsizerError
from rightsizer_history.backtest.judges import Judge, Nothing, Oracle, Order, PlainRule, PolicyJudge
from rightsizer_history.backtest.recording import Recording
from rightsizer_history.backtest.replay import replay
from rightsizer_history.backtest.standings import Standing
from rightsizer_history.cli.replays import replays
from tests.rightsizer_history.backtest.recordings import (
    BUSY,
    HOUR,
    IDLE,
    TERMS,
    hours,
    policy,
    recording,
    workload,
)
from tests.waiting import wait_until

FLEET = recording(
    workload("left", [hours(BUSY * 12 + IDLE * 36)]),
    workload("notes", [hours(BUSY * 10 + IDLE * 8 + BUSY * 30)], kind="StatefulSet"),
)


@dataclasses.dataclass(frozen=True)
class Killed:
    """A judge whose process the kernel ends, as where memory runs out."""

    name: str = "killed"

    def judge(self, recording: Recording, standings: Sequence[Standing], step: int) -> Iterator[Order]:  # noqa: ARG002
        """Not even once."""
        os.kill(os.getpid(), signal.SIGKILL)
        return iter(())


def test_replays_side_by_side_find_the_same_as_one_by_one() -> None:
    """In the order of the judges."""
    judges: list[Judge] = [
        Nothing(),
        PlainRule("idle 4h", 4 * HOUR),
        PolicyJudge("mine", policy()),
        Oracle(),
    ]
    assert list(replays(FLEET, judges, TERMS)) == [replay(FLEET, judge, TERMS) for judge in judges]


@pytest.mark.parametrize("cores", [{0}, {0, 1}], ids=len)
def test_replays_note_how_far_long_ones_are(
    cores: set[int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also from processes of their own; the end is noted once."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    monkeypatch.setattr("rightsizer_history.cli.replays.TELL_S", 0.0)
    list(replays(FLEET, [Nothing()] * 2, TERMS))
    said = capfd.readouterr().err
    assert said.count("note: replayed 50%: do nothing") == 2
    assert said.count("note: replayed: do nothing") == 2
    assert "100%" not in said


@pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) == 1, reason="replays in its own process"
)
def test_replays_killed_process_ends_with_a_sentence() -> None:
    """Nothing hangs, and no process is left."""
    with pytest.raises(RightsizerError, match="was killed, perhaps because memory ran out: shorten --from"):
        list(replays(FLEET, [Nothing(), Killed(), PolicyJudge("mine", policy())], TERMS))


@pytest.mark.skipif(sys.platform != "linux", reason="replays in its own process")
def test_replays_leave_no_process_where_the_first_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait for what it hands on."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    line = hours((BUSY * 4 + IDLE * 20) * 60)
    fleet = recording(*(workload(f"w{number}", [line]) for number in range(40)))
    first = multiprocessing.get_context("fork").Process(
        target=replays, args=(fleet, [PolicyJudge("mine", policy())], TERMS)
    )
    first.start()
    children = pathlib.Path(f"/proc/{first.pid}/task/{first.pid}/children")
    wait_until(lambda: len(children.read_text().split()) == 2)
    left = children.read_text().split()
    first.kill()
    first.join()
    wait_until(lambda: not any(map(_runs, left)))


def _runs(pid: str) -> bool:
    try:
        return bool(pathlib.Path("/proc", pid, "cmdline").read_bytes())  # of one that has ended it is empty
    except FileNotFoundError:
        return False
