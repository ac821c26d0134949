"""How many replicas of a changed template start before a former one ends, by kind."""

from typing import Any

import pytest

from rightsizer.kinds import kind_of
from rightsizer.model import ObjectRef


def _surge(api_version: str, kind: str, spec: dict[str, Any], replicas: int) -> int:
    row = kind_of(ObjectRef(api_version, kind, "team", "x"))
    assert row is not None
    return row.rollout.surge_of({"metadata": {}, "spec": spec}, replicas)


def _rolling(**limits: Any) -> dict[str, Any]:
    return {"strategy": {"type": "RollingUpdate", "rollingUpdate": limits}}


@pytest.mark.parametrize(
    ("spec", "replicas", "surge"),
    [
        pytest.param(_rolling(maxSurge=1, maxUnavailable=0), 4, 1, id="one-more"),
        pytest.param(_rolling(maxSurge=3, maxUnavailable=0), 4, 3, id="three-more"),
        pytest.param(
            _rolling(maxSurge="25%", maxUnavailable="25%"), 3, 1, id="none-may-be-unavailable-rounded-down"
        ),
        pytest.param(_rolling(maxSurge="25%", maxUnavailable="25%"), 4, 0, id="one-may-be-unavailable"),
        pytest.param(_rolling(maxSurge="34%", maxUnavailable="0%"), 4, 2, id="rounded-up"),
        pytest.param(_rolling(maxSurge="100%", maxUnavailable=0), 4, 4, id="all"),
        pytest.param(_rolling(maxSurge=0, maxUnavailable=0), 4, 0, id="both-0-lets-one-be-unavailable"),
        pytest.param(_rolling(maxSurge=0, maxUnavailable="10%"), 4, 0, id="unavailable-rounded-to-0"),
        pytest.param(_rolling(maxSurge=2, maxUnavailable=1), 4, 0, id="may-end-first"),
        pytest.param(_rolling(maxSurge="many", maxUnavailable=0), 4, 4, id="unreadable"),
        pytest.param({}, 1, 1, id="defaults-of-one"),
        pytest.param({}, 8, 0, id="defaults-of-eight"),
        pytest.param({"strategy": {"type": "Recreate"}}, 4, 0, id="recreate"),
    ],
)
def test_deployment_surges_by_kubernetes_formula(spec: dict[str, Any], replicas: int, surge: int) -> None:
    """ResolveFenceposts in pkg/controller/deployment/util."""
    assert _surge("apps/v1", "Deployment", spec, replicas) == surge


@pytest.mark.parametrize(
    ("api_version", "kind", "spec", "surge"),
    [
        pytest.param("apps/v1", "StatefulSet", {}, 0, id="stateful-set"),
        pytest.param("batch/v1", "Job", {}, 0, id="job-that-is-suspended"),
        pytest.param("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", {}, 0, id="groups"),
        pytest.param(
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            {"rolloutStrategy": {"rollingUpdateConfiguration": {"maxSurge": 1, "maxUnavailable": 0}}},
            1,
            id="groups-with-a-surge",
        ),
        pytest.param("argoproj.io/v1alpha1", "Rollout", {"strategy": {"canary": {}}}, 1, id="canary"),
        pytest.param(
            "argoproj.io/v1alpha1",
            "Rollout",
            {"strategy": {"canary": {"maxSurge": 0, "maxUnavailable": 1}}},
            0,
            id="canary-in-place",
        ),
        pytest.param(
            "argoproj.io/v1alpha1",
            "Rollout",
            {"strategy": {"canary": {"maxUnavailable": 1, "trafficRouting": {"istio": {}}}}},
            3,
            id="canary-by-traffic",
        ),
        pytest.param(
            "argoproj.io/v1alpha1",
            "Rollout",
            {"strategy": {"blueGreen": {"activeService": "x"}}},
            3,
            id="blue-green",
        ),
        pytest.param("serving.knative.dev/v1", "Service", {}, 3, id="knative"),
        pytest.param("serving.kserve.io/v1beta1", "InferenceService", {}, 1, id="kserve"),
        pytest.param(
            "serving.kserve.io/v1beta1",
            "InferenceService",
            {"predictor": {"deploymentStrategy": {"type": "Recreate"}}},
            0,
            id="kserve-recreate",
        ),
        pytest.param("apps.nvidia.com/v1alpha1", "NIMService", {}, 1, id="nim"),
    ],
)
def test_kind_surges_by_its_own_rollout(
    api_version: str, kind: str, spec: dict[str, Any], surge: int
) -> None:
    """Of three replicas."""
    assert _surge(api_version, kind, spec, 3) == surge
