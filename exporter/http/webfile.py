"""The current web configuration: reloaded when the file or one of its certificates has changed.

An invalid file is logged once, and the old configuration stays. A reload can change protection but not remove it:
otherwise a half-written file would let everybody in.
"""

import dataclasses
import logging
import ssl
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from exporter.errors import ConfigFileError
from exporter.http import auth, tls, webconfig
from exporter.http.tls import Pems
from exporter.http.webconfig import Inline, Pem, WebConfig

_LOG = logging.getLogger(__name__)
_MAX_BYTES = 1 << 20  # of a file; a bundle of all public CAs has 200 KiB


@dataclasses.dataclass(frozen=True, slots=True)
class WebSetup:
    """A configuration and its TLS context; `context` is None for plain HTTP."""

    config: WebConfig
    context: ssl.SSLContext | None


PLAIN = WebSetup(WebConfig(), None)
"""The setup without a file."""


@dataclasses.dataclass(frozen=True, slots=True)
class _File:
    """Content of a file, or why it could not be read."""

    content: bytes = dataclasses.field(repr=False)
    problem: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class _Inputs:
    """All files of a configuration at one time; `config` is None if the file is invalid."""

    file: _File
    config: WebConfig | None
    problems: tuple[str, ...]
    pems: Mapping[Path, _File]


class WebFile:
    """The file. Each `current` reads its contents, four small reads, because timestamps are not reliable."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._where = f"web configuration {path}"
        self._lock = threading.Lock()
        self._inputs = self._read_inputs(None)
        self._setup = self._load(self._inputs)

    def current(self) -> WebSetup:
        """The current setup."""
        with self._lock:
            inputs = self._read_inputs(self._inputs)
            if inputs != self._inputs:
                self._inputs = inputs
                self._reload()
            return self._setup

    def _read_inputs(self, last: _Inputs | None) -> _Inputs:
        file = _read(self._path)
        config: WebConfig | None = None
        problems: tuple[str, ...] = (f"{self._where}: {file.problem}",)
        if last is not None and last.file == file:
            config, problems = last.config, last.problems
        elif not file.problem:
            try:
                config, problems = webconfig.parse(file.content, self._path), ()
            except ConfigFileError as error:
                problems = tuple(str(error).splitlines())
        return _Inputs(file, config, problems, {path: _read(path) for path in _named(config)})

    def _reload(self) -> None:
        try:
            new = self._load(self._inputs)
            _require_protection(self._setup.config, new.config, self._where)
        except ConfigFileError as error:
            problems = "; ".join(str(error).splitlines())
            _LOG.error("%s; keeping the previous configuration", problems)
            return
        _LOG.info("%s: reloaded", self._where)
        self._setup = new

    def _load(self, inputs: _Inputs) -> WebSetup:
        config = inputs.config
        if config is None:
            raise ConfigFileError(inputs.problems)
        if config.users:
            auth.require_bcrypt(self._where)
        if config.tls is None:
            return WebSetup(config, None)
        given = {
            "cert_file": config.tls.cert,
            "key_file": config.tls.key,
            "client_ca_file": config.tls.client_ca,
        }
        pems = Pems(*(self._pem(pem, field, inputs) for field, pem in given.items()))
        return WebSetup(config, tls.context(config.tls, pems, self._where))

    def _pem(self, pem: Pem | None, field: str, inputs: _Inputs) -> bytes:
        if pem is None:
            return b""
        if isinstance(pem, Inline):
            return pem.pem.encode()
        found = inputs.pems[pem]
        if found.problem:
            raise ConfigFileError([f"{self._where}: {field} {pem}: {found.problem}"])
        return found.content


def _named(config: WebConfig | None) -> Iterator[Path]:
    if config is not None and config.tls is not None:
        for pem in (config.tls.cert, config.tls.key, config.tls.client_ca):
            if isinstance(pem, Path):
                yield pem


def _require_protection(old: WebConfig, new: WebConfig, where: str) -> None:
    lost = sorted(old.protections - new.protections)
    if lost:
        raise ConfigFileError(
            [f"{where}: no longer has {', '.join(lost)}; restart the exporter to serve without"]
        )


def _read(path: Path) -> _File:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        return _File(b"", f"cannot be read: {(reason or 'not a path').lower()}")
    return _File(content) if len(content) <= _MAX_BYTES else _File(b"", "is larger than 1 MiB")
