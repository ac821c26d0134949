"""Polls the kubelet's PodResources API once per cycle, and survives its restart, silence and absence.

Must not know devices. A failure is a result here, never an exception.
"""

import dataclasses
import logging
import os
from collections.abc import Callable, Collection
from pathlib import Path

from exporter.errors import IncompleteAnswerError, PodResourcesError, StartError, UnimplementedError
from exporter.model import Allocation, Offer
from exporter.pods.grpc import Channel, ConnectionLostError
from exporter.pods.protobuf import allocations, listed_pods, offers

_LOG = logging.getLogger(__name__)
_LIST = "/v1.PodResourcesLister/List"
_ALLOCATABLE = "/v1.PodResourcesLister/GetAllocatableResources"
_DEADLINE_S = 2.0  # for both calls together: a healthy kubelet answers in milliseconds
_MAX_OFFERS_BACKOFF_S = 60.0  # allocatable devices hardly change, and the call delays the rest
_MAX_BACKOFF_S = 5.0  # below the default interval: the next cycle finds a restarted kubelet
_OFFERS_INTERVALS = (
    0.9  # usage may be polled each second, and allocatable devices are only published in cycles
)
_KEEP_INTERVALS = 1.5  # an answer is kept for one cycle that fails

_Identity = tuple[int, int, int]
Pod = tuple[str, str]
"""Namespace and name."""


@dataclasses.dataclass(frozen=True, slots=True)
class ExpectedPods:
    """The pods by which an answer is recognized as complete.

    A kubelet that has just started lists no pod for some seconds, and only static ones until the API server answers.
    """

    own: Pod | tuple[()] = ()  # the exporter's pod; empty if it is unknown or static
    in_cluster: bool = False  # the exporter runs in a pod
    # the node's pods that are not static, by another source; empty if it knows none
    known: Callable[[], Collection[Pod]] = tuple

    def missing_reason(self, listed: Collection[Pod]) -> str:
        """Why pods are missing among the listed ones; empty if none is known to be."""
        if self.own:
            return "" if self.own in listed else f"the exporter's own pod {'/'.join(self.own)} is not listed"
        known = self.known()
        if known:
            return "" if any(pod in listed for pod in known) else "none but static pods are listed"
        return "no pod is listed" if self.in_cluster and not listed else ""


_ANY_PODS = ExpectedPods()


@dataclasses.dataclass(frozen=True, slots=True)
class KubeletAnswer:
    """The kubelet's answer in one cycle."""

    up: bool | None  # the kubelet answered; None if there has never been one, as on a node without Kubernetes
    # allocated devices. For a while after a failure the last answer, then empty.
    allocations: tuple[Allocation, ...] = ()
    offers: tuple[Offer, ...] | None = None  # allocatable devices; None if the kubelet does not list them


class Kubelet:
    """The kubelet of this node."""

    def __init__(
        self,
        path: Path,
        *,
        required: bool,
        clock: Callable[[], float],
        interval_s: float = 10.0,
        deadline_s: float = _DEADLINE_S,
        expected: ExpectedPods = _ANY_PODS,
    ) -> None:
        """Check whether its socket exists.

        `required`: the user set the path: then its directory must exist. The socket comes and goes with the kubelet.
        `clock`: monotonic seconds. `interval_s`: time between two cycles. `deadline_s`: limit of a poll in seconds.
        `expected`: the pods of a complete answer. Raises StartError: it is required, and its directory is not mounted.
        """
        self._path = path
        self._clock = clock
        self._deadline_s = deadline_s
        self._keep_s = _KEEP_INTERVALS * interval_s
        self._offers_s = _OFFERS_INTERVALS * interval_s
        self._offers_due = 0.0
        self._expected = expected
        self._answered_at = clock()
        self._seen = os.path.lexists(path)
        self._channel: Channel | None = None
        self._connected_to: _Identity | None = None
        self._refused_by: _Identity | None = None
        self._last = KubeletAnswer(up=None)
        self._no_offers_from: _Identity | None = None
        self._offers_failed_in_a_row = 0
        self._offers_retry_at = 0.0
        self._failed_in_a_row = 0
        self._failure: type[PodResourcesError] | None = None
        self._retry_at = 0.0
        self._logged = False
        if required and not self._is_denied() and not path.parent.is_dir():
            raise StartError(
                f"no kubelet socket at {path}: mount the directory {path.parent} of the host into the container, "
                "or correct --pod-resources-socket (an empty value turns pod labels off)"
            )

    def poll(self) -> KubeletAnswer:
        """The current allocations, within the deadline."""
        socket = self._socket_identity()
        self._seen = self._seen or socket is not None or self._is_denied()
        if not self._seen:
            if not self._logged:
                _LOG.info(
                    "no kubelet socket at %s: exporting without pod labels until it appears", self._path
                )
            self._logged = True
            return KubeletAnswer(up=None)
        if socket is not None and socket == self._refused_by:
            return KubeletAnswer(up=False)
        if self._clock() < self._retry_at:
            return self._last_answer()
        until = self._clock() + self._deadline_s
        try:
            response = self._list(socket)
            self._require_complete(listed_pods(response))
            # a device on several NUMA nodes is repeated for each
            listed = tuple(dict.fromkeys(allocations(response)))
        except PodResourcesError as error:
            if isinstance(error, UnimplementedError):
                self._refused_by = socket
            return self._failed(error)
        if self._failed_in_a_row:
            _LOG.info("the kubelet answers again at %s", self._path)
        self._failure = None
        self._failed_in_a_row, self._answered_at = 0, self._clock()
        self._last = KubeletAnswer(up=True, allocations=listed, offers=self._offers(socket, until))
        return self._last

    def close(self) -> None:
        """End the connection, if there is one."""
        self._offers_due = 0.0
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _require_complete(self, listed: Collection[Pod]) -> None:
        reason = self._expected.missing_reason(listed)
        if reason:
            raise IncompleteAnswerError(f"{reason}: it has just started, or does not reach the API server")

    def _is_denied(self) -> bool:
        """Whether the socket's directory may not be entered: the kubelet makes it for root alone."""
        try:
            self._path.lstat()
        except OSError as error:
            return isinstance(error, PermissionError)
        return False

    def _socket_identity(self) -> _Identity | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        # the new socket may get the old one's inode at once; its time differs
        return status.st_dev, status.st_ino, status.st_ctime_ns

    def _list(self, socket: _Identity | None) -> bytes:
        """One List call, over the open connection unless that broke or the socket was replaced."""
        if self._channel is not None and socket == self._connected_to:
            try:
                return self._channel.call(_LIST, timeout_s=self._deadline_s)
            except ConnectionLostError:
                _LOG.debug("the kubelet closed the connection: reconnecting")
        self.close()
        self._channel = Channel(str(self._path), clock=self._clock, timeout_s=self._deadline_s)
        self._connected_to = socket
        return self._channel.call(_LIST, timeout_s=self._deadline_s)

    def _offers(self, socket: _Identity | None, until: float) -> tuple[Offer, ...] | None:
        """Allocatable devices. A failure costs only these and does not count as a failure of the kubelet."""
        now = self._clock()
        if now < self._offers_due:
            return self._last.offers
        has_none = socket is not None and socket == self._no_offers_from
        if self._channel is None or has_none or now < self._offers_retry_at or now >= until:
            return None
        try:
            found = dict.fromkeys(offers(self._channel.call(_ALLOCATABLE, timeout_s=until - now)))
        except PodResourcesError as error:
            if isinstance(error, UnimplementedError):
                self._no_offers_from = socket
            else:
                self.close()  # the rest of the answer would fill the connection's window
            self._offers_failed(error)
            return None
        self._offers_failed_in_a_row = 0
        self._offers_due = now + self._offers_s
        return tuple(found)

    def _offers_failed(self, error: PodResourcesError) -> None:
        if not self._offers_failed_in_a_row:
            _LOG.warning(
                "asking the kubelet for allocatable devices: %s; gpu_allocated shows only allocated ones",
                error,
            )
        self._offers_retry_at = self._clock() + min(_MAX_OFFERS_BACKOFF_S, 2**self._offers_failed_in_a_row)
        self._offers_failed_in_a_row = min(self._offers_failed_in_a_row + 1, 8)

    def _failed(self, error: PodResourcesError) -> KubeletAnswer:
        self.close()
        if self._failure is None or error.consequence != self._failure.consequence:
            _LOG.warning(
                "asking the kubelet at %s for its pods: %s; %s", self._path, error, error.consequence
            )
        backoff_s = min(_MAX_BACKOFF_S, 0.25 * 2 ** min(self._failed_in_a_row, 8))
        self._retry_at = self._clock() + backoff_s
        self._failed_in_a_row += 1
        self._failure = type(error)
        return self._last_answer()

    def _last_answer(self) -> KubeletAnswer:
        """The last answer while a restarting kubelet may still be back in the next cycle.

        The pods go on while the kubelet answers without them, however long: until it reaches the API server again, none
        gets another's device.
        """
        is_starting = self._failure is IncompleteAnswerError
        is_recent = self._clock() - self._answered_at <= self._keep_s
        return (
            dataclasses.replace(self._last, up=False) if is_starting or is_recent else KubeletAnswer(up=False)
        )
