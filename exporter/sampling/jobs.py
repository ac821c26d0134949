"""Reads the batch jobs (of Slurm, for example) of each device from a directory that the batch system writes to.

A file per device, `<gpu index>` or `<gpu index>.<GPU instance id>`, with a job id per line: dcgm-exporter's format.
An invalid file costs only that file. Must not know how devices are read.
"""

import errno
import logging
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from exporter.model import Device

_LOG = logging.getLogger(__name__)
_NAME = re.compile(r"(0|[1-9][0-9]{0,5})(?:\.(0|[1-9][0-9]{0,5}))?")
_MAX_BYTES = 64 * 1024
_MAX_JOBS = 100  # each is a copy of all series of its device
_MAX_LENGTH = 256
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

Jobs = Mapping[tuple[int, int | None], tuple[str, ...]]


def jobs_of(device: Device, jobs: Jobs) -> tuple[str, ...]:
    """The jobs on `device`. Those on a whole GPU are not on each of its MIG instances."""
    instance = device.instance
    return jobs.get((device.index, instance.gpu_instance_id if instance else None), ())


class JobDirectory:
    """The directory, read once per cycle; it may come and go."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._logged: frozenset[str] = frozenset()

    def read(self) -> Jobs:
        """The jobs of each device, in the order of their file, by GPU index and GPU instance id."""
        messages: list[str] = []
        jobs = {}
        for name in self._names(messages):
            match = _NAME.fullmatch(name)
            if match is None:
                messages.append(f'{self._path}/{name}: the name is not a GPU such as "0" or "0.3"; ignored')
                continue
            try:
                jobs[int(match[1]), int(match[2]) if match[2] else None] = _job_ids(
                    _content(self._path / name)
                )
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                messages.append(f"{self._path}/{name}: cannot be read: {reason}; its jobs are omitted")
            except ValueError as error:
                messages.append(f"{self._path}/{name}: {error}; its jobs are omitted")
        self._log_new(messages)
        return jobs

    def _names(self, messages: list[str]) -> list[str]:
        try:
            return sorted(path.name for path in self._path.iterdir())
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            messages.append(f"{self._path}: cannot be listed: {reason}; exporting without jobs until then")
            return []

    def _log_new(self, messages: list[str]) -> None:
        """Log each message in the first of consecutive cycles with it."""
        for message in messages:
            if message not in self._logged:
                _LOG.warning("%s", message)
        self._logged = frozenset(messages)


def _content(path: Path) -> bytes:
    """The file's content. Only regular files are read: a pipe, for example, could block the exporter.

    Links are not followed: they could publish files that only the exporter can read. Raises OSError: it is
    unreadable. Raises ValueError: it is not a list of jobs.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError("a link, which is not followed") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a file")
        content = os.read(descriptor, _MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"larger than {_MAX_BYTES // 1024} KiB")
    return content


def _job_ids(content: bytes) -> tuple[str, ...]:
    """The distinct lines that are not blank, as label values; ValueError if there are too many."""
    lines = content.decode(errors="replace").removeprefix("\ufeff").split("\n")
    found = dict.fromkeys(_UNPRINTABLE.sub("", line).strip()[:_MAX_LENGTH] for line in lines)
    found.pop("", None)
    if len(found) > _MAX_JOBS:
        raise ValueError(f"{len(found)} jobs, more than {_MAX_JOBS} per device")
    return tuple(found)
