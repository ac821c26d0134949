"""Whether a workload that goes on with less is well, by what its pods say."""

import datetime
from typing import Any

import pytest

from rightsizer.workloads.changes import UndoRecord
from rightsizer.workloads.edits import Edit
from rightsizer.workloads.health import Health, health_of
from tests.rightsizer.build import AT, pod

MINUTE = datetime.timedelta(minutes=1)
SINCE = AT - 20 * MINUTE
RESOURCES = ("spec", "template", "spec", "containers", "name=main", "resources", "limits", "nvidia.com/gpu")


def _health(path: tuple[str, ...], **changes: Any) -> tuple[Health, str]:
    edits = (Edit(path, 2, 1),)
    record = UndoRecord(
        run="r", time=SINCE, action="shrink", rule="x", finding="y", reason="", edits=edits, settle=900
    )
    return health_of(record, [pod(**{"created": SINCE + MINUTE, **changes})], 1, AT)


ERROR: dict[str, Any] = {"ended": "Error", "ended_at": AT - MINUTE, "restarts": 1}


@pytest.mark.parametrize(
    ("path", "changes", "health"),
    [
        pytest.param(RESOURCES, {}, Health.HEALTHY, id="new-and-ready"),
        pytest.param(RESOURCES, ERROR, Health.FAILED, id="ended-by-an-error-and-is-ready-again"),
        pytest.param(RESOURCES, {"restarts": 1}, Health.FAILED, id="restarted-for-reasons-not-known"),
        pytest.param(RESOURCES, {**ERROR, "ended": "Completed"}, Health.HEALTHY, id="came-to-its-end"),
        pytest.param(
            ("spec", "replicas"),
            {**ERROR, "created": SINCE - MINUTE},
            Health.HEALTHY,
            id="not-changed-itself",
        ),
        pytest.param(("spec", "replicas"), ERROR, Health.HEALTHY, id="only-their-number-was-changed"),
    ],
)
def test_a_changed_pod_that_ended_by_an_error_is_not_well(
    path: tuple[str, ...], changes: dict[str, Any], health: Health
) -> None:
    """CUDA out of memory is an error like others: nobody calls it OOMKilled."""
    found, words = _health(path, **changes)
    assert found is health, words
    assert health is Health.HEALTHY or "ended by an error" in words
