"""What the labels and the values of series mean, worked out once for each text that an answer holds.

A hundred thousand series come back in every answer with the same labels, written the same way, and most of them with
the same values. Of each text a digest is kept, not the text. Knows nothing of what the texts mean.
"""

import hashlib
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")

_DIGEST_BYTES = 16
"""Among a million texts two of one digest are as likely as one in 10^26."""
_MOST = 1_000_000


class Interpreted(Generic[T]):
    """Texts of JSON, and what they stand for.

    Args:
        read: Says what a text stands for. What it gives is shared, and must not be changed.
    """

    def __init__(self, read: Callable[[msgspec.Raw], T]) -> None:
        self._read = read
        self._known: dict[bytes, T] = {}

    def of(self, text: msgspec.Raw) -> T:
        """What a text stands for.

        Raises:
            msgspec.DecodeError, ValueError: It cannot be read.
        """
        digest = hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest()
        try:
            return self._known[digest]
        except KeyError:
            pass
        if len(self._known) >= _MOST:
            self._known.clear()
        found = self._known[digest] = self._read(text)
        return found
