"""Any other exporter's metrics, by a YAML file: which of them gives which quantity, and which labels name what.

A selector is a metric's name with matchers, not an expression: what is asked over a window is put around it.
"""

import dataclasses
import pathlib
import re
from typing import Annotated, Literal

import pydantic

from rightsizer import yamlfile
from rightsizer.errors import Problem, SignalsError
from rightsizer.usage.quantities import Metric, MetricKind, MetricSource
from rightsizer.usage.series_labels import LabelNames
from rightsizer.yamlfile import FileKind

_LABEL = r"[a-zA-Z_][a-zA-Z0-9_]*"
_TEXT = r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'"
_MATCHER = rf"\s*{_LABEL}\s*(?:=~|!~|!=|=)\s*(?:{_TEXT})\s*"
_SELECTOR = re.compile(
    rf"(?P<metric>[a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{{(?P<matchers>(?:{_MATCHER},)*(?:{_MATCHER})?\s*)\}})?",
    re.DOTALL,
)


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


def _label_names(value: object) -> object:
    """One name, or several, the first of which that a series carries is meant."""
    return [value] if isinstance(value, str) else value


Names = Annotated[
    list[Annotated[str, pydantic.Field(pattern=f"^{_LABEL}$")]],
    pydantic.Field(min_length=1),
    pydantic.BeforeValidator(_label_names),
]


class LabelsTable(_Part):
    """Which labels name what; for each one name, or several in the order in which they are looked for."""

    namespace: Names = pydantic.Field(description="The pod's namespace.")
    pod: Names = pydantic.Field(description="The pod.")
    device: Names = pydantic.Field(description="What is different for each GPU: its UUID.")
    instance: Names | None = pydantic.Field(None, description="What tells MIG instances of a GPU apart.")
    profile: Names | None = pydantic.Field(None, description="A MIG instance's profile.")
    model: Names | None = pydantic.Field(
        None, description="The GPU's model, by which its idle power is known."
    )
    node: Names | None = pydantic.Field(None, description="The node.")

    def names(self) -> LabelNames:
        """As the questions take them."""
        return LabelNames(**{field: tuple(getattr(self, field) or ()) for field in type(self).model_fields})


class MetricRow(_Part):
    """One metric.

    Raises:
        ValueError: The selector is not one.
    """

    quantity: Literal["activity", "traffic", "memory", "power"] = pydantic.Field(
        description="What it measures: the share of time in which the GPU, or its memory bus, worked; memory in use; "
        "power drawn."
    )
    selector: str = pydantic.Field(description="A metric's name, and matchers in braces if need be.")
    scale: float = pydantic.Field(
        1.0,
        gt=0.0,
        strict=False,
        allow_inf_nan=False,
        description="Factor to shares from 0 to 1, bytes, watts: 0.01 for percent, 1048576 for MiB.",
    )
    limit: float | None = pydantic.Field(
        None,
        gt=0.0,
        strict=False,
        allow_inf_nan=False,
        description="The highest value that can be, after scaling; what is above it is no measurement.",
    )

    @pydantic.field_validator("selector")
    @classmethod
    def _is_selector(cls, text: str) -> str:
        if not _SELECTOR.fullmatch(text.strip()):
            message = f'{text[:60]!r} is not a selector such as gpu_utilization{{job="gpus"}}'
            raise ValueError(message)
        return text.strip()

    def as_quantity(self) -> Metric:
        """As the questions take it."""
        found = _SELECTOR.fullmatch(self.selector)
        matchers = (found["matchers"] or "").strip().removesuffix(",") if found else ""
        return Metric(
            MetricKind(self.quantity),
            found["metric"] if found else self.selector,
            self.scale,
            matchers=(matchers,) if matchers else (),
            limit=self.limit,
        )


class Signals(_Part):
    """The file."""

    apiVersion: Literal["gpu-rightsizer.io/v1alpha1"]  # noqa: N815 - spelled as Kubernetes spells it
    kind: Literal["Signals"]
    labels: LabelsTable
    quantities: list[MetricRow] = pydantic.Field(min_length=1, description="The metrics.")


KIND = FileKind(
    "signals table", Signals, "apiVersion, kind, labels, quantities", "docs/signals.md", SignalsError
)


def load(path: pathlib.Path) -> MetricSource:
    """Read a table.

    Raises:
        ConfigurationError: The file cannot be read.
        SignalsError: It is not a table; carries all its problems.
    """
    return parse(yamlfile.read_bytes(path, KIND), source=str(path))


def parse(raw: bytes, *, source: str) -> MetricSource:
    """Turn the bytes of a table into a source.

    Raises:
        SignalsError: With every problem found.
    """
    signals, lines = yamlfile.parse(raw, KIND, source=source)
    if not any(MetricKind(row.quantity) is MetricKind.ACTIVITY for row in signals.quantities):
        line = lines["quantities",]
        words = "none is activity, without which nothing can be judged"
        raise SignalsError(source, [Problem(line, "quantities", words)])
    quantities = tuple(
        # Rows of one kind measure different things: only copies of one metric are held against each other.
        dataclasses.replace(row.as_quantity(), alike=str(number))
        for number, row in enumerate(signals.quantities)
    )
    return MetricSource(source, quantities, signals.labels.names(), has_rules=False)
