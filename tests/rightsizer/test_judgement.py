"""The judgement, held against the truth of small made-up fleets: `python -m benchmarks.judgement`, but smaller."""

import dataclasses
import math

import pytest

from benchmarks._courses import Archetype
from benchmarks._fleet import fleet
from benchmarks._judges import PLAIN, Ours
from benchmarks._weeks import Outcome, Tally, replay
from benchmarks.judgement import ANSWERS, bounds, by_archetype, overall

OURS, ANSWERED = Ours(), Ours(1.0)
PRUNER = PLAIN[-1]
SEED = 2
"""Even, as defaults may be chosen by these."""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """Four days of thirty workloads under our judgement, with and without answers, and gpu-pruner's rule."""
    return replay(SEED, 30, (OURS, ANSWERED, PRUNER), days=4)


def test_fleet_of_one_seed_is_always_the_same_and_another_differs() -> None:
    """A figure can be made again, and no two fleets are alike."""
    one, same, other = (fleet(seed, 10, 2) for seed in (SEED, SEED, SEED + 2))
    assert [each.works for each in one.members] == [each.works for each in same.members]
    assert [each.start_s for each in one.members] != [each.start_s for each in other.members]


def test_fleet_has_every_archetype_and_ends_nothing_before_it_is_judged() -> None:
    """What had ended before it is first judged would be found at once, whatever the judge."""
    made = fleet(SEED, 10, 2)
    assert {one.archetype for one in made.members} == set(Archetype)
    assert all(one.end_s > made.begin_s for one in made.members)


def test_fleet_members_that_end_never_work_again() -> None:
    """The truth of what had ended is that of its work."""
    for member in fleet(SEED, 30, 4).members:
        if member.ended_s is not None:
            assert member.resumes_s(member.ended_s + 1) == math.inf


def test_judge_stops_nothing_that_works(outcomes: dict[str, Outcome]) -> None:
    """One GPU of one replica that worked in the window keeps the whole workload; the plain rule stops some."""
    for judge in (OURS, ANSWERED):
        stops = [one for one in outcomes[judge.name].stops if not one.by_owner]
        assert stops
        assert not [one for one in stops if one.has_worked]
    assert [one for one in outcomes[PRUNER.name].stops if one.has_worked]


def test_judge_stalled_training_is_never_stopped(outcomes: dict[str, Outcome]) -> None:
    """However long a job stalls, what it did since its last checkpoint is not lost."""
    training = {Archetype.TRAINING, Archetype.LOADING}
    assert not [one for one in outcomes[OURS.name].stops if one.is_wrong and one.member.archetype in training]


def test_judge_condemns_no_over_allocated_workload_as_a_whole(outcomes: dict[str, Outcome]) -> None:
    """GPUs that no pod uses are given back, and the others stay."""
    assert outcomes[OURS.name].tally.condemned == 0
    assert outcomes[OURS.name].tally.unused_freed > 0
    assert outcomes[PRUNER.name].tally.condemned > 0


def test_judge_owners_who_answer_lose_less_and_free_more(outcomes: dict[str, Outcome]) -> None:
    """Who answers a notice is believed: `keep` keeps, and `release` frees before the wait is over."""
    asked, silent = outcomes[ANSWERED.name].tally, outcomes[OURS.name].tally
    assert asked.replies > 0 == silent.replies
    assert asked.wrong <= silent.wrong
    assert asked.ended_freed >= silent.ended_freed


def test_judge_frees_at_most_what_there_is(outcomes: dict[str, Outcome]) -> None:
    """No row of the table can be more than all."""
    for outcome in outcomes.values():
        tally = dataclasses.asdict(outcome.tally)
        for row in ("ended", "unused", "hung", "spun", "quiet", "served"):
            assert 0 <= tally[f"{row}_freed"] <= tally[row] * (1 + 1e-9)


def test_judge_tables_have_row_per_judge_and_archetype(outcomes: dict[str, Outcome]) -> None:
    """A row for each."""
    assert len(list(overall([outcomes]))) == 2 + len(outcomes)
    assert len(list(by_archetype([outcomes]))) == 2 + len(Archetype)


def test_judge_names_differ() -> None:
    """Each judge is a row."""
    assert len({*(Ours(one).name for one in ANSWERS), *(one.name for one in PLAIN)}) == len(ANSWERS) + len(
        PLAIN
    )


def test_tallies_add_up() -> None:
    """Of several fleets, field by field."""
    assert Tally(ended=1.0, stops=2) + Tally(ended=2.0, wrong=1) == Tally(ended=3.0, stops=2, wrong=1)


def test_bounds_contain_the_ratio_and_shrink_with_more_fleets() -> None:
    """Intervals are over fleets."""
    few, many = [(1.0, 4.0), (3.0, 4.0)] * 4, [(1.0, 4.0), (3.0, 4.0)] * 40
    for pairs in (few, many):
        low, high = bounds(pairs)
        assert low < 0.5 < high
    assert bounds(many)[1] - bounds(many)[0] < bounds(few)[1] - bounds(few)[0]
