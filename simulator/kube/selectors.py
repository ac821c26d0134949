"""Label and field selectors, as text in a query and as LabelSelector objects. Pure."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from simulator.kube.errors import FieldError, bad_request
from simulator.kube.names import key_problems

_PARTS = re.compile(r",(?![^()]*\))")
_SET_BASED = re.compile(r"\s*([^\s,()=!<>]+)\s+(in|notin)\s*\(([^()]*)\)\s*")
_EQUALITY = re.compile(r"\s*([^\s,()=!<>]+)\s*(==|=|!=|>|<)\s*([^\s,()=!<>]*)\s*")
_EXISTENCE = re.compile(r"\s*(!?)\s*([^\s,()=!<>]+)\s*")
_FIELD = re.compile(r"\s*([\w.]+)\s*(==|=|!=)\s*(.*?)\s*")
_VALUED, _BARE = {"In", "NotIn"}, {"Exists", "DoesNotExist"}
"""What a LabelSelector object may say; Gt and Lt are for node selectors only."""
_EQUALITY_OPERATORS = {"=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt"}


def _number(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def _greater(value: str | None, wanted: tuple[str, ...]) -> bool:
    left, right = _number(value), _number(wanted[0] if wanted else None)
    return left is not None and right is not None and left > right


def _less(value: str | None, wanted: tuple[str, ...]) -> bool:
    left, right = _number(value), _number(wanted[0] if wanted else None)
    return left is not None and right is not None and left < right


_OPERATORS: Mapping[str, Callable[[str | None, tuple[str, ...]], bool]] = {
    "In": lambda value, wanted: value is not None and value in wanted,
    "NotIn": lambda value, wanted: value is None or value not in wanted,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": _greater,
    "Lt": _less,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one key."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet it."""
        return _OPERATORS[self.operator](labels.get(self.key), self.values)


@dataclasses.dataclass(frozen=True, slots=True)
class Selector:
    """A conjunction of requirements; none of them matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether all requirements hold."""
        return all(requirement.holds(labels) for requirement in self.requirements)

    def __bool__(self) -> bool:
        return bool(self.requirements)

    def __str__(self) -> str:
        """As the scale subresource reports it: `app=x,tier in (a,b)`."""
        return ",".join(_words(requirement) for requirement in self.requirements)


def _words(requirement: Requirement) -> str:
    values = ",".join(sorted(requirement.values))
    match requirement.operator:
        case "In" if len(requirement.values) == 1:
            return f"{requirement.key}={values}"
        case "In":
            return f"{requirement.key} in ({values})"
        case "NotIn":
            return f"{requirement.key} notin ({values})"
        case "Exists":
            return requirement.key
        case _:
            return f"!{requirement.key}"


def parse_labels(text: str) -> Selector:
    """A selector from a query's `labelSelector`."""
    if not text.strip():
        return Selector()
    return Selector(tuple(_parse_requirement(part) for part in _PARTS.split(text)))


def _parse_requirement(text: str) -> Requirement:
    if match := _SET_BASED.fullmatch(text):
        values = tuple(value.strip() for value in match[3].split(","))
        return Requirement(match[1], "In" if match[2] == "in" else "NotIn", values)
    if match := _EQUALITY.fullmatch(text):
        return Requirement(match[1], _EQUALITY_OPERATORS[match[2]], (match[3],))
    if match := _EXISTENCE.fullmatch(text):
        return Requirement(match[2], "DoesNotExist" if match[1] else "Exists")
    raise bad_request(f"unable to parse requirement: {text!r} is not a label requirement")


def from_object(selector: Mapping[str, Any] | None) -> Selector | None:
    """A selector from a LabelSelector object; None where there is none, which matches nothing."""
    if selector is None:
        return None
    equal = [Requirement(key, "In", (value,)) for key, value in selector.get("matchLabels", {}).items()]
    return Selector((*sorted(equal, key=lambda entry: entry.key), *expressions(selector)))


def expressions(selector: Mapping[str, Any]) -> tuple[Requirement, ...]:
    """The `matchExpressions` of a label selector or of a node selector term."""
    return tuple(
        Requirement(entry["key"], entry["operator"], tuple(entry.get("values", ())))
        for entry in selector.get("matchExpressions", ())
    )


def selector_problems(selector: Mapping[str, Any] | None, at: str) -> Iterator[FieldError]:
    """What is wrong with a LabelSelector object in the field `at`."""
    for index, entry in enumerate((selector or {}).get("matchExpressions", ())):
        field, operator, values = (
            f"{at}.matchExpressions[{index}]",
            entry.get("operator", ""),
            entry.get("values"),
        )
        if operator in _VALUED and not values:
            yield FieldError.required(
                f"{field}.values", "must be specified when `operator` is 'In' or 'NotIn'"
            )
        elif operator in _BARE and values:
            why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield FieldError.forbidden(f"{field}.values", why)
        elif operator not in {*_VALUED, *_BARE}:
            yield FieldError.invalid(f"{field}.operator", operator, "not a valid selector operator")
        yield from key_problems(f"{field}.key", entry.get("key", ""))


@dataclasses.dataclass(frozen=True, slots=True)
class FieldSelector:
    """A conjunction of (path, wanted or not, value)."""

    terms: tuple[tuple[str, bool, str], ...] = ()

    def matches(self, obj: Mapping[str, Any]) -> bool:
        """Whether all terms hold."""
        return all((field_value(obj, path) == value) is wanted for path, wanted, value in self.terms)

    def __bool__(self) -> bool:
        return bool(self.terms)


def parse_fields(text: str, supported: tuple[str, ...]) -> FieldSelector:
    """A selector from a query's `fieldSelector`."""
    terms: list[tuple[str, bool, str]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _FIELD.fullmatch(part)
        if match is None:
            raise bad_request(f"invalid selector: '{part}'; can't understand '{part}'")
        if match[1] not in {"metadata.name", "metadata.namespace", *supported}:
            raise bad_request(_not_supported(match[1], supported))
        terms.append((match[1], match[2] != "!=", match[3]))
    return FieldSelector(tuple(terms))


def _not_supported(field: str, supported: tuple[str, ...]) -> str:
    if supported:
        return f"field label not supported: {field}"
    return f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"'


def field_value(obj: Mapping[str, Any], path: str) -> str:
    """The text that a field selector compares with; empty where the field is missing."""
    node: object = obj
    for step in path.split("."):
        node = node.get(step) if isinstance(node, Mapping) else None
    match node:
        case None:
            return "0" if path == "status.replicas" else "false" if path in _FALSE_BY_DEFAULT else ""
        case bool():
            return str(node).lower()
        case Mapping():  # an Event's `source` is selected by its component
            return str(node.get("component", ""))
        case _:
            return str(node)


_FALSE_BY_DEFAULT = {"spec.unschedulable", "spec.hostNetwork"}
