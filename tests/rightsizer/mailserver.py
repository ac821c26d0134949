"""An SMTP server that keeps what it gets."""

import contextlib
import email
import email.message
import email.policy
import io
import socketserver
import ssl
import threading
from collections.abc import Iterator

import trustme


class MailServer(socketserver.ThreadingTCPServer):
    """Speaks as much of SMTP as smtplib asks for, with STARTTLS (RFC 3207) and AUTH PLAIN (RFC 4954).

    Attributes:
        said: Every command, and whether it came over TLS.
        has_starttls: Whether it offers STARTTLS.
    """

    daemon_threads = True

    def __init__(self) -> None:
        self.got: list[email.message.EmailMessage] = []
        self.said: list[tuple[str, bool]] = []
        self.has_starttls = True
        self.accepts_login = True
        self.authority = trustme.CA()
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.authority.issue_cert("localhost").configure_cert(self.context)
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = f"localhost:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client that does not trust the certificate hangs up."""


class _Handler(socketserver.StreamRequestHandler):
    server: MailServer
    is_tls = False

    def handle(self) -> None:
        self._answer("220 hello")
        while line := self.rfile.readline():
            command = line.decode().strip()
            self.server.said.append((command, self.is_tls))
            word = command.split()[0].upper()
            if word == "EHLO":
                self._offer()
            elif word == "STARTTLS":
                self._answer("220 go ahead")
                self._encrypt()
            elif word == "DATA":
                self._answer("354 go ahead")
                self._keep()
            elif word == "AUTH":
                self._answer("235 welcome" if self.server.accepts_login else "535 no")
            elif word == "QUIT":
                self._answer("221 bye")
                return
            else:
                self._answer("250 ok")

    def finish(self) -> None:
        super().finish()
        self.connection.close()

    def _offer(self) -> None:
        more = ["AUTH PLAIN"] if self.is_tls else ["STARTTLS"] if self.server.has_starttls else []
        self._answer("\r\n".join([*(f"250-{one}" for one in ("localhost", *more)), "250 8BITMIME"]))

    def _encrypt(self) -> None:
        self.connection = self.server.context.wrap_socket(self.connection, server_side=True)
        self.rfile = io.BufferedReader(self.connection.makefile("rb", 0))
        self.is_tls = True

    def _answer(self, text: str) -> None:
        self.connection.sendall(text.encode() + b"\r\n")

    def _keep(self) -> None:
        data = b""
        while (line := self.rfile.readline()) != b".\r\n":
            data += line[1:] if line.startswith(b"..") else line
        self.server.got.append(email.message_from_bytes(data, policy=email.policy.default))
        self._answer("250 kept")


@contextlib.contextmanager
def receiving_mail() -> Iterator[MailServer]:
    """While entered, one that takes every message."""
    made = MailServer()
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        made.server_close()
        thread.join()
