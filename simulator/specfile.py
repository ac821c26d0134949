"""Reads a cluster's spec from YAML: the fields of spec.py by name, and the ready-made clusters in presets/."""

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from simulator.spec import ClusterSpec

PRESETS = ("demo", "small", "fleet")
"""Ready-made clusters: one for the demo, one for quick tests, one without workloads."""
_PRESETS = Path(__file__).parent / "presets"

EXAMPLE = """\
nodes:
  - name: a
    gpus: [{card: H100-SXM5-80GB}, {card: H100-SXM5-80GB}]
  - name: b
    gpus: [{card: L40S}]
    sharing: time-slicing
    replicas: 4
priority_classes:
  - {name: low-priority, value: 1000}
workloads:
  - {kind: Deployment, namespace: serving, name: forgotten, archetype: abandoned, priority_class: low-priority}
"""


class SpecError(Exception):
    """A file does not describe a cluster; says everything that is wrong with it."""


@functools.cache
def preset(name: str) -> ClusterSpec:
    """A ready-made cluster, one of `PRESETS`."""
    return load(_PRESETS / f"{name}.yaml")


def load(path: Path) -> ClusterSpec:
    """The cluster that the file `path` describes; raises SpecError."""
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SpecError(f"reading {path}: {error}") from error
    problems: list[str] = []
    found = _build(ClusterSpec, document, "cluster", problems)
    if problems:
        raise SpecError(
            "\n".join([f"{path} does not describe a cluster:", *(f"  {line}" for line in problems)])
        )
    return found  # type: ignore[no-any-return]


def _build(wanted: Any, value: Any, where: str, problems: list[str]) -> Any:  # noqa: ANN401 - the type is data here
    """`value` as an instance of the type `wanted`; what does not fit is added to `problems`."""
    if isinstance(wanted, types.UnionType):
        return None if value is None else _build(typing.get_args(wanted)[0], value, where, problems)
    if typing.get_origin(wanted) is tuple:
        return _sequence(typing.get_args(wanted)[0], value, where, problems)
    if dataclasses.is_dataclass(wanted):
        return _record(wanted, value, where, problems)
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        return _member(wanted, value, where, problems)
    kinds: Mapping[Any, tuple[type, ...]] = {float: (int, float), int: (int,), str: (str,), bool: (bool,)}
    expected = kinds.get(wanted, (dict,))
    if not isinstance(value, expected) or (isinstance(value, bool) and wanted is not bool):
        problems.append(f"{where}: {value!r} is not of type {getattr(wanted, '__name__', 'mapping')}")
    return value


def _sequence(wanted: Any, value: Any, where: str, problems: list[str]) -> tuple[Any, ...]:  # noqa: ANN401
    if not isinstance(value, list):
        problems.append(f"{where}: is not a list")
        return ()
    return tuple(_build(wanted, item, f"{where}[{index}]", problems) for index, item in enumerate(value))


def _record(wanted: Any, value: Any, where: str, problems: list[str]) -> Any:  # noqa: ANN401
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        problems.append(f"{where}: is not a mapping of fields")
        return None
    hints = typing.get_type_hints(wanted)
    fields = {field.name: field for field in dataclasses.fields(wanted)}
    problems += [
        f"{where}.{name}: there is no such field; there are {', '.join(fields)}"
        for name in sorted(value.keys() - fields.keys())
    ]
    missing = [
        name
        for name, field in fields.items()
        if name not in value
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    problems += [f"{where}.{name}: is missing" for name in missing]
    given = {
        name: _build(hints[name], value[name], f"{where}.{name}", problems)
        for name in fields
        if name in value
    }
    return None if missing else wanted(**given)


def _member(wanted: type[enum.Enum], value: Any, where: str, problems: list[str]) -> enum.Enum | None:  # noqa: ANN401
    try:
        return wanted(value)
    except ValueError:
        choices = ", ".join(str(member.value) for member in wanted)
        problems.append(f"{where}: {value!r} is none of {choices}")
        return None
