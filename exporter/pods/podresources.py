"""The kubelet's PodResources API, asked once per sampling cycle, through restarts, silence and absence of the kubelet.

Must not know devices or what the answer is used for. A failure is an outcome here, never an exception.
"""

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path

from exporter.errors import PodResourcesError, StartError, UnimplementedError
from exporter.model import Allocation, Offer
from exporter.pods.grpc import Channel, ConnectionLostError
from exporter.pods.protobuf import allocations, offers

_LOG = logging.getLogger(__name__)
_LIST = "/v1.PodResourcesLister/List"
_ALLOCATABLE = "/v1.PodResourcesLister/GetAllocatableResources"
_DEADLINE_S = 2.0  # for both calls together: a kubelet that is well answers in milliseconds
_MAX_OFFERS_BACKOFF_S = 60.0  # what is offered hardly changes, and waiting for it delays what does
_MAX_BACKOFF_S = 5.0  # below the usual interval: a restarted kubelet is found in the next cycle

_Identity = tuple[int, int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What is known after a cycle.

    Attributes:
        up: The kubelet answered; None where there has never been one, which is a node without Kubernetes.
        allocations: Who holds what; the last cycle's once after a failure, then nothing.
        offers: What pods can be given, taken or not; None where the kubelet does not say.
    """

    up: bool | None
    allocations: tuple[Allocation, ...] = ()
    offers: tuple[Offer, ...] | None = None


class Kubelet:
    """The kubelet of this node."""

    def __init__(self, path: Path, *, required: bool, clock: Callable[[], float]) -> None:
        """Look whether there is one.

        Args:
            path: Its socket.
            required: Whether the operator named the socket: then its directory must be there. The socket itself goes
                and comes with the kubelet.
            clock: Monotonic, in seconds.

        Raises:
            StartError: It is required, and nothing is mounted where it should be.
        """
        self._path = path
        self._clock = clock
        self._seen = path.exists()
        self._channel: Channel | None = None
        self._connected_to: _Identity | None = None
        self._refused_by: _Identity | None = None
        self._last = Answer(up=None)
        self._offers_nothing: _Identity | None = None
        self._offers_failed_in_a_row = 0
        self._offers_retry_at = 0.0
        self._failed_in_a_row = 0
        self._retry_at = 0.0
        self._said = False
        if required and not path.parent.is_dir():
            raise StartError(
                f"no kubelet socket at {path}: mount the directory {path.parent} of the host into the container, "
                "or correct --pod-resources-socket (an empty value switches pod labels off)"
            )

    def ask(self) -> Answer:
        """Who holds what now, as far as can be known within two seconds."""
        socket = self._socket_identity()
        self._seen = self._seen or socket is not None
        if not self._seen:
            if not self._said:
                _LOG.info(
                    "no kubelet socket at %s: exporting without pod labels until there is one", self._path
                )
            self._said = True
            return Answer(up=None)
        if socket is not None and socket == self._refused_by:
            return Answer(up=False)
        if self._clock() < self._retry_at:
            return self._kept()
        until = self._clock() + _DEADLINE_S
        try:
            listed = allocations(self._list(socket))
        except UnimplementedError as error:
            self._refused_by = socket
            return self._failed(error, "pod labels are off until the kubelet is replaced")
        except PodResourcesError as error:
            return self._failed(error, "trying again; GPU series go on, soon without pod labels")
        if self._failed_in_a_row:
            _LOG.info("the kubelet answers again at %s", self._path)
        self._failed_in_a_row = 0
        self._last = Answer(up=True, allocations=listed, offers=self._offers(socket, until))
        return self._last

    def close(self) -> None:
        """End the connection, if there is one."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _socket_identity(self) -> _Identity | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        # a file system may give the new socket the number of the old one at once; its time differs
        return status.st_dev, status.st_ino, status.st_ctime_ns

    def _list(self, socket: _Identity | None) -> bytes:
        """One List call, over the standing connection unless the socket was replaced or that connection broke."""
        if self._channel is not None and socket == self._connected_to:
            try:
                return self._channel.call(_LIST, timeout_s=_DEADLINE_S)
            except ConnectionLostError:
                _LOG.debug("the kubelet closed the connection: making another")
        self.close()
        self._channel = Channel(str(self._path), clock=self._clock, timeout_s=_DEADLINE_S)
        self._connected_to = socket
        return self._channel.call(_LIST, timeout_s=_DEADLINE_S)

    def _offers(self, socket: _Identity | None, until: float) -> tuple[Offer, ...] | None:
        """What can be given to pods. A failure costs only this, and is no failure of the kubelet."""
        now = self._clock()
        has_none = socket is not None and socket == self._offers_nothing
        if self._channel is None or has_none or now < self._offers_retry_at or now >= until:
            return None
        try:
            found = offers(self._channel.call(_ALLOCATABLE, timeout_s=until - now))
        except PodResourcesError as error:
            if isinstance(error, UnimplementedError):
                self._offers_nothing = socket
            else:
                self.close()  # what is still under way would go on taking the connection's window
            self._offers_failed(error)
            return None
        self._offers_failed_in_a_row = 0
        return found

    def _offers_failed(self, error: PodResourcesError) -> None:
        if not self._offers_failed_in_a_row:
            _LOG.warning(
                "asking the kubelet for its devices: %s; gpu_allocated knows only those that are held", error
            )
        self._offers_retry_at = self._clock() + min(_MAX_OFFERS_BACKOFF_S, 2**self._offers_failed_in_a_row)
        self._offers_failed_in_a_row = min(self._offers_failed_in_a_row + 1, 8)

    def _failed(self, error: PodResourcesError, consequence: str) -> Answer:
        self.close()
        if not self._failed_in_a_row:
            _LOG.warning("asking the kubelet at %s for its pods: %s; %s", self._path, error, consequence)
        backoff_s = min(_MAX_BACKOFF_S, 0.25 * 2 ** min(self._failed_in_a_row, 8))
        self._retry_at = self._clock() + backoff_s
        return self._kept()

    def _kept(self) -> Answer:
        """The last answer in the first cycle that got none: a kubelet that restarts is back in the next one."""
        self._failed_in_a_row += 1
        return dataclasses.replace(self._last, up=False) if self._failed_in_a_row == 1 else Answer(up=False)
