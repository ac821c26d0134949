"""What a policy file lets be done at all: actions, kinds, namespaces. Pure.

Classes' annotations can open as much as a file can; where they are asked, whatever they could open counts.
"""

import dataclasses
import fnmatch
from collections.abc import Iterator

from rightsizer.kinds import CONTROL_OBJECT_KINDS, KINDS
from rightsizer.kinds.core import POD
from rightsizer.kinds.kind import Kind, Steering
from rightsizer.model import Action, Mode
from rightsizer.policy.rule import Rule
from rightsizer.policy.schema import Policy


@dataclasses.dataclass(frozen=True, slots=True)
class Opening:
    """One way in which a rule that enforces comes to write to objects of a kind.

    Attributes:
        row: The kind that is written to.
        actions: Any of them opens it.
        about: Names of the kind that the rule has to be about, one of them; none where it may be about any.
        asking: Whether only where pods get a notice first.
    """

    row: Kind
    actions: tuple[Action, ...]
    about: tuple[str, ...] = ()
    asking: bool = False


def names(row: Kind) -> tuple[str, ...]:
    """As a policy may call a kind."""
    return (row.kind, f"{row.kind}.{row.group}") if row.group else (row.kind,)


def _openings() -> Iterator[Opening]:
    for row in KINDS:
        if row is not POD:
            yield Opening(row, tuple(action for action in Action if _can(row, action)), names(row))
        if row.steering is Steering.DELETION_COST:
            yield Opening(POD, (Action.SCALE_DOWN,), names(row))
    yield Opening(POD, (Action.EVICT,), names(POD), asking=True)
    for row in CONTROL_OBJECT_KINDS:  # of what it stops the rules speak
        yield Opening(row, (row.action,) if row.action else ())


def _can(row: Kind, action: Action) -> bool:
    if action is Action.SCALE_UP:
        return row.replicas is not None
    if action is Action.SCALE_DOWN:
        return row.replicas is not None or row.groups is not None
    if action in {Action.RESIZE, Action.RESLICE}:
        return bool(row.containers)
    return row.action is action


OPENINGS = tuple(_openings())


class Enabled:
    """What some rule that enforces allows.

    Attributes:
        acts: Whether anything may be changed.
        kinds: Rows whose objects may be changed, pods among them where they are annotated.
        evicts: Whether pods may be evicted.
        namespaces: The only ones where anything is changed; None where that cannot be said.
    """

    def __init__(self, policy: Policy) -> None:
        rules = [rule for rule in policy.rules if rule.mode is Mode.ENFORCE]
        by_class = policy.asks_classes
        self.acts = by_class or bool(rules)
        opened = [way.row for way in OPENINGS if by_class or any(_opens(way, rule, policy) for rule in rules)]
        self.kinds: tuple[Kind, ...] = tuple(row for row in (*KINDS, *CONTROL_OBJECT_KINDS) if row in opened)
        self.evicts = by_class or any(
            Action.EVICT in rule.actions and _is_about(names(POD), rule) for rule in rules
        )
        named = [rule.match.namespaces for rule in rules]
        literal = [name for names in named for name in names or () if not set("*?[") & set(name)]
        is_known = not by_class and all(names is not None for names in named)
        is_literal = is_known and len(literal) == sum(len(names or ()) for names in named)
        self.namespaces: tuple[str, ...] | None = tuple(sorted(set(literal))) if is_literal else None


def _opens(way: Opening, rule: Rule, policy: Policy) -> bool:
    return (
        any(action in rule.actions for action in way.actions)
        and (not way.about or _is_about(way.about, rule))
        and (not way.asking or _asks_pods(rule, policy))
    )


def _asks_pods(rule: Rule, policy: Policy) -> bool:
    """Whether a bare pod gets a notice."""
    by_kind = any(row.notifyBefore and _matches(names(POD), row.kinds) for row in policy.defaults.kinds)
    return bool(rule.notifyBefore or by_kind)


def _is_about(called: tuple[str, ...], rule: Rule) -> bool:
    return rule.match.kinds is None or _matches(called, rule.match.kinds)


def _matches(called: tuple[str, ...], patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns for name in called)
