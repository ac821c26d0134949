"""Reports the outcome of each item to people as it happens, and to programs as a document at the end."""

import contextlib
import dataclasses
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from rightsizer.cli.options import AskingOptions, FormOptions, wants_colour
from rightsizer.cli.plan_session import utc_now
from rightsizer.errors import ConfigurationError, RightsizerError
from rightsizer.model import ClusterName, ObjectRef, Outcome, Result
from rightsizer.report.documents import outcome_document, render
from rightsizer.report.outcomes import effect_text, freed_per_hour, outcome_text, outcomes_summary
from rightsizer.text import per_hour_and_month, safe

IN_THE_DARK = "the run was ended in the middle of it: it is unknown whether it took effect, check the object"


def show(
    arguments: FormOptions,
    text: str,
    document: Mapping[str, Any],
    *,
    cluster: ClusterName | None = None,
) -> None:
    """Print a result in the form of --output; as text, the first line names the cluster."""
    if arguments.output != "table":
        sys.stdout.write(render(document, arguments.output))
        return
    head = f"Cluster: {safe(cluster.words)}\n" if cluster else ""
    sys.stdout.write(f"{head}{text}")


class OutcomeReporter:
    """The outcomes of one command: one by one for people, as a document at the end for programs.

    Args:
        arguments: With --output, --save and --color.
        run: None if an undo spans several runs.
        undo: The command that reverts all of it; empty if there is none.
        cluster: Where it acts.
    """

    def __init__(
        self, arguments: AskingOptions, run: str | None, *, undo: str, cluster: ClusterName | None = None
    ) -> None:
        self.outcomes: list[Outcome] = []
        self._cluster = cluster
        self._rates: Mapping[ObjectRef, float] = {}
        self._currency = ""
        self._arguments = arguments
        self._run = run
        self._undo = undo
        self._has_ended = False

    @property
    def people(self) -> TextIO:
        """Standard output, or standard error if a program reads a document from standard output."""
        return sys.stdout if self._arguments.output == "table" else sys.stderr

    def value(self, rates: Mapping[ObjectRef, float], currency: str) -> None:
        """Value GPUs by the price of one for an hour, by workload."""
        self._rates, self._currency = rates, currency

    def say(self, text: str) -> None:
        """Write to people at once: a question may come next."""
        _write(self.people, text)

    def tell(self, outcome: Outcome) -> None:
        """Report an outcome at once; for one that was reported, its effect."""
        if outcome.effect is not None:
            told = [(one.ref, one.action, one.is_reconciliation) for one in self.outcomes]
            self.outcomes[told.index((outcome.ref, outcome.action, outcome.is_reconciliation))] = outcome
            self.say(effect_text(outcome, colour=wants_colour(self._arguments, self.people)))
            return
        head = "" if self.outcomes else "\n"
        self.outcomes.append(outcome)
        self.say(head + outcome_text(outcome, colour=wants_colour(self._arguments, self.people)))

    def follow(self, steps: Iterable[Outcome], pending: list[Outcome]) -> None:
        """Report each step and the end; after an interrupt also the step in flight and those not begun.

        `pending` has for each step to come, in order, its outcome if it never begins.
        """
        try:
            for outcome in steps:
                del pending[:1]
                self.tell(outcome)
        except BaseException:
            for outcome in _unfinished(pending):
                self.tell(outcome)
            raise
        finally:
            self.end()

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Sum up and save what was reported also if the body fails."""
        try:
            yield
        except BaseException:
            if self.outcomes and not self._has_ended:
                self.end()
            raise

    def _saved(self) -> str:
        hourly = freed_per_hour(self.outcomes, self._rates)
        return per_hour_and_month(hourly, self._currency) if hourly > 0 else ""

    def end(self) -> None:
        """Report the totals, then save the document.

        Raises:
            RightsizerError: It cannot be saved.
        """
        self._has_ended = True
        document = outcome_document(self._run, self.outcomes, at=utc_now(), cluster=self._cluster)
        if self._currency:
            hourly = freed_per_hour(self.outcomes, self._rates)
            document["totals"] = {"freedPerHour": round(hourly, 4), "currency": self._currency}
        if self.outcomes:
            self.say("\n" + outcomes_summary(self.outcomes, undo=self._undo, saved=self._saved()))
        if self._arguments.output != "table":
            _write(sys.stdout, render(document, self._arguments.output))
        save(self._arguments.save, [render(document, "json")])


def _unfinished(left: Sequence[Outcome]) -> Iterator[Outcome]:
    for place, outcome in enumerate(left):
        now = dataclasses.replace(outcome, at=utc_now())
        yield now if place else dataclasses.replace(now, result=Result.UNKNOWN, detail=IN_THE_DARK)


def _write(stream: TextIO, text: str) -> None:
    """Write at once; if the reader is gone (head, less), the work goes on without output."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def require_writable(path: pathlib.Path | None) -> None:
    """Check before any change that --save can be written.

    Raises:
        ConfigurationError: It cannot.
    """
    if path is None:
        return
    is_new = not path.exists()
    try:
        with path.open("a"):
            pass
    except OSError as error:
        raise ConfigurationError(f'--save "{path}": cannot be written: {error.strerror}') from error
    if is_new:
        with contextlib.suppress(OSError):
            path.unlink()


def save(path: pathlib.Path | None, pieces: Iterable[str]) -> None:
    """Write a document, piece by piece, where --save said.

    Raises:
        RightsizerError: It cannot be written.
    """
    if path is None:
        return
    try:
        with path.open("w") as file:
            file.writelines(pieces)
    except OSError as error:
        raise RightsizerError(f'--save "{path}": cannot be written: {error.strerror}') from error


def require_new_folder(path: pathlib.Path | None) -> None:
    """Check before the plan that --patches names no folder with files: these could be patches still in use.

    Raises:
        ConfigurationError: It does, or it is a file.
    """
    try:
        if path is not None and any(path.iterdir()):
            raise ConfigurationError(f'--patches "{path}": is not empty; name a new folder')
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ConfigurationError(f'--patches "{path}": cannot be read: {error.strerror}') from error


def save_files(path: pathlib.Path, files: Mapping[str, str]) -> None:
    """Write files into a folder.

    Raises:
        RightsizerError: One cannot be written.
    """
    try:
        for name, text in files.items():
            file = path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    except OSError as error:
        raise RightsizerError(f'--patches "{path}": cannot be written: {error.strerror}') from error
