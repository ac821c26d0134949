"""The time in a random cluster: the world's, and that of our own machine, which may be wrong."""

import datetime


class Clock:
    """The world's time, a machine's that may be wrong, and one that only goes on."""

    def __init__(self, now: datetime.datetime) -> None:
        self.now = now
        self.skew = datetime.timedelta()
        self.monotonic_s = 0.0

    def __call__(self) -> datetime.datetime:
        """What the API server and Prometheus show."""
        return self.now

    def machine(self) -> datetime.datetime:
        """What our own machine shows."""
        return self.now + self.skew

    def monotonic(self) -> float:
        """Seconds."""
        return self.monotonic_s

    def go(self, span: datetime.timedelta) -> None:
        """Let time pass."""
        self.now += span
        self.monotonic_s += span.total_seconds()
