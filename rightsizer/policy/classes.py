"""A PriorityClass that says by its annotations how its pods are treated → a rule. Pure.

Unlike users' annotations on workloads these are an administrator's, and can open as much as the file can. An
unreadable annotation protects and is reported.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import pydantic

from rightsizer.config import PREFIX
from rightsizer.model import Mode, PriorityClass
from rightsizer.policy.match import Match
from rightsizer.policy.rule import Rule
from rightsizer.policy.schema import Policy


@dataclasses.dataclass(frozen=True, slots=True)
class ClassRule:
    """A rule from the annotations of a PriorityClass.

    Attributes:
        changes: Fields of the idle thresholds that it gives; the others are the defaults' for the workload's kind.
        problems: Why it could not be read, so that it protects.
    """

    rule: Rule
    changes: Mapping[str, object] = dataclasses.field(default_factory=dict)
    problems: tuple[str, ...] = ()


def title_of(name: str) -> str:
    """The name of a class's rule; names in a file have no colons, so it is unique."""
    return f"priorityclass:{name}"


def protecting(name: str) -> Rule:
    """The rule of a class whose annotations are unknown or invalid."""
    rule = Rule(name="class", match=_ANY, mode=Mode.PROTECT)
    return rule.model_copy(update={"name": title_of(name)})


def _text(text: str) -> str:
    return text.strip()


def _mode(text: str) -> str:
    """The mode; `off`, which the annotation on workloads uses, means protect."""
    return "protect" if text.strip() == "off" else text.strip()


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _pairs(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in text.split(","):
        name, equals, treatment = (piece.strip() for piece in part.partition("="))
        if not equals or name in pairs:
            message = "write each finding once, such as idle=enforce,underutilized=off"
            raise ValueError(message)
        pairs[name] = treatment
    return pairs


def _number(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text.strip()):
        message = "write a number such as 0.95"
        raise ValueError(message)
    return float(text)


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text.strip()):
        message = "write a whole number such as 1"
        raise ValueError(message)
    return int(text)


@dataclasses.dataclass(frozen=True, slots=True)
class Annotation:
    """One annotation of a PriorityClass: the field of a rule that it sets, and how its text is parsed."""

    name: str
    field: tuple[str, ...]
    example: str
    read: Callable[[str], object]

    @property
    def key(self) -> str:
        """The annotation's key on the object."""
        return PREFIX + self.name


ANNOTATIONS: Final = (
    Annotation("mode", ("mode",), "enforce", _mode),
    Annotation("findings", ("findings",), "idle=enforce,stuck=off", _pairs),
    Annotation("actions", ("actions",), "scale-to-zero,suspend", _list),
    Annotation("only-for-pending-pods", ("onlyForPendingPods",), "suspend", _list),
    Annotation("idle-window", ("idle", "window"), "12h", _text),
    Annotation("min-idle-time", ("idle", "minIdleTime"), "48h", _text),
    Annotation("unused-window", ("idle", "unusedWindow"), "4h", _text),
    Annotation("grace", ("idle", "grace"), "1h", _text),
    Annotation("min-coverage", ("idle", "minCoverage"), "0.95", _number),
    Annotation("max-utilization", ("idle", "maxUtilizationPercent"), "1", _number),
    Annotation("max-memory-traffic", ("idle", "maxMemoryTrafficPercent"), "1", _number),
    Annotation("history", ("idle", "history"), "14d", _text),
    Annotation("idle-factor", ("idle", "idleFactor"), "2", _number),
    Annotation("notify-before", ("notifyBefore",), "4h", _text),
    Annotation("cooldown", ("cooldown",), "24h", _text),
    Annotation("min-replicas", ("minReplicas",), "1", _whole),
    Annotation("min-gpus", ("minGPUs",), "0", _whole),
)

_ANY = Match(everything=True)
"""Match of the class's pods, which are found by its name."""

_BY_KEY = {annotation.key: annotation for annotation in ANNOTATIONS}


def read_class(priority_class: PriorityClass) -> ClassRule | None:
    """The rule that a PriorityClass carries; None where it says nothing."""
    ours = {key: text for key, text in priority_class.annotations.items() if key.startswith(PREFIX)}
    if not ours:
        return None
    document: dict[str, Any] = {
        "name": "class",
        "match": _ANY,
        "idle": {},
    }
    problems = list(_fill(document, ours))
    if PREFIX + "mode" not in ours:
        problems.append(f"{PREFIX}mode is missing; write protect, advise or enforce")
    if problems:
        return _unreadable(priority_class, problems)
    try:
        rule = Rule.model_validate(document)
    except pydantic.ValidationError as error:
        return _unreadable(priority_class, [_message(detail) for detail in error.errors(include_url=False)])
    changes = {key: getattr(rule.idle, key) for key in document["idle"]}
    rule = rule.model_copy(update={"name": title_of(priority_class.name), "idle": None})
    return ClassRule(rule, changes)


def class_rules(policy: Policy, classes: Mapping[str, PriorityClass]) -> dict[str, ClassRule]:
    """The rules that PriorityClasses carry, by their names; none where the policy does not ask them."""
    if policy.classAnnotations == "off":
        return {}
    found = {name: read_class(classes[name]) for name in sorted(classes)}
    return {name: rule for name, rule in found.items() if rule is not None}


def _fill(document: dict[str, Any], ours: Mapping[str, str]) -> list[str]:
    """Write each annotation to its field of a policy document; returns the problems."""
    problems = []
    for key, text in sorted(ours.items()):
        row = _BY_KEY.get(key)
        if row is None:
            problems.append(f"{key} is unknown; docs/policy.md lists the annotations")
            continue
        try:
            value = row.read(text)
        except ValueError as error:
            problems.append(f"{key}: {text!r}: {error}")
            continue
        target = document
        for step in row.field[:-1]:
            target = target[step]
        target[row.field[-1]] = value
    return problems


def _message(detail: Mapping[str, Any]) -> str:
    place = tuple(part for part in detail["loc"] if isinstance(part, str))
    fields = {annotation.field[-1]: annotation.key for annotation in ANNOTATIONS}
    name = next((fields[part] for part in place if part in fields), "")
    message = str(detail["msg"]).removeprefix("Value error, ")
    return f"{name}: {message}" if name else message


def _unreadable(priority_class: PriorityClass, problems: list[str]) -> ClassRule:
    return ClassRule(protecting(priority_class.name), {}, tuple(problems))
