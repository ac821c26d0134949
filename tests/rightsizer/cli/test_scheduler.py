"""Work on a schedule ends when it is told to, whatever it does at that moment."""

import datetime
import logging
import threading

import pytest

from rightsizer.cli.scheduler import Soon, keep_running, trigger_of

_PATIENCE_S = 20.0


def test_keep_running_ends_though_the_work_in_flight_asks_for_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A cycle that ends at that moment may want another one, which never begins; what was in flight is completed."""
    began, told, completed = threading.Event(), threading.Event(), threading.Event()
    more: list[str] = []
    soon: list[Soon] = []

    def work() -> None:
        began.set()
        told.wait(_PATIENCE_S)
        completed.wait(0.5)  # the end has begun
        soon[0](lambda: more.append("begun"))
        completed.set()

    def until() -> None:
        began.wait(_PATIENCE_S)
        told.set()

    trigger = trigger_of(datetime.timedelta(hours=1), datetime.UTC, jitter=None)
    running = threading.Thread(
        target=keep_running, args=(work, trigger), kwargs={"until": until, "begun": soon.append}, daemon=True
    )
    with caplog.at_level(logging.WARNING):
        running.start()
        running.join(_PATIENCE_S)
    assert (running.is_alive(), completed.is_set(), more, caplog.messages) == (False, True, [], [])
