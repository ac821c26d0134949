"""A policy that cannot be meant is refused, each slip at its line and with what would be right; the schema agrees."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rightsizer.errors import PolicyError
from rightsizer.policy.policy_file import parse
from tests.conftest import Golden
from tests.rightsizer.bad_policies import BAD, GOOD

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "docs/policy.schema.json").read_text())
EXAMPLES = sorted((ROOT / "deploy/examples").glob("policy*.yaml"))
BEYOND_A_SCHEMA = {
    # It would have to list what another controller calls its gates.
    "gate-of-kueue",
    # It would have to compare two fields.
    *("on-demand-not-among-the-actions", "on-demand-grow", "told-to-the-cloud"),
    *("learned-from-nothing", "learned-from-too-many-returns", "learned-beyond-history"),
    *("returns-out-of-order", "returns-of-a-minute", "notice-before-the-evidence"),
    *("all-priorities-written-out", "all-priorities-but-the-lowest", "all-priorities-in-use"),
    *("budget-twice", "history-shorter-than-window", "freeze-backwards"),
    *("finding-above-its-mode", "findings-of-a-protect-rule", "min-replicas-without-scale-down"),
    *(
        "shrunk-and-never-grown",
        "shrunk-without-the-action",
        "sliced-without-the-action",
        "window-of-no-length",
    ),
    *("never-reached", "never-reached-after-everything", "never-reached-range"),
    *("namespace-protected-elsewhere", "pattern-protected-elsewhere"),
    *("system-class", "system-classes", "system-namespace"),
    # It would have to calculate, or to know a calendar, the world's zones, or all kinds.
    *("grace-of-years", "notice-of-nothing", "notice-of-years", "freeze-that-is-no-date", "window-from-24"),
    *("freeze-with-unknown-zone", "zone-that-is-a-folder", "zone-unknown", "kind-misspelt-in-defaults"),
    # It never sees it: editors merge.
    "merge-key",
}


def _problems(name: str) -> Iterator[str]:
    with pytest.raises(PolicyError) as caught:
        parse(BAD[name].encode(), source="policy.yaml")
    yield from map(str, caught.value.problems)


@pytest.mark.parametrize("name", BAD)
def test_bad_policy_is_refused_at_its_line(name: str) -> None:
    """There is a line, a place where one can be told, and words."""
    for problem in _problems(name):
        assert problem.startswith("line ")
        assert len(problem.split(": ", 1)[1]) > len("is missing")


def test_bad_policy_messages_match_golden(golden: Golden) -> None:
    """The words, to be read as a person would who made the slip."""
    told = "".join(f"{name}\n" + "".join(f"  {words}\n" for words in _problems(name)) for name in BAD)
    golden("bad-policies.txt", told)


def test_bad_policies_are_a_hundred_or_more() -> None:
    """And none stands twice."""
    assert len(set(BAD.values())) == len(BAD) >= 150


def test_bad_policies_base_is_valid() -> None:
    """Otherwise each would be refused for something else."""
    assert len(parse(GOOD.encode(), source="policy.yaml").policy.rules) == 2


class _Core(yaml.SafeLoader):
    """What editors that check against a schema read: YAML 1.2, where 22:00 and 2026-12-20 are text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own table, by first character
        first: [(tag, regexp) for tag, regexp in rows if not tag.endswith((":timestamp", ":int"))]
        for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Core.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789"))


def _fits(text: str) -> bool:
    document: Any = yaml.load(text, _Core)
    return bool(jsonschema.Draft202012Validator(SCHEMA).is_valid(document))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.name))
def test_policy_schema_accepts_every_example(path: Path) -> None:
    """What we show is good by the program and by the schema."""
    parse(path.read_bytes(), source=str(path))
    assert _fits(path.read_text())


def test_policy_schema_accepts_full_policy() -> None:
    """The file that says everything once."""
    assert _fits(GOOD)


def test_policy_schema_refuses_most_bad_policies() -> None:
    """All but those that no schema can tell."""
    accepted = {name for name, text in BAD.items() if _is_yaml(text) and _fits(text)}
    assert accepted == BEYOND_A_SCHEMA


def _is_yaml(text: str) -> bool:
    try:
        yaml.load(text, _Core)
    except yaml.YAMLError:
        return False
    return True
