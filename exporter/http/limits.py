"""The places of connections: many for those that have not yet asked, few for those that are answered.

Whoever has sent no full head can be dropped for a newcomer: by saying nothing, nobody keeps others out. Must not know
what is said.
"""

import threading

from exporter.http.connection import Connection

MAX_ANSWERED = 16  # a few Prometheis, probes and a person; the rest are told to come again
MAX_WAITING = 64  # each has a thread, for it may be in the middle of a TLS handshake


class Places:
    """Who is connected, and which of them has asked."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[Connection, None] = {}  # the oldest first
        self._answered: set[Connection] = set()

    def enter(self, newcomer: Connection) -> bool:
        """Take a newcomer in; whether the one that has waited longest was hung up on for it."""
        with self._changed:
            is_full = len(self._waiting) >= MAX_WAITING
            if is_full:
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                oldest.hang_up()
            self._waiting[newcomer] = None
        return is_full

    def ask(self, connection: Connection) -> bool:
        """Whether one that has asked can be answered; where not, it still counts as waiting."""
        with self._changed:
            if connection not in self._waiting or len(self._answered) >= MAX_ANSWERED:
                return False
            del self._waiting[connection]
            self._answered.add(connection)
        return True

    def leave(self, connection: Connection) -> None:
        """Give its place back; from here on nobody but its owner touches it."""
        with self._changed:
            self._waiting.pop(connection, None)
            self._answered.discard(connection)
            self._changed.notify_all()

    def wait_until_empty(self, timeout_s: float) -> None:
        """Wait until all have left, but not for longer."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._answered, timeout_s)
