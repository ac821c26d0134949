"""Runs work on a schedule until it is stopped: one cycle at a time, and of the missed ones only one.

APScheduler keeps the time; `crontab` finds the moments of wall clocks.
"""

import datetime
import random
import threading
import zoneinfo
from collections.abc import Callable

from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.interval import IntervalTrigger

from rightsizer.cli.crontab import Crontab
from rightsizer.kube.lease import Lease


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
        return (
            missed is not None and self._lease.is_held and self._lease.cycle_seen_at < missed - self._jitter_s
        )

    def take(self) -> bool:
        """Whether what was missed is ours to make up for now; it is not due any more then."""
        with self._lock:
            is_due = self.is_due
            if self._lease.is_held:
                self._missed = None
        return is_due


_A_MOMENT = datetime.timedelta(microseconds=1)


def trigger_of(
    schedule: Crontab | datetime.timedelta,
    zone: datetime.tzinfo,
    *,
    jitter: datetime.timedelta | None,
    uniform: Callable[[float, float], float] = random.uniform,
) -> BaseTrigger:
    """When something is run.

    Args:
        schedule: At moments of wall clocks, or at intervals.
        zone: Whose wall clocks; its changes to summer time and back are followed.
        jitter: Up to so much later, so that many clusters do not ask at once.
        uniform: Draws a number between two.
    """
    if isinstance(schedule, datetime.timedelta):
        plain: BaseTrigger = IntervalTrigger(seconds=schedule.total_seconds(), timezone=datetime.UTC)
    else:
        plain = _WallClock(schedule, zone)
    return _Later(plain, jitter.total_seconds(), uniform) if jitter else plain


def longest_wait(
    schedule: Crontab | datetime.timedelta, *, jitter: datetime.timedelta | None
) -> datetime.timedelta:
    """The longest time from one moment of a schedule to the next; to summer time or back it is an hour more or less."""
    gap = schedule.longest_gap() if isinstance(schedule, Crontab) else schedule
    return gap + (jitter or datetime.timedelta())


class _WallClock(BaseTrigger):  # type: ignore[misc]
    """At each moment of wall clocks that is meant."""

    def __init__(self, crontab: Crontab, zone: datetime.tzinfo) -> None:
        self._crontab = crontab
        self._zone = zone

    def get_next_fire_time(
        self, previous_fire_time: datetime.datetime | None, now: datetime.datetime
    ) -> datetime.datetime | None:
        """The first after the previous one; from now on where there was none."""
        # In UTC: of wall clocks Python takes the second of two equal hours for the first, once something is added.
        after = previous_fire_time.astimezone(datetime.UTC) + _A_MOMENT if previous_fire_time else now
        return self._crontab.next_from(after.astimezone(datetime.UTC), self._zone)


class _Later(BaseTrigger):  # type: ignore[misc]
    """A little later than another trigger; never earlier, since the same moment would come once more then."""

    def __init__(self, plain: BaseTrigger, most_s: float, uniform: Callable[[float, float], float]) -> None:
        self._plain = plain
        self._most_s = most_s
        self._uniform = uniform

    def get_next_fire_time(
        self, previous_fire_time: datetime.datetime | None, now: datetime.datetime
    ) -> datetime.datetime | None:
        """The other's, put off."""
        found: datetime.datetime | None = self._plain.get_next_fire_time(previous_fire_time, now)
        if found is None:
            return None
        return found.astimezone(datetime.UTC) + datetime.timedelta(seconds=self._uniform(0.0, self._most_s))


def zone_of(name: str) -> zoneinfo.ZoneInfo:
    """A zone of the IANA database.

    Raises:
        ValueError: There is none of this name.
    """
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        message = f"no time zone is called {name!r}; write one such as Europe/Berlin or UTC"
        raise ValueError(message) from error


Soon = Callable[[Callable[[], None]], None]
"""Runs something once, as soon as can be, beside whatever is running."""


def keep_running(
    work: Callable[[], None],
    trigger: BaseTrigger,
    *,
    until: Callable[[], None],
    begun: Callable[[Soon], None] = lambda _: None,
) -> None:
    """Run it now and at every moment of a trigger, until that returns; what runs then comes to its end first.

    Args:
        work: Raises nothing.
        trigger: When.
        until: Waits for the end.
        begun: Is given how to have something else run between the moments of the trigger.
    """
    scheduler = BackgroundScheduler(timezone=datetime.UTC)
    now = datetime.datetime.now(datetime.UTC)
    # Of runs that were missed while one took long only one is made up for, however late it is by then.
    scheduler.add_job(
        work, trigger, coalesce=True, max_instances=1, misfire_grace_time=None, next_run_time=now
    )
    scheduler.start()
    begun(lambda other: scheduler.add_job(other, misfire_grace_time=None))
    try:
        until()
    finally:
        scheduler.shutdown(wait=True)
