"""A policy against the cluster that it is meant for: what it names must exist, and whom each rule concerns. Pure."""

import collections
import difflib
import fnmatch
from collections.abc import Collection, Iterator, Sequence

from rightsizer.errors import PolicyError, Problem
from rightsizer.model import Mode
from rightsizer.policy.effective import NO_RULE, PolicyEvaluator
from rightsizer.policy.policy_file import LoadedPolicy
from rightsizer.policy.schema import ADVISE_ONLY, Policy


def require_classes(loaded: LoadedPolicy, existing: Collection[str]) -> None:
    """A rule about PriorityClasses none of which exists would protect nobody, silently.

    Raises:
        PolicyError: With a problem for each name that the cluster does not know.
    """
    problems = []
    for number, position, name in named_classes(loaded.policy):
        if fnmatch.filter(existing, name):
            continue
        close = difflib.get_close_matches(name.strip("*?"), existing, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it has: {', '.join(sorted(existing))}"
        problems.append(
            Problem(
                loaded.line("rules", number, "match", "priorityClasses", position),
                f"rules[{number}].match.priorityClasses[{position}]",
                f"the cluster has no PriorityClass {name}; {hint}",
            )
        )
    if problems:
        raise PolicyError(loaded.source, problems)


def named_classes(policy: Policy) -> Iterator[tuple[int, int, str]]:
    """What rules call PriorityClasses: rule index, pattern index, pattern."""
    for number, rule in enumerate(policy.rules):
        for position, pattern in enumerate(rule.match.priorityClasses or ()):
            if pattern:
                yield number, position, pattern


def class_problems(rulebook: PolicyEvaluator) -> Iterator[str]:
    """What is wrong with what PriorityClasses say, or keeps it from counting."""
    policy, names = rulebook.policy, ", ".join(rulebook.class_rules)
    if policy is ADVISE_ONLY:
        if names:
            yield f"annotations of PriorityClasses ({names}) are ignored without a policy file; set --policy"
        return
    for name, found in rulebook.class_rules.items():
        for problem in found.problems:
            yield f"PriorityClass {name} protects its pods, because its annotations are invalid: {problem}"
    catch_all = next((rule.name for rule in policy.rules if rule.match.everything), None)
    if names and catch_all and policy.classAnnotations == "file-first":
        yield (
            f"annotations of PriorityClasses ({names}) have no effect: rule {catch_all} matches everything before "
            "them; write "
            "classAnnotations: class-first, or 'off'"
        )


class Concerned:
    """Whom each rule is about in the cluster as it is.

    Attributes:
        rows: Name, mode, workloads and GPUs of each rule that is asked, in that order.
        shielded: How many of the workloads something above all rules protects.
    """

    def __init__(self, rulebook: PolicyEvaluator) -> None:
        workloads: collections.Counter[str] = collections.Counter()
        gpus: collections.Counter[str] = collections.Counter()
        modes: dict[str, Mode] = {rule.name: rule.mode for rule in rulebook.policy.rules}
        self.shielded = 0
        for workload in rulebook.fleet.workloads:
            ruling = rulebook.evaluate(workload)
            self.shielded += any(veto.source.startswith("built-in:") for veto in ruling.restrictions)
            for rule in ruling.rules:
                modes.setdefault(rule.name, rule.mode)
                workloads[rule.name] += 1
                gpus[rule.name] += workload.gpus
        names = sorted(modes, key=lambda name: name == NO_RULE)
        self.rows: Sequence[tuple[str, Mode, int, int]] = [
            (name, modes[name], workloads[name], gpus[name]) for name in names
        ]
