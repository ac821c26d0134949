"""The web configuration file of Prometheus's exporter-toolkit, as a value.

Its format: https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md. What that format has
and Python's TLS cannot do is refused, never ignored; so is what would look like protection and be none.
Must not open a file or a socket. No message repeats a value that may be a secret.
"""

import dataclasses
import difflib
import enum
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from exporter.errors import WebConfigError
from exporter.http import yamltree
from exporter.http.yamltree import Fields, Items, Scalar, Tree


class ClientAuth(enum.Enum):
    """What is asked of a client's certificate."""

    NONE = "NoClientCert"
    IF_GIVEN = "VerifyClientCertIfGiven"
    REQUIRED = "RequireAndVerifyClientCert"


class TlsVersion(enum.Enum):
    """Versions of TLS that are still safe, the older one first."""

    TLS12 = "TLS12"
    TLS13 = "TLS13"


@dataclasses.dataclass(frozen=True, slots=True)
class Inline:
    """A PEM that stands in the file itself."""

    pem: str = dataclasses.field(repr=False)


Pem: TypeAlias = Inline | Path


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """tls_server_config. `ciphers` are OpenSSL's names for TLS 1.2, and empty for the default, as is `curve`."""

    cert: Pem
    key: Pem
    client_ca: Pem | None = None
    client_auth: ClientAuth = ClientAuth.NONE
    client_allowed_sans: frozenset[str] = frozenset()
    min_version: TlsVersion = TlsVersion.TLS12
    max_version: TlsVersion = TlsVersion.TLS13
    ciphers: tuple[str, ...] = ()
    curve: str = ""
    prefer_server_cipher_suites: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Rate:
    """rate_limit: one more request each `interval_s` seconds, and `burst` of them at once."""

    interval_s: float
    burst: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WebConfig:
    """The whole file.

    Attributes:
        tls: None for plain HTTP.
        headers: Added to every response.
        users: bcrypt hashes by name; empty where everybody is let in.
        rate: None for no limit.
    """

    tls: Tls | None = None
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    users: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    rate: Rate | None = None

    @property
    def protections(self) -> frozenset[str]:
        """What keeps people out, by the names that the file has for it."""
        tls = self.tls
        return frozenset(
            name
            for name, is_on in {
                "tls_server_config": tls is not None,
                "client_auth_type": tls is not None and tls.client_auth is ClientAuth.REQUIRED,
                "client_allowed_sans": tls is not None and bool(tls.client_allowed_sans),
                "basic_auth_users": bool(self.users),
            }.items()
            if is_on
        )


_MIN_COST = 4  # bcrypt's own
_MAX_COST = 18  # where one check takes some 20 s; bcrypt itself goes on to 31, days
_HASH = re.compile(r"\$2[abxy]\$(\d\d)\$[./A-Za-z0-9]{53}")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")  # what an unknown field may look like in a message
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_HEADERS: Mapping[str, tuple[str, ...]] = {
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
    "Content-Security-Policy": (),
}
"""Those that exporter-toolkit allows, and their values where there are but a few."""
_CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
_CIPHERS = {
    f"TLS_ECDHE_{key}_WITH_{go}": f"ECDHE-{key}-{openssl}"
    for key in ("ECDSA", "RSA")
    for go, openssl in (
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
        ("AES_128_CBC_SHA", "AES128-SHA"),
        ("AES_256_CBC_SHA", "AES256-SHA"),
    )
}
"""OpenSSL's names for those of Go's crypto/tls.CipherSuites, for TLS 1.2."""
_TLS13_CIPHERS = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)
_UNVERIFIED = {"RequestClientCert", "RequireAnyClientCert", "RequireClientCert"}

_SECTIONS = ("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit")

_Parser: TypeAlias = Callable[[Tree], Any]


def parse(content: bytes, path: Path) -> WebConfig:
    """The configuration that the file `path` with this content means.

    Raises:
        WebConfigError: Whatever is wrong, all of it at once.
    """
    where = f"web configuration {path}"
    tree = yamltree.parse(content, where)
    reader = _Reader(where)
    found = reader.fields(tree, "", dict.fromkeys(_SECTIONS, _as_is))
    config = WebConfig(
        tls=reader.tls(found.get("tls_server_config"), path.parent),
        headers=reader.headers(found.get("http_server_config")),
        users=reader.users(found.get("basic_auth_users")),
        rate=reader.rate(found.get("rate_limit")),
    )
    if reader.problems:
        raise WebConfigError(reader.problems)
    return config


class _Reader:
    """Reads sections by their tables of fields and collects what is wrong."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.problems: list[str] = []

    def complain(self, line: int, name: str, words: str) -> None:
        """Remember a problem of a field."""
        self.problems.append(f"{self._where}, line {line}: {name}{': ' if name else ''}{words}")

    def fields(self, tree: Tree | None, section: str, known: Mapping[str, _Parser]) -> dict[str, Any]:
        """The values of a section's fields; those that are blank are left out, as if they were not there."""
        if _is_blank(tree):
            return {}
        if not isinstance(tree, Fields):
            self.complain(tree.line if tree else 1, section, "not a mapping; write fields and their values")
            return {}
        values: dict[str, Any] = {}
        seen: set[str] = set()
        for key, value in tree.pairs:
            name = f"{section}.{key.text}" if section else key.text
            if key.text not in known:
                self.complain(key.line, "", _unknown(key.text, section, known))
            elif key.text in seen:
                self.complain(key.line, name, "stands there twice")
            elif not _is_blank(value):
                try:
                    values[key.text] = known[key.text](value)
                except ValueError as error:
                    self.complain(value.line, name, str(error))
            seen.add(key.text)
        return values

    def tls(self, tree: Tree | None, folder: Path) -> Tls | None:
        """tls_server_config, if there is one."""
        if tree is None:
            return None
        before = len(self.problems)
        found = self.fields(tree, "tls_server_config", _TLS)
        if len(self.problems) > before:
            return None
        pems = {name: self._pem(found, name, tree.line, folder) for name in ("cert", "key", "client_ca")}
        values = {name: value for name, value in found.items() if not name.startswith(("cert", "key"))}
        values.pop("client_ca", None)
        values.pop("client_ca_file", None)
        values["client_auth"] = values.pop("client_auth_type", ClientAuth.NONE)
        if "curve_preferences" in values:
            values["curve"] = values.pop("curve_preferences")
        if "cipher_suites" in values:
            values["ciphers"] = values.pop("cipher_suites")
        cert, key = pems["cert"], pems["key"]
        if cert is None or key is None:
            return None
        tls = Tls(cert=cert, key=key, client_ca=pems["client_ca"], **values)
        self._check(tls, tree.line)
        return tls

    def _pem(self, found: Mapping[str, Any], name: str, line: int, folder: Path) -> Pem | None:
        file: str | None = found.get(f"{name}_file")
        inline: str | None = found.get(name)
        if file and inline:
            self.complain(line, "tls_server_config", f"has both {name} and {name}_file; leave one out")
        if not file and not inline and name != "client_ca":
            self.complain(line, "tls_server_config", f"{name}_file (or {name}) is missing")
        if file:
            return folder / file
        return Inline(inline) if inline else None

    def _check(self, tls: Tls, line: int) -> None:
        """Combinations in which something would have no effect, or none that anybody wants."""
        name = "tls_server_config"
        if tls.min_version is TlsVersion.TLS13 and tls.max_version is TlsVersion.TLS12:
            self.complain(line, name, "min_version is above max_version")
        if tls.ciphers and tls.min_version is TlsVersion.TLS13:
            self.complain(line, name, "cipher_suites are for TLS 1.2, which min_version TLS13 excludes")
        if tls.client_auth is ClientAuth.NONE:
            for field, value in {
                "client_ca_file": tls.client_ca,
                "client_allowed_sans": tls.client_allowed_sans,
            }.items():
                if value:
                    words = f"{field} has no effect without client_auth_type: RequireAndVerifyClientCert"
                    self.complain(line, name, words)
        elif tls.client_ca is None:
            words = f"client_auth_type {tls.client_auth.value} needs client_ca_file, the CA of the clients"
            self.complain(line, name, words)

    def headers(self, tree: Tree | None) -> Mapping[str, str]:
        """The headers of http_server_config."""
        found = self.fields(tree, "http_server_config", {"http2": _switch, "headers": _as_is})
        known = {name: _header(name, values) for name, values in _HEADERS.items()}
        return self.fields(found.get("headers"), "http_server_config.headers", known)

    def users(self, tree: Tree | None) -> Mapping[str, str]:
        """The hashes of basic_auth_users."""
        if tree is None or not isinstance(tree, Fields):
            return self.fields(tree, "basic_auth_users", {})
        for key, _ in tree.pairs:
            if not key.text or ":" in key.text or not key.text.isprintable():
                self.complain(key.line, "basic_auth_users", "a user's name is not empty and has no colon")
        for key, value in tree.pairs:
            if _is_blank(value):
                self.complain(value.line, f"basic_auth_users.{key.text}", "has no hash")
        return self.fields(tree, "basic_auth_users", {key.text: _hash for key, _ in tree.pairs})

    def rate(self, tree: Tree | None) -> Rate | None:
        """rate_limit, if it limits anything."""
        found = self.fields(tree, "rate_limit", {"interval": _interval, "burst": _burst})
        if not found.get("interval"):
            return None
        if not found.get("burst"):
            if tree is not None:
                self.complain(tree.line, "rate_limit.burst", "must be 1 or more, or nobody is ever answered")
            return None
        return Rate(found["interval"], found["burst"])


def _is_blank(tree: Tree | None) -> bool:
    return tree is None or (isinstance(tree, Scalar) and (tree.kind == "null" or not tree.text.strip()))


def _unknown(name: str, section: str, known: Mapping[str, _Parser]) -> str:
    of = f" of {section}" if section else ""
    if not _NAME.fullmatch(name):  # maybe a hash or a line of a key that lost its place
        return f"something here is no field{of}; there are {', '.join(known)}"
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return f"{name}: no such field{of}; {hint}"


def _as_is(tree: Tree) -> Tree:
    return tree


def _text(tree: Tree) -> str:
    if not isinstance(tree, Scalar):
        raise ValueError("not a text")  # noqa: TRY004 - of the file's value, not of ours
    return tree.text


def _texts(tree: Tree) -> tuple[str, ...]:
    if not isinstance(tree, Items):
        raise ValueError('not a list; write each entry on a line of its own, after "- "')  # noqa: TRY004 - as above
    return tuple(_text(item) for item in tree.items)


def _switch(tree: Tree) -> bool:
    if isinstance(tree, Scalar) and tree.kind == "bool":
        return tree.text.lower() in {"true", "yes", "on"}
    raise ValueError("neither true nor false")


def _client_auth(tree: Tree) -> ClientAuth:
    text = _text(tree)
    if text in _UNVERIFIED:
        raise ValueError(
            f"{text} is not possible here: Python's TLS cannot take a certificate without verifying it. "
            "Write VerifyClientCertIfGiven or RequireAndVerifyClientCert, with client_ca_file"
        )
    return ClientAuth(_one_of(text, {member.value: member.value for member in ClientAuth}))


def _version(tree: Tree) -> TlsVersion:
    text = _text(tree)
    if text in {"TLS10", "TLS11"}:
        raise ValueError(f"{text} is broken and not served; write TLS12 or TLS13")
    return TlsVersion(_one_of(text, {member.value: member.value for member in TlsVersion}))


def _one_of(text: str, known: Mapping[str, str]) -> str:
    if text not in known:
        near = difflib.get_close_matches(text, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        shown = f'"{text}" is ' if _NAME.fullmatch(text) else ""
        raise ValueError(f"{shown}not known; {hint}there are {', '.join(known)}")
    return known[text]


def _ciphers(tree: Tree) -> tuple[str, ...]:
    names = _texts(tree)
    for name in names:
        if name not in _TLS13_CIPHERS:
            _one_of(name, _CIPHERS)
    if 0 < len(_TLS13_CIPHERS & set(names)) < len(_TLS13_CIPHERS):
        raise ValueError(
            "the suites of TLS 1.3 cannot be chosen one by one, all three are served; name all of them or none"
        )
    chosen = tuple(_CIPHERS[name] for name in names if name not in _TLS13_CIPHERS)
    if names and not chosen:
        raise ValueError("names no suite of TLS 1.2; write min_version: TLS13 to exclude TLS 1.2")
    return chosen


def _curve(tree: Tree) -> str:
    names = [_one_of(name, _CURVES) for name in _texts(tree)]
    if len(names) > 1:
        raise ValueError(
            "Python's TLS cannot order several curves; name one, or leave the field out for OpenSSL's own choice"
        )
    return names[0] if names else ""


def _header(name: str, allowed: tuple[str, ...]) -> _Parser:
    def value(tree: Tree) -> str:
        text = _text(tree).strip()
        if allowed and text not in allowed:
            raise ValueError(f"{name} is one of {', '.join(allowed)}")
        if not text.isascii() or not text.isprintable():
            raise ValueError("not printable ASCII on one line, which is what a header can hold")
        return text

    return value


def _hash(tree: Tree) -> str:
    match = _HASH.fullmatch(tree.text) if isinstance(tree, Scalar) else None
    if match is None:
        raise ValueError("not a bcrypt hash; make one with: htpasswd -nBC 10 '' | tr -d ':\\n'")
    if not _MIN_COST <= int(match[1]) <= _MAX_COST:
        raise ValueError(f"a bcrypt cost of {match[1]}; {_MIN_COST} to {_MAX_COST} are served, 10 is usual")
    return match[0]


def _interval(tree: Tree) -> float:
    text = _text(tree)
    parts = _DURATION.findall(text)
    if text != "0" and (not parts or "".join(map("".join, parts)) != text):
        raise ValueError("not a duration; write numbers and their units, such as 100ms, 1s or 1m30s")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _burst(tree: Tree) -> int:
    text = _text(tree)
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError("not a whole number")
    return int(text)


def _sans(tree: Tree) -> frozenset[str]:
    return frozenset(_texts(tree))


_TLS: Mapping[str, _Parser] = {
    "cert": _text,
    "key": _text,
    "client_ca": _text,
    "cert_file": _text,
    "key_file": _text,
    "client_auth_type": _client_auth,
    "client_ca_file": _text,
    "client_allowed_sans": _sans,
    "min_version": _version,
    "max_version": _version,
    "cipher_suites": _ciphers,
    "prefer_server_cipher_suites": _switch,
    "curve_preferences": _curve,
}
