"""The invariants on the wire: random clusters in which everything happens at once, and every request is checked.

Clusters are counted by the hypothesis profile: `ci` and `deep` have many more of them, and longer ones. A failure
names its seed and step; `python -m tests.rightsizer.wire SEED` lives that cluster again.
"""

import collections
import pathlib

import hypothesis
import pytest

from tests.rightsizer.wire.cluster import live

pytestmark = [pytest.mark.hypothesis, pytest.mark.timeout(1800)]

CLUSTERS, STEPS = {"ci": (200, 50), "deep": (2_000, 50)}.get(
    hypothesis.settings.get_current_profile_name(), (15, 8)
)
_TOGETHER = 5
FLOOR = 0.05
"""Actions for each step of a cluster, at least: without any, nothing would be shown."""


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, CLUSTERS, _TOGETHER), ids="seed-{}-on".format)
def test_wire_any_history_sends_no_invariant_violation(first: int, tmp_path: pathlib.Path) -> None:
    """Whatever people, autoscalers, failures, clocks and metrics do: no request breaks an invariant, and many act."""
    lives = [live(tmp_path / f"{seed}", seed, STEPS) for seed in range(first, first + _TOGETHER)]
    violations = [one for each in lives for one in each.violations]
    assert not violations, "\n".join(violations[:10])
    counts: collections.Counter[str] = collections.Counter()
    for each in lives:
        counts.update(each.counts)
    assert sum(each.actions for each in lives) >= FLOOR * STEPS * _TOGETHER, counts
    assert counts["given back"] + counts["restored"] + counts["noted"], counts
