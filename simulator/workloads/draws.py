"""Random draws from published distributions: by median and spread, or by quantiles."""

import math
import random
from collections.abc import Mapping, Sequence

MINUTE_S = 60.0
HOUR_S = 3600.0
DAY_S = 86400.0


def seeded(*parts: object) -> random.Random:
    """A generator that depends on `parts` alone: the same in every process and every run."""
    return random.Random("/".join(map(str, parts)))


def lognormal(draw: random.Random, *, median: float, sigma: float) -> float:
    """A lognormal value by its median and the standard deviation of its logarithm."""
    return median * math.exp(sigma * draw.gauss(0.0, 1.0))


class Quantiles:
    """A distribution known by quantiles, value by probability; log-linear between them."""

    def __init__(self, known: Mapping[float, float], *, lowest: float, highest: float) -> None:
        points = [(0.0, lowest), *sorted(known.items()), (1.0, highest)]
        self._points: Sequence[tuple[float, float]] = [(p, math.log(value)) for p, value in points]

    def at(self, probability: float) -> float:
        """The value that `probability` of all draws stay below."""
        for (p0, low), (p1, high) in zip(self._points, self._points[1:], strict=False):
            if probability <= p1:
                return math.exp(low + (high - low) * (probability - p0) / (p1 - p0))
        raise ValueError(f"a probability lies between 0 and 1, not {probability}")

    def draw(self, draw: random.Random) -> float:
        """One value."""
        return self.at(draw.random())

    def mean(self, steps: int = 2000) -> float:
        """The mean value, by the midpoint rule over `steps` equal shares."""
        return sum(self.at((step + 0.5) / steps) for step in range(steps)) / steps
