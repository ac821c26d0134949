"""Whose a process was at some instant, also when its PID has meanwhile ended or become another process's. Pure.

Remembers the look before, because what a process did until its end is read only after it.
"""

import dataclasses
from collections.abc import Callable, Mapping

from exporter.attribution.records import Who

GONE = "gone"
REUSED = "reused"


@dataclasses.dataclass(frozen=True, slots=True)
class Tenant:
    """A process, and whose it is.

    Attributes:
        who: Whose.
        start: Tells it from others of its PID; None where it could not be looked at.
        start_us: It started no earlier than this, in microseconds of Unix time,
        start_by_us: and no later than this.
    """

    who: Who
    start: int | None = None
    start_us: int = 0
    start_by_us: int = 0


class Tenants:
    """The processes of the last two looks."""

    def __init__(self) -> None:
        self._now: Mapping[int, Tenant] = {}
        self._before: Mapping[int, Tenant] = {}
        self._is_given_out: Callable[[int], bool] = _any

    def update(self, found: Mapping[int, Tenant], is_given_out: Callable[[int], bool]) -> None:
        """Take over what a look found.

        Args:
            found: By PID.
            is_given_out: Whether a PID may have been given to another process since the look before.
        """
        self._before, self._now = self._now, found
        self._is_given_out = is_given_out

    def forget(self) -> None:
        """What was known is too old to be of use."""
        self._before, self._now = {}, {}

    def now(self, pid: int) -> Who:
        """Whose `pid` is at this look."""
        tenant = self._now.get(pid)
        return GONE if tenant is None else tenant.who

    def between(self, pid: int, from_us: int, to_us: int) -> Who:
        """Whose `pid` was between two instants since the look before; a reason where it cannot be told for certain."""
        now, before = self._now.get(pid), self._before.get(pid)
        if before is not None and before.start is None:
            before = None
        if now is None or now.start is None:
            who = GONE if now is None else now.who
            if who not in {GONE, REUSED} or before is None:
                return who
            return REUSED if who == GONE and self._is_given_out(pid) else before.who
        if before is None or before.start == now.start:
            return now.who if to_us > now.start_us else REUSED
        if to_us <= now.start_us:
            return before.who
        return now.who if from_us >= now.start_by_us else REUSED


def _any(_pid: int) -> bool:
    return True
