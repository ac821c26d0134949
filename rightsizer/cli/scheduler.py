"""Runs work on a schedule until it is stopped: one cycle at a time, and none that was due meanwhile.

APScheduler keeps the time, and one thread does all work; `crontab` finds the moments of wall clocks.
"""

import concurrent.futures
import contextlib
import datetime
import logging
import threading
import zoneinfo
from collections.abc import Callable

from apscheduler.events import EVENT_JOB_MAX_INSTANCES
from apscheduler.executors.pool import BasePoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.interval import IntervalTrigger

from rightsizer.cli.crontab import Crontab
from rightsizer.kube.lease import Lease


class MissedTicks:
    """The last tick that came while another replica held the Lease.

    `jitter_s` is how much later a tick may come than that of another replica.
    """

    def __init__(self, lease: Lease, monotonic: Callable[[], float], jitter_s: float) -> None:
        self._lease = lease
        self._monotonic = monotonic
        self._jitter_s = jitter_s
        self._missed: float | None = None

    def tick(self) -> bool:
        """Whether this replica is the leader at this tick; if not, the tick is missed for now."""
        is_leader = self._lease.is_held
        self._missed = None if is_leader else self._monotonic()
        return is_leader

    @property
    def is_due(self) -> bool:
        """Whether this replica leads now, and no replica completed a cycle since the missed tick."""
        missed = self._missed
        return (
            missed is not None and self._lease.is_held and self._lease.cycle_seen_at < missed - self._jitter_s
        )

    def take(self) -> bool:
        """Whether the missed cycle is due; afterwards it is not."""
        is_due = self.is_due
        if self._lease.is_held:
            self._missed = None
        return is_due


_A_MOMENT = datetime.timedelta(microseconds=1)


def trigger_of(
    schedule: Crontab | datetime.timedelta, zone: datetime.tzinfo, *, jitter: datetime.timedelta | None
) -> BaseTrigger:
    """The trigger of a schedule, by wall clocks of a zone or at intervals, delayed at random by up to `jitter`."""
    jitter_s = jitter.total_seconds() if jitter else None
    if isinstance(schedule, datetime.timedelta):
        return IntervalTrigger(seconds=schedule.total_seconds(), timezone=datetime.UTC, jitter=jitter_s)
    return _WallClock(schedule, zone, jitter_s)


def longest_wait(
    schedule: Crontab | datetime.timedelta, *, jitter: datetime.timedelta | None
) -> datetime.timedelta:
    """The longest time from one moment of a schedule to the next, without daylight-saving changes."""
    gap = schedule.longest_gap() if isinstance(schedule, Crontab) else schedule
    return gap + (jitter or datetime.timedelta())


class _WallClock(BaseTrigger):  # type: ignore[misc]
    """At each matching moment of wall clocks, or later; never earlier, since the same moment would come twice."""

    def __init__(self, crontab: Crontab, zone: datetime.tzinfo, jitter_s: float | None) -> None:
        self._crontab = crontab
        self._zone = zone
        self._jitter_s = jitter_s

    def get_next_fire_time(
        self, previous_fire_time: datetime.datetime | None, now: datetime.datetime
    ) -> datetime.datetime | None:
        """The first after the previous one, or from now on."""
        # In UTC: of wall clocks Python takes the second of two equal hours for the first, once something is added.
        after = previous_fire_time.astimezone(datetime.UTC) + _A_MOMENT if previous_fire_time else now
        found = self._crontab.next_from(after.astimezone(datetime.UTC), self._zone)
        delayed: datetime.datetime | None = self._apply_jitter(found, self._jitter_s, now)
        return delayed


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


class _Threads(BasePoolExecutor):  # type: ignore[misc]
    """Runs work in the threads of a pool that somebody else ends."""

    def __init__(self, pool: concurrent.futures.Executor) -> None:
        super().__init__(pool)


Soon = Callable[[Callable[[], None], float], None]
"""Runs something once, after a number of seconds and whatever runs by then."""


def keep_running(
    work: Callable[[], None],
    trigger: BaseTrigger,
    *,
    until: Callable[[], None],
    begun: Callable[[Soon], None] = lambda _: None,
    skipped: Callable[[], None] = lambda: None,
) -> None:
    """Run `work`, which raises nothing, now and at each moment of a trigger, until `until` returns.

    `begun` receives a function that runs other work between those moments, in the same thread. Work in flight is
    completed first: a moment that comes before its end is skipped, and `skipped` is called.
    """
    logging.getLogger("apscheduler.scheduler").setLevel(logging.ERROR)  # it would warn of each skipped moment
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=1)
    scheduler = BackgroundScheduler(timezone=datetime.UTC, executors={"default": _Threads(pool)})
    ended = threading.Event()

    def begin(something: Callable[[], None]) -> None:
        if not ended.is_set():
            something()

    def submit(something: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended
            pool.submit(begin, something)

    def soon(something: Callable[[], None], after_s: float) -> None:
        # Not by the scheduler, whose clock may be set back.
        timer = threading.Timer(after_s, submit, (something,))
        timer.daemon = True
        timer.start()

    now = datetime.datetime.now(datetime.UTC)
    # Of the runs missed during a long one, only one runs, however late.
    scheduler.add_job(
        begin, trigger, (work,), coalesce=True, max_instances=1, misfire_grace_time=None, next_run_time=now
    )
    scheduler.add_listener(lambda _: skipped(), EVENT_JOB_MAX_INSTANCES)
    scheduler.start()
    begun(soon)
    try:
        until()
    finally:
        ended.set()
        # If the scheduler waited, it would hold the locks that work in flight needs to ask for more.
        scheduler.shutdown(wait=False)
        pool.shutdown(wait=True)
