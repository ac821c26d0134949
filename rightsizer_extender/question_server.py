"""HTTP server of the scheduler extender: answers POST of JSON, with TLS and client certificates, however many ask."""

import contextlib
import logging
import pathlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping

from rightsizer.cli.http_endpoint import AnswerHandler, listening
from rightsizer.errors import ConfigurationError

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 8 << 20
"""A question about 5,000 nodes has 0.3 MB."""


class InvalidBody(ValueError):  # noqa: N818 - what it is
    """A question that cannot be answered; its words are the reply."""


class TlsFiles:
    """The certificate of a server, read again when its file changes, and who may ask.

    Args:
        certificate: Of the server, with its chain (PEM).
        key: Of the certificate.
        client_authority: CA certificates of clients; None lets anybody ask.

    Raises:
        ConfigurationError: One of the files cannot be used.
    """

    def __init__(
        self, certificate: pathlib.Path, key: pathlib.Path, client_authority: pathlib.Path | None
    ) -> None:
        self._files = (certificate, key)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._read_at = 0
        self._lock = threading.Lock()
        self._load()
        if client_authority is not None:
            try:
                self._context.load_verify_locations(client_authority)
            except OSError as error:
                raise ConfigurationError(f'"{client_authority}": {_why(error)}') from error
            self._context.verify_mode = ssl.CERT_REQUIRED

    def wrap(self, connection: socket.socket) -> ssl.SSLSocket:
        """A connection before its handshake."""
        try:
            self._load()
        except ConfigurationError as error:
            log.warning("the certificate that was read before stays in use: %s", error)
        return self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def _load(self) -> None:
        certificate, key = self._files
        with self._lock:
            try:
                changed_at = max(file.stat().st_mtime_ns for file in self._files)
                if changed_at != self._read_at:
                    self._context.load_cert_chain(certificate, key)
                    self._read_at = changed_at
            except OSError as error:
                raise ConfigurationError(f'"{certificate}", "{key}": {_why(error)}') from error


def _why(error: OSError) -> str:
    """The reason for which a file cannot be used: ssl.SSLError is an OSError too."""
    if isinstance(error, ssl.SSLError):
        return f"no usable certificate and key (PEM): {error.reason or error}"
    return f"cannot be read: {error.strerror}"


@contextlib.contextmanager
def answering(
    address: str, routes: Mapping[str, Callable[[bytes], bytes]], tls: TlsFiles | None
) -> Iterator[int]:
    """Serve POST requests, answered with JSON, while entered; yields the port.

    A route raises InvalidBody for a body that it cannot answer.

    Raises:
        ConfigurationError: The address cannot be listened on.
    """

    class BoundQuestions(_Questions):
        answers = routes

    with listening("--extender-listen", address, BoundQuestions, tls.wrap if tls else None) as port:
        yield port


class _Questions(AnswerHandler):
    """POST of JSON."""

    answers: Mapping[str, Callable[[bytes], bytes]]

    def do_POST(self) -> None:  # noqa: N802 - the library's name
        """Answer a question."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal() and len(length) <= len(str(MAX_BODY_BYTES))):
            self._refuse(411, "Content-Length is missing, or no number of bytes that is accepted")
        elif int(length) > MAX_BODY_BYTES:
            self._refuse(413, f"the body has more than {MAX_BODY_BYTES} bytes")
        elif (answer := self.answers.get(self.path)) is None:
            self._refuse(404, f"here are {' and '.join(self.answers)}")
        else:
            body = self.rfile.read(int(length))
            try:
                self.reply(200, "application/json", answer(body))
            except InvalidBody as error:
                self.reply(400, "text/plain; charset=utf-8", f"{error}\n".encode())

    def _refuse(self, code: int, words: str) -> None:
        """Answer, and close the connection: the body stays unread."""
        self.close_connection = True
        self.reply(code, "text/plain; charset=utf-8", f"{words}\n".encode())
