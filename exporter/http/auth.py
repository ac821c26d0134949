"""Rate limit and basic authentication of a web configuration. Must not know sockets.

bcrypt is slow by design, and guessing must not use up the CPU: one check runs at a time, a pause follows each failed
one, and results are remembered.
"""

import base64
import binascii
import collections
import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus

from exporter.errors import ConfigFileError
from exporter.http.messages import Reply, Request, busy, text_reply
from exporter.http.webconfig import Rate, WebConfig

_REMEMBERED = 100  # of each result, as in exporter-toolkit
_MAX_WAITING = 4  # requests; others get 503
_PAUSE = 3.0  # times the duration of a failed check: guessing costs at most a quarter of one core
_MAX_PASSWORD = 72  # bytes; bcrypt ignores more, and its library refuses more
_MAX_CREDENTIALS = 1024  # characters of base64
_UNKNOWN_USER = "{}.JdP0KtI9wGAq5BG7zf6Ru9bDjGcPUBe6p.nd.71/F3ZRVNqiz1ES"
_CHALLENGE = 'Basic realm="gpu-exporter", charset="UTF-8"'


def require_bcrypt(where: str) -> None:
    """Import bcrypt, which is needed only for passwords."""
    try:
        import bcrypt  # noqa: F401, PLC0415 - 1 MiB that few need
    except ModuleNotFoundError:
        problem = "basic_auth_users needs the library bcrypt; run: pip install 'gpu-rightsizer[exporter]'"
        raise ConfigFileError([f"{where}: {problem}"]) from None


class Gatekeeper:
    """Refuses requests above the rate limit or without a valid password; `clock` is in monotonic seconds.

    It remembers results under a digest that only this process can compute.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._bucket = _TokenBucket(clock)
        self._pepper = secrets.token_bytes(32)
        self._known: dict[bool, dict[bytes, None]] = {True: {}, False: {}}  # by result, the oldest first
        self._one = threading.Lock()
        self._waiting = threading.BoundedSemaphore(_MAX_WAITING)
        self._pause_until = 0.0

    def refusal(self, request: Request, config: WebConfig, *, until: float) -> Reply | None:
        """The reply to a refused request; None if it is accepted."""
        if config.rate is not None and not self._bucket.take(config.rate):
            return text_reply(
                HTTPStatus.TOO_MANY_REQUESTS, "more requests than rate_limit allows", Retry_After="1"
            )
        if not config.users:
            return None
        is_valid = self._is_valid(config.users, request.header("Authorization"), until)
        if is_valid is None:
            return busy("too many passwords to check; retry later")
        if is_valid:
            return None
        return text_reply(
            HTTPStatus.UNAUTHORIZED, "a user name and its password are required", WWW_Authenticate=_CHALLENGE
        )

    def _is_valid(self, users: Mapping[str, str], authorization: str, until: float) -> bool | None:
        """Check a header against `users` (bcrypt hashes by name); None if there is no result by `until`."""
        found = _credentials(authorization)
        if found is None:
            return False
        user, password = found
        # An unknown user costs as much as a known one: otherwise the time would reveal names.
        hashed = users.get(user) or _UNKNOWN_USER.format(_usual_prefix(users))
        digest = self._digest(user, hashed, password)
        result = self._remembered(digest)
        if result is None and self._waiting.acquire(blocking=False):
            try:
                result = self._check_in_turn(digest, hashed, password, until)
            finally:
                self._waiting.release()
        return result and user in users

    def _digest(self, user: str, hashed: str, password: bytes) -> bytes:
        digest = hmac.new(self._pepper, digestmod=hashlib.sha256)
        for part in (user.encode(), hashed.encode(), password):
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()

    def _remembered(self, digest: bytes) -> bool | None:
        return next((result for result, digests in self._known.items() if digest in digests), None)

    def _check_in_turn(self, digest: bytes, hashed: str, password: bytes, until: float) -> bool | None:
        if not self._one.acquire(timeout=max(0.0, until - self._clock())):
            return None
        try:
            known = self._remembered(digest)
            return self._compare(digest, hashed, password, until) if known is None else known
        finally:
            self._one.release()

    def _compare(self, digest: bytes, hashed: str, password: bytes, until: float) -> bool | None:
        import bcrypt  # noqa: PLC0415 - see `require_bcrypt`

        pause = self._pause_until - self._clock()
        if self._clock() + pause > until:
            return None
        if pause > 0:
            threading.Event().wait(pause)
        started = self._clock()
        result = bool(bcrypt.checkpw(password[:_MAX_PASSWORD], hashed.encode()))
        if not result:
            self._pause_until = self._clock() + _PAUSE * (self._clock() - started)
        digests = self._known[result]
        digests[digest] = None
        if len(digests) > _REMEMBERED:
            del digests[next(iter(digests))]
        return result


class _TokenBucket:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rate: Rate | None = None
        self._tokens = 0.0
        self._at = 0.0

    def take(self, rate: Rate) -> bool:
        """Whether there was a token; a new rate starts with a full bucket."""
        with self._lock:
            now = self._clock()
            gained = (now - self._at) / rate.interval_s if rate == self._rate else rate.burst
            self._rate, self._at = rate, now
            self._tokens = min(rate.burst, self._tokens + gained)
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True


def _usual_prefix(users: Mapping[str, str]) -> str:
    """Version and cost of most users' hashes."""
    prefixes = collections.Counter(hashed[: len("$2b$10$")] for hashed in users.values())
    return prefixes.most_common(1)[0][0]


def _credentials(authorization: str) -> tuple[str, bytes] | None:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic" or len(encoded) > _MAX_CREDENTIALS:
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (name.decode(), password) if colon else None
    except (binascii.Error, UnicodeDecodeError):
        return None
