"""Whether a rule's conditions hold for a pod of a workload: yes, no, or not known. Pure.

What a pod's node is, or what labels an owner carries that was not read, may not be known. Then the answer is neither:
the rule is taken for one that may hold, and so are those after it, of which the strictest counts.
"""

import dataclasses
import fnmatch
from collections.abc import Callable, Mapping
from typing import Any

from rightsizer.model import Fleet, Node, Pod, Workload
from rightsizer.policy.match import CONDITIONS, Match, PriorityRange


@dataclasses.dataclass(frozen=True, slots=True)
class MatchInput:
    """A pod, with what else its rule depends on.

    Attributes:
        node: The pod's; None where it has none yet, or it is not known.
    """

    workload: Workload
    pod: Pod
    node: Node | None

    @property
    def is_owner_read(self) -> bool:
        """Whether the workload's own labels are known; of controllers that cannot be read only the name is."""
        return bool(self.workload.resource_version)


def subject_of(workload: Workload, pod: Pod, fleet: Fleet) -> MatchInput:
    """A pod beside its node."""
    return MatchInput(workload, pod, fleet.nodes.get(pod.node))


def is_any(value: str, patterns: tuple[str, ...]) -> bool:
    """Whether a name matches one of several globs."""
    return any(fnmatch.fnmatchcase(value, pattern) for pattern in patterns)


def holds(match: Match, subject: MatchInput) -> bool | None:
    """Whether all conditions that are given hold; None where that depends on what is not known."""
    answers = [answer for _, answer in answers_of(match, subject)]
    if False in answers:
        return False
    return None if None in answers else True


def answers_of(match: Match, subject: MatchInput) -> list[tuple[str, bool | None]]:
    """Each condition that is given, with whether it holds; none where the rule matches everything."""
    given = ((name, getattr(match, name)) for name in CONDITIONS)
    return [(name, _ROWS[name].test(value, subject)) for name, value in given if value is not None]


def sight_of(condition: str, subject: MatchInput) -> str:
    """What the subject is as far as a condition asks, for people."""
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


def _sight_of_node(field: str) -> Callable[[MatchInput], str]:
    def sight(subject: MatchInput) -> str:
        if subject.node is None:
            return f"node {subject.pod.node} was not read" if subject.pod.node else "it is on no node yet"
        value = getattr(subject.node, field)
        return f"it is {value}" if value else f"node {subject.node.name} has no such label"

    return sight


def _sight_of_labels(subject: MatchInput) -> str:
    labels = {**subject.workload.labels, **subject.pod.labels}
    told = ", ".join(f"{key}={value}" for key, value in sorted(labels.items())) or "no labels"
    return told if subject.is_owner_read else f"{told}; those of {subject.workload.ref.kind} were not read"


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    """How a condition is asked, and what is told about the answer."""

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
        lambda patterns, subject: (
            is_any(subject.workload.ref.kind, patterns) or is_any(subject.workload.ref.full_kind, patterns)
        ),
        lambda subject: f"it is {subject.workload.ref.full_kind}",
    ),
    "labels": _Row(_labels, _sight_of_labels),
    "models": _Row(_of_node("model"), _sight_of_node("model")),
    "nodePools": _Row(_of_node("pool"), _sight_of_node("pool")),
}
