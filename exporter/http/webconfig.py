"""Parses the web configuration file of Prometheus's exporter-toolkit.

Its format: https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md. Fields that Python's
TLS cannot support are refused, never ignored, and so is protection without effect. Must not open a file or a socket.
No message repeats a value that may be a secret.
"""

import dataclasses
import re
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from exporter.errors import ConfigFileError
from exporter.settings import did_you_mean

if TYPE_CHECKING:
    # at run time only if there is a file: it takes 2 MiB
    from yaml import MappingNode, ScalarNode, SequenceNode

    Node: TypeAlias = MappingNode | ScalarNode | SequenceNode

_T = TypeVar("_T")
_Parser: TypeAlias = Callable[["Node"], Any]
Pem: TypeAlias = Path | bytes
"""A file, or the content inside the web configuration; empty for none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """tls_server_config, with OpenSSL's names. Empty `cipher_suites` or `curve_preferences` mean the default."""

    cert: Pem
    key: Pem = dataclasses.field(repr=False)
    client_ca: Pem = b""
    client_auth_type: ssl.VerifyMode = ssl.CERT_NONE
    client_allowed_sans: frozenset[str] = frozenset()
    min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    max_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
    cipher_suites: tuple[str, ...] = ()  # of TLS 1.2
    curve_preferences: str = ""
    prefer_server_cipher_suites: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Rate:
    """rate_limit: one more request each `interval_s` seconds, and `burst` of them at once."""

    interval_s: float
    burst: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WebConfig:
    """The whole file: `users` are bcrypt hashes by name, `headers` are added to every response."""

    tls: Tls | None = None
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    users: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    rate: Rate | None = None

    @property
    def protections(self) -> frozenset[str]:
        """The fields that restrict access."""
        tls = self.tls
        active = {
            "tls_server_config": tls is not None,
            "client_auth_type": tls is not None and tls.client_auth_type is ssl.CERT_REQUIRED,
            "client_allowed_sans": tls is not None and bool(tls.client_allowed_sans),
            "basic_auth_users": bool(self.users),
        }
        return frozenset(name for name, is_active in active.items() if is_active)


def parse(content: bytes, path: Path) -> WebConfig:
    """Parse the content of the file `path`. Raises ConfigFileError: all problems of the file."""
    where = f"web configuration {path}"
    reader = _Reader(where)
    sections = reader.fields(_compose(content, where), "", _SECTIONS)
    http = reader.fields(sections.get("http_server_config"), "http_server_config", _HTTP)
    config = WebConfig(
        tls=reader.tls(sections.get("tls_server_config"), path.parent),
        headers=reader.fields(http.get("headers"), "http_server_config.headers", _HEADERS),
        users=reader.users(sections.get("basic_auth_users")),
        rate=reader.rate(sections.get("rate_limit")),
    )
    if reader.problems:
        raise ConfigFileError(reader.problems)
    return config


_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


def _compose(content: bytes, where: str) -> "Node | None":
    """The YAML document as a tree of nodes, which know their lines; None for an empty document."""
    try:
        import yaml  # noqa: PLC0415 - see above
    except ModuleNotFoundError:
        problem = "reading it needs the library pyyaml; run: pip install 'gpu-rightsizer[exporter]'"
        raise ConfigFileError([f"{where}: {problem}"]) from None
    try:
        return cast("Node | None", yaml.compose(content, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        # The text that YAML quotes may be part of a secret.
        problem = f"{line}: not valid YAML: {_QUOTED.sub('...', error.problem or 'cannot be read')}"
    except yaml.YAMLError:
        problem = ": not valid YAML: not UTF-8 text"
    except RecursionError:
        problem = ": nested too deeply"
    raise ConfigFileError([f"{where}{problem}"])


class _Reader:
    """Reads sections by their tables of fields, and collects the problems."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.problems: list[str] = []

    def complain(self, node: "Node", name: str, problem: str) -> None:
        """Add a problem of a field."""
        line = node.start_mark.line + 1
        self.problems.append(f"{self._where}, line {line}: {name}{': ' if name else ''}{problem}")

    def fields(self, tree: "Node | None", section: str, known: Mapping[str, _Parser]) -> dict[str, Any]:
        """The values of a section's fields, without blank ones."""
        if tree is None or _is_blank(tree):
            return {}
        if tree.id != "mapping":
            self.complain(tree, section, "not a mapping; write fields and their values")
            return {}
        values: dict[str, Any] = {}
        seen: set[str] = set()
        for key, value in tree.value:
            field = _name(key)
            name = f"{section}.{field}" if section else field
            if field not in known:
                self.complain(key, "", _unknown(field, section, known))
            elif field in seen:
                self.complain(key, name, "appears twice")
            elif not _is_blank(value):
                try:
                    values[field] = known[field](value)
                except ValueError as error:
                    self.complain(value, name, str(error))
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
        problems = []
        for name in ("cert", "key", "client_ca"):
            file = found.pop(f"{name}_file", None)
            if file and name in found:
                problems.append(f"has both {name} and {name}_file; drop one")
            elif file:
                found[name] = folder / file
            elif name not in found and name != "client_ca":
                problems.append(f"{name}_file (or {name}) is missing")
        if not problems:
            tls = Tls(**found)
            problems = [problem for problem, applies in _without_effect(tls).items() if applies]
        for problem in problems:
            self.complain(tree, "tls_server_config", problem)
        return None if problems else tls

    def users(self, tree: "Node | None") -> Mapping[str, str]:
        """The hashes of basic_auth_users."""
        pairs = tree.value if tree is not None and tree.id == "mapping" else ()
        for key, value in pairs:
            name = _name(key)
            if not name or ":" in name or not name.isprintable():
                self.complain(key, "basic_auth_users", "a user name must not be empty or have a colon")
            if _is_blank(value):
                self.complain(value, f"basic_auth_users.{name}", "has no hash")
        return self.fields(tree, "basic_auth_users", {_name(key): _hash for key, _ in pairs})

    def rate(self, tree: "Node | None") -> Rate | None:
        """rate_limit, if it limits anything."""
        found = self.fields(tree, "rate_limit", {"interval": _interval, "burst": _burst})
        if tree is None or not found.get("interval"):
            return None
        if not found.get("burst"):
            self.complain(tree, "rate_limit.burst", "must be at least 1, or every request is refused")
            return None
        return Rate(found["interval"], found["burst"])


def _without_effect(tls: Tls) -> Mapping[str, bool]:
    """Whether fields exclude each other, by the problem."""
    is_open = tls.client_auth_type is ssl.CERT_NONE
    needs = "has no effect without client_auth_type: RequireAndVerifyClientCert"
    auth_type = next(name for name, mode in _CLIENT_AUTH.items() if mode is tls.client_auth_type)
    only_tls13 = tls.min_version is ssl.TLSVersion.TLSv1_3
    return {
        "min_version is above max_version": tls.min_version > tls.max_version,
        "cipher_suites are for TLS 1.2, which min_version TLS13 excludes": only_tls13
        and bool(tls.cipher_suites),
        f"client_ca_file {needs}": is_open and bool(tls.client_ca),
        f"client_allowed_sans {needs}": is_open and bool(tls.client_allowed_sans),
        f"client_auth_type {auth_type} needs client_ca_file, the clients' CA": not is_open
        and not tls.client_ca,
    }


_NULL_TAG = "tag:yaml.org,2002:null"
_BOOL_TAG = "tag:yaml.org,2002:bool"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")  # an unknown name that a message may repeat


def _is_blank(node: "Node") -> bool:
    return bool(node.id == "scalar" and (node.tag == _NULL_TAG or not node.value.strip()))


def _name(key: "Node") -> str:
    return str(key.value) if key.id == "scalar" else ""


def _unknown(name: str, section: str, known: Mapping[str, object]) -> str:
    of = f" of {section}" if section else ""
    available = f"; available: {', '.join(known)}"
    if not _NAME.fullmatch(name):  # may be a hash, or a line of a key in the wrong position
        return f"an unknown field{of}{available}"
    return f"{name}: unknown field{of}{did_you_mean(name, known) or available}"


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


def _one_of(name: str, known: Mapping[str, _T]) -> _T:
    if name in known:
        return known[name]
    shown = f'"{name}" is ' if _NAME.fullmatch(name) else ""
    hint = did_you_mean(name, known) or ";"
    raise ValueError(f"{shown}unknown{hint} available: {', '.join(known)}")


def _version(node: "Node") -> ssl.TLSVersion:
    name = _text(node)
    if name in {"TLS10", "TLS11"}:
        raise ValueError(f"{name} is insecure and not supported; use TLS12 or TLS13")
    return _one_of(name, _VERSIONS)


def _client_auth(node: "Node") -> ssl.VerifyMode:
    name = _text(node)
    if name in {"RequestClientCert", "RequireAnyClientCert", "RequireClientCert"}:
        raise ValueError(
            f"{name} is not supported: Python's TLS cannot accept a certificate without verifying it. "
            "Use VerifyClientCertIfGiven or RequireAndVerifyClientCert, with client_ca_file"
        )
    return _one_of(name, _CLIENT_AUTH)


def _ciphers(node: "Node") -> tuple[str, ...]:
    names = _texts(node)
    chosen = tuple(_one_of(name, _CIPHERS) for name in names if name not in _TLS13_CIPHERS)
    if 0 < len(_TLS13_CIPHERS & set(names)) < len(_TLS13_CIPHERS):
        raise ValueError("suites of TLS 1.3 cannot be selected; name all three or none")
    if names and not chosen:
        raise ValueError("has no suite of TLS 1.2; set min_version: TLS13 to exclude TLS 1.2")
    return chosen


def _curve(node: "Node") -> str:
    names = [_one_of(name, _CURVES) for name in _texts(node)]
    if len(names) > 1:
        raise ValueError("Python's TLS supports one curve; name one, or drop the field for OpenSSL's choice")
    return "".join(names)


def _header(*allowed: str) -> _Parser:
    def value(node: "Node") -> str:
        text = _text(node).strip()
        if allowed and text not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        if not text.isascii() or not text.isprintable():
            raise ValueError("not printable ASCII on one line")
        return text

    return value


_MIN_COST = 4  # bcrypt's minimum
_MAX_COST = 18  # one check takes about 20 s; bcrypt's maximum of 31 takes days
_HASH = re.compile(r"\$2[abxy]\$(\d\d)\$[./A-Za-z0-9]{53}")


def _hash(node: "Node") -> str:
    match = _HASH.fullmatch(_name(node))
    if match is None:
        raise ValueError("not a bcrypt hash; create one with: htpasswd -nBC 10 '' | tr -d ':\\n'")
    if not _MIN_COST <= int(match[1]) <= _MAX_COST:
        raise ValueError(f"a bcrypt cost of {match[1]}; use {_MIN_COST} to {_MAX_COST}, usually 10")
    return match[0]


_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def _interval(node: "Node") -> float:
    text = _text(node)
    if text != "0" and not re.fullmatch(f"(?:{_DURATION.pattern})+", text):
        raise ValueError("not a duration; use numbers with units, such as 100ms, 1s or 1m30s")
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text))


def _burst(node: "Node") -> int:
    text = _text(node)
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError("not a whole number")
    return int(text)


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
_TLS13_CIPHERS = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}

_SECTIONS: Mapping[str, _Parser] = dict.fromkeys(
    ("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit"), _as_is
)
_TLS: Mapping[str, _Parser] = {
    "cert": lambda node: _text(node).encode(),
    "key": lambda node: _text(node).encode(),
    "client_ca": lambda node: _text(node).encode(),
    "cert_file": _text,
    "key_file": _text,
    "client_auth_type": _client_auth,
    "client_ca_file": _text,
    "client_allowed_sans": lambda node: frozenset(_texts(node)),
    "min_version": _version,
    "max_version": _version,
    "cipher_suites": _ciphers,
    "prefer_server_cipher_suites": _switch,
    "curve_preferences": _curve,
}
_HTTP: Mapping[str, _Parser] = {"http2": _switch, "headers": _as_is}
_HEADERS: Mapping[str, _Parser] = {
    "Strict-Transport-Security": _header(),
    "X-Content-Type-Options": _header("nosniff"),
    "X-Frame-Options": _header("deny", "sameorigin"),
    "X-XSS-Protection": _header(),
    "Content-Security-Policy": _header(),
}
"""The headers that exporter-toolkit allows, and their values if restricted."""
