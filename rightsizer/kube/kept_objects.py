"""Large collections in memory, so that a cycle lists none of them: watched, and now and then compared with a list.

What is kept is the JSON of those fields that are read, compressed: a tenth of what decoded objects take.
"""

import contextlib
import dataclasses
import logging
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Self, TypeVar

import msgspec

from rightsizer.kube.api_objects import ObjectMeta
from rightsizer.kube.cluster import ObjectReader
from rightsizer.kube.watched import Collection, Connect, Watched

VERIFIED_EVERY = 96
"""Each 96th read is compared with a list: once a day, if a cycle begins every 15 minutes."""
SETTLES_S = 2.0
"""A difference that lasts longer is not just a late event."""
MOST_BYTES = 256 * 1024 * 1024
"""Maximum of one collection: a million pods take as much, or a tenant's annotations that cannot be compressed."""
_FIRST_S = 300.0
"""The first read waits for the first list, instead of listing at the same time."""
_SHOWN = 3

log = logging.getLogger(__name__)

A = TypeVar("A")
_encoder = msgspec.json.Encoder()


@dataclasses.dataclass(frozen=True, slots=True)
class Parsing(Generic[A]):
    """An `add` of `reduce` that parses each object by itself; what unchanged objects parse to can be kept.

    Attributes:
        parse: Makes an immutable value of an object; equal parsers make equal ones.
        add: Adds such values.
    """

    parse: Callable[[Any], Any]
    add: Callable[[A, Iterable[Any]], None]

    def __call__(self, found: A, page: Iterable[Any]) -> None:
        """Add a page of objects."""
        self.add(found, map(self.parse, page))


_Rows = dict[str, bytes]
"""Packed objects by their place in a list."""


def _place_of(metadata: ObjectMeta) -> str:
    """The place of an object in a list; one string, however often it is asked for."""
    return sys.intern(f"{metadata.namespace}/{metadata.name}")


class _Kept:
    """One collection."""

    def __init__(self, path: str, kind: type[Any], connect: Connect) -> None:
        self.path = path
        self._decoder = msgspec.json.Decoder(kind)
        self._lock = threading.Lock()
        self._rows: _Rows = {}
        self._parse: Callable[[Any], Any] | None = None
        self.parsed: dict[bytes, Any] = {}
        self._example = b""
        self._bytes = 0
        self.is_full = False
        self.reads = 0
        self._lost = f"{path} is listed in each cycle"
        collection = Collection(path, kind, self._put, self._drop, self._lost, key_of=_place_of)
        self.watched = Watched(collection, connect, self._lock)

    def _put(self, item: Any) -> None:  # noqa: ANN401 - of the kind
        if self.is_full:
            return
        self._example = self._example or _encoder.encode(item)
        place, packed = _place_of(item.metadata), self.packed(item)
        self._drop(place)
        self._rows[place] = packed
        self._bytes += len(packed)
        if self._bytes > MOST_BYTES:
            self.is_full = True
            self._rows = {}
            log.warning("%s: its objects take more than %d MiB of memory", self._lost, MOST_BYTES >> 20)

    def _drop(self, place: str) -> None:
        self._bytes -= len(self._rows.pop(place, b""))

    def packed(self, item: Any) -> bytes:  # noqa: ANN401 - likewise
        """Compress an object against the first one, from which most differ little."""
        packer = zlib.compressobj(level=1, zdict=self._example)
        return packer.compress(_encoder.encode(item)) + packer.flush()

    def rows(self) -> _Rows:
        """All objects as they are now."""
        with self._lock:
            return dict(self._rows)

    def reduce(self, start: Callable[[], A], add: Callable[[A, Iterable[Any]], None]) -> A:
        """The objects in the order of a list, or what they parse to."""
        found, rows = start(), [packed for _, packed in sorted(self.rows().items())]
        if isinstance(add, Parsing):
            add.add(found, self._entries(rows, add.parse))
        else:
            add(found, map(self._unpacked, rows))
        return found

    def _entries(self, rows: Iterable[bytes], parse: Callable[[Any], Any]) -> Iterable[Any]:
        """The parsed objects; kept by all their bytes, of which their names are part, until these change."""
        known, self.parsed = self.parsed, {}
        if parse != self._parse:
            self._parse, known = parse, {}
        for packed in rows:
            self.parsed[packed] = known[packed] if packed in known else self._parse(self._unpacked(packed))
        return self.parsed.values()

    def _unpacked(self, packed: bytes) -> Any:  # noqa: ANN401 - of the kind
        return self._decoder.decode(zlib.decompressobj(zdict=self._example).decompress(packed))


class KeptObjects:
    """Watched collections, instead of lists. While entered, threads watch.

    Args:
        kinds: The types of the objects to keep, by the path of their collection.
        connect: A connection of a thread's own; may raise RightsizerError.
        differed: Called with the number of differences from a list.
        verified_every: Which reads are compared with a list: each (1), each second one (2), …
    """

    def __init__(
        self,
        kinds: Mapping[str, type[Any]],
        connect: Connect,
        differed: Callable[[int], None],
        *,
        verified_every: int = VERIFIED_EVERY,
    ) -> None:
        self._kept = {path: _Kept(path, kind, connect) for path, kind in kinds.items()}
        self._differed = differed
        self._verified_every = verified_every
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Start the watches."""
        for kept in self._kept.values():
            self._stack.enter_context(kept.watched)
        return self

    def __exit__(self, *exception: object) -> None:
        """Let them end."""
        self._stack.close()

    def reduce(
        self,
        cluster: ObjectReader,
        path: str,
        kind: type[Any],
        start: Callable[[], A],
        *,
        add: Callable[[A, Iterable[Any]], None],
    ) -> A:
        """The result of `cluster.reduce`, which lists only if the collection is not kept, or not up to date.

        Raises:
            ClusterError: The list is incomplete.
        """
        kept = self._kept.get(path)
        if kept is None:
            return cluster.reduce(path, kind, start, add=add)
        kept.watched.tried.wait(_FIRST_S)
        if kept.is_full or not kept.watched.is_current or kept.watched.host != cluster.host:
            kept.parsed.clear()
            return cluster.reduce(path, kind, start, add=add)
        kept.reads += 1
        if kept.reads % self._verified_every:
            return kept.reduce(start, add)
        kept.parsed.clear()  # what the list parses to takes as much memory
        found, listed = _listed(kept, cluster, kind, start, add)
        self._compare(kept, cluster, kind, listed)
        return found

    def _compare(self, kept: _Kept, cluster: ObjectReader, kind: type[Any], listed: _Rows) -> None:
        """Discard what is kept if it differs from two lists."""
        if not list(_differing(kept.rows(), listed)):
            log.info("%s: %d kept objects are as the API server lists them", kept.path, len(listed))
            return
        time.sleep(SETTLES_S)
        before = kept.rows()
        _, again = _listed(kept, cluster, kind, list[Any], lambda *_: None)
        still = [place for place in _differing(before, again) if listed.get(place) == again.get(place)]
        if still:
            names = ", ".join(sorted(still)[:_SHOWN])
            log.error(
                "%s: %d kept objects differ from the API server's, such as %s", kept.path, len(still), names
            )
            self._differed(len(still))
            kept.watched.start_over()


def _listed(
    kept: _Kept,
    cluster: ObjectReader,
    kind: type[Any],
    start: Callable[[], A],
    add: Callable[[A, Iterable[Any]], None],
) -> tuple[A, _Rows]:

    def begin() -> tuple[A, _Rows]:
        return start(), {}

    def both(found: tuple[A, _Rows], page: list[Any]) -> None:
        found[1].update((_place_of(obj.metadata), kept.packed(obj)) for obj in page)
        add(found[0], page)

    return cluster.reduce(kept.path, kind, begin, add=both)


def _differing(kept: _Rows, listed: _Rows) -> Iterator[str]:
    """Places of objects that only one of them has, or that are not the same."""
    return (place for place in kept.keys() | listed.keys() if kept.get(place) != listed.get(place))
