"""What actions of a policy open of RBAC and the admission guardrails: every action that a kind has, and no other."""

import pytest

from rightsizer.guardrails.rbac import WRITE_PATHS
from rightsizer.model import Action


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
    (opening,) = [one for one in WRITE_PATHS if one.row.kind == kind]
    assert set(opening.actions) == actions
