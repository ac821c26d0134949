"""Which rule holds for a workload, and what stands against acting on it. Pure.

Protections add up: each is a function that returns a reason or nothing, and all reasons are kept. Users' annotations
can only reduce what is done.
"""

import dataclasses
import fnmatch
from collections.abc import Iterator, Mapping

from rightsizer.config import PREFIX
from rightsizer.model import Action, Mode, Pod, Veto, Workload
from rightsizer.policy.criteria import Criteria, criteria_for
from rightsizer.policy.document import ADVISE_ONLY, Match, Policy, Rule, Thresholds

SYSTEM_PRIORITY = 1_000_000_000
"""Kubernetes reserves priorities above this for system classes (scheduling.k8s.io/v1 PriorityClass)."""

SYSTEM_NAMESPACES = ("kube-system", "kube-public", "kube-node-lease", "gpu-operator", "gpu-rightsizer")
"""The control plane's, the GPU Operator's and our own; no configuration opens them."""

UNTOUCHABLE_KINDS = frozenset({"DaemonSet", "Node"})
"""DaemonSets are the cluster's own machinery; Node owns the kubelet's static pods."""

MODE_ANNOTATION = PREFIX + "mode"

NO_RULE = "(no rule)"

_STRICTNESS = {Mode.PROTECT: 0, Mode.ADVISE: 1, Mode.ENFORCE: 2}


@dataclasses.dataclass(frozen=True, slots=True)
class Ruling:
    """What the policy says about a workload: the rule, its mode after all reductions, and why it was reduced.

    Attributes:
        rule: Its name; several names where pods match different rules of one mode.
        actions: What each of those rules allows.
        judged_by: What each of those rules judges by; it is idle where all say so.
    """

    rule: str
    mode: Mode
    actions: tuple[Action, ...]
    judged_by: tuple[Criteria, ...]
    vetoes: tuple[Veto, ...]

    @property
    def thresholds(self) -> Thresholds:
        """Those that take the least activity for work."""
        return min((each.idle for each in self.judged_by), key=lambda idle: idle.maxUtilizationPercent)


def rule_on(workload: Workload, policy: Policy) -> Ruling:
    """The policy's word on a workload.

    The rule is sought for every pod, since pods of one workload may differ; the strictest mode holds for all, and of
    several rules of that mode what all of them allow. Pods come and go: their order means nothing.
    """
    rules = _strictest(workload, policy)
    name, strictest = " + ".join(rule.name for rule in rules), rules[0].mode
    protections = tuple(_protections(workload, policy))
    reductions = tuple(_opt_outs(workload)) if policy.honourOptOut else ()
    vetoes = [veto for veto, _ in reductions]
    mode = min((strictest, *(mode for _, mode in reductions)), key=_STRICTNESS.__getitem__)
    if protections:
        mode = Mode.PROTECT
    if strictest is Mode.PROTECT:
        vetoes.insert(0, Veto(name, f"protected by rule {name}"))
    return Ruling(
        rule=protections[0].rule if protections else name,
        mode=mode,
        actions=tuple(action for action in Action if all(action in rule.actions for rule in rules)),
        judged_by=tuple(criteria_for(rule, workload, policy) for rule in rules),
        vetoes=(*protections, *vetoes),
    )


def _strictest(workload: Workload, policy: Policy) -> list[Rule]:
    """The rules of the strictest mode among those that hold for its pods, in the policy's order."""
    matched = {rule.name: rule for rule in (first_match(workload, pod, policy) for pod in workload.pods)}
    mode = min((rule.mode for rule in matched.values()), key=_STRICTNESS.__getitem__)
    names = [*(rule.name for rule in policy.rules), NO_RULE]
    return [matched[name] for name in names if name in matched and matched[name].mode is mode]


def first_match(workload: Workload, pod: Pod, policy: Policy) -> Rule:
    """The first rule that matches a pod of the workload; advice on everything where none does."""
    for rule in policy.rules:
        if matches(rule.match, workload, pod):
            return rule
    return ADVISE_ONLY.rules[0].model_copy(update={"name": NO_RULE})


def matches(match: Match, workload: Workload, pod: Pod) -> bool:
    """Whether all conditions that are given hold."""
    if match.everything:
        return True
    if match.priority is not None and not (
        pod.priority is not None and match.priority.min <= pod.priority <= match.priority.max
    ):
        return False
    return (
        _any_of(match.priorityClasses, pod.priority_class)
        and _any_of(match.namespaces, workload.ref.namespace)
        and (_any_of(match.kinds, workload.ref.kind) or _any_of(match.kinds, workload.ref.full_kind))
    )


def named_classes(policy: Policy) -> Iterator[tuple[int, int, str]]:
    """What rules call PriorityClasses: rule index, pattern index, pattern."""
    for number, rule in enumerate(policy.rules):
        for position, pattern in enumerate(rule.match.priorityClasses or ()):
            if pattern:
                yield number, position, pattern


def _any_of(patterns: tuple[str, ...] | None, value: str) -> bool:
    return patterns is None or any(fnmatch.fnmatchcase(value, pattern) for pattern in patterns)


def _protections(workload: Workload, policy: Policy) -> Iterator[Veto]:
    """What no rule can lift, most general first."""
    namespace = workload.ref.namespace
    if namespace in SYSTEM_NAMESPACES:
        yield Veto("built-in:system-namespace", f"namespace {namespace} belongs to the system")
    if _any_of(policy.protectedNamespaces, namespace):
        yield Veto("protectedNamespaces", f"the policy protects namespace {namespace}")
    if workload.ref.kind in UNTOUCHABLE_KINDS:
        yield Veto("built-in:kind", f"a {workload.ref.kind} is never touched")
    for pod in workload.pods:
        if pod.is_static:
            yield Veto("built-in:static-pod", f"pod {pod.ref.name} is a static pod of its node")
        if pod.priority_class.startswith("system-") or (pod.priority or 0) > SYSTEM_PRIORITY:
            yield Veto("built-in:system-class", f"pod {pod.ref.name} has a system priority")
        if pod.priority is None:
            yield Veto("built-in:unknown-priority", f"the priority of pod {pod.ref.name} is not known")


def _opt_outs(workload: Workload) -> Iterator[tuple[Veto, Mode]]:
    """Users' wishes on the workload, its pods and its namespace; what cannot be read counts as opted out."""
    where: list[tuple[str, Mapping[str, str]]] = [
        (f"{workload.ref.kind} {workload.ref.name}", workload.annotations),
        *((f"pod {pod.ref.name}", pod.annotations) for pod in workload.pods),
        (f"namespace {workload.ref.namespace}", workload.namespace_annotations),
    ]
    for owner, annotations in where:
        wish = annotations.get(MODE_ANNOTATION)
        match wish:
            case None | "enforce":
                continue
            case "advise":
                yield Veto("opt-out", f"{MODE_ANNOTATION}: advise on {owner}"), Mode.ADVISE
            case "off":
                yield Veto("opt-out", f"{MODE_ANNOTATION}: off on {owner}"), Mode.PROTECT
            case _:
                words = f"{MODE_ANNOTATION}: {wish!r} on {owner} cannot be read (off or advise); taken as off"
                yield Veto("opt-out", words), Mode.PROTECT
