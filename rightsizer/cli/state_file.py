"""The file of --state-file: what plans have read of histories, for the next process; a failure is a warning."""

import contextlib
import logging
import os
import pathlib
import tempfile
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from rightsizer.cli.plan_session import program_version

MOST_BYTES = 1 << 30
"""Larger files are not read."""

log = logging.getLogger(__name__)


class Kept(Protocol):
    """What is kept for the next process."""

    def restore(self, data: bytes, owner: str) -> None:
        """Continue with what another process saved; raises ValueError, and takes nothing over, if it cannot."""
        ...


def restore(kept: Sequence[Kept], path: pathlib.Path) -> None:
    """Continue with what is in the file, if this version wrote it."""
    if not path.is_file():
        log.info("--state-file %s: there is no such file yet", path)
        return
    try:
        with path.open("rb") as file:
            parts = msgspec.msgpack.decode(file.read(MOST_BYTES), type=list[bytes])
        for each, data in zip(kept, parts, strict=True):
            each.restore(data, program_version())
    except msgspec.DecodeError:
        log.warning("--state-file %s is not used whole: it is damaged; what it lacks is queried", path)
    except (OSError, ValueError) as error:
        log.warning("--state-file %s is not used whole: %s; what it lacks is queried", path, error)


def save(kept: Iterable[bytes], path: pathlib.Path) -> None:
    """Replace the file; a reader finds the old one or the new one, never a part."""
    name = ""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
            name = file.name
            file.write(msgspec.msgpack.encode(list(kept)))
        os.replace(name, path)  # noqa: PTH105 - both names are texts
    except OSError as error:
        log.warning("--state-file %s is not written: %s", path, error)
        with contextlib.suppress(OSError):
            pathlib.Path(name).unlink()
