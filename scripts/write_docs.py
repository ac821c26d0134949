"""Writes what docs/ and the chart say about settings, metrics, fields and rights from where they are defined.

`make golden` runs it. A generated part stands between two comments, `<!-- generated: NAME -->` and `<!-- end -->`;
everything else is written by hand. A test compares.
"""

import itertools
import json
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from exporter import settings
from exporter.dcgm.aliases import Ignored, Supported, dcgm_flags
from exporter.model import Kind, Metric, MetricSet
from exporter.sampling import catalogue
from exporter.sampling.catalogue import LABELS
from rightsizer.cli import options
from rightsizer.policy.schema import Policy
from rightsizer.report import metrics as rightsizer_metrics
from scripts import (
    chart_guardrails,
    chart_values,
    doctor_tables,
    kind_tables,
    policy_tables,
)
from scripts.tables import table


class _Schema(GenerateJsonSchema):
    """What may be left out may not be null: the reader refuses a field with nothing after it."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        shape = super().default_schema(schema)
        return {key: value for key, value in shape.items() if (key, value) != ("default", None)}


ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CHART = ROOT / "deploy" / "helm" / "gpu-rightsizer"
COPIED = (
    "deploy/prometheus/recording-rules.yaml",
    "deploy/prometheus/dashboard-rules.yaml",
    "deploy/prometheus/alerts.yaml",
    "dashboards/grafana.json",
)
"""What the chart carries copies of: Helm reads nothing outside of it."""
_DIGITS = re.compile(r"\d+")
_USUAL = {Kind.GAUGE.value, MetricSet.DEFAULT.value}
_PART = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def generated() -> dict[Path, Callable[[], str]]:
    """How to render every generated file, or file with generated parts."""
    pages = (*sorted(DOCS.rglob("*.md")), CHART / "README.md")
    return {
        **{path: partial(_page, path) for path in pages},
        **{CHART / "files" / Path(name).name: (ROOT / name).read_text for name in COPIED},
        DOCS / "policy.schema.json": lambda: json.dumps(_policy_schema(), indent=2) + "\n",
        CHART / "values.schema.json": lambda: chart_values.schema(
            (CHART / "values.yaml").read_text(), _policy_schema()
        ),
        CHART / "files" / "rights.json": chart_guardrails.rights,
        CHART / "files" / "admission.json": chart_guardrails.admission,
    }


def _policy_schema() -> dict[str, Any]:
    shape = Policy.model_json_schema(schema_generator=_Schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **shape}


def _page(path: Path) -> str:
    return _PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n{found[3]}", path.read_text())


def _exporter_settings() -> str:
    rows = (
        (
            f"`{settings.flag(name)}`",
            f"`{setting.default}`" if setting.default else "",
            f"{setting.help} {setting.details}".strip().format(collectors=", ".join(catalogue.collectors())),
        )
        for name, setting in settings.all_settings().items()
    )
    return table(("flag", "default", "meaning"), rows)


def _handling(handling: Supported) -> str:
    return f"`{handling.equivalent}`" if handling.equivalent.startswith("--") else handling.equivalent


def _dcgm_flags() -> str:
    """Flags with the same effect share a row; `--help-dcgm` lists the ignored ones, too."""
    rows = []
    for handling, alike in itertools.groupby(dcgm_flags(), key=lambda flag: flag.handling):
        if isinstance(handling, Ignored):
            continue
        flags = list(alike)
        names = ", ".join(f"`{name}`" for flag in flags for name in flag.names)
        rows.append((names, ", ".join(f"`{flag.variable}`" for flag in flags), _handling(handling)))
    return table(("dcgm-exporter", "variable", "here"), rows)


def _text_labels() -> str:
    rows = ((f"`{row.label.dcgm}`", f"`{row.label.dcgm_49}`") for row in LABELS)
    return table(("label", "from 4.9"), rows)


def _metrics() -> str:
    """Metrics that differ only in a rising number share a row."""
    runs = itertools.groupby(enumerate(catalogue.metrics()), key=_run)
    alike = ([metric for _, metric in run] for _, run in runs)
    rows = (_metric(metrics[0], metrics[-1]) for metrics in alike)
    return table(("metric", "from 4.9", "type, set", "meaning", "read from"), rows)


def _run(place: tuple[int, Metric]) -> tuple[str, int]:
    """The same for neighbours with the next number."""
    index, metric = place
    return _DIGITS.sub("", metric.dcgm.name), _number(metric.dcgm.name) - index


def _number(text: str) -> int:
    digits = _DIGITS.findall(text)
    return int(digits[-1]) if digits else 0


def _metric(first: Metric, last: Metric) -> tuple[str, ...]:
    low, high = _number(first.dcgm.name), _number(last.dcgm.name)
    to = "" if first is last else f" to `{high}`"
    name, renamed = (f"`{of.name}`{to} {of.unit}".strip() for of in (first.dcgm, first.dcgm_49))
    source = first.source if first.source == last.source else f"{first.source} to ({_number(last.source)})"
    return (
        name,
        "" if renamed == name else renamed.removesuffix(f" {first.dcgm.unit}"),
        ", ".join(word for word in (first.kind.value, first.within.value) if word not in _USUAL),
        first.help if first is last else re.sub(rf"\b{low}\b", f"{low} to {high}", first.help),
        f"{source}; {first.needs}" if first.needs else source,
    )


def _rightsizer_metrics() -> str:
    rows = (
        (f"`{row.full_name}`", ", ".join(f"`{label}`" for label in row.labels), row.words)
        for row in rightsizer_metrics.METRICS
    )
    return table(("metric", "labels", "meaning"), rows)


def _rightsizer_options() -> str:
    flags = [flag for group in options.ALL for flag in options.flags_of(group) if flag.has_variable]
    rows = (
        (
            f"`{flag.flag}`",
            f"`{flag.settings['default']}`" if flag.settings["default"] else "",
            f"{flag.settings['help']}; {flag.details}" if flag.details else flag.settings["help"],
        )
        for flag in flags
    )
    return table(("flag", "default", "meaning"), rows)


PARTS: Mapping[str, Callable[[], str]] = {
    "exporter-settings": _exporter_settings,
    "dcgm-flags": _dcgm_flags,
    "metrics": _metrics,
    "text-labels": _text_labels,
    "rightsizer-options": _rightsizer_options,
    "rightsizer-metrics": _rightsizer_metrics,
    "doctor-checks": doctor_tables.checks,
    "doctor-rights": doctor_tables.rights,
    "kinds": kind_tables.kinds,
    "kind-conditions": kind_tables.conditions,
    "kind-losses": kind_tables.losses,
    "control-objects": kind_tables.control_objects,
    "servers": kind_tables.servers,
    "policy-fields": policy_tables.fields,
    "policy-kinds": policy_tables.kinds,
    "demand": policy_tables.demand,
    "policy-budgets": policy_tables.budgets,
    "class-annotations": policy_tables.class_annotations,
    "opt-outs": policy_tables.opt_outs,
    "marks": policy_tables.marks,
    "chart-values": lambda: chart_values.values_table((CHART / "values.yaml").read_text()),
    "chart-platforms": lambda: chart_values.platforms_table((CHART / "files" / "platforms.yaml").read_text()),
}


def main() -> int:
    """Write all of it."""
    for path, text in {path: render() for path, render in generated().items()}.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
