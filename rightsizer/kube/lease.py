"""One writer at a time: a Lease of coordination.k8s.io in our own namespace, held by renewing it.

Whether it is held is asked of a monotonic clock before each write: the wall clock may jump, and the process may have
stood still. Another's Lease has run out when it was not renewed for its duration by our own clock.
https://kubernetes.io/docs/concepts/architecture/leases/
"""

import datetime
import http
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import msgspec

from rightsizer.config import PREFIX
from rightsizer.errors import ClusterError, ConfigurationError, LeaseLost, RequestRefused
from rightsizer.kube.api_objects import ObjectMeta
from rightsizer.kube.cluster import Cluster

log = logging.getLogger(__name__)

NAME = "gpu-rightsizer"
DURATION_S = 15
"""For so long nobody else takes it; client-go's defaults, also the next two."""
DEADLINE_S = 10.0
"""What was not renewed for so long counts as lost, well before anybody else can have it."""
RETRY_S = 2.0
_A_MOMENT_S = 0.1
_LONGEST_S = 60
"""No holder's word counts for longer: a Lease that says more would lock everybody out for good."""
RAN = PREFIX + "last-cycle"
"""On the Lease: which cycle of its holder's was the last good one. What it says means nothing; that it changes does."""


class _Spec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None
    acquire_time: str | None = None
    lease_transitions: int | None = None


class _Lease(msgspec.Struct):
    metadata: ObjectMeta
    spec: _Spec = msgspec.field(default_factory=_Spec)


class Lease:
    """A Lease, and whether it is ours.

    Args:
        cluster: A connection of its own, so that no slow request holds up a renewal.
        namespace: Ours.
        identity: Who we are; of no other process.
        monotonic: Seconds of a clock that never goes back.
        clock: The time now, aware, for people who read the object.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        identity: str,
        *,
        monotonic: Callable[[], float],
        clock: Callable[[], datetime.datetime],
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._identity = identity
        self._monotonic = monotonic
        self._clock = clock
        self._held_until = float("-inf")
        self._seen: tuple[object, float] = (None, 0.0)
        self._duration_s = DURATION_S
        self._ran: str | None = None
        self._ran_at = float("-inf")
        self._cycles = 0
        self.holder = ""

    @property
    def is_held(self) -> bool:
        """Whether it is ours now."""
        return self._monotonic() < self._held_until

    @property
    def since(self) -> float:
        """When another's was last seen to be taken or renewed, by our own monotonic clock."""
        return self._seen[1]

    @property
    def left_s(self) -> float:
        """So long it is another's yet, in seconds, unless it is renewed."""
        return max(self._seen[1] + self._duration_s - self._monotonic(), 0.0)

    @property
    def ran_at(self) -> float:
        """When another's cycle was last seen to have ended well, by our own monotonic clock; -inf where none was."""
        return self._ran_at

    def ran(self) -> None:
        """Let whoever waits for the Lease know that a cycle has ended well, from the next renewal on."""
        self._cycles += 1
        self._ran = f"{self._identity} {self._cycles}"

    def require(self) -> None:
        """Before each write.

        Raises:
            LeaseLost: It is not ours, or not any more.
        """
        if not self.is_held:
            by = f"; {self.holder} holds it" if self.holder not in {"", self._identity} else ""
            raise LeaseLost(f"the Lease {NAME} is not ours{by}")

    def attempt(self) -> bool:
        """Take or renew it, if it can be had; whether it is ours then.

        Raises:
            ClusterError: The API server refuses, or does not answer.
        """
        began = self._monotonic()
        try:
            found = self._cluster.get(f"{self._collection}/{NAME}", _Lease)
        except RequestRefused as refused:
            if refused.code != http.HTTPStatus.NOT_FOUND:
                raise
            found = None
        self.holder = (found.spec.holder_identity or "") if found else ""
        self._look_at_cycles(found, began)
        if (
            self.holder not in {"", self._identity}
            and found is not None
            and not self._has_run_out(found, began)
        ):
            return False
        try:
            self._write(found)
        except RequestRefused as refused:
            if refused.code != http.HTTPStatus.CONFLICT:
                raise
            return False  # another one was faster
        self.holder = self._identity
        self._held_until = began + DEADLINE_S
        return True

    def release(self) -> None:
        """Give it back, so that the next one need not wait.

        Raises:
            ClusterError: The API server refuses, or does not answer.
        """
        if not self.is_held:
            return
        self._held_until = float("-inf")
        found = self._cluster.get(f"{self._collection}/{NAME}", _Lease)
        if found.spec.holder_identity == self._identity:
            spec = {**msgspec.to_builtins(found.spec), "holderIdentity": "", "leaseDurationSeconds": 1}
            self._cluster.replace(f"{self._collection}/{NAME}", self._object(found.metadata, spec))

    def missing(self, refused: RequestRefused) -> str:
        """What to do where it is refused."""
        if refused.code == http.HTTPStatus.NOT_FOUND:
            way = f"create it with: kubectl create namespace {self._namespace}"
        else:
            way = "gpu-rightsizer doctor --roles prints what apply needs"
        return (
            f"--state-namespace {self._namespace}: the Lease {NAME}, under which one at a time writes, is kept there, "
            f"but: {refused.detail}; {way}"
        )

    def _look_at_cycles(self, found: _Lease | None, now: float) -> None:
        """Note that another's cycle has ended; of one that ended before we came nobody knows when."""
        said = (found.metadata.annotations or {}).get(RAN, "") if found else ""
        if said.startswith(f"{self._identity} ") or self.holder == self._identity:
            return
        if said and self._ran is not None and said != self._ran:
            self._ran_at = now
        if said or self._ran is None:
            self._ran = said

    def _has_run_out(self, found: _Lease, now: float) -> bool:
        mark = (found.spec.holder_identity, found.spec.renew_time, found.metadata.resource_version)
        if self._seen[0] != mark:
            self._seen = (mark, now)
        self._duration_s = min(found.spec.lease_duration_seconds or DURATION_S, _LONGEST_S)
        return now - self._seen[1] > self._duration_s

    def _write(self, found: _Lease | None) -> None:
        stamp = self._clock().astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_ours = found is not None and found.spec.holder_identity == self._identity
        before = (found.spec.lease_transitions or 0) if found else 0
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION_S,
            "acquireTime": found.spec.acquire_time if found and is_ours else stamp,
            "renewTime": stamp,
            "leaseTransitions": before if is_ours or found is None else before + 1,
        }
        if found is None:
            self._cluster.create(self._collection, self._object(ObjectMeta(name=NAME), spec))
        else:
            self._cluster.replace(f"{self._collection}/{NAME}", self._object(found.metadata, spec))

    def _object(self, metadata: ObjectMeta, spec: dict[str, Any]) -> dict[str, Any]:
        of_object: dict[str, Any] = {"name": NAME}
        if self._ran:
            of_object["annotations"] = {RAN: self._ran}
        if metadata.resource_version:
            of_object["resourceVersion"] = metadata.resource_version
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": of_object, "spec": spec}


class Keeper:
    """While entered, a thread that takes the Lease and renews it; it is released at the end.

    Args:
        lease: What is kept.
        is_patient: Whether to go on without it until it can be had; otherwise its holder is watched, and it is taken
            over unless that one renews it.
        tell: Is told for whom is waited.
        sleep: Waits so many seconds.
        held: Called, in that thread, each time it was found to be ours.

    Raises:
        ConfigurationError: Upon entering: another one is at work, or it is refused.
        ClusterUnreachable: Upon entering: nobody answers.
    """

    def __init__(
        self,
        lease: Lease,
        *,
        is_patient: bool,
        tell: Callable[[str], None] = log.warning,
        sleep: Callable[[float], None] = time.sleep,
        held: Callable[[], None] = lambda: None,
    ) -> None:
        self._lease = lease
        self._held = held
        self._is_patient = is_patient
        self._tell = tell
        self._sleep = sleep
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def __enter__(self) -> Self:
        """Ask for it, and begin to keep it."""
        try:
            is_ours = self._lease.attempt()
            if not is_ours and not self._is_patient:
                self._outlast()
        except RequestRefused as refused:
            raise ConfigurationError(self._lease.missing(refused)) from refused
        self._thread.start()
        return self

    def _outlast(self) -> None:
        """Watch whoever holds it: one that was killed does not renew it.

        Raises:
            ConfigurationError: It is renewed, or somebody else was faster.
        """
        since, holder = self._lease.since, self._lease.holder
        self._tell(
            f"{holder} holds the Lease {NAME}; waiting up to {self._lease.left_s:.0f} s to see whether it is at work"
        )
        while not self._lease.attempt():
            if self._lease.since != since:
                raise ConfigurationError(
                    f"{self._lease.holder} is at work (Lease {NAME}); two at once would fight: wait until it has ended"
                )
            self._sleep(min(self._lease.left_s + _A_MOMENT_S, RETRY_S))
        self._tell(f"{holder} did not renew the Lease {NAME}, and has ended: it is ours now")

    def __exit__(self, *exception: object) -> None:
        """End the thread, then give it back."""
        self._end.set()
        self._thread.join()
        try:
            self._lease.release()
        except ClusterError as error:
            log.warning("the Lease runs out by itself; it could not be released: %s", error)

    def _keep(self) -> None:
        was_held = self._lease.is_held
        while not self._end.wait(RETRY_S):
            try:
                self._lease.attempt()
            except ClusterError as error:
                log.warning("the Lease could not be renewed: %s", error)
            is_held = self._lease.is_held
            if is_held != was_held:
                log.warning(
                    "the Lease is %s", "ours" if is_held else f"not ours any more ({self._lease.holder})"
                )
            was_held = is_held
            if is_held:
                self._held()
