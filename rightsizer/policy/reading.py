"""Policy text → Policy, or all its problems at once, each with its line; what a policy means is known elsewhere."""

import dataclasses
import difflib
import hashlib
import pathlib
import re
from collections.abc import Iterator

import pydantic
import pydantic_core
import yaml

from rightsizer.errors import ConfigurationError, PolicyError, Problem
from rightsizer.policy.document import ADVISE_ONLY, Policy, fields_at
from rightsizer.policy.shadows import unreachable

MAX_BYTES = 1 << 20
"""No policy that a person can review is longer."""

Place = tuple[str | int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy with what is needed to talk about its text.

    Attributes:
        lines: 1-based line of each field, by its path in the document.
        digest: SHA-256 of the text, hexadecimal; empty for the built-in one.
    """

    policy: Policy
    source: str
    digest: str
    lines: dict[Place, int]

    def line(self, *place: str | int) -> int:
        """Line of a field, or of its nearest enclosing one; 0 where the policy has no text."""
        for end in range(len(place), -1, -1):
            if place[:end] in self.lines:
                return self.lines[place[:end]]
        return 0


BUILT_IN = LoadedPolicy(ADVISE_ONLY, "built-in (advise only; give one with --policy)", "", {})


def load(path: pathlib.Path) -> LoadedPolicy:
    """Read a policy file.

    Raises:
        ConfigurationError: The file cannot be read.
        PolicyError: It is not a policy; carries all its problems.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(f"policy file {path}: cannot be read: {reason}") from error
    return parse(raw, source=str(path))


def parse(raw: bytes, *, source: str) -> LoadedPolicy:
    """Turn the bytes of a policy file into a policy.

    Raises:
        PolicyError: With every problem found.
    """
    if len(raw) > MAX_BYTES:
        raise PolicyError(source, [Problem(0, "", f"is longer than {MAX_BYTES} bytes; no policy is")])
    root = _compose(raw, source)
    lines: dict[Place, int] = {}
    problems: list[Problem] = []
    value = _build(root, (), lines=lines, problems=problems)
    if not isinstance(value, dict):
        raise PolicyError(source, [Problem(lines[()], "", "must be a mapping: apiVersion, kind, rules")])
    try:
        policy = Policy.model_validate(value)
    except pydantic.ValidationError as error:
        raise PolicyError(source, [*problems, *_problems(error, lines)]) from None
    loaded = LoadedPolicy(policy, source, hashlib.sha256(raw).hexdigest(), lines)
    problems += (Problem(loaded.line(*place), _dotted(place), words) for place, words in unreachable(policy))
    if problems:
        raise PolicyError(source, problems)
    return loaded


def _compose(raw: bytes, source: str) -> yaml.Node:
    try:
        text = raw.decode("utf-8-sig")
        events = list(yaml.parse(text, Loader=yaml.SafeLoader))
        if any(isinstance(event, yaml.AliasEvent) for event in events):
            raise PolicyError(source, [Problem(0, "", "uses YAML aliases (*name); write the values out")])
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise PolicyError(source, [Problem(0, "", f"is not UTF-8 text: {error.reason}")]) from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        words = f"is not YAML: {error.problem or error.context}"
        raise PolicyError(source, [Problem(line, "", words)]) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        words = f"is not YAML: holds the control character {error.character:#x}; remove it"
        raise PolicyError(source, [Problem(line, "", words)]) from error
    except RecursionError as error:
        raise PolicyError(source, [Problem(0, "", "is nested too deeply to be a policy")]) from error
    if node is None:
        raise PolicyError(source, [Problem(0, "", "is empty; see docs/policy.md for an example")])
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
                    Problem(line, _dotted(place), "a field's name must be text, not a list or mapping")
                )
                continue
            key = str(key_node.value)
            if key in result:
                first = lines[*place, key]
                problems.append(Problem(line, _dotted((*place, key)), f"stands twice; first in line {first}"))
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
        problems.append(Problem(lines[place], _dotted(place), words))
        return str(node.value)


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


def _problems(error: pydantic.ValidationError, lines: dict[Place, int]) -> Iterator[Problem]:
    details = error.errors(include_url=False)
    for detail in details:
        place = detail["loc"]
        if detail["type"] == "too_short" and any(_is_within(other["loc"], place) for other in details):
            continue  # what it held is wrong, and is told
        line = next((lines[place[:end]] for end in range(len(place), -1, -1) if place[:end] in lines), 0)
        yield Problem(line, _dotted(place), _words(detail["type"], detail["msg"], place) + _hint(detail))


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


def _dotted(place: Place) -> str:
    """A field's path as people write it: rules[0].match.priority."""
    text = ""
    for part in place:
        if part == _KEY:
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


_SIMPLE = {
    "missing": "is missing",
    "model_type": "must be a mapping of fields",
    "dict_type": "must be a mapping of fields",
    "tuple_type": "must be a list, such as [a, b]",
    "list_type": "must be a list, such as [a, b]",
    "too_short": "is empty; name at least one, or leave it out",
}


def _words(kind: str, message: str, place: Place) -> str:
    if kind == "extra_forbidden":
        return f"unknown field{_nearest(place)}"
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    if kind == "string_pattern_mismatch":
        return f"must match {message.rpartition(' pattern ')[2]}"
    return _SIMPLE.get(kind, message[:1].lower() + message[1:])


def _nearest(place: Place) -> str:
    fields = fields_at(place[:-1])
    close = difflib.get_close_matches(str(place[-1]), fields, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else f"; here may stand {', '.join(fields)}"
