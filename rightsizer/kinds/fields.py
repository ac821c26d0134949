"""Fields that we change of an object, what they may hold, and what stands against changing them. Pure."""

import dataclasses
import enum
import re
from collections.abc import Mapping
from typing import Any

from rightsizer.kinds.edits import Path, shown, value_at

_LONGEST_TEXT = 256
_MOST = 1_000_000
_CANONICAL = re.compile("0|(?![0-9]*000$)[1-9][0-9]{0,8}")
"""Whole numbers that the API server stores as they are; it stores 32000 as 32k."""
PLAIN = re.compile(r'[^",\\\x00-\x1f]*')
"""Texts that JSON does not escape: admission guardrails compare them with the text of a record."""


class Value(enum.Enum):
    """What a field may hold; by it a record that somebody else wrote is told from one of ours."""

    COUNT = "a number from 0"
    SWITCH = "true or false"
    TEXT = "a short text"
    QUANTITY = "a whole number"
    NAMES = "a list of names"

    def allows(self, value: Any) -> bool:  # noqa: ANN401 - JSON
        """Whether it may be; any field may be absent."""
        if value is None:
            return True
        match self:
            case Value.COUNT:
                return type(value) is int and 0 <= value <= _MOST
            case Value.SWITCH:
                return type(value) is bool
            case Value.TEXT:
                is_short = isinstance(value, str) and len(value) <= _LONGEST_TEXT
                return is_short and PLAIN.fullmatch(value) is not None
            case Value.QUANTITY:
                return (type(value) is int and 0 <= value <= _MOST) or (
                    isinstance(value, str) and _CANONICAL.fullmatch(value) is not None
                )
            case Value.NAMES:
                return isinstance(value, list) and all(Value.TEXT.allows(name) and name for name in value)


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A field that we may change, and what it may hold."""

    path: Path
    value: Value


def annotation(key: str) -> Field:
    """An annotation of the object itself."""
    return Field(("metadata", "annotations", key), Value.TEXT)


REPLICAS = Field(("spec", "replicas"), Value.COUNT)
SUSPEND = Field(("spec", "suspend"), Value.SWITCH)
NOW = "now"
"""In place of a value: the time of the change, RFC 3339 in UTC."""


SET = object()
"""In place of a guard's value: any that is not empty."""


@dataclasses.dataclass(frozen=True, slots=True)
class BlockingField:
    """A field of the object by which it is nothing for us to change.

    Attributes:
        value: That it has then; None where it is absent, SET for any.
        why: What follows, for people.
    """

    path: Path
    value: Any
    why: str = "another decides how many run"

    def holds(self, obj: Mapping[str, Any]) -> bool:
        """Whether it does, of an object."""
        found = value_at(obj, self.path)
        return bool(found) if self.value is SET else bool(found == self.value)

    def __str__(self) -> str:
        """For people."""
        told = "set" if self.value is SET else "not set" if self.value is None else repr(self.value)
        return f"its {shown(self.path)} is {told}, so that {self.why}"
