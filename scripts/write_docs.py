"""Writes what docs/ says about settings, metrics and policy fields from where they are defined; `make golden` runs it.

A generated part stands between two comments, `<!-- generated: NAME -->` and `<!-- end -->`; everything else is written
by hand. A test compares.
"""

import datetime
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pydantic

from exporter import catalog, settings
from exporter.dcgm.flags import FLAGS, Ignored, Refused, Same
from exporter.labels import LABELS
from rightsizer.cli import options
from rightsizer.policy.document import Defaults, Match, Policy, PriorityRange, Rule, Thresholds

DOCS = Path(__file__).parents[1] / "docs"
_PART = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rendered() -> dict[Path, str]:
    """Every generated file, or file with generated parts, as it should be."""
    files = {path: _fill(path.read_text()) for path in sorted(DOCS.rglob("*.md"))}
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Policy.model_json_schema()}
    files[DOCS / "policy.schema.json"] = json.dumps(schema, indent=2) + "\n"
    return files


def _fill(text: str) -> str:
    return _PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n{found[3]}", text)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _exporter_settings() -> str:
    rows = (
        (
            f"`{settings.flag(name)}`",
            f"`{settings.variable(name)}`",
            f"`{setting.default}`" if setting.default else "",
            setting.help.format(collectors=", ".join(catalog.collectors())),
        )
        for name, setting in settings.table().items()
    )
    return _table(("flag", "variable", "default", "meaning"), rows)


def _fate(fate: Same | Ignored | Refused) -> tuple[str, str]:
    match fate:
        case Same(ours):
            return f"`{ours}`" if ours.startswith("--") else ours, ""
        case Ignored(why):
            return "a warning", why
        case Refused(why):
            return "refused", why


def _dcgm_flags() -> str:
    rows = (
        (", ".join(f"`{name}`" for name in each.names), f"`{each.variable}`", *_fate(each.fate))
        for each in FLAGS
    )
    return _table(("dcgm-exporter", "variable", "here", "why"), rows)


def _text_labels() -> str:
    rows = ((f"`{row.label.dcgm}`", f"`{row.label.dcgm_49}`") for row in LABELS)
    return _table(("label", "from 4.9"), rows)


def _metrics() -> str:
    rows = (
        (
            f"`{metric.dcgm.name}`",
            metric.dcgm.unit,
            f"`{metric.dcgm_49.name}`",
            metric.dcgm_49.unit,
            metric.kind.value,
            metric.within.value,
            metric.help,
            metric.source,
            metric.needs,
        )
        for metric in catalog.metrics()
    )
    return _table(
        ("metric", "unit", "from 4.9", "unit", "type", "set", "meaning", "read from", "needs"), rows
    )


def _rightsizer_options() -> str:
    groups = (options.POLICY, options.PRICES, options.PROMETHEUS, options.CLUSTER, options.STATE)
    rows = (
        (
            f"`{option.flag}`",
            f"`{option.variable}`",
            f"`{option.default}`" if option.default else "",
            option.help,
        )
        for group in groups
        for option in group
    )
    return _table(("flag", "variable", "default", "meaning"), rows)


_MODELS: Mapping[str, type[pydantic.BaseModel]] = {
    "": Policy,
    "defaults.": Defaults,
    "rules[].": Rule,
    "rules[].match.": Match,
    "rules[].match.priority.": PriorityRange,
    "rules[].idle., defaults.idle.": Thresholds,
}


def _policy_fields() -> str:
    rows = (
        (f"`{prefix}{name}`", _default(field), field.description or _about(field))
        for prefixes, model in _MODELS.items()
        for prefix in prefixes.split(", ")[:1]
        for name, field in model.model_fields.items()
    )
    return _table(("field", "default", "meaning"), rows)


def _about(field: Any) -> str:
    """Where a field has no words of its own, its type's have to do."""
    annotation = field.annotation
    return str(annotation.__doc__ or "").splitlines()[0] if isinstance(annotation, type) else ""


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    dumped = pydantic.TypeAdapter(type(value)).dump_python(value, mode="json")
    if dumped is None or isinstance(value, pydantic.BaseModel):
        return ""
    if isinstance(value, datetime.timedelta):
        minutes = round(value.total_seconds() / 60)
        return f"`{minutes}m`" if minutes % 60 else f"`{minutes // 60}h`"
    return f"`{json.dumps(dumped)}`"


PARTS: Mapping[str, Callable[[], str]] = {
    "exporter-settings": _exporter_settings,
    "dcgm-flags": _dcgm_flags,
    "metrics": _metrics,
    "text-labels": _text_labels,
    "rightsizer-options": _rightsizer_options,
    "policy-fields": _policy_fields,
}


def main() -> int:
    """Write all of it."""
    for path, text in rendered().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
