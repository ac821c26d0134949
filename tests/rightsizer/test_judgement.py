"""The judgement, held against the truth of a few simulated days: `python -m benchmarks.judgement`, but smaller."""

import pytest

from benchmarks._fleet import MIX, TRAINING
from benchmarks._judges import Ours, Plain
from benchmarks._weeks import Reclaim, Week, week
from benchmarks.judgement import bounds, by_archetype, overall

OURS, PLAIN = Ours("ours"), Plain("plain", 1800, 1800, is_any=True)
COUNTED = Ours("ours, counted", has_counters=True)


@pytest.fixture(scope="module")
def days() -> Week:
    """Three days of sixty workloads under our judgement and gpu-pruner's rule."""
    return week(1, 60, 3, (OURS, COUNTED, PLAIN))


def wrong(reclaims: list[Reclaim]) -> int:
    """How many came back."""
    return sum(one.is_wrong for one in reclaims)


@pytest.mark.parametrize("judge", [OURS, COUNTED], ids=lambda judge: judge.name)
def test_judge_workload_with_active_gpu_is_kept(days: Week, judge: Ours) -> None:
    """One GPU of one replica that worked in the window keeps the whole workload; the plain rule condemns some."""
    assert days.reclaims[judge.name]
    assert not [one for one in days.reclaims[judge.name] if one.has_worked]
    assert [one for one in days.reclaims[PLAIN.name] if one.has_worked]


def test_judge_stalled_training_is_never_stopped(days: Week) -> None:
    """However long a job stalls, what it did since its last checkpoint is not lost."""
    assert not [one for one in days.reclaims[OURS.name] if one.archetype in TRAINING]


def test_judge_adaptive_window_regrets_less_than_plain_rule(days: Week) -> None:
    """Waiting as long as the rhythm of each asks pays off."""
    ours, plain = days.reclaims[OURS.name], days.reclaims[PLAIN.name]
    assert wrong(ours) / len(ours) < wrong(plain) / len(plain)
    assert 20 * wrong(ours) < wrong(plain)


def test_judge_hung_collective_is_detected_by_power(days: Week) -> None:
    """A hung collective is told from work by power and memory traffic; by utilization alone it is not."""
    spinning = sum(holding.spinning for holding in days.holdings)
    assert spinning
    assert len({one.name for one in days.reclaims[OURS.name] if one.spins}) == spinning
    assert not [one for one in days.reclaims[PLAIN.name] if one.spins]


def test_judge_ended_workloads_are_mostly_reclaimed(days: Week) -> None:
    """Care costs no more than the windows."""
    ended = sum(holding.ended for holding in days.holdings)
    assert sum(one.gpu_s for one in days.reclaims[OURS.name] if not one.is_wrong) > 0.6 * ended


@pytest.mark.slow
def test_judge_reclaimed_hours_never_exceed_waste(days: Week) -> None:
    """What a workload would have used counts for nobody."""
    for holding in days.holdings:
        mine = [one.gpu_s for one in days.reclaims[PLAIN.name] if one.archetype is holding.archetype]
        assert sum(mine) <= holding.wasted <= holding.held


@pytest.mark.slow
def test_judge_fewer_replicas_regret_below_1_percent(days: Week) -> None:
    """Of what is advised on replicas less than one minute in a hundred is regretted."""
    assert days.advice.replicas > 0
    assert days.advice.short < 0.01 * days.advice.minutes


def test_judge_tables_have_row_per_judge_and_archetype(days: Week) -> None:
    """A row for each."""
    assert len(list(overall([days]))) == 2 + 3
    assert len(list(by_archetype([days]))) == 2 + len(MIX)


@pytest.mark.parametrize(
    ("hits", "of", "low", "high"),
    [(0, 10, 0.0, 0.3085), (5, 10, 0.1871, 0.8129), (10, 10, 0.6915, 1.0), (1, 100, 0.0003, 0.0545)],
)
def test_judge_share_bounds_match_clopper_pearson(hits: int, of: int, low: float, high: float) -> None:
    """As Clopper and Pearson's tables have them."""
    assert bounds(hits, of) == pytest.approx((low, high), abs=1e-4)
