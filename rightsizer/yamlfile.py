"""A YAML file of ours → plain values, or all its problems at once, each with its line; knows no kind of file.

A file is text without aliases, whose keys stand once; what its fields mean is for a pydantic model of its kind to say.
"""

import dataclasses
import difflib
import pathlib
from collections.abc import Collection, Iterator
from typing import NoReturn, TypeVar

import pydantic
import yaml

from rightsizer.errors import ConfigurationError, FileError, Problem

MAX_BYTES = 1 << 20
"""No file that a person can review is longer."""

Place = tuple[str | int, ...]
Model = TypeVar("Model", bound=pydantic.BaseModel)


@dataclasses.dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file, as messages speak of it.

    Attributes:
        name: Such as "policy".
        parts: What it is made of at the top.
        docs: Where it is described.
        fields: All names of fields that there are, to propose one for a slip.
        error: What is raised about one that cannot be used.
    """

    name: str
    parts: str
    docs: str
    fields: Collection[str]
    error: type[FileError]

    def refuse(self, source: str, *problems: Problem) -> NoReturn:
        """Raise what is wrong with a file.

        Raises:
            FileError: Always.
        """
        raise self.error(source, problems)


@dataclasses.dataclass(frozen=True, slots=True)
class Lines:
    """1-based line of each field, by its path in the document."""

    by_place: dict[Place, int]

    def line(self, *place: str | int) -> int:
        """Line of a field, or of its nearest enclosing one; 0 where there is no text."""
        for end in range(len(place), -1, -1):
            if place[:end] in self.by_place:
                return self.by_place[place[:end]]
        return 0


def read(path: pathlib.Path, kind: FileKind) -> bytes:
    """A file's bytes.

    Raises:
        ConfigurationError: It cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(f"{kind.name} file {path}: cannot be read: {reason}") from error


def parse(raw: bytes, model: type[Model], kind: FileKind, *, source: str) -> tuple[Model, dict[Place, int]]:
    """Turn the bytes of a file into its model, with the line of each field.

    Raises:
        FileError: With every problem found.
    """
    if len(raw) > MAX_BYTES:
        kind.refuse(source, Problem(0, "", f"is longer than {MAX_BYTES} bytes; no {kind.name} is"))
    root = _compose(raw, source, kind)
    lines: dict[Place, int] = {}
    problems: list[Problem] = []
    value = _build(root, (), lines=lines, problems=problems)
    if not isinstance(value, dict):
        kind.refuse(source, Problem(lines[()], "", f"must be a mapping: {kind.parts}"))
    try:
        document = model.model_validate(value)
    except pydantic.ValidationError as error:
        problems += _problems(error, Lines(lines), kind)
    if problems:
        kind.refuse(source, *problems)
    return document, lines


def _compose(raw: bytes, source: str, kind: FileKind) -> yaml.Node:
    try:
        text = raw.decode("utf-8-sig")
        events = list(yaml.parse(text, Loader=yaml.SafeLoader))
        if any(isinstance(event, yaml.AliasEvent) for event in events):
            kind.refuse(source, Problem(0, "", "uses YAML aliases (*name); write the values out"))
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        kind.refuse(source, Problem(0, "", f"is not UTF-8 text: {error.reason}"))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        kind.refuse(source, Problem(line, "", f"is not YAML: {error.problem or error.context}"))
    except yaml.YAMLError as error:
        kind.refuse(source, Problem(0, "", f"is not YAML: {error}"))
    except RecursionError:
        kind.refuse(source, Problem(0, "", f"is nested too deeply to be a {kind.name}"))
    if node is None:
        kind.refuse(source, Problem(0, "", f"is empty; see {kind.docs} for an example"))
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
                problems.append(Problem(line, dotted((*place, key)), f"stands twice; first in line {first}"))
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
        return _scalar(node)
    except _NO_VALUE:
        words = f"{str(node.value)[:40]!r} is no value of the YAML type {node.tag}; write it without the tag"
        problems.append(Problem(lines[place], dotted(place), words))
        return str(node.value)


_NO_VALUE = (yaml.YAMLError, LookupError, AttributeError)
"""What PyYAML raises for `!own x`, `!!bool x`, `!!int ''` and `!!timestamp x`."""


def _scalar(node: yaml.Node) -> object:
    loader = yaml.SafeLoader("")
    try:
        value: object = loader.construct_object(node)
    except ValueError:
        return str(node.value)
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    return str(node.value)


def _problems(error: pydantic.ValidationError, lines: Lines, kind: FileKind) -> Iterator[Problem]:
    for detail in error.errors(include_url=False):
        place = detail["loc"]
        words = _words(detail["type"], detail["msg"], place, kind)
        yield Problem(lines.line(*place), dotted(place), words)


def dotted(place: Place) -> str:
    """A field's path as people write it: rules[0].match.priority."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _words(type_: str, message: str, place: Place, kind: FileKind) -> str:
    match type_:
        case "extra_forbidden":
            return f"unknown field{_nearest(place, kind)}"
        case "missing":
            return "is missing"
        case "model_type" | "dict_type":
            return "must be a mapping of fields"
        case "value_error":
            return message.removeprefix("Value error, ")
        case _:
            return message[:1].lower() + message[1:]


def _nearest(place: Place, kind: FileKind) -> str:
    close = difflib.get_close_matches(str(place[-1]), kind.fields, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; see {kind.docs} for those that exist"
