"""A collection that is listed once and then watched, in a thread: lists are what an API server pays most for.

After an error the watch goes on from the last known resourceVersion; where that has expired, or the server is another
one, everything is listed again. https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

import contextlib
import dataclasses
import http
import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, Generic, Self, TypeVar

from rightsizer.errors import ClusterUnreachable, RequestRefused, RightsizerError
from rightsizer.kube.api_objects import ObjectMeta
from rightsizer.kube.cluster import Cluster

LENGTH_S = 120.0
"""Length of one watch; the next one has the present credentials."""
SILENT_S = 60.0
"""Time without a connection after which the kept objects may be out of date."""
BROKEN_S = 150.0
"""A watch that is open for longer without a line is broken: the server would have ended it."""
_PASSING = frozenset({429, 500, 502, 503})
"""HTTP statuses after which a watch goes on where it was; a 504 may mean a resourceVersion that is yet to come."""
SHORTEST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0

log = logging.getLogger(__name__)

T = TypeVar("T")
Connect = Callable[[], Cluster]


def uid_of(metadata: ObjectMeta) -> Hashable:
    """The usual key of an object."""
    return metadata.uid


@dataclasses.dataclass(frozen=True, slots=True)
class Collection(Generic[T]):
    """A collection to watch, and the functions that receive its objects.

    Attributes:
        path: Its path, or a function that finds it; empty while it is not served.
        kind: The type of its decoded objects.
        put: Called with each object that exists or has changed.
        drop: Called with the key of each deleted object.
        lost: Start of the warning about an error; each error is logged once.
        key_of: The key of an object.
        selector: A field selector.
    """

    path: str | Callable[[Cluster], str]
    kind: type[T]
    put: Callable[[T], None]
    drop: Callable[[Any], object]
    lost: str
    key_of: Callable[[ObjectMeta], Hashable] = uid_of
    selector: str = ""


class Watched(Generic[T]):
    """Passes on each object of a collection, and then each change. While entered, a thread runs.

    Args:
        of: The collection.
        connect: A connection of the thread's own, with the present credentials; may raise RightsizerError.
        lock: Held during `put` and `drop`.

    Attributes:
        of: The collection.
        host: Host of the server that it watches; empty before the first list.
        tried: Set after the first list, or the first error.
    """

    def __init__(self, of: Collection[T], connect: Connect, lock: "threading.Lock | None" = None) -> None:
        self.of = of
        self._kind: Any = of.kind
        self._connect = connect
        self._lock = lock or threading.Lock()
        self._known: set[Hashable] = set()
        self._since = ""
        self._is_open = False
        self._is_whole = False
        self._seen_at = 0.0
        self._end = threading.Event()
        self.host = ""
        self.tried = threading.Event()

    def __enter__(self) -> Self:
        """Start the thread."""
        threading.Thread(target=self._follow, name=f"watch-{self._kind.__name__}", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Let it end; a watch in progress ends with the process."""
        self._end.set()

    @property
    def is_current(self) -> bool:
        """Whether the known objects are those of the server, apart from the last moments."""
        allowed_s = BROKEN_S if self._is_open else SILENT_S
        return self._is_whole and time.monotonic() - self._seen_at < allowed_s

    def start_over(self) -> None:
        """List everything again at the next event or bookmark; until then it is not current."""
        self._is_whole = False

    def _follow(self) -> None:
        pause_s, told = SHORTEST_PAUSE_S, ""
        while not self._end.is_set():
            began = time.monotonic()
            try:
                with contextlib.closing(self._connect()) as cluster:
                    self._go_on(cluster)
                told = ""
            except RightsizerError as error:
                code = error.code if isinstance(error, RequestRefused) else None
                if not (code == http.HTTPStatus.GONE or self._end.is_set() or str(error) == told):
                    told = str(error)
                    log.warning("%s: %s", self.of.lost, error)
                if not (isinstance(error, ClusterUnreachable) or code in _PASSING):
                    self.start_over()
            except Exception:
                log.exception(
                    "watching %s failed: a bug in gpu-rightsizer; it begins again", self._kind.__name__
                )
                told = "a bug"
                self.start_over()  # what was not put is not known
            finally:
                self._is_open = False
                self.tried.set()
            has_lasted = time.monotonic() - began > LONGEST_PAUSE_S
            self._end.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if told and not has_lasted else SHORTEST_PAUSE_S

    def _go_on(self, cluster: Cluster) -> None:
        """List if necessary, then watch until the server ends the watch."""
        path = self.of.path if isinstance(self.of.path, str) else self.of.path(cluster)
        if not path:
            self._end.wait(LENGTH_S)  # its definition may be created later
            return
        if cluster.host != self.host:
            self.start_over()
            self.host = cluster.host
        since = self._since if self._is_whole else self._list(cluster, path)
        self._is_open = True
        for change, item, version in cluster.watch(
            path, self._kind, selector=self.of.selector, length_s=LENGTH_S, since=since
        ):
            if self._end.is_set() or not self._is_whole:
                return
            if item is not None:
                self._hear(change, item)
            self._since, self._seen_at = version, time.monotonic()
        self._seen_at = time.monotonic()

    def _hear(self, change: str, item: Any) -> None:  # noqa: ANN401 - of the kind
        key = self.of.key_of(item.metadata)
        with self._lock:
            if change == "DELETED":
                self._known.discard(key)
                self.of.drop(key)
            else:
                self._known.add(key)
                self.of.put(item)

    def _list(self, cluster: Cluster, path: str) -> str:
        """Read the whole collection and drop what no longer exists; returns the resourceVersion to watch from."""

        def add(found: set[Hashable], page: list[Any]) -> None:
            with self._lock:
                for obj in page:
                    key = self.of.key_of(obj.metadata)
                    found.add(key)
                    self._known.add(key)
                    self.of.put(obj)

        start: Callable[[], set[Hashable]] = set
        found, since = cluster.snapshot(path, self._kind, start, add=add, selector=self.of.selector)
        with self._lock:
            for key in self._known - found:
                self.of.drop(key)
            self._known = found
        self._since, self._seen_at, self._is_whole = since, time.monotonic(), True
        self.tried.set()
        return since
