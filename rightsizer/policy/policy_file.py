"""Policy text → Policy, or all its problems at once, each with its line; knows files, not what a policy means."""

import dataclasses
import hashlib
import pathlib

from rightsizer import yamlfile
from rightsizer.errors import PolicyError, Problem
from rightsizer.policy.schema import ADVISE_ONLY, Policy
from rightsizer.policy.unreachable import unreachable
from rightsizer.yamlfile import FileKind, Place, dotted

KIND = FileKind("policy", Policy, "apiVersion, kind, rules", "docs/policy.md", PolicyError)


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy with what is needed to talk about its text.

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
