"""The journal: every step of every run as a line of JSON in a file, what is intended before it is done.

It only tells: what is true of an object stands on the object. So a record that is torn, as the last one is when the
machine dies, costs that record. Several processes may write one journal, such as `undo` beside `run`: each locks the
file for the record that it appends, and goes on in the next file where another one has set it aside.
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
"""Of one file; then it is set aside."""
SET_ASIDE = 5
"""Files that are kept besides: FILE.1 is the youngest."""

_LONGEST_LINE = 1 << 20


class JournalError(RightsizerError):
    """The journal cannot be written: then nothing is done either."""


class Journal:
    """Appends records to a file, each of them safe before anything else happens.

    Args:
        path: The file; made for its owner alone where it does not exist.
        run: Whose steps these are.
        clock: The time now, aware.
        largest: Bytes, beyond which the file is set aside.

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
            raise ConfigurationError(f"--journal {path}: cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """Give the file back."""
        os.close(self._file)

    def intent(self, decision: Decision) -> None:
        """What is about to be done.

        Raises:
            JournalError: It cannot be kept.
        """
        ref = decision.workload.ref
        step = JournalEntry(
            at=self._clock(),
            run=self._run,
            step=INTENT,
            namespace=ref.namespace,
            kind=ref.kind,
            name=ref.name,
            action=decision.action.value if decision.action else "",
            uid=ref.uid,
            gpus=tidy(decision.frees),
            rule=decision.rule,
            reason="; ".join(decision.finding.words),
        )
        self._append(step)

    def mending(self, ref: ObjectRef, action: str, words: str) -> None:
        """What is about to be repaired or put back, and why.

        Raises:
            JournalError: It cannot be kept.
        """
        step = JournalEntry(
            at=self._clock(),
            run=self._run,
            step=INTENT,
            namespace=ref.namespace,
            kind=ref.kind,
            name=ref.name,
            action=action,
            uid=ref.uid,
            reason=words,
        )
        self._append(step)

    def outcome(self, outcome: Outcome) -> None:
        """What became of it, or of a repair; once that was looked at, what it came to.

        Raises:
            JournalError: It cannot be kept.
        """
        ref = outcome.ref
        effect = outcome.effect
        step = JournalEntry(
            at=self._clock(),
            run=self._run,
            step=EFFECT if effect else OUTCOME,
            namespace=ref.namespace,
            kind=ref.kind,
            name=ref.name,
            action=outcome.action,
            uid=ref.uid,
            gpus=outcome.gpus,
            result=outcome.result.value,
            reason=effect.words if effect else outcome.detail,
        )
        self._append(step)

    def _append(self, step: JournalEntry) -> None:
        try:
            data = msgspec.json.encode(step) + b"\n"
            with self._locked():
                is_full = 0 < os.fstat(self._file).st_size > self._largest - len(data)
                if is_full:
                    self._set_aside()
                else:
                    self._write(data)
            if is_full:
                with self._locked():
                    self._write(data)
        except OSError as error:
            raise JournalError(f"--journal {self._path}: cannot be written: {error.strerror}") from error

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """While entered, nobody else writes to the file, which is the one of its name, or sets it aside."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        while not _is_at(self._file, self._path):
            os.close(self._file)
            self._file = _opened(self._path)
            fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _set_aside(self) -> None:
        for number in range(SET_ASIDE - 1, 0, -1):
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
    """Whether what is open is still the file of that name."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _end_line(file: int, path: pathlib.Path) -> None:
    """What a dying machine tore must not swallow the next record."""
    size = os.fstat(file).st_size
    if not size:
        return
    with path.open("rb") as before:
        before.seek(size - 1)
        if before.read(1) != b"\n":
            os.write(file, b"\n")


def read_journal(path: pathlib.Path) -> Iterator[JournalEntry | str]:
    """All steps, oldest first; in words what cannot be read.

    Raises:
        ConfigurationError: There is no such file, or it cannot be read.
    """
    files = [one for number in range(SET_ASIDE, 0, -1) if (one := _numbered(path, number)).exists()]
    # A machine that died between setting the file aside and opening the next one left none of its own name.
    for file in [*files, path] if path.exists() or not files else files:
        try:
            lines = file.read_bytes().splitlines()
        except OSError as error:
            raise ConfigurationError(f"--journal {file}: cannot be read: {error.strerror}") from error
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
