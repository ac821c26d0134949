"""Reads a policy file, finds rules without effect, checks it against a cluster, and writes a first one.

A problem names its line. A rule is reported as unreachable only if the file alone proves it.
"""

import collections
import dataclasses
import difflib
import fnmatch
import hashlib
import json
import pathlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import yaml

from rightsizer import yamlfile
from rightsizer.errors import PolicyError, Problem
from rightsizer.model import Mode, PriorityClass
from rightsizer.policy.effective import NO_RULE, PolicyEvaluator
from rightsizer.policy.match import CONDITIONS, Match, PriorityRange
from rightsizer.policy.protections import SYSTEM_NAMESPACES, SYSTEM_PRIORITY
from rightsizer.policy.schema import ADVISE_ONLY, API_VERSION, Policy
from rightsizer.yamlfile import FileKind, Place, dotted

KIND = FileKind("policy", Policy, "apiVersion, kind, rules", "docs/policy.md", PolicyError)


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy with the positions of its fields, for messages.

    Attributes:
        lines: 1-based line of each field, by its path in the document.
        digest: SHA-256 of the text, hexadecimal; empty for the built-in one.
    """

    policy: Policy
    source: str
    digest: str
    lines: dict[Place, int]

    def line(self, *place: str | int) -> int:
        """Line of a field, or of its nearest enclosing one; 0 where the policy has no text."""
        for end in range(len(place), -1, -1):
            if place[:end] in self.lines:
                return self.lines[place[:end]]
        return 0


BUILT_IN = LoadedPolicy(ADVISE_ONLY, "built-in (advise only; give one with --policy)", "", {})


def load(path: pathlib.Path) -> LoadedPolicy:
    """Read a policy file.

    Raises:
        ConfigurationError: The file cannot be read.
        PolicyError: It is not a policy; carries all its problems.
    """
    return parse(yamlfile.read_bytes(path, KIND), source=str(path))


def parse(raw: bytes, *, source: str) -> LoadedPolicy:
    """Turn the bytes of a policy file into a policy.

    Raises:
        PolicyError: With every problem found.
    """
    policy, lines = yamlfile.parse(raw, KIND, source=source)
    loaded = LoadedPolicy(policy, source, hashlib.sha256(raw).hexdigest(), lines)
    problems = [Problem(loaded.line(*place), dotted(place), words) for place, words in unreachable(policy)]
    if problems:
        raise PolicyError(source, problems)
    return loaded


def unreachable(policy: Policy) -> Iterator[tuple[Place, str]]:
    """Each rule that can never match, or never act as written: its place in the file, and why."""
    for number, rule in enumerate(policy.rules):
        earlier = next((other for other in policy.rules[:number] if covers(other.match, rule.match)), None)
        if earlier is not None:
            words = (
                f"is never reached: rule {earlier.name} before it matches all its workloads; move this rule before "
                "it"
            )
            yield ("rules", number), words
        elif rule.mode is not Mode.PROTECT:
            yield from _shut(number, rule.match, policy)


def _shut(number: int, match: Match, policy: Policy) -> Iterator[tuple[Place, str]]:
    """Each protected class or namespace that a rule matches in vain: its place in the file, and why."""
    at: Place = ("rules", number, "match")
    for position, pattern in enumerate(match.priorityClasses or ()):
        if contains("system-*", pattern):
            words = f"{pattern} is a system class, which is always protected; remove it"
            yield (*at, "priorityClasses", position), words
    for position, pattern in enumerate(match.namespaces or ()):
        if pattern in SYSTEM_NAMESPACES:
            words = f"namespace {pattern} is a system namespace, which is always protected; remove it"
            yield (*at, "namespaces", position), words
        elif any(contains(protected, pattern) for protected in policy.protectedNamespaces):
            words = f"{pattern} is in protectedNamespaces, so this rule has no effect on it; remove it from one of them"
            yield (*at, "namespaces", position), words


def covers(wide: Match, narrow: Match) -> bool:
    """Whether whatever matches the second surely matches the first."""
    if wide.everything:
        return True
    if narrow.everything:
        return False
    return all(
        _includes(getattr(wide, name), getattr(narrow, name))
        for name in CONDITIONS
        if getattr(wide, name) is not None
    )


def _includes(wide: object, narrow: object) -> bool:
    """Whether a condition lets through all that another of the same name does; one that is not there, everything."""
    match (wide, narrow):
        case (PriorityRange() as outer, PriorityRange() as inner):
            return outer.min <= inner.min and inner.max <= outer.max
        case (Mapping() as outer_labels, Mapping() as inner_labels):
            return all(
                key in inner_labels and contains(pattern, inner_labels[key])
                for key, pattern in outer_labels.items()
            )
        case (tuple() as outer_patterns, tuple() as inner_patterns):
            return all(any(contains(outer, inner) for outer in outer_patterns) for inner in inner_patterns)
        case _:
            return False


def contains(wide: str, narrow: str) -> bool:
    """Whether every name that the glob `narrow` matches surely matches `wide`.

    As text: a * of `narrow` is matched by a * of `wide` alone, a ? by both.
    """
    return fnmatch.fnmatchcase(narrow, wide.replace("?", "[!*]"))


def require_classes(loaded: LoadedPolicy, existing: Collection[str]) -> None:
    """Report PriorityClasses that do not exist: a rule for them would protect nothing.

    Raises:
        PolicyError: With a problem for each name that the cluster does not know.
    """
    problems = []
    for place, name in named_classes(loaded.policy):
        if fnmatch.filter(existing, name):
            continue
        close = difflib.get_close_matches(name.strip("*?"), existing, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it has: {', '.join(sorted(existing))}"
        problems.append(
            Problem(loaded.line(*place), dotted(place), f"the cluster has no PriorityClass {name}; {hint}")
        )
    if problems:
        raise PolicyError(loaded.source, problems)


def named_classes(policy: Policy) -> Iterator[tuple[Place, str]]:
    """Each pattern of PriorityClasses, with its place in the file."""
    found: list[tuple[Place, Sequence[str]]] = [
        ((*place, "priorityClasses"), match.priorityClasses or ()) for place, match in _matches(policy)
    ]
    for number, row in enumerate(policy.defaults.kinds):
        found.append((("defaults", "kinds", number, "onlyPriorityClasses"), row.onlyPriorityClasses or ()))
    for place, patterns in found:
        yield from (((*place, position), pattern) for position, pattern in enumerate(patterns) if pattern)


def _matches(policy: Policy) -> Iterator[tuple[Place, Match]]:
    for number, rule in enumerate(policy.rules):
        yield ("rules", number, "match"), rule.match
    for number, match in enumerate(policy.sharing.untrusted):
        yield ("sharing", "untrusted", number), match


def namespace_problems(loaded: LoadedPolicy, existing: Collection[str]) -> Iterator[str]:
    """Namespaces that do not exist: what is about them has no effect. Wildcards may be about later ones.

    No error, since one policy may be for several clusters. Without `existing` nothing is known.
    """
    for place, name in _named_namespaces(loaded.policy) if existing else ():
        if name in existing or re.search(r"[*?[]", name):
            continue
        close = difflib.get_close_matches(name, existing, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        words = f"the cluster has no namespace {name}{hint}"
        yield f"policy: {Problem(loaded.line(*place), dotted(place), words)}"


def _named_namespaces(policy: Policy) -> Iterator[tuple[Place, str]]:
    lists: list[tuple[Place, Iterable[str]]] = [
        ((*place, "namespaces"), match.namespaces or ()) for place, match in _matches(policy)
    ]
    lists.append((("protectedNamespaces",), policy.protectedNamespaces))
    lists += [
        (("notifications", number, "namespaces"), target.namespaces or ())
        for number, target in enumerate(policy.notifications)
    ]
    for place, names in lists:
        for position, name in enumerate(names):
            yield (*place, position), name


def class_problems(evaluator: PolicyEvaluator) -> Iterator[str]:
    """Problems of annotations of PriorityClasses, and reasons why they are ignored."""
    policy, names = evaluator.policy, ", ".join(evaluator.class_rules)
    if policy is ADVISE_ONLY:
        if names:
            yield f"annotations of PriorityClasses ({names}) are ignored without a policy file; set --policy"
        return
    for name, found in evaluator.class_rules.items():
        for problem in found.problems:
            yield f"PriorityClass {name} protects its pods, because its annotations are invalid: {problem}"
    catch_all = next((rule.name for rule in policy.rules if rule.match.everything), None)
    if names and catch_all and policy.classAnnotations == "file-first":
        yield (
            f"annotations of PriorityClasses ({names}) have no effect: rule {catch_all} matches everything before "
            "them; write "
            "classAnnotations: class-first, or 'off'"
        )


def workloads_by_rule(evaluator: PolicyEvaluator) -> tuple[list[tuple[str, Mode, int, float]], int]:
    """Name, mode, workloads and GPUs of each rule in the cluster as it is, in the order in which they are asked.

    The last number is of the workloads that something above all rules protects.
    """
    workloads: collections.Counter[str] = collections.Counter()
    gpus: dict[str, float] = collections.defaultdict(float)
    modes: dict[str, Mode] = {rule.name: rule.mode for rule in evaluator.policy.rules}
    protected = 0
    for workload in evaluator.fleet.workloads:
        effective = evaluator.evaluate(workload)
        protected += any(blocker.source.startswith("built-in:") for blocker in effective.restrictions)
        for rule in effective.rules:
            modes.setdefault(rule.name, rule.mode)
            workloads[rule.name] += 1
            gpus[rule.name] += workload.gpus
    names = sorted(modes, key=lambda name: name == NO_RULE)
    return [(name, modes[name], workloads[name], gpus[name]) for name in names], protected


_IMPORTANT = re.compile(
    r"(?<![a-z])(high|highest|critical|prod|production|urgent|important|system|never)(?![a-z])"
)
"""Words of a name that ask for protection; 'high' in 'high-priority', not in 'highway'."""

_LONGEST_NAME = 63

_HEAD = f"""\
# A starting policy for the PriorityClasses of this cluster. It changes nothing: workloads that it does not protect get
# only advice. Watch `gpu-rightsizer plan --policy FILE` for some days, then enforce the advice that has proven right.
# All fields: docs/policy.md. After each change: gpu-rightsizer policy check FILE
apiVersion: {API_VERSION}
kind: Policy

# Limits of changes. Without entries the defaults apply; raise them once you trust the plan.
# budgets:
#   - {{scope: cluster, per: run, workloads: 10}}    # default: 5
#   - {{scope: namespace, per: run, workloads: 4}}   # default: 2

# When changes may be made; without windows always. Freezes are days without changes.
# maintenanceWindows:
#   - {{days: [mon-fri], from: "09:00", to: "17:00", zone: Europe/Berlin}}
# freezes:
#   - {{from: 2026-12-20, to: 2027-01-06, zone: Europe/Berlin, reason: year's end}}

# Annotations of PriorityClasses (gpu-rightsizer.io/mode and others) can make rules, too. They count after the rules of
# this file (file-first), before them (class-first), or not at all ('off').
classAnnotations: 'off'

# The first matching rule applies.
rules:
"""

_PROTECTED = """\
  # Value {value}: never touched.
  - name: {name}
    match: {{priorityClasses: [{pattern}]}}
    mode: protect
"""

_ADVISED = """\
  # Value {value}: shown in plans, not touched. To act on idle workloads, replace mode: advise by the lines below.
  - name: {name}
    match: {{priorityClasses: [{pattern}]}}
    mode: advise
    # mode: enforce
    # actions: [scale-to-zero, suspend]   # evict destroys bare pods: list it only if you want that
    # notifyBefore: 24h
"""

_WITHOUT = """\
  # Pods without a PriorityClass.
  - name: without-class
    match: {priorityClasses: [""]}
    mode: advise
"""


def starting_policy(classes: Iterable[PriorityClass]) -> str:
    """The text of a policy file; protects classes with important names, and the highest of several classes."""
    others = (priority for priority in classes if not priority.name.startswith("system-"))
    own = [priority for priority in others if priority.value <= SYSTEM_PRIORITY]
    own.sort(key=lambda priority: (-priority.value, priority.name))
    return _HEAD + "\n".join([*_rules(own), _WITHOUT])


def _rules(own: list[PriorityClass]) -> Iterator[str]:
    names: set[str] = {"without-class"}
    for number, priority in enumerate(own):
        is_highest = number == 0 and len({other.value for other in own}) > 1
        template = _PROTECTED if is_highest or _IMPORTANT.search(priority.name) else _ADVISED
        yield template.format(
            value=priority.value, name=_quoted(_title(priority.name, names)), pattern=_quoted(priority.name)
        )


def _title(name: str, taken: set[str]) -> str:
    """A name for its rule: as its own as it can be."""
    title = re.sub(r"[^A-Za-z0-9]+$", "", name[:_LONGEST_NAME])
    number = 2
    while title in taken:
        suffix = f"-{number}"
        title, number = title[: _LONGEST_NAME - len(suffix)] + suffix, number + 1
    taken.add(title)
    return title


def _quoted(name: str) -> str:
    """Quote what YAML would otherwise not read as this text."""
    return (
        name if yaml.safe_load(name) == name and re.fullmatch(r"[-A-Za-z0-9_.]+", name) else json.dumps(name)
    )
