"""How often properties are tried: what compares two worlds 100 times, 500 times in CI, 10,000 by `make check-deep`."""

from collections.abc import Callable
from typing import Any

import hypothesis
import pytest

from tests.rightsizer import (
    test_assess_properties,
    test_assess_rhythm,
    test_decision_properties,
    test_inventory,
    test_policy_properties,
    test_properties,
)

METAMORPHIC: tuple[Callable[..., Any], ...] = (
    # Fewer, later or broken samples, and more work.
    test_assess_properties.test_less_data_never_leads_to_action,
    test_assess_properties.test_more_work_never_leads_to_action,
    test_assess_properties.test_what_just_changed_is_left_alone,
    test_assess_rhythm.test_a_slot_that_turns_unknown_never_shortens_the_wait,
    test_decision_properties.test_a_record_that_begins_late_enforces_nothing_more,
    # More protection, less known, lower budgets.
    test_decision_properties.test_less_evidence_or_more_care_never_lets_more_happen,
    test_decision_properties.test_budgets_change_nothing_but_blocks,
    test_policy_properties.test_users_annotations_only_ever_reduce,
    test_policy_properties.test_knowing_less_never_lets_more_happen,
    # Another order.
    test_assess_properties.test_order_says_nothing,
    test_decision_properties.test_the_order_of_inputs_changes_no_byte_of_the_plan,
    test_inventory.test_every_pod_is_in_exactly_one_workload,
    test_policy_properties.test_the_order_of_questions_changes_no_answer,
    test_properties.test_the_order_of_pods_never_changes_the_rule,
)


@pytest.mark.parametrize("check", METAMORPHIC, ids=lambda check: str(check.__name__))
def test_what_compares_two_worlds_is_tried_often(check: Callable[..., Any]) -> None:
    """In the profile that the tests run with."""
    wanted = {"default": 100, "ci": 500, "deep": 10_000}[hypothesis.settings.get_current_profile_name()]
    assert vars(check)["_hypothesis_internal_use_settings"].max_examples == wanted
