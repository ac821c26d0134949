"""The signals that this process was sent. Must import nothing that takes long: it comes before all else."""

import signal

STOPPING = frozenset({signal.SIGTERM, signal.SIGINT})
_ALL = STOPPING | {signal.SIGHUP}


def hold() -> None:
    """Keep signals for `Signals`, in this thread and those that it starts, instead of being killed by them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)


class Signals:
    """The signals, for the main thread.

    Blocked, in all threads, and waited for: a handler's word can come between a look and a wait, and be lost.
    """

    def __init__(self, *, once: bool) -> None:
        """Take them over before there are other threads; not where one exposition is all that is wanted."""
        if not once:
            hold()
            return
        for number in _ALL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ALL)

    def wait(self, seconds: float) -> int | None:
        """The next signal; None where there is none for so long."""
        found = signal.sigtimedwait(_ALL, seconds)
        return None if found is None else found.si_signo
