"""What goes to stderr: errors and the log. The one place where it is made safe to print.

Messages repeat what API servers, Prometheus and users wrote; none of it may reach a terminal as a command.
"""

import logging
import sys

from rightsizer.text import safe_lines

_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class _Formatter(logging.Formatter):
    """One record as text that is safe to print."""

    def format(self, record: logging.LogRecord) -> str:
        """Also of a traceback, whose messages are no safer."""
        return safe_lines(super().format(record))


def start_log(verbosity: int) -> None:
    """Log to stderr: warnings, with 1 what is done, with 2 every detail of it.

    Only our own loggers speak up: the libraries' would tell the bodies of answers, and Secrets are among them.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    for ours in [one for one in root.handlers if isinstance(one.formatter, _Formatter)]:
        root.removeHandler(ours)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("rightsizer").setLevel(_LEVELS[min(verbosity, len(_LEVELS) - 1)])


def complain(words: str) -> None:
    """Tell a person why the program ends."""
    print(safe_lines(f"gpu-rightsizer: {words}"), file=sys.stderr)  # noqa: T201
