"""Errors, notes and logs. The one place that makes them safe to print.

Messages repeat what API servers, Prometheus and users wrote; none of it may reach a terminal as a command.
"""

import datetime
import json
import logging
import sys

from rightsizer.text import safe, safe_lines


def _time(record: logging.LogRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.created, tz=datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname.lower():7} {record.getMessage()}"
        return safe_lines(f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line)


class _Line(logging.Formatter):
    """A report of work, each of its lines with the time."""

    def format(self, record: logging.LogRecord) -> str:
        time = f"{_time(record)[:19]}Z"
        return "\n".join(f"{time} {safe(line)}" for line in record.getMessage().splitlines())


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": " ".join(record.getMessage().split()),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def log_to_stderr(level: str, *, as_json: bool) -> None:
    """Write log lines of at least `level` to standard error.

    Of the libraries only warnings: their details have the bodies of responses, with Secrets among them.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if as_json else _Text())
    root = logging.getLogger()
    for earlier in [one for one in root.handlers if isinstance(one.formatter, _Text | _Json)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level.upper()]))
    logging.getLogger("rightsizer").setLevel(level.upper())


def log_to_stdout(*, as_json: bool) -> logging.Logger:
    """The log of what a program reports about its work; --log-level does not apply to it."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Json() if as_json else _Line())
    log = logging.getLogger("gpu-rightsizer")
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)
    return log


def complain(words: str) -> None:
    """Print why the program ends."""
    print(safe_lines(f"error: {words}"), file=sys.stderr)  # noqa: T201


def see_help(program: str) -> None:
    """Print where the flags are explained."""
    print(f"see {program} --help", file=sys.stderr)  # noqa: T201


def see_roles() -> None:
    """Print where the permissions are explained."""
    print("see gpu-rightsizer doctor --roles, the permissions of each command", file=sys.stderr)  # noqa: T201


def note(words: str) -> None:
    """Print something that a person should know while the program continues."""
    print(safe_lines(f"note: {words}"), file=sys.stderr)  # noqa: T201
