"""What `run` publishes of a plan: GPUs that changes keep free by class, and what is left of budgets."""

import dataclasses
import datetime

import pytest

from rightsizer.kube.last_backtest import LastBacktest, PolicyFigures
from rightsizer.model import ChangeOutcome, ChangeRecord, Fleet, FoundChange, ObjectRef, Plan, PriorityClass
from rightsizer.planning.budget import Left
from rightsizer.planning.cost_summary import cost_summary_of
from rightsizer.policy.limits import BudgetScope, Per
from rightsizer.report.metrics import Metrics
from tests.rightsizer.build import AT
from tests.rightsizer.reported import PRICES

LOW = PriorityClass("low", 100)


def _change(name: str, gpus: int, priority_class: str | None, *, stands: bool = True) -> FoundChange:
    ref = ObjectRef("apps/v1", "Deployment", "team-a", name)
    end = None if stands else ChangeOutcome.REVERTED
    return FoundChange(ref, ChangeRecord(AT, "r1", "", gpus, end=end, priority_class=priority_class))


def _plan(*changes: FoundChange, after_s: float = 0.0) -> Plan:
    at = AT + datetime.timedelta(seconds=after_s)
    return Plan(at, "r1", "built-in", "", (), fleet=Fleet((), {}, {"low": LOW}, changes))


def _observe(metrics: Metrics, plan: Plan, *left: Left) -> None:
    metrics.observe(plan, cost_summary_of(plan, PRICES), left, currency=PRICES.currency)


def _by_class(metrics: Metrics, name: str) -> dict[str, float]:
    return {
        sample.labels["priority_class"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == f"gpu_rightsizer_{name}"
    }


@pytest.mark.parametrize(
    ("recorded", "told"),
    [("low", "low"), ("", "(none)"), (None, "(unknown)"), ("x" * 300, "(unknown)")],
    ids=["known", "of-no-class", "records-of-before", "whoever-annotates-may-write-anything"],
)
def test_metrics_freed_gpus_are_counted_by_recorded_class(recorded: str | None, told: str) -> None:
    """What nobody took back; a class that the cluster does not have is not known."""
    metrics = Metrics(acts=True)
    _observe(metrics, _plan(_change("w", 3, recorded), _change("back", 5, recorded, stands=False)))
    assert _by_class(metrics, "freed_gpus") == {told: 3}


def test_metrics_gpu_seconds_count_only_continuously_freed_gpus() -> None:
    """By class: what came free in between counts from then on, what is taken back disappears."""
    metrics = Metrics(acts=True)
    first, second = _change("w", 3, "low"), _change("v", 2, "")
    _observe(metrics, _plan(first))
    _observe(metrics, _plan(first, second, after_s=60))
    assert _by_class(metrics, "freed_gpu_seconds_total") == {"low": 180, "(none)": 0}
    _observe(metrics, _plan(second, after_s=90))
    assert _by_class(metrics, "freed_gpu_seconds_total") == {"low": 180, "(none)": 60}
    assert _by_class(metrics, "freed_gpus") == {"(none)": 2}


def test_metrics_remaining_budgets_are_published() -> None:
    """By scope, time and unit."""
    metrics = Metrics(acts=True)
    left = Left(BudgetScope.NAMESPACE, Per.DAY, "gpus", 4.0)
    _observe(metrics, _plan(), dataclasses.replace(left, amount=9.0))
    _observe(metrics, _plan(), left)
    labels = {"scope": "namespace", "per": "day", "unit": "gpus"}
    assert metrics.registry.get_sample_value("gpu_rightsizer_budget_remaining", labels) == 4


def _by_policy(metrics: Metrics) -> dict[tuple[str, str], float]:
    return {
        (sample.name.removeprefix("gpu_rightsizer_backtest_"), sample.labels["policy"]): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name.startswith("gpu_rightsizer_backtest_")
    }


def test_metrics_of_last_backtest_are_by_policy_until_there_is_none() -> None:
    """By hour; an unknown price is absent, and a plan in between takes nothing away."""
    metrics = Metrics(acts=False)
    assert _by_policy(metrics) == {}
    figures = (PolicyFigures("a.yaml", 48.0, None, 3, 1), PolicyFigures("b.yaml", 0.0, 60.0, 0, 0))
    metrics.backtested(LastBacktest(AT, 24.0, figures))
    _observe(metrics, _plan())
    found = _by_policy(metrics)
    assert {name: value for (name, policy), value in found.items() if policy == "a.yaml"} == {
        "freed_gpus": 2,
        "stops": 3,
        "returned_stops": 1,
        "replayed_seconds": 86400,
        "timestamp_seconds": AT.timestamp(),
    }
    assert found["saved_cost_per_hour", "b.yaml"] == 2.5
    metrics.backtested(LastBacktest(AT, 24.0, figures[:1]))
    assert {policy for _, policy in _by_policy(metrics)} == {"a.yaml"}
    metrics.backtested(None)
    assert _by_policy(metrics) == {}
