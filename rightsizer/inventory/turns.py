"""Turns and tries that namespaces share so that none can use them up. Pure."""

import collections
from collections.abc import Callable, Iterable
from typing import TypeVar

from rightsizer.inventory.device_allocation import MAX_TRIES

T = TypeVar("T")

TRIES_PER_NODE = 100
"""Maximum number of tries to find nodes and devices for one request, on average of all nodes."""

_NAMESPACE, _ALL = 4, 20
"""Times as many tries are for all requests of a namespace, and for those of all namespaces together."""

_LENGTH_PER_TRY = 500
"""Number of characters of selectors, tolerations and affinity that cost one more try on each node."""


def in_turn(
    items: Iterable[T], namespace: Callable[[T], str], cost: Callable[[T], int] = lambda _: 1
) -> list[T]:
    """The first item of each namespace, then the second of each, and so on.

    With costs, those come first with which their namespace has spent least, together with its items before them.
    """
    spent = collections.Counter[str]()
    turns: list[tuple[int, str, T]] = []
    for item in items:
        of = namespace(item)
        spent[of] += cost(item)
        turns.append((spent[of], of, item))
    return [item for *_, item in sorted(turns, key=lambda turn: turn[:2])]


class TryBudget:
    """Tries left for requests, with a limit for each, for each namespace and for all together."""

    def __init__(self, nodes: int) -> None:
        self._of_one = MAX_TRIES + TRIES_PER_NODE * nodes
        self._of_all = _ALL * self._of_one
        self._of = collections.defaultdict[str, int](lambda: _NAMESPACE * self._of_one)

    def left(self, namespace: str) -> int:
        """Tries for one request."""
        return min(self._of_one, self._of[namespace], self._of_all)

    def spend(self, namespace: str, tries: int) -> None:
        """Count tries."""
        self._of[namespace] -= tries
        self._of_all -= tries

    def who_asks(self, namespace: str) -> str:
        """Say whether all namespaces or this one asked for most of what can be tried."""
        is_of_all = self._of_all < min(self._of_one, self._of[namespace])
        return "all namespaces together ask" if is_of_all else "its namespace asks"


def comparison_cost(shape: str) -> int:
    """Tries that it costs to compare a request, in text, with a node."""
    return 1 + len(shape) // _LENGTH_PER_TRY
