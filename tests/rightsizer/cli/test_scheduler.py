"""`keep_running` returns once the cycle in flight is completed, and begins no other."""

import subprocess
import sys

_PROGRAM = """
import datetime, logging, threading
from rightsizer.cli.scheduler import keep_running, trigger_of

logging.basicConfig(level=logging.WARNING)
began, told = threading.Event(), threading.Event()
soon = []

def work():
    began.set()
    told.wait()
    threading.Event().wait(0.5)  # the end has begun
    soon[0](lambda: print("another began", flush=True), 0.0)
    print("completed", flush=True)

def until():
    began.wait()
    told.set()

trigger = trigger_of(datetime.timedelta(hours=1), datetime.UTC, jitter=None)
keep_running(work, trigger, until=until, begun=soon.append)
"""


def test_keep_running_ends_though_the_work_in_flight_asks_for_more() -> None:
    """The cycle in flight is completed; the one that it asks for never begins.

    In a separate process: a process that hangs can be killed, its threads cannot.
    """
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=20, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "completed\n", "")
