"""Selection of workloads of a plan by name, label, verdict, finding, class and owner. Pure.

A selection is applied to a finished plan, so that budgets and breaker always count the whole cluster.
"""

import dataclasses
import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rightsizer.findings.no_requests import servers_without_metrics
from rightsizer.kube.object_names import shell_command
from rightsizer.model import Decision, ObjectRef, Plan, Workload
from rightsizer.text import instant, safe

_SHOWN = 10


class InvalidSelectorError(ValueError):
    """A text is no label selector."""


@dataclasses.dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement of a label selector: the label has one of the values, or with `is_not` none of them.

    Attributes:
        values: None where any value will do.
    """

    key: str
    values: frozenset[str] | None = None
    is_not: bool = False

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels fulfil it; as in Kubernetes, a label that is missing is none of the values."""
        is_in = self.key in labels and (self.values is None or labels[self.key] in self.values)
        return is_in is not self.is_not


_NAME = r"(?:[A-Za-z0-9.-]+/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
_VALUE = r"[A-Za-z0-9_.-]*"
_REQUIREMENT = re.compile(
    rf"\s*(?:(?P<absent>!)?\s*(?P<key>{_NAME})"
    rf"(?:\s*(?P<equal>==?|!=)\s*(?P<value>{_VALUE})|\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?)\s*"
)
_COMMA = re.compile(r",(?![^()]*\))")


def parse_selector(text: str) -> tuple[Requirement, ...]:
    """The requirements of a label selector, as kubectl writes it: `a=b,c!=d,e in (x, y),f,!g`.

    Raises:
        InvalidSelectorError: It is none.
    """
    return tuple(_requirement(part) for part in _COMMA.split(text))


def _requirement(text: str) -> Requirement:
    found = _REQUIREMENT.fullmatch(text)
    if found is None or (found["absent"] and (found["equal"] or found["set"])):
        message = "write a label selector as for kubectl, such as app=chat,tier!=batch"
        raise InvalidSelectorError(message)
    if found["set"]:
        values = frozenset(value.strip() for value in found["values"].split(","))
        return Requirement(found["key"], values, is_not=found["set"] == "notin")
    if found["equal"]:
        return Requirement(found["key"], frozenset({found["value"]}), is_not=found["equal"] == "!=")
    return Requirement(found["key"], is_not=bool(found["absent"]))


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """Conditions on a workload; empty fields allow all. Names may have wildcards.

    Attributes:
        workloads: NAMESPACE/KIND/NAME.
        labels: Of the workload, or of one of its pods.
        owners: KIND/NAME or NAME of the workload, its CronJob, its gang, or a controller that manages it.
        text: The same as it was written, for people.
    """

    workloads: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    labels: tuple[Requirement, ...] = ()
    verdicts: frozenset[str] = frozenset()
    findings: frozenset[str] = frozenset()
    classes: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    text: str = ""

    def admits(self, ref: ObjectRef) -> bool:
        """Whether the name is one of those wanted."""
        return _is_one(self.namespaces, [ref.namespace]) and _is_one(
            tuple(name.lower() for name in self.workloads),
            [str(ref).lower(), f"{ref.namespace}/{ref.full_kind}/{ref.name}".lower()],
        )

    def matches(self, decision: Decision) -> bool:
        """Whether the workload is all that is wanted."""
        workload = decision.workload
        return (
            self.admits(workload.ref)
            and (not self.verdicts or decision.verdict.value in self.verdicts)
            and (not self.findings or decision.finding.name.value in self.findings)
            and _is_one(self.classes, [workload.priority_class])
            and _is_one(self.owners, _owners_of(workload))
            and _has_labels(self.labels, workload)
        )


def freed_words(plan: Plan, name: str) -> str:
    """Sentence about the change that freed a workload's GPUs if the plan does not have it; empty if none did."""
    only = Selection(workloads=(name,))
    changes = plan.fleet.changes if plan.fleet else ()
    taken = (change for change in changes if change.is_in_effect and change.record.takes)
    made = [change for change in taken if only.admits(change.ref)]
    if not made:
        return ""
    last = max(made, key=lambda change: change.at)
    done = f"{safe(last.record.action)} by run {safe(last.record.run)}"
    undo = shell_command("gpu-rightsizer", "undo", str(last.ref))
    return f"{safe(name)}: holds no GPUs since {instant(last.at)}: {done}; to undo it: {undo}"


def _unmatched(plan: Plan, selection: Selection) -> Iterator[str]:
    workloads = [decision.workload for decision in plan.decisions]
    for name, wanted, values in (
        ("namespace", selection.namespaces, [[workload.ref.namespace] for workload in workloads]),
        ("PriorityClass", selection.classes, [[workload.priority_class] for workload in workloads]),
        ("owner", selection.owners, [[*_owners_of(workload)] for workload in workloads]),
    ):
        there = sorted({value for known in values for value in known if value})
        if wanted and there and not any(_is_one(wanted, known) for known in values):
            shown = ", ".join(there[:_SHOWN]) + (f" and {len(there) - _SHOWN} more" if there[_SHOWN:] else "")
            yield f"{name} {' or '.join(wanted)}: no GPU workload has it; there are: {shown}"


def selected(plan: Plan, selection: Selection) -> Plan:
    """The plan with only the workloads that are wanted, and without the problems of the others."""
    if not selection.text:
        return plan
    kept = tuple(decision for decision in plan.decisions if selection.matches(decision))
    shown = {str(decision.workload.ref) for decision in kept}
    others = {str(decision.workload.ref) for decision in plan.decisions} - shown
    problems = [words for words in _of_all(plan, kept) if words.partition(": ")[0] not in others]
    return dataclasses.replace(
        plan,
        decisions=kept,
        problems=(*(() if kept else _unmatched(plan, selection)), *problems),
        filter=selection.text,
        left_out=len(plan.decisions) - len(kept),
    )


def _of_all(plan: Plan, kept: Sequence[Decision]) -> Iterator[str]:
    """The problems of the plan; a remark that names several workloads names only those that are kept."""
    if plan.measured is None:
        yield from plan.problems
        return
    remark, narrowed = (
        servers_without_metrics((decision.workload for decision in decisions), plan.measured)
        for decisions in (plan.decisions, kept)
    )
    for words in plan.problems:
        yield from narrowed if (words,) == remark else (words,)


def _is_one(patterns: tuple[str, ...], names: Iterable[str]) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _owners_of(workload: Workload) -> Iterable[str]:
    for ref in filter(None, (workload.ref, workload.starter)):
        yield from (ref.name, f"{ref.kind}/{ref.name}")
    for manager in workload.managers:
        yield from (manager.name, f"{manager.kind}/{manager.name}")
    if workload.gang:
        kind, _, name = workload.gang.partition(" ")
        yield from (name, f"{kind}/{name}")


def _has_labels(wanted: tuple[Requirement, ...], workload: Workload) -> bool:
    label_sets: list[Mapping[str, str]] = [{**workload.labels, **pod.labels} for pod in workload.pods]
    return any(all(term.holds(labels) for term in wanted) for labels in label_sets or [workload.labels])
