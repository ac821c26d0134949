"""The reasons that a tuned policy gives are of what it does."""

import pytest

from rightsizer.policy.policy_file import BUILT_IN
from rightsizer.policy.schema import KindDefaults
from rightsizer_history.backtest.tuning import Choice, Cost, Times
from rightsizer_history.report.tuned_policy import tuned_policy_text
from tests.rightsizer_history.report.test_backtest_forms import result

KINDS = ("StatefulSet", "Deployment")


def _reasons(row: KindDefaults, times: Times) -> str:
    cost = Cost(idle=10.0, stops=4, returned=1.0)
    choice = Choice(row, times, gaps=20, returned=18, cost=cost, before=cost, break_even_h=24.0)
    text = tuned_policy_text({"rules": []}, BUILT_IN.policy, [choice], result(), learned="then", price=24.0)
    return " ".join(word for line in text.splitlines() if line[:1] == "#" for word in line[1:].split())


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (KindDefaults(kinds=KINDS), "StatefulSet, Deployment: 4 h"),
        (KindDefaults(kinds=KINDS, onlyNotebooks=True), "StatefulSet, Deployment with notebooks: 4 h"),
        (KindDefaults(kinds=KINDS, onlyWoken=True), "StatefulSet, Deployment that a request starts: 4 h"),
    ],
    ids=["all", "notebooks", "woken"],
)
def test_tuned_policy_names_the_workloads_of_a_row(row: KindDefaults, words: str) -> None:
    """Several rows are of the same kinds."""
    assert words in _reasons(row, Times(4.0, 0.0))


def test_tuned_policy_tells_when_notices_are_given() -> None:
    """At half of the waiting time, if that is sooner than what the policy says."""
    words = _reasons(KindDefaults(kinds=KINDS), Times(4.0, 0.0, notice_after_h=48.0, notice_h=12.0))
    assert "Notice after half of that time, at most 48 h, and 12 h before the stop" in words
