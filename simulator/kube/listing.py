"""Lists in pages over one consistent state, and the selection that lists and watches share."""

import base64
import binascii
import bisect
import dataclasses
import datetime
import json
import time
from collections.abc import Callable, Iterator

from simulator.kube.errors import ApiError, Expired, bad_request
from simulator.kube.objects import Object, labels_of
from simulator.kube.resources import Resource
from simulator.kube.selectors import FieldSelector, Selector, parse_fields, parse_labels
from simulator.kube.store import Event, Record, Store
from simulator.kube.tables import META_V1, has_table, table


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a resource: `namespace` of None is all of them."""

    resource: Resource
    namespace: str | None
    labels: Selector
    fields: FieldSelector

    @classmethod
    def parse(cls, resource: Resource, namespace: str | None, labels: str, fields: str) -> "Selection":
        """From a request's query."""
        return cls(resource, namespace, parse_labels(labels), parse_fields(fields, resource.fields))

    def __contains__(self, record: Record) -> bool:
        return (
            (self.namespace is None or record.namespace == self.namespace)
            and (not self.labels or self.labels.matches(labels_of(record.obj)))
            and (not self.fields or self.fields.matches(record.obj))
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """How much of a list, from where: as in a request's `limit`, `continue` and `resourceVersion`."""

    limit: int = 0
    token: str = ""
    resource_version: str = ""
    match: str = ""


def list_page(
    store: Store,
    selection: Selection,
    page: Page,
    *,
    metadata_only: bool = False,
    table_at: datetime.datetime | None = None,
) -> bytes:
    """The JSON of a list, or of one page of it.

    Args:
        store: What is listed.
        selection: Which objects of it.
        page: How many of them.
        metadata_only: As a PartialObjectMetadataList.
        table_at: As a Table with the ages of this time; None for no table.
    """
    revision, after = _start(store, page)
    revision, rows = store.snapshot(selection.resource, revision)
    first = bisect.bisect_right(rows, after, key=lambda row: row.order) if after else 0
    if selection.namespace is not None:
        first = max(first, bisect.bisect_left(rows, (selection.namespace, ""), key=lambda row: row.order))
    chosen, stop = _take(rows, first, selection, page.limit)
    metadata: Object = {"resourceVersion": str(revision)}
    remaining = _remaining(rows, stop, selection)
    if page.limit and remaining:
        store.keep(selection.resource, revision, rows)
        metadata["continue"] = _token(revision, chosen[-1])
        if not selection.labels and not selection.fields:
            metadata["remainingItemCount"] = remaining
    if table_at is not None and has_table(selection.resource.kind):
        return table(selection.resource.kind, metadata, (row.obj for row in chosen), table_at)
    if metadata_only:
        return _partial(metadata, chosen)
    return _document(selection.resource, metadata, chosen)


def _take(rows: list[Record], first: int, selection: Selection, limit: int) -> tuple[list[Record], int]:
    chosen: list[Record] = []
    for index in range(first, len(rows)):
        if limit and len(chosen) == limit:
            return chosen, index
        if rows[index] in selection:
            chosen.append(rows[index])
    return chosen, len(rows)


def _remaining(rows: list[Record], stop: int, selection: Selection) -> int:
    """How many more there are; with selectors only whether there are more keys to look at, as in the real server."""
    if selection.namespace is None:
        return len(rows) - stop
    end = bisect.bisect_right(rows, selection.namespace, key=lambda row: row.namespace)
    return max(end - stop, 0)


def _document(resource: Resource, metadata: Object, rows: list[Record]) -> bytes:
    head = json.dumps(
        {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": metadata},
        separators=(",", ":"),
    ).encode()
    return head[:-1] + b',"items":[' + b",".join(row.item for row in rows) + b"]}"


def _partial(metadata: Object, rows: list[Record]) -> bytes:
    kind = {"kind": "PartialObjectMetadata", "apiVersion": META_V1}
    items = [{**kind, "metadata": row.obj["metadata"]} for row in rows]
    head = {"kind": "PartialObjectMetadataList", "apiVersion": META_V1, "metadata": metadata}
    return json.dumps({**head, "items": items}, separators=(",", ":")).encode()


def _token(revision: int, last: Record) -> str:
    payload = {"v": "meta.k8s.io/v1", "rv": revision, "start": f"{last.namespace}/{last.name}"}
    return base64.urlsafe_b64encode(json.dumps(payload).encode()).decode().rstrip("=")


def _start(store: Store, page: Page) -> tuple[int | None, tuple[str, str] | None]:
    """The revision to list at, and the key after which to begin."""
    if not page.token:
        _check_version(store, page)
        return None, None
    if page.resource_version not in {"", "0"}:
        raise bad_request("specifying resource version is not allowed when using continue")
    try:
        payload = json.loads(base64.urlsafe_b64decode(page.token + "=" * (-len(page.token) % 4)))
        namespace, _, name = str(payload["start"]).partition("/")
        return int(payload["rv"]), (namespace, name)
    except (binascii.Error, ValueError, KeyError, TypeError) as error:
        raise bad_request(f"continue key is not valid: {error}") from error


def _check_version(store: Store, page: Page) -> None:
    wanted = page.resource_version
    if wanted and not wanted.isdecimal():
        raise bad_request(f'resourceVersion: Invalid value: "{wanted}": must be a number')
    if page.match == "Exact" and int(wanted or 0) != store.revision:
        raise ApiError(410, "Expired", f"The resourceVersion for the provided list is too old: {wanted}")
    if int(wanted or 0) > store.revision:
        raise ApiError(
            504,
            "Timeout",
            f"Timeout: Too large resource version: {wanted}, current: {store.revision}",
            details={
                "retryAfterSeconds": 1,
                "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            },
        )


_BOOKMARK_INTERVAL_S = 60.0
_PULSE_S = 0.5  # how often an idle watch looks whether it should end


@dataclasses.dataclass(frozen=True, slots=True)
class WatchOptions:
    """Options of a watch; `since` of "" or "0" starts with the existing objects."""

    selection: Selection
    since: str = ""
    timeout_s: float = 1800.0
    bookmarks: bool = False


def watch(store: Store, request: WatchOptions, alive: Callable[[], bool]) -> Iterator[bytes]:
    """Lines for the client, until the timeout or until the client has gone."""
    if request.since and not request.since.isdecimal():
        raise bad_request(f'resourceVersion: Invalid value: "{request.since}": must be a number')
    return _stream(store, request, alive)


def _stream(store: Store, request: WatchOptions, alive: Callable[[], bool]) -> Iterator[bytes]:
    with store.lock:
        revision = int(request.since or 0)
        present: list[Record] = []
        if revision == 0:
            revision, rows = store.snapshot(request.selection.resource)
            present = [row for row in rows if row in request.selection]
    for row in present:
        yield _line("ADDED", row.document)
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


def _bookmark(selection: Selection, revision: int) -> bytes:
    metadata: Object = {"resourceVersion": str(revision), "creationTimestamp": None}
    resource = selection.resource
    document = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
    return _line("BOOKMARK", json.dumps(document).encode())
