"""Basic authentication against bcrypt hashes, which are slow by design and must not become a way to keep us busy.

One check at a time, with a rest after each that fails; what was checked is remembered. Must not know HTTP, but for the
form of its Authorization header.
"""

import base64
import binascii
import collections
import enum
import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable, Mapping

from exporter.errors import WebConfigError

_REMEMBERED = 100  # of each outcome, as exporter-toolkit does
_MAX_WAITING = 4  # requests; what else comes is told to come again
_REST = 3.0  # times what a failed check took: guessing costs us at most a quarter of one core
_MAX_PASSWORD = 72  # bytes, of which bcrypt has never looked at more; its library refuses longer ones
_MAX_CREDENTIALS = 1024  # characters of base64
_NOBODY = "{}.JdP0KtI9wGAq5BG7zf6Ru9bDjGcPUBe6p.nd.71/F3ZRVNqiz1ES"


class Verdict(enum.Enum):
    """What becomes of who gives a name and a password."""

    ALLOWED = enum.auto()
    DENIED = enum.auto()
    BUSY = enum.auto()


def require(where: str) -> None:
    """Import bcrypt, which is not needed before somebody wants passwords.

    Raises:
        WebConfigError: It is not installed; `where` stands before the message.
    """
    try:
        import bcrypt  # noqa: F401, PLC0415 - 1 MiB that few need
    except ModuleNotFoundError:
        words = "basic_auth_users needs the library bcrypt; run in a checkout: pip install '.[exporter]'"
        raise WebConfigError([f"{where}: {words}"]) from None


class Passwords:
    """Checks names and passwords, and remembers the outcome under a digest that only this process can make."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pepper = secrets.token_bytes(32)
        self._known = {True: _Memory(), False: _Memory()}
        self._one = threading.Lock()
        self._waiting = threading.BoundedSemaphore(_MAX_WAITING)
        self._rest_until = 0.0

    def check(self, users: Mapping[str, str], authorization: str, *, until: float) -> Verdict:
        """Whether one of `users` (bcrypt hashes by name) sent this header; BUSY when it is not known by `until`."""
        found = _credentials(authorization)
        if found is None:
            return Verdict.DENIED
        user, password = found
        hashed = users.get(user)
        # Whoever is not known costs as much as who is, or the time taken would tell names.
        against = hashed or _NOBODY.format(_usual(users))
        digest = self._digest(user, against, password)
        known = self._remembered(digest)
        if known is None:
            known = self._work(digest, against, password, until)
        if known is None:
            return Verdict.BUSY
        return Verdict.ALLOWED if known and hashed is not None else Verdict.DENIED

    def _digest(self, user: str, hashed: str, password: bytes) -> bytes:
        digest = hmac.new(self._pepper, digestmod=hashlib.sha256)
        for part in (user.encode(), hashed.encode(), password):
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()

    def _remembered(self, digest: bytes) -> bool | None:
        return next((outcome for outcome, memory in self._known.items() if digest in memory), None)

    def _work(self, digest: bytes, hashed: str, password: bytes, until: float) -> bool | None:
        """Check when it is our turn; None when that does not come in time."""
        if not self._waiting.acquire(blocking=False):
            return None
        try:
            if not self._one.acquire(timeout=max(0.0, until - self._clock())):
                return None
            try:
                known = self._remembered(digest)
                return self._compare(digest, hashed, password, until) if known is None else known
            finally:
                self._one.release()
        finally:
            self._waiting.release()

    def _compare(self, digest: bytes, hashed: str, password: bytes, until: float) -> bool | None:
        import bcrypt  # noqa: PLC0415 - see `require`

        rest = self._rest_until - self._clock()
        if self._clock() + rest > until:
            return None
        if rest > 0:
            threading.Event().wait(rest)
        begun = self._clock()
        outcome = bool(bcrypt.checkpw(password[:_MAX_PASSWORD], hashed.encode()))
        if not outcome:
            self._rest_until = self._clock() + _REST * (self._clock() - begun)
        self._known[outcome].add(digest)
        return outcome


class _Memory:
    """The last few digests."""

    def __init__(self) -> None:
        self._digests: collections.OrderedDict[bytes, None] = collections.OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, digest: bytes) -> bool:
        with self._lock:
            if digest not in self._digests:
                return False
            self._digests.move_to_end(digest)
            return True

    def add(self, digest: bytes) -> None:
        with self._lock:
            self._digests[digest] = None
            if len(self._digests) > _REMEMBERED:
                self._digests.popitem(last=False)


def _usual(users: Mapping[str, str]) -> str:
    """The prefix of most users' hashes: version and cost."""
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
