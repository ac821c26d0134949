"""Leader election by a Lease of coordination.k8s.io in the state namespace: one instance writes at a time.

Each write checks a monotonic clock, because the wall clock may jump and the process may have been suspended. Another
holder's Lease has expired when this process saw no renewal for the Lease's duration.
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
from rightsizer.kube.object_names import shell_command

log = logging.getLogger(__name__)

LEASE_NAME = "gpu-rightsizer"
LEASE_DURATION_S = 15
"""Time for which nobody else may take the Lease; this and the next two are client-go's defaults."""
RENEW_DEADLINE_S = 10.0
"""Time without a renewal after which the Lease counts as lost, well before anybody else may take it."""
RETRY_PERIOD_S = 2.0
_MARGIN_S = 0.1
_MAX_DURATION_S = 60
"""Limits the duration in another holder's Lease, which could otherwise lock everybody out for good."""
LAST_CYCLE_ANNOTATION = PREFIX + "last-cycle"
"""Annotation of the Lease that identifies the holder's last successful cycle; only a change of it matters."""


class _LeaseSpec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None
    acquire_time: str | None = None
    lease_transitions: int | None = None


class _LeaseObject(msgspec.Struct):
    metadata: ObjectMeta
    spec: _LeaseSpec = msgspec.field(default_factory=_LeaseSpec)


class Lease:
    """The Lease, as one process sees it.

    Args:
        cluster: A separate connection, so that no slow request delays a renewal.
        namespace: The state namespace.
        identity: Unique name of this process.
        monotonic: Seconds of a clock that never goes back.
        clock: The current time, for the timestamps in the Lease.

    Attributes:
        renewed_at: When this process last saw the other holder acquire or renew it; monotonic seconds.
        cycle_seen_at: When it last saw that another holder completed a cycle; monotonic seconds, -inf if never.
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
        self._last_renewal: object = None
        self.renewed_at = 0.0
        self._duration_s = LEASE_DURATION_S
        self._last_cycle: str | None = None
        self.cycle_seen_at = float("-inf")
        self._cycles = 0
        self.holder = ""

    @property
    def is_held(self) -> bool:
        """Whether this process holds it now."""
        return self._monotonic() < self._held_until

    @property
    def expires_in_s(self) -> float:
        """Seconds until the other holder's Lease expires without a renewal."""
        return max(self.renewed_at + self._duration_s - self._monotonic(), 0.0)

    def record_cycle(self) -> None:
        """Tell waiting processes, with the next renewal, that a cycle completed."""
        self._cycles += 1
        self._last_cycle = f"{self._identity} {self._cycles}"

    def require_held(self) -> None:
        """Check before each write that this process holds the Lease.

        Raises:
            LeaseLost: It does not.
        """
        if not self.is_held:
            by = f"; {self.holder} holds it" if self.holder not in {"", self._identity} else ""
            raise LeaseLost(f"this instance does not hold the Lease {LEASE_NAME}{by}")

    def try_acquire(self) -> bool:
        """Acquire or renew it if possible; returns whether this process holds it afterwards.

        Raises:
            ClusterError: A request failed.
        """
        began = self._monotonic()
        found = self._cluster.find(f"{self._collection}/{LEASE_NAME}", _LeaseObject)
        self.holder = (found.spec.holder_identity or "") if found else ""
        self._note_cycle(found, began)
        if (
            self.holder not in {"", self._identity}
            and found is not None
            and not self._has_expired(found, began)
        ):
            return False
        try:
            self._write(found)
        except RequestRefused as refused:
            if refused.code != http.HTTPStatus.CONFLICT:
                raise
            return False  # another process was faster
        self.holder = self._identity
        self._held_until = began + RENEW_DEADLINE_S
        return True

    def release(self) -> None:
        """Release it, so that the next holder need not wait for it to expire.

        Raises:
            ClusterError: A request failed.
        """
        if not self.is_held:
            return
        self._held_until = float("-inf")
        found = self._cluster.get(f"{self._collection}/{LEASE_NAME}", _LeaseObject)
        if found.spec.holder_identity == self._identity:
            spec = {**msgspec.to_builtins(found.spec), "holderIdentity": "", "leaseDurationSeconds": 1}
            self._cluster.replace(f"{self._collection}/{LEASE_NAME}", self._object(found.metadata, spec))

    def refusal_message(self, refused: RequestRefused) -> str:
        """The error for a refused request, with the remedy."""
        if refused.code == http.HTTPStatus.NOT_FOUND:
            remedy = "create it with: " + shell_command("kubectl", "create", "namespace", self._namespace)
        else:
            remedy = "gpu-rightsizer doctor --roles prints the permissions that apply needs"
        return (
            f'--state-namespace "{self._namespace}": cannot access the Lease {LEASE_NAME}, which allows one writer at '
            f"a time: {refused.detail}; {remedy}"
        )

    def _note_cycle(self, found: _LeaseObject | None, now: float) -> None:
        """Note a completed cycle of another holder; the time of one from before the first look is unknown."""
        last = (found.metadata.annotations or {}).get(LAST_CYCLE_ANNOTATION, "") if found else ""
        if last.startswith(f"{self._identity} ") or self.holder == self._identity:
            return
        if last and self._last_cycle is not None and last != self._last_cycle:
            self.cycle_seen_at = now
        if last or self._last_cycle is None:
            self._last_cycle = last

    def _has_expired(self, found: _LeaseObject, now: float) -> bool:
        mark = (found.spec.holder_identity, found.spec.renew_time, found.metadata.resource_version)
        if self._last_renewal != mark:
            self._last_renewal, self.renewed_at = mark, now
        self._duration_s = min(found.spec.lease_duration_seconds or LEASE_DURATION_S, _MAX_DURATION_S)
        return now - self.renewed_at > self._duration_s

    def _write(self, found: _LeaseObject | None) -> None:
        stamp = self._clock().astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_ours = found is not None and found.spec.holder_identity == self._identity
        before = (found.spec.lease_transitions or 0) if found else 0
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": LEASE_DURATION_S,
            "acquireTime": found.spec.acquire_time if found and is_ours else stamp,
            "renewTime": stamp,
            "leaseTransitions": before if is_ours or found is None else before + 1,
        }
        if found is None:
            self._cluster.create(self._collection, self._object(ObjectMeta(name=LEASE_NAME), spec))
        else:
            self._cluster.replace(f"{self._collection}/{LEASE_NAME}", self._object(found.metadata, spec))

    def _object(self, metadata: ObjectMeta, spec: dict[str, Any]) -> dict[str, Any]:
        of_object: dict[str, Any] = {"name": LEASE_NAME}
        if self._last_cycle:
            of_object["annotations"] = {LAST_CYCLE_ANNOTATION: self._last_cycle}
        if metadata.resource_version:
            of_object["resourceVersion"] = metadata.resource_version
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": of_object, "spec": spec}


class LeaderElector:
    """While entered, a thread acquires and renews the Lease; leaving releases it.

    Args:
        lease: The Lease.
        is_optional: Whether to continue without the Lease until it can be acquired. Otherwise entering watches the
            holder, and takes over if the Lease expires.
        report: Receives messages about waiting for another holder.
        sleep: Waits for a number of seconds.
        on_held: Called in the thread after each round that left the Lease with this process.

    Raises:
        ConfigurationError: On entering: another instance is active, or a request was refused.
        ClusterUnreachable: On entering: the API server does not respond.
    """

    def __init__(
        self,
        lease: Lease,
        *,
        is_optional: bool,
        report: Callable[[str], None] = log.warning,
        sleep: Callable[[float], None] = time.sleep,
        on_held: Callable[[], None] = lambda: None,
    ) -> None:
        self._lease = lease
        self._on_held = on_held
        self._is_optional = is_optional
        self._report = report
        self._sleep = sleep
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> Self:
        """Try to acquire the Lease, and start the thread."""
        try:
            if not self._lease.try_acquire() and not self._is_optional:
                self._wait_for_expiry()
        except RequestRefused as refused:
            raise ConfigurationError(self._lease.refusal_message(refused)) from refused
        self._thread.start()
        return self

    def _wait_for_expiry(self) -> None:
        """Wait until the Lease expires: a killed holder does not renew it.

        Raises:
            ConfigurationError: The holder renewed it, or another process acquired it.
        """
        renewed_at, holder = self._lease.renewed_at, self._lease.holder
        self._report(
            f"{holder} holds the Lease {LEASE_NAME}; waiting up to {self._lease.expires_in_s:.0f} s for it to expire"
        )
        while not self._lease.try_acquire():
            if self._lease.renewed_at != renewed_at:
                raise ConfigurationError(
                    f"{self._lease.holder} is active and holds the Lease {LEASE_NAME}; only one instance may write: "
                    "try again when it has finished"
                )
            self._sleep(min(self._lease.expires_in_s + _MARGIN_S, RETRY_PERIOD_S))
        self._report(f"{holder} did not renew the Lease {LEASE_NAME}; this instance holds it now")

    def __exit__(self, *exception: object) -> None:
        """End the thread, then release the Lease."""
        self._end.set()
        self._thread.join()
        try:
            self._lease.release()
        except ClusterError as error:
            log.warning("could not release the Lease, which expires by itself: %s", error)

    def _renew(self) -> None:
        was_held = self._lease.is_held
        while not self._end.wait(RETRY_PERIOD_S):
            try:
                self._lease.try_acquire()
            except ClusterError as error:
                log.warning("could not renew the Lease: %s", error)
            is_held = self._lease.is_held
            if is_held != was_held:
                log.warning(
                    "the Lease is %s", "acquired" if is_held else f"lost; {self._lease.holder} holds it"
                )
            was_held = is_held
            if is_held:
                self._on_held()
