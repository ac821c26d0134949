"""The rule that applies to a workload, what blocks acting on it, and the criteria that it is judged by. Pure.

Rules are evaluated in order: those of the file, and those of PriorityClasses before or after them. If a match is
unknown, the rule may apply as well as those after it, and the strictest of them does.
"""

import dataclasses
import datetime
import itertools
from collections.abc import Iterator, Mapping, Sequence

import pydantic

from rightsizer.model import Action, Blocker, BlockerCode, FindingName, Fleet, Mode, Pod, Workload
from rightsizer.policy.classes import class_rules, protecting
from rightsizer.policy.do_not_disrupt import marks_on
from rightsizer.policy.match import MatchInput, Sharing, holds, is_any, is_kind, subject_of
from rightsizer.policy.protections import OWN_NAMESPACE, opt_outs, protections
from rightsizer.policy.recognition import is_notebook, is_woken
from rightsizer.policy.rule import Rule
from rightsizer.policy.schema import ADVISE_ONLY, KindDefaults, Policy
from rightsizer.policy.thresholds import Sections, Thresholds


class Criteria(Sections):
    """The thresholds of every finding, as they hold for one workload, and which pods may share a GPU."""

    sharing: Sharing = pydantic.Field(default_factory=Sharing)

    @property
    def wide_windows(self) -> frozenset[datetime.timedelta]:
        """Windows queried for the whole fleet; followup_queries adds others for some workloads."""
        parts = (self.idle, self.underutilized, self.tooManyGpus, self.oversizedGpu, self.inputBound)
        return frozenset({self.idle.short_window, *(part.window for part in parts)})

    @property
    def windows(self) -> frozenset[datetime.timedelta]:
        """Every window for which usage is queried."""
        return self.wide_windows | {self.stuck.window}


def kind_defaults(workload: Workload, policy: Policy) -> KindDefaults | None:
    """The row of the defaults that is about the workload's kind; None where none is."""
    rows = (row for row in policy.defaults.kinds if is_kind(workload.ref, row.kinds))
    return next((row for row in rows if _is_for(row, workload)), None)


def _is_for(row: KindDefaults, workload: Workload) -> bool:
    classes = row.onlyPriorityClasses
    return (
        (not row.onlyNotebooks or is_notebook(workload))
        and (not row.onlyWoken or is_woken(workload))
        and (classes is None or _has_only(workload, classes))
    )


def _has_only(workload: Workload, classes: tuple[str, ...]) -> bool:
    """Whether all pods are of these PriorityClasses; of no pods that is not known."""
    return bool(workload.pods) and all(is_any(pod.priority_class, classes) for pod in workload.pods)


NO_RULE = "(no rule)"
"""Name of the advice on whatever no rule matches."""

NO_FLEET = Fleet((), {}, {})
"""A fleet of which nothing is known: models and pools are unknown, classes say nothing."""

_STRICTNESS = {Mode.PROTECT: 0, Mode.ADVISE: 1, Mode.ENFORCE: 2}


@dataclasses.dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """A workload's rules, its mode after all reductions, and why it was reduced.

    Attributes:
        rule: Name of the rule, or of several rules of one mode that its pods match.
        actions: Those that each of the rules allows.
        judged_by: Criteria of each rule; the workload is idle if all agree.
        restrictions: Permanent blockers.
        min_replicas: By rules and annotations.
    """

    rule: str
    rules: tuple[Rule, ...]
    mode: Mode
    actions: tuple[Action, ...]
    judged_by: tuple[Criteria, ...]
    restrictions: tuple[Blocker, ...]
    min_replicas: int
    min_gpus: int
    notify_before: datetime.timedelta | None
    cooldown: datetime.timedelta
    max_cooldown: datetime.timedelta
    max_changes: int
    healthy_within: datetime.timedelta
    restart_time: datetime.timedelta | None
    only_for_pending_pods: frozenset[Action] = frozenset()

    @property
    def thresholds(self) -> Thresholds:
        """The rules' thresholds that take the least activity for work."""
        return min(self.judged_by, key=lambda criteria: criteria.idle.maxUtilizationPercent).idle

    def mode_for(self, name: FindingName) -> Mode:
        """The mode for one finding; PROTECT if a rule switches it off."""
        return strictest((self.mode, *(rule.mode_for(name) for rule in self.rules)))

    @property
    def by_rules(self) -> "EffectivePolicy":
        """The same without the owners' own minimum of replicas."""
        return dataclasses.replace(self, min_replicas=max(rule.minReplicas for rule in self.rules))

    def is_off(self, name: FindingName) -> bool:
        """Whether a rule switches a finding off, so that it is not shown."""
        return any(rule.findings.get(name) == "off" for rule in self.rules)


def strictest(modes: Sequence[Mode]) -> Mode:
    """The strictest of several modes."""
    return min(modes, key=_STRICTNESS.__getitem__)


@dataclasses.dataclass(frozen=True, slots=True)
class OrderedRule:
    """A rule with its position.

    Attributes:
        place: Position; lower ones are evaluated first.
        changes: Fields of the idle thresholds that replace the defaults.
        why: Why it protects, if its own mode is not the reason.
    """

    rule: Rule
    place: int
    changes: Mapping[str, object] = dataclasses.field(default_factory=dict)
    why: str = ""

    @property
    def key(self) -> tuple[int, str, str]:
        """Unique sort key, in order of evaluation; a class may have a rule of its own and a protecting one."""
        return self.place, self.rule.name, self.why

    def blocker(self) -> Blocker:
        """The blocker of a workload that it protects."""
        return Blocker(
            BlockerCode.PROTECTED, self.why or f"protected by rule {self.rule.name}", source=self.rule.name
        )


class PolicyEvaluator:
    """Evaluates a policy for a cluster, at an instant.

    Args:
        own: Namespace of gpu-rightsizer.
        instance: Name of this gpu-rightsizer; by default its namespace.
    """

    def __init__(
        self,
        policy: Policy,
        fleet: Fleet,
        *,
        at: datetime.datetime,
        own: str = OWN_NAMESPACE,
        instance: str = "",
    ) -> None:
        self.policy = policy
        self.fleet = fleet
        self.at = at
        self.own = own
        self.instance = instance or own
        self.class_rules = class_rules(policy, fleet.classes)
        self._ordered_rules = [OrderedRule(rule, place) for place, rule in enumerate(policy.rules)]
        last = len(policy.rules)
        self._class_place = -1 if policy.classAnnotations == "class-first" else last
        self._advice = OrderedRule(ADVISE_ONLY.rules[0].model_copy(update={"name": NO_RULE}), last + 1)
        self._label_keys = sorted({key for rule in policy.rules for key in rule.match.labels or ()})
        self._candidates: dict[tuple[object, ...], tuple[OrderedRule, ...]] = {}
        self._criteria: dict[tuple[object, ...], Criteria] = {}
        # By identity: of the same workload it is asked several times. Kept, so that no id comes round again.
        self._results: dict[int, tuple[Workload, EffectivePolicy]] = {}
        self._rows: dict[tuple[str, bool, bool, frozenset[str]], KindDefaults | None] = {}
        self._asks_notebooks = any(row.onlyNotebooks for row in policy.defaults.kinds)
        self._asks_classes = any(row.onlyPriorityClasses for row in policy.defaults.kinds)

    def evaluate(self, workload: Workload) -> EffectivePolicy:
        """The policy's word on a workload.

        The rule is sought for every pod, since pods of one workload may differ; the strictest mode holds for all, and
        of several rules of that mode what all of them allow. Pods come and go: their order means nothing.
        """
        known = self._results.get(id(workload))
        if known is None:
            known = self._results[id(workload)] = (workload, self._evaluate(workload))
        return known[1]

    def _evaluate(self, workload: Workload) -> EffectivePolicy:
        ordered_rules = self._strictest(workload)
        rules = tuple(ordered.rule for ordered in ordered_rules)
        mode, row = rules[0].mode, self._kind_defaults(workload)
        name = " + ".join(dict.fromkeys(rule.name for rule in rules))
        built_in = tuple(protections(workload, self.policy, self.own))
        requests = tuple(opt_outs(workload, self.at)) if self.policy.respectOptOut else ()
        marks = tuple(marks_on(workload, self.policy.respectDoNotDisrupt, self.at))
        reduced = (
            [opt_out.mode for opt_out in requests]
            + [Mode.ADVISE] * bool(marks)
            + [Mode.PROTECT] * bool(built_in)
        )
        by_rule = [ordered.blocker() for ordered in ordered_rules] if mode is Mode.PROTECT else []
        return EffectivePolicy(
            rule=built_in[0].source if built_in else name,
            rules=rules,
            mode=strictest([mode, *reduced]),
            actions=tuple(
                action for action in rules[0].actions if all(action in rule.actions for rule in rules)
            ),
            judged_by=tuple(self._criteria_for(ordered, row) for ordered in ordered_rules),
            restrictions=(
                *built_in,
                *by_rule,
                *(opt_out.blocker for opt_out in requests),
                *marks,
            ),
            min_replicas=max(
                (*(rule.minReplicas for rule in rules), *(opt_out.min_replicas for opt_out in requests))
            ),
            min_gpus=max(rule.minGPUs for rule in rules),
            notify_before=_notice(rules, row),
            cooldown=max(rule.cooldown for rule in rules),
            max_cooldown=max(rule.maxCooldown for rule in rules),
            max_changes=min(rule.maxChanges for rule in rules),
            only_for_pending_pods=frozenset(action for rule in rules for action in rule.onlyForPendingPods),
            healthy_within=min(rule.healthyWithin for rule in rules),
            restart_time=max(
                (rule.restartTime for rule in rules if rule.restartTime is not None), default=None
            ),
        )

    def candidates(self, workload: Workload, pod: Pod) -> tuple[OrderedRule, ...]:
        """The first rule that matches a pod, and those before it of which that is not known."""
        subject = subject_of(workload, pod, self.fleet)
        key = self._key(subject)
        if key not in self._candidates:
            self._candidates[key] = tuple(self._walk(subject))
        return self._candidates[key]

    def all_criteria(self) -> Iterator[Criteria]:
        """All criteria that may apply to some workload."""
        defaults = self.policy.defaults
        by_kind = [defaults.idle, *(row.idle for row in defaults.kinds if row.idle)]
        for ordered in (*self._ordered_rules, self._advice, *map(self._of_class, self.class_rules)):
            for idle in [ordered.rule.idle] if ordered.rule.idle else by_kind:
                yield self._with(ordered, idle)

    def windows(self) -> frozenset[datetime.timedelta]:
        """Every window for which usage is queried."""
        return frozenset(window for criteria in self.all_criteria() for window in criteria.windows)

    def class_rule(self, pod: Pod) -> OrderedRule | None:
        """The rule of the pod's PriorityClass; None without annotations, or if the policy ignores them.

        A class that was deleted, or whose value changed since the pod was admitted, protects instead.
        """
        name = pod.priority_class
        known = self.fleet.classes.get(name)
        if not name or self.policy.classAnnotations == "off":
            return None
        if known is None and self.policy.classAnnotations == "class-first":
            return self._shield(name, f"PriorityClass {name} does not exist, so its annotations are unknown")
        if known is None:
            return None
        if pod.priority != known.value:
            return self._shield(
                name, f"PriorityClass {name} has another value than its pods were admitted with"
            )
        return self._of_class(name) if name in self.class_rules else None

    def _of_class(self, name: str) -> OrderedRule:
        found = self.class_rules[name]
        why = ""
        if found.problems:
            why = f"PriorityClass {name} has invalid annotations, so it protects: {'; '.join(found.problems)}"
        return OrderedRule(found.rule, self._class_place, found.changes, why)

    def _shield(self, name: str, why: str) -> OrderedRule:
        return OrderedRule(protecting(name), self._class_place, why=why)

    def _walk(self, subject: MatchInput) -> Iterator[OrderedRule]:
        own = self.class_rule(subject.pod)
        if own and own.place < 0:
            yield own
            return
        for ordered in self._ordered_rules:
            answer = holds(ordered.rule.match, subject)
            if answer is not False:
                yield ordered
            if answer:
                return
        yield own or self._advice

    def _key(self, subject: MatchInput) -> tuple[object, ...]:
        """Everything that the result depends on."""
        workload, pod, node = subject.workload, subject.pod, subject.node
        labels = [(workload.labels.get(key), pod.labels.get(key)) for key in self._label_keys]
        place = (node.model, node.pool) if node else None
        ref, is_read = workload.ref, subject.is_owner_read
        return (ref.namespace, ref.full_kind, pod.priority_class, pod.priority, place, is_read, *labels)

    def _strictest(self, workload: Workload) -> list[OrderedRule]:
        """All rules that may apply to its pods and have the strictest mode, in order of evaluation."""
        by_pod = (self.candidates(workload, pod) for pod in workload.pods)
        found = {ordered.key: ordered for ordered in itertools.chain.from_iterable(by_pod)}
        if not workload.pods:  # without pods, any rule may apply
            found = {ordered.key: ordered for ordered in (*self._ordered_rules, self._advice)}
        mode = strictest([ordered.rule.mode for ordered in found.values()])
        return [found[key] for key in sorted(found) if found[key].rule.mode is mode]

    def _criteria_for(self, ordered: OrderedRule, row: KindDefaults | None) -> Criteria:
        key = (*ordered.key, id(row))
        if key not in self._criteria:
            idle = ordered.rule.idle or (row and row.idle) or self.policy.defaults.idle
            self._criteria[key] = self._with(ordered, idle)
        return self._criteria[key]

    def _with(self, ordered: OrderedRule, idle: Thresholds) -> Criteria:
        """The rule's own sections of thresholds, and the defaults for the others."""
        rule, defaults = ordered.rule, self.policy.defaults
        parts = {name: getattr(rule, name) or getattr(defaults, name) for name in Sections.model_fields}
        parts |= {"idle": idle.model_copy(update=ordered.changes), "sharing": self.policy.sharing}
        return Criteria.model_construct(**parts)

    def _kind_defaults(self, workload: Workload) -> KindDefaults | None:
        notebook = self._asks_notebooks and is_notebook(workload)
        classes = (
            frozenset(pod.priority_class for pod in workload.pods) if self._asks_classes else frozenset()
        )
        key = workload.ref.full_kind, notebook, is_woken(workload), classes
        if key not in self._rows:
            self._rows[key] = kind_defaults(workload, self.policy)
        return self._rows[key]


def _notice(rules: tuple[Rule, ...], row: KindDefaults | None) -> datetime.timedelta | None:
    by_kind = row.notifyBefore if row else None
    spans = [rule.notifyBefore or by_kind for rule in rules]
    return max((span for span in spans if span is not None), default=None)
