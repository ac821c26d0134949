"""Failures on demand: what goes wrong with which requests, how many times. Must not know HTTP's wire format."""

import dataclasses
import re
import threading
from collections.abc import Mapping
from typing import Any

from simulator.kube.objects import Object


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """An injected failure.

    Attributes:
        path: Regular expression, searched in the path without the query.
        method: An HTTP method, or "*".
        times: Number of requests that it hits; None: no limit.
        status: HTTP status of the answer; None keeps the answer.
        drop: Closes the connection without an answer.
        after_effect: The request takes effect first.
    """

    path: str = ""
    method: str = "*"
    times: int | None = 1
    delay_s: float = 0.0
    status: int | None = None
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    drop: bool = False
    after_effect: bool = False

    def matches(self, method: str, path: str) -> bool:
        """Whether a request is one of those it hits."""
        return self.method in {"*", method} and re.search(self.path, path) is not None

    def document(self) -> Object:
        """The body of the answer."""
        if self.body is not None:
            return dict(self.body)
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "reason": _REASONS.get(self.status or 0, "InternalError"),
            "message": f"injected fault: answered with {self.status}",
            "code": self.status,
        }


_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class Faults:
    """The faults that are still to happen, first come first served."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: list[tuple[Fault, int | None]] = []

    def inject(self, fault: Fault) -> None:
        """Arm a fault."""
        with self._lock:
            self._pending.append((fault, fault.times))

    def __len__(self) -> int:
        """How many are armed."""
        with self._lock:
            return len(self._pending)

    def clear(self) -> None:
        """Disarm all."""
        with self._lock:
            self._pending.clear()

    def take(self, method: str, path: str) -> Fault | None:
        """The fault that this request hits, if any; counts it."""
        with self._lock:
            for index, (fault, left) in enumerate(self._pending):
                if not fault.matches(method, path):
                    continue
                if left is not None and left <= 1:
                    del self._pending[index]
                else:
                    self._pending[index] = (fault, left - 1 if left is not None else None)
                return fault
        return None
