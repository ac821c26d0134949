"""The wire log: every request that reached the server, with its answer. Must not know what requests mean to objects."""

import dataclasses
import datetime
import json
import threading
from typing import Any
from urllib.parse import parse_qs

_MUTATING = {"POST", "PUT", "PATCH", "DELETE"}


@dataclasses.dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request and its answer.

    Attributes:
        user: Empty without authentication.
        query: As it was sent.
        code: HTTP status; 0 where the connection was dropped.
    """

    time: datetime.datetime
    user: str
    method: str
    path: str
    query: str
    content_type: str
    body: bytes
    code: int

    @property
    def json(self) -> Any:  # noqa: ANN401 - any JSON value
        """The body as JSON; None where it is empty."""
        return json.loads(self.body) if self.body else None

    @property
    def dry_run(self) -> bool:
        """Whether the query, or a DELETE's or eviction's body, says dryRun=All; a DELETE's body wins over the query."""
        in_query = "All" in parse_qs(self.query).get("dryRun", ())
        if in_query and not (self.method == "DELETE" and self.body):
            return True
        try:
            body = self.json
        except ValueError:
            return False
        options = body.get("deleteOptions") or body if isinstance(body, dict) else {}
        in_body = self.method == "DELETE" or self.path.endswith("/eviction")
        return in_body and isinstance(options, dict) and "All" in (options.get("dryRun") or ())

    @property
    def mutating(self) -> bool:
        """Whether its method can change state; a review only asks."""
        return self.method in _MUTATING and not self.path.endswith("accessreviews")


class RequestLog:
    """All requests since the start or since `clear`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: list[LoggedRequest] = []

    def add(self, entry: LoggedRequest) -> None:
        """Append a request."""
        with self._lock:
            self._entries.append(entry)

    def all(self) -> list[LoggedRequest]:
        """Every request, in order of their answers."""
        with self._lock:
            return list(self._entries)

    def mutating(self, *, include_dry_run: bool = False) -> list[LoggedRequest]:
        """The requests that could change state, whether or not they succeeded."""
        return [entry for entry in self.all() if entry.mutating and (include_dry_run or not entry.dry_run)]

    def clear(self) -> None:
        """Forget all requests so far."""
        with self._lock:
            self._entries.clear()
