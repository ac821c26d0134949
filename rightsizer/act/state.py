"""Keeps what is no object's (breaker, pauses, accepted scope) in one ConfigMap of our own namespace.

Written only as it was read: a resourceVersion precondition stands in every patch, so two who write at the same time do
not lose each other's. What it means is `breaker`'s business.
"""

import contextlib
import datetime
import http
from collections.abc import Callable, Iterator, Mapping

import msgspec

from rightsizer.breaker import (
    NOTHING,
    Opening,
    State,
    against,
    counted,
    opened,
    parse_state,
    state_texts,
)
from rightsizer.errors import ClusterError, ConfigurationError, RequestRefused
from rightsizer.model import Decision, Outcome, Result, Trip, TripCause
from rightsizer.observe.cluster import Cluster
from rightsizer.policy.limits import Breaker

NAME = "gpu-rightsizer-state"
_ATTEMPTS = 5


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str


class _ConfigMap(msgspec.Struct):
    metadata: _Metadata
    data: dict[str, str] | None = None


class Store:
    """The ConfigMap.

    Args:
        cluster: Where.
        namespace: Our own.
    """

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._maps = f"/api/v1/namespaces/{namespace}/configmaps"
        self.place = f"ConfigMap {namespace}/{NAME}"

    def read(self) -> State:
        """What is kept; nothing where there is no ConfigMap.

        Raises:
            ClusterError: It could not be read.
        """
        return self._read()[0]

    def change(self, how: Callable[[State], State]) -> State:
        """Read, change and write; what it is by then. Nothing is written where nothing changes.

        Raises:
            ConfigurationError: It may not be written, or its namespace does not exist.
            ClusterError: It could not be read or written.
        """
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(_OvertakenError):
                return self._change(how)
        return self._change(how)

    def _change(self, how: Callable[[State], State]) -> State:
        before, version = self._read()
        after = how(before)
        if after != before:
            with self._refusals():
                self._write(state_texts(after), version)
        return after

    def _read(self) -> tuple[State, str]:
        try:
            found = self._cluster.get(f"{self._maps}/{NAME}", _ConfigMap)
        except RequestRefused as refused:
            if refused.code == http.HTTPStatus.NOT_FOUND:
                return NOTHING, ""
            raise
        return parse_state(found.data or {}), found.metadata.resource_version

    def _write(self, texts: Mapping[str, str | None], version: str) -> None:
        if version:
            body = {"metadata": {"resourceVersion": version}, "data": texts}
            self._cluster.patch(f"{self._maps}/{NAME}", body)
            return
        kept = {key: text for key, text in texts.items() if text is not None}
        self._cluster.create(
            self._maps, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": kept}
        )

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except RequestRefused as refused:
            match refused.code:
                case http.HTTPStatus.CONFLICT:
                    raise _OvertakenError(str(refused)) from refused
                case http.HTTPStatus.NOT_FOUND:
                    namespace = self._maps.split("/")[4]
                    raise ConfigurationError(
                        f"--state-namespace {namespace}: breaker, pauses and evicted pods' manifests are kept there, "
                        f"but: {refused.detail}; create it with: kubectl create namespace {namespace}"
                    ) from refused
                case http.HTTPStatus.FORBIDDEN:
                    raise ConfigurationError(
                        f"{self.place}: keeps breaker and pauses, but may not be written: {refused.detail}; "
                        "gpu-rightsizer doctor --roles prints what is needed"
                    ) from refused
                case _:
                    raise


class _OvertakenError(ClusterError):
    """Somebody else wrote it between our reading and writing."""


class Gate:
    """What stands between a run and each of its writes: asked right before, told right after.

    Args:
        store: Where breaker and pauses are kept; read anew each time, since a person may pause during a run.
        settings: The policy's.
        run: Whose.
        clock: The time now, aware.
    """

    def __init__(
        self, store: Store, settings: Breaker, run: str, clock: Callable[[], datetime.datetime]
    ) -> None:
        self._store = store
        self._settings = settings
        self._run = run
        self._clock = clock

    def against(self, decision: Decision) -> str:
        """Why it must not be carried out now; empty where it may be.

        Raises:
            ClusterError: It could not be read.
        """
        block = against(self._store.read(), decision.workload.ref.namespace, self._clock())
        return block.reason if block else ""

    def trip(self) -> str:
        """Why the breaker is open; empty where it is closed.

        Raises:
            ClusterError: It could not be read.
        """
        opening = self._store.read().latch.trip
        return opening.reason if opening else ""

    def note(self, outcome: Outcome) -> None:
        """Count an outcome, and open the breaker where it is one error too many or was out of policy.

        Raises:
            ClusterError: It could not be kept.
        """
        words = f"{outcome.action} of {outcome.ref}: {outcome.detail}"[:500]
        if outcome.is_out_of_policy:
            why = f"the API server refused a write as out of policy: {words}"
            self.open(Trip(TripCause.OUT_OF_POLICY, why))
        else:
            self._count(outcome.result, words)

    def count_error(self, words: str) -> None:
        """Count what went wrong in another way.

        Raises:
            ClusterError: It could not be kept.
        """
        self._count(Result.UNKNOWN, words)

    def _count(self, result: Result, words: str) -> None:
        many = f"{self._settings.maxErrors} errors in a row, the last: {words}"
        opening = Opening(self._clock(), TripCause.ERRORS, many, self._run)

        def count(state: State) -> State:
            latch = counted(state.latch, result, self._settings, opening)
            return State(latch, state.pauses, state.scope)

        self._store.change(count)

    def open(self, trip: Trip) -> None:
        """Open the breaker.

        Raises:
            ClusterError: It could not be kept.
        """
        opening = Opening(self._clock(), trip.cause, trip.reason, self._run)
        self._store.change(lambda state: State(opened(state.latch, opening), state.pauses, state.scope))
