"""Keeps the breaker, pauses and accepted scope in one ConfigMap of gpu-rightsizer's namespace."""

import datetime
from collections.abc import Callable

from rightsizer.kube.cluster import Cluster
from rightsizer.kube.configmaps import Changes, ConfigMap, Texts
from rightsizer.model import Action, Blocker, BlockerCode, Outcome, Result
from rightsizer.planning.breaker import (
    NOTHING,
    BreakerTrip,
    State,
    counted,
    opened,
    parse_state,
    state_texts,
    stop_reason,
)
from rightsizer.policy.limits import Breaker

NAME = "gpu-rightsizer-state"


class ControlStateStore:
    """The ConfigMap."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._map = ConfigMap(cluster, namespace, NAME, "breaker and pauses")
        self.place = self._map.place

    def read(self) -> State:
        """The state; empty without a ConfigMap.

        Raises:
            ClusterError: It could not be read.
        """
        return parse_state(self._map.read())

    def change(self, how: Callable[[State], State]) -> State:
        """Read, change and write the state, and return it. Writes nothing if nothing changes.

        Raises:
            ConfigurationError: It must not be written, or its namespace does not exist.
            ClusterError: It could not be read or written.
        """
        after = NOTHING

        def texts(found: Texts) -> Changes:
            nonlocal after
            before = parse_state(found)
            after = how(before)
            return state_texts(after) if after != before else {}

        self._map.change(texts)
        return after


class ActionGate:
    """Checks the breaker and pauses before each write, and counts its outcome after it.

    The store is read each time, because a person may pause during a run.
    """

    def __init__(
        self, store: ControlStateStore, settings: Breaker, run: str, clock: Callable[[], datetime.datetime]
    ) -> None:
        self._store = store
        self._settings = settings
        self._run = run
        self._clock = clock

    def blocked_reason(self, namespace: str, action: Action | None = None) -> str:
        """Why nothing must be changed in a namespace now, or not by this action; empty if it may be.

        Raises:
            ClusterError: It could not be read.
        """
        block = stop_reason(self._store.read(), namespace, self._clock(), action)
        return block.message if block else ""

    def trip(self) -> str:
        """Why the breaker is open; empty if it is closed.

        Raises:
            ClusterError: It could not be read.
        """
        opening = self._store.read().latch.trip
        return opening.reason if opening else ""

    def note(self, outcome: Outcome) -> None:
        """Count an outcome; open the breaker if there are too many errors, or if it was out of policy.

        Raises:
            ClusterError: It could not be kept.
        """
        words = f"{outcome.action} of {outcome.ref}: {outcome.detail}"[:500]
        if outcome.is_out_of_policy:
            why = f"the API server refused a write as out of policy: {words}"
            self.open(Blocker(BlockerCode.REFUSED, why))
        else:
            self._count(outcome.result, words)

    def count_error(self, words: str) -> None:
        """Count an error without an outcome.

        Raises:
            ClusterError: It could not be kept.
        """
        self._count(Result.UNKNOWN, words)

    def _count(self, result: Result, words: str) -> None:
        words = f"{self._settings.maxErrors} errors in a row, the last: {words}"
        opening = BreakerTrip(self._clock(), BlockerCode.REFUSED, words, self._run)

        def count(state: State) -> State:
            latch = counted(state.latch, result, self._settings, opening)
            return State(latch, state.pauses, state.scope)

        self._store.change(count)

    def open(self, trip: Blocker) -> None:
        """Open the breaker.

        Raises:
            ClusterError: It could not be kept.
        """
        opening = BreakerTrip(self._clock(), trip.code, trip.message, self._run)
        self._store.change(lambda state: State(opened(state.latch, opening), state.pauses, state.scope))
