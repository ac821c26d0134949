"""What the guardrails do not check, and what is granted beyond the rules, as `policy admission` and `rbac` say it."""

import yaml

from rightsizer.guardrails.admission import admission_gaps, grant_gaps
from rightsizer.policy.policy_file import parse
from tests.conftest import Golden

SUSPENDS = {"mode": "enforce", "actions": ["suspend"]}
ADVICE = {"name": "all", "match": {"everything": True}, "mode": "advise"}
CASES: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "advises only": ({"rules": [ADVICE]}, ("high",)),
    "ignores classes": (
        {"rules": [{"name": "jobs", "match": {"kinds": ["Job.batch"]}, **SUSPENDS}]},
        ("high", "low"),
    ),
    "asks classes": ({"rules": [ADVICE], "classAnnotations": "class-first"}, ()),
    "asks named classes": ({"rules": [ADVICE], "classAnnotations": "class-first"}, ("high",)),
    "commands": ({"rules": [{"name": "all", "match": {"kinds": ["Job.batch.volcano.sh"]}, **SUSPENDS}]}, ()),
    "protects": (
        {
            "rules": [
                {"name": "by-class", "match": {"priorityClasses": ["high"]}, "mode": "protect"},
                {"name": "by-priority", "match": {"priority": {"min": 5}}, "mode": "protect"},
                {"name": "by-namespace", "match": {"namespaces": ["x"]}, "mode": "protect"},
                {
                    "name": "team",
                    "match": {"namespaces": ["team"]},
                    "mode": "enforce",
                    "actions": ["suspend", "scale-to-zero", "evict"],
                },
                {"name": "later", "match": {"priorityClasses": ["low"]}, "mode": "protect"},
            ]
        },
        (),
    ),
}


def test_gaps_of_policies_match_golden(golden: Golden) -> None:
    """Nobody relies on a check that there is not."""
    lines = []
    for name, (fields, classes) in CASES.items():
        given = {
            "apiVersion": "gpu-rightsizer.io/v1alpha1",
            "kind": "Policy",
            "classAnnotations": "off",
            **fields,
        }
        policy = parse(yaml.safe_dump(given).encode(), source="policy").policy
        lines += [f"# {name}: not checked", *admission_gaps(policy, classes)]
        lines += [f"# {name}: granted", *grant_gaps(policy)]
    golden("gaps.txt", "\n".join([*lines, ""]))
