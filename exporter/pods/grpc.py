"""One gRPC call at a time over a Unix socket, on HTTP/2 by h2. grpcio would cost 14 MB more resident memory.

Must not know which service is called.
"""

import socket
import struct
import urllib.parse
from collections.abc import Callable

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import H2Error

from exporter.errors import PodResourcesError, UnimplementedError

_MAX_MESSAGE_BYTES = 64 * 1024 * 1024  # a dense node's answer has been 4.7 MB (dcgm-exporter issue 509)
_WINDOW_BYTES = 1024 * 1024
_READ_BYTES = 256 * 1024
_FRAME_PREFIX = struct.Struct(">BI")
_OK, _UNIMPLEMENTED = "0", "12"
_STATUS = {
    "1": "CANCELLED",
    "2": "UNKNOWN",
    "4": "DEADLINE_EXCEEDED",
    "7": "PERMISSION_DENIED",
    "8": "RESOURCE_EXHAUSTED",
    "12": "UNIMPLEMENTED",
    "13": "INTERNAL",
    "14": "UNAVAILABLE",
    "16": "UNAUTHENTICATED",
}


class ConnectionLostError(PodResourcesError):
    """The connection ended before the answer was complete; a new connection may succeed."""


class _Response:
    """The response to one call so far."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.ended = False

    def message(self, method: str) -> bytes:
        """The one message of a successful call."""
        status = self.headers.get("grpc-status")
        if status is None:
            raise PodResourcesError(
                f"{method}: no gRPC answer (HTTP status {self.headers.get(':status', 'missing')}); is this a kubelet?"
            )
        if status != _OK:
            text = urllib.parse.unquote(self.headers.get("grpc-message", ""), errors="replace")
            kind = UnimplementedError if status == _UNIMPLEMENTED else PodResourcesError
            raise kind(f"{method}: {_STATUS.get(status, f'gRPC status {status}')}: {text[:200]}")
        if len(self.body) < _FRAME_PREFIX.size:
            raise PodResourcesError(f"{method}: the answer holds no message")
        compressed, size = _FRAME_PREFIX.unpack_from(self.body)
        if compressed or size != len(self.body) - _FRAME_PREFIX.size:
            raise PodResourcesError(f"{method}: the answer is not one plain gRPC message")
        return bytes(memoryview(self.body)[_FRAME_PREFIX.size :])


class Channel:
    """One connection to a gRPC server on a Unix socket. Not for use by two threads at a time.

    Raises, like its methods, PodResourcesError where the server cannot be reached.
    """

    def __init__(self, path: str, *, clock: Callable[[], float], timeout_s: float) -> None:
        self._clock = clock
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(path)
            self._h2.initiate_connection()
            self._h2.increment_flow_control_window(_WINDOW_BYTES)
            self._socket.sendall(self._h2.data_to_send())
        except OSError as error:
            self.close()
            hint = ", which belongs to root: run as user 0, which needs no capability"
            words = f"{error.strerror or error}{hint if isinstance(error, PermissionError) else ''}"
            raise PodResourcesError(f"connecting to {path}: {words}") from error

    def close(self) -> None:
        """End the connection; harmless when it has ended."""
        self._socket.close()

    def call(self, method: str, *, request: bytes = b"", timeout_s: float) -> bytes:
        """The answer of `method`, such as "/v1.PodResourcesLister/List"; ConnectionLostError: open a new channel."""
        until = self._clock() + timeout_s
        try:
            stream = self._send(method, request, timeout_s)
            answer = _Response()
            while not answer.ended:
                self._receive(method, stream, answer, until)
        except TimeoutError as error:
            raise PodResourcesError(f"{method}: no answer within {timeout_s:g} s") from error
        except (OSError, H2Error, UnicodeDecodeError) as error:  # h2 decodes headers without a check
            raise ConnectionLostError(f"{method}: the connection broke: {error}") from error
        return answer.message(method)

    def _send(self, method: str, request: bytes, timeout_s: float) -> int:
        stream: int = self._h2.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("grpc-timeout", f"{max(1, round(timeout_s * 1000))}m"),
        ]
        self._h2.send_headers(stream, headers)
        self._h2.increment_flow_control_window(_WINDOW_BYTES, stream)
        self._h2.send_data(stream, _FRAME_PREFIX.pack(0, len(request)) + request, end_stream=True)
        self._socket.settimeout(timeout_s)
        self._socket.sendall(self._h2.data_to_send())
        return stream

    def _receive(self, method: str, stream: int, answer: _Response, until: float) -> None:
        left_s = until - self._clock()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionLostError(f"{method}: the server closed the connection")
        for event in self._h2.receive_data(data):
            self._take(method, stream, answer, event)
        self._socket.sendall(self._h2.data_to_send())

    def _take(self, method: str, stream: int, answer: _Response, event: Event) -> None:
        if isinstance(event, ConnectionTerminated):
            raise ConnectionLostError(f"{method}: the server is shutting down")
        if getattr(event, "stream_id", stream) != stream:
            return
        match event:
            case ResponseReceived(headers=headers) | TrailersReceived(headers=headers):
                answer.headers.update((str(name), str(value)) for name, value in headers or ())
            case DataReceived(data=data, flow_controlled_length=length):
                answer.body += data or b""
                if len(answer.body) > _MAX_MESSAGE_BYTES:
                    raise PodResourcesError(
                        f"{method}: the answer is larger than {_MAX_MESSAGE_BYTES >> 20} MiB"
                    )
                self._h2.acknowledge_received_data(length or 0, stream)
            case StreamEnded():
                answer.ended = True
            case StreamReset(error_code=code):
                raise ConnectionLostError(f"{method}: the server reset the call (HTTP/2 error {code})")
