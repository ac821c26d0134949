"""The schema and the table of the chart's values, from values.yaml and its comments: one place to write them.

A comment above a value describes it; a line `# @schema {...}` adds to the JSON schema that its default gives. What has
no comment is a section.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from rightsizer.policy.classes import ANNOTATIONS
from rightsizer.policy.rule import ACTIONS
from scripts.tables import table

_KEY = re.compile(r"(?P<indent> *)(?P<name>[A-Za-z]\w*):")
_SCHEMA = "@schema "
REMOVED = (("rightsizer", "journal"),)
"""Former values, by section; templates/checks.yaml says what to use now."""
_TYPES = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """One value, as values.yaml has it.

    Attributes:
        path: Names that lead to it.
        default: Parsed.
        about: Its comment, in one line.
        schema: What the comment adds to its schema.
    """

    path: tuple[str, ...]
    default: Any
    about: str
    schema: Mapping[str, Any]


def read(text: str) -> list[Value]:
    """All values, in their order.

    Raises:
        ValueError: One has no comment.
    """
    found: list[Value] = []
    comment: list[str] = []
    above: list[str] = []
    document = yaml.load(text, Loader=yaml.CSafeLoader)
    for line in text.splitlines():
        stripped = line.strip()
        key = _KEY.match(line)
        if not stripped:
            comment = []
        elif stripped.startswith("#"):
            comment.append(stripped.removeprefix("#").strip())
        elif key:
            above = [*above[: len(key["indent"]) // 2], key["name"]]
            found += _value(tuple(above), document, comment, found)
            comment = []
    return found


def _value(path: tuple[str, ...], document: Any, comment: list[str], found: list[Value]) -> Iterator[Value]:
    if any(path[: len(one.path)] == one.path for one in found):
        return
    default = document
    for name in path:
        default = default[name]
    if not comment:
        if not isinstance(default, dict):
            message = f"values.yaml: {'.'.join(path)} has no comment"
            raise ValueError(message)
        return
    extra = [line.removeprefix(_SCHEMA) for line in comment if line.startswith(_SCHEMA)]
    about = " ".join(line for line in comment if not line.startswith(_SCHEMA))
    yield Value(path, default, about, json.loads(" ".join(extra) or "{}"))


def values_table(text: str) -> str:
    """As Markdown."""
    rows = ((f"`{'.'.join(one.path)}`", _shown(one.default), one.about) for one in read(text))
    return table(("value", "default", "meaning"), rows)


def _shown(default: object) -> str:
    if default is None:
        return "by `platform`"
    return f"`{json.dumps(default)}`"


def platforms_table(text: str) -> str:
    """What each preset says, as Markdown."""
    presets = yaml.load(text, Loader=yaml.CSafeLoader)
    rows = []
    for name, preset in presets.items():
        on = {**presets[""]["exporter"], **preset.get("exporter", {})}
        access = (
            f"{on['gpuAccess']} `{on['driverRoot']}`, privileged" if on["driverRoot"] else on["gpuAccess"]
        )
        rows.append(
            (
                f"`{name}`" if name else "(none)",
                preset["about"],
                "<br>".join(_told(on)),
                "<br>".join(_tolerated(one) for one in on["tolerations"]),
                f"`{on['runtimeClassName']}`" if on["runtimeClassName"] else "",
                access,
                "<br>".join(map(_expression, preset.get("rdma", presets[""]["rdma"]))),
            )
        )
    head = ("platform", "where", "nodes with any of", "tolerates", "runtime class", "driver by", "RDMA nodes")
    return table(head, rows)


def _told(on: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"`{key}={value}`" for key, value in on["nodeSelector"].items())
    required = (
        on["affinity"].get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    )
    for term in required.get("nodeSelectorTerms", ()):
        yield " and ".join(map(_expression, term["matchExpressions"]))


def _expression(one: Mapping[str, Any]) -> str:
    return f"`{one['key']}`" + (f" = `{', '.join(one['values'])}`" if "values" in one else "")


def _tolerated(one: Mapping[str, str]) -> str:
    return f"`{one['key']}" + (f"={one['value']}`" if "value" in one else "`")


def schema(text: str, policy: Mapping[str, Any]) -> str:
    """values.schema.json.

    Args:
        text: values.yaml.
        policy: The schema of policy files.
    """
    root: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Values of the chart gpu-rightsizer",
        **_section(),
    }
    for value in read(text):
        here = root
        for name in value.path[:-1]:
            here = here["properties"].setdefault(name, _section())
        here["properties"][value.path[-1]] = _shape(value)
    _require_all(root)
    for section, name in REMOVED:
        root["properties"][section]["properties"][name] = {"description": "Removed."}
    whole = {key: part for key, part in policy.items() if not key.startswith("$")}
    root["$defs"] = {**_definitions(), **_for_go({**policy["$defs"], "policyFile": whole})}
    return json.dumps(root, indent=1) + "\n"


def _for_go(part: Any) -> Any:
    """A schema whose patterns do not look ahead, which Helm's regular expressions cannot; the program still does."""
    match part:
        case dict():
            return {_plain(key): _for_go(value) for key, value in part.items()}
        case list():
            return [_for_go(value) for value in part]
        case str():
            return _plain(part)
    return part


def _plain(text: str) -> str:
    while (start := text.find("(?!")) >= 0:
        depth, end = 1, start + 1
        while depth:
            escaped = text[end] == "\\"
            depth += 0 if escaped else {"(": 1, ")": -1}.get(text[end], 0)
            end += 2 if escaped else 1
        text = text[:start] + text[end:]
    return text


def _require_all(section: dict[str, Any]) -> None:
    """Nothing is missing unless somebody wrote null, which takes a default away and which no template expects."""
    for name, part in section["properties"].items():
        if "properties" in part:
            _require_all(part)
        if (
            "null" not in part.get("type", ())
            and None not in part.get("enum", ())
            and part.get("$ref") not in _NULLABLE
        ):
            section.setdefault("required", []).append(name)


_NULLABLE = ("#/$defs/textsOrNull", "#/$defs/labelsOrNull")


def _section() -> dict[str, Any]:
    return {"type": "object", "properties": {}, "additionalProperties": False}


def _shape(value: Value) -> dict[str, Any]:
    shape: dict[str, Any] = {"description": value.about}
    if "enum" not in value.schema and "$ref" not in value.schema and value.default is not None:
        shape["type"] = _TYPES[type(value.default)]
    return {**shape, **value.schema}


_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_DURATION = "([0-9]+(ms|s|m|h|d))+"


def _cron_field(value: str) -> str:
    one = rf"({value}(-{value})?|[*?])(/[1-9][0-9]?)?"
    return f"{one}(,{one})*"


def _named(numbers: str, names: str) -> str:
    """Numbers, or names in whatever case."""
    cased = ("".join(f"[{letter.upper()}{letter}]" for letter in name) for name in names.split())
    return f"({numbers}|{'|'.join(cased)})"


_CRON_FIELDS = " +".join(
    map(
        _cron_field,
        (
            "[0-5]?[0-9]",
            "([01]?[0-9]|2[0-3])",
            "(0?[1-9]|[12][0-9]|3[01])",
            _named("(0?[1-9]|1[0-2])", "jan feb mar apr may jun jul aug sep oct nov dec"),
            _named("[0-6]", "sun mon tue wed thu fri sat"),
        ),
    )
)
_SCHEDULE = f"^({_CRON_FIELDS}|@(yearly|annually|monthly|weekly|daily|midnight|hourly))$"
"""As the API server reads a CronJob's: minute, hour, day of the month, month, day of the week."""
_DOMAIN = "([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
_WORD = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABELS = {
    "type": "object",
    "patternProperties": {f"^{_DOMAIN}{_WORD}$": {"type": "string", "pattern": f"^({_WORD})?$"}},
    "additionalProperties": False,
}
"""https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/"""
_AMOUNT = {"type": ["string", "integer"]}
_OBJECT = {"type": "object"}
_NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}


def _strict(properties: Mapping[str, object], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        **({"required": list(required)} if required else {}),
    }


_TEXT = {"type": "string"}
_ANY_OF = {
    "operator": {"enum": ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]},
    "effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
}
_AMOUNTS = {"type": "object", "additionalProperties": _AMOUNT, "minProperties": 1}
_COMPUTE = "cpu|memory|ephemeral-storage|hugepages-[0-9A-Za-z]+"
_QUOTA = {
    "type": "object",
    "patternProperties": {
        f"^(pods|((requests|limits)[.])?({_COMPUTE})|requests[.][^/]+/[^/]+)$": {
            "type": ["string", "integer"],
            "minimum": 0,
            "pattern": "^[0-9]+([.][0-9]+)?(m|k|[KMGTPE]i?)?$",
        }
    },
    "additionalProperties": False,
    "minProperties": 1,
}
"""What a quota by class can count: of extended resources, such as GPUs, only what is requested. Helm's validator tells
a wrong place of what `propertyNames` refuses."""


def _definitions() -> dict[str, Any]:
    """What several values have in common."""
    return {
        "texts": _TEXTS,
        "textsOrNull": {**_TEXTS, "type": ["object", "null"]},
        "labels": _LABELS,
        "labelsOrNull": {**_LABELS, "type": ["object", "null"]},
        "object": _OBJECT,
        "duration": {"type": "string", "pattern": f"^{_DURATION}$"},
        "durationOrNone": {"type": "string", "pattern": f"^({_DURATION})?$"},
        "schedule": {"type": "string", "pattern": _SCHEDULE},
        "pathOrNone": {"type": "string", "pattern": "^(/.+)?$"},
        "port": {"type": "integer", "minimum": 1, "maximum": 65535},
        "name": _NAME,
        "policy": {
            "type": "object",
            "if": {"minProperties": 1},
            "then": {"$ref": "#/$defs/policyFile"},
        },
        **_of_kubernetes(),
        **_of_classes(),
    }


def _of_kubernetes() -> dict[str, Any]:
    """Of what Kubernetes has names for as much as a slip can be told by."""
    toleration = {"key": _TEXT, "operator": {"enum": ["Exists", "Equal"]}, "value": _TEXT}
    return {
        "named": _strict({"name": _TEXT}, "name"),
        "namedObject": {"type": "object", "properties": {"name": _TEXT}, "required": ["name"]},
        "variable": _strict({"name": _TEXT, "value": _TEXT, "valueFrom": _OBJECT}, "name"),
        "resources": _strict({"requests": _AMOUNTS, "limits": _AMOUNTS, "claims": {"type": "array"}}),
        "toleration": _strict(
            {**toleration, "effect": _ANY_OF["effect"], "tolerationSeconds": {"type": "integer"}}
        ),
    }


def _listed(words: Iterable[str]) -> dict[str, Any]:
    """One or several of some words, with commas between them."""
    one = f"({'|'.join(words)})"
    return {"pattern": f"^ *{one}( *, *{one})* *$"}


_MODES = ("protect", "advise", "enforce")
_WORDS: Mapping[str, Mapping[str, Any]] = {
    "mode": {"enum": list(_MODES)},
    "actions": _listed(action.value for action in ACTIONS),
    "only-for-pending-pods": _listed(action.value for action in ACTIONS),
    **{
        one.name: {"pattern": f"^{_DURATION}$"} for one in ANNOTATIONS if re.fullmatch(_DURATION, one.example)
    },
}
"""What an annotation's text is made of. `policy check` and the plan know the rest."""


def _of_classes() -> dict[str, Any]:
    """PriorityClasses, quotas and pools."""
    levels = ("high", "medium", "low")
    expression = {"key": _TEXT, "operator": _ANY_OF["operator"], "values": {"type": "array", "items": _TEXT}}
    pool = {
        "name": _NAME,
        "gpu": _NAME,
        "rdma": {"type": "boolean"},
        "nodeSelector": {"$ref": "#/$defs/labels"},
        "matchExpressions": {"type": "array", "items": _strict(expression, "key", "operator")},
        "tolerations": {"type": "array", "items": {"$ref": "#/$defs/toleration"}},
    }
    level = {
        "value": {"$ref": "#/$defs/priority"},
        "preemptionPolicy": {"enum": ["PreemptLowerPriority", "Never"]},
        "policy": {"$ref": "#/$defs/classPolicy"},
    }
    policy = {one.name: {"type": ["string", "number"], **_WORDS.get(one.name, {})} for one in ANNOTATIONS}
    quota = {"namespace": _NAME, "gpu": _NAME, **dict.fromkeys((*levels, "withoutClass"), _QUOTA)}
    return {
        "priority": {"type": "integer", "minimum": -2147483648, "maximum": 1000000000},
        "classPolicy": _strict(policy),
        "pool": _strict(pool, "name"),
        "gpu": _strict(
            {"name": _NAME, "about": _TEXT, "levels": _strict(dict.fromkeys(levels, _strict(level)))}, "name"
        ),
        "quota": _strict(quota, "namespace", "gpu"),
    }
