"""What a recording rule and a group of them are. Pure."""

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """What is recorded, and of what."""

    record: str
    expr: str
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated one after the other."""

    name: str
    interval: str
    rules: Sequence[Rule]
