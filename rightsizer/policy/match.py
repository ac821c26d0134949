"""The conditions of a rule, and whether they hold for a pod: yes, no, or unknown. Pure.

A pod's node, or the labels of an owner, may be unknown. Then the rule may match, and so may those after it; the
strictest of them applies.
"""

import dataclasses
import fnmatch
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

import pydantic

from rightsizer.model import Fleet, Node, ObjectRef, Pod, Workload
from rightsizer.policy.values import Classes, Kinds, Names, Part

LOWEST_PRIORITY = -2_147_483_648
HIGHEST_USER_PRIORITY = 1_000_000_000
"""Kubernetes reserves higher values for system classes (PriorityClass v1)."""
LOWEST_IN_USE = -1_000_000_000
"""Lowest priority in use; a range from here or below to the highest leaves no class out."""


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


Labels = Annotated[
    dict[Key, Value], pydantic.Field(min_length=1, json_schema_extra={"additionalProperties": False})
]


def _on_purpose(value: object) -> object:
    if value is not True:
        message = "write everything: true, or remove it and give conditions"
        raise ValueError(message)
    return value


class Match(Part):
    """Conditions on the workloads of a rule; all must hold."""

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
    namespaces: Names | None = pydantic.Field(None, description="Namespaces, with wildcards.")
    kinds: Kinds | None = pydantic.Field(
        None,
        description="Workload kinds, with wildcards; custom kinds with their API group, such as "
        "TrainingRun.example.com.",
    )
    labels: Labels | None = pydantic.Field(
        None,
        description='Labels of the workload or its pods; all must match. Values may have wildcards; "*" means that '
        "the label exists.",
    )
    models: Names | None = pydantic.Field(
        None,
        description="GPU models, with wildcards, such as *H100*, by nvidia.com/gpu.product of the nodes.",
    )
    nodePools: Names | None = pydantic.Field(
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


class Sharing(Part):
    """Pods that may share a GPU without isolation."""

    model_config = pydantic.ConfigDict(
        json_schema_extra={
            "if": {"required": ["within"], "properties": {"within": {"const": "label"}}},
            "then": {"required": ["label"]},
            "else": {"not": {"required": ["label"]}},
        }
    )

    within: Literal["namespace", "label", "cluster"] = pydantic.Field(
        "namespace",
        description="Trust domain: a namespace, all namespaces with the same label, or the cluster.",
    )
    label: Key | None = pydantic.Field(
        None,
        description="Label of namespaces; those without it have no trust domain.",
    )
    untrusted: tuple[Match, ...] = pydantic.Field(
        (), strict=False, description="Workloads that have no trust domain."
    )

    @pydantic.model_validator(mode="after")
    def _label_is_meant(self) -> Self:
        if (self.within == "label") != (self.label is not None):
            message = "write within: label and label together, such as {within: label, label: team}"
            raise ValueError(message)
        return self

    def is_untrusted(self, workload: Workload, fleet: Fleet) -> bool:
        """Whether it matches, or may match, one of `untrusted`."""
        return any(
            holds(match, subject_of(workload, pod, fleet)) is not False
            for match in self.untrusted
            for pod in workload.pods
        )

    def domain_of(self, workload: Workload, fleet: Fleet) -> str | None:
        """The trust domain of a workload; None if it has none. Labels of pods do not count: owners set them."""
        if self.is_untrusted(workload, fleet):
            return None
        if self.label is not None:
            return workload.namespace_labels.get(self.label) or None
        return workload.ref.namespace if self.within == "namespace" else ""


CONDITIONS = ("priorityClasses", "priority", "namespaces", "kinds", "labels", "models", "nodePools")
"""Conditions in order of evaluation."""


@dataclasses.dataclass(frozen=True, slots=True)
class MatchInput:
    """A pod, with the other facts that rules match.

    Attributes:
        node: The pod's; None if it has none yet, or it is unknown.
    """

    workload: Workload
    pod: Pod
    node: Node | None

    @property
    def is_owner_read(self) -> bool:
        """Whether the workload's own labels are known; a controller that cannot be read is known by name only."""
        return bool(self.workload.resource_version)


def subject_of(workload: Workload, pod: Pod, fleet: Fleet) -> MatchInput:
    """A pod with its node."""
    return MatchInput(workload, pod, fleet.nodes.get(pod.node))


def is_any(value: str, patterns: tuple[str, ...]) -> bool:
    """Whether a name matches one of several globs."""
    return any(fnmatch.fnmatchcase(value, pattern) for pattern in patterns)


def is_kind(ref: ObjectRef, patterns: tuple[str, ...]) -> bool:
    """Whether an object's kind, with or without its API group, matches one of several globs."""
    return is_any(ref.kind, patterns) or is_any(ref.full_kind, patterns)


def holds(match: Match, subject: MatchInput) -> bool | None:
    """Whether all given conditions hold; None if that depends on unknown facts."""
    answers = [answer for _, answer in answers_of(match, subject)]
    if False in answers:
        return False
    return None if None in answers else True


def answers_of(match: Match, subject: MatchInput) -> list[tuple[str, bool | None]]:
    """Each condition that is given, with whether it holds; none where the rule matches everything."""
    given = ((name, getattr(match, name)) for name in CONDITIONS)
    return [(name, _ROWS[name].test(value, subject)) for name, value in given if value is not None]


def shown_value(condition: str, subject: MatchInput) -> str:
    """The fact that a condition tests, for people."""
    return _ROWS[condition].sight(subject)


def _priority(wanted: PriorityRange, subject: MatchInput) -> bool | None:
    priority = subject.pod.priority
    return None if priority is None else wanted.min <= priority <= wanted.max


def _labels(wanted: Mapping[str, str], subject: MatchInput) -> bool | None:
    answers = [_label(key, pattern, subject) for key, pattern in wanted.items()]
    if False in answers:
        return False
    return None if None in answers else True


def _label(key: str, pattern: str, subject: MatchInput) -> bool | None:
    for labels in (subject.workload.labels, subject.pod.labels):
        if key in labels and fnmatch.fnmatchcase(labels[key], pattern):
            return True
    return False if subject.is_owner_read else None


def _of_node(field: str) -> Callable[[tuple[str, ...], MatchInput], bool | None]:
    def test(patterns: tuple[str, ...], subject: MatchInput) -> bool | None:
        value = getattr(subject.node, field, "")
        return is_any(value, patterns) if value else None

    return test


def _shown_node(field: str) -> Callable[[MatchInput], str]:
    def sight(subject: MatchInput) -> str:
        if subject.node is None:
            return f"node {subject.pod.node} was not read" if subject.pod.node else "it is on no node yet"
        value = getattr(subject.node, field)
        return f"it is {value}" if value else f"node {subject.node.name} has no such label"

    return sight


def _shown_labels(subject: MatchInput) -> str:
    labels = {**subject.workload.labels, **subject.pod.labels}
    shown = ", ".join(f"{key}={value}" for key, value in sorted(labels.items())) or "no labels"
    return shown if subject.is_owner_read else f"{shown}; those of {subject.workload.ref.kind} were not read"


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    """The test of a condition, and the display of the tested fact."""

    test: Callable[[Any, MatchInput], bool | None]
    sight: Callable[[MatchInput], str]


_ROWS: Mapping[str, _Row] = {
    "priorityClasses": _Row(
        lambda patterns, subject: is_any(subject.pod.priority_class, patterns),
        lambda subject: (
            f"it is {subject.pod.priority_class}" if subject.pod.priority_class else "it has none"
        ),
    ),
    "priority": _Row(
        _priority,
        lambda subject: "it is unknown" if subject.pod.priority is None else f"it is {subject.pod.priority}",
    ),
    "namespaces": _Row(
        lambda patterns, subject: is_any(subject.workload.ref.namespace, patterns),
        lambda subject: f"it is {subject.workload.ref.namespace}",
    ),
    "kinds": _Row(
        lambda patterns, subject: is_kind(subject.workload.ref, patterns),
        lambda subject: f"it is {subject.workload.ref.full_kind}",
    ),
    "labels": _Row(_labels, _shown_labels),
    "models": _Row(_of_node("model"), _shown_node("model")),
    "nodePools": _Row(_of_node("pool"), _shown_node("pool")),
}
