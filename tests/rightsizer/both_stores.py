"""Two stores of series that are written alike, to be compared."""

from collections.abc import Iterable

from simulator.series_store import Series, SeriesStore


class BothStores(SeriesStore):
    """Writes to two stores, and answers as one of them.

    Attributes:
        answering: Which one; the first to begin with.
    """

    def __init__(self, first: SeriesStore, second: SeriesStore) -> None:
        self._first, self._second = first, second
        self.answering = first

    @property
    def url(self) -> str:
        """Where the answering one is."""
        return self.answering.url

    def write(self, series: Iterable[Series]) -> int:
        """Store them in both."""
        kept = list(series)
        self._second.write(kept)
        return self._first.write(kept)
