"""What actions of a policy open of RBAC and the admission guardrails: every action that a kind has, and no other."""

import pytest
import yaml

from rightsizer.guardrails.rbac import WRITE_PATHS, Enabled
from rightsizer.kinds.core import POD
from rightsizer.model import Action
from rightsizer.policy.policy_file import parse


@pytest.mark.parametrize(
    ("kind", "actions"),
    [
        (
            "Deployment",
            {Action.SCALE_UP, Action.SCALE_DOWN, Action.RESIZE, Action.RESLICE, Action.SCALE_TO_ZERO},
        ),
        ("RayCluster", {Action.SCALE_DOWN, Action.SUSPEND}),
        ("Notebook", {Action.SUSPEND}),
        ("JobSet", {Action.SUSPEND}),
    ],
)
def test_enabled_kinds_shrink_only_rule_enables_worker_groups(kind: str, actions: set[Action]) -> None:
    """Groups of workers are replicas, too: a rule that allows nothing but to shrink can do that."""
    openings = [one for one in WRITE_PATHS if one.row.kind == kind]
    assert {action for one in openings for action in one.actions} == actions


@pytest.mark.parametrize(("kinds", "patched"), [("Pod", True), ("P?d", True), ("Job", False)])
def test_enabled_kinds_pods_are_patched_only_for_notices(kinds: str, *, patched: bool) -> None:
    """An eviction alone writes nothing to its pod."""
    given = {
        "apiVersion": "gpu-rightsizer.io/v1alpha1",
        "kind": "Policy",
        "classAnnotations": "off",
        "defaults": {"kinds": [{"kinds": [kinds], "notifyBefore": "4h"}]},
        "rules": [{"name": "all", "match": {"kinds": ["Pod"]}, "mode": "enforce", "actions": ["evict"]}],
    }
    enabled = Enabled(parse(yaml.safe_dump(given).encode(), source="policy").policy)
    assert (POD in enabled.kinds, enabled.evicts) == (patched, True)
