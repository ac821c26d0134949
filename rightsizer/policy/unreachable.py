"""Rules that can never hold, as far as that can be proven from the file alone. Pure.

A rule that an earlier one hides is a slip, and where it would protect a dangerous one. What is proven: each condition
of the earlier rule lets through all that the later one's does.
"""

import functools
from collections.abc import Iterator, Mapping

from rightsizer.model import Mode
from rightsizer.policy.match import CONDITIONS, Match, PriorityRange
from rightsizer.policy.protections import SYSTEM_NAMESPACES
from rightsizer.policy.schema import Policy

Place = tuple[str | int, ...]


def unreachable(policy: Policy) -> Iterator[tuple[Place, str]]:
    """Where in the file a rule stands that can never hold, or never do what it says, and why."""
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
    """What a rule opens in vain."""
    at: Place = ("rules", number, "match")
    for position, pattern in enumerate(match.priorityClasses or ()):
        if contains("system-*", pattern):
            words = f"{pattern} is a system class, which is always protected; remove it"
            yield (*at, "priorityClasses", position), words
    for position, pattern in enumerate(match.namespaces or ()):
        if pattern in SYSTEM_NAMESPACES:
            words = f"namespace {pattern} is a system namespace, which is always protected; remove it"
            yield (*at, "namespaces", position), words
        elif any(contains(shield, pattern) for shield in policy.protectedNamespaces):
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


_MOST = 5_000
"""States after which a proof is given up: globs can be written that take 2^n of them."""


@functools.lru_cache(maxsize=4096)
def contains(wide: str, narrow: str) -> bool:
    """Whether every name that the glob `narrow` matches is matched by `wide`, too.

    Both are read side by side: of `narrow` one position, of `wide` all in which it may be. Any character that stands in
    neither is like any other such, so one stands for all. Where that takes too long nothing is proven.
    """
    alphabet = {*wide, *narrow, "\0"} - {"*", "?"}
    start = (0, _rest(wide, frozenset({0})))
    seen, waiting = {start}, [start]
    while waiting:
        if len(seen) > _MOST:
            return False
        here, there = waiting.pop()
        ends = _rest(narrow, frozenset({here}))
        if len(narrow) in ends and len(wide) not in there:
            return False
        for position in ends:
            for character in alphabet:
                for following in _step(narrow, frozenset({position}), character):
                    state = (following, _rest(wide, _step(wide, there, character)))
                    if state not in seen:
                        seen.add(state)
                        waiting.append(state)
    return True


def _rest(glob: str, positions: frozenset[int]) -> frozenset[int]:
    """The positions, and those that a * reaches by matching nothing."""
    reached = set(positions)
    for position in positions:
        following = position
        while following < len(glob) and glob[following] == "*":
            following += 1
            reached.add(following)
    return frozenset(reached)


def _step(glob: str, positions: frozenset[int], character: str) -> frozenset[int]:
    """Where a glob stands after a character."""
    after = set()
    for position in positions:
        if position == len(glob):
            continue
        if glob[position] == "*":
            after.add(position)
        elif glob[position] in {"?", character}:
            after.add(position + 1)
    return frozenset(after)
