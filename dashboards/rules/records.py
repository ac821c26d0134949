"""Recording rules and their groups. Pure."""

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A recorded series and its expression."""

    record: str
    expr: str
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated in order."""

    name: str
    interval: str
    rules: Sequence[Rule]
