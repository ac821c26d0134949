"""The file of --state-file: what plans have read of histories, for the next process; a failure is a warning."""

import contextlib
import logging
import os
import pathlib
import tempfile

from rightsizer.cli.plan_session import program_version
from rightsizer.usage.kept_slots import MOST_BYTES, KeptSlots

log = logging.getLogger(__name__)


def restore(slots: KeptSlots, path: pathlib.Path) -> None:
    """Continue with what is in the file, if this version wrote it."""
    if not path.is_file():
        log.info("--state-file %s: there is no such file yet", path)
        return
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        slots.restore(data, program_version())
    except (OSError, ValueError) as error:
        log.warning("--state-file %s is not used: %s; histories are queried whole", path, error)


def save(data: bytes, path: pathlib.Path) -> None:
    """Replace the file; a reader finds the old one or the new one, never a part."""
    name = ""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
            name = file.name
            file.write(data)
        os.replace(name, path)  # noqa: PTH105 - both names are texts
    except OSError as error:
        log.warning("--state-file %s is not written: %s", path, error)
        with contextlib.suppress(OSError):
            pathlib.Path(name).unlink()
