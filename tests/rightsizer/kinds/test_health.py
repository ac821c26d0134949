"""How what goes on with less bears that: as many pods as it should have, each of them ready, none that failed."""

import dataclasses
import datetime
from typing import Any

import pytest

from rightsizer.kinds import kind_of
from rightsizer.kinds.health import Health, expected_pods, health_of, pods_after
from rightsizer.model import Action, ChangeRecord, Edit, ObjectRef, Pod, Proposal, Workload
from tests.rightsizer.build import AT, judged, pod, policy, workload

RESLICED = Edit(("spec", "predictor", "model", "resources", "limits", "nvidia.com/mig-1g.10gb"), None, "1")
SHRUNK = Edit(("spec", "replicas"), 3, 2)
LESS = Proposal(Action.RESLICE, 4.0, "", asks=(("nvidia.com/mig-1g.10gb", 1),))
FEWER = Proposal(Action.SCALE_DOWN, 2.0, "", replicas=2)
KINDS = {
    "InferenceService": "serving.kserve.io/v1beta1",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
    "Deployment": "apps/v1",
    "RayCluster": "ray.io/v1",
}


def _of(kind: str, pods: int, size: int | None) -> Workload:
    ref = ObjectRef(KINDS[kind], kind, "research", "w", "uid-w")
    return dataclasses.replace(workload(*(pod(f"w-{n}") for n in range(pods))), ref=ref, size=size)


def _wanted(item: Workload, proposal: Proposal, edit: Edit, **spec: Any) -> tuple[ChangeRecord, int]:
    """The record of such a change, and how many pods there should be by it."""
    decision = judged(item, {}, policy())
    finding = dataclasses.replace(decision.finding, proposal=proposal)
    decision = dataclasses.replace(decision, action=proposal.action, finding=finding)
    row = kind_of(item.ref)
    assert row is not None
    record = ChangeRecord(
        run="r",
        at=AT - datetime.timedelta(minutes=20),
        action=proposal.action,
        rule="all",
        finding="",
        reason="",
        edits=(edit,),
        healthy_within_seconds=900,
        pods=pods_after(decision, row),
    )
    return record, expected_pods(record, {"spec": spec}, row)


@pytest.mark.parametrize(
    ("kind", "pods", "size", "proposal", "replicas", "expected"),
    [
        ("InferenceService", 5, None, LESS, None, 5),
        ("RayCluster", 6, None, FEWER, None, 2),
        ("LeaderWorkerSet", 6, 3, LESS, 3, 6),
        ("LeaderWorkerSet", 6, 3, FEWER, 2, 4),
        ("Deployment", 5, 5, LESS, 5, 5),
        ("Deployment", 5, 5, LESS, 3, 3),  # its people wanted fewer since
        ("Deployment", 4, 5, LESS, 5, 5),  # one was on its way
        ("Deployment", 3, 3, FEWER, 2, 2),
    ],
)
def test_health_expected_pods_match_size_before_or_after_change(
    kind: str, pods: int, size: int | None, proposal: Proposal, replicas: int | None, expected: int
) -> None:
    """Of groups pods are counted, not groups; of what has no number of replicas what it had, not one."""
    spec = {} if replicas is None else {"replicas": replicas}
    assert _wanted(_of(kind, pods, size), proposal, RESLICED, **spec)[1] == expected


def _fresh(count: int) -> list[Pod]:
    return [pod(f"n-{n}", created=AT - datetime.timedelta(minutes=19)) for n in range(count)]


@pytest.mark.parametrize(("back", "health"), [(1, Health.FAILED), (4, Health.FAILED), (5, Health.HEALTHY)])
def test_health_one_of_five_pods_ready_is_unhealthy(back: int, health: Health) -> None:
    """Those that are there are all ready, but four never came, as where a quota forbids them."""
    record, count = _wanted(_of("InferenceService", 5, None), LESS, RESLICED)
    found, words = health_of(record, _fresh(back), count, AT)
    assert found is health
    assert f"{back} of 5 pods are ready" in words


def test_health_legacy_record_without_count_expects_one_pod() -> None:
    """It does not say how many there were."""
    row = kind_of(_of("InferenceService", 1, None).ref)
    assert row is not None
    old = ChangeRecord(AT, "r", Action.RESLICE, edits=(SHRUNK,))
    assert expected_pods(old, {"spec": {}}, row) == 1


MINUTE = datetime.timedelta(minutes=1)
SINCE = AT - 20 * MINUTE
RESOURCES = ("spec", "template", "spec", "containers", "name=main", "resources", "limits", "nvidia.com/gpu")


def _health(path: tuple[str, ...], **changes: Any) -> tuple[Health, str]:
    edits = (Edit(path, 2, 1),)
    record = ChangeRecord(
        run="r",
        at=SINCE,
        action="resize" if path == RESOURCES else "scale-down",
        rule="x",
        finding="y",
        reason="",
        edits=edits,
        healthy_within_seconds=900,
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
def test_health_changed_pod_with_error_exit_is_unhealthy(
    path: tuple[str, ...], changes: dict[str, Any], health: Health
) -> None:
    """CUDA out of memory is an error like others: nobody calls it OOMKilled."""
    found, words = _health(path, **changes)
    assert found is health, words
    assert health is Health.HEALTHY or "failed (" in words
