"""Owner of a process at an instant, even if its PID has ended or was reused since. Pure.

Remembers the previous sample, because the driver reports what a process did until its end only afterwards.
"""

import dataclasses
from collections.abc import Callable, Mapping

from exporter.attribution.records import UsageOwner

GONE = "gone"
REUSED = "reused"


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessOwner:
    """A process and its owner."""

    owner: UsageOwner
    # distinguishes the process from others with its PID; None if it could not be read
    start: int | None = None
    start_us: int = 0  # earliest start in Unix microseconds
    start_by_us: int = 0  # latest start in Unix microseconds


class ProcessOwners:
    """The processes of the last two samples."""

    def __init__(self) -> None:
        self._now: Mapping[int, ProcessOwner] = {}
        self._before: Mapping[int, ProcessOwner] = {}
        self._may_be_reused: Callable[[int], bool] = _always

    def update(self, found: Mapping[int, ProcessOwner], may_be_reused: Callable[[int], bool]) -> None:
        """Record a sample. `may_be_reused`: whether the kernel may have reused a PID since the previous sample."""
        self._before, self._now = self._now, found
        self._may_be_reused = may_be_reused

    def clear(self) -> None:
        """Forget both samples: they are too old."""
        self._before, self._now = {}, {}

    def owner_now(self, pid: int) -> UsageOwner:
        """The owner of `pid` in this sample."""
        found = self._now.get(pid)
        return GONE if found is None else found.owner

    def owner_between(self, pid: int, from_us: int, to_us: int) -> UsageOwner:
        """The owner of `pid` between two instants since the previous sample; a reason if it is not certain."""
        now, before = self._now.get(pid), self._before.get(pid)
        if before is not None and before.start is None:
            before = None
        if now is None or now.start is None:
            owner = GONE if now is None else now.owner
            if owner not in {GONE, REUSED} or before is None:
                return owner
            return REUSED if owner == GONE and self._may_be_reused(pid) else before.owner
        if before is None or before.start == now.start:
            return now.owner if to_us > now.start_us else REUSED
        if to_us <= now.start_us:
            return before.owner
        return now.owner if from_us >= now.start_by_us else REUSED


def _always(_pid: int) -> bool:
    return True
