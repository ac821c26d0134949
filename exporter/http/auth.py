"""Who is answered: the rate limit and the passwords of a web configuration. Must not know sockets."""

import threading
from collections.abc import Callable
from http import HTTPStatus

from exporter.http.handlers import Reply, busy, text
from exporter.http.passwords import Passwords, Verdict
from exporter.http.request import Request
from exporter.http.webconfig import Rate, WebConfig


class Door:
    """Lets requests in or says why not.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._passwords = Passwords(clock)
        self._bucket = _Bucket(clock)

    def refuses(self, request: Request, config: WebConfig, *, until: float) -> Reply | None:
        """What a request is answered that is not let in; None for one that is."""
        if config.rate is not None and not self._bucket.take(config.rate):
            return text(HTTPStatus.TOO_MANY_REQUESTS, "more requests than rate_limit allows", Retry_After="1")
        if not config.users:
            return None
        verdict = self._passwords.check(config.users, request.header("Authorization"), until=until)
        if verdict is Verdict.ALLOWED:
            return None
        if verdict is Verdict.BUSY:
            return busy("too many passwords to check; come again")
        challenge = 'Basic realm="gpu-exporter", charset="UTF-8"'
        return text(HTTPStatus.UNAUTHORIZED, "a name and its password are needed", WWW_Authenticate=challenge)


class _Bucket:
    """Tokens that come back with time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rate: Rate | None = None
        self._tokens = 0.0
        self._at = 0.0

    def take(self, rate: Rate) -> bool:
        """Whether there was a token; a rate that is not the last one's begins with a full bucket."""
        with self._lock:
            now = self._clock()
            if rate != self._rate:
                self._rate, self._tokens = rate, float(rate.burst)
            else:
                self._tokens = min(rate.burst, self._tokens + (now - self._at) / rate.interval_s)
            self._at = now
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True
