"""Whom a rule is about: the conditions as they stand in the file. Pure; `matching` asks them of a workload."""

from typing import Annotated, Literal, Self

import pydantic

from rightsizer.policy.values import Classes, Kinds, Namespaces, NodeLabels, Part

LOWEST_PRIORITY = -2_147_483_648
HIGHEST_USER_PRIORITY = 1_000_000_000
"""Kubernetes reserves what lies above for system classes (PriorityClass v1)."""
LOWEST_IN_USE = -1_000_000_000
"""Nobody has classes below; a range from here on, or from further below, to the highest leaves nothing out."""


class PriorityRange(Part):
    """An inclusive range of pod priorities."""

    model_config = pydantic.ConfigDict(json_schema_extra={"minProperties": 1})

    min: int = pydantic.Field(
        LOWEST_PRIORITY,
        ge=LOWEST_PRIORITY,
        le=HIGHEST_USER_PRIORITY,
        description="Lowest matching priority.",
    )
    max: int = pydantic.Field(
        HIGHEST_USER_PRIORITY,
        ge=LOWEST_PRIORITY,
        le=HIGHEST_USER_PRIORITY,
        description="Highest matching priority.",
    )

    @pydantic.model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            message = f"min {self.min} is above max {self.max}"
            raise ValueError(message)
        if self.min <= LOWEST_IN_USE and self.max == HIGHEST_USER_PRIORITY:
            message = (
                f"the range includes every priority, {LOWEST_IN_USE} to {HIGHEST_USER_PRIORITY}: narrow or remove it; "
                "to match all workloads, write everything: true"
            )
            raise ValueError(message)
        return self


Key = Annotated[
    str,
    pydantic.Field(
        pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
    ),
]
"""A label's key: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set"""

Value = Annotated[
    str,
    pydantic.Field(pattern=r"^[-A-Za-z0-9_.*?]{0,63}$"),
]
"""A glob for a label's value; * is any, so that the label is there."""


_Labels = Annotated[
    dict[Key, Value], pydantic.Field(min_length=1, json_schema_extra={"additionalProperties": False})
]


def _on_purpose(value: object) -> object:
    if value is not True:
        message = "write everything: true, or remove it and give conditions"
        raise ValueError(message)
    return value


class Match(Part):
    """Which workloads a rule matches; all conditions must hold."""

    model_config = pydantic.ConfigDict(
        json_schema_extra={
            "minProperties": 1,
            "if": {"required": ["everything"]},
            "then": {"maxProperties": 1},
        }
    )

    priorityClasses: Classes | None = pydantic.Field(
        None,
        description='PriorityClasses, with wildcards * and ?; each must exist. "" means pods without a class.',
    )
    priority: PriorityRange | None = pydantic.Field(None, description="Range of the pods' resolved priority.")
    namespaces: Namespaces | None = pydantic.Field(None, description="Namespaces, with wildcards.")
    kinds: Kinds | None = pydantic.Field(
        None,
        description="Workload kinds, with wildcards; custom kinds with their API group, such as "
        "TrainingRun.example.com.",
    )
    labels: _Labels | None = pydantic.Field(
        None,
        description='Labels of the workload or its pods; all must match. Values may have wildcards; "*" means that '
        "the label exists.",
    )
    models: NodeLabels | None = pydantic.Field(
        None,
        description="GPU models, with wildcards, such as *H100*, by nvidia.com/gpu.product of the nodes.",
    )
    nodePools: NodeLabels | None = pydantic.Field(
        None, description="Node pools, with wildcards, by the labels of the nodes."
    )
    everything: Annotated[Literal[True], pydantic.BeforeValidator(_on_purpose)] | None = pydantic.Field(
        None,
        description="Matches all workloads; excludes other conditions.",
    )

    @pydantic.model_validator(mode="after")
    def _not_empty(self) -> Self:
        given = [name for name in CONDITIONS if getattr(self, name) is not None]
        if self.everything and given:
            message = "everything: true excludes other conditions; remove one or the other"
            raise ValueError(message)
        if not self.everything and not given:
            message = "an empty match would match everything; give a condition, or write everything: true"
            raise ValueError(message)
        return self


CONDITIONS = ("priorityClasses", "priority", "namespaces", "kinds", "labels", "models", "nodePools")
"""In the order in which they are asked."""
