"""The figures of the last backtest in a ConfigMap of the state namespace, from which `run` serves them as metrics."""

import datetime
import math
from typing import Annotated

import msgspec

from rightsizer.kube.cluster import Cluster
from rightsizer.kube.configmaps import ConfigMap
from rightsizer.text import decoded, require_ours

NAME = "gpu-rightsizer-backtest"
"""The ConfigMap."""
_KEY = "backtest.json"
_LONGEST = 64 << 10
_MOST = 100
"""Policies in one backtest: each is a time series of `run`."""

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
_Amount = Annotated[float, msgspec.Meta(ge=0)]


class PolicyFigures(msgspec.Struct, frozen=True, rename="camel"):
    """GPU-hours and money that a policy would have saved, and its stops.

    Attributes:
        name: Of its file.
        freed_gpu_hours: GPU-hours that would have been free.
        saved: Their price, less restarts; None if no price is known.
        stops, returned: Stops, and those whose workload would have worked again.
    """

    name: _Name
    freed_gpu_hours: _Amount
    saved: float | None
    stops: _Amount
    returned: _Amount


class LastBacktest(msgspec.Struct, frozen=True, rename="camel"):
    """The last backtest.

    Attributes:
        at: When it ended.
        replayed_hours: Length of the history that it replayed, without the part that only teaches.
    """

    at: datetime.datetime
    replayed_hours: Annotated[float, msgspec.Meta(gt=0)]
    policies: Annotated[tuple[PolicyFigures, ...], msgspec.Meta(max_length=_MOST)]


def parse(text: str) -> LastBacktest:
    """The figures, as they were written.

    Raises:
        ValueError: They are invalid; the message says why.
    """
    found = decoded(text, LastBacktest, longest=_LONGEST)
    require_ours(found.at)
    numbers = [found.replayed_hours]
    for policy in found.policies:
        numbers += [policy.freed_gpu_hours, policy.saved or 0.0, policy.stops, policy.returned]
    if not all(map(math.isfinite, numbers)):
        message = "cannot be read: a number is not finite"
        raise ValueError(message)
    return found


class LastBacktestStore:
    """The ConfigMap."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._map = ConfigMap(cluster, namespace, NAME, "the figures of the last backtest")
        self.place = self._map.place

    def read(self) -> LastBacktest | None:
        """The figures; None before the first backtest.

        Raises:
            ClusterError: They could not be read.
            ValueError: They are invalid.
        """
        text = self._map.read().get(_KEY)
        return parse(text) if text else None

    def write(self, last: LastBacktest) -> None:
        """Replace the figures.

        Raises:
            ConfigurationError: Writing is forbidden, or the namespace does not exist.
            ClusterError: A request failed.
        """
        text = msgspec.json.encode(last).decode()
        self._map.change(lambda _: {_KEY: text})
