"""Whatever holds the samples, the plan is the same."""

import json
import pathlib
import shutil
from typing import Any

import pytest
import yaml

from simulator.prometheus import Prometheus
from simulator.victoria_metrics import PROGRAM, VictoriaMetrics
from tests.rightsizer.both_stores import BothStores
from tests.rightsizer.test_scenarios import DEFAULT_POLICY, FOLDER, give
from tests.rightsizer.world import World

STORIES = (
    "idle-of-every-kind",
    "missing-data-is-not-idleness",
    "one-device-of-many",
    "shared-gpus",
    "two-signals-must-agree",
)
NEVER_STORED = frozenset({"not-a-number"})
"""VictoriaMetrics does not keep a NaN: what is doubted elsewhere is a missing sample there."""


@pytest.mark.slow
@pytest.mark.prometheus
@pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"no {PROGRAM} on the path")
@pytest.mark.parametrize("story", STORIES)
def test_plan_victoriametrics_and_prometheus_are_equal(
    story: str, tmp_path: pathlib.Path, prometheus: Prometheus
) -> None:
    """Item for item, but for the numbers' last digits: the same verdicts for the same reasons."""
    scenario: dict[str, Any] = yaml.safe_load((FOLDER / f"{story}.yaml").read_text())
    with VictoriaMetrics(tmp_path / "victoria") as victoria:
        both = BothStores(prometheus, victoria)
        with World(tmp_path, both) as world:
            give(world, scenario["given"], f"{story}-twice")
            plans, coverages = [], []
            for store in (prometheus, victoria):
                both.answering = store
                run = world.run("plan", "-o", "json", policy=scenario.get("policy", DEFAULT_POLICY))
                assert run.code == 0, run.err
                items = json.loads(run.out)["items"]
                stored = [item for item in items if item["name"] not in NEVER_STORED]
                plans.append([_told(item) for item in stored])
                coverages.append([item["coverage"] for item in stored])
    assert plans[0] == plans[1]
    # Prometheus 2 counts a sample on either edge of a slot of twenty, where it is on the very millisecond.
    assert coverages[0] == pytest.approx(coverages[1], abs=0.06)
    assert plans[0]


def _told(item: dict[str, Any]) -> dict[str, Any]:
    """What is said of a workload, without what changes from one second to the next."""
    kept = (
        "namespace",
        "kind",
        "name",
        "verdict",
        "finding",
        "action",
        "rule",
        "confidence",
        "frees",
        "command",
    )
    evidence = item["evidence"]
    return {
        **{key: item[key] for key in kept},
        "blockers": [block["code"] for block in item["blockers"]],
        "busy": evidence["busyGpus"],
        "activity": _rounded(evidence["activityPeak"]),
        "power": _rounded(evidence["powerPeakWatts"]),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
