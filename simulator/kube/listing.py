"""Lists in pages over one consistent state, and the selection that lists and watches share."""

import base64
import binascii
import bisect
import dataclasses
import json

from simulator.kube.errors import ApiError, bad_request
from simulator.kube.objects import Object, labels_of
from simulator.kube.resources import Resource
from simulator.kube.selectors import FieldSelector, Selector, parse_fields, parse_labels
from simulator.kube.store import Record, Store

META_V1 = "meta.k8s.io/v1"


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


def list_page(store: Store, selection: Selection, page: Page, *, metadata_only: bool = False) -> bytes:
    """The JSON of a list, or of one page of it; as a PartialObjectMetadataList where only metadata is wanted."""
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
