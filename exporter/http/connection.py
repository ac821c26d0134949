"""A client's socket on which every step has a deadline. Must not know HTTP, but for the end of a request's head.

A socket's timeout restarts with every byte: a client that sends one now and then would hold its connection for ever.
"""

import contextlib
import socket
import ssl
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from exporter.errors import RequestError

_CHUNK = 64 * 1024
_LINGER_S = 1.0
_LINGER_BYTES = 1 << 20
_TLS_HANDSHAKE = b"\x16"  # the first byte of TLS, and of no HTTP request


class Connection:
    """An accepted socket; `clock` is in monotonic seconds, as are `arrived` and every `until`."""

    def __init__(self, accepted: socket.socket, clock: Callable[[], float]) -> None:
        self._socket = accepted
        self._clock = clock
        self._is_aborted = False
        self.arrived = clock()
        self.is_unread = False  # whether the client may have sent more than was read

    def secure(self, context: ssl.SSLContext, *, until: float) -> dict[str, Any] | None:
        """Shake hands, and return the client's certificate if it sent one. Raises RequestError for plain HTTP."""
        self._wait(until)
        if self._socket.recv(1, socket.MSG_PEEK) not in {_TLS_HANDSHAKE, b""}:
            raise RequestError(HTTPStatus.BAD_REQUEST, "this is an HTTPS server; use https://")
        secured = context.wrap_socket(self._socket, server_side=True, do_handshake_on_connect=False)
        self._socket = secured
        self._wait(until)  # again: an abort in between had no effect on the new socket
        secured.do_handshake()
        return secured.getpeercert()

    def read_head(self, limit: int, *, until: float) -> bytes:
        """Everything up to the first empty line, at most `limit` bytes.

        Raises RequestError if there is no empty line within the limit or in time.
        """
        found = b""
        while len(found) <= limit:
            try:
                self._wait(until)
                chunk = self._socket.recv(limit)
            except TimeoutError:
                if not found:
                    raise
                raise RequestError(HTTPStatus.REQUEST_TIMEOUT, "the request is not complete") from None
            if not chunk:
                raise ConnectionResetError("before a complete request")
            found = (found + chunk).lstrip(b"\r\n")  # RFC 9112 2.2
            head, end, _ = found.replace(b"\r\n", b"\n").partition(b"\n\n")
            if end and len(head) <= limit:
                return head + end
        raise RequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {limit} bytes of headers")

    def send(self, content: bytes, *, until: float) -> None:
        """Send everything."""
        view = memoryview(content)
        while view:
            self._wait(until)
            view = view[self._socket.send(view[:_CHUNK]) :]

    def abort(self) -> None:
        """Fail the step in progress; call from another thread. The connection's own thread closes it."""
        self._is_aborted = True
        with contextlib.suppress(OSError):
            # SSLSocket.shutdown would also drop its TLS state.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def finish(self) -> None:
        """End TLS. If the client has sent more than was read, wait for it: closing now would discard the answer."""
        with contextlib.suppress(OSError, ValueError):
            if isinstance(self._socket, ssl.SSLSocket):
                self._socket.settimeout(0)
                with contextlib.suppress(OSError):
                    self._socket.unwrap()  # without waiting for the client's part
            if self.is_unread:
                self._linger()

    def _linger(self) -> None:
        until = self._clock() + _LINGER_S
        self._socket.shutdown(socket.SHUT_WR)  # from here on, an SSLSocket reads raw bytes
        left = _LINGER_BYTES
        while left > 0:
            self._wait(until)
            got = len(self._socket.recv(_CHUNK))
            left -= got or left

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _wait(self, until: float) -> None:
        """Limit the socket's next call to the time that is left."""
        left = until - self._clock()
        if self._is_aborted:
            raise ConnectionAbortedError
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
