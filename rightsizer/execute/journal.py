"""The journal: every step of every run as a line of JSON, with the intent before the change.

It is only a log: the state of a change is on its object. So a torn line, such as the last one after a crash, loses only
that line. Several processes may write one journal, such as `undo` during `run`: each locks the file for each line, and
follows when another process rotates it.
"""

import contextlib
import datetime
import fcntl
import os
import pathlib
from collections.abc import Callable, Iterator

import msgspec

from rightsizer.changes.record_codec import EFFECT, INTENT, OUTCOME, JournalEntry
from rightsizer.errors import ConfigurationError, RightsizerError
from rightsizer.model import Decision, ObjectRef, Outcome
from rightsizer.text import decoded, require_ours, tidy

LARGEST_BYTES = 10 << 20
"""Maximum size of one file before it is rotated."""
ROTATED_FILES = 5
"""Rotated files to keep: FILE.1 is the newest."""

_LONGEST_LINE = 1 << 20


class JournalError(RightsizerError):
    """The journal cannot be written, so nothing is changed."""


class Journal:
    """Appends entries to a file, each synced to disk; only the owner may read the file.

    Raises:
        ConfigurationError: It cannot be written.
    """

    def __init__(
        self,
        path: pathlib.Path,
        run: str,
        clock: Callable[[], datetime.datetime],
        *,
        largest: int = LARGEST_BYTES,
    ) -> None:
        self._path = path
        self._run = run
        self._clock = clock
        self._largest = largest
        try:
            self._file = _opened(path)
            with self._locked():
                _end_line(self._file, path)
        except OSError as error:
            raise ConfigurationError(f'--journal "{path}": cannot be written: {error.strerror}') from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def intent(self, decision: Decision) -> None:
        """Write what is about to be done.

        Raises:
            JournalError: It cannot be written.
        """
        action = decision.action.value if decision.action else ""
        entry = self._entry(decision.workload.ref, INTENT, action, "; ".join(decision.finding.words))
        self._append(msgspec.structs.replace(entry, gpus=tidy(decision.frees), rule=decision.rule))

    def reconcile_intent(self, ref: ObjectRef, action: str, words: str) -> None:
        """Write what is about to be reconciled or undone, and why.

        Raises:
            JournalError: It cannot be written.
        """
        self._append(self._entry(ref, INTENT, action, words))

    def outcome(self, outcome: Outcome) -> None:
        """Write the outcome of a change or a reconciliation, or its effect once that is verified.

        Raises:
            JournalError: It cannot be written.
        """
        step, words = (EFFECT, outcome.effect.words) if outcome.effect else (OUTCOME, outcome.detail)
        entry = self._entry(outcome.ref, step, outcome.action, words)
        self._append(msgspec.structs.replace(entry, gpus=outcome.gpus, result=outcome.result.value))

    def _entry(self, ref: ObjectRef, step: str, action: str, reason: str) -> JournalEntry:
        return JournalEntry(
            at=self._clock(),
            run=self._run,
            step=step,
            namespace=ref.namespace,
            kind=ref.kind,
            name=ref.name,
            action=action,
            uid=ref.uid,
            reason=reason,
        )

    def _append(self, entry: JournalEntry) -> None:
        try:
            data = msgspec.json.encode(entry) + b"\n"
            with self._locked():
                is_full = 0 < os.fstat(self._file).st_size > self._largest - len(data)
                if is_full:
                    self._rotate()
                else:
                    self._write(data)
            if is_full:
                with self._locked():
                    self._write(data)
        except OSError as error:
            raise JournalError(f'--journal "{self._path}": cannot be written: {error.strerror}') from error

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """While entered, no other process writes to the file at the path, or rotates it."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        while not _is_at(self._file, self._path):
            os.close(self._file)
            self._file = _opened(self._path)
            fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _rotate(self) -> None:
        for number in range(ROTATED_FILES - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                _numbered(self._path, number).rename(_numbered(self._path, number + 1))
        self._path.rename(_numbered(self._path, 1))


def _numbered(path: pathlib.Path, number: int) -> pathlib.Path:
    return path.with_name(f"{path.name}.{number}")


def _opened(path: pathlib.Path) -> int:
    """Only its owner may read it: reasons name workloads of all namespaces."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return file


def _is_at(file: int, path: pathlib.Path) -> bool:
    """Whether the open file is still the one at the path."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _end_line(file: int, path: pathlib.Path) -> None:
    """End a line that a crash tore, so that the next entry has its own line."""
    size = os.fstat(file).st_size
    if not size:
        return
    with path.open("rb") as before:
        before.seek(size - 1)
        if before.read(1) != b"\n":
            os.write(file, b"\n")


def read_journal(path: pathlib.Path) -> Iterator[JournalEntry | str]:
    """All entries, oldest first; a message for a line that cannot be read.

    Raises:
        ConfigurationError: There is no such file, or it cannot be read.
    """
    files = [one for number in range(ROTATED_FILES, 0, -1) if (one := _numbered(path, number)).exists()]
    # After a crash in the middle of a rotation there is no file at the path itself.
    for file in [*files, path] if path.exists() or not files else files:
        try:
            lines = file.read_bytes().splitlines()
        except OSError as error:
            raise ConfigurationError(f'--journal "{file}": cannot be read: {error.strerror}') from error
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                yield _step(line)
            except ValueError as error:
                yield f"{file.name}, line {number}: cannot be read: {str(error).removeprefix('cannot be read: ')}"


def _step(line: bytes) -> JournalEntry:
    step = decoded(line.decode(), JournalEntry, longest=_LONGEST_LINE)
    require_ours(step.at)
    return step
