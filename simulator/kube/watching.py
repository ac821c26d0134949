"""Watches: changes since a resourceVersion as a stream of JSON lines."""

import dataclasses
import json
import time
from collections.abc import Callable, Iterator

from simulator.kube.errors import Expired, bad_request
from simulator.kube.listing import Selection
from simulator.kube.objects import Object
from simulator.kube.store import Event, Record, Store

_BOOKMARK_INTERVAL_S = 60.0
_PULSE_S = 0.5  # how often an idle watch looks whether it should end


@dataclasses.dataclass(frozen=True, slots=True)
class Watch:
    """What a client asked for.

    Attributes:
        since: The resourceVersion to start after; empty or "0" starts with what there is.
        timeout_s: When the server ends the watch, in seconds.
        bookmarks: Whether BOOKMARK events are wanted.
        initial_events: Whether a bookmark marks the end of what there was at the start.
    """

    selection: Selection
    since: str = ""
    timeout_s: float = 1800.0
    bookmarks: bool = False
    initial_events: bool = False


def watch(store: Store, request: Watch, alive: Callable[[], bool]) -> Iterator[bytes]:
    """Lines for the client, until the timeout or until `alive` says that nobody listens."""
    if request.since and not request.since.isdecimal():
        raise bad_request(f'resourceVersion: Invalid value: "{request.since}": must be a number')
    return _stream(store, request, alive)


def _stream(store: Store, request: Watch, alive: Callable[[], bool]) -> Iterator[bytes]:
    with store.lock:
        revision = int(request.since or 0)
        present: list[Record] = []
        if revision == 0 or request.initial_events:
            revision, rows = store.snapshot(request.selection.resource)
            present = [row for row in rows if row in request.selection]
    for row in present:
        yield _line("ADDED", row.document)
    if request.initial_events:
        yield _bookmark(request.selection, revision, {"k8s.io/initial-events-end": "true"})
    deadline = time.monotonic() + request.timeout_s
    bookmark_due = time.monotonic() + _BOOKMARK_INTERVAL_S
    while alive() and time.monotonic() < deadline:
        try:
            events = _wait(store, revision, min(_PULSE_S, deadline - time.monotonic()))
        except Expired as error:
            yield _line("ERROR", json.dumps(error.status).encode())
            return
        for event in events:
            revision = event.revision
            yield from _lines(event, request.selection)
        if request.bookmarks and time.monotonic() >= bookmark_due:
            bookmark_due += _BOOKMARK_INTERVAL_S
            yield _bookmark(request.selection, revision)
    if request.bookmarks:
        yield _bookmark(request.selection, revision)


def _wait(store: Store, revision: int, timeout_s: float) -> list[Event]:
    with store.changed:
        events = store.events_after(revision)
        if not events:
            store.changed.wait(max(timeout_s, 0.0))
            events = store.events_after(revision)
        return events


def _lines(event: Event, selection: Selection) -> Iterator[bytes]:
    """What a change is to this watch: leaving the selection is a deletion, entering it an addition."""
    if event.record.resource is not selection.resource:
        return
    was = event.previous is not None and event.previous in selection
    now = event.type != "DELETED" and event.record in selection
    if now:
        yield _line("MODIFIED" if was else "ADDED", event.record.document)
    elif was:
        yield _line("DELETED", event.record.document)


def _line(kind: str, document: bytes) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + document + b"}\n"


def _bookmark(selection: Selection, revision: int, annotations: dict[str, str] | None = None) -> bytes:
    metadata: Object = {"resourceVersion": str(revision), "creationTimestamp": None}
    if annotations:
        metadata["annotations"] = annotations
    resource = selection.resource
    document = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
    return _line("BOOKMARK", json.dumps(document).encode())
