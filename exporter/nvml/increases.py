"""How fast counters grow: the reading of the cycle before, kept for the next one. Pure."""

from exporter.errors import ReadingError, Reason

_US_PER_S = 1_000_000


class Increases:
    """The last reading of every counter whose rate has been asked for."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}

    def rate(self, key: str, what: str, value: float, at_us: int) -> float:
        """The increase per second since the reading before.

        Args:
            key: Which counter of which device.
            what: What is being done, for messages.
            value: The counter now.
            at_us: When the driver read it, in microseconds.

        Raises:
            ReadingError: There is no reading before (PENDING), or the counter has been reset or has wrapped around.
        """
        before = self._last.get(key)
        if before is not None and before[1] == at_us:
            raise ReadingError(what, Reason.PENDING, "the driver has not read it anew")
        self._last[key] = (value, at_us)
        if before is None:
            raise ReadingError(what, Reason.PENDING, "rates come with the second reading")
        if value < before[0] or at_us < before[1]:
            raise ReadingError(what, Reason.UNAVAILABLE, "the counter has started anew")
        return (value - before[0]) * _US_PER_S / (at_us - before[1])

    def clear(self) -> None:
        """Forget all readings."""
        self._last.clear()
