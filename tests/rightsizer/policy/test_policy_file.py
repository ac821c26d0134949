"""A policy file is read whole or refused with all its problems, each at its line."""

import pathlib

import pytest

from rightsizer.errors import ConfigurationError, PolicyError
from rightsizer.model import Action, Mode
from rightsizer.policy.policy_file import load, parse, require_classes

GOOD = """\
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
defaults:
  idle: {window: 12h, grace: 1h, minCoverage: 0.8}
protectedNamespaces: [prod-*]
rules:
  - name: production
    match: {priorityClasses: [high-priority]}
    mode: protect
  - name: research
    match: {priority: {min: 0, max: 9999}}
    mode: enforce
    actions: [suspend, evict]
    idle: {window: 2d}
"""


def _with(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def test_policy_file_every_field_is_parsed() -> None:
    """What stands in the file is what the rules are made of."""
    policy = parse(GOOD.encode(), source="p").policy
    assert policy.defaults.idle.window.total_seconds() == 12 * 3600
    assert [rule.mode for rule in policy.rules] == [Mode.PROTECT, Mode.ENFORCE]
    assert policy.rules[1].actions == (Action.SUSPEND, Action.EVICT)
    research = policy.rules[1].idle
    assert research is not None
    assert (research.window.days, research.minCoverage) == (2, 0.9)


BAD = {
    "unknown-key": (
        _with("kind: Policy", "kind: Policy\nrule: []"),
        "line 3: rule: unknown field; did you mean rules?",
    ),
    "unknown-key-deep": (
        _with("minCoverage", "minCoverge"),
        "line 4: defaults.idle.minCoverge: unknown field; did you mean minCoverage?",
    ),
    "duplicate-key": (
        _with("mode: protect", "mode: protect\n    mode: enforce"),
        "line 10: rules[0].mode: is given twice; first in line 9",
    ),
    "negative-window": (
        _with("window: 12h", "window: -12h"),
        "line 4: defaults.idle.window: '-12h' is not a duration; write a number and a unit, such as 30m, 24h or 7d",
    ),
    "window-without-unit": (
        _with("window: 12h", "window: 12"),
        "line 4: defaults.idle.window: write a duration as text with a unit, such as 30m, 24h or 7d",
    ),
    "zero-window": (
        _with("window: 12h", "window: 0s"),
        "line 4: defaults.idle.window: '0s' must be longer than zero",
    ),
    "tiny-window": (
        _with("window: 12h", "window: 1m"),
        "line 4: defaults.idle.window: must be 5m to 366d",
    ),
    "coverage-above-one": (
        _with("0.8", "80"),
        "line 4: defaults.idle.minCoverage: input should be less than or equal to 1",
    ),
    "coverage-not-a-number": (_with("0.8", ".nan"), "line 4: defaults.idle.minCoverage: input should be"),
    "empty-rule": (
        _with("match: {priorityClasses: [high-priority]}", "match: {}"),
        "line 8: rules[0].match: an empty match would match everything; give a condition, or write everything: true",
    ),
    "null-match": (
        _with("match: {priorityClasses: [high-priority]}", "match:"),
        "line 8: rules[0].match: has no value; write one, or remove the field",
    ),
    "empty-list-of-classes": (
        _with("[high-priority]", "[]"),
        "line 8: rules[0].match.priorityClasses: is empty; name at least one, or remove the field",
    ),
    "everything-and-more": (
        _with("{priorityClasses:", "{everything: true, priorityClasses:"),
        "line 8: rules[0].match: everything: true excludes other conditions; remove one or the other",
    ),
    "everything-false": (
        _with("{priorityClasses: [high-priority]}", "{everything: false}"),
        "rules[0].match.everything",
    ),
    "range-upside-down": (
        _with("min: 0", "min: 10000"),
        "line 11: rules[1].match.priority: min 10000 is above max 9999",
    ),
    "reserved-priority": (
        _with("max: 9999", "max: 2000000000"),
        "line 11: rules[1].match.priority.max: input should be less",
    ),
    "unknown-mode": (
        _with("mode: protect", "mode: kill"),
        "line 9: rules[0].mode: input should be 'protect', 'advise'",
    ),
    "yaml-boolean": (_with("mode: protect", "mode: off"), "line 9: rules[0].mode: input should be"),
    "unknown-action": (_with("suspend, evict", "delete"), "line 13: rules[1].actions[0]: input should be"),
    "enforce-without-action": (
        _with("[suspend, evict]", "[]"),
        "line 10: rules[1]: mode enforce needs an action; name one, or write mode: protect",
    ),
    "two-rules-of-one-name": (
        _with("name: research", "name: production"),
        "two rules have the name 'production'",
    ),
    "no-rules": (GOOD[: GOOD.index("rules:")] + "rules: []\n", "rules must contain at least one rule"),
    "rules-missing": (GOOD[: GOOD.index("rules:")], "line 1: rules: is missing"),
    "wrong-kind": (_with("kind: Policy", "kind: Plan"), "line 2: kind: must be Policy, not Plan"),
    "wrong-version": (
        _with("v1alpha1", "v9"),
        "line 1: apiVersion: input should be 'gpu-rightsizer.io/v1alpha1'",
    ),
    "not-yaml": ("rules: [", "line 1: is not YAML: expected the node content"),
    "tab": ("rules:\n\t- x", "line 2: is not YAML: found character '\\t'"),
    "empty": ("", "is empty; see docs/policy.md for an example"),
    "only-a-comment": ("# nothing\n", "is empty"),
    "endless-window": (
        _with("window: 12h", "window: 99999999999w"),
        "line 4: defaults.idle.window: '99999999999w' is longer than 100 years",
    ),
    "window-beyond-prometheus": (
        _with("window: 12h", "window: 900w"),
        "line 4: defaults.idle.window: must be 5m to 366d",
    ),
    "tag-of-ones-own": (
        _with("name: production", "name: !foo bar"),
        "line 7: rules[0].name: 'bar' is not a value of the YAML type !foo; remove the tag",
    ),
    "binary": (
        _with("name: production", "name: !!binary 'zz'"),
        "line 7: rules[0].name: 'zz' is not a value of the YAML type tag:yaml.org,2002:binary",
    ),
    "tagged-boolean": (
        _with("name: production", "name: !!bool x"),
        "line 7: rules[0].name: 'x' is not a value",
    ),
    "tagged-integer": (
        _with("name: production", "name: !!int ''"),
        "line 7: rules[0].name: '' is not a value",
    ),
    "tagged-time": (
        _with("name: production", "name: !!timestamp x"),
        "line 7: rules[0].name: 'x' is not a value",
    ),
    "name-that-is-a-list": (
        _with("kind: Policy", "kind: Policy\n? [a, b]\n: c"),
        "line 3: a field's name must be text, not a list or mapping",
    ),
    "rule-that-is-nothing": (
        _with("rules:", "rules:\n  -"),
        "line 7: rules[0]: has no value; write one, or remove the field",
    ),
    "misspelt-kind": (
        _with("{priority: {min: 0, max: 9999}}", "{kinds: [Deploymnet]}"),
        "line 11: rules[1].match.kinds[0]: unknown kind Deploymnet; did you mean Deployment?",
    ),
    "misspelt-pattern-of-kinds": (
        _with("{priority: {min: 0, max: 9999}}", "{kinds: [Job, Statful*]}"),
        "line 11: rules[1].match.kinds[1]: unknown kind Statful*; did you mean StatefulSet?",
    ),
    "a-list": ("- 1\n", "line 1: must be a mapping: apiVersion, kind, rules"),
    "aliases": ("a: &x [1]\nb: *x\n", "uses YAML aliases"),
    "python-object": (
        _with("kind: Policy", "kind: !!python/object:os.system {}"),
        "line 2: kind: input should be",
    ),
    "deep-nesting": ("[" * 2000 + "]" * 2000, "is nested too deeply"),
    "two-documents": (GOOD + "---\n" + GOOD, "is not YAML: but found another document"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD.keys())
def test_policy_file_invalid_names_its_line(text: str, message: str) -> None:
    """The message names the file, the line, the field, and what would be right."""
    with pytest.raises(PolicyError) as caught:
        parse(text.encode(), source="policy.yaml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("policy policy.yaml cannot be used (")
    assert caught.value.exit_code == 2


def test_policy_file_several_problems_are_listed() -> None:
    """Three mistakes are three lines in the order of the file, not one at a time."""
    text = (
        _with("12h", "12").replace("mode: protect", "mode: kill").replace("name: research", "nam: research")
    )
    with pytest.raises(PolicyError) as caught:
        parse(text.encode(), source="p")
    assert [problem.line for problem in caught.value.problems] == [4, 9, 10, 10]


def test_policy_file_binary_is_refused() -> None:
    """A binary file is refused with words."""
    with pytest.raises(PolicyError, match="is not UTF-8 text"):
        parse(b"\xff\xfe\x00", source="p")


def test_policy_file_too_large_is_refused() -> None:
    """Over a megabyte is no policy, whatever it says."""
    with pytest.raises(PolicyError, match="larger than 1 MiB"):
        parse(b"#" * (2 << 20), source="p")


def test_policy_file_missing_names_the_path(tmp_path: pathlib.Path) -> None:
    """The path and the reason are named."""
    with pytest.raises(
        ConfigurationError, match=r"policy file .*nowhere\.yaml: cannot be read: No such file"
    ):
        load(tmp_path / "nowhere.yaml")


def test_policy_file_unknown_class_suggests_nearest() -> None:
    """A rule about nobody is a mistake: it is told with its line and the nearest name."""
    loaded = parse(GOOD.encode(), source="policy.yaml")
    require_classes(loaded, {"high-priority", "low-priority"})
    with pytest.raises(
        PolicyError, match=r"line 8: .*has no PriorityClass high-priority; did you mean high-prio"
    ):
        require_classes(loaded, {"high-prio"})


def test_policy_file_pattern_without_class_is_refused() -> None:
    """It is a slip as much as a wrong name is; that pods without a class exist cannot be asked."""
    loaded = parse(_with("[high-priority]", '["hgih-*", "high-*", ""]').encode(), source="p")
    with pytest.raises(PolicyError) as caught:
        require_classes(loaded, {"high-priority", "low-priority"})
    (problem,) = caught.value.problems
    assert (problem.line, problem.field) == (8, "rules[0].match.priorityClasses[0]")
    assert problem.message.startswith("the cluster has no PriorityClass hgih-*; ")
    require_classes(parse(_with("[high-priority]", '["high-*", ""]').encode(), source="p"), {"high-priority"})


def test_policy_file_unknown_untrusted_class_is_refused() -> None:
    """Its pods would be trusted."""
    text = _with("[high-priority]", '["high-*"]') + "sharing: {untrusted: [{priorityClasses: [gest]}]}\n"
    with pytest.raises(PolicyError) as caught:
        require_classes(parse(text.encode(), source="p"), {"high-priority", "guest"})
    (problem,) = caught.value.problems
    assert problem.field == "sharing.untrusted[0].priorityClasses[0]"
    assert problem.message == "the cluster has no PriorityClass gest; did you mean guest?"


def test_policy_file_unknown_class_of_a_row_is_refused() -> None:
    """Its workloads would have the times of all others."""
    row = '{kinds: [Job], onlyPriorityClasses: ["", gest], idle: {window: 2h}}'
    text = _with("[high-priority]", '["high-*"]').replace("defaults:\n", f"defaults:\n  kinds: [{row}]\n")
    with pytest.raises(PolicyError) as caught:
        require_classes(parse(text.encode(), source="p"), {"high-a", "guest"})
    (problem,) = caught.value.problems
    assert problem.field == "defaults.kinds[0].onlyPriorityClasses[1]"
    assert problem.message == "the cluster has no PriorityClass gest; did you mean guest?"


@pytest.mark.parametrize(
    "kind", ["Deployment", "CronJob", "*Job", "RayCluster", "TrainingRun.example.com", "*.example.com"]
)
def test_policy_file_valid_kinds_are_accepted(kind: str) -> None:
    """Known ones, patterns that match one, and anybody's own with its API group."""
    text = _with("{priority: {min: 0, max: 9999}}", f'{{kinds: ["{kind}"]}}')
    assert parse(text.encode(), source="p").policy.rules[1].match.kinds == (kind,)
