"""Parses the web configuration file of Prometheus's exporter-toolkit.

Its format: https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md. Fields that Python's
TLS cannot support are refused, never ignored, and so is protection without effect. Must not open a file or a socket.
No message repeats a value that may be a secret.
"""

import dataclasses
import difflib
import enum
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from exporter.errors import ConfigFileError

if TYPE_CHECKING:
    # at run time only if there is a file: it takes 2 MiB
    from yaml import MappingNode, ScalarNode, SequenceNode

    Node: TypeAlias = MappingNode | ScalarNode | SequenceNode


class ClientAuth(enum.Enum):
    """Requirements for a client's certificate."""

    NONE = "NoClientCert"
    IF_GIVEN = "VerifyClientCertIfGiven"
    REQUIRED = "RequireAndVerifyClientCert"


class TlsVersion(enum.Enum):
    """Supported versions of TLS, the older first."""

    TLS12 = "TLS12"
    TLS13 = "TLS13"


@dataclasses.dataclass(frozen=True, slots=True)
class Inline:
    """A PEM inside the file."""

    pem: str = dataclasses.field(repr=False)


Pem: TypeAlias = Inline | Path


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """tls_server_config. `ciphers` are OpenSSL's names for TLS 1.2. Empty `ciphers` or `curve` mean the default."""

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
    """The whole file."""

    tls: Tls | None = None  # None for plain HTTP
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)  # added to every response
    # bcrypt hashes by name; empty without passwords
    users: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    rate: Rate | None = None  # None for no limit

    @property
    def protections(self) -> frozenset[str]:
        """The fields that restrict access."""
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


_MIN_COST = 4  # bcrypt's minimum
_MAX_COST = 18  # one check takes about 20 s; bcrypt's maximum of 31 takes days
_HASH = re.compile(r"\$2[abxy]\$(\d\d)\$[./A-Za-z0-9]{53}")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")  # an unknown field that a message may repeat
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_HEADERS: Mapping[str, tuple[str, ...]] = {
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
    "Content-Security-Policy": (),
}
"""The headers that exporter-toolkit allows, and their values if restricted."""
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
"""OpenSSL's names by Go's, of crypto/tls.CipherSuites for TLS 1.2."""
_TLS13_CIPHERS = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)
_UNVERIFIED = {"RequestClientCert", "RequireAnyClientCert", "RequireClientCert"}

_SECTIONS = ("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit")

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_BOOL_TAG = "tag:yaml.org,2002:bool"
_NULL_TAG = "tag:yaml.org,2002:null"

_Parser: TypeAlias = Callable[["Node"], Any]


def parse(content: bytes, path: Path) -> WebConfig:
    """Parse the content of the file `path`. Raises ConfigFileError: all problems of the file."""
    where = f"web configuration {path}"
    tree = _compose(content, where)
    reader = _Reader(where)
    found = reader.fields(tree, "", dict.fromkeys(_SECTIONS, _as_is))
    config = WebConfig(
        tls=reader.tls(found.get("tls_server_config"), path.parent),
        headers=reader.headers(found.get("http_server_config")),
        users=reader.users(found.get("basic_auth_users")),
        rate=reader.rate(found.get("rate_limit")),
    )
    if reader.problems:
        raise ConfigFileError(reader.problems)
    return config


def _compose(content: bytes, where: str) -> "Node | None":
    """The YAML document as a tree of nodes, which know their lines; None for an empty document."""
    try:
        import yaml  # noqa: PLC0415 - see above
    except ModuleNotFoundError:
        problem = "reading it needs the library pyyaml; run in a checkout: pip install '.[exporter]'"
        raise ConfigFileError([f"{where}: {problem}"]) from None
    try:
        node = cast("Node | None", yaml.compose(content, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        # The text that YAML quotes may be part of a secret.
        problem = _QUOTED.sub("...", error.problem or "cannot be read")
        raise ConfigFileError([f"{where}{line}: not valid YAML: {problem}"]) from None
    except yaml.YAMLError:
        raise ConfigFileError([f"{where}: not valid YAML: not UTF-8 text"]) from None
    except RecursionError:
        raise ConfigFileError([f"{where}: nested too deeply"]) from None
    return node


def _line(node: "Node") -> int:
    return int(node.start_mark.line) + 1


class _Reader:
    """Reads sections by their tables of fields, and collects the problems."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.problems: list[str] = []

    def complain(self, line: int, name: str, words: str) -> None:
        """Add a problem of a field."""
        self.problems.append(f"{self._where}, line {line}: {name}{': ' if name else ''}{words}")

    def fields(self, tree: "Node | None", section: str, known: Mapping[str, _Parser]) -> dict[str, Any]:
        """The values of a section's fields, without blank ones."""
        if tree is None or _is_blank(tree):
            return {}
        if tree.id != "mapping":
            self.complain(_line(tree), section, "not a mapping; write fields and their values")
            return {}
        values: dict[str, Any] = {}
        seen: set[str] = set()
        for key, value in tree.value:
            field = str(key.value) if key.id == "scalar" else ""
            name = f"{section}.{field}" if section else field
            if field not in known:
                self.complain(_line(key), "", _unknown(field, section, known))
            elif field in seen:
                self.complain(_line(key), name, "appears twice")
            elif not _is_blank(value):
                try:
                    values[field] = known[field](value)
                except ValueError as error:
                    self.complain(_line(value), name, str(error))
            seen.add(field)
        return values

    def tls(self, tree: "Node | None", folder: Path) -> Tls | None:
        """tls_server_config, if there is one."""
        if tree is None:
            return None
        before = len(self.problems)
        found = self.fields(tree, "tls_server_config", _TLS)
        if len(self.problems) > before:
            return None
        pems = {name: self._pem(found, name, _line(tree), folder) for name in ("cert", "key", "client_ca")}
        others = {name: value for name, value in found.items() if name.removesuffix("_file") not in pems}
        values = {_TLS_NAMES.get(name, name): value for name, value in others.items()}
        cert, key = pems["cert"], pems["key"]
        if cert is None or key is None:
            return None
        tls = Tls(cert=cert, key=key, client_ca=pems["client_ca"], **values)
        self._check(tls, _line(tree))
        return tls

    def _pem(self, found: Mapping[str, Any], name: str, line: int, folder: Path) -> Pem | None:
        file: str | None = found.get(f"{name}_file")
        inline: str | None = found.get(name)
        if file and inline:
            self.complain(line, "tls_server_config", f"has both {name} and {name}_file; drop one")
        if not file and not inline and name != "client_ca":
            self.complain(line, "tls_server_config", f"{name}_file (or {name}) is missing")
        if file:
            return folder / file
        return Inline(inline) if inline else None

    def _check(self, tls: Tls, line: int) -> None:
        """Refuse combinations in which a field has no effect."""
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
            words = f"client_auth_type {tls.client_auth.value} needs client_ca_file, the clients' CA"
            self.complain(line, name, words)

    def headers(self, tree: "Node | None") -> Mapping[str, str]:
        """The headers of http_server_config."""
        found = self.fields(tree, "http_server_config", {"http2": _switch, "headers": _as_is})
        known = {name: _header(values) for name, values in _HEADERS.items()}
        return self.fields(found.get("headers"), "http_server_config.headers", known)

    def users(self, tree: "Node | None") -> Mapping[str, str]:
        """The hashes of basic_auth_users."""
        if tree is None or tree.id != "mapping":
            return self.fields(tree, "basic_auth_users", {})
        names = {}
        for key, value in tree.value:
            name = str(key.value) if key.id == "scalar" else ""
            names[name] = _hash
            if not name or ":" in name or not name.isprintable():
                self.complain(_line(key), "basic_auth_users", "a user name must not be empty or have a colon")
            if _is_blank(value):
                self.complain(_line(value), f"basic_auth_users.{name}", "has no hash")
        return self.fields(tree, "basic_auth_users", names)

    def rate(self, tree: "Node | None") -> Rate | None:
        """rate_limit, if it limits anything."""
        found = self.fields(tree, "rate_limit", {"interval": _interval, "burst": _burst})
        if not found.get("interval"):
            return None
        if not found.get("burst"):
            if tree is not None:
                self.complain(
                    _line(tree), "rate_limit.burst", "must be at least 1, or every request is refused"
                )
            return None
        return Rate(found["interval"], found["burst"])


def _is_blank(node: "Node") -> bool:
    return bool(node.id == "scalar" and (node.tag == _NULL_TAG or not node.value.strip()))


def _unknown(name: str, section: str, known: Mapping[str, _Parser]) -> str:
    of = f" of {section}" if section else ""
    if not _NAME.fullmatch(name):  # may be a hash, or a line of a key in the wrong position
        return f"an unknown field{of}; available: {', '.join(known)}"
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"available: {', '.join(known)}"
    return f"{name}: unknown field{of}; {hint}"


def _as_is(node: "Node") -> "Node":
    return node


def _text(node: "Node") -> str:
    if node.id != "scalar":
        raise ValueError("not a text")
    return str(node.value)


def _texts(node: "Node") -> tuple[str, ...]:
    if node.id != "sequence":
        raise ValueError('not a list; write each entry on its own line, after "- "')
    return tuple(_text(item) for item in node.value)


def _switch(node: "Node") -> bool:
    if node.id == "scalar" and node.tag == _BOOL_TAG:
        return str(node.value).lower() in {"true", "yes", "on"}
    raise ValueError("neither true nor false")


def _client_auth(tree: "Node") -> ClientAuth:
    text = _text(tree)
    if text in _UNVERIFIED:
        raise ValueError(
            f"{text} is not supported: Python's TLS cannot accept a certificate without verifying it. "
            "Use VerifyClientCertIfGiven or RequireAndVerifyClientCert, with client_ca_file"
        )
    return ClientAuth(_one_of(text, {member.value: member.value for member in ClientAuth}))


def _version(tree: "Node") -> TlsVersion:
    text = _text(tree)
    if text in {"TLS10", "TLS11"}:
        raise ValueError(f"{text} is insecure and not supported; use TLS12 or TLS13")
    return TlsVersion(_one_of(text, {member.value: member.value for member in TlsVersion}))


def _one_of(text: str, known: Mapping[str, str]) -> str:
    if text not in known:
        near = difflib.get_close_matches(text, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        shown = f'"{text}" is ' if _NAME.fullmatch(text) else ""
        raise ValueError(f"{shown}unknown; {hint}available: {', '.join(known)}")
    return known[text]


def _ciphers(tree: "Node") -> tuple[str, ...]:
    names = _texts(tree)
    for name in names:
        if name not in _TLS13_CIPHERS:
            _one_of(name, _CIPHERS)
    if 0 < len(_TLS13_CIPHERS & set(names)) < len(_TLS13_CIPHERS):
        raise ValueError("suites of TLS 1.3 cannot be selected; name all three or none")
    chosen = tuple(_CIPHERS[name] for name in names if name not in _TLS13_CIPHERS)
    if names and not chosen:
        raise ValueError("has no suite of TLS 1.2; set min_version: TLS13 to exclude TLS 1.2")
    return chosen


def _curve(tree: "Node") -> str:
    names = [_one_of(name, _CURVES) for name in _texts(tree)]
    if len(names) > 1:
        raise ValueError("Python's TLS supports one curve; name one, or drop the field for OpenSSL's choice")
    return names[0] if names else ""


def _header(allowed: tuple[str, ...]) -> _Parser:
    def value(tree: "Node") -> str:
        text = _text(tree).strip()
        if allowed and text not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        if not text.isascii() or not text.isprintable():
            raise ValueError("not printable ASCII on one line")
        return text

    return value


def _hash(tree: "Node") -> str:
    match = _HASH.fullmatch(str(tree.value)) if tree.id == "scalar" else None
    if match is None:
        raise ValueError("not a bcrypt hash; create one with: htpasswd -nBC 10 '' | tr -d ':\\n'")
    if not _MIN_COST <= int(match[1]) <= _MAX_COST:
        raise ValueError(f"a bcrypt cost of {match[1]}; use {_MIN_COST} to {_MAX_COST}, usually 10")
    return match[0]


def _interval(tree: "Node") -> float:
    text = _text(tree)
    parts = _DURATION.findall(text)
    if text != "0" and (not parts or "".join(map("".join, parts)) != text):
        raise ValueError("not a duration; use numbers with units, such as 100ms, 1s or 1m30s")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _burst(tree: "Node") -> int:
    text = _text(tree)
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError("not a whole number")
    return int(text)


def _sans(tree: "Node") -> frozenset[str]:
    return frozenset(_texts(tree))


_TLS_NAMES = {"client_auth_type": "client_auth", "curve_preferences": "curve", "cipher_suites": "ciphers"}
"""Fields of `Tls` with another name than in the file."""
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
