"""How often properties are tried: what compares two worlds 100 times, 500 times in CI, 10,000 by `make check-deep`."""

from collections.abc import Callable
from typing import Any

import hypothesis
import pytest

from tests.rightsizer.findings import test_finding_properties, test_idle_history
from tests.rightsizer.inventory import test_workload_builder
from tests.rightsizer.planning import test_decide_properties, test_plan_properties
from tests.rightsizer.policy import test_policy_properties

METAMORPHIC: tuple[Callable[..., Any], ...] = (
    # Fewer, later or broken samples, and more work.
    test_finding_properties.test_findings_with_less_data_never_propose_more,
    test_finding_properties.test_findings_with_more_work_never_propose_more,
    test_finding_properties.test_findings_after_a_restart_or_resume_propose_nothing,
    test_idle_history.test_unknown_slot_never_shortens_the_required_idle_time,
    test_decide_properties.test_decisions_with_late_record_wait_longer,
    # More protection, less known, lower budgets.
    test_decide_properties.test_decisions_with_less_evidence_never_do_more,
    test_decide_properties.test_decisions_budgets_change_only_blockers,
    test_policy_properties.test_policy_annotations_only_reduce,
    test_policy_properties.test_policy_less_knowledge_never_does_more,
    # Another order.
    test_finding_properties.test_findings_do_not_depend_on_order,
    test_decide_properties.test_decisions_order_of_inputs_changes_no_byte,
    test_workload_builder.test_every_pod_belongs_to_exactly_one_workload,
    test_policy_properties.test_policy_evaluator_order_of_calls_changes_nothing,
    test_plan_properties.test_rules_order_of_pods_changes_nothing,
)


@pytest.mark.parametrize("check", METAMORPHIC, ids=lambda check: str(check.__name__))
def test_hypothesis_profile_two_world_tests_run_enough_examples(check: Callable[..., Any]) -> None:
    """In the profile that the tests run with."""
    wanted = {"default": 100, "ci": 500, "deep": 10_000}[hypothesis.settings.get_current_profile_name()]
    assert vars(check)["_hypothesis_internal_use_settings"].max_examples == wanted
