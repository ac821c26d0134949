"""The web configuration in force: read again whenever the file, or a certificate that it names, has changed.

What became bad is reported once, and what was in force stays so. Nobody is let in because of a file that is half
written: protection that is in force can be changed while running, but not taken away.
"""

import dataclasses
import logging
import ssl
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from exporter.errors import WebConfigError
from exporter.http import passwords, tls, webconfig
from exporter.http.tls import Pems
from exporter.http.webconfig import Inline, Pem, WebConfig

_LOG = logging.getLogger(__name__)
_MAX_BYTES = 1 << 20  # of a file; a bundle of all public CAs has 200 KiB


@dataclasses.dataclass(frozen=True, slots=True)
class Web:
    """A configuration with its certificates loaded; `context` is None for plain HTTP."""

    config: WebConfig
    context: ssl.SSLContext | None


PLAIN = Web(WebConfig(), None)
"""What is in force without a file."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Content:
    """A file as it was read."""

    content: bytes = dataclasses.field(repr=False)
    problem: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class _Seen:
    """Everything that makes a configuration, as it was at one time; `config` is None where the file has problems."""

    file: _Content
    config: WebConfig | None
    problems: tuple[str, ...]
    named: Mapping[Path, _Content]


class WebFile:
    """The file, read again on each `current`: that is four small reads, and clocks of file systems need no trust.

    Raises:
        WebConfigError: The file, or what it names, cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._where = f"web configuration {path}"
        self._lock = threading.Lock()
        self._seen = self._look(None)
        self._web = self._load(self._seen)

    def current(self) -> Web:
        """What is in force now."""
        with self._lock:
            seen = self._look(self._seen)
            if seen != self._seen:
                self._seen = seen
                self._change()
            return self._web

    def _look(self, last: _Seen | None) -> _Seen:
        file = _read(self._path)
        config: WebConfig | None = None
        problems: tuple[str, ...] = (f"{self._where}: {file.problem}",)
        if last is not None and last.file == file:
            config, problems = last.config, last.problems
        elif not file.problem:
            try:
                config, problems = webconfig.parse(file.content, self._path), ()
            except WebConfigError as error:
                problems = tuple(str(error).splitlines())
        return _Seen(file, config, problems, {path: _read(path) for path in _named(config)})

    def _change(self) -> None:
        try:
            new = self._load(self._seen)
            _must_not_open(self._web.config, new.config, self._where)
        except WebConfigError as error:
            words = "; ".join(str(error).splitlines())
            _LOG.error("%s; what was in force before stays so", words)
            return
        _LOG.info("%s was read again", self._where)
        self._web = new

    def _load(self, seen: _Seen) -> Web:
        config = seen.config
        if config is None:
            raise WebConfigError(seen.problems)
        if config.users:
            passwords.require(self._where)
        if config.tls is None:
            return Web(config, None)
        given = {
            "cert_file": config.tls.cert,
            "key_file": config.tls.key,
            "client_ca_file": config.tls.client_ca,
        }
        pems = Pems(*(self._pem(pem, field, seen) for field, pem in given.items()))
        return Web(config, tls.context(config.tls, pems, self._where))

    def _pem(self, pem: Pem | None, field: str, seen: _Seen) -> bytes:
        if pem is None:
            return b""
        if isinstance(pem, Inline):
            return pem.pem.encode()
        found = seen.named[pem]
        if found.problem:
            raise WebConfigError([f"{self._where}: {field} {pem}: {found.problem}"])
        return found.content


def _named(config: WebConfig | None) -> Iterator[Path]:
    if config is not None and config.tls is not None:
        for pem in (config.tls.cert, config.tls.key, config.tls.client_ca):
            if isinstance(pem, Path):
                yield pem


def _must_not_open(old: WebConfig, new: WebConfig, where: str) -> None:
    lost = sorted(old.protections - new.protections)
    if lost:
        raise WebConfigError(
            [f"{where}: no longer has {', '.join(lost)}; to serve without, start the exporter anew"]
        )


def _read(path: Path) -> _Content:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        return _Content(b"", f"cannot be read: {(reason or 'not a path').lower()}")
    return _Content(content) if len(content) <= _MAX_BYTES else _Content(b"", "is larger than 1 MiB")
