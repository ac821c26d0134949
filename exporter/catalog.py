"""All collectors and, through their rows, all metrics: derived from the files of `collectors`, never listed twice.

Must not know how anything is read or written.
"""

import dataclasses
import functools
import importlib
import pkgutil

import exporter.collectors
from exporter.collectors import Collector
from exporter.labels import DRIVER_VERSION, LabelRow
from exporter.model import Metric


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """What of all that there is shall be read.

    Attributes:
        collectors: With the rows that are wanted.
        labels: What stands in words on every series of a device.
    """

    collectors: tuple[Collector, ...]
    labels: tuple[LabelRow, ...] = (DRIVER_VERSION,)


@functools.cache
def collectors() -> dict[str, Collector]:
    """Every collector by its name, which is its file's, in alphabetical order."""
    package = exporter.collectors
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return {
        name: Collector(name, importlib.import_module(f"{package.__name__}.{name}").ROWS) for name in names
    }


def metrics() -> tuple[Metric, ...]:
    """Every metric of a device, in the order in which it is exposed."""
    return tuple(row.metric for collector in collectors().values() for row in collector.rows)
