"""A client's socket of which nothing can take for ever: each step has a moment until which it must be done.

Timeouts of sockets begin anew with every byte: a client that sends one now and then would keep its place until
tomorrow. Must not know what is said over it.
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
_HANDSHAKE = b"\x16"  # the first byte of TLS, and of no HTTP request


class Connection:
    """A client's socket.

    Args:
        accepted: As accepted; belongs to the connection from here on.
        clock: Monotonic seconds, in which every `until` is.
    """

    def __init__(self, accepted: socket.socket, clock: Callable[[], float]) -> None:
        self._socket = accepted
        self._clock = clock
        self._is_hung_up = False

    def begins_tls(self, *, until: float) -> bool:
        """Whether the client's first byte is that of a TLS handshake."""
        self._wait(until)
        return self._socket.recv(1, socket.MSG_PEEK) in {_HANDSHAKE, b""}

    def secure(self, context: ssl.SSLContext, *, until: float) -> dict[str, Any] | None:
        """Shake hands, and return the client's certificate, if it was asked for one and gave one."""
        self._wait(until)
        secured = context.wrap_socket(self._socket, server_side=True, do_handshake_on_connect=False)
        self._socket = secured
        self._wait(until)  # again: who hung up in between had no socket to do it with
        secured.do_handshake()
        return secured.getpeercert()

    def head(self, limit: int, *, until: float) -> bytes:
        """All up to the first empty line, at most `limit` bytes; empty when the client has hung up.

        Raises:
            RequestError: No empty line in so many bytes, or in time.
        """
        found = b""
        while True:
            try:
                self._wait(until)
                chunk = self._socket.recv(limit)
            except TimeoutError:
                if not found:
                    raise
                raise RequestError(HTTPStatus.REQUEST_TIMEOUT, "the request did not come to an end") from None
            if not chunk:
                return b""
            found = (found + chunk).lstrip(b"\r\n")  # RFC 9112 2.2
            head, end, _ = found.replace(b"\r\n", b"\n").partition(b"\n\n")
            if end and len(head) <= limit:
                return head + end
            if len(found) > limit:
                raise RequestError(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {limit} bytes of headers"
                )

    def send(self, content: bytes, *, until: float) -> None:
        """Send everything."""
        view = memoryview(content)
        while view:
            self._wait(until)
            view = view[self._socket.send(view[:_CHUNK]) :]

    def hang_up(self) -> None:
        """End whatever another thread is doing with it; that thread closes it."""
        self._is_hung_up = True
        with contextlib.suppress(OSError):
            socket.socket.shutdown(
                self._socket, socket.SHUT_RDWR
            )  # an SSLSocket's own takes its state away, too

    def say_goodbye(self, *, unread: bool) -> None:
        """Before closing. Where the client has sent more than was `unread`, wait a little: closing at once would take
        back what was sent to it.
        """  # noqa: D205 - one thought
        with contextlib.suppress(OSError, ValueError):
            if unread:
                self._linger()
            elif isinstance(self._socket, ssl.SSLSocket):
                self._socket.settimeout(0)
                self._socket.unwrap()  # says goodbye without waiting for the client's

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _linger(self) -> None:
        until = self._clock() + _LINGER_S
        if isinstance(self._socket, ssl.SSLSocket):
            self._socket.settimeout(0)
            with contextlib.suppress(OSError):
                self._socket.unwrap()
        self._socket.shutdown(socket.SHUT_WR)  # from here on, an SSLSocket reads what is on the wire
        left = _LINGER_BYTES
        while left > 0:
            self._wait(until)
            got = len(self._socket.recv(_CHUNK))
            if not got:
                return
            left -= got

    def _wait(self, until: float) -> None:
        """Give the next call of the socket what is left of the time."""
        left = until - self._clock()
        if self._is_hung_up:
            raise ConnectionAbortedError
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
