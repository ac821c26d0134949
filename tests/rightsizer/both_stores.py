"""Stores of series: those of this machine, with their defaults, and two that are written alike, to be compared."""

import functools
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Mapping

import pytest

from simulator.prometheus import Prometheus
from simulator.series_store import Series, SeriesStore
from simulator.victoria_metrics import PROGRAM, VictoriaMetrics

CURRENT = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "gpu-rightsizer/stores"
"""Where scripts/install-stores puts later versions than the distribution's."""

Start = Callable[[pathlib.Path], SeriesStore]
"""Makes a store in a folder."""

OTHERS: Mapping[str, tuple[str, Callable[..., SeriesStore]]] = {
    "victoria-metrics": (PROGRAM, VictoriaMetrics),
    "current-prometheus": (str(CURRENT / "prometheus"), Prometheus),
    "current-victoria-metrics": (str(CURRENT / PROGRAM), VictoriaMetrics),
}
"""The program of each store that is compared with the distribution's Prometheus, and how it is started."""


def _parameter(name: str) -> object:
    program, start = OTHERS[name]
    reason = f"no {program}; scripts/install-tools --optional and scripts/install-stores install it"
    marks = pytest.mark.skipif(shutil.which(program) is None, reason=reason)
    return pytest.param(functools.partial(start, binary=program), id=name, marks=marks)


EACH_OTHER = pytest.mark.parametrize("start", tuple(map(_parameter, OTHERS)))
"""Runs a test with each of them that is installed, by its `start`."""


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
