"""Makes the TLS context of a web configuration. Must not know HTTP, or where the PEMs come from."""

import contextlib
import dataclasses
import ipaddress
import os
import ssl
from collections.abc import Iterator, Mapping
from typing import Any

from exporter.errors import ConfigFileError
from exporter.http.webconfig import ClientAuth, Tls, TlsVersion

_VERSIONS = {TlsVersion.TLS12: ssl.TLSVersion.TLSv1_2, TlsVersion.TLS13: ssl.TLSVersion.TLSv1_3}
_VERIFY = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.IF_GIVEN: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Pems:
    """The PEMs of a configuration; `client_ca` may be empty."""

    cert: bytes
    key: bytes = dataclasses.field(repr=False)
    client_ca: bytes


def context(tls: Tls, pems: Pems, where: str) -> ssl.SSLContext:
    """The server's TLS context."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = _VERSIONS[tls.min_version]
    made.maximum_version = _VERSIONS[tls.max_version]
    made.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if tls.prefer_server_cipher_suites:
        made.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        made.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    made.set_alpn_protocols(["http/1.1"])
    if tls.ciphers:
        made.set_ciphers(":".join(tls.ciphers))
    if tls.curve:
        made.set_ecdh_curve(tls.curve)
    _load_identity(made, pems, where)
    made.verify_mode = _VERIFY[tls.client_auth]
    if tls.client_ca is not None:
        made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in Go, which can trust an intermediate CA
        _trust(made, pems.client_ca, f"{where}: client_ca_file")
    return made


def is_allowed(certificate: Mapping[str, Any] | None, allowed: frozenset[str]) -> bool:
    """Whether a client's certificate, in the form of getpeercert(), has an allowed alternative name."""
    if not allowed or not certificate:
        return True  # the handshake has checked whether one is required
    names = {_canonical(kind, str(name)) for kind, name in certificate.get("subjectAltName", ())}
    return bool(names & allowed)


def _canonical(kind: str, name: str) -> str:
    if kind != "IP Address":
        return name
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(name.strip()))  # OpenSSL writes all eight groups of an IPv6 address
    return name


class _EncryptedError(Exception):
    pass


def _no_passphrase() -> str:
    """Replace OpenSSL's prompt, which would wait at the terminal."""
    raise _EncryptedError


def _load_identity(made: ssl.SSLContext, pems: Pems, where: str) -> None:
    _trust(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pems.cert, f"{where}: cert_file")
    try:
        with _as_file(pems.cert) as cert, _as_file(pems.key) as key:
            made.load_cert_chain(cert, key, _no_passphrase)
    except _EncryptedError:
        problem = "key_file: is encrypted; write the key without a passphrase"
        raise ConfigFileError([f"{where}: {problem}"]) from None
    except ssl.SSLError as error:
        raise ConfigFileError([f"{where}: {_what(error)}"]) from None


def _what(error: ssl.SSLError) -> str:
    match error.reason:
        case "KEY_VALUES_MISMATCH" | "KEY_TYPE_MISMATCH":
            return "cert_file and key_file do not match"
        case "EE_KEY_TOO_SMALL" | "CA_MD_TOO_WEAK" | "CA_KEY_TOO_SMALL":
            return "cert_file: OpenSSL refuses it as too weak; use an RSA key of 2048 bits or more, or ECDSA"
        case _:
            return "key_file: no private key in PEM that OpenSSL can read"


def _trust(made: ssl.SSLContext, pem: bytes, where: str) -> None:
    try:
        made.load_verify_locations(cadata=pem.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError):
        raise ConfigFileError([f"{where}: no certificate in PEM that OpenSSL can read"]) from None


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
