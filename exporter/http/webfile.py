"""The current web configuration: reloaded when the file or one of its certificates has changed.

An invalid file is logged once, and the old configuration stays. A reload can change protection but not remove it:
otherwise a half-written file would let everybody in.
"""

import contextlib
import dataclasses
import ipaddress
import logging
import os
import ssl
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from exporter.errors import ConfigFileError
from exporter.http import auth, webconfig
from exporter.http.webconfig import Pem, Tls, WebConfig

_LOG = logging.getLogger(__name__)
_MAX_BYTES = 1 << 20  # of a file; a bundle of all public CAs has 200 KiB


@dataclasses.dataclass(frozen=True, slots=True)
class WebSetup:
    """A configuration and its TLS context; `context` is None for plain HTTP."""

    config: WebConfig
    context: ssl.SSLContext | None

    def admits(self, certificate: Mapping[str, Any] | None) -> bool:
        """Whether a client's certificate, in the form of getpeercert(), has an allowed alternative name."""
        allowed = self.config.tls.client_allowed_sans if self.config.tls else None
        if not allowed or not certificate:
            return True  # the handshake has checked whether one is required
        names = {_canonical(kind, str(name)) for kind, name in certificate.get("subjectAltName", ())}
        return bool(names & allowed)


PLAIN = WebSetup(WebConfig(), None)
"""The setup without a file."""


class WebFile:
    """The file. Each `current` reads its contents, four small reads, because timestamps are not reliable."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._where = f"web configuration {path}"
        self._lock = threading.Lock()
        self._contents: dict[Path, bytes | str] = {}  # of all files at the last load
        self._setup = self._load()

    def current(self) -> WebSetup:
        """The current setup."""
        with self._lock:
            if any(_read(path) != content for path, content in self._contents.items()):
                self._reload()
            return self._setup

    def _reload(self) -> None:
        try:
            new = self._load()
            lost = sorted(self._setup.config.protections - new.config.protections)
            if lost:
                raise self._error(f"no longer has {', '.join(lost)}; restart the exporter to serve without")
        except ConfigFileError as error:
            problems = "; ".join(str(error).splitlines())
            _LOG.error("%s; keeping the previous configuration", problems)
            return
        _LOG.info("%s: reloaded", self._where)
        self._setup = new

    def _load(self) -> WebSetup:
        self._contents = {}
        config = webconfig.parse(self._content(self._path, ""), self._path)
        if config.users:
            auth.require_bcrypt(self._where)
        return WebSetup(config, None if config.tls is None else self._context(config.tls))

    def _content(self, pem: Pem, field: str) -> bytes:
        if isinstance(pem, bytes):
            return pem
        if pem not in self._contents:
            self._contents[pem] = _read(pem)
        found = self._contents[pem]
        if isinstance(found, str):
            raise self._error(f"{field} {pem}: {found}" if field else found)
        return found

    def _error(self, problem: str) -> ConfigFileError:
        return ConfigFileError([f"{self._where}: {problem}"])

    def _context(self, tls: Tls) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = tls.min_version
        made.maximum_version = tls.max_version
        made.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        made.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
        if tls.prefer_server_cipher_suites:
            made.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
        made.set_alpn_protocols(["http/1.1"])
        if tls.cipher_suites:
            made.set_ciphers(":".join(tls.cipher_suites))
        if tls.curve_preferences:
            made.set_ecdh_curve(tls.curve_preferences)
        self._load_identity(made, tls)
        made.verify_mode = tls.client_auth_type
        if tls.client_ca:
            made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in Go, which can trust an intermediate CA
            self._trust(made, tls.client_ca, "client_ca_file")
        return made

    def _load_identity(self, made: ssl.SSLContext, tls: Tls) -> None:
        self._trust(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), tls.cert, "cert_file")
        key = self._content(tls.key, "key_file")
        try:
            with _as_file(self._content(tls.cert, "cert_file")) as cert_name, _as_file(key) as key_name:
                made.load_cert_chain(cert_name, key_name, _no_passphrase)
        except _EncryptedError:
            raise self._error("key_file: is encrypted; write the key without a passphrase") from None
        except ssl.SSLError as error:
            raise self._error(_KEY_ERRORS.get(error.reason, _NO_KEY)) from None

    def _trust(self, made: ssl.SSLContext, pem: Pem, field: str) -> None:
        content = self._content(pem, field).decode("ascii", "replace")
        try:
            made.load_verify_locations(cadata=content)
        except (ssl.SSLError, ValueError):
            raise self._error(f"{field}: no certificate in PEM that OpenSSL can read") from None


_NO_KEY = "key_file: no private key in PEM that OpenSSL can read"
_NO_MATCH = "cert_file and key_file do not match"
_WEAK = "cert_file: OpenSSL refuses it as too weak; use an RSA key of 2048 bits or more, or ECDSA"
_KEY_ERRORS = {
    "KEY_VALUES_MISMATCH": _NO_MATCH,
    "KEY_TYPE_MISMATCH": _NO_MATCH,
    "EE_KEY_TOO_SMALL": _WEAK,
    "CA_MD_TOO_WEAK": _WEAK,
    "CA_KEY_TOO_SMALL": _WEAK,
}


def _canonical(kind: str, name: str) -> str:
    if kind == "IP Address":
        with contextlib.suppress(ValueError):
            return str(ipaddress.ip_address(name.strip()))  # OpenSSL writes all groups of an IPv6 address
    return name


class _EncryptedError(Exception):
    pass


def _no_passphrase() -> str:
    """Replace OpenSSL's prompt, which would wait at the terminal."""
    raise _EncryptedError


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A file name for `content`, because ssl reads keys only from files; nothing reaches a disk."""
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _read(path: Path) -> bytes | str:
    """The content of a file, or why it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        return f"cannot be read: {(reason or 'not a path').lower()}"
    return content if len(content) <= _MAX_BYTES else "is larger than 1 MiB"
