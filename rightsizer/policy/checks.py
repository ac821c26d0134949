"""A policy against the cluster that it is meant for: what it names must exist. Pure."""

import difflib
import fnmatch
from collections.abc import Collection

from rightsizer.errors import PolicyError, Problem
from rightsizer.policy.reading import LoadedPolicy
from rightsizer.policy.rules import named_classes


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
