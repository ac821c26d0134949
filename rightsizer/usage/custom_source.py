"""The signals file: metrics and labels of any other exporter, in YAML.

A selector is a metric's name with matchers, not an expression: functions over a range are applied to it.
"""

import pathlib
import re
from typing import Annotated, Literal

import pydantic

from rightsizer import yamlfile
from rightsizer.errors import Problem, SignalsError
from rightsizer.usage.series_labels import LabelNames
from rightsizer.usage.source_metrics import Metric, MetricKind, MetricSource
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


Names = Annotated[
    list[Annotated[str, pydantic.Field(pattern=f"^{_LABEL}$")]],
    pydantic.Field(min_length=1),
    pydantic.BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
]


class LabelsTable(_Part):
    """Labels: one name each, or several in order of preference."""

    namespace: Names = pydantic.Field(description="The pod's namespace.")
    pod: Names = pydantic.Field(description="The pod.")
    device: Names = pydantic.Field(description="The GPU's UUID.")
    instance: Names | None = pydantic.Field(None, description="The MIG instance of a GPU.")
    profile: Names | None = pydantic.Field(None, description="The MIG instance's profile.")
    model: Names | None = pydantic.Field(None, description="The GPU's model, which gives its idle power.")
    node: Names | None = pydantic.Field(None, description="The node.")

    def names(self) -> LabelNames:
        """The names for queries."""
        return LabelNames(**{field: tuple(getattr(self, field) or ()) for field in type(self).model_fields})


class MetricRow(_Part):
    """One metric."""

    quantity: Literal["activity", "traffic", "memory", "power"] = pydantic.Field(
        description="The quantity: share of time in which the GPU (activity) or its memory bus (traffic) was busy; "
        "memory in use; power drawn."
    )
    selector: str = pydantic.Field(description="A metric's name, with optional matchers in braces.")
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
        description="The highest plausible value after scaling; a higher one is invalid.",
    )

    @pydantic.field_validator("selector")
    @classmethod
    def _is_selector(cls, text: str) -> str:
        if not _SELECTOR.fullmatch(text.strip()):
            message = f'{text[:60]!r} is not a selector such as gpu_utilization{{job="gpus"}}'
            raise ValueError(message)
        return text.strip()

    def metric(self, number: int) -> Metric:
        """The metric for queries. Rows measure different things, so only copies of one row can disagree."""
        name, _, rest = self.selector.partition("{")
        matchers = rest.removesuffix("}").strip().removesuffix(",")
        return Metric(
            MetricKind(self.quantity),
            name.strip(),
            self.scale,
            alike=str(number),
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
    """Read a signals file.

    Raises:
        ConfigurationError: The file cannot be read.
        SignalsError: With all problems of its content.
    """
    signals, lines = yamlfile.parse(yamlfile.read_bytes(path, KIND), KIND, source=str(path))
    if not any(row.quantity == "activity" for row in signals.quantities):
        problem = Problem(lines["quantities",], "quantities", "none is activity, which every finding needs")
        raise SignalsError(str(path), [problem])
    metrics = tuple(row.metric(number) for number, row in enumerate(signals.quantities))
    return MetricSource(str(path), metrics, signals.labels.names(), has_rules=False)
