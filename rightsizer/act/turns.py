"""Whose turn it is at a tick of the schedule, where several wait for one Lease; and which ticks are to be made up for.

A tick that came while another held the Lease is due until that one, or another after it, has ended a cycle well:
whoever has the Lease by then makes up for it, once, however many there were.
"""

import threading
from collections.abc import Callable

from rightsizer.act.lease import Lease


class Turns:
    """The ticks of one process.

    Args:
        lease: What has to be held.
        monotonic: The Lease's clock.
        jitter_s: By so much one's ticks may come later than another's.
    """

    def __init__(self, lease: Lease, monotonic: Callable[[], float], jitter_s: float) -> None:
        self._lease = lease
        self._monotonic = monotonic
        self._jitter_s = jitter_s
        self._lock = threading.Lock()
        self._missed: float | None = None

    def tick(self) -> bool:
        """Whether it is ours to act at this tick; if not, it is missed for now."""
        with self._lock:
            is_ours = self._lease.is_held
            self._missed = None if is_ours else self._monotonic()
        return is_ours

    @property
    def is_due(self) -> bool:
        """Whether a tick is to be made up for, and can be: the Lease is ours, and nobody made up for it meanwhile."""
        missed = self._missed
        return missed is not None and self._lease.is_held and self._lease.ran_at < missed - self._jitter_s

    def take(self) -> bool:
        """Whether what was missed is ours to make up for now; it is not due any more then."""
        with self._lock:
            is_due = self.is_due
            if self._lease.is_held:
                self._missed = None
        return is_due
