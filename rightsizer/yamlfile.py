"""YAML text → a document, or all its problems at once, each with its line; knows nothing of what it means.

One file, one kind: policies, price tables and the configuration are read by it.
"""

import dataclasses
import difflib
import pathlib
import re
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import pydantic
import pydantic_core
import yaml

from rightsizer.errors import ConfigurationError, Problem

MAX_BYTES = 1 << 20
"""No document that a person can review is longer."""

_WRITTEN = ("Plan", "Outcome", "Diagnosis")
"""Kinds of documents that gpu-rightsizer writes, and reads as no configuration."""

Place = tuple[str | int, ...]
Document = TypeVar("Document", bound=pydantic.BaseModel)


@dataclasses.dataclass(frozen=True, slots=True)
class FileKind(Generic[Document]):
    """What distinguishes one kind of file from another.

    Attributes:
        noun: What it is called in messages, such as "policy".
        model: What it becomes.
        shape: Its topmost fields, for whoever wrote none of them.
        docs: The page that explains its fields.
        refused: The error that carries its source and problems.
    """

    noun: str
    model: type[Document]
    shape: str
    docs: str
    refused: Callable[[str, Sequence[Problem]], ConfigurationError]


def read_bytes(path: pathlib.Path, kind: FileKind[Document]) -> bytes:
    """A file's bytes.

    Raises:
        ConfigurationError: It cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(f"{kind.noun} file {path}: cannot be read: {reason}") from error


def parse(raw: bytes, kind: FileKind[Document], *, source: str) -> tuple[Document, dict[Place, int]]:
    """The document, and the 1-based line of each field by its path.

    Raises:
        ConfigurationError: The kind's own, with every problem found.
    """
    if len(raw) > MAX_BYTES:
        raise kind.refused(
            source, [Problem(0, "", f"is larger than {MAX_BYTES >> 20} MiB; is it really a {kind.noun}?")]
        )
    root = _compose(raw, kind, source)
    lines: dict[Place, int] = {}
    problems: list[Problem] = []
    value = _build(root, (), lines=lines, problems=problems)
    if not isinstance(value, dict):
        raise kind.refused(source, [Problem(lines[()], "", f"must be a mapping: {kind.shape}")])
    wanted, found = typing.get_args(kind.model.model_fields["kind"].annotation)[0], value.get("kind")
    if isinstance(found, str) and found != wanted:
        writes = ", which gpu-rightsizer writes" if found in _WRITTEN else ""
        words = f"must be {wanted}, not {found[:80]}{writes}; see {kind.docs}"
        raise kind.refused(source, [Problem(lines["kind",], "kind", words)])
    try:
        document = kind.model.model_validate(value)
    except pydantic.ValidationError as error:
        raise kind.refused(source, [*problems, *_problems(error, lines, kind, problems)]) from None
    if problems:
        raise kind.refused(source, problems)
    return document, lines


class _AliasUsedError(yaml.YAMLError):
    """A node stands for another one: then a few lines could stand for gigabytes."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line


class AliasFreeLoader(yaml.SafeLoader):
    """Refuses aliases."""

    def compose_node(self, parent: yaml.Node | None, index: typing.Any) -> yaml.Node | None:  # noqa: ANN401
        """The next node; raises a YAMLError for an alias."""
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise _AliasUsedError(event.start_mark.line + 1)
        return super().compose_node(parent, index)


def _compose(raw: bytes, kind: FileKind[Document], source: str) -> yaml.Node:
    try:
        text = raw.decode("utf-8-sig")
        node = yaml.compose(text, Loader=AliasFreeLoader)
    except _AliasUsedError as used:
        words = "uses YAML aliases (*name); write the values out"
        raise kind.refused(source, [Problem(used.line, "", words)]) from None
    except UnicodeDecodeError as error:
        raise kind.refused(source, [Problem(0, "", f"is not UTF-8 text: {error.reason}")]) from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        words = f"is not YAML: {error.problem or error.context}"
        raise kind.refused(source, [Problem(line, "", words)]) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        words = f"is not YAML: contains the control character {error.character:#x}; remove it"
        raise kind.refused(source, [Problem(line, "", words)]) from error
    except RecursionError as error:
        raise kind.refused(source, [Problem(0, "", f"is nested too deeply to be a {kind.noun}")]) from error
    if node is None:
        raise kind.refused(source, [Problem(0, "", f"is empty; see {kind.docs} for an example")])
    return node


def _build(node: yaml.Node, place: Place, *, lines: dict[Place, int], problems: list[Problem]) -> object:
    """The node's value, noting where each part stands; duplicate keys are problems, never overwritten."""
    lines[place] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        result: dict[str, object] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                problems.append(
                    Problem(line, dotted(place), "a field's name must be text, not a list or mapping")
                )
                continue
            key = str(key_node.value)
            if key in result:
                first = lines[*place, key]
                problems.append(
                    Problem(line, dotted((*place, key)), f"is given twice; first in line {first}")
                )
                continue
            result[key] = _build(value_node, (*place, key), lines=lines, problems=problems)
            lines[*place, key] = line
        return result
    if isinstance(node, yaml.SequenceNode):
        return [
            _build(item, (*place, index), lines=lines, problems=problems)
            for index, item in enumerate(node.value)
        ]
    try:
        value = _scalar(node)
    except _NO_VALUE:
        words = f"{str(node.value)[:40]!r} is not a value of the YAML type {node.tag}; remove the tag"
        problems.append(Problem(lines[place], dotted(place), words))
        return str(node.value)
    if value is None:
        problems.append(Problem(lines[place], dotted(place), _NOTHING))
    return value


_NOTHING = "has no value; write one, or remove the field"
"""A name with nothing after it: its author means something, and what is left out often means more."""

_NO_VALUE = (yaml.YAMLError, LookupError, AttributeError)
"""What PyYAML raises for `!own x`, `!!bool x`, `!!int ''` and `!!timestamp x`."""


_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def _scalar(node: yaml.Node) -> object:
    if node.tag in _NUMBERS and ":" in str(node.value):
        return str(node.value)  # YAML 1.1 takes 22:00 for a number of minutes; YAML 1.2 and people do not
    loader = yaml.SafeLoader("")
    try:
        value: object = loader.construct_object(node)
    except ValueError:
        return str(node.value)
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    return str(node.value)


def _problems(
    error: pydantic.ValidationError,
    lines: dict[Place, int],
    kind: FileKind[Document],
    told: Sequence[Problem],
) -> Iterator[Problem]:
    details = error.errors(include_url=False)
    nothing = {problem.field for problem in told if problem.message == _NOTHING}
    for detail in details:
        place = detail["loc"]
        if detail["input"] is None and dotted(place) in nothing and detail["type"] != "extra_forbidden":
            continue
        if detail["type"] == "too_short" and any(_is_within(other["loc"], place) for other in details):
            continue  # what it held is wrong, and is reported
        line = next((lines[place[:end]] for end in range(len(place), -1, -1) if place[:end] in lines), 0)
        yield Problem(line, dotted(place), _message(detail, kind) + _hint(detail))


def _is_within(place: Place, outer: Place) -> bool:
    return len(place) > len(outer) and place[: len(outer)] == outer


def _hint(detail: pydantic_core.ErrorDetails) -> str:
    """What was probably meant where one of a few words is wanted."""
    if detail["type"] not in {"enum", "literal_error", "string_type"}:
        return ""
    if isinstance(detail["input"], bool):
        return "; YAML takes on, off, yes and no without quotes for true and false"
    words = re.findall(r"'([^']+)'", str(detail.get("ctx", {}).get("expected", "")))
    close = difflib.get_close_matches(str(detail["input"]).lower(), words, n=1)
    return f"; did you mean {close[0]}?" if close and len(words) > 1 else ""


_KEY = "[key]"
"""What pydantic adds to the place of a mapping's key that is wrong."""


def dotted(place: Place) -> str:
    """A field's path as people write it: rules[0].match.priority."""
    text = ""
    for part in place:
        if part == _KEY:
            continue
        name = str(part) or "''"
        text += f"[{part}]" if isinstance(part, int) else f".{name}" if text else name
    return text


_SIMPLE = {
    "missing": "is missing",
    "model_type": "must be a mapping of fields",
    "dict_type": "must be a mapping of fields",
    "tuple_type": "must be a list, such as [a, b]",
    "list_type": "must be a list, such as [a, b]",
    "string_too_short": "is empty",
    "too_short": "is empty; name at least one, or remove the field",
}


def _message(detail: pydantic_core.ErrorDetails, kind: FileKind[Document]) -> str:
    name, message = detail["type"], detail["msg"]
    if name == "extra_forbidden":
        return f"unknown field{_nearest(detail['loc'], kind)}"
    if name == "value_error":
        return message.removeprefix("Value error, ")
    if name == "string_pattern_mismatch":
        return f"must match {message.rpartition(' pattern ')[2]}"
    return _SIMPLE.get(name, message[:1].lower() + message[1:])


def _nearest(place: Place, kind: FileKind[Document]) -> str:
    fields = fields_at(kind.model, place[:-1])
    close = difflib.get_close_matches(str(place[-1]), fields, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else f"; allowed fields: {', '.join(fields)}"


def fields_at(model: type[pydantic.BaseModel], place: Place) -> list[str]:
    """The fields that may stand at a place in a document, such as ("rules", 0, "match"); none where none may."""
    part: type[pydantic.BaseModel] | None = model
    for step in place:
        if isinstance(step, str) and part is not None:
            found = next(
                (field for name, field in part.model_fields.items() if step in {field.alias, name}), None
            )
            part = _part_in(found.annotation) if found else None
    return sorted(field.alias or name for name, field in part.model_fields.items()) if part else []


def _part_in(annotation: object) -> type[pydantic.BaseModel] | None:
    """The part that a field is made of, alone, in a list, or where it may be left out."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    return next((part for inner in typing.get_args(annotation) if (part := _part_in(inner))), None)
